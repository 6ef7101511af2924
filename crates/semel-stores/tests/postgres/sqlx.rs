//! The steps on an application's own connections by sqlx, beside its own writes.

use std::sync::Arc;
use std::time::Duration;

use semel::record::Change;
use semel::store::{
    Acquired, Claim, ClaimRequest, Fenced, Nonce, OnLost, Refusal, Retention, Store as _,
    StoreExt as _, Token, Waited,
};
use semel::{FinishedStep, Identity, Key, Outcome, Scope, StateKind, StoreErrorKind};
use semel_stores::postgres::SqlxSteps;
use semel_stores::postgres::sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use semel_stores::postgres::sqlx::{self, AssertSqlSafe, Connection as _, PgPool};
use semel_stores::{PostgresOptions, PostgresStore};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{PgBouncer, Postgres, Server as _};

use super::{acquire, acquire_as, complete, forged, identity, open, replayed, request, url};

/// An application with a table of its own beside the records.
struct App {
    pool: PgPool,
    steps: SqlxSteps,
    orders: String,
}

impl App {
    async fn new(url: &str) -> Self {
        let (server, parameters) = url.split_once('?').unwrap_or((url, ""));
        let table = parameters
            .split('&')
            .find_map(|p| p.strip_prefix("table="))
            .unwrap_or("semel_records");
        let app = Self {
            pool: pool(server).await,
            steps: PostgresOptions::from_url(url).unwrap().steps_for_sqlx(),
            orders: format!("{table}_orders"),
        };
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {} (what text NOT NULL)",
            app.orders
        );
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(&app.pool)
            .await
            .unwrap();
        app
    }

    async fn insert(&self, on: &mut PgConnection) {
        let insert = format!("INSERT INTO {} VALUES ($1)", self.orders);
        let insert = sqlx::query(AssertSqlSafe(insert)).bind("tea");
        insert.execute(on).await.unwrap();
    }

    /// The operation with its completion, up to the commit.
    async fn order(&self, on: &mut PgConnection, key: &str, token: &Token) -> Fenced {
        self.insert(on).await;
        let (id, outcome) = (identity(key), Outcome::success(b"ordered"));
        let change = Change::complete(token, &outcome, Retention::ORDER);
        let done = self.steps.change(on, id.digest(), &change);
        done.await.unwrap()
    }

    async fn orders(&self) -> i64 {
        let count = format!("SELECT count(*) FROM {}", self.orders);
        let count = sqlx::query_scalar(AssertSqlSafe(count));
        count.fetch_one(&self.pool).await.unwrap()
    }
}

async fn pool(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(8);
    options.connect(url).await.unwrap()
}

