//! An effect and its completion in one transaction.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::{Asked, AttemptInfo, Done, Guard, Policy, Ran, RunError, TransactOptions};
use semel::record::Change;
use semel::store::{Claim, Fenced, Retention, Store as _, StoreExt as _};
use semel::transaction::{Isolation, Lent, Sealing, TransactionError, Transactional as _};
use semel::{Fingerprint, Outcome, StateKind, StoreErrorKind, Value};
use semel_stores::{PostgresStore, PostgresTransaction};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{PgBouncer, Postgres, Server as _};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use super::{acquire, client, identity, open, replayed, request, table, url};

pub(super) type Tx = Lent<PostgresTransaction>;

/// What the work of these tests fails with.
#[derive(Debug)]
pub(super) enum Failure {
    Database(tokio_postgres::Error),
    Refused,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(_) => f.write_str("the database failed"),
            Self::Refused => f.write_str("no such article"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(error) => Some(error),
            Self::Refused => None,
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

/// A store, a table of effects beside its records, and a connection to look at both.
pub(super) struct Bench {
    pub(super) store: Arc<PostgresStore>,
    pub(super) effects: Arc<str>,
    pub(super) look: tokio_postgres::Client,
}

impl Bench {
    pub(super) async fn at(url: &str) -> Self {
        Self::through(url, url).await
    }

    /// The store by one URL, the looks by another.
    pub(super) async fn through(url: &str, direct: &str) -> Self {
        let look = client(direct).await;
        let effects = table();
        look.batch_execute(&format!("CREATE TABLE {effects} (key text NOT NULL)"))
            .await
            .unwrap();
        Self {
            store: Arc::new(open(url).await),
            effects: effects.into(),
            look,
        }
    }

    pub(super) fn guard(&self, policy: Policy) -> Guard<Arc<PostgresStore>> {
        Guard::new(self.store.clone(), policy)
    }

    pub(super) async fn effects(&self, key: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {} WHERE key = $1", self.effects);
        self.look.query_one(&sql, &[&key]).await.unwrap().get(0)
    }

    pub(super) async fn state(&self, key: &str) -> Option<StateKind> {
        let entry = self.store.get(identity(key).digest()).await.unwrap();
        entry.map(|entry| entry.record.state.kind())
    }

    /// Work that has its effect and ends.
    pub(super) fn effect(
        &self,
        key: &str,
    ) -> impl Fn(AttemptInfo, Tx) -> futures::Done + Clone + Send + Sync + 'static {
        let (sql, key) = (insert(&self.effects), key.to_owned());
        move |_, tx| {
            let (sql, key) = (sql.clone(), key.clone());
            Box::pin(async move {
                tx.execute(&sql, &[&key]).await?;
                Ok(key)
            })
        }
    }
}

pub(super) mod futures {
    use std::pin::Pin;

