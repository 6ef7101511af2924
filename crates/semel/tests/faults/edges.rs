//! Interleavings that a reading of the guard found.

use semel::guard::{Attempt, Opening, StepError, StepKey, TransactOptions, Transacted};
use semel::inbox::{Event, Inbox, Receipt};
use semel::transaction::{Isolation, Lent};
use semel::{Outcome, StoreExt as _};

use super::scripted::{Failure, Fate, Scripted, Work};
use super::*;

const LEASE: Duration = Duration::from_secs(3);

fn brief() -> Policy {
    Policy::default().with_lease(LEASE)
}

/// Work that gives up waiting for a step's transaction is renewed again, and asks before the next
/// effect.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_given_up_does_not_leave_renewals_paused() {
    let guard = Guard::new(Arc::new(Scripted::new(&[])), brief());
    let mut held = held(&guard, &asked("k").in_steps()).await;
    let mut attempt = held.attempt();
    let options = TransactOptions::default().with_isolation(Isolation::Serializable);
    let slow = attempt.transact("slow", options, |_, _tx| async {
        sleep(Duration::from_secs(100)).await;
        Ok::<_, Failure>(())
    });
    timeout(Duration::from_secs(1), slow).await.unwrap_err();
    sleep(5 * LEASE).await;
    assert!(attempt.still_held());
    let duplicate = guard.begin(&asked("k").in_steps()).await.unwrap();
    assert!(matches!(duplicate, Begin::InFlight { .. }), "{duplicate:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_on_after_a_step_whose_answer_was_lost() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    let mut held = held(&guard, &asked("k").in_steps()).await;
    let mut attempt = held.attempt();
    let memory = store.clone();
    // The step is kept, and the store is not heard of again.
    let step = attempt.step("charge", async move |_| {
        let digest = *identity("k").digest();
        let token = memory
            .memory
            .get(&digest)
            .await
            .unwrap()
            .unwrap()
            .record
            .token;
        let step = semel::FinishedStep::new("charge", Outcome::void().as_bytes()).unwrap();
        let kept = memory.memory.keep_step(&digest, &token, &step, 0).await;
        assert_eq!(kept.unwrap(), semel::store::Fenced::Applied);
        memory.down.store(true, SeqCst);
        Ok::<_, &str>(())
    });
    assert!(matches!(
        step.await,
        Err(StepError::Store { ran: Ran::Yes, .. })
    ));
    store.down.store(false, SeqCst);
    assert_eq!(held.release().await.unwrap(), Settled::Applied);
    assert_eq!(state(&store, "k").await, Some(StateKind::Released));
}

/// The first attempt gave its key away and died; the second failed before its first step.
#[tokio::test]
async fn a_takeover_that_fails_early_does_not_lose_the_step_key() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1 << 50)));
    let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    let guard = Guard::from(Arc::new(store));
    let asked = asked("order").in_steps();
    let key = async |held: &mut Held<_>| {
        let mut key = None;
        let mut attempt = held.attempt();
        let step = attempt.step("charge", |given: StepKey| {
            key = Some(given);
            std::future::pending::<Result<(), &str>>()
        });
        timeout(Duration::from_millis(1), step).await.unwrap_err();
        key.unwrap()
    };
    let mut dying = held(&guard, &asked).await;
    let first = key(&mut dying).await;
    dying.let_lapse();
    clock.advance(Duration::from_secs(60));
    let failing = |_| async { Err::<(), _>("no database") };
    guard.run(asked.clone(), failing).await.unwrap_err();
    clock.advance(Duration::from_secs(61));
    let mut third = held(&guard, &asked).await;
    assert_eq!(key(&mut third).await, first);
    third.let_lapse();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_ends_late_in_a_drain_has_its_time() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    let ending = held(&guard, &asked("k")).await;
    let blip = store.clone();
    guard.spawn(async move {
        sleep(Duration::from_secs(20)).await;
        blip.down.store(true, SeqCst);
        drop(ending);
        sleep(Duration::from_millis(500)).await;
        blip.down.store(false, SeqCst);
    });
    guard.drain().await;
    assert_eq!(seen.count(Signal::GaveUp), 0);
    assert_eq!(state(&store, "k").await, Some(StateKind::Released));
}

#[test]
fn an_attempt_that_is_dropped_outside_a_runtime_lapses() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (runtime, guard) = (runtime(), Guard::from(Shared::default()));
    let held = runtime.block_on(held(&guard, &asked("k")));
    drop(held);
    drop(runtime);
}

