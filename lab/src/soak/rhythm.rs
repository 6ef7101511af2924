//! How calls went, by half seconds: how many, and how long they took.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::clock::{Nanos, nanos};
use crate::lines::{self, Lines};

/// So long is one of them.
pub(super) const BEAT: Nanos = 500_000_000;

/// Calls of one half second, or more. How long they took is kept by powers of the fourth root of 2,
/// from a microsecond on: exact to a fifth.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Beat {
    pub(super) answered: u64,
    pub(super) failed: u64,
    took: BTreeMap<u32, u64>,
}

impl Beat {
    /// One more call, and how long it took where that says anything.
    pub(super) fn add(&mut self, took: Option<Duration>, failed: bool) {
        if failed {
            self.failed += 1;
            return;
        }
        self.answered += 1;
        if let Some(took) = took {
            let micros = took.as_secs_f64() * 1e6;
            let place = (micros.max(1.0).log2() * 4.0) as u32;
            *self.took.entry(place).or_default() += 1;
        }
    }

    fn and(&mut self, other: &Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        for (place, count) in &other.took {
            *self.took.entry(*place).or_default() += count;
        }
    }

    /// So many of its calls took no longer than this, in milliseconds; 0 where there were none.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let all: u64 = self.took.values().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (place, count) in &self.took {
            seen += count;
            if seen >= wanted {
                return 2f64.powf((f64::from(*place) + 1.0) / 4.0) / 1000.0;
            }
        }
        0.0
    }
}

/// A worker's file of them, each with when it ended.
pub(super) fn file(folder: &Path, number: u32, life: u32) -> std::io::Result<Lines> {
    Lines::create(&folder.join(format!("{number:03}-{life:03}.beats")))
}

/// All workers' together, from `begun` on.
pub(super) fn read(folder: &Path, begun: Nanos, length: Duration) -> Result<Vec<Beat>> {
    let count = usize::try_from(nanos(length) / BEAT)?;
    let mut beats = vec![Beat::default(); count];
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != "beats")
        {
            continue;
        }
        for (at, beat) in lines::read::<(Nanos, Beat)>(&path)? {
            // What a worker says is of the half second before.
            let place = at.saturating_sub(begun).saturating_sub(BEAT / 2) / BEAT;
            if let Some(of) = beats.get_mut(usize::try_from(place)?) {
                of.and(&beat);
            }
        }
    }
    Ok(beats)
}

/// Several as one.
pub(super) fn sum(beats: &[Beat]) -> Beat {
    let mut all = Beat::default();
    for beat in beats {
        all.and(beat);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    #[test]
    fn beats_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let begun = now();
        let mut beat = Beat::default();
        for millis in [1, 2, 3, 100] {
            beat.add(Some(Duration::from_millis(millis)), false);
        }
        beat.add(None, false);
        beat.add(Some(Duration::from_secs(9)), true);
        for number in 0..2 {
            let file = file(folder.path(), number, 0).unwrap();
            file.record(&(now(), &beat));
        }
        let read = read(folder.path(), begun, Duration::from_secs(1)).unwrap();
        let all = sum(&read);
        assert_eq!((all.answered, all.failed), (10, 2));
        let near = |found: f64, wanted: f64| found >= wanted && found < wanted * 1.2;
        assert!(near(all.quantile(0.5), 2.0), "{}", all.quantile(0.5));
        assert!(near(all.quantile(1.0), 100.0), "{}", all.quantile(1.0));
    }
}
