//! Records under secrets, and what holds while these are rotated.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{Asked, Attempt, Begin, Done, Guard, Policy, RunError, Settlement, StepError};
use semel::memory::{Limits, MemoryStore};
use semel::record::Change;
use semel::secrets::Secrets;
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, OnLost, Page, Probe, Purged, Result,
    Retention, Store, Waited,
};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, KeysError, ManualClock, Scope, StateKind, Timestamp,
};
use tokio::task::{JoinSet, yield_now};

const A: &str = "a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const B: &str = "b //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

fn secrets(lines: &[&str]) -> Secrets {
    Secrets::parse(&lines.join("\n")).unwrap()
}

fn identity(key: &str, secrets: Option<&Secrets>) -> Identity {
    let key = Key::new(key).unwrap();
    Identity::keyed(Scope::new(["acme"]), "pay", key, secrets)
}

fn asked(key: &str, secrets: Option<&Secrets>) -> Asked {
    Asked::new(identity(key, secrets), Fingerprint::of(b"9 EUR"))
}

type Memory = MemoryStore<Arc<ManualClock>>;

fn memory() -> (Arc<Memory>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    (Arc::new(store), clock)
}

/// A store that takes its time before and after each step, so that others come between.
#[derive(Clone)]
struct Slow(Arc<Memory>, Arc<AtomicU64>);

impl Slow {
    fn new(store: Arc<Memory>, seed: u64) -> Self {
        Self(store, Arc::new(AtomicU64::new(seed)))
    }

    async fn pause(&self) {
        let next = |n: u64| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        let n = self
            .1
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        for _ in 0..(n.unwrap_or_default() >> 60) {
            yield_now().await;
        }
    }
}

macro_rules! slowly {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty)*) => {
        impl Store for Slow {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out> {
                self.pause().await;
                let answer = self.0.$name($($arg),*).await;
                self.pause().await;
                answer
            })*
        }
    };
}

slowly! {
    claim(identity: &Identity, request: &ClaimRequest) -> Claim
    change(identity: &IdentityDigest, change: &Change) -> Fenced
    get(identity: &IdentityDigest) -> Option<Entry>
    list(query: &ListQuery) -> Page
    purge(limit: usize) -> Purged
    wait(identity: &IdentityDigest, fence: Fence, timeout: Duration) -> Waited
    probe() -> Probe
    close() -> ()
}

#[test]
fn names_and_fingerprints_are_others_under_each_secret() {
    let (a, b, both) = (secrets(&[A]), secrets(&[B]), secrets(&[A, B]));
    let plain = identity("4111111111111111", None);
    let under_a = identity("4111111111111111", Some(&a));
    let under_b = identity("4111111111111111", Some(&b));
    assert_eq!(plain.other(), None);
    assert_eq!(under_a.other(), None);
    assert_ne!(under_a.digest(), plain.digest());
    assert_ne!(under_a.digest(), under_b.digest());
    let rotating = identity("4111111111111111", Some(&both));
    assert_eq!(rotating.digest(), under_a.digest());
    assert_eq!(rotating.other().unwrap().digest(), under_b.digest());
    assert_eq!(rotating.other().unwrap().other().unwrap(), rotating);
    let fingerprint = Fingerprint::of(b"4111111111111111");
    assert_ne!(under_a.fingerprint(fingerprint), fingerprint);
    assert_ne!(
        under_a.fingerprint(fingerprint),
        under_b.fingerprint(fingerprint)
    );
    let other = rotating.other().unwrap().fingerprint(fingerprint);
    assert_eq!(other, under_b.fingerprint(fingerprint));
    let plain_last = secrets(&[A, "plain"]);
    let rotating = identity("4111111111111111", Some(&plain_last));
    assert_eq!(rotating.other().unwrap().digest(), plain.digest());
    let third = B.replacen('b', "c", 1).replace("//", "//8");
    let three = Secrets::parse(&format!("{A}\n{B}\nplain\n# {third}")).unwrap_err();
    assert_eq!(three, KeysError::TooMany(3, 2));
}