/// It is known that nothing is committed without the completion, so the completion decides.
#[tokio::test(start_paused = true)]
async fn a_transaction_whose_record_was_found_unknown_still_commits() {
    let store = Arc::new(Scripted::new(&[]));
    let guard = Guard::new(store.clone(), brief().with_on_lost(OnLost::Hold));
    let mut standing = held(&guard, &asked("k")).await;
    standing.stop_renewing();
    let work = |_, opening: Opening<_>| async move {
        drop(opening.begin().await.unwrap());
        sleep(3 * LEASE).await;
        Ok::<_, Failure>(())
    };
    let options = TransactOptions::default();
    let committing =
        standing.transact(options, work, |_| false, |()| Some((Outcome::void(), None)));
    let duplicate = async {
        sleep(2 * LEASE).await;
        guard.begin(&asked("k")).await.unwrap()
    };
    let (committed, duplicate) = tokio::join!(committing, duplicate);
    assert!(matches!(duplicate, Begin::Unknown), "{duplicate:?}");
    assert!(
        matches!(committed, Transacted::Committed(())),
        "{committed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_database_there_is_no_transaction_under_any_policy() {
    let store = Arc::new(Scripted::new(&[]));
    let policy = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let guard = Guard::new(store.clone(), policy);
    let charge = |_, mut tx: Lent<Work>| async move {
        tx.lines.push("charged".into());
        Ok::<_, Failure>(())
    };
    store.unreached.store(true, SeqCst);
    let refused = guard
        .transact(asked("k"), TransactOptions::default(), charge)
        .await;
    assert!(
        matches!(refused, Err(RunError::Store { ran: Ran::No, .. })),
        "{refused:?}"
    );
    store.unreached.store(false, SeqCst);
    assert!(store.ledger.lock().unwrap().is_empty());
}

/// A committed step is not said to have had no effect, whoever has the record meanwhile.
#[tokio::test(start_paused = true)]
async fn a_lost_commit_of_a_step_before_a_takeover_is_not_said_to_be_rolled_back() {
    let store = Arc::new(Scripted::new(&[Fate::Lost { committed: true }]));
    let guard = Guard::new(store.clone(), brief());
    let asked = asked("k").in_steps();
    let mut standing = held(&guard, &asked).await;
    standing.stop_renewing();
    let mut attempt = standing.attempt();
    let takeover = async {
        sleep(LEASE + Duration::from_millis(100)).await;
        held(&guard, &asked).await.let_lapse();
        store.deaf.store(false, SeqCst);
    };
    let step = attempt.transact(
        "charge",
        TransactOptions::default(),
        |_, mut tx: Lent<Work>| {
            let store = &store;
            async move {
                tx.lines.push("charged".into());
                drop(tx);
                sleep(Duration::from_secs(1)).await;
                store.deaf.store(true, SeqCst);
                Ok::<_, Failure>(())
            }
        },
    );
    let (step, ()) = tokio::join!(step, takeover);
    assert!(
        matches!(
            step,
            Err(StepError::Store {
                ran: Ran::Unknown,
                ..
            })
        ),
        "{step:?}"
    );
    assert_eq!(store.ledger.lock().unwrap().len(), 1);
}

async fn handled(store: &Shared, inbox: &Inbox<Shared>) {
    store.down.store(false, SeqCst);
    store.loses_claims.store(false, SeqCst);
    sleep(Duration::from_secs(10)).await;
    let event = Event::new("orders", "event-1", "body");
    let receipt = inbox.receive(&event, |_| ok(())).await.unwrap();
    assert_eq!(receipt, Receipt::Handled);
}

/// Neither claims that never arrived nor claims whose answers were lost are attempts of the event's.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_uses_up_none_of_an_events_attempts() {
    let event = Event::new("orders", "event-1", "body");
    for arrives in [false, true] {
        let store = Shared::default();
        let inbox = Inbox::new(store.clone(), "billing").with_dead_letters(|_| ok(()));
        for _ in 0..8 {
            match arrives {
                true => store.loses_claims.store(true, SeqCst),
                false => store.down.store(true, SeqCst),
            }
            inbox.receive(&event, |_| ok(())).await.unwrap_err();
            if arrives {
                store.loses_claims.store(false, SeqCst);
            }
            sleep(Duration::from_secs(1)).await;
        }
        handled(&store, &inbox).await;
    }
}

