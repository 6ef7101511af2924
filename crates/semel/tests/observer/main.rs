//! What an observer is told: each signal with what is known of it, and never a key.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

#[cfg(feature = "metrics")]
mod counted;
#[path = "../faults/flaky.rs"]
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod flaky;
#[cfg(feature = "tracing")]
#[path = "../scripted/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod scripted;
#[cfg(feature = "tracing")]
mod traced;

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flaky::Flaky;
use semel::guard::{
    Answered, Asked, Attempt, Background, Begin, Case, Finding, Guard, Held, Observer, OnError,
    OnStoreError, Policy, ReconcileOptions, Reconciled, Reconciler, Seen, Settled, Signal,
    StepError,
};
use semel::memory::{Limits, MemoryStore};
use semel::store::{Fence, OnLost, Retention};
use semel::{Fingerprint, Identity, Key, Outcome, OutcomeKind, Scope, Store, StoreError};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
/// Of which eight characters may be seen.
const KEY: &str = "key-0123456789abcdef";

/// An event as it was told: what outlives it.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    signal: Signal,
    /// A letter for each field that was there.
    fields: String,
    attempt: Option<u32>,
    fence: Option<Fence>,
    waited: Option<Duration>,
    ran_for: Option<Duration>,
}

#[derive(Default)]
struct Watch {
    told: Mutex<Vec<Told>>,
    all: Mutex<Vec<Told>>,
}

impl Observer for Watch {
    fn on_event(&self, seen: &Seen<'_>) {
        if let (Some(id), Some(hint)) = (seen.id, seen.key_hint) {
            assert_eq!((id, hint), (identity().digest(), "key-0123"));
        }
        assert_eq!(seen.operation.unwrap_or("pay"), "pay");
        assert!(!format!("{seen:?}").contains("key-01234"), "{seen:?}");
        let fields = [
            ('o', seen.operation.is_some()),
            ('i', seen.id.is_some()),
            ('h', seen.key_hint.is_some()),
            ('a', seen.attempt.is_some()),
            ('f', seen.fence.is_some()),
            ('w', seen.waited.is_some()),
            ('r', seen.ran_for.is_some()),
        ];
        let told = Told {
            signal: seen.signal,
            fields: fields.iter().filter(|field| field.1).map(|f| f.0).collect(),
            attempt: seen.attempt,
            fence: seen.fence,
            waited: seen.waited,
            ran_for: seen.ran_for,
        };
        self.all.lock().unwrap().push(told.clone());
        self.told.lock().unwrap().push(told);
    }
}

impl Watch {
    /// What was told since the last time.
    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn signals(&self) -> Vec<Signal> {
        self.told().iter().map(|told| told.signal).collect()
    }
}

/// What is known of whom each signal is about. Those that are not here come from HTTP, and are in the
/// tests of `semel-tower`.
fn fields(signal: Signal) -> &'static [&'static str] {
    match signal {
        // Of a call without a key nothing is known.
        Signal::Unkeyed | Signal::MissingKey => &[""],
        // The answers to a claim: of the new attempt, of the one that was found, of a record.
        Signal::New | Signal::Again => &["oihafw"],
        Signal::InFlight | Signal::Unknown => &["oihfw"],
        Signal::Replayed | Signal::Mismatch | Signal::Expired | Signal::Unprotected => &["oihw"],
        Signal::Capacity => &["oih"],
        // Of a claim that is not answered, and of an attempt.
        Signal::Deferred | Signal::GaveUp => &["oih", "oihafr"],
        // Of a record as well that is to be asked about, and is not shown.
        Signal::StoreError => &["oih", "oihafr", "if"],
        Signal::Completed
        | Signal::Omitted
        | Signal::Released
        | Signal::MarkedUnknown
        | Signal::StepKept
        | Signal::StepReplayed
        | Signal::Renewed
        | Signal::Stale => &["oihafr"],
        Signal::ReconcileAsked | Signal::ReconcileGaveUp => &["oihaf"],
        Signal::Resolved
        | Signal::ResolveRefused
        | Signal::StillUnknown
        | Signal::ReconcilerFailed => &["oihafr"],
        _ => &[],
    }
}

