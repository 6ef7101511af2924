//! The events, and what they come to: both follow from the seed, so that parent and consumers need
//! not tell each other.

use std::collections::BTreeMap;

/// How many things the events are about.
pub(crate) const ASSETS: u64 = 500;

/// One event: something happened to an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Happening {
    /// Its number, which is also its time: a later state takes the place of an earlier one.
    pub(crate) number: u64,
    pub(crate) asset: u64,
    pub(crate) state: u64,
    pub(crate) load: u64,
    pub(crate) ends: Ends,
}

/// How an event's work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Well,
    /// In an error, after its statements: always.
    Fails,
    /// With its consumer: always.
    Kills,
}

impl Ends {
    const fn of(number: u64) -> Self {
        if number % 250 == 133 {
            Self::Kills
        } else if number % 12 == 5 {
            Self::Fails
        } else {
            Self::Well
        }
    }
}

impl Happening {
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        let mut chance =
            fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self {
            number,
            asset: chance.u64(..ASSETS),
            state: chance.u64(..10),
            load: chance.u64(1..1000),
            ends: Ends::Well,
        }
    }

    /// The same in a storm in which some events cannot be handled.
    pub(crate) fn with_poison(self, poison: bool) -> Self {
        let ends = match poison {
            true => Ends::of(self.number),
            false => Ends::Well,
        };
        Self { ends, ..self }
    }
}

/// What an asset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Asset {
    /// That of the latest event.
    pub(crate) state: u64,
    /// The latest event's number, and 1.
    pub(crate) last: u64,
    /// The sum of all.
    pub(crate) loads: u64,
    /// How many.
    pub(crate) events: u64,
}

impl Asset {
    /// After one more event. In whichever order they come, all of them come to the same.
    pub(crate) fn after(mut self, event: &Happening) -> Self {
        if event.number >= self.last {
            self.state = event.state;
            self.last = event.number + 1;
        }
        self.loads += event.load;
        self.events += 1;
        self
    }
}

/// The run in which each event is delivered once, in order, but those that are set aside.
pub(crate) fn single_delivery(
    seed: u64,
    events: u64,
    aside: impl Fn(u64) -> bool,
) -> BTreeMap<u64, Asset> {
    let mut assets = BTreeMap::new();
    for number in (0..events).filter(|number| !aside(*number)) {
        let event = Happening::of(seed, number);
        let asset: &mut Asset = assets.entry(event.asset).or_default();
        *asset = asset.after(&event);
    }
    assets
}

/// How often each event is delivered, in the order of deliveries.
pub(crate) fn deliveries(seed: u64, events: u64) -> Vec<u64> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for number in 0..events {
        all.extend(std::iter::repeat_n(number, chance.usize(3..=10)));
    }
    chance.shuffle(&mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_events_does_not_matter() {
        let wanted = single_delivery(3, 200, |_| false);
        let mut assets: BTreeMap<u64, Asset> = BTreeMap::new();
        for number in (0..200).rev() {
            let event = Happening::of(3, number);
            let asset = assets.entry(event.asset).or_default();
            *asset = asset.after(&event);
        }
        assert_eq!(assets, wanted);
    }

    #[test]
    fn each_event_is_delivered_three_to_ten_times() {
        let mut times = [0; 100];
        for number in deliveries(5, 100) {
            times[number as usize] += 1;
        }
        assert!(times.iter().all(|times| (3..=10).contains(times)));
        assert_ne!(deliveries(5, 100), deliveries(6, 100));
    }
}
