//! What happens in this process, told as it happens to whoever listens, and kept for a while by record.
//!
//! 1. *Nobody listens: nothing is done.* One relaxed load says which events somebody wants.
//! 2. *Listeners share one ring.* Who is slow loses the oldest events and is told how many; nobody waits
//!    for them, and they hold no memory of their own.
//! 3. *A record's events are those that the record itself does not say.* A first attempt that completes
//!    leaves nothing here; replays, conflicts, renewals and steps are counted.
//! 4. *No key and no body is in an event* (R12): a record is named by its digest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quick_cache::sync::Cache;
use semel::guard::{Seen, Signal};
use semel::{Clock as _, IdentityDigest, Service, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::logged::millis;
use crate::operations::view::time;

/// How many events a listener may be behind.
const BEHIND: usize = 1_024;
/// Of how many records events are kept, and how many of each.
const RECORDS: usize = 4 << 10;
const OF_A_RECORD: usize = 32;
/// What somebody did is an event too, besides the signals.
pub(crate) const ACTION: &str = "action";
const ACTION_BIT: u64 = 1 << 63;
const _: () = assert!(Signal::ALL.len() < 63, "a bit for each signal");

/// The events that can be asked for.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let signals = Signal::ALL.iter().map(|signal| signal.as_str());
    signals.chain([ACTION])
}

/// Which events a listener wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted(u64);

impl Default for Wanted {
    /// All of them.
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Wanted {
    pub(crate) const NONE: Self = Self(0);

    /// These and the one of this name, if there is one.
    pub(crate) fn and(self, name: &str) -> Option<Self> {
        let bit = match Signal::ALL.iter().find(|signal| signal.as_str() == name) {
            Some(signal) => bit(*signal),
            None if name == ACTION => ACTION_BIT,
            None => return None,
        };
        Some(Self(self.0 | bit))
    }
}

const fn bit(signal: Signal) -> u64 {
    1 << signal as u64
}

/// An event, as `GET /api/v1/events` writes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = LiveEvent)]
pub struct Live {
    /// When, by the gateway's clock.
    pub at: Option<String>,
    /// What: as in the metric `semel_events_total`, or `action`.
    pub event: String,
    /// The record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Which attempt, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Its fence; of a duplicate, that of the attempt which it found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// How long the caller waited for the store, and for an attempt in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<f64>,
    /// How long ago the attempt was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_for_ms: Option<f64>,
    /// Whether the request was only observed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observed: bool,
    /// `action`: what was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// `action`: what came of it, as in the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// `action`: the number of the audit log's entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<String>,
}

/// An event in the ring.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    bit: u64,
    pub(crate) live: Live,
}

/// Something that happened to a record, and how often in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) signal: Signal,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    pub(crate) times: u32,
    pub(crate) attempt: Option<u32>,
    pub(crate) fence: Option<u64>,
    pub(crate) observed: bool,
}

type Story = Mutex<Vec<Kept>>;

/// All of them.
#[derive(Debug)]
pub struct Events {
    /// What any listener wants.
    wanted: AtomicU64,
    /// What each wants.
    listeners: Mutex<Vec<Wanted>>,
    ring: broadcast::Sender<Arc<Told>>,
    stories: Cache<IdentityDigest, Arc<Story>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            wanted: AtomicU64::new(0),
            listeners: Mutex::default(),
            ring: broadcast::Sender::new(BEHIND),
            stories: Cache::new(RECORDS),
        }
    }
}

impl Events {
    /// This happened to a request, which may be one that is only observed.
    pub(crate) fn happened(&self, seen: &Seen<'_>, observed: bool) {
        // The record says these itself, and they are nearly all there are.
        let is_told = !matches!(
            seen.signal,
            Signal::New | Signal::Completed | Signal::Omitted
        );
        let id = seen.id.filter(|_| is_told);
        let bit = bit(seen.signal);
        let is_wanted = self.wanted.load(Ordering::Relaxed) & bit != 0;
        if id.is_none() && !is_wanted {
            return;
        }
        let now = now();
        if let Some(id) = id {
            self.keep(id, seen, observed, now);
        }
        if !is_wanted {
            return;
        }
        let named = seen.operation.map(Service::split);
        self.tell(
            bit,
            Live {
                at: time(now),
                event: seen.signal.as_str().to_owned(),
                id: seen.id.map(ToString::to_string),
                service: named.map(|(_, service)| service.to_owned()),
                operation: named.map(|(operation, _)| operation.to_owned()),
                attempt: seen.attempt,
                fence: seen.fence.map(|fence| fence.0),
                waited_ms: seen.waited.map(millis),
                ran_for_ms: seen.ran_for.map(millis),
                observed,
                ..Live::default()
            },
        );
    }

