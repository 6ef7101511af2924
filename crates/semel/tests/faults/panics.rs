//! Panics of the work and of what is plugged in.

use std::future::Ready;

use semel::guard::OnPanic;

use super::*;

const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_works_future_is_one_of_the_work() {
    for (on_panic, expected) in [
        (OnPanic::Release, StateKind::Released),
        (OnPanic::Unknown, StateKind::Unknown),
    ] {
        let store = Shared::default();
        let guard = Guard::new(store.clone(), Policy::default().with_on_panic(on_panic));
        let work = |_| -> Ready<Result<(), Infallible>> { panic!("before its future") };
        let call = tokio::spawn(async move { guard.run(asked("k"), work).await });
        assert!(call.await.unwrap_err().is_panic());
        assert_eq!(state(&store, "k").await, Some(expected));
    }
}

struct Panics;

impl Observer for Panics {
    fn on_event(&self, seen: &semel::guard::Seen<'_>) {
        panic!("an observer that panics at {:?}", seen.signal);
    }
}

/// Neither the attempt nor its renewals end with it.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_observer_is_none_of_the_attempts() {
    let store = Shared::default();
    let guard = Guard::builder(store.clone())
        .policy(Policy::default().with_lease(LEASE))
        .observer(Arc::new(Panics))
        .build();
    let ran = guard.run(asked("k"), |attempt| async move {
        sleep(10 * LEASE).await;
        assert!(attempt.still_held());
        Ok::<_, Infallible>(())
    });
    assert_eq!(ran.await.unwrap(), Done::Fresh(()));
    assert_eq!(state(&store, "k").await, Some(StateKind::Completed));
}
