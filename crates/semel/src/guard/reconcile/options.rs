//! How often and how long a reconciler is asked.

use std::sync::Arc;
use std::time::Duration;

/// How often a reconciler is asked about one record, how long each question may take, and who is
/// named in the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcileOptions {
    pub(super) attempts: u32,
    pub(super) pause: Duration,
    pub(super) longest_pause: Duration,
    pub(super) timeout: Duration,
    pub(super) by: Arc<str>,
}

impl ReconcileOptions {
    /// For callers in line, who wait for it: 3 questions, 200 ms and 400 ms between them.
    pub fn in_line() -> Self {
        Self {
            attempts: 3,
            pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(30),
            timeout: Duration::from_secs(5),
            by: "reconciler".into(),
        }
    }

    /// For the background: 20 questions within about an hour, the first pause 1 s, the longest
    /// 5 min.
    pub fn background() -> Self {
        Self {
            attempts: 20,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_mins(5),
            ..Self::in_line()
        }
    }

    /// At most this many questions; 1 at least. In the background, or in a job, more where the store
    /// takes the attempt for running, before it can have watched it for a lease, and where it is away
    /// or full and cannot be told the answer.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The pause after the first question; each is twice as long as the one before. It is drawn
    /// between half of that and the whole of it, so that processes do not ask in step.
    #[must_use]
    pub const fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// How long a question may take: 5 s unless set. What takes longer is still unknown.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Who is named in the audit entry of what it resolves. `reconciler` unless set.
    #[must_use]
    pub fn with_by(mut self, by: impl Into<Arc<str>>) -> Self {
        self.by = by.into();
        self
    }

    /// The pause after this many questions, not yet drawn.
    pub(super) fn pause_after(&self, asked: u32) -> Duration {
        let times = 2_u32.saturating_pow(asked.saturating_sub(1));
        self.pause.saturating_mul(times).min(self.longest_pause)
    }
}

impl Default for ReconcileOptions {
    fn default() -> Self {
        Self::in_line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let options = ReconcileOptions::background();
        let pauses = [1, 2, 3, 9, 10, 40].map(|asked| options.pause_after(asked).as_secs());
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
        let all: Duration = (1..options.attempts)
            .map(|asked| options.pause_after(asked))
            .sum();
        assert_eq!(options.attempts, 20);
        assert!((Duration::from_mins(55)..Duration::from_mins(65)).contains(&all));
        let none = options.with_attempts(0).with_pause(Duration::ZERO);
        assert_eq!((none.attempts, none.pause_after(3)), (1, Duration::ZERO));
    }
}
