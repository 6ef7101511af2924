//! Work that is offered a transaction, which it may take or leave.

use std::sync::Mutex;

use semel::guard::{Begin, Held, Observer, Opening, Seen, Settled, Signal, Transacted};
use semel::store::OnLost;
use semel::transaction::TransactionError;
use semel::{Outcome, StoreError};

use super::*;

type Store = Arc<Scripted>;
type Offered = Opening<Store>;

const LEASE: Duration = Duration::from_secs(3);

/// The signals, and whether each names its attempt.
#[derive(Default)]
struct Watch(Mutex<Vec<(Signal, bool)>>);

impl Observer for Watch {
    fn on_event(&self, seen: &Seen<'_>) {
        let event = (seen.signal, seen.attempt.is_some());
        self.0.lock().unwrap().push(event);
    }
}

struct Desk {
    store: Store,
    watch: Arc<Watch>,
    guard: Guard<Store>,
}

impl Desk {
    fn new(fates: &[Fate]) -> Self {
        let store = Arc::new(Scripted::new(fates));
        let watch = Arc::<Watch>::default();
        let guard = Guard::builder(store.clone())
            .policy(Policy::default().with_lease(LEASE))
            .observer(watch.clone())
            .build();
        Self {
            store,
            watch,
            guard,
        }
    }

    async fn begin(&self, asked: &Asked) -> Begin<Store> {
        self.guard.begin(asked).await.unwrap()
    }

    async fn held(&self) -> Held<Store> {
        match self.begin(&offered()).await {
            Begin::Acquired(held) => held,
            other => panic!("{other:?}"),
        }
    }

    async fn state(&self) -> StateKind {
        let entry = self.store.memory.get(identity().digest()).await.unwrap();
        entry.unwrap().record.state.kind()
    }

    /// An attempt that is lost, having taken the transaction or not.
    async fn lost(&self, takes: bool, asked: &Asked) {
        let Begin::Acquired(mut held) = self.begin(asked).await else {
            panic!("not acquired")
        };
        let dies = |_, opening: Offered| async move {
            if takes {
                drop(opening.begin().await.unwrap());
            }
            std::future::pending::<Result<(), Failure>>().await
        };
        let dying = held.transact(options(), dies, |_| false, done);
        tokio::time::timeout(Duration::from_secs(1), dying)
            .await
            .unwrap_err();
        held.let_lapse();
        tokio::time::sleep(LEASE).await;
    }

    /// The signals since the last time, with those of the attempt's beginning left out.
    fn told(&self) -> Vec<(Signal, bool)> {
        let mut told = std::mem::take(&mut *self.watch.0.lock().unwrap());
        told.retain(|(signal, _)| *signal != Signal::New);
        told
    }
}

fn offered() -> Asked {
    asked().transaction_offered()
}

fn options() -> TransactOptions {
    TransactOptions::default().with_retries(2)
}

fn done(_: &()) -> Option<(Outcome, Option<semel::store::Retention>)> {
    Some((Outcome::void(), None))
}

