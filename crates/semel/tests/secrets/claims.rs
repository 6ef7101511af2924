//! One claim under two secrets: by what stands under the two names, and by what comes between its steps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{Begin, Guard, OnStoreError, Policy};
use semel::memory::{Limits, MemoryStore};
use semel::record::{Change, Update};
use semel::store::{Claim, ClaimRequest, Entry, Fenced, Nonce, OnLost, Result};
use semel::{
    Fingerprint, FinishedStep, Identity, IdentityDigest, Note, StateKind, Store, StoreError,
    StoreErrorKind, StoreExt as _, SystemClock,
};
use tokio::time::sleep;

use super::world::LEASE;
use super::{A, B, asked, identity, secrets};

/// What stands under a name.
#[derive(Debug, Clone, Copy)]
enum Stands {
    Nothing,
    /// An attempt holds it.
    Held,
    /// Its attempt's lease has lapsed.
    Lost,
    /// It was given back with a finished step.
    Steps,
    /// It was given back, and nothing ran.
    Released,
    /// A claim of the second name has not looked yet whether there are steps to go on with.
    Passing,
}

/// What becomes of a claim on its way.
#[derive(Debug, Clone, Copy)]
enum Way {
    Open,
    /// Another program, with the other list, claims the other name before it.
    Overtaken,
    /// Likewise, and gives it back a millisecond later.
    Passed,
    /// It takes as long as its lease.
    Slow,
    /// The store has gone away.
    Closed,
}

/// A store, and the ways of its claims, one after the other; all later ones are open.
struct Interrupted {
    memory: Arc<MemoryStore<Arc<SystemClock>>>,
    ways: Mutex<VecDeque<Way>>,
    /// It goes away when the first claim is given back.
    goes_away: bool,
    is_away: AtomicBool,
}

impl Interrupted {
    fn new(ways: &[Way], goes_away: bool) -> Arc<Self> {
        let clock = Arc::new(SystemClock::new());
        Arc::new(Self {
            memory: Arc::new(MemoryStore::with_clock(Limits::default(), clock)),
            ways: Mutex::new(ways.iter().copied().collect()),
            goes_away,
            is_away: AtomicBool::new(false),
        })
    }

    fn reached(&self) -> Result<()> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(StoreError::new(StoreErrorKind::NotApplied, "the network")),
            false => Ok(()),
        }
    }

    /// Puts a record in this state under a name; what was asked is 9 EUR.
    async fn with(&self, name: &Identity, stands: Stands) {
        let nine = name.fingerprint(request().fingerprint);
        let passing: &[_] = match stands {
            Stands::Passing => &[("semel.second-secret", "looks")],
            _ => &[],
        };
        let request = ClaimRequest {
            fingerprint: nine,
            ..request().with_note(Note::new(passing.iter().copied()))
        };
        let claim = async || match self.memory.claim(name, &request).await {
            Ok(Claim::Acquired(acquired)) => acquired.token,
            other => panic!("{other:?}"),
        };
        match stands {
            Stands::Nothing => {}
            Stands::Held | Stands::Passing => {
                claim().await;
            }
            Stands::Released => {
                let token = claim().await;
                let given_back = self.memory.abandon(name.digest(), &token);
                assert_eq!(given_back.await.unwrap(), Fenced::Applied);
            }
            Stands::Lost => {
                claim().await;
                sleep(LEASE).await;
            }
            Stands::Steps => {
                let token = claim().await;
                let step = FinishedStep::new("pay", b"paid").unwrap();
                let kept = self.memory.keep_step(name.digest(), &token, &step, 0);
                assert_eq!(kept.await.unwrap(), Fenced::Applied);
                let given_back = self.memory.abandon(name.digest(), &token);
                assert_eq!(given_back.await.unwrap(), Fenced::Applied);
            }
        }
    }
}