#[tokio::test]
async fn nothing_of_it_is_kept_that_can_be_guessed() {
    let (store, _) = memory();
    let secrets = secrets(&[A]);
    let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
    let guard = Guard::from(store.clone());
    guard.run(asked("4111", Some(&secrets)), pay).await.unwrap();
    let page = store
        .list(&ListQuery::new(StateKind::Completed))
        .await
        .unwrap();
    let bytes = page.entries[0].to_bytes();
    let plain = identity("4111", None);
    let fingerprint = Fingerprint::of(b"9 EUR").to_bytes();
    for guessed in [&plain.digest().as_bytes()[..], &fingerprint[1..]] {
        assert!(!bytes.windows(32).any(|bytes| bytes == guessed));
    }
}

#[tokio::test]
async fn answers_outlive_a_rotation_step_by_step() {
    let (store, _) = memory();
    let guard = Guard::from(store.clone());
    let steps: [Option<&[&str]>; 6] = [
        None,
        Some(&["plain", A]),
        Some(&[A, "plain"]),
        Some(&[A, B]),
        Some(&[B, A]),
        Some(&[B]),
    ];
    for (nth, lines) in steps.iter().enumerate() {
        let secrets = lines.map(secrets);
        let pay = move |_| async move { Ok::<_, std::io::Error>(format!("paid {nth}")) };
        let key = format!("key-{nth}");
        let done = guard.run(asked(&key, secrets.as_ref()), pay).await.unwrap();
        assert_eq!(done, Done::Fresh(format!("paid {nth}")));
        // Whatever was made in the two steps before.
        for before in nth.saturating_sub(1)..=nth {
            let asked = asked(&format!("key-{before}"), secrets.as_ref());
            let again = guard.run(asked, pay).await.unwrap();
            assert_eq!(again, Done::Replayed(format!("paid {before}")), "{lines:?}");
        }
        let mismatch = Asked::new(identity(&key, secrets.as_ref()), Fingerprint::of(b"8 EUR"));
        let refused = guard.run(mismatch, pay).await;
        assert!(matches!(refused, Err(RunError::Mismatch)), "{refused:?}");
    }
    // Claims that were given back are all that is there beside.
    let left = store
        .list(&ListQuery::new(StateKind::InFlight))
        .await
        .unwrap();
    assert!(left.entries.is_empty());
}

#[tokio::test]
async fn without_a_rotation_a_claim_is_one_call() {
    let store = Slow::new(memory().0, 1);
    let guard = Guard::from(Counting(store, Arc::default()));
    let pay = |_| async { Ok::<_, std::io::Error>(()) };
    let one = secrets(&[A]);
    guard.run(asked("k", Some(&one)), pay).await.unwrap();
    guard.run(asked("k", Some(&one)), pay).await.unwrap();
    // A claim and a completion; a claim.
    assert_eq!(guard.store().1.load(Ordering::SeqCst), 3);
}

struct Counting(Slow, Arc<AtomicU64>);

macro_rules! counted {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty)*) => {
        impl Store for Counting {
            $(async fn $name(&self, $($arg: $type),*) -> Result<$out> {
                self.1.fetch_add(1, Ordering::SeqCst);
                self.0.$name($($arg),*).await
            })*
        }
    };
}

counted! {
    claim(identity: &Identity, request: &ClaimRequest) -> Claim
    change(identity: &IdentityDigest, change: &Change) -> Fenced
    get(identity: &IdentityDigest) -> Option<Entry>
    list(query: &ListQuery) -> Page
    purge(limit: usize) -> Purged
    wait(identity: &IdentityDigest, fence: Fence, timeout: Duration) -> Waited
    probe() -> Probe
    close() -> ()
}