fn identity() -> Identity {
    Identity::new(Scope::new(["tenant"]), "pay", Key::new(KEY).unwrap())
}

fn asked() -> Asked {
    Asked::new(identity(), Fingerprint::of(b"7 EUR")).classify(|_: &&str| OnError::Release)
}

fn policy() -> Policy {
    Policy::default().with_retention(Retention::API)
}

/// Finds out one thing after another.
struct Script(Mutex<VecDeque<Option<Finding>>>);

impl Reconciler for Script {
    fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async {
            sleep(2 * SECOND).await;
            let finding = self.0.lock().unwrap().pop_front().flatten();
            Ok(finding.ok_or("the bank is closed")?.into())
        })
    }
}

fn scripted(watch: &Arc<Watch>, findings: &[Option<Finding>]) -> Guard<Arc<Flaky>> {
    Guard::builder(Arc::<Flaky>::default())
        .policy(policy())
        .observer(watch.clone())
        .reconciler(Arc::new(Script(Mutex::new(findings.to_vec().into()))))
        .build()
}

fn guard(watch: &Arc<Watch>) -> Guard<Arc<Flaky>> {
    scripted(watch, &[])
}

async fn held<S: Store>(guard: &Guard<S>, asked: Asked) -> Held<S> {
    match guard.begin(&asked).await.unwrap() {
        Begin::Acquired(held) => held,
        other => panic!("{other:?}"),
    }
}

fn applied(settled: Result<Settled, StoreError>) {
    assert_eq!(settled.unwrap(), Settled::Applied);
}

async fn ok<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}

/// One attempt after another on one key, and what is told of each.
async fn lives(watch: &Arc<Watch>) {
    let guard = guard(watch);
    let busy = |_| async {
        sleep(11 * SECOND).await;
        Err::<(), _>("busy")
    };
    guard.run(asked(), busy).await.unwrap_err();
    let told = watch.told();
    let [new, renewed, released] = &*told else {
        panic!("{told:?}")
    };
    assert_eq!((new.signal, new.attempt), (Signal::New, Some(1)));
    assert_eq!(
        (renewed.signal, renewed.fence),
        (Signal::Renewed, new.fence)
    );
    assert_eq!(renewed.ran_for, Some(10 * SECOND));
    assert_eq!(released.signal, Signal::Released);
    assert_eq!(
        (released.fence, released.ran_for),
        (new.fence, Some(11 * SECOND))
    );

    let second = held(&guard, asked()).await;
    let again = watch.told().remove(0);
    assert_eq!((again.signal, again.attempt), (Signal::Again, Some(2)));
    assert!(again.fence > new.fence);
    let waits = asked().with_policy(policy().with_wait(3 * SECOND));
    let in_flight = guard.begin(&waits).await.unwrap();
    assert!(matches!(in_flight, Begin::InFlight { .. }));
    let in_flight = watch.told().remove(0);
    assert_eq!(
        (in_flight.signal, in_flight.fence),
        (Signal::InFlight, again.fence)
    );
    assert_eq!(in_flight.waited, Some(3 * SECOND));

    applied(second.complete(&Outcome::void()).await);
    guard.run(asked(), |_| ok(())).await.unwrap();
    let other = Asked::new(identity(), Fingerprint::of(b"8 EUR"));
    guard.run(other, |_| ok(())).await.unwrap_err();
    let signals = [Signal::Completed, Signal::Replayed, Signal::Mismatch];
    assert_eq!(watch.signals(), signals);
}

async fn without_a_key(watch: &Arc<Watch>) {
    let guard = guard(watch);
    let unkeyed = Asked::unkeyed(Fingerprint::of(b""));
    guard.run(unkeyed.clone(), |_| ok(())).await.unwrap();
    let required = unkeyed.with_policy(policy().with_key_required(true));
    guard.run(required, |_| ok(())).await.unwrap_err();
    assert_eq!(watch.signals(), [Signal::Unkeyed, Signal::MissingKey]);
}

