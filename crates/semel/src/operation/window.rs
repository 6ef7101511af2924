//! Windows that begin at set times.

use std::time::Duration;

use crate::Timestamp;
use crate::time::micros;

/// Windows of one length, one after the other, by UTC: every hour, every day from 08:00.
///
/// For periods of unequal length (months, days with a change of the clock) put the period's name
/// into a field.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::guard::{Done, Guard};
/// use semel::memory::MemoryStore;
/// use semel::operation::{Aligned, Call, Caller, KeyFrom, Operation, Part};
/// use semel::Timestamp;
///
/// let guard = Guard::from(MemoryStore::default());
/// let bonus = Operation::new("daily_bonus", [Part::USER], KeyFrom::Scope)
///     .aligned(Aligned::DAYS);
/// let caller = Caller::new().with(Part::USER, "u-7");
/// let pay = |_| async { Ok::<_, std::io::Error>(()) };
///
/// // The intent of 23:59:59. Its retry comes after midnight, and still says so.
/// let evening = Call::by(&caller).made_at(Timestamp::from_micros(86_399_000_000));
/// assert_eq!(guard.run(bonus.asked(&evening)?, pay).await?, Done::Fresh(()));
/// assert_eq!(guard.run(bonus.asked(&evening)?, pay).await?, Done::Replayed(()));
/// // The next day's own.
/// let morning = Call::by(&caller).made_at(Timestamp::from_micros(86_400_000_000));
/// assert_eq!(guard.run(bonus.asked(&morning)?, pay).await?, Done::Fresh(()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aligned {
    length: Duration,
    offset: Duration,
}

impl Aligned {
    /// The shortest window there is.
    pub const MIN: Duration = Duration::from_secs(1);

    /// From midnight to midnight.
    pub const DAYS: Self = Self {
        length: Duration::from_hours(24),
        offset: Duration::ZERO,
    };

    /// Windows of this length, one of which begins at the Unix epoch. [`MIN`](Self::MIN) at least.
    pub fn every(length: Duration) -> Self {
        Self {
            length: length.max(Self::MIN),
            offset: Duration::ZERO,
        }
    }

    /// The same windows, each later by `offset`.
    #[must_use]
    pub const fn later_by(mut self, offset: Duration) -> Self {
        self.offset = offset;
        self
    }

    /// How long an answer is kept at least. The intent is made within its window and completed
    /// later, so one length from the completion covers the rest of the window; another one lets
    /// retries be late, and clocks differ.
    pub(super) const fn kept(&self) -> Duration {
        self.length.saturating_mul(2)
    }

    /// The window of an intent: its length and its start, in microseconds. Both, so that windows of
    /// another length are never the same ones.
    pub(super) fn segments(&self, made: Timestamp) -> [String; 3] {
        let length = i128::from(micros(self.length));
        let offset = i128::from(micros(self.offset));
        let start = (i128::from(made.as_micros()) - offset).div_euclid(length) * length + offset;
        ["window".into(), length.to_string(), start.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn a_window_has_its_start_and_not_its_end() {
        let start = |every: Aligned, at| every.segments(Timestamp::from_micros(at))[2].clone();
        let day = Aligned::DAYS;
        assert_eq!(start(day, 0), start(day, 24 * HOUR - 1));
        assert_ne!(start(day, 24 * HOUR - 1), start(day, 24 * HOUR));
        let from_eight = day.later_by(Duration::from_hours(8));
        assert_eq!(start(from_eight, 8 * HOUR), (8 * HOUR).to_string());
        // Before the first: it began the day before the epoch.
        assert_eq!(start(from_eight, 8 * HOUR - 1), "-57600000000");
        assert_eq!(Aligned::every(Duration::ZERO).length, Aligned::MIN);
        assert_ne!(
            day.segments(Timestamp::default()),
            Aligned::every(Duration::from_hours(1)).segments(Timestamp::default())
        );
    }
}
