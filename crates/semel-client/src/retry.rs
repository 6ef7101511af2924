//! How long, how often and how fast.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use tower_layer::Layer;

use crate::budget::Budget;
use crate::decide::{Failure, FailureKind};
use crate::service::RetryService;

/// Sends requests again until they are answered. Clones share its budget.
///
/// | setting | unless set |
/// |---|---|
/// | all tries of a call together: [`with_deadline`](Self::with_deadline) | 2 min |
/// | one try: [`with_try_timeout`](Self::with_try_timeout) | 30 s |
/// | pauses between tries: [`with_pauses`](Self::with_pauses) | up to 250 ms, doubled up to 20 s |
/// | retries of all calls together: [`with_budget`](Self::with_budget) | 20 % of the calls, and 10 a second |
/// | the key's field: [`with_key_header`](Self::with_key_header) | `Idempotency-Key` |
/// | how old an intent may be: [`with_key_lifetime`](Self::with_key_lifetime) | 24 h |
/// | the largest request: [`with_max_body`](Self::with_max_body) | 16 MiB |
/// | answers that are read whole: [`with_max_answer`](Self::with_max_answer) | up to 1 MiB |
#[derive(Debug, Clone)]
pub struct Retry {
    pub(crate) deadline: Duration,
    pub(crate) try_timeout: Duration,
    pub(crate) first_pause: Duration,
    pub(crate) longest_pause: Duration,
    pub(crate) budget: Arc<Budget>,
    pub(crate) key_header: Option<HeaderName>,
    pub(crate) quotes_key: bool,
    pub(crate) key_lifetime: Duration,
    pub(crate) max_body: usize,
    pub(crate) max_answer: usize,
    is_redirected: bool,
    failure_of: Option<fn(&(dyn StdError + 'static)) -> Failure>,
}

impl Retry {
    /// For a service that honours idempotency keys.
    pub fn new() -> Self {
        Self {
            deadline: Duration::from_mins(2),
            try_timeout: Duration::from_secs(30),
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(20),
            budget: Arc::new(Budget::new(20, 10)),
            key_header: Some(HeaderName::from_static("idempotency-key")),
            quotes_key: false,
            key_lifetime: Duration::from_hours(24),
            max_body: 16 << 20,
            max_answer: 1 << 20,
            is_redirected: true,
            failure_of: None,
        }
    }

    /// For a service that is not known to honour keys: none are added and none counts, so that only requests
    /// that are idempotent by their method are sent again, and those that were never sent.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.key_header = None;
        self
    }

    /// In which field the key is. One that a request already has there is its key; the
    /// `Idempotency-Key` that the outbox gave an intent is sent there, and refused where there is another value.
    #[must_use]
    pub fn with_key_header(mut self, name: HeaderName) -> Self {
        self.key_header = Some(name);
        self
    }

    /// Writes new keys and those of intents as the quoted strings of the IETF draft, for services that take no others.
    #[must_use]
    pub fn with_quoted_keys(mut self) -> Self {
        self.quotes_key = true;
        self
    }

    /// How long all tries of a call take together, with the pauses.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long one try may take until its answer is there.
    #[must_use]
    pub fn with_try_timeout(mut self, timeout: Duration) -> Self {
        self.try_timeout = timeout;
        self
    }

    /// The pause before the next try is drawn between nothing and an upper bound (*full jitter*), after what
    /// the service asks for in `Retry-After`. The bound is `first`, and doubles with each try up to `longest`.
    #[must_use]
    pub fn with_pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first_pause = first;
        self.longest_pause = longest.max(first);
        self
    }

    /// How many retries all calls together may make: `percent` of the calls, and `per_second` more each second, for
    /// clients that call seldom. Unused ones add up to those of ten seconds and a thousand calls. A
    /// try that is not allowed yet waits for another pause.
    #[must_use]
    pub fn with_budget(mut self, percent: u16, per_second: u16) -> Self {
        self.budget = Arc::new(Budget::new(percent, per_second));
        self
    }

    /// How long the service answers for a key. What is older in an [`Outbox`](crate::Outbox) is not sent: the service may have
    /// forgotten it, and run it again.
    #[must_use]
    pub fn with_key_lifetime(mut self, lifetime: Duration) -> Self {
        self.key_lifetime = lifetime;
        self
    }

    /// The largest body of a request, in bytes: it is held in memory until the call ends.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// The largest answer that is read whole before the call returns, in bytes. Of a longer one, and of a
    /// stream of events, the rest comes as it is read; if that breaks off, it is not asked for again.
    #[must_use]
    pub fn with_max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Says that the client follows no redirects: one of `reqwest` with `redirect::Policy::none()`. Only then a
    /// connection that it could not make tells that nothing was sent. Otherwise the service may have done the
    /// operation and redirected the client to where it finds nobody.
    #[must_use]
    pub fn without_redirects(mut self) -> Self {
        self.is_redirected = false;
        self
    }

    /// How an error of the HTTP client is to be understood. Unless set, the errors of `reqwest` (with that
    /// feature) are, and refused connections; all others count as a broken connection after sending.
    #[must_use]
    pub fn with_failures(mut self, of: fn(&(dyn StdError + 'static)) -> Failure) -> Self {
        self.failure_of = Some(of);
        self
    }

    pub(crate) fn failure_of(&self, error: &(dyn StdError + 'static)) -> Failure {
        self.failure_of
            .map_or_else(|| known(error, self.is_redirected), |of| of(error))
    }

    /// A pause of at most `longest`, drawn.
    pub(crate) fn jitter(longest: Duration) -> Duration {
        longest.mul_f64(fastrand::f64())
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for Retry {
    type Service = RetryService<S>;

    fn layer(&self, inner: S) -> RetryService<S> {
        RetryService::new(self.clone(), inner)
    }
}

/// What is known of an error without knowing the client: causes that stand in its chain.
#[cfg_attr(
    not(feature = "reqwest"),
    expect(unused_variables, reason = "only reqwest follows them")
)]
fn known(error: &(dyn StdError + 'static), is_redirected: bool) -> Failure {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    for cause in causes {
        #[cfg(feature = "reqwest")]
        if let Some(error) = cause.downcast_ref::<reqwest::Error>() {
            return crate::middleware::failure_of(error, is_redirected);
        }
        let refused = cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused {
            return Failure {
                kind: FailureKind::Refused,
                sent: false,
            };
        }
    }
    Failure {
        kind: FailureKind::Reset,
        sent: true,
    }
}