async fn other_ends(watch: &Arc<Watch>) {
    let tombstone = Retention::new(SECOND).with_tombstone(Duration::from_hours(1));
    let guard = guard(watch).with_policy(policy().with_retention(tombstone));
    let omitted = Outcome::builder(OutcomeKind::Omitted).body(b"");
    applied(held(&guard, asked()).await.complete(&omitted).await);
    sleep(SECOND).await;
    guard.run(asked(), |_| ok(())).await.unwrap_err();
    let signals = [Signal::New, Signal::Omitted, Signal::Expired];
    assert_eq!(watch.signals(), signals);

    let guard = self::guard(watch);
    applied(held(&guard, asked()).await.mark_unknown().await);
    guard.run(asked(), |_| ok(())).await.unwrap_err();
    let signals = [Signal::New, Signal::MarkedUnknown, Signal::Unknown];
    assert_eq!(watch.signals(), signals);

    let guard = self::guard(watch).with_policy(policy().with_on_lost(OnLost::Retry));
    let zombie = held(&guard, asked()).await;
    zombie.stop_renewing();
    sleep(30 * SECOND).await;
    guard.run(asked(), |_| ok(())).await.unwrap();
    let late = zombie.complete(&Outcome::void()).await;
    assert!(matches!(late, Ok(Settled::Refused(_))));
    let told = watch.told();
    let signals: Vec<Signal> = told.iter().map(|told| told.signal).collect();
    assert_eq!(
        signals,
        [Signal::New, Signal::Again, Signal::Completed, Signal::Stale]
    );
    // Its own, not that of the attempt which took over.
    assert_eq!(told[3].fence, told[0].fence);
}

async fn steps(watch: &Arc<Watch>) {
    let guard = guard(watch);
    let work = |mut attempt: Attempt<_>| async move {
        attempt.step("charge", |_| ok(())).await.unwrap();
        match attempt.number {
            1 => Err(StepError::Failed("busy")),
            _ => Ok(()),
        }
    };
    guard.run(asked().in_steps(), work).await.unwrap_err();
    guard.run(asked().in_steps(), work).await.unwrap();
    let first = [Signal::New, Signal::StepKept, Signal::Released];
    let second = [Signal::Again, Signal::StepReplayed, Signal::Completed];
    assert_eq!(watch.signals(), [first, second].concat());
}

async fn stores_that_fail(watch: &Arc<Watch>) {
    let guard = guard(watch);
    let held = held(&guard, asked()).await;
    guard.store().down.store(true, SeqCst);
    drop(held);
    sleep(6 * SECOND).await;
    guard.drain().await;
    let mut signals = watch.signals();
    signals.dedup();
    assert_eq!(
        signals,
        [
            Signal::New,
            Signal::StoreError,
            Signal::Deferred,
            Signal::StoreError,
            Signal::GaveUp
        ]
    );

    let open = policy().with_on_store_error(OnStoreError::FailOpen);
    guard
        .run(asked().with_policy(open), |_| ok(()))
        .await
        .unwrap();
    // The claim may have arrived, and is looked for.
    guard.drain().await;
    let mut signals = watch.signals();
    signals.dedup();
    assert_eq!(
        signals,
        [
            Signal::StoreError,
            Signal::Unprotected,
            Signal::StoreError,
            Signal::Deferred,
            Signal::GaveUp
        ]
    );

    // A caller's question is asked again, and the store has gone away.
    let guard = self::guard(watch).with_policy(policy().with_on_lost(OnLost::Reconcile));
    applied(self::held(&guard, asked()).await.mark_unknown().await);
    let away = async {
        sleep(SECOND).await;
        guard.store().down.store(true, SeqCst);
    };
    let (asked_about, ()) = tokio::join!(guard.run(asked(), |_| ok(())), away);
    asked_about.unwrap_err();
    let mut signals = watch.signals();
    signals.dedup();
    assert_eq!(
        signals,
        [
            Signal::New,
            Signal::MarkedUnknown,
            Signal::ReconcileAsked,
            Signal::ReconcilerFailed,
            Signal::StillUnknown,
            Signal::StoreError,
            Signal::Unknown
        ]
    );

    let full = MemoryStore::new(Limits {
        records: 0,
        bytes: 0,
    });
    let guard = Guard::builder(full).observer(watch.clone()).build();
    guard.run(asked(), |_| ok(())).await.unwrap_err();
    assert_eq!(watch.signals(), [Signal::Capacity]);
}