    /// An operator did this, and so it ended.
    pub(crate) fn acted(&self, action: &str, id: Option<&str>, result: &str, audit: &str) {
        if self.wanted.load(Ordering::Relaxed) & ACTION_BIT == 0 {
            return;
        }
        self.tell(
            ACTION_BIT,
            Live {
                at: time(now()),
                event: ACTION.to_owned(),
                id: id.map(str::to_owned),
                action: Some(action.to_owned()),
                result: Some(result.to_owned()),
                audit: Some(audit.to_owned()),
                ..Live::default()
            },
        );
    }

    fn tell(&self, bit: u64, live: Live) {
        // The last listener may just have gone.
        self.ring.send(Arc::new(Told { bit, live })).ok();
    }

    fn keep(&self, id: &IdentityDigest, seen: &Seen<'_>, observed: bool, now: Timestamp) {
        let story = self.stories.get(id).unwrap_or_else(|| {
            let none = || Ok::<_, std::convert::Infallible>(Arc::default());
            self.stories
                .get_or_insert_with(id, none)
                .unwrap_or_default()
        });
        let mut story = locked(&story);
        let fence = seen.fence.map(|fence| fence.0);
        if let Some(last) = story.last_mut()
            && (last.signal, last.fence, last.observed) == (seen.signal, fence, observed)
        {
            last.last = now;
            last.times = last.times.saturating_add(1);
            return;
        }
        if story.len() == OF_A_RECORD {
            story.remove(0);
        }
        story.push(Kept {
            signal: seen.signal,
            first: now,
            last: now,
            times: 1,
            attempt: seen.attempt,
            fence,
            observed,
        });
    }

    /// What happened to a record lately, the oldest first.
    pub(crate) fn of(&self, id: &IdentityDigest) -> Vec<Kept> {
        let story = self.stories.peek(id);
        story
            .map(|story| locked(&story).clone())
            .unwrap_or_default()
    }

    /// Listens from now on.
    pub(crate) fn listen(self: &Arc<Self>, wanted: Wanted) -> Listener {
        let ring = self.ring.subscribe();
        let mut listeners = locked(&self.listeners);
        listeners.push(wanted);
        self.want(&listeners);
        drop(listeners);
        Listener {
            events: Arc::clone(self),
            wanted,
            ring,
        }
    }

    fn want(&self, listeners: &[Wanted]) {
        let wanted = listeners.iter().fold(0, |all, one| all | one.0);
        self.wanted.store(wanted, Ordering::Relaxed);
    }
}

/// What a listener hears.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// This happened.
    Event(Arc<Told>),
    /// So much happened that was not listened to in time, also what was not wanted.
    Lost(u64),
}

/// Somebody who listens, until dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    events: Arc<Events>,
    wanted: Wanted,
    ring: broadcast::Receiver<Arc<Told>>,
}

impl Listener {
    /// What comes next; none once there is nobody who tells.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        loop {
            match self.ring.recv().await {
                Ok(told) if told.bit & self.wanted.0 == 0 => {}
                Ok(told) => return Some(Heard::Event(told)),
                Err(broadcast::error::RecvError::Lagged(lost)) => return Some(Heard::Lost(lost)),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = locked(&self.events.listeners);
        if let Some(own) = listeners.iter().position(|one| *one == self.wanted) {
            listeners.swap_remove(own);
        }
        self.events.want(&listeners);
    }
}

/// Nothing that is left half done can be seen in it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By this machine's clock: for people.
fn now() -> Timestamp {
    SystemClock::default().now()
}