#[tokio::test]
async fn an_error_that_is_kept_is_no_value_though_the_value_is_a_result() {
    let guard = Guard::new(
        Shared::default(),
        Policy::default().with_on_error(OnError::Keep),
    );
    for _ in 0..2 {
        let failing = |_: Attempt<_>| async { Err::<Result<String, String>, _>("declined") };
        match guard.run(asked("k"), failing).await {
            Err(RunError::Failed(failed)) => assert_eq!(failed.to_string(), "declined"),
            other => panic!("{other:?}"),
        }
    }
}

/// An attempt that ends is no stampede: who waited for it asks the store together.
#[tokio::test(start_paused = true)]
async fn of_a_thousand_that_wait_one_claims_again() {
    const WAITERS: u32 = 1000;
    let store = Arc::new(Scripted::new(&[]));
    let policy = Policy::default().with_wait(Duration::from_mins(1));
    let guard = Guard::new(Arc::clone(&store), policy);
    for (key, last) in [("released", false), ("completed", true)] {
        let first = held(&guard, &asked(key)).await;
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let guard = guard.clone();
                tokio::spawn(async move {
                    match guard.begin(&asked(key)).await.unwrap() {
                        Begin::Acquired(held) => {
                            let done = held.complete(&Outcome::success(b"done")).await;
                            assert_eq!(done.unwrap(), Settled::Applied);
                            true
                        }
                        Begin::Completed(_) => false,
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        sleep(Duration::from_secs(1)).await;
        store.claims.store(0, SeqCst);
        let done = Outcome::success(b"done");
        let settled = match last {
            true => first.complete(&done).await,
            false => first.release().await,
        };
        assert_eq!(settled.unwrap(), Settled::Applied);
        // One runs, and completes; all others take that.
        let mut ran = 0;
        for waiter in waiters {
            ran += u32::from(waiter.await.unwrap());
        }
        assert_eq!(ran, u32::from(!last));
        assert_eq!(store.claims.load(SeqCst), if last { 1 } else { 2 });
    }
}

/// An answer is left out because it is too large, and for no other reason.
#[tokio::test(start_paused = true)]
async fn a_failure_that_passes_costs_no_answer() {
    let store = Shared::default();
    let guard = Guard::from(store.clone());
    store.fails_next.store(1, SeqCst);
    guard
        .run(asked("k"), |_| ok(String::from("7 EUR")))
        .await
        .unwrap();
    let replayed = guard.run(asked("k"), |_| ok(String::new())).await.unwrap();
    assert_eq!(replayed, Done::Replayed("7 EUR".into()));
}

/// What a store refuses for good is told once, and not asked for again.
#[tokio::test(start_paused = true)]
async fn an_outcome_for_a_closed_store_is_told_once() {
    let store = Shared::default();
    let seen = Arc::new(Seen::default());
    let guard = Guard::builder(store.clone()).observer(seen.clone()).build();
    let held = held(&guard, &asked("k")).await;
    store.memory.close().await.unwrap();
    let closed = held.complete(&Outcome::void()).await.unwrap_err();
    assert_eq!(closed.kind(), StoreErrorKind::Closed);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(seen.count(Signal::StoreError), 1);
}

/// It was said to be unknown, and somebody else took over, while its own clock says that it holds.
#[tokio::test(start_paused = true)]
async fn a_later_attempt_looks_whether_it_was_replaced_before_its_first_step() {
    let store = Shared::default();
    let guard = Guard::new(store.clone(), brief());
    let asked = asked("k").in_steps();
    assert_eq!(
        held(&guard, &asked).await.release().await.unwrap(),
        Settled::Applied
    );
    let mut second = held(&guard, &asked).await;
    second.stop_renewing();
    let mut attempt = second.attempt();
    let digest = *identity("k").digest();
    let token = store
        .memory
        .get(&digest)
        .await
        .unwrap()
        .unwrap()
        .record
        .token;
    let marked = store.memory.mark_unknown(&digest, &token).await;
    assert_eq!(marked.unwrap(), semel::store::Fenced::Applied);
    assert_eq!(held(&guard, &asked).await.number(), 3);
    assert!(attempt.still_held());
    let ran = AtomicU32::new(0);
    let step = attempt.step("charge", async |_| {
        ran.fetch_add(1, SeqCst);
        ok(()).await
    });
    let refused = step.await;
    assert!(
        matches!(refused, Err(StepError::Superseded { ran: Ran::No })),
        "{refused:?}"
    );
    assert_eq!(ran.load(SeqCst), 0);
}
