//! Events whose effects and records are one transaction.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{
    Answered, Case, Finding, Guard, Ran, ReconcileOptions, Reconciler, TransactOptions,
};
use semel::inbox::{Event, Inbox, InboxError, NewEvents, Reason, Receipt};
use semel::memory::MemoryStore;
use semel::store::{Claim, ClaimRequest, ListQuery, Nonce, OnLost, Store as _, StoreExt as _};
use semel::transaction::{Isolation, Lent};
use semel::{Fingerprint, StateKind, StoreErrorKind};
use tokio::sync::Notify;
use tokio::time::advance;

use super::receive::lost;
use super::scripted::{Conflict, Failure, Fate, Scripted, Work};
use super::{LATER, Taken, event, policy};

type Tx = Lent<Work>;
type Answer = Result<Receipt, InboxError<Failure>>;

struct Bench {
    inbox: Inbox<Arc<Scripted>>,
    /// The ids that each run was for.
    runs: Arc<Mutex<Vec<String>>>,
    poison: HashSet<&'static str>,
}

impl Bench {
    fn new(fates: &[Fate]) -> Self {
        Self {
            inbox: Inbox::new(Arc::new(Scripted::new(fates)), "billing"),
            runs: Arc::default(),
            poison: HashSet::new(),
        }
    }

