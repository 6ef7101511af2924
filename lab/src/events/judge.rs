//! After it all: what was applied, beside the run in which each event is delivered once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::consumer::MAX_ATTEMPTS;
use super::plan::Asset;
use super::shelf::Shelved;

/// What is wrong, in numbers, and the first of it in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) applied: usize,
    pub(crate) double_effects: usize,
    pub(crate) lost_effects: usize,
    pub(crate) violations: usize,
    /// Events that are to be on the shelf for dead letters, and are not.
    pub(crate) lost_letters: usize,
    /// Events that were applied and are on the shelf.
    pub(crate) applied_and_set_aside: usize,
    pub(crate) letters: Letters,
    #[serde(skip)]
    pub(crate) details: Vec<String>,
}

/// What is on the shelf for dead letters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Letters {
    set_aside: usize,
    /// Of these, events that could have been handled: their consumers were killed too often.
    by_kills: usize,
    /// Events for which the callback was asked more than once: an earlier one was killed.
    asked_again: usize,
}

const SHOWN: usize = 12;

impl Verdict {
    pub(crate) fn violation(&mut self, what: String) {
        self.violations += 1;
        self.say(what);
    }

    fn say(&mut self, what: String) {
        if self.details.len() < SHOWN {
            self.details.push(what);
        }
    }

    /// Each event that was acknowledged was applied once, no other one more than that.
    pub(crate) fn applied(
        &mut self,
        applied: impl IntoIterator<Item = u64>,
        acknowledged: &BTreeSet<u64>,
    ) {
        let mut times: HashMap<u64, usize> = HashMap::new();
        for event in applied {
            *times.entry(event).or_default() += 1;
        }
        self.applied = times.values().sum();
        for (event, times) in &times {
            if *times > 1 {
                self.double_effects += times - 1;
                self.say(format!("event {event} was applied {times} times"));
            }
        }
        for event in acknowledged {
            if !times.contains_key(event) {
                self.lost_effects += 1;
                self.say(format!("event {event} was acknowledged and not applied"));
            }
        }
    }

    /// Each event that is `lost` to the others was set aside once and for all: those that cannot be
    /// handled, and those of which a delivery was `told` so. No event was set aside before its
    /// time, or applied as well.
    pub(crate) fn set_aside(
        &mut self,
        shelf: &BTreeMap<u64, Shelved>,
        applied: &BTreeSet<u64>,
        told: &BTreeSet<u64>,
        poisonous: &BTreeSet<u64>,
    ) {
        for (event, shelved) in shelf.iter().filter(|(_, shelved)| shelved.kept > 0) {
            self.letters.set_aside += 1;
            self.letters.by_kills += usize::from(!poisonous.contains(event));
            self.letters.asked_again += usize::from(shelved.asked > 1);
            if applied.contains(event) {
                self.applied_and_set_aside += 1;
                self.say(format!("event {event} was applied and set aside"));
            }
            if shelved.attempts < MAX_ATTEMPTS {
                let attempts = shelved.attempts;
                self.violation(format!(
                    "event {event} was set aside after {attempts} attempts"
                ));
            }
        }
        for event in poisonous.union(told) {
            if shelf.get(event).is_none_or(|shelved| shelved.kept == 0) {
                self.lost_letters += 1;
                self.say(format!("event {event} was not set aside: nobody has it"));
            }
        }
    }

    /// Every asset is what it is after a single delivery of each event.
    pub(crate) fn states(&mut self, found: &BTreeMap<u64, Asset>, wanted: &BTreeMap<u64, Asset>) {
        for (id, asset) in found {
            let wanted = wanted.get(id).copied().unwrap_or_default();
            if *asset != wanted {
                self.violation(format!("asset {id} is {asset:?}, and not {wanted:?}"));
            }
        }
        for id in wanted.keys().filter(|id| !found.contains_key(id)) {
            self.violation(format!("asset {id} is not there"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_counted_as_what_it_is() {
        let mut verdict = Verdict::default();
        verdict.applied([1, 2, 2, 2], &[1, 2, 3].into());
        assert_eq!((verdict.double_effects, verdict.lost_effects), (2, 1));

        let (one, other) = (
            Asset::default(),
            Asset {
                loads: 1,
                ..Asset::default()
            },
        );
        verdict.states(
            &[(1, one), (2, one)].into(),
            &[(1, one), (2, other), (3, one)].into(),
        );
        assert_eq!(verdict.violations, 2, "asset 2 is another, 3 is missing");
    }

    #[test]
    fn an_event_is_set_aside_in_its_time_and_never_applied() {
        let letter = |asked, kept, attempts| Shelved {
            asked,
            kept,
            attempts,
        };
        let judged = |shelf: &[(u64, Shelved)], applied: &[u64], told: &[u64]| {
            let set = |events: &[u64]| events.iter().copied().collect();
            let shelf = shelf.iter().copied().collect();
            let mut verdict = Verdict::default();
            verdict.set_aside(&shelf, &set(applied), &set(told), &[5].into());
            let Verdict {
                lost_letters,
                applied_and_set_aside,
                violations,
                ..
            } = verdict;
            (lost_letters, applied_and_set_aside, violations)
        };
        let kept = letter(2, 1, MAX_ATTEMPTS);
        assert_eq!(judged(&[(5, kept), (6, kept)], &[7], &[5, 6]), (0, 0, 0));
        let asked = letter(1, 0, 0);
        assert_eq!(judged(&[(5, asked)], &[], &[]), (1, 0, 0), "asked only");
        assert_eq!(judged(&[(5, kept)], &[], &[6]), (1, 0, 0), "6 is nowhere");
        assert_eq!(judged(&[(5, kept), (6, kept)], &[6], &[]), (0, 1, 0));
        let early = letter(1, 1, MAX_ATTEMPTS - 1);
        assert_eq!(judged(&[(5, early)], &[], &[]), (0, 0, 1));
    }
}
