//! Steps in a transaction each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::guard::{
    Asked, Attempt, AttemptInfo, Done, Guard, Policy, RunError, StepError, TransactOptions,
};
use semel::record::Change;
use semel::store::{Fenced, OnLost, Refusal, Store as _};
use semel::transaction::{Isolation, Transactional as _};
use semel::{Fingerprint, FinishedStep, StateKind};
use semel_stores::MysqlStore;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::Server as _;
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use super::transact::{Bench, Error, Tx, at, committing, execute};
use super::{acquired, ask, common, identity, link, options, own, request};

type InSteps = Result<Done<String>, RunError<StepError<Error>>>;

/// Runs these statements, each of them in a step.
async fn steps_of(
    store: Arc<MysqlStore>,
    policy: Policy,
    key: &str,
    statements: [String; 2],
) -> InSteps {
    let (guard, asked) = (Guard::new(store, policy), Fingerprint::of(b"request"));
    let work = move |mut attempt: Attempt<Arc<MysqlStore>>| async move {
        let mut done = String::new();
        for (name, sql) in ["1", "2"].into_iter().zip(statements) {
            let effect = |_, tx| execute(tx, sql.clone());
            let options = TransactOptions::default();
            done = attempt.transact(name, options, effect).await?;
        }
        Ok::<_, StepError<Error>>(done)
    };
    let asked = Asked::new(identity(key), asked).in_steps();
    guard.run(asked, work).await
}

fn inserts(bench: &Bench, key: &str) -> [String; 2] {
    ["1", "2"].map(|step| bench.insert(&format!("{key}-{step}")))
}

async fn there(bench: &Bench, key: &str) -> [i64; 2] {
    [
        bench.effects(&format!("{key}-1")).await,
        bench.effects(&format!("{key}-2")).await,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_past_its_lease_commits_nothing() {
    let bench = Bench::at(&common().await).await;
    let step = FinishedStep::new("1", b"the zombie's").unwrap();
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let key = format!("{isolation:?}");
        let id = identity(&key);
        let short = request(Duration::ZERO, OnLost::Retry);
        let zombie = acquired(bench.store.claim(&id, &short).await.unwrap()).token;
        let mut tx = bench.store.begin(isolation).await.unwrap();
        let effect = bench.insert(&format!("{key}-1"));
        tx.execute(AssertSqlSafe(effect)).await.unwrap();
        // Its snapshot is older than what takes it over.
        let look = tx.execute("SELECT COUNT(*) FROM mysql.innodb_index_stats");
        look.await.unwrap();
        let next = steps_of(
            bench.store.clone(),
            Policy::default(),
            &key,
            inserts(&bench, &key),
        );
        assert_eq!(next.await.unwrap(), Done::Fresh("done".into()));
        let change = Change::keep_step(&zombie, &step, 0);
        let kept = bench.store.change_in(&mut tx, id.digest(), &change);
        assert_eq!(
            kept.await.unwrap(),
            Fenced::Refused(Refusal::Superseded),
            "{key}"
        );
        bench.store.rollback(tx).await;
        assert_eq!(there(&bench, &key).await, [1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_steps_commit_is_resolved_by_the_record() {
    let server = own(&[]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let bench = Bench::through(&server.url_through(proxy.address()), &server.url()).await;
    let (mut look, mut blocker) = (link(&server.url()).await, link(&server.url()).await);
    for (key, killed) in [("committed", false), ("not-committed", true)] {
        let runs = Arc::new(AtomicU32::new(0));
        let (begun, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let guard = Guard::from(bench.store.clone());
        let ran = {
            let (sql, runs) = (bench.insert(key), runs.clone());
            let (begun, go) = (begun.clone(), go.clone());
            let work = move |mut attempt: Attempt<Arc<MysqlStore>>| async move {
                let effect = |info: AttemptInfo, tx: Tx| {
                    let (sql, begun, go) = (sql.clone(), begun.clone(), go.clone());
                    runs.fetch_add(1, Ordering::Relaxed);
                    async move {
                        let done = execute(tx, sql).await?;
                        if info.retry == 0 {
                            begun.wait().await;
                            go.wait().await;
                        }
                        Ok::<_, Error>(done)
                    }
                };
                let options = TransactOptions::default();
                attempt.transact("effect", options, effect).await
            };
            tokio::spawn(async move {
                let asked = Asked::new(identity(key), Fingerprint::of(b"request"));
                guard.run(asked.in_steps(), work).await
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
        let ran = timeout(Duration::from_secs(30), ran).await;
        let ran = ran.unwrap().unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "{key}");
        assert!(killed || ran.is_ok(), "{ran:?}");
        assert_eq!(bench.effects(key).await, i64::from(ran.is_ok()), "{key}");
    }
}

#[test]
fn a_client_that_dies_anywhere_leaves_each_step_whole() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(async { Bench::at(&common().await).await });
    let brief = Policy::default().with_lease(Duration::from_millis(200));
    let mut whole = 0;
    for round in 0..16_u64 {
        let key = format!("key-{round}");
        let dying = tokio::runtime::Runtime::new().unwrap();
        let options = options(&bench.url).table(&bench.records).unwrap();
        let store = dying.block_on(async { Arc::new(options.open().await.unwrap()) });
        let (name, statements) = (key.clone(), inserts(&bench, &key));
        dying.spawn(async move { drop(steps_of(store, brief, &name, statements).await) });
        std::thread::sleep(Duration::from_micros(1500 * round));
        // Its tasks end wherever they are, and its connections with them.
        dying.shutdown_background();
        looking.block_on(async {
            sleep(Duration::from_millis(250)).await;
            let entry = bench.store.get(identity(&key).digest()).await.unwrap();
            let kept = entry.map_or(0, |entry| match entry.record.state.kind() {
                StateKind::Completed => 2,
                _ => entry.record.progress.steps().count(),
            });
            let wanted = [i64::from(kept > 0), i64::from(kept > 1)];
            assert_eq!(there(&bench, &key).await, wanted, "{key}");
            whole += u32::from(kept == 2);
            let ran = steps_of(bench.store.clone(), brief, &key, inserts(&bench, &key));
            assert_eq!(ran.await.unwrap().into_inner(), "done");
            assert_eq!(there(&bench, &key).await, [1, 1], "{key}");
        });
    }
    assert!(whole < 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_of_steps_run_again() {
    let bench = Bench::at(&common().await).await;
    for key in ["a", "b"] {
        ask(&mut link(&bench.url).await, bench.insert(key)).await;
    }
    let met = Arc::new(Barrier::new(2));
    let callers = [["a", "b"], ["b", "a"]].map(|order| {
        let guard = Guard::from(bench.store.clone());
        let (met, effects) = (met.clone(), bench.effects.clone());
        let work = move |mut attempt: Attempt<Arc<MysqlStore>>| async move {
            let effect = |info: AttemptInfo, mut tx: Tx| {
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
                    Ok::<_, Error>(info.retry.to_string())
                }
            };
            let options = at(Isolation::RepeatableRead);
            attempt.transact("both", options, effect).await
        };
        tokio::spawn(async move {
            let asked = Asked::new(identity(&order.concat()), Fingerprint::of(b"request"));
            let ran = guard.run(asked.in_steps(), work);
            ran.await.unwrap().into_inner()
        })
    });
    let mut again = Vec::new();
    for caller in callers {
        again.push(caller.await.unwrap());
    }
    again.sort();
    assert_eq!(again, ["0", "1"]);
}
