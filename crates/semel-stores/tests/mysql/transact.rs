//! An effect and its completion in one transaction.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use semel::guard::{AttemptInfo, Done, Guard, Policy, Ran, RunError, TransactOptions};
use semel::record::Change;
use semel::store::{
    Claim, Fenced, Nonce, OnLost, Refusal, Resolution, Retention, Store as _, Verdict,
};
use semel::transaction::{Isolation, Lent, Transactional as _};
use semel::{Fingerprint, Outcome, StateKind, Value};
use semel_stores::{MysqlStore, MysqlTransaction};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::Server as _;
use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _};
use tokio::sync::Barrier;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::{acquired, ask, common, identity, link, open, options, own, request, table};

pub(super) type Tx = Lent<MysqlTransaction>;
pub(super) type Error = sqlx::Error;

/// A store and a table of effects beside its records.
pub(super) struct Bench {
    pub(super) store: Arc<MysqlStore>,
    pub(super) records: String,
    pub(super) effects: String,
    pub(super) url: String,
}

impl Bench {
    pub(super) async fn at(url: &str) -> Self {
        Self::through(url, url).await
    }

    pub(super) async fn through(url: &str, direct: &str) -> Self {
        let records = table();
        let effects = format!("{records}_effects");
        let sql = format!("CREATE TABLE {effects} (name varchar(64) NOT NULL, INDEX (name))");
        ask(&mut link(direct).await, sql).await;
        Self {
            store: Arc::new(options(url).table(&records).unwrap().open().await.unwrap()),
            records,
            effects,
            url: direct.into(),
        }
    }

    async fn run<T, F, W>(
        &self,
        key: &str,
        policy: Policy,
        options: TransactOptions,
        work: F,
    ) -> Result<Done<T>, RunError<Error>>
    where
        T: Value + Send + 'static,
        F: FnMut(AttemptInfo, Tx) -> W + Send + 'static,
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let guard = Guard::new(self.store.clone(), policy);
        let asked = Fingerprint::of(b"request");
        guard.transact((&identity(key), asked), options, work).await
    }

    pub(super) fn insert(&self, key: &str) -> String {
        format!("INSERT INTO {} VALUES ('{key}')", self.effects)
    }

    pub(super) async fn effects(&self, key: &str) -> i64 {
        let sql = format!("SELECT COUNT(*) FROM {} WHERE name='{key}'", self.effects);
        ask(&mut link(&self.url).await, sql).await[0].get(0)
    }

    pub(super) async fn state(&self, key: &str) -> Option<StateKind> {
        let entry = self.store.get(identity(key).digest()).await.unwrap();
        entry.map(|entry| entry.record.state.kind())
    }
}

pub(super) fn at(isolation: Isolation) -> TransactOptions {
    TransactOptions::default().with_isolation(isolation)
}

pub(super) async fn execute(mut tx: Tx, sql: String) -> Result<String, Error> {
    tx.execute(AssertSqlSafe(sql)).await?;
    Ok("done".into())
}

/// The application's sessions have the server's `sql_mode`, and in this one an assignment does not see those before it.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_kept_where_assignments_are_simultaneous() {
    let server = own(&["sql-mode=SIMULTANEOUS_ASSIGNMENT"]).await;
    let bench = Bench::at(&server.url()).await;
    for done in [Done::Fresh("done".into()), Done::Replayed("done".into())] {
        let sql = bench.insert("k");
        let work = move |_, tx| execute(tx, sql.clone());
        let ran = bench.run("k", Policy::default(), TransactOptions::default(), work);
        assert_eq!(ran.await.unwrap(), done);
        assert_eq!(bench.store.purge(100).await.unwrap().removed, 0);
    }
    assert_eq!(bench.effects("k").await, 1);
}