    fn poisoned(ids: &[&'static str], taken: &Taken) -> Self {
        let mut bench = Self::new(&[]);
        bench.poison = ids.iter().copied().collect();
        bench.inbox = taken.inbox(bench.inbox).with_max_attempts(2);
        bench
    }

    async fn batch(&self, events: &[Event]) -> Vec<Answer> {
        let (runs, poison) = (self.runs.clone(), self.poison.clone());
        let work = move |new: NewEvents, mut tx: Tx| {
            let ids: Vec<_> = new.events.iter().map(|(e, _)| e.id().to_owned()).collect();
            runs.lock().unwrap().push(ids.join(" "));
            let bad = ids.iter().any(|id| poison.contains(&**id));
            async move {
                tx.lines.extend(ids);
                if bad { Err(Failure(None)) } else { Ok(()) }
            }
        };
        let options = TransactOptions::default();
        self.inbox.transact_batch(events, options, work).await
    }

    async fn one(&self, event: &Event) -> Answer {
        let runs = self.runs.clone();
        let id = event.id().to_owned();
        let work = move |_, mut tx: Tx| {
            runs.lock().unwrap().push(id.clone());
            tx.lines.push(id.clone());
            async move {
                drop(tx);
                Ok(())
            }
        };
        let options = TransactOptions::default();
        self.inbox.transact(event, options, work).await
    }

    fn runs(&self) -> Vec<String> {
        std::mem::take(&mut self.runs.lock().unwrap())
    }

    fn ledger(&self) -> Vec<String> {
        self.inbox.guard().store().ledger.lock().unwrap().clone()
    }
}

fn events(ids: &str) -> Vec<Event> {
    ids.split(' ').map(event).collect()
}

/// The answers in short: Handled, Duplicate, Set aside; errors in small letters.
fn short(answers: &[Answer]) -> String {
    let one = |answer: &Answer| match answer {
        Ok(Receipt::Handled) => "H",
        Ok(Receipt::Duplicate) => "D",
        Ok(Receipt::DeadLettered) => "S",
        Err(InboxError::InFlight { .. }) => "i",
        Err(InboxError::Mismatch) => "m",
        Err(InboxError::Failed { .. }) => "f",
        Err(InboxError::Superseded { ran: Ran::No }) => "s",
        Err(InboxError::NoId) => "n",
        Err(InboxError::NotCommitted { .. }) => "c",
        Err(_) => "e",
    };
    answers.iter().map(one).collect()
}

#[tokio::test(start_paused = true)]
async fn one_event_is_applied_once() {
    let bench = Bench::new(&[]);
    assert_eq!(bench.one(&event("a")).await.unwrap(), Receipt::Handled);
    assert_eq!(bench.one(&event("a")).await.unwrap(), Receipt::Duplicate);
    assert_eq!(bench.ledger(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_new_ones_of_a_batch_are_one_transaction() {
    let bench = Bench::new(&[]);
    assert_eq!(short(&bench.batch(&events("b d")).await), "HH");
    let mut all = events("a b c d a c e");
    all.push(Event::new("orders", "e", "another body"));
    all.push(Event::new("orders", "d", "another body"));
    all.push(event(""));
    assert_eq!(short(&bench.batch(&all).await), "HDHDDDHmmn");
    assert_eq!(short(&bench.batch(&all).await), "DDDDDDDmmn");
    assert_eq!(bench.runs(), ["b d", "a c e"]);
    assert_eq!(bench.ledger(), ["b", "d", "a", "c", "e"]);
    assert!(bench.batch(&[]).await.is_empty());
}

/// Nothing ran, no part of it is tried again, and each event is free at once.
#[tokio::test(start_paused = true)]
async fn a_batch_that_gets_no_transaction_is_given_back() {
    let bench = Bench::new(&[]);
    let store = bench.inbox.guard().store();
    store.shut.store(true, Ordering::SeqCst);
    for answer in bench.batch(&events("a b c")).await {
        let told = matches!(answer, Err(InboxError::Store { ran: Ran::No, .. }));
        assert!(told, "{answer:?}");
    }
    assert_eq!(store.begun.load(Ordering::SeqCst), 1);
    store.shut.store(false, Ordering::SeqCst);
    assert_eq!(short(&bench.batch(&events("a b c")).await), "HHH");
    assert_eq!(bench.runs(), ["a b c"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_is_alone_in_the_end_and_holds_up_nobody() {
    let taken = Taken::default();
    let bench = Bench::poisoned(&["f"], &taken);
    let all = events("a b c d e f g h");
    assert_eq!(short(&bench.batch(&all).await), "HHHHHfHH");
    let runs = [
        "a b c d e f g h",
        "a b c d",
        "e f g h",
        "e f",
        "e",
        "f",
        "g h",
    ];
    assert_eq!(bench.runs(), runs);
    assert_eq!(bench.ledger(), ["a", "b", "c", "d", "e", "g", "h"]);
    advance(LATER).await;
    assert_eq!(short(&bench.batch(&all).await), "DDDDDSDD");
    assert_eq!(bench.runs(), ["f"]);
    assert_eq!(short(&bench.batch(&all).await), "DDDDDSDD");
    let [letter] = &taken.all()[..] else {
        panic!("{:?}", taken.all());
    };
    assert_eq!((letter.reason, letter.attempts), (Reason::Failed, 2));
    assert_eq!(letter.errors, ["no such article", "no such article"]);
}

#[tokio::test(start_paused = true)]
async fn those_without_attempts_left_are_not_run_beside_the_new_ones() {
    let taken = Taken::failing(1);
    let bench = Bench::poisoned(&["f"], &taken);
    for expected in ["f", "e"] {
        assert_eq!(short(&bench.batch(&events("f")).await), expected);
        advance(LATER).await;
    }
    bench.runs();
    assert_eq!(short(&bench.batch(&events("a f b f")).await), "HSHS");
    assert_eq!(bench.runs(), ["a b"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_commit_is_what_the_records_say() {
    let all = events("a b c");
    let bench = Bench::new(&[Fate::Lost { committed: true }]);
    assert_eq!(short(&bench.batch(&all).await), "HHH");
    assert_eq!(bench.runs().len(), 1);

    // Nobody answers, or it is not found: none is acknowledged, nor is it the event's failure. The next delivery
    // learns it, or runs it again.
    let cases = [
        (true, true, "DDD"),
        (false, true, "HHH"),
        (false, false, "HHH"),
    ];
    for (committed, deaf, next) in cases {
        let (taken, mut bench) = (Taken::default(), Bench::new(&[Fate::Lost { committed }]));
        bench.inbox = taken.inbox(bench.inbox).with_max_attempts(1);
        bench
            .inbox
            .guard()
            .store()
            .deaf
            .store(deaf, Ordering::SeqCst);
        for answer in bench.batch(&all).await {
            match answer {
                Err(InboxError::Store { ran, source }) => {
                    assert_eq!(ran, Ran::Unknown);
                    assert_eq!(source.kind(), StoreErrorKind::Unknown);
                }
                other => panic!("{other:?}"),
            }
        }
        bench.inbox.guard().drain().await;
        assert_eq!(bench.runs().len(), 1);
        assert_eq!(short(&bench.batch(&all).await), next);
        assert_eq!(bench.ledger(), ["a", "b", "c"]);
    }
}

/// Its lease lapses, and another delivery runs: a transaction that was not committed did not happen.
#[tokio::test(start_paused = true)]
async fn r7_an_event_whose_consumer_stood_still_runs_again_and_is_applied_once() {
    let bench = Bench::new(&[]);
    let store = bench.inbox.guard().store();
    store.deaf.store(true, Ordering::SeqCst);
    // In a process of its own.
    let inbox = Inbox::new(store.clone(), "billing");
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (begun.clone(), go.clone());
    let stale = tokio::spawn(async move {
        let work = move |_, mut tx: Tx| {
            let (begins, goes) = (begins.clone(), goes.clone());
            async move {
                begins.notify_one();
                goes.notified().await;
                tx.lines.push("too late".into());
                Ok::<_, Failure>(())
            }
        };
        let options = TransactOptions::default();
        inbox.transact(&event("a"), options, work).await
    });
    begun.notified().await;
    advance(Duration::from_secs(31)).await;
    assert_eq!(bench.one(&event("a")).await.unwrap(), Receipt::Handled);
    go.notify_one();
    assert_eq!(short(&[stale.await.unwrap()]), "s");
    assert_eq!(bench.one(&event("a")).await.unwrap(), Receipt::Duplicate);
    assert_eq!(bench.ledger(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn conflicts_run_all_of_them_again() {
    let bench = Bench::new(&[Fate::Conflicts, Fate::Conflicts]);
    assert_eq!(short(&bench.batch(&events("a b")).await), "HH");
    assert_eq!(bench.runs(), ["a b", "a b", "a b"]);
    assert_eq!(bench.ledger(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn conflicts_do_not_count() {
    let taken = Taken::default();
    // Nine deliveries, none of which gets through in nine runs.
    let mut bench = Bench::new(&[Fate::Conflicts; 9 * 9]);
    bench.inbox = taken.inbox(bench.inbox).with_max_attempts(2);
    for _ in 0..9 {
        assert_eq!(short(&[bench.one(&event("a")).await]), "c");
        advance(LATER).await;
    }
    assert_eq!(bench.one(&event("a")).await.unwrap(), Receipt::Handled);
    assert_eq!(taken.all().len(), 0);

    // Nor those that the work meets.
    let inbox = taken.inbox(Inbox::new(Arc::new(Scripted::new(&[])), "c"));
    let inbox = inbox.with_max_attempts(2);
    for _ in 0..4 {
        let options = TransactOptions::default().with_retries(1);
        let work = |_, tx: Tx| async {
            drop(tx);
            Err(Failure(Some(Conflict)))
        };
        let answer = inbox.transact(&event("a"), options, work).await;
        assert!(matches!(answer, Err(InboxError::Failed { .. })));
    }
    assert_eq!(taken.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_refused_is_the_events_fault() {
    let taken = Taken::default();
    let mut bench = Bench::new(&[Fate::Fails; 2]);
    bench.inbox = taken.inbox(bench.inbox).with_max_attempts(2);
    assert_eq!(short(&[bench.one(&event("a")).await]), "c");
    advance(LATER).await;
    assert_eq!(short(&[bench.one(&event("a")).await]), "S");
    let letter = &taken.all()[0];
    assert_eq!((letter.attempts, letter.errors.len()), (2, 2));
    assert!(bench.ledger().is_empty());
}

/// Takes the claim of an event over, as another consumer does once its lease is over.
async fn steal(memory: &MemoryStore, hint: &str) {
    let query = ListQuery::new(StateKind::InFlight);
    let page = memory.list(&query).await.unwrap();
    let mut entries = page.entries.into_iter();
    let entry = entries.find(|e| &*e.label.key_hint == hint).unwrap();
    let (digest, token) = (entry.label.digest, entry.record.token);
    let _ = memory.abandon(&digest, &token).await.unwrap();
    let key = semel::Key::new("bbbb").unwrap();
    let identity = semel::Identity::new(entry.label.scope, "event", key);
    assert_eq!(*identity.digest(), digest);
    let request = ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"body of bbbb"),
        Duration::from_secs(30),
    )
    .with_on_lost(OnLost::Retry);
    let claim = memory.claim(&identity, &request).await.unwrap();
    assert!(matches!(claim, Claim::Acquired(_)));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_taken_over_is_left_out_and_the_others_run_again() {
    let bench = Bench::new(&[]);
    let (store, runs) = (bench.inbox.guard().store().clone(), bench.runs.clone());
    let work = move |new: NewEvents, mut tx: Tx| {
        let ids: Vec<_> = new.events.iter().map(|(e, _)| e.id().to_owned()).collect();
        runs.lock().unwrap().push(ids.join(" "));
        let store = store.clone();
        async move {
            if ids.len() == 3 {
                steal(&store.memory, "bb").await;
            }
            tx.lines.extend(ids);
            Ok::<_, Failure>(())
        }
    };
    let all = events("aaaa bbbb cccc");
    let options = TransactOptions::default();
    let answers = bench.inbox.transact_batch(&all, options, work).await;
    assert_eq!(short(&answers), "HsH");
    assert_eq!(bench.runs(), ["aaaa bbbb cccc", "aaaa cccc"]);
    assert_eq!(bench.ledger(), ["aaaa", "cccc"]);
}

#[tokio::test(start_paused = true)]
async fn all_leases_are_renewed_while_the_work_runs() {
    let bench = Bench::new(&[]);
    let (there, runs) = (bench.inbox.clone(), bench.runs.clone());
    let slow = tokio::spawn(async move {
        let work = move |new: NewEvents, tx: Tx| {
            runs.lock().unwrap().push(new.events.len().to_string());
            async move {
                tokio::time::sleep(Duration::from_mins(5)).await;
                drop(tx);
                Ok::<_, Failure>(())
            }
        };
        let options = TransactOptions::default();
        there.transact_batch(&events("a b c"), options, work).await
    });
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(short(&bench.batch(&events("c b a x")).await), "iiiH");
    assert_eq!(short(&slow.await.unwrap()), "HHH");
    assert_eq!(bench.runs(), ["3", "x"]);
}

/// Is sure after longer than a lease.
struct Slow;

impl Reconciler for Slow {
    fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            Ok(Finding::DidNotHappen.into())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_while_others_of_the_batch_are_being_claimed() {
    let mut bench = Bench::new(&[]);
    let store = bench.inbox.guard().store().clone();
    let patient = ReconcileOptions::in_line().with_timeout(Duration::from_secs(200));
    let guard = Guard::builder(store.clone()).reconciler(Arc::new(Slow));
    let reconciles = policy().with_on_lost(OnLost::Reconcile);
    bench.inbox = Inbox::new(guard.reconcile_options(patient).build(), "billing");
    bench.inbox = bench.inbox.with_policy(reconciles);
    let bench = Arc::new(bench);
    lost(&bench.inbox, &event("a")).await;
    let there = bench.clone();
    let batch = tokio::spawn(async move { there.batch(&events("a b")).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.deaf.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(short(&[bench.one(&event("b")).await]), "i");
    assert_eq!(short(&batch.await.unwrap()), "HH");
}

#[tokio::test(start_paused = true)]
async fn where_none_are_renewed_beside_a_transaction_they_are_between_two() {
    let bench = Bench::new(&[]);
    let there = bench.inbox.clone();
    let slow = tokio::spawn(async move {
        let work = move |new: NewEvents, tx: Tx| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            drop(tx);
            if new.events.iter().any(|(event, _)| event.id() == "f") {
                return Err(Failure(None));
            }
            Ok(())
        };
        let options = TransactOptions::default().with_isolation(Isolation::Serializable);
        there
            .transact_batch(&events("a b c f"), options, work)
            .await
    });
    // All four; a and b; c and f; c; and then f, which ends after 100 s.
    tokio::time::sleep(Duration::from_secs(95)).await;
    assert_eq!(short(&bench.batch(&events("a b c f")).await), "DDDi");
    assert_eq!(short(&slow.await.unwrap()), "HHHf");
}

#[tokio::test(start_paused = true)]
async fn completions_come_in_the_order_of_digests() {
    let bench = Bench::new(&[]);
    let all = events("a b c d e f g h");
    assert_eq!(short(&bench.batch(&all).await), "HHHHHHHH");
    let completed = bench
        .inbox
        .guard()
        .store()
        .completed
        .lock()
        .unwrap()
        .clone();
    assert!(completed.is_sorted() && completed.len() == 8);
}

#[tokio::test(start_paused = true)]
async fn work_that_keeps_the_transaction_or_panics_is_not_committed() {
    let bench = Bench::new(&[]);
    let kept: Arc<Mutex<Vec<Tx>>> = Arc::default();
    let keeps = kept.clone();
    let work = move |_: NewEvents, tx: Tx| {
        keeps.lock().unwrap().push(tx);
        async { Ok::<_, Failure>(()) }
    };
    let options = TransactOptions::default();
    let all = events("a b");
    let answers = bench.inbox.transact_batch(&all, options, work);
    for answer in answers.await {
        assert!(matches!(answer, Err(InboxError::TransactionKept)));
    }
    assert_eq!(
        kept.lock().unwrap().len(),
        1,
        "not again beside the kept one"
    );
    let work = |new: NewEvents, _: Tx| async move {
        assert!(new.events.iter().all(|(e, _)| e.id() != "b"), "not b");
        Ok::<_, Failure>(())
    };
    let answers = bench
        .inbox
        .transact_batch(&events("a b"), options, work)
        .await;
    assert_eq!(answers[0].as_ref().unwrap(), &Receipt::Handled);
    match &answers[1] {
        // The transaction that it kept counts as well.
        Err(InboxError::Failed { failed, attempt: 2 }) => {
            assert_eq!(failed.ran(), Ran::No);
            assert_eq!(failed.to_string(), "the work panicked: not b");
        }
        other => panic!("{other:?}"),
    }
}
