//! Work in a transaction, on a memory store whose commits do as they are told.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use scripted::{Conflict, Failure, Fate, Scripted};
use semel::guard::{Guard, OnFailure, Policy, Ran, RunError, TransactOptions};
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
    ) -> Result<Ran<String>, RunError<Failure>> {
        self.run_as(Some(&identity()), work).await
    }

    async fn run_as(
        &self,
        identity: Option<&Identity>,
        work: impl Fn(u32) -> Result<String, Failure> + Clone + Send + 'static,
    ) -> Result<Ran<String>, RunError<Failure>> {
        let guard = Guard::new(self.store.clone(), self.policy);
        let options = TransactOptions::default().with_retries(self.retries);
        let runs = self.runs.clone();
        let work = move |info: semel::guard::TransactInfo, transaction| {
            let (work, runs) = (work.clone(), runs.clone());
            async move {
                assert_eq!(runs.fetch_add(1, Ordering::SeqCst), info.again);
                drop(transaction);
                work(info.again)
            }
        };
        guard
            .transact_optional(identity, Fingerprint::of(b"asked"), options, work)
            .await
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
    Identity::new(Scope::new(["tenant"]), "op", Key::new("key").unwrap())
}

fn counted(again: u32) -> Result<String, Failure> {
    Ok(format!("run {again}"))
}

#[tokio::test(start_paused = true)]
async fn conflicts_run_again_within_the_bound() {
    let bench = Bench::new(&[Fate::Conflicts, Fate::Conflicts, Fate::Conflicts]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Ran::First("run 3".into()));

    let bench = Bench::new(&[Fate::Conflicts; 4]);
    match bench.run(counted).await {
        // Certain: it was rolled back, whatever the answer was.
        Err(RunError::Store { ran: true, source }) => {
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
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => Ok("done".into()),
    };
    assert_eq!(bench.run(once).await.unwrap(), Ran::First("done".into()));
    assert_eq!(bench.store.rolled_back.load(Ordering::SeqCst), 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
    let ran = bench.run(|_| Err(Failure(Some(Conflict)))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!(
        (bench.runs(), bench.state().await),
        (4, StateKind::Released)
    );

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_on_failure(OnFailure::Keep);
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
    assert_eq!(ran.unwrap(), Ran::First("run 0".into()));

    let bench = Bench::new(&[Fate::Lost { committed: false }]);
    let ran = bench.run(counted).await;
    assert_eq!(ran.unwrap(), Ran::First("run 1".into()));
    assert_eq!(bench.state().await, StateKind::Completed);

    // Nobody answers: neither run again nor released.
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    bench.store.deaf.store(true, Ordering::SeqCst);
    match bench.run(counted).await {
        Err(RunError::Store { ran: true, source }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unknown);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Completed)
    );
    let replayed = bench.run(counted).await;
    assert_eq!(replayed.unwrap(), Ran::Replayed("run 0".into()));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_is_released_and_what_is_too_large_omitted() {
    let bench = Bench::new(&[Fate::Fails]);
    let ran = bench.run(counted).await;
    assert!(
        matches!(ran, Err(RunError::Store { ran: true, .. })),
        "{ran:?}"
    );
    assert_eq!(
        (bench.runs(), bench.state().await),
        (1, StateKind::Released)
    );

    let bench = Bench::new(&[]);
    let large = "x".repeat(2000);
    let ran = bench.run(move |_| Ok(large.clone())).await;
    assert!(matches!(ran, Ok(Ran::First(_))));
    let entry = bench.store.get(identity().digest()).await.unwrap();
    match entry.unwrap().record.state {
        semel::State::Completed(outcome) => assert_eq!(outcome.kind(), OutcomeKind::Omitted),
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.run(counted).await, Err(RunError::Omitted)));
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
    assert_eq!(ran.unwrap(), Ran::Unprotected("run 0".into()));

    // Conflicts run again, in the commit and in the work, within the bound.
    let once = |again| match again {
        0 => Err(Failure(Some(Conflict))),
        _ => counted(again),
    };
    let (ran, _, rolled_back) = plainly(&[Fate::Conflicts], once).await;
    assert_eq!(ran.unwrap(), Ran::Unprotected("run 2".into()));
    assert_eq!(rolled_back, 1);
    let (ran, runs, _) = plainly(&[Fate::Conflicts; 4], counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: true, source }) if source.kind() == StoreErrorKind::NotApplied)
    );
    assert_eq!(runs, 4);

    let (ran, runs, rolled_back) = plainly(&[], |_| Err(Failure(None))).await;
    assert!(matches!(ran, Err(RunError::Failed(_))));
    assert_eq!((runs, rolled_back), (1, 1));

    // Nobody can tell, and it is not run again.
    let lost = [Fate::Lost { committed: false }];
    let (ran, runs, _) = plainly(&lost, counted).await;
    assert!(
        matches!(&ran, Err(RunError::Store { ran: true, source }) if source.kind() == StoreErrorKind::Unknown)
    );
    assert_eq!(runs, 1);

    let mut bench = Bench::new(&[]);
    bench.policy = Policy::default().with_key_required(true);
    let refused = bench.run_as(None, counted).await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
    assert_eq!(bench.runs(), 0);
}