async fn takes(_: AttemptInfo, opening: Offered) -> Result<(), StoreError> {
    drop(
        opening
            .begin()
            .await
            .map_err(TransactionError::into_source)?,
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_not_taken_is_left_to_its_caller() {
    let desk = Desk::new(&[]);
    let mut held = desk.held().await;
    let leaves = async |_, _: Offered| Ok::<_, Failure>(());
    let left = held.transact(options(), leaves, |_| true, done).await;
    assert!(matches!(left, Transacted::NotTaken(())), "{left:?}");
    // Without a transaction there is no conflict: the work is not run again.
    let mut runs = 0;
    let fails = |_, _: Offered| {
        runs += 1;
        async { Err(Failure(Some(Conflict))) }
    };
    let failed = held.transact(options(), fails, |_| true, done).await;
    let conflict = matches!(failed, Transacted::Failed { conflict, .. } if !conflict);
    assert!(conflict, "{failed:?}");
    assert_eq!((runs, desk.store.begun.load(Ordering::SeqCst)), (1, 0));
    // It is still to be settled.
    let settled = held.complete(&Outcome::void()).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
}

#[tokio::test(start_paused = true)]
async fn it_is_begun_once_and_while_the_work_runs() {
    let desk = Desk::new(&[]);
    let mut held = desk.held().await;
    let kept = Mutex::new(None);
    let greedy = |_, opening: Offered| {
        let kept = &kept;
        async move {
            drop(opening.begin().await.unwrap());
            assert!(opening.begin().await.is_err());
            *kept.lock().unwrap() = Some(opening);
            Ok::<_, Failure>(())
        }
    };
    let committed = held.transact(options(), greedy, |_| false, done).await;
    assert!(
        matches!(committed, Transacted::Committed(())),
        "{committed:?}"
    );
    let opening = kept.into_inner().unwrap().unwrap();
    assert!(opening.begin().await.is_err());
    assert_eq!(desk.store.begun.load(Ordering::SeqCst), 1);
    assert_eq!(desk.state().await, StateKind::Completed);
}

/// That what it did is in a transaction which was not committed is known of the one that took it.
#[tokio::test(start_paused = true)]
async fn a_lost_attempt_that_took_it_runs_again_and_another_is_held() {
    let desk = Desk::new(&[]);
    desk.lost(true, &offered()).await;
    match desk.begin(&offered()).await {
        Begin::Acquired(held) => {
            assert_eq!(held.number(), 2);
            // That nobody knows is said in time, and counts.
            let marked = held.mark_unknown().await;
            assert_eq!(marked.unwrap(), Settled::Applied);
        }
        other => panic!("{other:?}"),
    }
    let said = desk.begin(&offered()).await;
    assert!(matches!(said, Begin::Unknown), "{said:?}");

    let desk = Desk::new(&[]);
    desk.lost(false, &offered()).await;
    desk.store.claims.store(0, Ordering::SeqCst);
    let held = desk.begin(&offered()).await;
    assert!(matches!(held, Begin::Unknown), "{held:?}");
    // Of an attempt of which nothing more can become known the store is asked once.
    assert_eq!(desk.store.claims.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_policy_says_of_lost_attempts_holds_for_both() {
    for takes in [false, true] {
        let policy = Policy::default().with_lease(LEASE);
        let desk = Desk::new(&[]);
        let hold = offered().with_policy(policy.with_on_lost(OnLost::Hold));
        desk.lost(takes, &hold).await;
        // Nothing is marked that nobody looks at.
        let entry = desk.store.memory.get(identity().digest()).await.unwrap();
        assert!(!entry.unwrap().record.progress.is_in_transaction());
        let held = desk.begin(&hold).await;
        assert!(matches!(held, Begin::Unknown), "{held:?}");

        let desk = Desk::new(&[]);
        desk.lost(takes, &offered()).await;
        let held = desk.begin(&hold).await;
        assert!(matches!(held, Begin::Unknown), "{held:?}");

        let desk = Desk::new(&[]);
        let retry = offered().with_policy(policy.with_on_lost(OnLost::Retry));
        desk.lost(takes, &retry).await;
        let again = desk.begin(&retry).await;
        assert!(matches!(again, Begin::Acquired(_)), "{again:?}");
    }
    // Work that is offered none does not go by what another operation's did.
    let desk = Desk::new(&[]);
    desk.lost(true, &offered()).await;
    let plain = desk.begin(&asked()).await;
    assert!(matches!(plain, Begin::Unknown), "{plain:?}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_rolled_back_where_it_was_taken() {
    for (takes, state) in [(true, StateKind::Released), (false, StateKind::Unknown)] {
        let desk = Desk::new(&[]);
        let mut held = desk.held().await;
        let panics = move |_, opening: Offered| async move {
            let _taken = match takes {
                true => Some(opening.begin().await.unwrap()),
                false => None,
            };
            panic!("in the work");
            #[expect(unreachable_code, reason = "says its type")]
            Ok::<(), Failure>(())
        };
        let panicked = held.transact(options(), panics, |_| false, done).await;
        let Transacted::Panicked(panic) = panicked else {
            panic!("{panicked:?}")
        };
        let caller = tokio::spawn(held.panicked(panic));
        assert!(caller.await.unwrap_err().is_panic());
        assert_eq!(desk.state().await, state);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_database_refused_is_told_of_the_attempt() {
    const STORE_ERROR: (Signal, bool) = (Signal::StoreError, true);
    let transacted = async |desk: &Desk| {
        let mut held = desk.held().await;
        let transacted = held.transact(options(), takes, |_| false, done).await;
        held.let_lapse();
        (transacted, desk.told())
    };
    // A conflict is none of the store's errors.
    let desk = Desk::new(&[Fate::Conflicts]);
    let (committed, told) = transacted(&desk).await;
    assert!(
        matches!(committed, Transacted::Committed(())),
        "{committed:?}"
    );
    assert_eq!(told, [(Signal::Completed, true)]);

    let desk = Desk::new(&[Fate::Fails]);
    let (refused, told) = transacted(&desk).await;
    let conflict = matches!(refused, Transacted::NotCommitted { conflict, .. } if !conflict);
    assert!(conflict, "{refused:?}");
    assert_eq!(told, [STORE_ERROR]);

    // Not as done without its answer: that is for answers that are too large.
    let desk = Desk::new(&[]);
    desk.store.broken.store(true, Ordering::SeqCst);
    let (refused, told) = transacted(&desk).await;
    assert!(
        matches!(refused, Transacted::NotCommitted { .. }),
        "{refused:?}"
    );
    assert_eq!(told, [STORE_ERROR]);
    assert_eq!(desk.state().await, StateKind::InFlight);

    let desk = Desk::new(&[]);
    desk.store.shut.store(true, Ordering::SeqCst);
    let (failed, told) = transacted(&desk).await;
    assert!(matches!(failed, Transacted::Failed { .. }), "{failed:?}");
    assert_eq!(told, [STORE_ERROR]);

    let desk = Desk::new(&[Fate::Lost { committed: true }]);
    let (committed, told) = transacted(&desk).await;
    assert!(
        matches!(committed, Transacted::Committed(())),
        "{committed:?}"
    );
    assert_eq!(told, [STORE_ERROR, (Signal::Completed, true)]);

    let desk = Desk::new(&[]);
    let mut held = desk.held().await;
    let large = |_: &()| Some((Outcome::success(&[0; 2000]), None));
    let committed = held.transact(options(), takes, |_| false, large).await;
    assert!(
        matches!(committed, Transacted::Committed(())),
        "{committed:?}"
    );
    assert_eq!(desk.told(), [(Signal::Omitted, true)]);
}
