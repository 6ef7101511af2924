//! Calls at the same time, and calls that look like others.

use std::future::Future;
use std::sync::Arc;

use semel::guard::{Done, RunError};
use tokio::task::JoinSet;
use trading::domain::{self, AccountId, Order, Refusal};
use trading::once::{Answered, Asking, Error, Trading};

use super::{BALANCE, NOBODYS, asking, first, folder, open, portfolio, refused, replayed};

fn order(quantity: i64) -> Order {
    Order {
        symbol: "ACME".to_owned(),
        quantity,
    }
}

/// Asks ten times at the same time: one runs, and all have its answer.
async fn ten_times<T, C>(trading: &Arc<Trading>, ask: impl Fn(Arc<Trading>) -> C) -> T
where
    T: std::fmt::Debug + PartialEq + Send + 'static,
    C: Future<Output = Answered<T>> + Send + 'static,
{
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        callers.spawn(ask(trading.clone()));
    }
    let mut answers = Vec::new();
    let mut ran = 0;
    for answered in callers.join_all().await {
        let done = answered.unwrap();
        assert!(!matches!(done, Done::Unprotected(_)), "{done:?}");
        ran += u32::from(matches!(done, Done::Fresh(_)));
        answers.push(done.into_inner());
    }
    assert_eq!(ran, 1);
    let answer = answers.pop().unwrap();
    assert!(answers.iter().all(|other| *other == answer));
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_operation_asked_for_ten_times_at_once_runs_once() {
    let (_folder, file) = folder();
    let trading = Arc::new(open(&file));
    let opened = ten_times(&trading, |trading| async move {
        trading.open_account(asking("ann", "key")).await
    })
    .await;
    let account = opened.account;
    let filled = ten_times(&trading, move |trading| async move {
        trading
            .open_position(asking("ann", "key"), account, order(3))
            .await
    })
    .await;
    assert_eq!(filled.cash, BALANCE - 37_500);
    let position = filled.position;
    let closed = ten_times(&trading, move |trading| async move {
        trading
            .close_position(asking("ann", "key"), account, position)
            .await
    })
    .await;
    assert_eq!(closed.cash, BALANCE);
    ten_times(&trading, move |trading| async move {
        trading.start_challenge(asking("ann", "key"), account).await
    })
    .await;
    let fresh = ten_times(&trading, move |trading| async move {
        trading.reset(asking("ann", "key"), account).await
    })
    .await;
    let after = trading.overview("ann", fresh.account).await.unwrap();
    assert_eq!((after.challenges, after.replaced_by), (1, None));
    let before = trading.overview("ann", account).await.unwrap();
    assert_eq!(before.positions.len(), 1);
    // The last account there is.
    assert_eq!(fresh.account, AccountId(account.0 + 1));
    trading.close().await.unwrap();
}

#[tokio::test]
async fn the_same_request_id_to_open_and_to_close_is_two_requests() {
    let (_folder, file) = folder();
    let trading = open(&file);
    let account = portfolio(&trading, "ann").await.account;
    let id = asking("ann", "request-1");
    let filled = first(trading.open_position(id, account, order(3)).await);
    let closed = first(trading.close_position(id, account, filled.position).await);
    assert_eq!(closed.cash, BALANCE);
    assert_eq!(
        replayed(trading.open_position(id, account, order(3)).await),
        filled
    );
    assert_eq!(
        replayed(trading.close_position(id, account, filled.position).await),
        closed
    );
    // But another order is not that request.
    let other = trading.open_position(id, account, order(4)).await;
    assert!(
        matches!(other, Err(Error::Once(RunError::Mismatch))),
        "{other:?}"
    );
}

#[tokio::test]
async fn the_same_request_id_on_two_accounts_is_two_requests() {
    let (_folder, file) = folder();
    let trading = open(&file);
    // Two of one user's, and one of another's.
    let one = portfolio(&trading, "ann").await.account;
    let two = first(trading.open_account(asking("ann", "second")).await).account;
    let bobs = portfolio(&trading, "bob").await.account;
    for (user, account) in [("ann", one), ("ann", two), ("bob", bobs)] {
        let id = asking(user, "request-1");
        let filled = first(trading.open_position(id, account, order(3)).await);
        assert_eq!(filled.cash, BALANCE - 37_500);
        // Neither does a reset, whose scope leaves the account out.
        let fresh = first(trading.reset(id, account).await);
        assert_eq!(fresh.replaced, account);
        first(trading.start_challenge(id, fresh.account).await);
    }
    // Nobody is told of another's.
    let id = asking("bob", "request-1");
    for account in [one, two, NOBODYS] {
        let reset = trading.reset(id, account).await;
        let no = matches!(
            &reset,
            Err(Error::Domain(domain::Error::Refused(Refusal::NoAccount)))
        );
        assert!(no, "{reset:?}");
    }
}

