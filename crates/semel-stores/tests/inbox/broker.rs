//! A broker that delivers at least once, in random order, to consumers that die.

use std::collections::HashMap;

use parking_lot::Mutex;
use semel::store::Nonce;

/// Numbers by chance.
pub(super) fn chance(below: u64) -> u64 {
    let nonce = Nonce::random().unwrap();
    let (numbers, _) = nonce.as_bytes().as_chunks::<8>();
    u64::from_le_bytes(numbers[0]) % below
}

#[derive(Default)]
struct Inside {
    waiting: Vec<String>,
    in_hand: HashMap<u64, Vec<String>>,
    kills: u32,
    deliveries: u32,
}

pub(super) struct Broker(Mutex<Inside>);

impl Broker {
    /// Each name is to be delivered 3 to 10 times.
    pub(super) fn new(names: &[String]) -> Self {
        let waiting = names
            .iter()
            .flat_map(|name| (0..3 + chance(8)).map(move |_| name.clone()));
        Self(Mutex::new(Inside {
            waiting: waiting.collect(),
            ..Inside::default()
        }))
    }

    pub(super) fn left(&self) -> usize {
        let inside = self.0.lock();
        inside.waiting.len() + inside.in_hand.values().map(Vec::len).sum::<usize>()
    }

    /// One to eight deliveries for a consumer; `None` where all are acknowledged, or in the hands of
    /// others.
    pub(super) fn take(&self, consumer: u64) -> Option<Vec<String>> {
        let mut inside = self.0.lock();
        let mut taken = Vec::new();
        for _ in 0..1 + chance(8) {
            if inside.waiting.is_empty() {
                break;
            }
            let at = chance(inside.waiting.len() as u64);
            let at = usize::try_from(at).unwrap();
            taken.push(inside.waiting.swap_remove(at));
            inside.deliveries += 1;
        }
        if taken.is_empty() {
            return None;
        }
        let hand = inside.in_hand.entry(consumer).or_default();
        hand.extend(taken.iter().cloned());
        Some(taken)
    }

    pub(super) fn acknowledge(&self, consumer: u64, name: &str) {
        let mut inside = self.0.lock();
        let hand = inside.in_hand.get_mut(&consumer).unwrap();
        let at = hand.iter().position(|held| held == name).unwrap();
        hand.swap_remove(at);
    }

    pub(super) fn give_back(&self, consumer: u64, name: &str) {
        self.acknowledge(consumer, name);
        self.0.lock().waiting.push(name.to_owned());
    }

    /// What it had in its hands is delivered again. A kill counts where there was something.
    pub(super) fn killed(&self, consumer: u64) {
        let mut inside = self.0.lock();
        let lost = inside.in_hand.remove(&consumer).unwrap_or_default();
        inside.kills += u32::from(!lost.is_empty());
        inside.waiting.extend(lost);
    }

    /// In the how manieth of its transactions the next consumer is killed; `None`: it lives as long as
    /// there is work, because there were enough kills.
    pub(super) fn dies_in(&self, kills: u32) -> Option<u64> {
        (self.kills() < kills).then(|| 1 + chance(4))
    }

    pub(super) fn kills(&self) -> u32 {
        self.0.lock().kills
    }

    pub(super) fn deliveries(&self) -> u32 {
        self.0.lock().deliveries
    }
}