async fn state(store: &PostgresStore, key: &str) -> StateKind {
    let entry = store.get(identity(key).digest()).await.unwrap();
    entry.unwrap().record.state.kind()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_committed_or_neither() {
    let url = url();
    let store = Arc::new(open(&url).await);
    let app = App::new(&url).await;
    let token = acquire(&store, "key").await.token;

    let mut transaction = app.pool.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    transaction.rollback().await.unwrap();
    assert_eq!(app.orders().await, 0);
    assert_eq!(state(&store, "key").await, StateKind::InFlight);
    // Forgotten is rolled back as well.
    let mut transaction = app.pool.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    drop(transaction);
    assert_eq!(state(&store, "key").await, StateKind::InFlight);

    let waiter = {
        let (store, id) = (store.clone(), identity("key"));
        let patience = Duration::from_secs(30);
        tokio::spawn(async move { store.wait(id.digest(), token.fence, patience).await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut transaction = app.pool.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    // Nothing counts, and nobody is told, before the commit.
    let rival = store.claim(&identity("key"), &request()).await.unwrap();
    assert!(matches!(rival, Claim::InFlight { .. }), "{rival:?}");
    assert!(!waiter.is_finished());
    transaction.commit().await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), Waited::Changed);
    assert_eq!(app.orders().await, 1);
    assert_eq!(replayed(&store, "key").await, &b"ordered"[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_attempt_is_refused_and_leaves_nothing() {
    let url = url();
    let store = open(&url).await;
    let app = App::new(&url).await;
    let brief = || ClaimRequest {
        lease: Duration::ZERO,
        on_lost: OnLost::Retry,
        ..request()
    };
    let stale = acquire_as(&store, "key", &brief()).await.token;
    let current = acquire_as(&store, "key", &brief()).await.token;
    let same_fence = Token {
        nonce: Nonce::random().unwrap(),
        ..current
    };
    for token in [stale, same_fence, forged(u64::MAX)] {
        let mut transaction = app.pool.begin().await.unwrap();
        let done = app.order(&mut transaction, "key", &token).await;
        assert_eq!(done, Fenced::Refused(Refusal::Superseded));
        transaction.rollback().await.unwrap();
    }
    let mut transaction = app.pool.begin().await.unwrap();
    let missing = app.order(&mut transaction, "no-such-key", &current).await;
    assert_eq!(missing, Fenced::Refused(Refusal::Missing));
    transaction.rollback().await.unwrap();
    assert_eq!(app.orders().await, 0);
    let mut transaction = app.pool.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &current).await;
    assert_eq!(done, Fenced::Applied);
    transaction.commit().await.unwrap();
    assert_eq!(app.orders().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dies_before_the_commit_leaves_nothing() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url()).await;
    let app = App::new(&server.url()).await;
    let through = server.url_through(proxy.address());
    let token = acquire(&store, "key").await.token;
    let dies: [(&str, &(dyn Fn() + Sync)); 2] = [
        ("connection cut", &|| {
            proxy.cut();
            // It is cut by the proxy's own thread.
            while proxy.hits() == 0 {
                std::thread::yield_now();
            }
        }),
        ("server restarted at once", &|| {
            server.restart_immediately().unwrap();
        }),
    ];
    for (what, die) in dies {
        let mut own = PgConnection::connect(&through).await.unwrap();
        let mut transaction = own.begin().await.unwrap();
        let done = app.order(&mut transaction, "key", &token).await;
        assert_eq!(done, Fenced::Applied, "{what}");
        die();
        transaction.commit().await.unwrap_err();
        drop(own);
        // The store's connections are gone as well.
        for _ in 0..300 {
            if store.get(identity("key").digest()).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(state(&store, "key").await, StateKind::InFlight, "{what}");
        let fresh = App::new(&server.url()).await;
        assert_eq!(fresh.orders().await, 0, "{what}");
    }
    let app = App::new(&server.url()).await;
    let mut transaction = app.pool.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    transaction.commit().await.unwrap();
    assert_eq!(app.orders().await, 1);
}

/// Who cannot know whether its transaction was committed runs it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_runs_again_after_its_commit_is_refused() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = open(&server.url()).await;
    let app = App::new(&server.url()).await;
    let through = server.url_through(proxy.address());
    let token = acquire(&store, "key").await.token;
    let mut own = PgConnection::connect(&through).await.unwrap();
    let mut transaction = own.begin().await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    proxy.set(Fault::CutAnswers);
    transaction.commit().await.unwrap_err();
    assert_eq!(state(&store, "key").await, StateKind::Completed);

    let mut transaction = app.pool.begin().await.unwrap();
    let again = app.order(&mut transaction, "key", &token).await;
    let settled = Fenced::Refused(Refusal::Settled(StateKind::Completed));
    assert_eq!(again, settled);
    transaction.rollback().await.unwrap();
    assert_eq!(app.orders().await, 1);
    // The store, with nothing beside it, takes the repetition for what it is.
    let (id, outcome) = (identity("key"), Outcome::success(b"ordered"));
    let again = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
    assert_eq!(again.await.unwrap(), Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_transactions_of_one_attempt_one_commits() {
    let url = url();
    let store = open(&url).await;
    let app = Arc::new(App::new(&url).await);
    for round in 0..10_i64 {
        let key = format!("key-{round}");
        let token = acquire(&store, &key).await.token;
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (app, key) = (app.clone(), key.clone());
                tokio::spawn(async move {
                    let mut transaction = app.pool.begin().await.unwrap();
                    let done = app.order(&mut transaction, &key, &token).await;
                    match done {
                        Fenced::Applied => transaction.commit().await.unwrap(),
                        Fenced::Refused(_) => transaction.rollback().await.unwrap(),
                    }
                    done
                })
            })
            .collect();
        let mut applied = 0;
        for task in tasks {
            match task.await.unwrap() {
                Fenced::Applied => applied += 1,
                refused => assert_eq!(
                    refused,
                    Fenced::Refused(Refusal::Settled(StateKind::Completed))
                ),
            }
        }
        assert_eq!(applied, 1);
        assert_eq!(app.orders().await, round + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_work_on_the_same_records() {
    let url = url();
    let store = open(&url).await;
    let App { pool, steps, .. } = App::new(&url).await;
    let on = &mut *pool.acquire().await.unwrap();
    let odd = Scope::new(["ten\0ant", "7\\", "\n", "ä"]);
    let odd = Identity::new(odd, "or\0der", Key::new("the-key").unwrap());
    let id = odd.digest();

    // Claimed here, renewed and completed there.
    let asked = request();
    let claimed = steps.claim(on, &odd, &asked).await.unwrap();
    let Claim::Acquired(acquired) = claimed else {
        panic!("{claimed:?}");
    };
    let again = Claim::Acquired(Acquired {
        is_repeated: true,
        ..acquired
    });
    assert_eq!(store.claim(&odd, &asked).await.unwrap(), again);
    let token = acquired.token;
    let rival = request();
    let told = store.claim(&odd, &rival).await.unwrap();
    assert!(matches!(told, Claim::InFlight { .. }), "{told:?}");
    let lease = Duration::from_secs(3600);
    let renewed = steps
        .change(on, id, &Change::renew(&token, lease))
        .await
        .unwrap();
    assert_eq!(renewed, Fenced::Applied);
    let charge = FinishedStep::new("charge", b"ch_\0\xff").unwrap();
    let kept = steps
        .change(on, id, &Change::keep_step(&token, &charge, 0))
        .await
        .unwrap();
    assert_eq!(kept, Fenced::Applied);
    // Kept there before, so that its effect here would be the second one.
    let again = steps
        .change(on, id, &Change::keep_step(&token, &charge, 0))
        .await
        .unwrap();
    assert_eq!(again, Fenced::Refused(Refusal::OtherSteps));
    let again = store.keep_step(id, &token, &charge, 0).await.unwrap();
    assert_eq!(again, Fenced::Applied);
    let entry = steps.get(on, id).await.unwrap();
    assert_eq!(entry, store.get(id).await.unwrap());
    assert_eq!(
        entry.unwrap().record.progress.as_bytes(),
        charge.as_bytes(),
        "kept by one, read by the other"
    );
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let outcome = Outcome::success(&bytes);
    let done = store.complete(id, &token, &outcome, Retention::ORDER);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    match steps.claim(on, &odd, &rival).await.unwrap() {
        Claim::Completed { outcome: kept, .. } => {
            assert_eq!(kept.as_bytes(), outcome.as_bytes());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        steps.get(on, id).await.unwrap(),
        store.get(id).await.unwrap()
    );

    // Claimed there, completed here; the replay has the very bytes.
    let other = identity("other-key");
    let token = acquire(&store, "other-key").await.token;
    let change = Change::complete(&token, &outcome, Retention::ORDER);
    let done = steps.change(on, other.digest(), &change);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    match store.claim(&other, &request()).await.unwrap() {
        Claim::Completed { outcome: kept, .. } => {
            assert_eq!(kept.as_bytes(), outcome.as_bytes());
        }
        other => panic!("{other:?}"),
    }

    // The other ends of an attempt.
    let released = identity("released-key");
    let token = acquire(&store, "released-key").await.token;
    let abandon = steps
        .change(on, released.digest(), &Change::abandon(&token))
        .await
        .unwrap();
    assert_eq!(abandon, Fenced::Applied);
    assert_eq!(state(&store, "released-key").await, StateKind::Released);
    let again = steps
        .change(on, released.digest(), &Change::abandon(&token))
        .await
        .unwrap();
    let settled = Refusal::Settled(StateKind::Released);
    assert_eq!(again, Fenced::Refused(settled));
    let unknown = identity("unknown-key");
    let token = acquire(&store, "unknown-key").await.token;
    let change = Change::mark_unknown(&token);
    let marked = steps.change(on, unknown.digest(), &change);
    assert_eq!(marked.await.unwrap(), Fenced::Applied);
    let told = steps.claim(on, &unknown, &request()).await.unwrap();
    assert_eq!(told, Claim::Unknown { fence: token.fence });
    let nobody = identity("no-such-key");
    assert_eq!(steps.get(on, nobody.digest()).await.unwrap(), None);
    assert_eq!(
        complete(&store, "unknown-key", &token).await,
        Fenced::Applied
    );
}

/// The first use on a connection also prepares the statement; then each step is one statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_one_round_trip() {
    let server = Postgres::start(&[]).unwrap();
    let store = open(&server.url()).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let through = server.url_through(proxy.address());
    let app = App::new(&server.url()).await;
    let steps = &app.steps;
    let on = &mut PgConnection::connect(&through).await.unwrap();
    let lease = Duration::from_secs(90);
    let outcome = Outcome::success(b"kept");
    let charge = FinishedStep::new("charge", b"ch_1").unwrap();
    for (round, wanted) in [(0, 2), (1, 1), (2, 1)] {
        let ids = ["completed", "abandoned", "unknown"];
        let ids = ids.map(|name| identity(&format!("{name}-{round}")));
        let mut before = proxy.round_trips();
        let mut counted = |what: &str, wanted: u64| {
            let now = proxy.round_trips();
            assert_eq!(now - before, wanted, "{what}, round {round}");
            before = now;
        };
        let mut tokens = Vec::new();
        for (n, id) in ids.iter().enumerate() {
            match steps.claim(on, id, &request()).await.unwrap() {
                Claim::Acquired(acquired) => tokens.push(acquired.token),
                other => panic!("{other:?}"),
            }
            counted("claim", if n == 0 { wanted } else { 1 });
        }
        let forged = forged(7);
        let [first, second, third] = ids.each_ref().map(Identity::digest);
        let applied = Ok(Fenced::Applied);
        let done = steps
            .change(on, first, &Change::renew(&tokens[0], lease))
            .await;
        assert_eq!(done.map_err(|e| e.kind()), applied);
        counted("renew", wanted);
        let done = steps
            .change(on, first, &Change::keep_step(&tokens[0], &charge, 0))
            .await;
        assert_eq!(done.map_err(|e| e.kind()), applied);
        counted("keep step", wanted);
        let change = Change::complete(&tokens[0], &outcome, Retention::ORDER);
        let done = steps.change(on, first, &change);
        assert_eq!(done.await.map_err(|e| e.kind()), applied);
        counted("complete", wanted);
        let change = Change::complete(&forged, &outcome, Retention::ORDER);
        let stale = steps.change(on, first, &change);
        assert_eq!(stale.await.unwrap(), Fenced::Refused(Refusal::Superseded));
        // The record that says why is a second statement, by now the first one of its kind.
        counted("a stale complete", wanted + 1);
        let done = steps.change(on, second, &Change::abandon(&tokens[1])).await;
        assert_eq!(done.map_err(|e| e.kind()), applied);
        counted("abandon", wanted);
        let done = steps
            .change(on, third, &Change::mark_unknown(&tokens[2]))
            .await;
        assert_eq!(done.map_err(|e| e.kind()), applied);
        counted("mark unknown", wanted);
        steps.get(on, first).await.unwrap().unwrap();
        counted("get", 1);
        steps.claim(on, &ids[0], &request()).await.unwrap();
        counted("replay", 1);
    }
    assert_eq!(state(&store, "completed-2").await, StateKind::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rival_under_repeatable_read_fails_and_may_run_again() {
    let url = url();
    let store = open(&url).await;
    let app = App::new(&url).await;
    let token = acquire(&store, "key").await.token;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    let mut transaction = app.pool.begin_with(begin).await.unwrap();
    app.insert(&mut transaction).await;
    // After the snapshot.
    let id = identity("key");
    let lease = Duration::from_secs(300);
    let renewed = store.renew(id.digest(), &token, lease).await.unwrap();
    assert_eq!(renewed, Fenced::Applied);
    let outcome = Outcome::success(b"ordered");
    let change = Change::complete(&token, &outcome, Retention::ORDER);
    let complete = app.steps.change(&mut transaction, id.digest(), &change);
    let error = complete.await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended);
    assert!(error.to_string().contains("40001"), "{error}");
    // What follows in it fails as well, until it is rolled back.
    let error = app
        .steps
        .get(&mut transaction, id.digest())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("25P02"), "{error}");
    transaction.rollback().await.unwrap();
    let mut transaction = app.pool.begin_with(begin).await.unwrap();
    let done = app.order(&mut transaction, "key", &token).await;
    assert_eq!(done, Fenced::Applied);
    transaction.commit().await.unwrap();
    assert_eq!(app.orders().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_they_mean() {
    let url = url();
    let bare = url.split('?').next().unwrap();
    let pool = pool(bare).await;
    let id = identity("the-key-of-a-record");
    let steps = |url: &str| PostgresOptions::from_url(url).unwrap().steps_for_sqlx();

    let nowhere = steps(&format!("{url}_nowhere"));
    let on = &mut *pool.acquire().await.unwrap();
    let error = nowhere.get(on, id.digest()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("semel migrate"), "{error}");

    // Another transaction has the record; the time runs out.
    let store = open(&url).await;
    let app = App::new(&url).await;
    let token = acquire(&store, "the-key-of-a-record").await.token;
    let mut holds = app.pool.begin().await.unwrap();
    let done = app.order(&mut holds, "the-key-of-a-record", &token).await;
    assert_eq!(done, Fenced::Applied);
    let hasty = steps(&format!("{url}&timeout=200ms"));
    let error = hasty
        .change(on, id.digest(), &Change::abandon(&token))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
    let mut impatient = app.pool.begin().await.unwrap();
    sqlx::query("SET LOCAL lock_timeout = '100ms'")
        .execute(&mut *impatient)
        .await
        .unwrap();
    let refused = app
        .steps
        .change(&mut impatient, id.digest(), &Change::abandon(&token))
        .await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Contended);
    assert!(error.to_string().contains("55P03"), "{error}");
    impatient.rollback().await.unwrap();
    holds.commit().await.unwrap();
    // What was late did find the completion, and its connection is of use again.
    let done = steps(&url)
        .change(on, id.digest(), &Change::abandon(&token))
        .await
        .unwrap();
    let settled = Refusal::Settled(StateKind::Completed);
    assert_eq!(done, Fenced::Refused(settled));

    // Ended by the administrator: in a transaction certain, else not.
    let end = async |on: &mut PgConnection| {
        let pid = sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()");
        let pid = pid.fetch_one(&mut *on).await.unwrap();
        let end = sqlx::query("SELECT pg_terminate_backend($1, 5000)").bind(pid);
        end.execute(&pool).await.unwrap();
    };
    let mut own = PgConnection::connect(bare).await.unwrap();
    end(&mut own).await;
    let error = app
        .steps
        .change(&mut own, id.digest(), &Change::abandon(&token))
        .await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Unknown);
    let mut own = PgConnection::connect(bare).await.unwrap();
    end(&mut own).await;
    let error = app.steps.get(&mut own, id.digest()).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::NotApplied);
    let mut own = PgConnection::connect(bare).await.unwrap();
    let mut transaction = own.begin().await.unwrap();
    end(&mut transaction).await;
    let change = Change::abandon(&token);
    let error = app.steps.change(&mut transaction, id.digest(), &change);
    assert_eq!(error.await.unwrap_err().kind(), StoreErrorKind::NotApplied);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_go_through_a_pooler() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let store = open(&server.url()).await;
    let app = App::new(&server.url()).await;
    let options = PostgresOptions::from_url(&format!("{}?prepared=off", pooler.url())).unwrap();
    let app = App {
        steps: options.steps_for_sqlx(),
        ..app
    };
    // PgBouncer refuses this setting of a session's, unless it is told to ignore it.
    let connect: PgConnectOptions = pooler.url().parse().unwrap();
    let connect = connect.extra_float_digits(None);
    let pool = PgPoolOptions::new().connect_with(connect).await.unwrap();
    for round in 0..20 {
        let key = format!("key-{round}");
        let token = acquire(&store, &key).await.token;
        let mut transaction = pool.begin().await.unwrap();
        let (id, outcome) = (identity(&key), Outcome::success(b"ordered"));
        let change = Change::complete(&token, &outcome, Retention::ORDER);
        let done = app.steps.change(&mut transaction, id.digest(), &change);
        assert_eq!(done.await.unwrap(), Fenced::Applied);
        transaction.commit().await.unwrap();
        assert_eq!(replayed(&store, &key).await, &b"ordered"[..]);
    }
}