#[tokio::test]
async fn a_reset_retried_under_the_old_account_or_the_new_one_replays() {
    let (_folder, file) = folder();
    let trading = open(&file);
    let old = portfolio(&trading, "ann").await.account;
    first(
        trading
            .open_position(asking("ann", "buy"), old, order(3))
            .await,
    );
    let fresh = first(trading.reset(asking("ann", "reset-1"), old).await);
    assert_eq!((fresh.closed, fresh.cash), (1, BALANCE));
    for account in [old, fresh.account] {
        let retry = trading.reset(asking("ann", "reset-1"), account).await;
        assert_eq!(replayed(retry), fresh);
    }
    // Another intent: on the old account it is refused, for good; on the new one it runs.
    for _ in 0..2 {
        let late = trading.reset(asking("ann", "reset-2"), old).await;
        assert_eq!(refused(late), Refusal::Replaced { by: fresh.account });
    }
    let next = first(trading.reset(asking("ann", "reset-3"), fresh.account).await);
    assert_eq!(next.replaced, fresh.account);
    // What was bought on the old account is still answered as it was.
    assert_eq!(
        replayed(
            trading
                .open_position(asking("ann", "buy"), old, order(3))
                .await
        )
        .cost,
        37_500
    );
}

#[tokio::test]
async fn a_challenge_without_a_key_starts_as_often_as_it_is_asked_for_and_with_one_once() {
    let (_folder, file) = folder();
    let trading = open(&file);
    let account = portfolio(&trading, "ann").await.account;
    let (user, key) = ("ann", None);
    let challenges = async || trading.overview("ann", account).await.unwrap().challenges;
    for nth in 1..=2 {
        let started = trading.start_challenge(Asking { user, key }, account).await;
        assert!(matches!(started, Ok(Done::Unprotected(()))), "{started:?}");
        assert_eq!(challenges().await, nth);
    }
    // Void is replayed as void.
    let keyed = asking("ann", "challenge-1");
    let () = first(trading.start_challenge(keyed, account).await);
    let () = replayed(trading.start_challenge(keyed, account).await);
    assert_eq!(challenges().await, 3);
    // The others need one.
    let reset = trading.reset(Asking { user, key }, account).await;
    assert!(matches!(reset, Err(Error::Once(RunError::KeyRequired))));
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_is_replayed() {
    let (_folder, file) = folder();
    let trading = open(&file);
    let account = portfolio(&trading, "ann").await.account;
    let id = asking("ann", "dear");
    let dear = trading.open_position(id, account, order(81)).await;
    let (cost, cash) = (81 * 12_500, BALANCE);
    assert_eq!(refused(dear), Refusal::TooDear { cost, cash });
    // Cheaper now; but this request was answered.
    trading.set_quote("ACME".to_owned(), 1).await.unwrap();
    let again = trading.open_position(id, account, order(81)).await;
    assert_eq!(refused(again), Refusal::TooDear { cost, cash });
    first(
        trading
            .open_position(asking("ann", "new"), account, order(81))
            .await,
    );
}

/// At one quote, money and what was paid for what is open are together always the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overview_is_of_one_moment() {
    let (_folder, file) = folder();
    let trading = Arc::new(open(&file));
    let account = portfolio(&trading, "ann").await.account;
    let trader = trading.clone();
    let trade = tokio::spawn(async move {
        for n in 0..100 {
            let key = format!("trade-{n}");
            let id = asking("ann", &key);
            let filled = first(trader.open_position(id, account, order(3)).await);
            first(trader.close_position(id, account, filled.position).await);
        }
    });
    let mut looks = 0;
    while !trade.is_finished() {
        let overview = trading.overview("ann", account).await.unwrap();
        let open = overview.positions.iter().filter(|p| p.proceeds.is_none());
        let paid: i64 = open.map(|position| position.cost).sum();
        assert_eq!(overview.cash + paid, BALANCE, "{overview:?}");
        looks += 1;
    }
    trade.await.unwrap();
    assert!(looks > 20, "{looks}");
}
