//! A broker: at least once. What is delivered is hidden for a while, and delivered again where it
//! was not acknowledged by then, whoever got it and whatever became of him.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What a consumer gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delivery {
    /// Which of the event's messages: it is to be acknowledged by itself.
    pub(super) message: u64,
    /// Which event.
    pub(super) event: u64,
    /// How often this message was delivered.
    pub(super) times: u32,
}

/// What an acknowledgement was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// This delivery was handled.
    Handled,
    /// Another one had been.
    Duplicate,
    /// The event was set aside.
    SetAside,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Broker(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The event of each message.
    messages: Vec<u64>,
    waiting: VecDeque<u64>,
    hidden: BTreeMap<(Instant, u64), ()>,
    until: HashMap<u64, Instant>,
    times: HashMap<u64, u32>,
    counts: Counts,
    since: Instant,
}

/// What happened.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Counts {
    /// 3 to 10 of each event, as it was planned.
    pub(super) messages: usize,
    /// With those that came again because nobody acknowledged them.
    #[serde(rename = "deliveries")]
    pub(super) delivered: usize,
    pub(super) redelivered: usize,
    #[serde(skip)]
    pub(super) acknowledged: usize,
    pub(super) handled: usize,
    /// Events that two deliveries were told to have handled.
    #[serde(skip)]
    pub(super) handled_twice: usize,
    #[serde(skip)]
    pub(super) handled_events: BTreeSet<u64>,
    /// Events of which a delivery was told that they are set aside.
    #[serde(skip)]
    pub(super) set_aside: BTreeSet<u64>,
    #[serde(skip)]
    pub(super) acknowledged_events: BTreeSet<u64>,
    /// Why messages came back.
    #[serde(rename = "refused")]
    pub(super) refusals: BTreeMap<String, usize>,
}

/// How long a consumer has to acknowledge.
pub(super) const VISIBILITY: Duration = Duration::from_secs(2);

impl Broker {
    /// With a message for each of these deliveries, in this order.
    pub(super) fn new(messages: Vec<u64>) -> Self {
        let counts = Counts {
            messages: messages.len(),
            ..Counts::default()
        };
        Self(Mutex::new(Inner {
            waiting: (0..messages.len() as u64).collect(),
            messages,
            hidden: BTreeMap::new(),
            until: HashMap::new(),
            times: HashMap::new(),
            counts,
            since: Instant::now(),
        }))
    }

    /// Delivers at most so many; nothing where all are hidden.
    pub(super) fn deliver(&self, most: usize) -> Vec<Delivery> {
        let mut inner = self.0.lock();
        inner.reveal();
        let until = Instant::now() + VISIBILITY;
        let most = most.min(inner.waiting.len());
        let messages: Vec<u64> = inner.waiting.drain(..most).collect();
        let deliver = |message| inner.hand_out(message, until);
        messages.into_iter().map(deliver).collect()
    }

    /// Needs no further delivery.
    pub(super) fn acknowledge(&self, message: u64, kind: Kind) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let Some(until) = inner.until.remove(&message) else {
            // Late: it is to be delivered again, or was acknowledged by somebody else. A handled
            // event counts all the same.
            inner.count(message, kind);
            return;
        };
        inner.hidden.remove(&(until, message));
        inner.counts.acknowledged += 1;
        inner.since = Instant::now();
        inner.count(message, kind);
    }

    /// Is to be delivered again, after a while.
    pub(super) fn refuse(&self, message: u64, after: Duration, why: &str) {
        let mut inner = self.0.lock();
        *inner.counts.refusals.entry(why.into()).or_default() += 1;
        if let Some(until) = inner.until.remove(&message) {
            inner.hidden.remove(&(until, message));
            inner.hide(message, Instant::now() + after.min(VISIBILITY));
        }
    }

    /// How much of all is acknowledged.
    pub(super) fn progress(&self) -> f64 {
        let counts = &self.0.lock().counts;
        counts.acknowledged as f64 / counts.messages.max(1) as f64
    }

    /// Whether all of it is.
    pub(super) fn is_done(&self) -> bool {
        let counts = &self.0.lock().counts;
        counts.acknowledged == counts.messages
    }

    /// How long ago something was acknowledged last.
    pub(super) fn silent(&self) -> Duration {
        self.0.lock().since.elapsed()
    }

    pub(super) fn counts(&self) -> Counts {
        self.0.lock().counts.clone()
    }
}

impl Inner {
    /// What was not acknowledged in time waits again.
    fn reveal(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.hidden.first_entry()
            && entry.key().0 <= now
        {
            let (_, message) = *entry.key();
            entry.remove();
            self.until.remove(&message);
            self.waiting.push_back(message);
        }
    }

    fn hide(&mut self, message: u64, until: Instant) {
        self.hidden.insert((until, message), ());
        self.until.insert(message, until);
    }

    fn hand_out(&mut self, message: u64, until: Instant) -> Delivery {
        self.hide(message, until);
        let times = self.times.entry(message).or_default();
        *times += 1;
        let times = *times;
        self.counts.delivered += 1;
        self.counts.redelivered += usize::from(times > 1);
        Delivery {
            message,
            event: self.messages[message as usize],
            times,
        }
    }

    fn count(&mut self, message: u64, kind: Kind) {
        let event = self.messages[message as usize];
        self.counts.acknowledged_events.insert(event);
        match kind {
            Kind::Handled => {
                self.counts.handled += 1;
                let first = self.counts.handled_events.insert(event);
                self.counts.handled_twice += usize::from(!first);
            }
            Kind::SetAside => {
                self.counts.set_aside.insert(event);
            }
            Kind::Duplicate => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acknowledged_comes_again() {
        let broker = Broker::new(vec![7, 7, 8]);
        let first = broker.deliver(2);
        assert_eq!(first.len(), 2);
        broker.acknowledge(first[0].message, Kind::Handled);
        broker.refuse(first[1].message, Duration::ZERO, "no");
        let second = broker.deliver(9);
        let mut events: Vec<_> = second.iter().map(|d| (d.event, d.times)).collect();
        events.sort_unstable();
        assert_eq!(events, [(7, 2), (8, 1)]);
        assert!(broker.deliver(9).is_empty(), "all are hidden");
        for delivery in second {
            broker.acknowledge(delivery.message, Kind::Duplicate);
        }
        assert!(broker.is_done());
        let counts = broker.counts();
        assert_eq!((counts.delivered, counts.redelivered), (4, 1));
        assert_eq!((counts.handled, counts.handled_twice), (1, 0));
    }

    #[test]
    fn an_acknowledgement_that_comes_late_does_not_count_twice() {
        let broker = Broker::new(vec![1]);
        let message = broker.deliver(1)[0].message;
        broker.refuse(message, Duration::ZERO, "no");
        broker.0.lock().reveal();
        broker.acknowledge(message, Kind::Handled);
        assert!(!broker.is_done(), "it is delivered again");
        broker.deliver(1);
        broker.acknowledge(message, Kind::Handled);
        assert!(broker.is_done());
        assert_eq!(broker.counts().handled_twice, 1);
    }
}
