//! Pauses between tries.

use std::time::Duration;

use crate::store::Nonce;

/// Pauses that double up to a bound. Each is drawn at random between half of its length and the
/// whole, so that callers who failed together do not try again together.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// The first pause is `first`, none is longer than `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        jittered(pause)
    }
}

/// Between half of `pause` and the whole of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let chance = Nonce::random().map_or(u8::MAX, |nonce| nonce.as_bytes()[0]);
    pause / 2 + (pause / 2).mul_f64(f64::from(chance) / f64::from(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let longest = Duration::from_millis(70);
        let mut backoff = Backoff::new(Duration::from_millis(10), longest);
        for whole in [10, 20, 40, 70, 70].map(Duration::from_millis) {
            let pause = backoff.pause();
            assert!(
                pause >= whole / 2 && pause <= whole,
                "{pause:?} of {whole:?}"
            );
        }
        let mut endless = Backoff::new(Duration::MAX, Duration::MAX);
        assert!(endless.pause() <= endless.pause().saturating_mul(2));
    }
}