#[cfg(test)]
mod tests {
    use semel::store::Fence;
    use semel::{Identity, Key, Scope};

    use super::*;

    fn identity(key: &str) -> Identity {
        Identity::new(Scope::anonymous(), "http@shop", Key::new(key).unwrap())
    }

    fn seen(identity: &Identity, signal: Signal, fence: u64) -> Seen<'_> {
        let mut seen = Seen::of(identity, signal);
        seen.fence = Some(Fence(fence));
        seen
    }

    #[tokio::test]
    async fn each_listener_hears_what_it_wants() {
        let events = Arc::new(Events::default());
        let order = identity("order-4711-secret");
        events.happened(&seen(&order, Signal::New, 1), false);
        let mut all = events.listen(Wanted::default());
        let some = Wanted::NONE.and("mismatch").and_then(|w| w.and(ACTION));
        let mut some = events.listen(some.unwrap());
        events.happened(&seen(&order, Signal::New, 1), false);
        events.happened(&seen(&order, Signal::Mismatch, 1), true);
        let id = order.digest().to_string();
        events.acted("release", Some(&id), "done", "692-1");

        let Some(Heard::Event(new)) = all.next().await else {
            panic!("nothing");
        };
        assert_eq!(
            (&*new.live.event, new.live.id.as_deref()),
            ("new", Some(&*id))
        );
        assert_eq!(new.live.service.as_deref(), Some("shop"));
        assert_eq!(
            (new.live.operation.as_deref(), new.live.fence),
            (Some("http"), Some(1))
        );
        for listener in [&mut all, &mut some] {
            let Some(Heard::Event(mismatch)) = listener.next().await else {
                panic!("nothing");
            };
            assert_eq!(
                (&*mismatch.live.event, mismatch.live.observed),
                ("mismatch", true)
            );
            assert!(
                !format!("{mismatch:?}").contains("order-4711"),
                "{mismatch:?}"
            );
            let Some(Heard::Event(action)) = listener.next().await else {
                panic!("nothing");
            };
            assert_eq!(
                (&*action.live.event, action.live.action.as_deref()),
                (ACTION, Some("release"))
            );
        }
        assert_eq!(Wanted::NONE.and("lost"), None);
        drop(all);
        assert_eq!(events.wanted.load(Ordering::Relaxed), some.wanted.0);
        drop(some);
        assert_eq!(events.wanted.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn who_is_slow_is_told_how_much_is_lost() {
        let events = Arc::new(Events::default());
        let mut slow = events.listen(Wanted::default());
        let order = identity("order-1");
        for fence in 0..BEHIND as u64 + 7 {
            events.happened(&seen(&order, Signal::Renewed, fence), false);
        }
        assert_eq!(slow.next().await, Some(Heard::Lost(7)));
        let Some(Heard::Event(first)) = slow.next().await else {
            panic!("nothing");
        };
        assert_eq!(first.live.fence, Some(7));
    }

    #[test]
    fn of_a_record_is_kept_what_it_does_not_say() {
        let events = Events::default();
        let order = identity("order-1");
        for signal in [
            Signal::New,
            Signal::Renewed,
            Signal::Renewed,
            Signal::Completed,
        ] {
            events.happened(&seen(&order, signal, 1), false);
        }
        for _ in 0..3 {
            events.happened(&Seen::of(&order, Signal::Replayed), false);
        }
        let story = events.of(order.digest());
        let story = story.iter().map(|kept| (kept.signal, kept.times));
        assert_eq!(
            story.collect::<Vec<_>>(),
            [(Signal::Renewed, 2), (Signal::Replayed, 3)]
        );
        // Bounded, of one record and of all.
        for fence in 0..1_000 {
            events.happened(&seen(&order, Signal::InFlight, fence), false);
        }
        let story = events.of(order.digest());
        assert_eq!(story.len(), OF_A_RECORD);
        assert_eq!(story[OF_A_RECORD - 1].fence, Some(999));
        for nth in 0..3 * RECORDS {
            let other = identity(&format!("other-{nth}"));
            events.happened(&Seen::of(&other, Signal::Replayed), false);
        }
        assert!(events.stories.len() <= RECORDS);
    }
}