/// What the store needs to know of its own statements is not left in the application's session.
#[tokio::test(flavor = "multi_thread")]
async fn a_resolution_leaves_the_applications_last_insert_id() {
    let bench = Bench::at(&common().await).await;
    let orders = table();
    let made = format!("CREATE TABLE {orders} (id BIGINT AUTO_INCREMENT PRIMARY KEY, what TEXT)");
    ask(&mut link(&bench.url).await, made).await;
    let id = identity("k");
    let short = request(Duration::ZERO, OnLost::Hold);
    let lapsed = acquired(bench.store.claim(&id, &short).await.unwrap());
    let resolution = Change::resolve(&Resolution {
        verdict: Verdict::DidNotHappen,
        by: "me".into(),
        reason: "looked".into(),
        fence: lapsed.token.fence,
        nonce: Nonce::random().unwrap(),
    });
    let mut tx = bench.store.begin(Isolation::ReadCommitted).await.unwrap();
    let order = format!("INSERT INTO {orders} (what) VALUES ('apples')");
    tx.execute(AssertSqlSafe(order)).await.unwrap();
    let resolved = bench.store.change_in(&mut tx, id.digest(), &resolution);
    assert_eq!(resolved.await.unwrap(), Fenced::Applied);
    let last = tx.fetch_one("SELECT CAST(LAST_INSERT_ID() AS UNSIGNED)");
    assert_eq!(last.await.unwrap().get::<u64, _>(0), 1);
    bench.store.commit(tx).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_isolation_is_the_one_asked_for_and_lasts_beyond_a_third_of_the_lease() {
    let bench = Bench::at(&common().await).await;
    let brief = Policy::default().with_lease(Duration::from_secs(1));
    for (isolation, name) in [
        (Isolation::ReadCommitted, "READ COMMITTED"),
        (Isolation::RepeatableRead, "REPEATABLE READ"),
        (Isolation::Serializable, "SERIALIZABLE"),
    ] {
        let work = |_, mut tx: Tx| async move {
            let sql = "SELECT trx_isolation_level FROM information_schema.innodb_trx \
                 WHERE trx_mysql_thread_id=CONNECTION_ID()";
            // What has read nothing yet is in no list.
            tx.execute("SELECT COUNT(*) FROM mysql.innodb_index_stats")
                .await?;
            sleep(Duration::from_millis(700)).await;
            let row = tx.fetch_one(sql).await?;
            Ok(row.get::<String, _>(0))
        };
        let ran = bench.run(name, brief, at(isolation), work).await;
        assert_eq!(ran.unwrap(), Done::Fresh(name.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_past_its_lease_commits_nothing() {
    let bench = Bench::at(&common().await).await;
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let key = format!("{isolation:?}");
        let short = request(Duration::ZERO, OnLost::Retry);
        let id = identity(&key);
        let zombie = acquired(bench.store.claim(&id, &short).await.unwrap());
        let mut tx = bench.store.begin(isolation).await.unwrap();
        tx.execute(AssertSqlSafe(bench.insert(&key))).await.unwrap();
        // Its snapshot is older than what takes it over.
        tx.execute("SELECT COUNT(*) FROM mysql.innodb_index_stats")
            .await
            .unwrap();
        let sql = bench.insert(&key);
        let work = move |_, tx| execute(tx, sql.clone());
        let ran = bench
            .run(&key, Policy::default(), at(isolation), work)
            .await;
        assert_eq!(ran.unwrap(), Done::Fresh("done".into()));
        let outcome = Outcome::success(b"the zombie's");
        let done = bench
            .store
            .change_in(
                &mut tx,
                id.digest(),
                &Change::complete(&zombie.token, &outcome, Retention::ORDER),
            )
            .await;
        assert_eq!(done.unwrap(), Fenced::Refused(Refusal::Superseded), "{key}");
        bench.store.rollback(tx).await;
        assert_eq!(bench.effects(&key).await, 1);
    }
}

/// The server ends all that lay idle, as it does with each after `wait_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_begins_however_many_sessions_ended() {
    let server = own(&[]).await;
    let store = open(&server.url()).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(store.begin(Isolation::ReadCommitted).await.unwrap());
    }
    for transaction in open {
        store.rollback(transaction).await;
    }
    let mut root = link(&server.url()).await;
    let idle = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
         WHERE user='semel' AND id<>CONNECTION_ID()";
    let idle = ask(&mut root, idle).await;
    assert!(idle.len() >= 16);
    for row in idle {
        ask(&mut root, format!("KILL {}", row.get::<i64, _>(0))).await;
    }
    let transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    store.rollback(transaction).await;
}

#[test]
fn a_client_that_dies_anywhere_leaves_both_or_neither() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(async { Bench::at(&common().await).await });
    let brief = Policy::default().with_lease(Duration::from_millis(200));
    let mut both = 0;
    for round in 0..30_u64 {
        let key = format!("key-{round}");
        let dying = tokio::runtime::Runtime::new().unwrap();
        let options = options(&bench.url).table(&bench.records).unwrap();
        let store = dying.block_on(async { Arc::new(options.open().await.unwrap()) });
        let (name, sql) = (key.clone(), bench.insert(&key));
        dying.spawn(async move {
            let guard = Guard::new(store, brief);
            let (asked, options) = (Fingerprint::of(b"request"), TransactOptions::default());
            let work = move |_, tx| execute(tx, sql.clone());
            drop(
                guard
                    .transact((&identity(&name), asked), options, work)
                    .await,
            );
        });
        std::thread::sleep(Duration::from_micros(600 * round));
        // Its tasks end wherever they are, and its connections with them.
        dying.shutdown_background();
        looking.block_on(async {
            sleep(Duration::from_millis(250)).await;
            let done = bench.state(&key).await == Some(StateKind::Completed);
            assert_eq!(bench.effects(&key).await, i64::from(done), "{key}");
            both += u32::from(done);
            let sql = bench.insert(&key);
            let work = move |_, tx| execute(tx, sql.clone());
            let ran = bench.run(&key, brief, TransactOptions::default(), work);
            assert_eq!(ran.await.unwrap().into_inner(), "done");
            assert_eq!(bench.effects(&key).await, 1, "{key}");
        });
    }
    println!("{both} of 30 were done before they died");
    assert!(both < 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_run_again() {
    let bench = Arc::new(Bench::at(&common().await).await);
    for key in ["a", "b"] {
        ask(&mut link(&bench.url).await, bench.insert(key)).await;
    }
    let met = Arc::new(Barrier::new(2));
    let callers = [["a", "b"], ["b", "a"]].map(|order| {
        let (bench, met) = (bench.clone(), met.clone());
        tokio::spawn(async move {
            let effects = bench.effects.clone();
            let work = move |info: AttemptInfo, mut tx: Tx| {
                let (met, effects) = (met.clone(), effects.clone());
                async move {
                    for (step, name) in order.into_iter().enumerate() {
                        let sql =
                            format!("SELECT name FROM {effects} WHERE name='{name}' FOR UPDATE");
                        tx.execute(AssertSqlSafe(sql)).await?;
                        if step == 0 && info.retry == 0 {
                            met.wait().await;
                        }
                    }
                    Ok(info.retry.to_string())
                }
            };
            let options = at(Isolation::RepeatableRead);
            bench
                .run(&order.concat(), Policy::default(), options, work)
                .await
                .unwrap()
                .into_inner()
        })
    });
    let mut again = Vec::new();
    for caller in callers {
        again.push(caller.await.unwrap());
    }
    again.sort();
    assert_eq!(again, ["0", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_costs_one_packet_for_the_claim_and_one_statement_inside_it() {
    let server = own(&["general-log=1", "log-output=TABLE"]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let bench = Bench::through(&server.url_through(proxy.address()), &server.url()).await;
    let mut look = link(&server.url()).await;
    let mut trips = 0;
    // The first makes the connections.
    for key in ["warm", "counted"] {
        sleep(Duration::from_millis(300)).await;
        ask(&mut look, "TRUNCATE mysql.general_log").await;
        trips = proxy.round_trips();
        let work = |_, tx| execute(tx, "SELECT 'of the handler'".into());
        let ran = bench.run(key, Policy::default(), TransactOptions::default(), work);
        assert_eq!(ran.await.unwrap(), Done::Fresh("done".into()));
    }
    sleep(Duration::from_millis(300)).await;
    // Claim; begin; the handler's statement; completion; commit. And the driver's pool asks the
    // connection whether it lives, when it is given back and nobody waits.
    assert_eq!(proxy.round_trips() - trips, 6, "round trips");
    let said = "SELECT CAST(argument AS CHAR) FROM mysql.general_log \
         WHERE command_type IN ('Query', 'Execute') AND argument NOT LIKE '%general_log%'";
    let said = ask(&mut look, said).await;
    let verbs: Vec<_> = said
        .iter()
        .filter_map(|row| row.get::<&str, _>(0).split_whitespace().next())
        .collect();
    // A packet each. The claim's begins with the look for a record; the transaction's first ends what may
    // be left, sets the isolation and begins, and in it are the handler's statement and the completion.
    assert_eq!(
        verbs,
        ["SELECT", "ROLLBACK;SET", "SELECT", "UPDATE", "COMMIT"]
    );
}

pub(super) async fn committing(look: &mut MySqlConnection) -> i64 {
    let sql = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE info='COMMIT'";
    loop {
        if let Some(row) = ask(look, sql).await.first() {
            return row.get(0);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_commit_is_resolved_by_the_record() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let bench = Bench::through(&server.url_through(proxy.address()), &server.url()).await;
    let bench = Arc::new(bench);
    let (mut look, mut blocker) = (link(&server.url()).await, link(&server.url()).await);
    for (key, killed) in [("committed", false), ("not-committed", true)] {
        let (runs, begun, go) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(Barrier::new(2)),
            Arc::new(Barrier::new(2)),
        );
        let ran = {
            let (bench, sql, runs) = (bench.clone(), bench.insert(key), runs.clone());
            let (begun, go) = (begun.clone(), go.clone());
            tokio::spawn(async move {
                let work = move |info: AttemptInfo, tx| {
                    let (sql, begun, go) = (sql.clone(), begun.clone(), go.clone());
                    runs.fetch_add(1, Ordering::Relaxed);
                    async move {
                        let done = execute(tx, sql).await?;
                        if info.retry == 0 {
                            begun.wait().await;
                            go.wait().await;
                        }
                        Ok(done)
                    }
                };
                bench
                    .run(key, Policy::default(), TransactOptions::default(), work)
                    .await
            })
        };
        begun.wait().await;
        for stage in ["START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"] {
            ask(&mut blocker, format!("BACKUP STAGE {stage}")).await;
        }
        go.wait().await;
        let id = timeout(Duration::from_secs(20), committing(&mut look)).await;
        if killed {
            ask(&mut look, format!("KILL {}", id.unwrap())).await;
        } else {
            proxy.cut();
        }
        sleep(Duration::from_millis(300)).await;
        ask(&mut blocker, "BACKUP STAGE END").await;
        let ran = timeout(Duration::from_secs(30), ran)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "{key}");
        match ran {
            Ok(done) => {
                assert_eq!(done, Done::Fresh("done".into()), "{key}");
                assert_eq!(bench.effects(key).await, 1, "{key}");
                assert_eq!(bench.state(key).await, Some(StateKind::Completed));
            }
            Err(RunError::Store { ran: Ran::No, .. }) if killed => {
                assert_eq!(bench.effects(key).await, 0);
                assert_eq!(bench.state(key).await, Some(StateKind::Released));
            }
            Err(error) => panic!("{key}: {error:?}"),
        }
    }
    let claim = super::claim(&bench.store, "committed").await;
    assert!(matches!(claim, Ok(Claim::Completed { .. })));
}

/// A call that is given up while the server begins its transaction leaves none to who gets its connection.
#[tokio::test]
async fn a_begin_that_is_given_up_leaves_no_transaction() {
    let store = options(&common().await).connections(1).open();
    let store = store.await.unwrap();
    for number in 0..60 {
        let mut begun = Box::pin(store.begin(Isolation::Serializable));
        for _ in 0..number {
            let poll = |cx: &mut Context<'_>| Poll::Ready(begun.as_mut().poll(cx).is_ready());
            if poll_fn(poll).await {
                break;
            }
            // The server goes on meanwhile.
            std::thread::sleep(Duration::from_micros(50));
            yield_now().await;
        }
        drop(begun);
        let begun = store.begin(Isolation::ReadCommitted).await;
        begun.unwrap_or_else(|error| panic!("after {number}: {error}"));
    }
}
