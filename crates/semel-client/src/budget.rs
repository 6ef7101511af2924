//! How many retries all calls together may make.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bucket of tokens: each call brings a part of one, each second some, and a retry takes one. It holds what ten
/// seconds and a thousand calls bring, and begins with what ten seconds do.
///
/// Not tower's `TpsBudget`, whose windows end early when it is asked seldom: up to twice as many retries.
#[derive(Debug)]
pub(crate) struct Budget {
    per_call: f64,
    per_second: f64,
    bucket: Mutex<Option<Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

const SECONDS: f64 = 10.0;
const CALLS: f64 = 1000.0;

impl Budget {
    pub(crate) fn new(percent: u16, per_second: u16) -> Self {
        Self {
            per_call: f64::from(percent) / 100.0,
            per_second: f64::from(per_second),
            bucket: Mutex::new(None),
        }
    }

    /// A call begins.
    pub(crate) fn deposit(&self) {
        self.change(self.per_call);
    }

    /// Whether a request may be sent again.
    pub(crate) fn withdraw(&self) -> bool {
        self.change(-1.0)
    }

    fn change(&self, by: f64) -> bool {
        let now = Instant::now();
        let mut bucket = self.bucket.lock();
        let Bucket { tokens, filled } = bucket.unwrap_or(Bucket {
            tokens: self.per_second * SECONDS,
            filled: now,
        });
        let time: Duration = now.saturating_duration_since(filled);
        let most = self.per_second * SECONDS + self.per_call * CALLS;
        let tokens = (tokens + self.per_second * time.as_secs_f64()).min(most);
        let allowed = tokens + by >= 0.0;
        let tokens = if allowed {
            (tokens + by).min(most)
        } else {
            tokens
        };
        *bucket = Some(Bucket {
            tokens,
            filled: now,
        });
        allowed
    }
}
