//! Random operations, delivered several times each and again later, leave what one delivery each
//! leaves.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use rusqlite::Connection;
use rusqlite::types::Value;
use semel::guard::Done;
use tokio::task::JoinSet;
use trading::domain::{AccountId, Order, PositionId, Refusal};
use trading::once::{Answered, Error, Trading};

use super::{asking, folder, open, portfolio};

/// Something that a client wants, with all that it sends: retries are the same.
#[derive(Debug, Clone)]
struct Request {
    user: &'static str,
    /// Few, so that they meet in other operations and accounts.
    key: String,
    account: AccountId,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Open { symbol: &'static str, quantity: i64 },
    Close { position: PositionId },
    Reset,
    Challenge,
}

fn what() -> impl Strategy<Value = What> {
    let symbol = prop::sample::select(vec!["ACME", "GLOBEX", "INITECH", "NONE"]);
    prop_oneof![
        4 => (symbol, -1..60_i64).prop_map(|(symbol, quantity)| What::Open { symbol, quantity }),
        3 => (1..8_i64).prop_map(|id| What::Close { position: PositionId(id) }),
        1 => Just(What::Reset),
        1 => Just(What::Challenge),
    ]
}

/// Requests in order, each with how often it is delivered at once, and how many of those before it
/// come again after it.
type Plan = Vec<(Request, usize, Vec<prop::sample::Index>)>;

fn plan() -> impl Strategy<Value = Plan> {
    let user = prop::sample::select(vec!["ann", "bob"]);
    let account = (1..5_i64).prop_map(AccountId);
    let again = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    let step = (user, account, what(), 1..4_usize, again);
    prop::collection::vec(step, 1..16).prop_map(|steps| {
        let steps = steps.into_iter().enumerate();
        steps
            .map(|(nth, (user, account, what, times, again))| {
                // Neighbours without fields share a key. Where they are one operation on one
                // portfolio they are one request, however often they are delivered.
                let key = match what {
                    What::Open { .. } | What::Close { .. } => format!("{nth}"),
                    What::Reset | What::Challenge => format!("{}", nth / 2 * 2),
                };
                let request = Request {
                    user,
                    key,
                    account,
                    what,
                };
                (request, times, again)
            })
            .collect()
    })
}

/// The answer in words, without who ran it.
fn words<T: std::fmt::Debug>(answered: Answered<T>) -> (String, bool) {
    match answered {
        Ok(Done::Fresh(answer)) => (format!("{answer:?}"), true),
        Ok(done) => (format!("{:?}", done.into_inner()), false),
        Err(Error::Refused { refusal, replayed }) => (format!("{refusal:?}"), !replayed),
        Err(error) => (format!("{error}"), false),
    }
}

async fn deliver(trading: &Trading, request: Request) -> (String, bool) {
    let Request {
        user,
        key,
        account,
        what,
    } = request;
    let asking = asking(user, &key);
    match what {
        What::Open { symbol, quantity } => {
            let symbol = symbol.to_owned();
            words(
                trading
                    .open_position(asking, account, Order { symbol, quantity })
                    .await,
            )
        }
        What::Close { position } => words(trading.close_position(asking, account, position).await),
        What::Reset => words(trading.reset(asking, account).await),
        What::Challenge => words(trading.start_challenge(asking, account).await),
    }
}

/// Every row of the domain's tables.
fn state(file: &Path) -> Vec<Vec<Value>> {
    let on = Connection::open(file).unwrap();
    let mut rows = Vec::new();
    for table in ["portfolios", "accounts", "positions", "quotes"] {
        let mut all = on
            .prepare(&format!("SELECT * FROM {table} ORDER BY 1"))
            .unwrap();
        let columns = all.column_count();
        let read = all.query_map([], |row| (0..columns).map(|at| row.get(at)).collect());
        rows.extend(read.unwrap().map(Result::unwrap));
    }
    rows
}

async fn opened(file: &Path) -> Arc<Trading> {
    let trading = open(file);
    for user in ["ann", "bob"] {
        portfolio(&trading, user).await;
    }
    Arc::new(trading)
}

async fn run(plan: Plan) {
    let (_folder, single) = folder();
    let trading = opened(&single).await;
    let mut answers = Vec::new();
    for (request, _, _) in &plan {
        answers.push(deliver(&trading, request.clone()).await.0);
    }
    trading.close().await.unwrap();

    let (_folder, many) = folder();
    let trading = opened(&many).await;
    for (nth, (request, times, again)) in plan.iter().enumerate() {
        let mut deliveries = JoinSet::new();
        for _ in 0..*times {
            let (trading, request) = (trading.clone(), request.clone());
            deliveries.spawn(async move { deliver(&trading, request).await });
        }
        let mut ran = 0;
        for (words, first) in deliveries.join_all().await {
            assert_eq!(words, answers[nth], "{request:?}");
            ran += u32::from(first);
        }
        assert!(ran <= 1);
        for earlier in again {
            let earlier = earlier.index(nth + 1);
            // Refused before its claim, because there was no such account then: not recorded.
            if answers[earlier] == Refusal::NoAccount.to_string() {
                continue;
            }
            let (words, first) = deliver(&trading, plan[earlier].0.clone()).await;
            assert_eq!(words, answers[earlier]);
            assert!(!first);
        }
    }
    trading.close().await.unwrap();
    assert_eq!(state(&many), state(&single));
}

proptest! {
    #![proptest_config(Config { cases: 64, failure_persistence: None, ..Config::default() })]

    #[test]
    fn deliveries_beyond_the_first_change_nothing(plan in plan()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(run(plan));
    }
}
