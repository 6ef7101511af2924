//! Events whose effects are elsewhere.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel::guard::{OnError, OnPanic, Ran};
use semel::inbox::{Event, Inbox, InboxError, Receipt};
use semel::memory::MemoryStore;
use semel::store::OnLost;
use semel::{Fingerprint, Store as _};
use tokio::sync::Notify;
use tokio::time::{advance, sleep};

use super::scripted::Scripted;
use super::{Answer, LATER, Runs, event, policy, receive};

fn inbox() -> Inbox<MemoryStore> {
    Inbox::new(MemoryStore::default(), "billing")
}

#[tokio::test(flavor = "multi_thread")]
async fn of_deliveries_at_the_same_time_one_runs() {
    let waits = policy().with_wait(Duration::from_secs(30));
    let inbox = inbox().with_policy(waits);
    let (runs, mut deliveries) = (Runs::default(), Vec::new());
    for number in 0..32 {
        for _ in 0..8 {
            let (inbox, runs) = (inbox.clone(), runs.clone());
            let event = event(&format!("event-{number}"));
            deliveries.push(tokio::spawn(async move {
                receive(&inbox, &event, &runs, false).await.unwrap()
            }));
        }
    }
    let mut handled = 0;
    for delivery in deliveries {
        handled += u32::from(delivery.await.unwrap() == Receipt::Handled);
    }
    assert_eq!((handled, runs.count()), (32, 32));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_during_another_is_not_acknowledged() {
    let (inbox, go) = (inbox(), Arc::new(Notify::new()));
    let (there, wait) = (inbox.clone(), go.clone());
    let first = tokio::spawn(async move {
        let work = move |_| async move {
            wait.notified().await;
            Ok::<_, String>(())
        };
        there.receive(&event("a"), work).await
    });
    // Longer than the lease: it is renewed.
    sleep(Duration::from_mins(5)).await;
    match receive(&inbox, &event("a"), &Runs::default(), false).await {
        Err(InboxError::InFlight { retry_after }) => {
            assert!(retry_after <= Duration::from_secs(1), "{retry_after:?}");
        }
        other => panic!("{other:?}"),
    }
    go.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Receipt::Handled);
    let again = receive(&inbox, &event("a"), &Runs::default(), false).await;
    assert_eq!(again.unwrap(), Receipt::Duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_goes_away_does_not_stop_the_work() {
    let (inbox, runs) = (inbox(), Runs::default());
    let counted = runs.clone();
    let work = move |_| async move {
        sleep(Duration::from_secs(5)).await;
        counted.ran();
        Ok::<_, String>(())
    };
    let soon = Duration::from_secs(1);
    let gone = tokio::time::timeout(soon, inbox.receive(&event("a"), work)).await;
    gone.unwrap_err();
    inbox.guard().drain().await;
    assert_eq!(runs.count(), 1);
}

/// A consumer whose process is as good as gone: its lease lapses.
pub(crate) async fn lost(inbox: &Inbox<Arc<Scripted>>, event: &Event) {
    let store = inbox.guard().store();
    store.deaf.store(true, Ordering::SeqCst);
    // In a process of its own.
    let retries = policy().with_on_lost(OnLost::Retry);
    let there = Inbox::new(store.clone(), "billing").with_policy(retries);
    let event = event.clone();
    let started = Arc::new(Notify::new());
    let starts = started.clone();
    tokio::spawn(async move {
        let work = move |_| async move {
            starts.notify_one();
            std::future::pending::<Result<(), String>>().await
        };
        there.receive(&event, work).await
    });
    started.notified().await;
    advance(Duration::from_secs(31)).await;
}

#[tokio::test(start_paused = true)]
async fn r7_an_event_whose_consumer_died_is_unknown_unless_it_may_run_again() {
    let store = Arc::new(Scripted::new(&[]));
    let inbox = Inbox::new(store, "billing");
    let runs = Runs::default();
    lost(&inbox, &event("a")).await;
    let answer = receive(&inbox, &event("a"), &runs, false).await;
    assert!(matches!(answer, Err(InboxError::Unknown)), "{answer:?}");
    assert_eq!(runs.count(), 0);

    let retries = inbox.with_policy(policy().with_on_lost(OnLost::Retry));
    lost(&retries, &event("b")).await;
    let answer = receive(&retries, &event("b"), &runs, false).await;
    assert_eq!(answer.unwrap(), Receipt::Handled);
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn consumers_and_sources_are_kept_apart() {
    let store = Arc::new(MemoryStore::default());
    let runs = Runs::default();
    for consumer in ["billing", "shipping"] {
        let inbox = Inbox::new(store.clone(), consumer);
        for source in ["orders", "returns"] {
            for receipt in [Receipt::Handled, Receipt::Duplicate] {
                let event = Event::new(source, "1", "body");
                let answer = receive(&inbox, &event, &runs, false).await;
                assert_eq!(answer.unwrap(), receipt, "{consumer} {source}");
            }
        }
    }
    assert_eq!(runs.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_remembered_for_30_days() {
    let (inbox, runs) = (inbox(), Runs::default());
    let first = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!(first.unwrap(), Receipt::Handled);
    advance(Duration::from_hours(24 * 30) - Duration::from_secs(1)).await;
    let late = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!(late.unwrap(), Receipt::Duplicate);
    advance(Duration::from_secs(2)).await;
    let after = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!(after.unwrap(), Receipt::Handled);
}

#[tokio::test(start_paused = true)]
async fn ids_of_any_length_and_none_that_is_empty() {
    let (inbox, runs) = (inbox(), Runs::default());
    for id in ["x".repeat(5000), "x".repeat(5001), "line\nbreak".into()] {
        let first = receive(&inbox, &event(&id), &runs, false).await;
        assert_eq!(first.unwrap(), Receipt::Handled);
        let second = receive(&inbox, &event(&id), &runs, false).await;
        assert_eq!(second.unwrap(), Receipt::Duplicate);
    }
    let none = receive(&inbox, &event(""), &runs, false).await;
    assert!(matches!(none, Err(InboxError::NoId)));
    assert_eq!(runs.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn r3_another_content_under_the_same_id_is_told_and_changes_nothing() {
    let (inbox, runs) = (inbox(), Runs::default());
    let ask = async |body: &str| -> Answer {
        let event = Event::new("orders", "1", body.to_owned());
        receive(&inbox, &event, &runs, false).await
    };
    assert_eq!(ask("one").await.unwrap(), Receipt::Handled);
    let other = ask("two").await;
    assert!(matches!(other, Err(InboxError::Mismatch)), "{other:?}");
    assert_eq!(ask("one").await.unwrap(), Receipt::Duplicate);

    // What makes two of them the same may be said.
    let same = Fingerprint::of(b"order 4711");
    for (body, receipt) in [("12:00", Receipt::Handled), ("12:01", Receipt::Duplicate)] {
        let event = Event::new("orders", "2", body).with_fingerprint(same);
        let answer = receive(&inbox, &event, &runs, false).await;
        assert_eq!(answer.unwrap(), receipt);
    }
    assert_eq!(runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_it_back_and_is_counted_for_days() {
    let (inbox, runs) = (inbox(), Runs::default());
    for (attempt, wait) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60)] {
        let failed = receive(&inbox, &event("a"), &runs, true).await.unwrap_err();
        assert_eq!(failed.retry_after(), Duration::from_secs(wait));
        match failed {
            InboxError::Failed {
                failed,
                attempt: told,
            } => {
                assert_eq!((failed.ran(), told), (Ran::Yes, attempt));
                assert_eq!(failed.into_error(), Some(format!("failure {attempt}")));
            }
            other => panic!("{other:?}"),
        }
        advance(LATER).await;
    }
    // Nobody takes it, so it is never set aside.
    let handled = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!(handled.unwrap(), Receipt::Handled);
}

#[tokio::test(start_paused = true)]
async fn a_failure_gives_it_back_whatever_the_policy_says() {
    let keeps = policy().with_on_error(OnError::Keep);
    let careful = policy().with_on_error(OnError::Unknown);
    for policy in [keeps, careful.with_on_panic(OnPanic::Unknown)] {
        let (inbox, runs) = (inbox().with_policy(policy), Runs::default());
        let failed = receive(&inbox, &event("a"), &runs, true).await;
        assert!(matches!(failed, Err(InboxError::Failed { .. })));
        let panics = |_| async { panic!("on purpose") };
        let panicked = inbox.receive::<String, _, _>(&event("a"), panics).await;
        assert!(matches!(panicked, Err(InboxError::Failed { .. })));
        let handled = receive(&inbox, &event("a"), &runs, false).await;
        assert_eq!(handled.unwrap(), Receipt::Handled);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_without_the_store() {
    let (inbox, runs) = (inbox(), Runs::default());
    inbox.guard().store().close().await.unwrap();
    match receive(&inbox, &event("a"), &runs, false).await {
        Err(InboxError::Store { ran: Ran::No, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(runs.count(), 0);
}
