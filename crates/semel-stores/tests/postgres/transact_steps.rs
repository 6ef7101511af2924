//! Steps in a transaction each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel::StateKind;
use semel::guard::{
    Asked, Attempt, AttemptInfo, Begin, Done, Guard, Held, Policy, Ran, RunError, StepError,
    TransactOptions,
};
use semel::store::Store as _;
use semel::transaction::Isolation;
use semel_stores::PostgresStore;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Postgres, Server as _};
use tokio::sync::Barrier;
use tokio::time::{sleep, timeout};

use super::transact::{Bench, Failure, Tx, asked, at, insert, slow_commits, when_committing};
use super::{identity, open, url};

type InSteps = Result<Done<String>, RunError<StepError<Failure>>>;

/// Two steps, each of which has an effect; the second fails where it is told to.
async fn two_steps(
    guard: Guard<Arc<PostgresStore>>,
    effects: Arc<str>,
    key: String,
    fails: bool,
) -> InSteps {
    let asked = Asked::new(identity(&key), asked()).in_steps();
    let sql = insert(&effects);
    let work = move |mut attempt: Attempt<Arc<PostgresStore>>| async move {
        let mut done = Vec::new();
        for step in ["1", "2"] {
            let (sql, name) = (&sql, format!("{key}-{step}"));
            let effect = |_, tx: Tx| {
                let name = name.clone();
                async move {
                    tx.execute(sql, &[&name]).await?;
                    if fails && step == "2" {
                        return Err(Failure::Refused);
                    }
                    Ok(name)
                }
            };
            let options = TransactOptions::default();
            let result: String = attempt.transact(step, options, effect).await?;
            done.push(result);
        }
        Ok::<_, StepError<Failure>>(done.join(" "))
    };
    guard.run(asked, work).await
}

