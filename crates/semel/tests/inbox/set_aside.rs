//! Events that are not to hold up the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::guard::{Answered, Case, Finding, Guard, Reconciler, TransactOptions};
use semel::inbox::{Event, Inbox, InboxError, Reason, Receipt};
use semel::memory::MemoryStore;
use semel::store::{Entry, Fenced, ListQuery, OnLost, Store as _, StoreExt as _};
use semel::transaction::Lent;
use semel::{FinishedStep, OutcomeKind, Progress, State, StateKind};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{advance, sleep};

use super::receive::lost;
use super::scripted::{Failure, Scripted, Work};
use super::{LATER, Runs, Taken, event, policy, receive};

fn inbox() -> Inbox<MemoryStore> {
    Inbox::new(MemoryStore::default(), "billing")
}

#[tokio::test(start_paused = true)]
async fn the_last_failure_hands_it_over_and_it_is_never_handled_again() {
    let (taken, runs) = (Taken::default(), Runs::default());
    let inbox = taken.inbox(inbox());
    for _ in 1..5 {
        let failed = receive(&inbox, &event("a"), &runs, true).await;
        assert!(matches!(failed, Err(InboxError::Failed { .. })));
        advance(LATER).await;
    }
    assert!(taken.all().is_empty());
    for _ in 0..3 {
        let aside = receive(&inbox, &event("a"), &runs, true).await;
        assert_eq!(aside.unwrap(), Receipt::DeadLettered);
        advance(LATER).await;
    }
    assert_eq!(runs.count(), 5);
    let [letter] = &taken.all()[..] else {
        panic!("{:?}", taken.all());
    };
    assert_eq!((letter.reason, letter.attempts), (Reason::Failed, 5));
    assert_eq!(letter.event.body(), event("a").body());
    let texts = (1..=5).map(|number| format!("failure {number}"));
    assert_eq!(letter.errors, texts.collect::<Vec<_>>());

    // An operator sees it among the kept failures.
    let query = ListQuery::new(StateKind::Completed);
    let page = inbox.guard().store().list(&query).await.unwrap();
    match &page.entries[0].record.state {
        State::Completed(outcome) => {
            assert_eq!(outcome.kind(), OutcomeKind::Failure);
            assert_eq!(outcome.body().unwrap(), "failure 5");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_takes_it_it_is_not_set_aside() {
    let (taken, runs) = (Taken::failing(2), Runs::default());
    let inbox = taken.inbox(inbox()).with_max_attempts(1);
    // The first time after the work, then instead of it.
    for _ in 0..2 {
        match receive(&inbox, &event("a"), &runs, true).await {
            Err(InboxError::NotDeadLettered { attempt: 1, source }) => {
                assert_eq!(source.to_string(), "no room for it");
            }
            other => panic!("{other:?}"),
        }
        advance(LATER).await;
    }
    let aside = receive(&inbox, &event("a"), &runs, true).await;
    assert_eq!(aside.unwrap(), Receipt::DeadLettered);
    assert_eq!((runs.count(), taken.all().len()), (1, 3));
    assert_eq!(taken.all()[2].errors, ["failure 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_and_stops_nobody() {
    let taken = Taken::default();
    let inbox = taken.inbox(inbox()).with_max_attempts(2);
    let panics = |_| async { panic!("out of cheese") };
    let first = inbox.receive::<String, _, _>(&event("a"), panics).await;
    match first {
        Err(InboxError::Failed { failed, attempt: 1 }) => {
            assert_eq!(failed.ran(), semel::guard::Ran::Yes);
            assert_eq!(failed.to_string(), "the work panicked: out of cheese");
            assert!(failed.error().is_none());
        }
        other => panic!("{other:?}"),
    }
    let second = inbox.receive::<String, _, _>(&event("a"), panics).await;
    assert_eq!(second.unwrap(), Receipt::DeadLettered);
    assert_eq!(taken.all()[0].errors, ["out of cheese", "out of cheese"]);
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_panics_took_nothing() {
    async fn callback(_: semel::inbox::DeadLetter) -> Result<(), String> {
        panic!("no disk")
    }
    let inbox = inbox().with_max_attempts(1).with_dead_letters(callback);
    let runs = Runs::default();
    match receive(&inbox, &event("a"), &runs, true).await {
        Err(InboxError::NotDeadLettered { source, .. }) => {
            assert_eq!(source.to_string(), "no disk");
        }
        other => panic!("{other:?}"),
    }
    let other = Event::new("orders", "a", "another body");
    let answer = receive(&inbox, &other, &runs, true).await;
    assert!(matches!(answer, Err(InboxError::NotDeadLettered { .. })));
}

/// An inbox three of whose consumers, as many as may, died with event `a`.
async fn lost_thrice(taken: &Taken) -> Inbox<Arc<Scripted>> {
    let store = Arc::new(Scripted::new(&[]));
    let retries = policy().with_on_lost(OnLost::Retry);
    let inbox = Inbox::new(store, "billing").with_policy(retries);
    let inbox = taken.inbox(inbox).with_max_attempts(3);
    for _ in 0..3 {
        lost(&inbox, &event("a")).await;
    }
    inbox
}

#[tokio::test(start_paused = true)]
async fn attempts_that_end_without_a_word_count() {
    let (taken, runs) = (Taken::default(), Runs::default());
    let inbox = lost_thrice(&taken).await;
    let aside = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!((aside.unwrap(), runs.count()), (Receipt::DeadLettered, 0));
    let letter = &taken.all()[0];
    assert_eq!((letter.attempts, letter.errors.len()), (3, 0));
}

/// However long nobody takes it: an event that kills its consumers does not run in between.
#[tokio::test(start_paused = true)]
async fn what_was_handed_over_never_runs_again() {
    let (taken, runs) = (Taken::failing(300), Runs::default());
    let inbox = lost_thrice(&taken).await;
    for _ in 0..300 {
        let failed = receive(&inbox, &event("a"), &runs, false).await;
        assert!(matches!(failed, Err(InboxError::NotDeadLettered { .. })));
    }
    assert_eq!(runs.count(), 0);
    assert!(taken.all().iter().all(|letter| letter.attempts == 3));
}

#[tokio::test(start_paused = true)]
async fn an_event_with_the_id_of_another_is_handed_over() {
    let (taken, runs) = (Taken::failing(1), Runs::default());
    let inbox = taken.inbox(inbox());
    let first = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!(first.unwrap(), Receipt::Handled);
    let other = Event::new("orders", "a", "another body");
    let failed = receive(&inbox, &other, &runs, false).await;
    assert!(matches!(failed, Err(InboxError::NotDeadLettered { .. })));
    let aside = receive(&inbox, &other, &runs, false).await;
    assert_eq!(aside.unwrap(), Receipt::DeadLettered);
    assert_eq!(taken.all()[1].reason, Reason::Mismatch);
    // The first one's record is as it was.
    let again = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!((again.unwrap(), runs.count()), (Receipt::Duplicate, 1));
}

#[tokio::test(start_paused = true)]
async fn the_brokers_count_counts_where_it_is_trusted() {
    let (taken, runs) = (Taken::default(), Runs::default());
    let inbox = taken.inbox(inbox());
    let delivered = event("a").with_delivery(9);
    let failed = receive(&inbox, &delivered, &runs, true).await;
    assert!(matches!(failed, Err(InboxError::Failed { attempt: 1, .. })));
    let trusting = inbox.with_deliveries_counted(true);
    let aside = receive(&trusting, &delivered, &runs, true).await;
    assert_eq!(aside.unwrap(), Receipt::DeadLettered);
    assert_eq!(taken.all()[0].attempts, 9);
}

/// A callback that fails, or dies, does not have the work run again.
#[tokio::test(start_paused = true)]
async fn what_the_broker_counted_out_is_only_handed_over() {
    let (taken, runs) = (Taken::failing(2), Runs::default());
    let inbox = taken.inbox(inbox()).with_deliveries_counted(true);
    for delivery in 9..=10 {
        let delivered = event("a").with_delivery(delivery);
        let failed = receive(&inbox, &delivered, &runs, true).await;
        assert!(failed.is_err(), "{failed:?}");
    }
    let delivered = event("a").with_delivery(11);
    let aside = receive(&inbox, &delivered, &runs, true).await;
    assert_eq!((aside.unwrap(), runs.count()), (Receipt::DeadLettered, 1));
    // Sent back without an attempt as often, after a failure or not, it is handled.
    let failed = receive(&inbox, &event("b").with_delivery(1), &runs, true).await;
    assert!(matches!(failed, Err(InboxError::Failed { attempt: 1, .. })));
    for id in ["b", "c"] {
        let delivered = event(id).with_delivery(9);
        let handled = receive(&inbox, &delivered, &runs, false).await;
        assert_eq!(handled.unwrap(), Receipt::Handled);
    }
}

/// What would not count leaves a mark each time, for which there is no room at last.
#[tokio::test(start_paused = true)]
async fn no_outage_is_long_enough_to_count_as_failures() {
    let (taken, store) = (Taken::default(), Arc::new(Scripted::new(&[])));
    let inbox = taken.inbox(Inbox::new(store.clone(), "billing"));
    let there = store.clone();
    // As after thousands of them.
    let full = |_| async move {
        let running = there.list(&ListQuery::new(StateKind::InFlight)).await;
        let Entry { label, record } = &running.unwrap().entries[0];
        let mut kept = 0;
        for _ in 0..210 {
            let mark = vec![b' '; Progress::MAX_STORED / 210 - 14];
            let mark = FinishedStep::new("released", &mark).unwrap();
            let done = there.keep_step(&label.digest, &record.token, &mark, kept);
            assert_eq!(done.await.unwrap(), Fenced::Applied);
            kept += mark.as_bytes().len();
        }
        Err::<(), _>("declined")
    };
    inbox.receive(&event("a"), full).await.unwrap_err();
    store.shut.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        let options = TransactOptions::default().with_retries(0);
        let work = |_, _: Lent<Work>| async { Ok::<_, Failure>(()) };
        let answer = inbox.transact(&event("a"), options, work).await;
        assert!(matches!(answer, Err(InboxError::Store { .. })));
    }
    assert_eq!(taken.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn long_texts_of_many_attempts_have_room() {
    let taken = Taken::default();
    let inbox = taken.inbox(inbox()).with_max_attempts(200);
    for number in 1..=200 {
        let work = |_| async { Err::<(), _>("é".repeat(100_000)) };
        let answer = inbox.receive(&event("a"), work).await;
        assert_eq!(answer.is_ok(), number == 200, "{number}");
    }
    let letter = &taken.all()[0];
    assert_eq!((letter.attempts, letter.errors.len()), (200, 200));
    assert!(letter.errors.iter().all(|text| text.starts_with('é')));
}

#[tokio::test(start_paused = true)]
async fn a_text_too_large_for_the_store_is_set_aside_all_the_same() {
    let taken = Taken::default();
    let inbox = Inbox::new(Arc::new(Scripted::new(&[])), "billing");
    let inbox = taken.inbox(inbox).with_max_attempts(1);
    for _ in 0..2 {
        let work = |_| async { Err::<(), _>("x".repeat(5000)) };
        let answer = inbox.receive(&event("a"), work).await;
        assert_eq!(answer.unwrap(), Receipt::DeadLettered);
    }
    assert_eq!(taken.all().len(), 1);
}

/// An inbox whose consumer died, past its lease, while the callback had event `a`: nothing but the callback can
/// have run. At its next calls the callback takes so long.
async fn died_in_the_callback(takes: Duration) -> (Inbox<Arc<Scripted>>, Taken, Runs) {
    let (taken, runs) = (Taken::default(), Runs::default());
    let (called, letters) = (Arc::new(Notify::new()), taken.clone());
    let calls = called.clone();
    let dies = move |letter| {
        let first = letters.all().is_empty();
        let taken = letters.take(letter);
        calls.notify_one();
        async move {
            match first {
                true => std::future::pending().await,
                false => sleep(takes).await,
            }
            taken
        }
    };
    let store = Arc::new(Scripted::new(&[]));
    store.deaf.store(true, Ordering::SeqCst);
    // Each in a process of its own.
    let [inbox, there] = [store.clone(), store].map(|store| {
        let inbox = Inbox::new(store, "billing").with_max_attempts(1);
        inbox.with_dead_letters(dies.clone())
    });
    let runs_there = runs.clone();
    tokio::spawn(async move { receive(&there, &event("a"), &runs_there, true).await });
    called.notified().await;
    advance(Duration::from_secs(31)).await;
    (inbox, taken, runs)
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_the_callback_hands_it_over_again() {
    let (inbox, taken, runs) = died_in_the_callback(Duration::ZERO).await;
    let aside = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!((aside.unwrap(), runs.count()), (Receipt::DeadLettered, 1));
    for letter in taken.all() {
        assert_eq!((letter.reason, letter.attempts), (Reason::Failed, 1));
        assert_eq!(letter.errors, ["failure 1"]);
    }
    assert_eq!(taken.all().len(), 2);
    let after = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!((after.unwrap(), runs.count()), (Receipt::DeadLettered, 1));
}

/// A failure is not given back without being counted, however the store answers.
#[tokio::test(start_paused = true)]
async fn a_failure_is_kept_though_the_store_cannot_be_read() {
    let runs = Runs::default();
    let retries = policy().with_on_lost(OnLost::Retry);
    let inbox = Inbox::new(Arc::new(Scripted::new(&[])), "billing").with_policy(retries);
    lost(&inbox, &event("a")).await;
    let store = inbox.guard().store().clone();
    store.blind.store(true, Ordering::SeqCst);
    let failed = receive(&inbox, &event("a"), &runs, true).await;
    assert!(matches!(failed, Err(InboxError::Failed { .. })));
    store.blind.store(false, Ordering::SeqCst);
    sleep(LATER).await;
    match receive(&inbox, &event("a"), &runs, true).await {
        Err(InboxError::Failed { attempt: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Nobody knows whether it was handled: the application has it, and the record stays as it is.
#[tokio::test(start_paused = true)]
async fn an_event_of_unknown_outcome_is_handed_over_and_stays_unknown() {
    let (taken, runs) = (Taken::failing(1), Runs::default());
    let inbox = taken.inbox(Inbox::new(Arc::new(Scripted::new(&[])), "billing"));
    lost(&inbox, &event("a")).await;
    let failed = receive(&inbox, &event("a"), &runs, false).await;
    assert!(matches!(failed, Err(InboxError::NotDeadLettered { .. })));
    for _ in 0..2 {
        let aside = receive(&inbox, &event("a"), &runs, false).await;
        assert_eq!((aside.unwrap(), runs.count()), (Receipt::DeadLettered, 0));
    }
    assert!(taken.all().iter().all(|l| l.reason == Reason::Unknown));
    let query = ListQuery::new(StateKind::Unknown);
    let page = inbox.guard().store().list(&query).await.unwrap();
    assert_eq!(page.entries.len(), 1);
}

/// Somebody will say what became of it: handed over, it would never run where the answer is that it did not.
#[tokio::test(start_paused = true)]
async fn an_event_that_a_reconciler_will_know_is_kept_back() {
    struct Books(Arc<AtomicBool>);
    impl Reconciler for Books {
        fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
            let is_open = self.0.load(Ordering::SeqCst);
            Box::pin(async move {
                match is_open {
                    true => Ok(Finding::DidNotHappen.into()),
                    false => Err("the books are closed".into()),
                }
            })
        }
    }
    let (taken, runs, open) = (Taken::default(), Runs::default(), Arc::default());
    let guard = Guard::builder(Arc::new(Scripted::new(&[])));
    let guard = guard.reconciler(Arc::new(Books(Arc::clone(&open)))).build();
    let reconciles = policy().with_on_lost(OnLost::Reconcile);
    // Nobody will know where there is no reconciler, or the policy has it not asked.
    let without = Inbox::new(Arc::new(Scripted::new(&[])), "billing").with_policy(reconciles);
    let told_not_to = Inbox::new(guard.clone(), "billing");
    for (inbox, event) in [(without, event("a")), (told_not_to, event("b"))] {
        lost(&inbox, &event).await;
        let answer = receive(&inbox, &event, &runs, false).await;
        assert!(matches!(answer, Err(InboxError::Unknown)), "{answer:?}");
    }
    let inbox = taken.inbox(Inbox::new(guard, "billing").with_policy(reconciles));
    lost(&inbox, &event("a")).await;
    for _ in 0..3 {
        let answer = receive(&inbox, &event("a"), &runs, false).await;
        assert!(matches!(answer, Err(InboxError::Unresolved)), "{answer:?}");
    }
    open.store(true, Ordering::SeqCst);
    let answer = receive(&inbox, &event("a"), &runs, false).await;
    assert_eq!((answer.unwrap(), runs.count()), (Receipt::Handled, 1));
    assert!(taken.all().is_empty());
}

/// Two deliveries come after a crash in the callback, one some steps behind the other: one of them hands the
/// event over again.
#[tokio::test(start_paused = true)]
async fn of_two_deliveries_after_a_crash_in_the_callback_one_hands_it_over() {
    for behind in 0..6 {
        let (inbox, taken, runs) = died_in_the_callback(Duration::from_secs(1)).await;
        let event = event("a");
        let later = async {
            for _ in 0..behind {
                yield_now().await;
            }
            receive(&inbox, &event, &runs, false).await
        };
        let (other, one) = tokio::join!(later, receive(&inbox, &event, &runs, false));
        assert_eq!(taken.all().len(), 2, "{behind}: {one:?}, {other:?}");
        assert!(taken.all().iter().all(|l| l.reason == Reason::Failed));
        assert_eq!((one.unwrap(), runs.count()), (Receipt::DeadLettered, 1));
        assert!(
            matches!(other, Err(InboxError::InFlight { .. })),
            "{other:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_without_an_id_is_handed_over() {
    let (taken, runs) = (Taken::default(), Runs::default());
    let inbox = taken.inbox(inbox());
    let aside = receive(&inbox, &event(""), &runs, false).await;
    assert_eq!((aside.unwrap(), runs.count()), (Receipt::DeadLettered, 0));
    assert_eq!(taken.all()[0].reason, Reason::NoId);
}
