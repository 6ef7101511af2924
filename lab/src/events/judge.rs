//! After it all: what was applied, beside the run in which each event is delivered once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::plan::Asset;

/// What is wrong, in numbers, and the first of it in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) applied: usize,
    pub(crate) double_effects: usize,
    pub(crate) lost_effects: usize,
    pub(crate) violations: usize,
    pub(crate) details: Vec<String>,
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
}
