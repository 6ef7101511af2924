//! Panics of the work and of what is plugged in.

use std::future::Ready;

use semel::guard::OnPanic;

use super::*;

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
        assert_ne!(seen.signal, Signal::New, "an observer that panics");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_claiming_reaches_the_caller_and_leaves_no_claim() {
    let store = Shared::default();
    let guard = Guard::builder(store.clone())
        .observer(Arc::new(Panics))
        .build();
    let call = tokio::spawn(async move { guard.run(asked("k"), |_| ok(())).await });
    let ended = timeout(Duration::from_secs(1), call)
        .await
        .expect("it hangs");
    assert!(ended.unwrap_err().is_panic());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&store, "k").await, Some(StateKind::Released));
}
