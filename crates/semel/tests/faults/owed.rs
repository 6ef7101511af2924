//! What this process knows of an identity, and the store does not yet, is told before it is claimed again.

use semel::inbox::{Event, Inbox, InboxError, Receipt};

use super::*;

/// The store is away for longer than a lease, from when the work has ended, or from when a claim's answer was lost:
/// what is known is told before the event is claimed again, and nothing is asked for twice meanwhile.
#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_a_lease_makes_nothing_unknown() {
    const EVENTS: u32 = 20;
    for (on_lost, answers_claims) in [
        (OnLost::Hold, true),
        (OnLost::Retry, true),
        (OnLost::Hold, false),
    ] {
        let (store, runs) = (Shared::default(), Arc::new(AtomicU32::new(0)));
        let inbox = Inbox::new(store.clone(), "billing")
            .with_policy(Policy::event().with_on_lost(on_lost))
            .with_dead_letters(|letter| async move { Err(format!("{:?}", letter.reason)) });
        store.loses_claims.store(!answers_claims, SeqCst);
        let consumers = (0..EVENTS).map(|number| {
            let (inbox, store, runs) = (inbox.clone(), store.clone(), runs.clone());
            tokio::spawn(async move {
                let event = Event::new("orders", format!("event-{number}"), "body");
                // Not all at one moment.
                sleep(number * Duration::from_millis(37)).await;
                loop {
                    let (store, runs) = (store.clone(), runs.clone());
                    let work = move |_| async move {
                        runs.fetch_add(1, SeqCst);
                        // All have begun.
                        sleep(Duration::from_secs(3)).await;
                        store.down.store(answers_claims, SeqCst);
                        ok(()).await
                    };
                    match inbox.receive(&event, work).await {
                        Ok(receipt) => break receipt,
                        Err(InboxError::NotDeadLettered { source, .. }) => panic!("{source}"),
                        Err(error) => sleep(error.retry_after()).await,
                    }
                }
            })
        });
        let consumers: Vec<_> = consumers.collect();
        sleep(Duration::from_secs(2)).await;
        store.down.store(!answers_claims, SeqCst);
        sleep(Duration::from_secs(43)).await;
        assert_eq!(inbox.guard().unsettled(), EVENTS as usize);
        store.loses_claims.store(false, SeqCst);
        store.down.store(false, SeqCst);
        for consumer in consumers {
            let receipt = consumer.await.unwrap();
            assert!(matches!(receipt, Receipt::Handled | Receipt::Duplicate));
        }
        assert_eq!(runs.load(SeqCst), EVENTS, "{on_lost:?}");
    }
}

/// Fail open or not: what this process has run does not run beside its outcome.
#[tokio::test(start_paused = true)]
async fn what_is_known_to_have_run_does_not_run_unprotected() {
    let store = Shared::default();
    let policy = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let guard = Guard::new(store.clone(), policy);
    let away = store.clone();
    let first = guard.run(asked("k"), move |_| async move {
        away.down.store(true, SeqCst);
        ok("one".to_owned()).await
    });
    first.await.unwrap_err();
    let again = guard.run(asked("k"), |_| ok("two".to_owned())).await;
    assert!(
        matches!(again, Err(RunError::Store { ran: Ran::No, .. })),
        "{again:?}"
    );
    store.down.store(false, SeqCst);
    let replayed = guard
        .run(asked("k"), |_| ok("three".to_owned()))
        .await
        .unwrap();
    assert_eq!(replayed, Done::Replayed("one".to_owned()));

    // What did nothing may run.
    let held = held(&guard, &asked("other")).await;
    store.down.store(true, SeqCst);
    held.release().await.unwrap_err();
    // Also while its renewals fail.
    sleep(Duration::from_secs(40)).await;
    let begun = guard.begin(&asked("other")).await.unwrap();
    assert!(matches!(begun, Begin::Unprotected(_)), "{begun:?}");
}

/// A claim that nobody waits for may be given back again and again: that is one pursuit, and one mark.
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_given_back_yet_is_one_pursuit() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    store.loses_claims.store(true, SeqCst);
    guard.begin(&asked("k")).await.unwrap_err();
    store.loses_claims.store(false, SeqCst);
    // It is read, and nothing is changed.
    store.renews_only.store(true, SeqCst);
    for _ in 0..20 {
        sleep(Duration::from_secs(1)).await;
        guard.begin(&asked("k")).await.unwrap_err();
        assert_eq!(guard.unsettled(), 1);
    }
    store.renews_only.store(false, SeqCst);
    let done = guard.run(asked("k"), |_| ok("one".to_owned())).await;
    assert_eq!(done.unwrap(), Done::Fresh("one".to_owned()));
}