    pub(in super::super) type Done =
        Pin<Box<dyn Future<Output = Result<String, super::Failure>> + Send>>;
}

pub(super) fn insert(effects: &str) -> String {
    format!("INSERT INTO {effects} (key) VALUES ($1)")
}

async fn run<T, F, W>(
    guard: Guard<Arc<PostgresStore>>,
    key: &str,
    asked: Fingerprint,
    options: TransactOptions,
    work: F,
) -> Result<Done<T>, RunError<Failure>>
where
    T: Value + Send + 'static,
    F: FnMut(AttemptInfo, Tx) -> W + Send + 'static,
    W: Future<Output = Result<T, Failure>> + Send + 'static,
{
    guard.transact((&identity(key), asked), options, work).await
}

pub(super) fn asked() -> Fingerprint {
    Fingerprint::of(b"body")
}

pub(super) fn at(isolation: Isolation) -> TransactOptions {
    TransactOptions::default().with_isolation(isolation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_inside_another_takes_a_session_of_its_own() {
    for (connections, expected, timeout) in [(1, "not", "700ms"), (2, "done", "10s")] {
        let url = format!("{}&connections={connections}&timeout={timeout}", url());
        let bench = Bench::at(&url).await;
        let inner = (bench.guard(Policy::default()), bench.effect("inner"));
        let outer = move |_, tx: Tx| {
            let (guard, work) = inner.clone();
            async move {
                let options = TransactOptions::default();
                let ran = match run(guard, "inner", asked(), options, work).await {
                    Ok(_) => "done",
                    Err(RunError::Store { source, .. }) => {
                        assert_eq!(source.kind(), StoreErrorKind::NotApplied, "{source}");
                        "not"
                    }
                    Err(other) => panic!("{other}"),
                };
                drop(tx);
                Ok(ran.to_owned())
            }
        };
        let guard = bench.guard(Policy::default());
        let done = run(guard, "outer", asked(), TransactOptions::default(), outer).await;
        let Ok(Done::Fresh(ran)) = done else {
            panic!("the outer transaction failed");
        };
        assert_eq!(ran, expected, "{connections} connections");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_failed_and_was_ignored_commits_nothing() {
    let bench = Bench::at(&url()).await;
    let sql = insert(&bench.effects);
    let ran = run(
        bench.guard(Policy::default()),
        "k",
        asked(),
        TransactOptions::default(),
        move |_, tx: Tx| {
            let sql = sql.clone();
            async move {
                tx.execute(&sql, &[&"k"]).await?;
                drop(tx.batch_execute("SELECT nonsense").await);
                Ok::<_, Failure>(())
            }
        },
    )
    .await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: Ran::No, .. })),
        "{ran:?}"
    );
    assert_eq!(bench.effects("k").await, 0);
    assert_eq!(bench.state("k").await, Some(StateKind::Released));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_transaction_is_rolled_back_and_its_connection_not_used_again() {
    let bench = Bench::at(&format!("{}&connections=1", url())).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let tx = bench.store.begin(Isolation::ReadCommitted).await.unwrap();
        let row = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
        seen.push(row.get::<_, i32>(0));
        tx.execute(&insert(&bench.effects), &[&"k"]).await.unwrap();
        drop(tx);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), bench.effects("k").await), (3, 0));
    // One that is rolled back in words is used again, clean.
    for _ in 0..2 {
        let tx = bench.store.begin(Isolation::ReadCommitted).await.unwrap();
        let row = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
        seen.push(row.get::<_, i32>(0));
        bench.store.rollback(tx).await;
    }
    assert_eq!(seen[3], seen[4]);
    // Who waits for one in vain is told, and closing ends it.
    let tx = bench.store.begin(Isolation::ReadCommitted).await.unwrap();
    bench.store.close().await.unwrap();
    drop(tx);
    let closed = bench
        .store
        .begin(Isolation::ReadCommitted)
        .await
        .unwrap_err();
    assert_eq!(closed.into_source().kind(), StoreErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_isolation_is_the_one_asked_for() {
    let bench = Bench::at(&url()).await;
    for (isolation, name) in [
        (Isolation::ReadCommitted, "read committed"),
        (Isolation::RepeatableRead, "repeatable read"),
        (Isolation::Serializable, "serializable"),
    ] {
        let ran = run(
            bench.guard(Policy::default()),
            name,
            asked(),
            at(isolation),
            move |_, tx: Tx| async move {
                let row = tx.query_one("SHOW transaction_isolation", &[]).await?;
                Ok::<_, Failure>(row.get::<_, String>(0))
            },
        );
        assert_eq!(ran.await.unwrap(), Done::Fresh(name.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_costs_one_statement_for_the_claim_and_one_inside_it() {
    let server = Postgres::start(&[
        "log_statement=all",
        "logging_collector=on",
        "log_filename=all.log",
    ])
    .unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let through = format!(
        "{}?connections=1&listen=off",
        server.url_through(proxy.address())
    );
    let bench = Bench::through(&through, &server.url()).await;
    let guard = bench.guard(Policy::default());
    let log = server.folder().join("log/all.log");
    let (mut trips, mut logged) = (0, 0);
    // The first makes the connections.
    for key in ["warm", "counted"] {
        // The server writes its log when it likes.
        sleep(Duration::from_millis(300)).await;
        trips = proxy.round_trips();
        logged = std::fs::read_to_string(&log).unwrap().len();
        let options = TransactOptions::default();
        let ran = run(
            guard.clone(),
            key,
            asked(),
            options,
            |_, tx: Tx| async move {
                tx.batch_execute("SELECT 'of the handler'").await?;
                Ok::<_, Failure>(())
            },
        );
        assert_eq!(ran.await.unwrap(), Done::Fresh(()));
    }
    sleep(Duration::from_millis(300)).await;
    assert_eq!(proxy.round_trips() - trips, 4, "round trips");
    let log = std::fs::read_to_string(&log).unwrap();
    let verbs: Vec<_> = log[logged..].split("LOG:  ").filter_map(verb).collect();
    // The claim, which inserts or reads; and in the transaction the handler's statement. The completion
    // and the COMMIT come together.
    assert_eq!(verbs, ["WITH", "BEGIN", "SELECT", "SET", "WITH", "COMMIT"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_may_be_forgotten_is_on_disk_with_the_effects_at_the_latest() {
    // What nobody waits for is written after ten seconds.
    let server = Postgres::start(&["wal_writer_delay=10s"]).unwrap();
    let bench = Bench::at(&format!("{}?schema=create", server.url())).await;
    let claim = async |key: &str, forgettable| {
        let request = request().forgettable(forgettable);
        let claim = bench.store.claim(&identity(key), &request).await.unwrap();
        assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}");
    };
    let effect = async |key: &str| {
        let guard = bench.guard(Policy::default());
        let options = TransactOptions::default();
        let done = run(guard, key, asked(), options, bench.effect(key)).await;
        done.unwrap()
    };
    claim("kept", false).await;
    claim("alone", true).await;
    server.restart_immediately().unwrap();
    assert_eq!(bench.state("kept").await, Some(StateKind::InFlight));
    assert_eq!(bench.state("alone").await, None, "it waited for the disk");

    claim("alone", true).await;
    assert_eq!(effect("done").await, Done::Fresh("done".to_owned()));
    server.restart_immediately().unwrap();
    // The log has one order: what was written before the effect is there with it.
    assert_eq!(bench.state("alone").await, Some(StateKind::InFlight));
    assert_eq!(effect("done").await, Done::Replayed("done".to_owned()));
}

/// How the statement begins that an entry of the server's log tells of.
fn verb(entry: &str) -> Option<&str> {
    let (what, sql) = entry.split_once(':')?;
    // A prepared one has its name there.
    let ran = what == "statement" || what.starts_with("execute ");
    sql.split_whitespace().next().filter(|_| ran)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_past_its_lease_commits_nothing() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let name = table();
    let through = format!("{}?table={name}", server.url_through(proxy.address()));
    let direct = format!("{}?table={name}", server.url());
    let bench = Bench::through(&through, &direct).await;
    let rival = Arc::new(open(&direct).await);
    for (key, isolation) in [
        ("read-committed", Isolation::ReadCommitted),
        ("serializable", Isolation::Serializable),
    ] {
        let lease = Policy::default().with_lease(Duration::from_millis(500));
        let (guard, sql) = (bench.guard(lease), insert(&bench.effects));
        let begun = Arc::new(Barrier::new(2));
        let (here, id) = (begun.clone(), identity(key));
        let zombie = tokio::spawn(async move {
            guard
                .transact((&id, asked()), at(isolation), move |info, tx: Tx| {
                    let (sql, here) = (sql.clone(), here.clone());
                    async move {
                        tx.execute(&sql, &[&key]).await?;
                        if info.retry == 0 {
                            here.wait().await;
                            sleep(Duration::from_millis(1500)).await;
                        }
                        Ok::<_, Failure>("the zombie's".to_owned())
                    }
                })
                .await
        });
        begun.wait().await;
        // It is as if its process stood still.
        proxy.set(Fault::Blackhole);
        sleep(Duration::from_millis(1000)).await;
        let guard = Guard::from(rival.clone());
        let ran = run(
            guard.clone(),
            key,
            asked(),
            at(isolation),
            bench.effect(key),
        );
        assert_eq!(ran.await.unwrap(), Done::Fresh(key.to_owned()));
        proxy.set(Fault::None);
        let zombie = zombie.await.unwrap();
        assert!(
            matches!(zombie, Err(RunError::Superseded { ran: Ran::No })),
            "{zombie:?}"
        );
        assert_eq!(bench.effects(key).await, 1);
        assert_eq!(replayed(&rival, key).await, key.as_bytes());
    }
}

/// Makes commits of transactions that had an effect take a second.
pub(super) async fn slow_commits(bench: &Bench) {
    let effects = &bench.effects;
    let sql = format!(
        "CREATE FUNCTION {effects}_slow() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {effects} DEFERRABLE INITIALLY DEFERRED
           FOR EACH ROW EXECUTE FUNCTION {effects}_slow()"
    );
    bench.look.batch_execute(&sql).await.unwrap();
}

/// Waits for a commit under way, and does what `sql` does with its process's number.
pub(super) async fn when_committing(bench: &Bench, sql: &str) -> i32 {
    let find = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%COMMIT' AND state = 'active'";
    loop {
        if let Some(row) = bench.look.query_opt(find, &[]).await.unwrap() {
            let pid: i32 = row.get(0);
            if !sql.is_empty() {
                bench.look.execute(sql, &[&pid]).await.unwrap();
            }
            return pid;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_commit_is_resolved_by_the_record() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bench = Bench::through(&server.url_through(proxy.address()), &server.url()).await;
    slow_commits(&bench).await;
    for (key, terminated) in [("committed", false), ("not-committed", true)] {
        let (guard, runs) = (bench.guard(Policy::default()), Arc::new(AtomicU32::new(0)));
        let (work, counted, id) = (bench.effect(key), runs.clone(), identity(key));
        let ran = tokio::spawn(async move {
            let options = TransactOptions::default();
            guard
                .transact((&id, asked()), options, move |info, tx| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    work(info, tx)
                })
                .await
        });
        if terminated {
            when_committing(&bench, "SELECT pg_terminate_backend($1)").await;
        } else {
            // The commit goes on at the server while the record is read back.
            when_committing(&bench, "").await;
            proxy.cut();
        }
        let ran = timeout(Duration::from_secs(20), ran)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "{key}");
        if terminated {
            assert!(
                matches!(ran, Err(RunError::Store { ran: Ran::No, .. })),
                "{ran:?}"
            );
            assert_eq!(bench.effects(key).await, 0);
            assert_eq!(bench.state(key).await, Some(StateKind::Released));
        } else {
            assert_eq!(ran.unwrap(), Done::Fresh(key.to_owned()));
            assert_eq!(bench.effects(key).await, 1);
            assert_eq!(bench.state(key).await, Some(StateKind::Completed));
        }
    }
}

/// Completion and commit come after their attempt was given up, which it is where their answer was late.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_the_attempt_was_given_up_is_refused() {
    let bench = Bench::at(&url()).await;
    for (key, given_up) in [("late", true), ("in-time", false)] {
        let (token, id) = (acquire(&bench.store, key).await.token, identity(key));
        let tx = bench.store.begin(Isolation::ReadCommitted).await.unwrap();
        tx.execute(&insert(&bench.effects), &[&key]).await.unwrap();
        if given_up {
            let abandoned = bench.store.abandon(id.digest(), &token).await;
            assert_eq!(abandoned.unwrap(), Fenced::Applied);
        }
        let change = Change::complete(&token, &Outcome::success(b"k"), Retention::ORDER);
        let sealed = bench.store.seal(tx, &[(*id.digest(), change)]).await;
        assert_eq!(
            matches!(sealed.unwrap(), Sealing::Refused(0)),
            given_up,
            "{key}"
        );
        assert_eq!(bench.effects(key).await, i64::from(!given_up), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_before_the_commit_leaves_neither() {
    let server = Arc::new(Postgres::start(&[]).unwrap());
    let bench = Bench::at(&server.url()).await;
    let lease = Policy::default().with_lease(Duration::from_millis(300));
    let (node, sql) = (server.clone(), insert(&bench.effects));
    let ran = run(
        bench.guard(lease),
        "k",
        asked(),
        TransactOptions::default(),
        move |_, tx: Tx| {
            let (sql, node) = (sql.clone(), node.clone());
            async move {
                tx.execute(&sql, &[&"k"]).await?;
                node.restart_immediately().unwrap();
                Ok::<_, Failure>("k".to_owned())
            }
        },
    )
    .await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: Ran::No, .. })),
        "{ran:?}"
    );
    sleep(Duration::from_millis(300)).await;
    let bench = Bench {
        look: client(&server.url()).await,
        ..bench
    };
    assert_eq!(bench.effects("k").await, 0);
    let ran = run(
        bench.guard(lease),
        "k",
        asked(),
        TransactOptions::default(),
        bench.effect("k"),
    )
    .await;
    assert_eq!(ran.unwrap(), Done::Fresh("k".to_owned()));
    assert_eq!(bench.effects("k").await, 1);
}

#[test]
fn a_client_that_dies_anywhere_leaves_both_or_neither() {
    let url = url();
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(Bench::at(&url));
    let short = Policy::default().with_lease(Duration::from_millis(200));
    let mut both = 0;
    for round in 0..40_u64 {
        let key = format!("key-{round}");
        let dying = tokio::runtime::Runtime::new().unwrap();
        let (work, name, url) = (bench.effect(&key), key.clone(), url.clone());
        let ready = dying.block_on(async { Arc::new(open(&url).await) });
        dying.spawn(async move {
            let guard = Guard::new(ready, short);
            drop(
                run(
                    guard.clone(),
                    &name,
                    asked(),
                    TransactOptions::default(),
                    work,
                )
                .await,
            );
        });
        std::thread::sleep(Duration::from_millis(2 * round));
        // Its tasks end wherever they are, and its connections with them.
        dying.shutdown_background();
        looking.block_on(async {
            sleep(Duration::from_millis(250)).await;
            let done = bench.state(&key).await == Some(StateKind::Completed);
            assert_eq!(bench.effects(&key).await, i64::from(done), "{key}");
            both += u32::from(done);
            let options = TransactOptions::default();
            let work = bench.effect(&key);
            let ran = run(bench.guard(short), &key, asked(), options, work);
            assert_eq!(ran.await.unwrap().into_inner(), key);
            assert_eq!(bench.effects(&key).await, 1, "{key}");
        });
    }
    println!("{both} of 40 were done before they died");
    assert!(both < 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn serialization_failures_run_again() {
    let bench = Bench::at(&url()).await;
    let met = Arc::new(Barrier::new(2));
    // Each writes where it saw nothing: one after the other only one would.
    let callers: Vec<_> = ["a", "b"]
        .map(|key| {
            let (guard, met) = (bench.guard(Policy::default()), met.clone());
            let (count, sql) = (
                format!("SELECT count(*) FROM {}", bench.effects),
                insert(&bench.effects),
            );
            tokio::spawn(async move {
                let options = at(Isolation::Serializable);
                run(guard.clone(), key, asked(), options, move |info, tx: Tx| {
                    let (count, sql, met) = (count.clone(), sql.clone(), met.clone());
                    async move {
                        let seen: i64 = tx.query_one(&count, &[]).await?.get(0);
                        if info.retry == 0 {
                            met.wait().await;
                        }
                        if seen == 0 {
                            tx.execute(&sql, &[&key]).await?;
                        }
                        Ok::<_, Failure>(format!("{seen} {}", info.retry))
                    }
                })
                .await
                .unwrap()
                .into_inner()
            })
        })
        .into();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    answers.sort();
    assert_eq!(answers[0], "0 0");
    assert!(
        answers[1].starts_with("1 ") && answers[1] != "1 0",
        "{answers:?}"
    );
    assert_eq!(bench.effects("a").await + bench.effects("b").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_run_again_within_the_bound() {
    let bench = Bench::at(&url()).await;
    for key in ["a", "b"] {
        bench
            .look
            .execute(&insert(&bench.effects), &[&key])
            .await
            .unwrap();
    }
    let both = async |bound: u32, keyed: bool| {
        let met = Arc::new(Barrier::new(2));
        let callers = [["a", "b"], ["b", "a"]].map(|order| {
            let (guard, met) = (bench.guard(Policy::default()), met.clone());
            let sql = format!("UPDATE {} SET key = key WHERE key = $1", bench.effects);
            let id = identity(&format!("{}-{bound}", order.concat()));
            let asked = match keyed {
                true => Asked::new(id, asked()),
                false => Asked::unkeyed(asked()),
            };
            tokio::spawn(async move {
                let options = TransactOptions::default().with_retries(bound);
                guard
                    .transact(asked, options, move |info, tx: Tx| {
                        let (sql, met) = (sql.clone(), met.clone());
                        async move {
                            tx.execute(&sql, &[&order[0]]).await?;
                            if info.retry == 0 {
                                met.wait().await;
                            }
                            tx.execute(&sql, &[&order[1]]).await?;
                            Ok::<_, Failure>(info.retry.to_string())
                        }
                    })
                    .await
            })
        });
        let mut ran = Vec::new();
        for caller in callers {
            ran.push(caller.await.unwrap());
        }
        ran
    };
    for keyed in [true, false] {
        let ran = both(8, keyed).await;
        let mut again: Vec<_> = ran.into_iter().map(|r| r.unwrap().into_inner()).collect();
        again.sort();
        assert_eq!(again, ["0", "1"]);
    }
    let ran = both(0, true).await;
    let failed = ran.iter().filter(|r| matches!(r, Err(RunError::Failed(_))));
    assert_eq!(failed.count(), 1, "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_go_through_a_pooler() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}?prepared=off&listen=off", pooler.url());
    let bench = Bench::through(&url, &server.url()).await;
    for isolation in [Isolation::ReadCommitted, Isolation::Serializable] {
        let key = format!("{isolation:?}");
        for seen in [false, true] {
            let ran = run(
                bench.guard(Policy::default()),
                &key,
                asked(),
                at(isolation),
                bench.effect(&key),
            );
            match ran.await.unwrap() {
                Done::Fresh(_) => assert!(!seen),
                Done::Replayed(_) => assert!(seen),
                Done::Unprotected(_) => unreachable!(),
            }
        }
        assert_eq!(bench.effects(&key).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_without_a_database_is_refused() {
    let server = Postgres::start(&[]).unwrap();
    let bench = Bench::at(&server.url()).await;
    server.nodes()[0].kill();
    let begun = bench.store.begin(Isolation::ReadCommitted).await;
    assert!(matches!(begun, Err(TransactionError::NotCommitted(_))));
    let ran = run(
        bench.guard(Policy::default()),
        "k",
        asked(),
        TransactOptions::default(),
        bench.effect("k"),
    )
    .await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: Ran::No, .. })),
        "{ran:?}"
    );
}

/// The time that a connection takes to come free, and that another one takes, is one.
#[tokio::test]
async fn a_beginning_takes_no_longer_than_a_call_may() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = open(&format!("{url}?connections=1&timeout=5s")).await;
    let first = store.begin(Isolation::ReadCommitted).await.unwrap();
    proxy.set(Fault::Blackhole);
    tokio::time::pause();
    let from = tokio::time::Instant::now();
    let (begun, ()) = tokio::join!(store.begin(Isolation::ReadCommitted), async {
        sleep(Duration::from_secs(4)).await;
        drop(first);
    });
    let Err(TransactionError::NotCommitted(error)) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    let took = from.elapsed();
    assert!(took <= Duration::from_millis(5010), "{took:?}");
}