async fn questions(watch: &Arc<Watch>) {
    let happened = Some(Finding::Happened(Outcome::void()));
    let findings = [None, Some(Finding::StillUnknown), happened];
    let guard = scripted(watch, &findings);
    let options = ReconcileOptions::background().with_attempts(2);
    let mut background = Background::new(guard.clone(), [("pay", policy())])
        .with_options(options)
        .with_every(SECOND);
    applied(held(&guard, asked()).await.mark_unknown().await);
    watch.told();
    background.turn().await.unwrap();
    let told = watch.told();
    let failed = [
        Signal::ReconcileAsked,
        Signal::ReconcilerFailed,
        Signal::StillUnknown,
    ];
    assert_eq!(
        told.iter().map(|told| told.signal).collect::<Vec<_>>(),
        failed
    );
    assert_eq!(told[1].ran_for, Some(2 * SECOND));
    sleep(3 * SECOND).await;
    background.turn().await.unwrap();
    let last = [
        Signal::ReconcileAsked,
        Signal::StillUnknown,
        Signal::ReconcileGaveUp,
    ];
    assert_eq!(watch.signals(), last);

    // Two processes ask, and one answer comes late.
    let (one, script) = (
        guard.clone(),
        Script(Mutex::new([Some(Finding::DidNotHappen)].into())),
    );
    let two = Guard::builder(guard.store().clone())
        .observer(watch.clone())
        .reconciler(Arc::new(script))
        .build();
    let (one, two) = tokio::join!(
        one.reconcile_all([("pay", policy())]),
        two.reconcile_all([("pay", policy())])
    );
    assert_eq!(one.unwrap().resolved + two.unwrap().resolved, 1);
    let signals = watch.signals();
    assert!(signals.contains(&Signal::Resolved), "{signals:?}");
    assert!(signals.contains(&Signal::ResolveRefused), "{signals:?}");
}

#[tokio::test(start_paused = true)]
async fn every_signal_says_what_it_is_about() {
    let watch = Arc::new(Watch::default());
    lives(&watch).await;
    without_a_key(&watch).await;
    other_ends(&watch).await;
    steps(&watch).await;
    stores_that_fail(&watch).await;
    questions(&watch).await;

    let all = watch.all.lock().unwrap();
    for signal in Signal::ALL {
        let of = all.iter().filter(|told| told.signal == *signal);
        let found: BTreeSet<&str> = of.map(|told| &*told.fields).collect();
        let expected: BTreeSet<&str> = fields(*signal).iter().copied().collect();
        assert_eq!(found, expected, "{signal:?}");
    }
}

/// Both of a pair are told, of questions as well.
#[tokio::test(start_paused = true)]
async fn a_pair_is_an_observer() {
    struct Shared(Arc<Watch>, Arc<Mutex<Vec<String>>>);
    impl Observer for Shared {
        fn on_event(&self, seen: &Seen<'_>) {
            self.0.on_event(seen);
        }
        fn on_reconcile(&self, _: &Case<'_>, news: &Reconciled<'_>) {
            self.1.lock().unwrap().push(news.as_str().to_owned());
        }
    }
    let (one, two) = (Arc::new(Watch::default()), Arc::new(Watch::default()));
    let (news_of_one, news_of_two) = (Arc::default(), Arc::default());
    let pair = (
        Shared(one.clone(), Arc::clone(&news_of_one)),
        Shared(two.clone(), Arc::clone(&news_of_two)),
    );
    let script = Script(Mutex::new([Some(Finding::DidNotHappen)].into()));
    let guard = Guard::builder(MemoryStore::default())
        .observer(Arc::new(pair))
        .reconciler(Arc::new(script))
        .build();
    applied(held(&guard, asked()).await.mark_unknown().await);
    guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!(one.told(), two.told());
    assert_eq!(one.all.lock().unwrap().len(), 4);
    for news in [news_of_one, news_of_two] {
        assert_eq!(*news.lock().unwrap(), ["did_not_happen"]);
    }
}