/// Nobody waits for another's call of a store that hangs, and no drain for all of theirs.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_takes_each_caller_the_same_time() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    let held = held(&guard, &asked("k")).await;
    *store.slow_changes.lock().unwrap() = Duration::from_secs(5);
    store.renews_only.store(true, SeqCst);
    store.hung_renewals.store(true, SeqCst);
    held.complete(&semel::Outcome::void()).await.unwrap_err();
    // Nothing renews its lease.
    sleep(Duration::from_secs(20)).await;
    let begun = Instant::now();
    let claims = (0..20).map(|_| {
        let guard = guard.clone();
        tokio::spawn(async move { guard.begin(&asked("k")).await.map(drop) })
    });
    for claim in claims.collect::<Vec<_>>() {
        claim.await.unwrap().unwrap_err();
    }
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    guard.drain().await;
    assert!(
        begun.elapsed() < Duration::from_secs(16),
        "{:?}",
        begun.elapsed()
    );
}

/// A telling that takes longer than what is left of the lease is known to a claim meanwhile.
#[tokio::test(start_paused = true)]
async fn a_claim_during_a_slow_telling_finds_nothing_lost() {
    let store = Shared::default();
    let guard = Guard::new(
        store.clone(),
        Policy::default().with_lease(Duration::from_secs(6)),
    );
    let held = held(&guard, &asked("k")).await;
    store.hung_renewals.store(true, SeqCst);
    sleep(Duration::from_secs(4)).await;
    *store.slow_changes.lock().unwrap() = Duration::from_secs(5);
    let telling = tokio::spawn(async move { held.complete(&semel::Outcome::void()).await });
    sleep(Duration::from_secs(4)).await;
    *store.slow_changes.lock().unwrap() = Duration::ZERO;
    let found = guard.begin(&asked("k")).await.unwrap();
    assert!(matches!(found, Begin::Completed(_)), "{found:?}");
    // Its own call fails at last, and that matters no more.
    store.close().await.unwrap();
    assert_eq!(telling.await.unwrap().unwrap(), Settled::Applied);
}

/// While its lease is renewed an attempt is told of by itself, however many ask about it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_slow_telling_is_not_repeated_by_each_duplicate() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    let held = held(&guard, &asked("k")).await;
    *store.slow_changes.lock().unwrap() = Duration::from_secs(1);
    let telling = tokio::spawn(async move { held.complete(&semel::Outcome::void()).await });
    sleep(Duration::from_millis(100)).await;
    let asked_meanwhile = (0..100).map(|_| {
        let guard = guard.clone();
        tokio::spawn(async move { guard.begin(&asked("k")).await.unwrap() })
    });
    for found in asked_meanwhile.collect::<Vec<_>>() {
        let found = found.await.unwrap();
        assert!(matches!(found, Begin::InFlight { .. }), "{found:?}");
    }
    assert_eq!(telling.await.unwrap().unwrap(), Settled::Applied);
    assert_eq!(store.changes.load(SeqCst), 1);
}

/// An attempt that outlives an outage is renewed before a claim finds it lost, by all who ask in one renewal.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_through_an_outage_is_in_flight_after_it() {
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let store = Shared::default();
        let policy = Policy::default()
            .with_on_lost(on_lost)
            .with_on_store_error(OnStoreError::FailOpen);
        let guard = Guard::new(store.clone(), policy);
        let running = held(&guard, &asked("k")).await;
        store.down.store(true, SeqCst);
        sleep(Duration::from_secs(40)).await;
        let meanwhile = guard.begin(&asked("k")).await;
        assert!(meanwhile.is_err(), "{meanwhile:?}");
        // Not at a moment at which it is renewed.
        sleep(Duration::from_millis(700)).await;
        store.down.store(false, SeqCst);
        let claims = (0..5).map(|_| {
            let guard = guard.clone();
            tokio::spawn(async move { guard.begin(&asked("k")).await.unwrap() })
        });
        for found in claims.collect::<Vec<_>>() {
            let found = found.await.unwrap();
            assert!(matches!(found, Begin::InFlight { .. }), "{found:?}");
        }
        let ended = running.complete(&semel::Outcome::void()).await;
        assert_eq!(ended.unwrap(), Settled::Applied);
        assert_eq!(guard.unsettled(), 0);
    }
}

