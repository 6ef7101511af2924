//! What is wrong with the records.

use std::collections::{BTreeMap, BTreeSet};

use semel::versioned::Version;

use super::Content;
use crate::events::judge::Verdict;
use crate::events::plan::Asset;

/// Judges records by what they hold, by the versions that were written down beside them in their
/// transactions (`applied`: event, asset, version), and by the run of single deliveries.
pub(crate) fn judge(
    verdict: &mut Verdict,
    records: &BTreeMap<u64, (Version, Content)>,
    applied: &[[u64; 3]],
    wanted: &BTreeMap<u64, Asset>,
    acknowledged: &BTreeSet<u64>,
) {
    let had = records.values().flat_map(|(_, content)| &content.had);
    verdict.applied(had.copied(), acknowledged);
    let found = records
        .iter()
        .map(|(id, (_, content))| (*id, content.asset()));
    verdict.states(&found.collect(), wanted);

    let mut versions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for [_, asset, version] in applied {
        versions.entry(*asset).or_default().push(*version);
    }
    for (asset, given) in &mut versions {
        given.sort_unstable();
        if !given.iter().copied().eq(1..=given.len() as u64) {
            verdict.violation(format!("asset {asset} had the versions {given:?}"));
        }
    }
    for (asset, (version, content)) in records {
        // Each event makes one version.
        let events = content.had.len() as u64;
        let given = versions.get(asset).map(|given| given.len() as u64);
        if version.0 != events || given.is_some_and(|given| given != events) {
            verdict.violation(format!(
                "asset {asset} has version {version}, {events} events and {given:?} rows"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repeats_are_violations() {
        let judged = |version: u64, had: &[u64], rows: &[[u64; 3]]| {
            let content = Content {
                had: had.into(),
                ..Content::default()
            };
            let wanted = [(1, content.asset())].into();
            let records = [(1, (Version(version), content))].into();
            let mut verdict = Verdict::default();
            judge(&mut verdict, &records, rows, &wanted, &BTreeSet::new());
            verdict.violations
        };
        assert_eq!(judged(2, &[5, 6], &[[5, 1, 1], [6, 1, 2]]), 0);
        assert_eq!(judged(2, &[5, 6], &[]), 0, "changed outside transactions");
        assert_eq!(judged(3, &[5, 6], &[]), 1, "a version without an event");
        assert_eq!(judged(2, &[5, 6], &[[5, 1, 1], [6, 1, 1]]), 1, "a repeat");
        assert_eq!(judged(2, &[5, 6], &[[5, 1, 1], [6, 1, 3]]), 1, "a gap");
        assert_eq!(judged(2, &[6], &[[5, 1, 1], [6, 1, 2]]), 1, "a lost update");
    }
}