impl Store for Interrupted {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let way = self.ways.lock().unwrap().pop_front().unwrap_or(Way::Open);
        match way {
            Way::Closed => self.is_away.store(true, Ordering::SeqCst),
            Way::Overtaken => self.with(&identity.other().unwrap(), Stands::Held).await,
            Way::Passed => {
                let (memory, other) = (self.memory.clone(), identity.other().unwrap());
                self.with(&other, Stands::Held).await;
                tokio::spawn(async move {
                    sleep(Duration::from_millis(1)).await;
                    let rival = memory.get(other.digest()).await.unwrap().unwrap();
                    let given_back = memory.abandon(other.digest(), &rival.record.token);
                    assert_eq!(given_back.await.unwrap(), Fenced::Applied);
                });
            }
            Way::Slow => sleep(request.lease).await,
            Way::Open => {}
        }
        self.reached()?;
        self.memory.claim(identity, request).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        if let Change::Held(_, Update::Abandon) = change {
            self.is_away.fetch_or(self.goes_away, Ordering::SeqCst);
        }
        self.reached()?;
        self.memory.change(identity, change).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.reached()?;
        self.memory.get(identity).await
    }

    semel::delegate!(memory: list, wait, purge, probe, close);
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"9 EUR"), LEASE)
}

fn under(lines: &[&str]) -> Identity {
    identity("k", secrets(lines).as_ref())
}