/// A claim that is sent again tells first what became known since it was sent.
#[tokio::test(start_paused = true)]
async fn what_became_known_while_a_claim_hung_is_told_before_it_is_sent_again() {
    let store = Shared::default();
    let policy = Policy::default().with_lease(Duration::from_secs(6));
    let guard = Guard::new(store.clone(), policy);
    let held = held(&guard, &asked("k")).await;
    store.hung_renewals.store(true, SeqCst);
    *store.slow_claims.lock().unwrap() = Duration::from_secs(7);
    store.loses_next.store(1, SeqCst);
    let other = guard.clone();
    let claim = tokio::spawn(async move { other.begin(&asked("k")).await });
    sleep(Duration::from_secs(2)).await;
    *store.slow_changes.lock().unwrap() = Duration::from_secs(20);
    let telling = tokio::spawn(async move { held.complete(&semel::Outcome::void()).await });
    sleep(Duration::from_secs(1)).await;
    *store.slow_changes.lock().unwrap() = Duration::ZERO;
    *store.slow_claims.lock().unwrap() = Duration::ZERO;
    let found = claim.await.unwrap().unwrap();
    assert!(matches!(found, Begin::Completed(_)), "{found:?}");
    assert_eq!(telling.await.unwrap().unwrap(), Settled::Applied);
}

/// A thousand who lost the answers to their claims do not make a thousand questions of each claim after that.
#[tokio::test(start_paused = true)]
async fn what_was_looked_for_is_not_looked_for_by_every_claim() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    store.down.store(true, SeqCst);
    let claims = (0..50).map(|_| {
        let guard = guard.clone();
        tokio::spawn(async move { guard.begin(&asked("k")).await.map(drop) })
    });
    for claim in claims.collect::<Vec<_>>() {
        claim.await.unwrap().unwrap_err();
    }
    store.down.store(false, SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(guard.unsettled(), 50);
    let before = store.gets.load(SeqCst);
    let found = guard.begin(&asked("k")).await.unwrap();
    assert!(matches!(found, Begin::Acquired(_)), "{found:?}");
    assert_eq!(store.gets.load(SeqCst), before);
}

/// A claim that arrives after it was looked for is found by the next claim, before that finds it lost.
#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_late_is_given_back() {
    let store = Shared::default();
    let policy = Policy::default()
        .with_lease(Duration::from_secs(2))
        .with_on_lost(OnLost::Hold);
    let guard = Guard::new(store.clone(), policy);
    *store.late_claims.lock().unwrap() = vec![Duration::from_secs(1); 3];
    guard.begin(&asked("k")).await.unwrap_err();
    sleep(Duration::from_millis(3_500)).await;
    let found = guard.begin(&asked("k")).await.unwrap();
    assert!(matches!(found, Begin::Acquired(_)), "{found:?}");
}

/// One copy of a claim is found and given back, and another arrives after that: nothing begins, and nothing is
/// owed any more.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_claim_that_was_given_back_begins_nothing() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    *store.late_claims.lock().unwrap() =
        vec![Duration::ZERO, Duration::ZERO, Duration::from_secs(1)];
    guard.begin(&asked("k")).await.unwrap_err();
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(state(&store, "k").await, Some(StateKind::Released));
        assert_eq!(guard.unsettled(), 0);
    }
}

/// One copy of a claim is told of an attempt in flight, of the same request or of another, and another copy arrives
/// when that is over.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_claim_that_was_told_of_another_is_given_back() {
    let other = Asked::new(identity("k"), Fingerprint::of(b"other"));
    for (second, finds) in [(asked("k"), "InFlight"), (other, "Mismatch")] {
        let store = Shared::default();
        let guard = Guard::from(store.clone());
        let first = held(&guard, &asked("k")).await;
        *store.late_claims.lock().unwrap() = vec![Duration::from_secs(2)];
        let found = guard.begin(&second).await.unwrap();
        assert_eq!(format!("{found:?}"), finds);
        assert_eq!(first.release().await.unwrap(), Settled::Applied);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(state(&store, "k").await, Some(StateKind::InFlight));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(state(&store, "k").await, Some(StateKind::Released));
    }
}

