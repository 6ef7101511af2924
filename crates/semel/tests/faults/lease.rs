//! The lease by the holder's own clock.

use semel::guard::{Attempt, Settled, StepError};

use semel::store::{Fenced, StoreExt as _};

use super::*;

const LEASE: Duration = Duration::from_millis(300);

/// In real time: a thread is blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_its_thread_for_three_leases_is_not_doubled() {
    let policy = Policy::default()
        .with_lease(LEASE)
        .with_on_lost(OnLost::Retry);
    let guard = Guard::new(Shared::default(), policy);
    let runs = Arc::new(AtomicU32::new(0));
    let call = {
        let (guard, runs) = (guard.clone(), runs.clone());
        tokio::spawn(async move {
            let work = move |attempt: Attempt<Shared>| async move {
                runs.fetch_add(1, SeqCst);
                std::thread::sleep(3 * LEASE);
                ok((attempt.number, attempt.still_held()))
                    .await
                    .map(|held| format!("{held:?}"))
            };
            guard.run(asked("k"), work).await
        })
    };
    while runs.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mut refused = 0;
    while !call.is_finished() {
        if guard
            .run(asked("k"), |_| ok(String::from("again")))
            .await
            .is_err()
        {
            refused += 1;
        }
        sleep(LEASE / 10).await;
    }
    assert_eq!(
        call.await.unwrap().unwrap(),
        Done::Fresh("(1, true)".into())
    );
    assert!(refused > 5, "{refused} duplicates were refused meanwhile");
}

/// Where nobody else is awake: the thread that the work blocks is the one that waited for timers. In real time.
#[test]
fn work_that_blocks_after_others_ended_keeps_its_lease() {
    let policy = Policy::default().with_lease(LEASE);
    let kept = (0..8).map(|round| {
        std::thread::spawn(move || {
            let guard = Guard::new(Shared::default(), policy);
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_time().build().unwrap();
            let (told, is_held) = std::sync::mpsc::channel();
            // By a task, which a worker polls.
            runtime.spawn(async move {
                for other in 0..10 {
                    let key = format!("other {other}");
                    guard.run(asked(&key), |_| ok(String::new())).await.unwrap();
                    sleep(Duration::from_millis(3)).await;
                }
                sleep(Duration::from_millis(10 + round)).await;
                let mut held = held(&guard, &asked("k")).await;
                let attempt = held.info();
                std::thread::sleep(3 * LEASE);
                told.send(attempt.still_held()).unwrap();
                assert_eq!(held.release().await.unwrap(), Settled::Applied);
            });
            is_held.recv().unwrap()
        })
    });
    let kept: Vec<_> = kept.collect();
    for kept in kept {
        assert!(kept.join().unwrap());
    }
}

/// The first of two in one task begins a task for both, which the second does not wait for. In real time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_blocks_beside_another_attempt_of_its_task_keeps_its_lease() {
    let guard = Guard::new(Shared::default(), Policy::default().with_lease(LEASE));
    let both = tokio::spawn(async move {
        let one = async { held(&guard, &asked("one")).await.release().await };
        let two = async {
            let mut held = held(&guard, &asked("two")).await;
            let attempt = held.info();
            std::thread::sleep(3 * LEASE);
            let is_held = attempt.still_held();
            assert_eq!(held.release().await.unwrap(), Settled::Applied);
            is_held
        };
        tokio::join!(one, two)
    });
    let (one, is_held) = both.await.unwrap();
    assert_eq!((one.unwrap(), is_held), (Settled::Applied, true));
}

#[tokio::test(start_paused = true)]
async fn work_learns_that_its_lease_is_lost() {
    let store = Shared::default();
    let policy = Policy::default().with_lease(LEASE);
    let guard = Guard::new(store.clone(), policy);
    let mut held = held(&guard, &asked("k")).await;
    let attempt = held.info();
    sleep(4 * LEASE).await;
    assert!(attempt.still_held());
    // In time where the store is silent, whether or not anybody took over.
    store.down.store(true, SeqCst);
    let start = Instant::now();
    attempt.lost().await;
    assert!(!attempt.still_held());
    assert!(start.elapsed() <= LEASE, "{:?}", start.elapsed());
    // And held again where a renewal gets through: nobody took over.
    store.down.store(false, SeqCst);
    sleep(LEASE).await;
    assert!(attempt.still_held());
    // At once where the store says so.
    let (memory, token) = (&store.memory, token(&store).await);
    let marked = memory.mark_unknown(identity("k").digest(), &token).await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    let start = Instant::now();
    attempt.lost().await;
    assert!(start.elapsed() <= LEASE / 3, "{:?}", start.elapsed());
}

async fn token(store: &Shared) -> semel::store::Token {
    let entry = store.memory.get(identity("k").digest()).await.unwrap();
    entry.unwrap().record.token
}

#[tokio::test(start_paused = true)]
async fn a_hung_renewal_does_not_cost_the_lease() {
    let store = Shared::default();
    let guard = Guard::new(store.clone(), Policy::default().with_lease(3 * LEASE));
    let mut held = held(&guard, &asked("k")).await;
    let attempt = held.info();
    store.hung_renewals.store(true, SeqCst);
    // The first renewal hangs; it is given up after a third of the lease, and soon sent again.
    let heals = async {
        sleep(LEASE + LEASE / 2).await;
        store.hung_renewals.store(false, SeqCst);
        sleep(20 * LEASE).await;
    };
    tokio::select! {
        () = attempt.lost() => panic!("the lease was lost"),
        () = heals => {}
    }
}

#[tokio::test(start_paused = true)]
async fn no_step_begins_on_a_lease_that_is_over_without_renewing_it() {
    let store = Shared::default();
    let policy = Policy::default().with_lease(LEASE);
    let guard = Guard::new(store.clone(), policy);
    let mut standing = held(&guard, &asked("k").in_steps()).await;
    let mut attempt = standing.attempt();
    let first = attempt.step("one", |_| ok(())).await;
    first.unwrap();
    // The process stands still, and nobody takes over: it goes on.
    standing.stop_renewing();
    sleep(2 * LEASE).await;
    assert!(!attempt.still_held());
    attempt.step("two", |_| ok(())).await.unwrap();
    // Stands still again, and another attempt takes over: no effect of the next step.
    sleep(2 * LEASE).await;
    let other = held(&guard, &asked("k").in_steps()).await;
    let ran = AtomicU32::new(0);
    let step = attempt.step("three", async |_| {
        ran.fetch_add(1, SeqCst);
        ok(()).await
    });
    let refused = step.await;
    assert!(
        matches!(refused, Err(StepError::Superseded { ran: Ran::No })),
        "{refused:?}"
    );
    assert_eq!(ran.load(SeqCst), 0);
    // Where the store cannot be asked there is no step either.
    other.stop_renewing();
    let mut other = other;
    let mut attempt = other.attempt();
    sleep(2 * LEASE).await;
    store.down.store(true, SeqCst);
    let unasked = attempt.step("one", |_| ok(())).await;
    assert!(
        matches!(unasked, Err(StepError::Store { ran: Ran::No, .. })),
        "{unasked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn leases_of_different_lengths_are_renewed() {
    let guard = Guard::new(Shared::default(), Policy::default());
    let long = held(&guard, &asked("long")).await;
    let brief = asked("brief").with_policy(Policy::default().with_lease(LEASE));
    let mut brief = held(&guard, &brief).await;
    let attempt = brief.info();
    for _ in 0..100 {
        sleep(LEASE).await;
        assert!(attempt.still_held());
    }
    drop((long, brief));
    guard.drain().await;
}
