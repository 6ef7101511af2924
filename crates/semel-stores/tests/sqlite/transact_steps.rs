//! Steps in a transaction each.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel::guard::{
    Asked, Attempt, Begin, Done, Guard, Policy, Ran, RunError, StepError, TransactOptions,
};
use semel::store::Store as _;
use semel::{Fingerprint, StateKind};
use semel_stores::SqliteStore;
use tokio::time::sleep;

use super::transact::{Bench, Tx, order, orders};
use super::{identity, open};

type InSteps = Result<Done<String>, RunError<StepError<rusqlite::Error>>>;

fn asked(key: &str) -> Asked {
    Asked::new(identity(key), Fingerprint::of(b"request")).in_steps()
}

/// Two steps, each of which has an effect; the second fails where it is told to.
async fn two_steps(guard: Guard<Arc<SqliteStore>>, key: String, fails: bool) -> InSteps {
    let asked = asked(&key);
    let work = move |mut attempt: Attempt<Arc<SqliteStore>>| async move {
        let mut done = Vec::new();
        for step in ["1", "2"] {
            let name = format!("{key}-{step}");
            let effect = |_, mut tx: Tx| {
                let name = name.clone();
                async move {
                    tx.call(move |on| {
                        on.execute("INSERT INTO orders VALUES (?1)", [&name])?;
                        if fails && step == "2" {
                            on.execute("SELECT nonsense", [])?;
                        }
                        Ok(name)
                    })
                    .await
                }
            };
            let options = TransactOptions::default();
            let result: String = attempt.transact(step, options, effect).await?;
            done.push(result);
        }
        Ok::<_, StepError<rusqlite::Error>>(done.join(" "))
    };
    guard.run(asked, work).await
}

/// No renewal comes beside a transaction of SQLite's. Nobody else gets at the record either.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_longer_than_its_lease_is_committed_and_one_past_it_is_not() {
    let bench = Bench::new();
    let guard = Guard::new(
        bench.store.clone(),
        Policy::default().with_lease(Duration::from_millis(200)),
    );
    let begin = async |key: &str| match guard.begin(&asked(key)).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    };
    let long = |_, mut tx: Tx| async move {
        sleep(Duration::from_millis(500)).await;
        tx.call(|on| on.execute("INSERT INTO orders VALUES ('long')", []))
            .await
            .map(|_| ())
    };
    let mut held = begin("long").await;
    let options = TransactOptions::default();
    held.attempt().transact("1", options, long).await.unwrap();
    assert_eq!(orders(&bench.path, "long"), 1);

    let mut zombie = begin("late").await;
    zombie.stop_renewing();
    sleep(Duration::from_millis(300)).await;
    let mut next = begin("late").await;
    let won = next
        .attempt()
        .transact("1", options, |_, tx| order(tx, "late"))
        .await;
    assert_eq!(won.unwrap(), "late");
    let late = zombie
        .attempt()
        .transact("1", options, |_, tx| order(tx, "late"))
        .await;
    assert!(
        matches!(late, Err(StepError::Superseded { ran: Ran::No })),
        "{late:?}"
    );
    assert_eq!(orders(&bench.path, "late"), 1);
}

#[test]
fn a_client_that_dies_anywhere_leaves_each_step_whole() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let bench = looking.block_on(async { Bench::new() });
    let brief = Policy::default().with_lease(Duration::from_millis(200));
    let dies = |path: &Path, key: &str, after: Duration| {
        let dying = tokio::runtime::Runtime::new().unwrap();
        let (path, key): (PathBuf, String) = (path.into(), key.into());
        let store = dying.block_on(async { Arc::new(open(&path)) });
        let guard = Guard::new(store, brief);
        dying.spawn(async move { drop(two_steps(guard, key, false).await) });
        std::thread::sleep(after);
        dying.shutdown_background();
    };
    let mut whole = 0;
    for round in 0..12_u64 {
        let key = format!("key-{round}");
        dies(&bench.path, &key, Duration::from_micros(700 * round));
        looking.block_on(async {
            sleep(Duration::from_millis(250)).await;
            let entry = bench.store.get(identity(&key).digest()).await.unwrap();
            let kept = entry.map_or(0, |entry| match entry.record.state.kind() {
                StateKind::Completed => 2,
                _ => entry.record.progress.steps().count(),
            });
            for (step, name) in ["1", "2"].into_iter().enumerate() {
                let there = orders(&bench.path, &format!("{key}-{name}"));
                assert_eq!(there, i64::from(step < kept), "{key} {name}");
            }
            whole += u32::from(kept == 2);
            let guard = Guard::new(bench.store.clone(), brief);
            let ran = two_steps(guard, key.clone(), false).await;
            assert_eq!(ran.unwrap().into_inner(), format!("{key}-1 {key}-2"));
            for name in ["1", "2"] {
                assert_eq!(orders(&bench.path, &format!("{key}-{name}")), 1);
            }
        });
    }
    assert!(whole < 12);
}