/// A copy of a claim arrives when the attempt that its caller waits for is over. It is the caller's, and not what
/// another who waits there finds in flight.
#[tokio::test(start_paused = true)]
async fn a_copy_is_acquired_for_its_caller_who_waits() {
    for is_first in [true, false] {
        let store = Shared::default();
        let policy = Policy::default().with_lease(Duration::from_secs(2));
        let guard = Guard::new(store.clone(), policy.with_wait(Duration::from_mins(1)));
        let first = held(&guard, &asked("k")).await;
        let waits = || {
            let guard = guard.clone();
            tokio::spawn(async move { held(&guard, &asked("k")).await })
        };
        *store.slow_waits.lock().unwrap() = Duration::from_secs(1);
        let late = || *store.late_claims.lock().unwrap() = vec![Duration::from_secs(2)];
        if is_first {
            late();
        }
        let mut waiting = vec![waits()];
        sleep(Duration::from_millis(100)).await;
        if !is_first {
            late();
        }
        waiting.push(waits());
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(first.release().await.unwrap(), Settled::Applied);
        *store.slow_claims.lock().unwrap() = Duration::from_millis(10);
        let caller = waiting.remove(usize::from(!is_first));
        let found = timeout(Duration::from_secs(2), caller).await.unwrap();
        assert_eq!(found.unwrap().release().await.unwrap(), Settled::Applied);
        waiting.remove(0).await.unwrap();
    }
}

/// Likewise, and the caller learns of it after the copy's lease: nobody takes over what the caller has then.
#[tokio::test(start_paused = true)]
async fn a_copy_that_was_acquired_long_ago_is_renewed() {
    let store = Shared::default();
    let policy = Policy::default().with_lease(Duration::from_secs(2));
    let policy = policy.with_on_lost(OnLost::Retry);
    let (another, guard) = (
        Guard::new(store.clone(), policy),
        Guard::new(store.clone(), policy.with_wait(Duration::from_mins(1))),
    );
    let first = held(&another, &asked("k")).await;
    *store.slow_waits.lock().unwrap() = Duration::from_secs(3);
    *store.late_claims.lock().unwrap() = vec![Duration::from_secs(2)];
    let caller = tokio::spawn(async move { held(&guard, &asked("k")).await });
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(first.release().await.unwrap(), Settled::Applied);
    let _found = caller.await.unwrap();
    let beside = another.begin(&asked("k")).await.unwrap();
    assert!(matches!(beside, Begin::InFlight { .. }), "{beside:?}");
}

/// What the store has confirmed, and cannot renew, does not run unprotected.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_is_not_failed_open() {
    for kind in [StoreErrorKind::Capacity, StoreErrorKind::NotApplied] {
        let store = Shared::default();
        let policy = Policy::default().with_on_store_error(OnStoreError::FailOpen);
        let guard = Guard::new(store.clone(), policy);
        store.loses_next.store(1, SeqCst);
        *store.failed_renewals.lock().unwrap() = Some(kind);
        let error = guard.begin(&asked("k")).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(state(&store, "k").await, Some(StateKind::Released));
    }
}

/// The answer to a release is lost: it is told again, with the mark that it leaves, and is what it was.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_told_again_is_not_called_stale() {
    let (store, seen) = (Shared::default(), Arc::new(Seen::default()));
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    let inbox = Inbox::new(guard, "billing");
    store.loses_releases.store(1, SeqCst);
    let event = Event::new("orders", "event", "body");
    let failed = inbox.receive(&event, |_| async { Err::<(), _>("declined") });
    failed.await.unwrap_err();
    assert_eq!(seen.count(Signal::Stale), 0);
    assert_eq!(seen.count(Signal::Released), 1);
}

/// What another has told for it is no sign of a stale attempt.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_another_told_of_is_not_called_stale() {
    let (store, seen) = (Shared::default(), Arc::new(Seen::default()));
    let policy = Policy::default().with_lease(Duration::from_secs(2));
    let guard = Guard::builder(store.clone()).policy(policy);
    let guard = guard.observer(seen.clone()).build();
    for round in 0..20 {
        let first = held(&guard, &asked("k")).await;
        store.down.store(true, SeqCst);
        first.release().await.unwrap_err();
        sleep(Duration::from_millis(130 * round)).await;
        store.down.store(false, SeqCst);
        let second = held(&guard, &asked("k")).await;
        sleep(Duration::from_secs(3)).await;
        assert_eq!(second.release().await.unwrap(), Settled::Applied);
    }
    assert_eq!(seen.count(Signal::Stale), 0);
    assert_eq!(seen.count(Signal::Released), 40);
}