/// Programs with the lists `A B` and `B A`, at once, on the same keys, whose attempts complete, are
/// released, and are lost: each key has one effect at most unless its attempts may be repeated, no two
/// attempts run at a time, and once there is an answer all get it.
async fn race(on_lost: OnLost, seed: u64) -> usize {
    const KEYS: usize = 24;
    const TASKS: usize = 12;
    let (memory, clock) = memory();
    #[derive(Default)]
    struct Seen {
        running: usize,
        effects: usize,
        answers: Vec<String>,
    }
    let history: Arc<Mutex<HashMap<usize, Seen>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lists = [&[A, B][..], &[B, A]];
        let secrets = secrets(lists[task % 2]);
        let policy = Policy::default()
            .with_lease(Duration::from_secs(60))
            .with_on_lost(on_lost);
        let store = Slow::new(memory.clone(), seed * 1_000 + task as u64);
        let guard = Guard::new(store.clone(), policy);
        let (history, clock) = (history.clone(), clock.clone());
        tasks.spawn(async move {
            for round in 0..6 {
                for key in 0..KEYS {
                    let name = format!("key-{key}");
                    let begun = guard.begin(&asked(&name, Some(&secrets))).await.unwrap();
                    match begun {
                        Begin::Acquired(held) => {
                            {
                                let mut history = history.lock().unwrap();
                                let seen = history.entry(key).or_default();
                                seen.running += 1;
                                assert_eq!(seen.running, 1, "two attempts run: {key}");
                                assert!(seen.answers.is_empty(), "it runs again: {key}");
                            }
                            store.pause().await;
                            let ends = (key + task + round) % 4;
                            let mut answer = None;
                            {
                                let mut history = history.lock().unwrap();
                                let seen = history.entry(key).or_default();
                                seen.running -= 1;
                                if ends != 0 {
                                    seen.effects += 1;
                                }
                                if ends > 1 {
                                    answer = Some(format!("{key} by {task} in {round}"));
                                    seen.answers.push(answer.clone().unwrap());
                                }
                            }
                            let settled = match (ends, answer) {
                                (_, Some(answer)) => {
                                    let outcome = semel::Outcome::success(answer.as_bytes());
                                    held.settle(Settlement::Complete(outcome, None)).await
                                }
                                (0, _) => held.release().await,
                                _ => held.mark_unknown().await,
                            };
                            assert_eq!(settled.unwrap(), semel::guard::Settled::Applied);
                        }
                        Begin::Completed(outcome) => {
                            let body = outcome.body().unwrap();
                            let history = history.lock().unwrap();
                            let answers = &history[&key].answers;
                            assert_eq!(answers.len(), 1, "{answers:?}");
                            assert_eq!(answers[0].as_bytes(), &body[..]);
                        }
                        Begin::InFlight { .. } | Begin::Unknown => {}
                        other => panic!("{other:?}"),
                    }
                }
                // What was left to lapse does.
                if on_lost == OnLost::Retry {
                    clock.advance(Duration::from_millis(1));
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let history = history.lock().unwrap();
    for (key, seen) in &*history {
        assert!(seen.answers.len() <= 1, "{key}: {:?}", seen.answers);
        if on_lost == OnLost::Hold {
            assert!(seen.effects <= 1, "{key} had {} effects", seen.effects);
        }
    }
    let answered = history.values().filter(|seen| !seen.answers.is_empty());
    answered.count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_runs_twice_while_two_lists_are_in_use() {
    let rounds = std::env::var("SEMEL_SECRETS_ROUNDS").ok();
    let rounds = rounds.and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut answered = 0;
    for seed in 0..rounds {
        answered += race(OnLost::Hold, seed).await;
        answered += race(OnLost::Retry, seed).await;
    }
    assert!(answered > 0, "too little was done to say anything");
}

/// A claim whose process died before it looked.
async fn phantom(store: &Arc<Memory>, identity: &Identity) {
    let request = ClaimRequest::new(
        semel::store::Nonce::random().unwrap(),
        identity.fingerprint(Fingerprint::of(b"9 EUR")),
        Duration::from_secs(1),
    );
    let claim = store.claim(identity, &request).await.unwrap();
    assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}");
}

#[tokio::test]
async fn a_claim_left_behind_hides_no_answer() {
    let (store, clock) = memory();
    let (ab, ba) = (secrets(&[A, B]), secrets(&[B, A]));
    let guard = Guard::from(store.clone());
    let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
    assert_eq!(
        guard.run(asked("k", Some(&ab)), pay).await.unwrap(),
        Done::Fresh("paid".into())
    );
    phantom(&store, &identity("k", Some(&ba))).await;
    // In flight, lapsed, and unknown.
    for _ in 0..3 {
        let done = guard.run(asked("k", Some(&ba)), pay).await.unwrap();
        assert_eq!(done, Done::Replayed("paid".into()));
        clock.advance(Duration::from_secs(1));
    }
    // Another request under it is a mismatch, as ever.
    let other = Asked::new(identity("k", Some(&ba)), Fingerprint::of(b"8 EUR"));
    assert!(matches!(
        guard.run(other, pay).await,
        Err(RunError::Mismatch)
    ));
}

/// Lapsed under the one, and claimed and left behind under the other: what is finished stays so, and
/// step keys are the same.
#[tokio::test]
async fn a_take_over_goes_on_where_steps_are_finished() {
    for (first, second) in [([A, B], [B, A]), ([A, B], [A, B]), ([B, A], [A, B])] {
        for has_phantom in [false, true] {
            let (store, clock) = memory();
            let (first, second) = (secrets(&first), secrets(&second));
            let policy = Policy::default().with_lease(Duration::from_secs(60));
            let keys = Arc::new(Mutex::new(Vec::new()));
            let begun = Guard::new(store.clone(), policy);
            let (seen, again) = (keys.clone(), keys.clone());
            // Lost after its first step: the work never ends, and its guard goes with this runtime's end.
            let attempt = |mut attempt: Attempt<Arc<Memory>>| async move {
                let _: String = attempt
                    .step("charge", |_| async { Ok("ch_1".to_owned()) })
                    .await?;
                let ship = |key| async move {
                    seen.lock().unwrap().push(key);
                    std::future::pending::<std::result::Result<String, String>>().await
                };
                attempt.step("ship", ship).await
            };
            let running = tokio::spawn({
                let (begun, asked) = (begun.clone(), asked("k", Some(&first)).in_steps());
                async move {
                    begun
                        .run::<String, StepError<String>, _, _>(asked, attempt)
                        .await
                }
            });
            while keys.lock().unwrap().is_empty() {
                yield_now().await;
            }
            clock.advance(Duration::from_secs(61));
            if has_phantom {
                let other = identity("k", Some(&first)).other().unwrap();
                phantom(&store, &other).await;
                clock.advance(Duration::from_secs(2));
            }
            let resumed = |mut attempt: Attempt<Arc<Memory>>| async move {
                let charge =
                    |_| async { panic!("it charges again") as std::result::Result<String, String> };
                let charge: String = attempt.step("charge", charge).await?;
                let ship = |key| async move {
                    again.lock().unwrap().push(key);
                    Ok("shipped".to_owned())
                };
                let shipped: String = attempt.step("ship", ship).await?;
                Ok::<_, StepError<String>>(format!("{charge}, {shipped}"))
            };
            let guard = Guard::new(store.clone(), policy);
            let asked = asked("k", Some(&second)).in_steps();
            let done = guard.run(asked, resumed).await.unwrap();
            assert_eq!(done, Done::Fresh("ch_1, shipped".into()), "{has_phantom}");
            let keys = keys.lock().unwrap();
            assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
            running.abort();
        }
    }
}

#[tokio::test]
async fn a_tombstone_under_the_other_secret_says_expired() {
    let (store, clock) = memory();
    let retention = Retention::new(Duration::from_secs(1)).with_tombstone(Duration::from_secs(60));
    let guard = Guard::new(store.clone(), Policy::default().with_retention(retention));
    let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
    let (ab, ba) = (secrets(&[A, B]), secrets(&[B, A]));
    guard.run(asked("k", Some(&ab)), pay).await.unwrap();
    clock.advance(Duration::from_secs(2));
    let refused = guard.run(asked("k", Some(&ba)), pay).await;
    assert!(matches!(refused, Err(RunError::Expired)), "{refused:?}");
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        guard.run(asked("k", Some(&ba)), pay).await.unwrap(),
        Done::Fresh("paid".into())
    );
}
