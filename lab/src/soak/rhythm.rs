//! How calls went, by half seconds: how many, and how long they took.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::clock::{Nanos, nanos, now};

/// So long is one of them.
pub(super) const BEAT: Nanos = 500_000_000;

/// Calls of one half second, or more. How long they took is kept by powers of the fourth root of 2,
/// from a microsecond on: exact to a fifth.
#[derive(Debug, Clone, Default)]
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

/// A worker's file of them.
pub(super) struct Beats(File);

impl Beats {
    pub(super) fn create(folder: &Path, number: u32, life: u32) -> std::io::Result<Self> {
        let path = folder.join(format!("{number:03}-{life:03}.beats"));
        Ok(Self(File::create(path)?))
    }

    pub(super) fn write(&mut self, beat: &Beat) {
        let mut line = format!("{} {} {}", now(), beat.answered, beat.failed);
        for (place, count) in &beat.took {
            let _ = write!(line, " {place}:{count}");
        }
        line.push('\n');
        // What is not written down would look like an outage.
        self.0
            .write_all(line.as_bytes())
            .expect("the beats can be written");
    }
}

fn parse(line: &str) -> Option<(Nanos, Beat)> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let mut beat = Beat {
        answered: words.next()?.parse().ok()?,
        failed: words.next()?.parse().ok()?,
        took: BTreeMap::new(),
    };
    for word in words {
        let (place, count) = word.split_once(':')?;
        beat.took.insert(place.parse().ok()?, count.parse().ok()?);
    }
    Some((at, beat))
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
        let text = std::fs::read_to_string(&path)?;
        // A killed worker's last line may be half a line.
        let whole = text
            .split_inclusive('\n')
            .filter_map(|l| l.strip_suffix('\n'));
        for line in whole {
            let (at, beat) = parse(line).with_context(|| format!("{line:?}"))?;
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
            Beats::create(folder.path(), number, 0)
                .unwrap()
                .write(&beat);
        }
        let read = read(folder.path(), begun, Duration::from_secs(1)).unwrap();
        let all = sum(&read);
        assert_eq!((all.answered, all.failed), (10, 2));
        let near = |found: f64, wanted: f64| found >= wanted && found < wanted * 1.2;
        assert!(near(all.quantile(0.5), 2.0), "{}", all.quantile(0.5));
        assert!(near(all.quantile(1.0), 100.0), "{}", all.quantile(1.0));
    }
}
