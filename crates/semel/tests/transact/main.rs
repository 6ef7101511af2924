//! Work in a transaction, on a memory store whose commits do as they are told.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod offered;
#[path = "../scripted/mod.rs"]
mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use scripted::{Conflict, Failure, Fate, Scripted};
use semel::guard::{
    Asked, Attempt, AttemptInfo, Done, Guard, OnError, Policy, Ran, RunError, StepError,
    TransactOptions,
};
use semel::store::{Claim, ClaimRequest, Clear as _, Nonce, OnLost, Retention};
use semel::transaction::Isolation;
use semel::{
    Fingerprint, Identity, Key, OutcomeKind, Scope, StateKind, Store as _, StoreErrorKind,
};

struct Bench {
    store: Arc<Scripted>,
    runs: Arc<AtomicU32>,
    policy: Policy,
    retries: u32,
}

impl Bench {
    fn new(fates: &[Fate]) -> Self {
        Self {
            store: Arc::new(Scripted::new(fates)),
            runs: Arc::default(),
            policy: Policy::default(),
            retries: 3,
        }
    }

    async fn run(
        &self,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + 'static,
    ) -> Result<Done<String>, RunError<Failure>> {
        self.run_as(Some(&identity()), work).await
    }

    async fn run_as(
        &self,
        identity: Option<&Identity>,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + 'static,
    ) -> Result<Done<String>, RunError<Failure>> {
        let guard = Guard::new(self.store.clone(), self.policy);
        let options = TransactOptions::default().with_retries(self.retries);
        let runs = self.runs.clone();
        let work = move |info: AttemptInfo, transaction| {
            let (work, runs) = (work.clone(), runs.clone());
            async move {
                assert_eq!(runs.fetch_add(1, Ordering::SeqCst), info.retry);
                drop(transaction);
                work(info.retry)
            }
        };
        let asked = Fingerprint::of(b"asked");
        let asked = match identity {
            Some(identity) => Asked::new(identity.clone(), asked),
            None => Asked::unkeyed(asked),
        };
        guard.transact(asked, options, work).await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn state(&self) -> StateKind {
        let entry = self.store.get(identity().digest()).await.unwrap();
        entry.unwrap().record.state.kind()
    }
}

fn identity() -> Identity {
    named("key")
}

fn named(key: &str) -> Identity {
    Identity::new(Scope::new(["tenant"]), "op", Key::new(key).unwrap())
}

fn counted(again: u32) -> Result<String, Failure> {
    Ok(format!("run {again}"))
}

#[tokio::test(start_paused = true)]
async fn conflicts_run_again_within_the_bound() {
    let bench = Bench::new(&[Fate::Conflicts, Fate::Conflicts, Fate::Conflicts]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 3".into()));

    let bench = Bench::new(&[Fate::Conflicts; 4]);
    match bench.run(counted).await {
        // Certain: it was rolled back, whatever the answer was.
        Err(RunError::Store {
            ran: Ran::No,
            source,
        }) => {
            assert_eq!(source.kind(), StoreErrorKind::NotApplied);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (4, StateKind::Released)
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_found_behind_the_works_error_and_never_kept() {
    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_error(OnError::Keep);
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => Ok("done".into()),
    };
    assert_eq!(bench.run(once).await.unwrap(), Done::Fresh("done".into()));
    assert_eq!(bench.store.rolled_back.load(Ordering::SeqCst), 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_error(OnError::Keep);
    let ran = bench.run(|_| Err(Failure(Some(Conflict)))).await;
    assert!(matches!(&ran, Err(RunError::Failed(failed)) if failed.is_released()));
    assert_eq!(
        (bench.runs(), bench.state().await),
        (4, StateKind::Released)
    );

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_error(OnError::Keep);
    let ran = bench.run(|_| Err(Failure(None))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Completed)
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_what_the_record_says() {
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 0".into()));

    // Not found is not final, so the attempt is given up.
    let bench = Bench::new(&[Fate::Lost { committed: false }]);
    match bench.run(counted).await {
        Err(RunError::Store {
            ran: Ran::No,
            source,
        }) => {
            assert_eq!(source.kind(), StoreErrorKind::NotApplied);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Released)
    );

    // Nobody answers: neither run again nor released.
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    bench.store.deaf.store(true, Ordering::SeqCst);
    match bench.run(counted).await {
        Err(RunError::Store {
            ran: Ran::Unknown,
            source,
        }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unknown);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Completed)
    );
    let replayed = bench.run(counted).await;
    assert_eq!(replayed.unwrap(), Done::Replayed("run 0".into()));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_is_released_and_what_is_too_large_omitted() {
    let bench = Bench::new(&[Fate::Fails]);
    let ran = bench.run(counted).await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: Ran::No, .. })),
        "{ran:?}"
    );
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Released)
    );