async fn begin(guard: &Guard<Arc<PostgresStore>>, key: &str) -> Held<Arc<PostgresStore>> {
    let asked = Asked::new(identity(key), asked()).in_steps();
    match guard.begin(&asked).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_past_its_lease_commits_nothing() {
    let bench = Bench::at(&url()).await;
    for isolation in [Isolation::ReadCommitted, Isolation::Serializable] {
        let key = format!("{isolation:?}");
        let (bench, key, sql) = (&bench, &key, &insert(&bench.effects));
        let effect = async |tx: &Tx| tx.execute(sql, &[key]).await;
        let brief = bench.guard(Policy::default().with_lease(Duration::from_millis(100)));
        let mut zombie = begin(&brief, key).await;
        zombie.stop_renewing();
        let mut attempt = zombie.attempt();
        let late = attempt.transact("1", at(isolation), |info, tx: Tx| async move {
            effect(&tx).await?;
            if info.retry == 0 {
                // Taken over while its own transaction is open.
                sleep(Duration::from_millis(200)).await;
                let mut next = begin(&bench.guard(Policy::default()), key).await;
                let mut attempt = next.attempt();
                let won = attempt.transact("1", at(isolation), |_, tx: Tx| async move {
                    effect(&tx).await?;
                    Ok::<_, Failure>("the next one's".to_owned())
                });
                assert_eq!(won.await.unwrap(), "the next one's");
                next.let_lapse();
            }
            Ok::<_, Failure>("the zombie's".to_owned())
        });
        let late = late.await;
        assert!(
            matches!(late, Err(StepError::Superseded { ran: Ran::No })),
            "{late:?}"
        );
        assert_eq!(bench.effects(key).await, 1);
        let entry = bench.store.get(identity(key).digest()).await.unwrap();
        assert_eq!(entry.unwrap().record.progress.steps().count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_steps_commit_is_resolved_by_the_record() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bench = Bench::through(&server.url_through(proxy.address()), &server.url()).await;
    slow_commits(&bench).await;
    for (key, terminated) in [("committed", false), ("not-committed", true)] {
        let runs = Arc::new(AtomicU32::new(0));
        let ask = || {
            let guard = bench.guard(Policy::default());
            let (work, counted) = (bench.effect(key), runs.clone());
            let work = move |mut attempt: Attempt<Arc<PostgresStore>>| async move {
                let options = TransactOptions::default();
                let effect = |info, tx| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    work(info, tx)
                };
                attempt.transact("effect", options, effect).await
            };
            let asked = Asked::new(identity(key), asked()).in_steps();
            async move { guard.run(asked, work).await }
        };
        let ran = tokio::spawn(ask());
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
        assert_eq!(bench.effects(key).await, i64::from(!terminated), "{key}");
        if terminated {
            let Err(RunError::Failed(failed)) = &ran else {
                panic!("{ran:?}");
            };
            let in_doubt = matches!(
                failed.error(),
                Some(StepError::Store {
                    ran: Ran::Unknown,
                    ..
                })
            );
            assert!(in_doubt, "{ran:?}");
            // The attempt was given back, and what is not there can come no more: whoever asks again runs it.
            ask().await.unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 2, "{key}");
            assert_eq!(bench.effects(key).await, 1, "{key}");
        } else {
            ran.unwrap();
        }
    }
}

#[test]
fn a_client_that_dies_anywhere_leaves_each_step_whole() {
    let url = url();
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(Bench::at(&url));
    let short = Policy::default().with_lease(Duration::from_millis(200));
    let (mut half, mut whole) = (0, 0);
    for round in 0..20_u64 {
        let key = format!("key-{round}");
        let dying = tokio::runtime::Runtime::new().unwrap();
        let ready = dying.block_on(async { Arc::new(open(&url).await) });
        let guard = Guard::new(ready, short);
        let (effects, name) = (bench.effects.clone(), key.clone());
        dying.spawn(async move { drop(two_steps(guard, effects, name, false).await) });
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
            for (step, name) in ["1", "2"].into_iter().enumerate() {
                let there = bench.effects(&format!("{key}-{name}")).await;
                assert_eq!(there, i64::from(step < kept), "{key} {name}");
            }
            half += u32::from(kept == 1);
            whole += u32::from(kept == 2);
            let ran = two_steps(
                bench.guard(short),
                bench.effects.clone(),
                key.clone(),
                false,
            );
            assert_eq!(ran.await.unwrap().into_inner(), format!("{key}-1 {key}-2"));
            for name in ["1", "2"] {
                assert_eq!(bench.effects(&format!("{key}-{name}")).await, 1);
            }
        });
    }
    println!("of 20, {half} died after one step and {whole} after both");
    assert!(whole < 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_of_steps_run_again() {
    let bench = Bench::at(&url()).await;
    for key in ["a", "b"] {
        let put = insert(&bench.effects);
        bench.look.execute(&put, &[&key]).await.unwrap();
    }
    let met = Arc::new(Barrier::new(2));
    let callers = [["a", "b"], ["b", "a"]].map(|order| {
        let (guard, met) = (bench.guard(Policy::default()), met.clone());
        let sql: Arc<str> = format!("UPDATE {} SET key = key WHERE key = $1", bench.effects).into();
        tokio::spawn(async move {
            let asked = Asked::new(identity(&order.concat()), asked()).in_steps();
            let work = move |mut attempt: Attempt<Arc<PostgresStore>>| async move {
                let options = TransactOptions::default();
                let effect = |info: AttemptInfo, tx: Tx| {
                    let (sql, met) = (sql.clone(), met.clone());
                    async move {
                        tx.execute(&*sql, &[&order[0]]).await?;
                        if info.retry == 0 {
                            met.wait().await;
                        }
                        tx.execute(&*sql, &[&order[1]]).await?;
                        Ok::<_, Failure>(info.retry.to_string())
                    }
                };
                attempt.transact("both", options, effect).await
            };
            guard.run(asked, work).await.unwrap().into_inner()
        })
    });
    let mut again = Vec::new();
    for caller in callers {
        again.push(caller.await.unwrap());
    }
    again.sort();
    assert_eq!(again, ["0", "1"]);
}
