//! Claims of which nobody knows whether they arrived.

use super::*;

const LEASE: Duration = Duration::from_mins(1);

async fn attempt(store: &Flaky) -> (StateKind, u32) {
    let entry = store.memory.get(identity("k").digest()).await.unwrap();
    let record = entry.unwrap().record;
    (record.state.kind(), record.attempt)
}

/// The next claim is made, and all answers to it are lost.
async fn lost(store: &Shared, guard: &Guard<Shared>) {
    store.loses_next.store(3, SeqCst);
    guard.begin(&asked("k")).await.unwrap_err();
    // Looked for in the background, twice.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(guard.unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_sent_again_and_wins() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    store.loses_next.store(2, SeqCst);
    let done = guard.run(asked("k"), |attempt| ok(attempt.number.to_string()));
    assert_eq!(done.await.unwrap(), Done::Fresh("1".into()));
    assert_eq!(store.claims.load(SeqCst), 3);
    // No more often than that.
    store.claims.store(0, SeqCst);
    store.loses_next.store(3, SeqCst);
    let start = Instant::now();
    guard.begin(&asked("l")).await.unwrap_err();
    assert_eq!(store.claims.load(SeqCst), 3);
    assert!(start.elapsed() < Duration::from_secs(1));
    // A store that said no is not asked again.
    store.memory.close().await.unwrap();
    store.claims.store(0, SeqCst);
    guard.begin(&asked("m")).await.unwrap_err();
    assert_eq!(store.claims.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_that_may_have_taken_over_is_left_to_its_lease() {
    let hold = Policy::default().with_lease(LEASE);
    let retry = hold.with_on_lost(OnLost::Retry);

    // The first attempt takes nothing over.
    let store = Shared::default();
    lost(&store, &Guard::new(store.clone(), retry)).await;
    assert_eq!(attempt(&store).await, (StateKind::Released, 1));
    // Nor does any, where lost attempts are held.
    lost(&store, &Guard::new(store.clone(), hold)).await;
    assert_eq!(attempt(&store).await, (StateKind::Released, 2));

    // An attempt was lost before, and what it did nobody knows.
    let store = Shared::default();
    let guard = Guard::new(store.clone(), retry);
    held(&guard, &asked("k")).await.let_lapse();
    sleep(LEASE).await;
    lost(&store, &guard).await;
    assert_eq!(attempt(&store).await, (StateKind::InFlight, 2));
    sleep(LEASE).await;
    assert_eq!(held(&guard, &asked("k")).await.number(), 3);
}

/// Whoever gave up the drain goes on as before: the next outcome is not given up after a few seconds.
#[tokio::test(start_paused = true)]
async fn a_drain_that_is_given_up_is_over() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    let held = held(&guard, &asked("k")).await;
    let busy = guard.spawn(sleep(LEASE));
    timeout(Duration::from_secs(1), guard.drain())
        .await
        .unwrap_err();
    store.down.store(true, SeqCst);
    drop(held);
    sleep(Duration::from_secs(20)).await;
    store.down.store(false, SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(state(&store, "k").await, Some(StateKind::Released));
    busy.await.unwrap();
}

/// What could not be settled lapses: it is not kept alive by renewals that get through.
#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_renewed_no_more() {
    let store = Shared::default();
    let policy = Policy::default()
        .with_lease(LEASE)
        .with_on_lost(OnLost::Retry);
    let guard = Guard::new(store.clone(), policy);
    let given_up = held(&guard, &asked("k")).await;
    store.renews_only.store(true, SeqCst);
    drop(given_up);
    guard.drain().await;
    assert_eq!(guard.unsettled(), 0);
    sleep(3 * LEASE).await;
    assert_eq!(held(&guard, &asked("k")).await.number(), 2);
}