    let bench = Bench::new(&[]);
    let large = "x".repeat(2000);
    let ran = bench.run(move |_| Ok(large.clone())).await;
    assert!(matches!(ran, Ok(Done::Fresh(_))));
    let entry = bench.store.get(identity().digest()).await.unwrap();
    match entry.unwrap().record.state {
        semel::State::Completed(outcome) => assert_eq!(outcome.kind(), OutcomeKind::Omitted),
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.run(counted).await, Err(RunError::Omitted)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_may_be_forgotten_where_its_effects_are_too_and_it_is_run_again() {
    let asked = |key| Asked::new(named(key), Fingerprint::of(b"asked"));
    let lost = |on_lost| Policy::default().with_on_lost(on_lost);
    for (policy, forgettable) in [
        (Policy::default(), 1),
        (lost(OnLost::Retry), 1),
        (lost(OnLost::Hold), 0),
        (lost(OnLost::Reconcile), 0),
    ] {
        let mut bench = Bench::new(&[]);
        bench.policy = policy;
        bench.run(counted).await.unwrap();
        let seen = bench.store.forgettable.swap(0, Ordering::SeqCst);
        assert_eq!(seen, forgettable, "{policy:?}");

        // What these do may be anywhere.
        let guard = Guard::new(bench.store.clone(), policy);
        for asked in [
            asked("run"),
            asked("steps").in_steps(),
            asked("offered").transaction_offered(),
        ] {
            let work = |_: Attempt<_>| async { Ok::<_, Failure>(String::new()) };
            guard.run(asked, work).await.unwrap();
        }
        let seen = bench.store.forgettable.load(Ordering::SeqCst);
        assert_eq!(seen, 0, "{policy:?}");
        assert_eq!(bench.store.claims.load(Ordering::SeqCst), 4);
    }
}

/// A database that died before the commit took the claim with it. While a record of what was committed
/// would be kept, that there is none is proof; so is a record of another attempt.
#[tokio::test(start_paused = true)]
async fn what_is_gone_or_anothers_was_not_committed_while_its_record_would_be_kept() {
    const COMMIT: Duration = Duration::from_secs(5);
    let (retried, held) = (OnLost::Retry, OnLost::Hold);
    for (on_lost, kept, claimed_anew, expected) in [
        (retried, 2 * COMMIT, false, "not run"),
        (retried, COMMIT, false, "unknown"),
        (held, 2 * COMMIT, false, "unknown"),
        (retried, 2 * COMMIT, true, "superseded"),
        (retried, COMMIT, true, "unknown"),
    ] {
        let mut bench = Bench::new(&[Fate::Lost { committed: false }]);
        *bench.store.commit_takes.lock().unwrap() = COMMIT;
        let retention = Retention::new(kept);
        bench.policy = Policy::default()
            .with_on_lost(on_lost)
            .with_retention(retention);
        let (ran, ()) = tokio::join!(bench.run(counted), async {
            tokio::time::sleep(COMMIT / 2).await;
            bench.store.memory.clear(true).await.unwrap();
            if claimed_anew {
                let (nonce, print) = (Nonce::random().unwrap(), Fingerprint::of(b"asked"));
                let request = ClaimRequest::new(nonce, print, Duration::from_mins(1));
                let claim = bench.store.memory.claim(&identity(), &request).await;
                assert!(matches!(claim, Ok(Claim::Acquired(_))), "{claim:?}");
            }
        });
        let said = match ran {
            Err(RunError::Store { ran: Ran::No, .. }) => "not run",
            Err(RunError::Store {
                ran: Ran::Unknown, ..
            }) => "unknown",
            Err(RunError::Superseded { ran: Ran::No }) => "superseded",
            other => panic!("{other:?}"),
        };
        assert_eq!(said, expected, "{on_lost:?} {kept:?} {claimed_anew}");
    }
}

type InSteps = Result<Done<String>, RunError<StepError<Failure>>>;
type Work = Attempt<Arc<Scripted>>;

fn asked() -> Asked {
    Asked::new(identity(), Fingerprint::of(b"asked"))
}

/// What a step failed with.
fn step_error<T: std::fmt::Debug>(
    ran: Result<T, RunError<StepError<Failure>>>,
) -> StepError<Failure> {
    match ran {
        Err(RunError::Failed(failed)) => failed.into_error().unwrap(),
        other => panic!("{other:?}"),
    }
}

impl Bench {
    /// Two steps in a transaction each, and one between them that is in none.
    async fn in_steps(
        &self,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + Sync + 'static,
    ) -> InSteps {
        let guard = Guard::new(self.store.clone(), self.policy);
        let options = TransactOptions::default().with_retries(self.retries);
        let runs = self.runs.clone();
        guard
            .run(asked().in_steps(), move |mut steps: Work| async move {
                let mut done = String::new();
                for (place, name) in ["reserve", "pay"].into_iter().enumerate() {
                    let result: String = steps
                        .transact(name, options, |info, transaction| {
                            runs.fetch_add(1, Ordering::SeqCst);
                            drop(transaction);
                            // The second step is told from the first by a hundred.
                            let ran = work(info.retry + 100 * u32::try_from(place).unwrap());
                            async move { ran }
                        })
                        .await?;
                    let between = steps.step("between", |_| async { Ok(",".to_owned()) });
                    done = format!("{done}{result}{}", between.await?);
                }
                Ok::<_, StepError<Failure>>(done)
            })
            .await
    }

    async fn kept(&self) -> Vec<String> {
        let entry = self.store.get(identity().digest()).await.unwrap();
        let progress = entry.unwrap().record.progress;
        progress.steps().map(|(name, _)| name.to_owned()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_was_committed_is_not_run_again() {
    let bench = Bench::new(&[]);
    let fails_second = |run| match run {
        100.. => Err(Failure(None)),
        _ => counted(run),
    };
    let failed = bench.in_steps(fails_second).await;
    assert!(matches!(step_error(failed), StepError::Failed(_)));
    assert_eq!(bench.kept().await, ["reserve", "between"]);
    let ran = bench.in_steps(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 0,run 100,".into()));
    assert_eq!(bench.runs(), 3);
    let ran = bench.in_steps(counted).await;
    assert_eq!(ran.unwrap(), Done::Replayed("run 0,run 100,".into()));
}

/// A first attempt has nothing before it: its steps cost no reads.
#[tokio::test(start_paused = true)]
async fn steps_of_a_first_attempt_read_nothing() {
    let bench = Bench::new(&[]);
    bench.store.blind.store(true, Ordering::SeqCst);
    let ran = bench.in_steps(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 0,run 100,".into()));
}

/// A failure that lasts is kept beside the transaction, which is rolled back.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_a_failure_is_kept_and_not_committed() {
    let bench = Bench::new(&[]);
    let guard = Guard::new(bench.store.clone(), bench.policy);
    let declined = |_: AttemptInfo, mut work: semel::transaction::Lent<scripted::Work>| async move {
        work.lines.push("charged".into());
        Ok::<_, Failure>(Err::<String, String>("declined".into()))
    };
    let options = TransactOptions::default();
    for replayed in [false, true] {
        let done = guard.transact(asked(), options, declined).await.unwrap();
        assert_eq!(matches!(done, Done::Replayed(_)), replayed);
        assert_eq!(done.into_inner(), Err("declined".into()));
    }
    assert!(bench.store.ledger.lock().unwrap().is_empty());
    assert_eq!(bench.store.rolled_back.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn conflicts_of_a_step_run_it_again_within_the_bound() {
    let bench = Bench::new(&[
        Fate::Conflicts,
        Fate::Conflicts,
        Fate::Commits,
        Fate::Conflicts,
    ]);
    let ran = bench.in_steps(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 2,run 101,".into()));

    let bench = Bench::new(&[Fate::Conflicts; 4]);
    match step_error(bench.in_steps(counted).await) {
        StepError::Store {
            ran: Ran::No,
            source,
        } => {
            assert_eq!(source.kind(), StoreErrorKind::NotApplied);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.runs(), 4);

    let bench = Bench::new(&[]);
    let ran = bench.in_steps(|_| Err(Failure(Some(Conflict)))).await;
    assert!(matches!(step_error(ran), StepError::Failed(_)));
    let rolled_back = bench.store.rolled_back.load(Ordering::SeqCst);
    assert_eq!((bench.runs(), rolled_back), (4, 4));
    assert!(bench.kept().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_of_a_step_is_what_the_record_says() {
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    let ran = bench.in_steps(counted).await;
    assert_eq!(ran.unwrap(), Done::Fresh("run 0,run 100,".into()));

    // Nobody answers, or it is not found: it is not run again in this attempt, and the next one knows.
    for committed in [true, false] {
        let bench = Bench::new(&[Fate::Lost { committed }]);
        bench.store.deaf.store(committed, Ordering::SeqCst);
        match step_error(bench.in_steps(counted).await) {
            StepError::Store {
                ran: Ran::Unknown,
                source,
            } => {
                assert_eq!(source.kind(), StoreErrorKind::Unknown);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.runs(), 1);
        bench.store.deaf.store(false, Ordering::SeqCst);
        let ran = bench.in_steps(counted).await;
        assert_eq!(ran.unwrap(), Done::Fresh("run 0,run 100,".into()));
        // The second step, and the first one where it was not committed.
        assert_eq!(bench.runs(), if committed { 2 } else { 3 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_cannot_be_kept_is_rolled_back() {
    let bench = Bench::new(&[]);
    let large = "x".repeat(70_000);
    let ran = bench.in_steps(move |_| Ok(large.clone())).await;
    assert!(matches!(step_error(ran), StepError::TooLarge { .. }));
    assert_eq!(bench.store.rolled_back.load(Ordering::SeqCst), 1);

    let guard = Guard::new(bench.store.clone(), bench.policy);
    let ran = guard.run(asked().in_steps(), |mut steps: Work| async move {
        let options = TransactOptions::default();
        steps
            .transact("keep", options, |_, transaction| async move {
                std::mem::forget(transaction);
                Ok::<_, Failure>(())
            })
            .await
    });
    let kept = step_error(ran.await);
    assert!(matches!(&kept, StepError::TransactionKept(name) if &**name == "keep"));
    assert!(bench.kept().await.is_empty());
}

/// A transaction that renewals do not go with holds them up, and no longer than it lasts.
#[tokio::test(start_paused = true)]
async fn renewals_wait_for_such_a_step_alone() {
    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_lease(Duration::from_secs(30));
    let store = bench.store.clone();
    let guard = Guard::new(store.clone(), bench.policy);
    let lease = async move || {
        let entry = store.memory.get(identity().digest()).await.unwrap();
        entry.unwrap().record.lease_until
    };
    let ran = guard.run(asked().in_steps(), move |mut steps: Work| async move {
        for (isolation, renewed) in [
            (Isolation::ReadCommitted, true),
            (Isolation::Serializable, false),
        ] {
            let options = TransactOptions::default().with_isolation(isolation);
            let lease = lease.clone();
            let during = move |_: AttemptInfo, transaction| {
                let lease = lease.clone();
                async move {
                    let before = lease().await;
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    assert_eq!(lease().await > before, renewed, "{isolation:?}");
                    drop(transaction);
                    Ok::<_, Failure>(())
                }
            };
            steps
                .transact(&format!("{isolation:?}"), options, during)
                .await?;
        }
        let before = lease().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(lease().await > before);
        Ok::<_, StepError<Failure>>(())
    });
    ran.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r13_without_a_key_a_transaction_is_committed_without_a_record() {
    let plainly = async |fates: &[Fate], work: fn(u32) -> Result<String, Failure>| {
        let bench = Bench::new(fates);
        let ran = bench.run_as(None, work).await;
        assert!(bench.store.memory.is_empty());
        let rolled_back = bench.store.rolled_back.load(Ordering::SeqCst);
        (ran, bench.runs(), rolled_back)
    };
    let (ran, ..) = plainly(&[], counted).await;
    assert_eq!(ran.unwrap(), Done::Unprotected("run 0".into()));

    // Conflicts run again, in the commit and in the work, within the bound.
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => counted(again),
    };
    let (ran, _, rolled_back) = plainly(&[Fate::Conflicts], once).await;
    assert_eq!(ran.unwrap(), Done::Unprotected("run 2".into()));
    assert_eq!(rolled_back, 1);
    let (ran, runs, _) = plainly(&[Fate::Conflicts; 4], counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: Ran::No, source }) if source.kind() == StoreErrorKind::NotApplied)
    );
    assert_eq!(runs, 4);

    let (ran, runs, rolled_back) = plainly(&[], |_| Err(Failure(None))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!((runs, rolled_back), (1, 1));

    // Nobody can tell, and it is not run again.
    let lost = [Fate::Lost { committed: false }];
    let (ran, runs, _) = plainly(&lost, counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: Ran::Unknown, source }) if source.kind() == StoreErrorKind::Unknown)
    );
    assert_eq!(runs, 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_key_required(true);
    let refused = bench.run_as(None, counted).await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
    assert_eq!(bench.runs(), 0);
}