#[tokio::test(start_paused = true)]
async fn what_stands_under_the_two_names_decides() {
    use OnLost::{Hold, Retry};
    use Stands::{Held, Lost, Nothing, Passing, Released, Steps};
    for (of_a, of_b, on_lost, expected) in [
        (Nothing, Nothing, Hold, ("a", "new")),
        (Held, Nothing, Retry, ("a", "in flight")),
        (Nothing, Held, Retry, ("b", "in flight")),
        (Lost, Nothing, Hold, ("a", "unknown")),
        (Lost, Nothing, Retry, ("a", "taken over")),
        (Nothing, Lost, Retry, ("b", "taken over")),
        // Nobody can tell which of them ran.
        (Lost, Lost, Retry, ("a", "unknown")),
        (Nothing, Steps, Hold, ("b", "new")),
        // What is open beside steps ran nothing.
        (Steps, Held, Hold, ("a", "new")),
        (Steps, Lost, Hold, ("a", "new")),
        // Nothing ran there.
        (Nothing, Released, Hold, ("a", "new")),
        (Nothing, Passing, Retry, ("a", "new")),
    ] {
        let case = format!("{of_a:?} {of_b:?} {on_lost:?}");
        let store = Interrupted::new(&[], false);
        store.with(&under(&[A]), of_a).await;
        store.with(&under(&[B]), of_b).await;
        let guard = Guard::from(store.clone());
        // The guard's own name among the caller's notes is not the caller's.
        let note = Note::new([("who", "me"), ("semel.second-secret", "no")]);
        let request = request().with_on_lost(on_lost).with_note(note);
        let (name, claim) = guard.claim(&under(&[A, B]), &request).await.unwrap();
        let is_first = *name.digest() == *under(&[A]).digest();
        let said = match claim {
            Claim::Acquired(acquired) => {
                let entry = store.get(name.digest()).await.unwrap().unwrap();
                assert_eq!(entry.record.note.get("who"), Some("me"), "{case}");
                // A take-over is another claim, under another nonce. Any other claim of the second name says
                // that it runs nothing but further steps.
                let passes = entry.record.note.get("semel.second-secret");
                match acquired.token.nonce == request.nonce {
                    true => {
                        assert_eq!(passes.is_some(), !is_first, "{case}");
                        assert_ne!(passes, Some("no"), "{case}");
                        "new"
                    }
                    false => {
                        assert_eq!(passes, None, "{case}");
                        "taken over"
                    }
                }
            }
            Claim::InFlight { .. } => "in flight",
            Claim::Unknown { .. } => "unknown",
            other => panic!("{case}: {other:?}"),
        };
        let told = (if is_first { "a" } else { "b" }, said);
        assert_eq!(told, expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_is_found_under_the_name_that_it_has() {
    for (of_a, of_b, expected) in [
        (Stands::Nothing, Stands::Released, B),
        (Stands::Released, Stands::Nothing, A),
        (Stands::Released, Stands::Held, B),
        (Stands::Released, Stands::Released, A),
    ] {
        let store = Interrupted::new(&[], false);
        store.with(&under(&[A]), of_a).await;
        store.with(&under(&[B]), of_b).await;
        let found = Guard::from(store).look_up(&under(&[A, B])).await.unwrap();
        let name = found.map(|(name, _)| *name.digest());
        assert_eq!(
            name,
            Some(*under(&[expected]).digest()),
            "{of_a:?} {of_b:?}"
        );
    }
}

/// Programs that have the secrets in another order find the same.
#[tokio::test(start_paused = true)]
async fn of_two_that_are_held_the_older_is_in_the_way() {
    for lines in [[A, B], [B, A]] {
        let store = Interrupted::new(&[], false);
        store.with(&under(&[A]), Stands::Held).await;
        sleep(LEASE / 4).await;
        store.with(&under(&[B]), Stands::Held).await;
        let claim = Guard::from(store).claim(&under(&lines), &request()).await;
        let (name, claim) = claim.unwrap();
        assert_eq!(name.digest(), under(&[A]).digest(), "{lines:?}");
        assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_steps_back_is_given_back() {
    let store = Interrupted::new(&[Way::Overtaken], false);
    let guard = Guard::from(store.clone());
    let request_now = request();
    let (name, claim) = guard.claim(&under(&[A, B]), &request_now).await.unwrap();
    assert_eq!(*name.digest(), *under(&[B]).digest());
    assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
    let given_back = store.get(under(&[A]).digest()).await.unwrap();
    assert_eq!(given_back.unwrap().record.state.kind(), StateKind::Released);
    // The same call claims again once it has waited.
    let rival = store
        .get(name.digest())
        .await
        .unwrap()
        .unwrap()
        .record
        .token;
    let given_back = store.abandon(name.digest(), &rival).await.unwrap();
    assert_eq!(given_back, Fenced::Applied);
    let (_, claim) = guard.claim(&under(&[A, B]), &request_now).await.unwrap();
    assert!(matches!(claim, Claim::Acquired(_)), "{claim:?}");

    // So is one that was answered when its lease was over: it does not run.
    let store = Interrupted::new(&[Way::Slow, Way::Closed], false);
    let guard = Guard::from(store.clone());
    let claim = guard.claim(&under(&[A, B]), &request()).await;
    assert!(claim.is_err(), "{claim:?}");
    let given_back = store.memory.get(under(&[A]).digest()).await.unwrap();
    assert_eq!(given_back.unwrap().record.state.kind(), StateKind::Released);
}

/// Under a name that it has given back it is acquired again, once nobody is in its way.
#[tokio::test(start_paused = true)]
async fn a_claim_that_stepped_back_is_made_again() {
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let store = Interrupted::new(&[Way::Passed], false);
        let guard = Guard::from(store.clone());
        let request = ClaimRequest {
            on_lost,
            ..request()
        };
        let (name, claim) = guard.claim(&under(&[A, B]), &request).await.unwrap();
        let Claim::Acquired(acquired) = claim else {
            panic!("{claim:?}");
        };
        let record = store.get(name.digest()).await.unwrap().unwrap().record;
        assert_eq!(
            (record.state.kind(), record.token),
            (StateKind::InFlight, acquired.token)
        );
    }
}

/// R9: to run without the store is for what nobody knows of.
#[tokio::test(start_paused = true)]
async fn what_is_found_after_the_claim_does_not_run_unprotected() {
    let policy = Policy::default()
        .with_lease(LEASE)
        .with_on_store_error(OnStoreError::FailOpen);
    for (way, is_known) in [(Way::Overtaken, true), (Way::Slow, false)] {
        let guard = Guard::new(Interrupted::new(&[way], true), policy);
        match guard.begin(&asked("k", &[A, B], "9 EUR")).await {
            Err(_) if is_known => {}
            Ok(Begin::Unprotected(_)) if !is_known => {}
            other => panic!("{way:?}: {other:?}"),
        }
    }
}
