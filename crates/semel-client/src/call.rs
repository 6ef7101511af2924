//! One call, from its first try to its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::header::HeaderValue;
use http::{Extensions, HeaderMap, Method, Response};
use semel::{Key, KeyError};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::answer::{Answer, BrokenOff, Read};
use crate::decide::{Came, Decision, Effect, Failure, FailureKind, Next, Reason, Sent, decide};
use crate::error::{Error, ErrorKind};
use crate::{BoxError, Retry};

/// That a request carries the key of an intent, wherever that is: among the request's extensions.
#[derive(Debug, Clone)]
pub(crate) struct Keyed {
    pub(crate) begun: SystemTime,
    /// The tries that may have had their effect, of this process and of earlier ones.
    pub(crate) possible: Arc<AtomicUsize>,
    /// That a try of this process had it.
    pub(crate) happened: Arc<AtomicBool>,
}

impl Keyed {
    pub(crate) fn new() -> Self {
        Self {
            begun: now(),
            possible: Arc::default(),
            happened: Arc::default(),
        }
    }
}

/// A try that brought no whole answer.
pub(crate) struct Broken {
    failure: Failure,
    source: BoxError,
}

impl Broken {
    pub(crate) fn new(retry: &Retry, source: BoxError) -> Self {
        let failure = retry.failure_of(source.as_ref());
        Self { failure, source }
    }

    #[cfg(feature = "reqwest")]
    pub(crate) fn after_sending(source: BoxError) -> Self {
        let kind = FailureKind::Reset;
        let sent = true;
        let failure = Failure { kind, sent };
        Self { failure, source }
    }

    fn late(elapsed: Elapsed) -> Self {
        let kind = FailureKind::Timeout;
        let sent = true;
        let failure = Failure { kind, sent };
        let source = elapsed.into();
        Self { failure, source }
    }

    /// Nothing was sent, because the client was not ready.
    pub(crate) fn unready(source: BoxError) -> Self {
        let kind = FailureKind::Refused;
        let sent = false;
        let failure = Failure { kind, sent };
        Self { failure, source }
    }
}

impl From<BrokenOff> for Broken {
    fn from(broken: BrokenOff) -> Self {
        let kind = FailureKind::BrokenAnswer(broken.status);
        let sent = true;
        Self {
            failure: Failure { kind, sent },
            source: broken.source,
        }
    }
}

/// What stays the same through all tries of a call.
pub(crate) struct Call<'a> {
    retry: &'a Retry,
    method: Method,
    key: bool,
    intent: Keyed,
}

impl<'a> Call<'a> {
    /// Gives the request a key, if it needs one; or refuses it, where an intent's key has no place.
    pub(crate) fn new(
        retry: &'a Retry,
        method: &Method,
        headers: &mut HeaderMap,
        extensions: &Extensions,
    ) -> Result<Self, Error> {
        let keyed = extensions.get::<Keyed>().cloned();
        let mut key = false;
        let mut taken = None;
        if let Some(name) = &retry.key_header {
            key = headers.contains_key(name);
            if keyed.is_some() {
                // The outbox does not know where this service wants it.
                if let Some(field) = headers.remove(OUTBOX_FIELD) {
                    let is_quoted = field.as_bytes().starts_with(b"\"");
                    let written = field
                        .to_str()
                        .ok()
                        .filter(|_| retry.quotes_key && !is_quoted);
                    let field = written.and_then(|key| retry.field(key)).unwrap_or(field);
                    let there = headers.entry(name).or_insert_with(|| field.clone());
                    taken = (*there != field).then_some(name);
                }
                key = true;
            } else if !key && !method.is_safe() {
                let field = new_key().ok().and_then(|key| retry.field(key.as_str()));
                key = field.map(|field| headers.insert(name, field)).is_some();
            }
        }
        let call = Self {
            retry,
            method: method.clone(),
            key,
            intent: keyed.unwrap_or_else(Keyed::new),
        };
        match taken {
            Some(name) => {
                let why = format!("its field {name} holds another key than the intent's");
                Err(call.refuse(why.into()))
            }
            None => Ok(call),
        }
    }

    /// An error of a request that cannot be sent.
    pub(crate) fn refuse(&self, source: BoxError) -> Error {
        self.error(
            ErrorKind::Stopped(Reason::Invalid),
            Effect::None,
            0,
            Some(source),
        )
    }

    /// Sends until there is an answer, or nothing more to be done.
    pub(crate) async fn run<R, F>(
        self,
        mut send: impl FnMut() -> F,
    ) -> Result<Response<Answer<R>>, Error>
    where
        F: Future<Output = Result<Read<R>, Broken>>,
    {
        let retry = self.retry;
        let end = Instant::now() + retry.deadline.min(LONGEST_DEADLINE);
        let mut longest = retry.first_pause;
        let mut tries = 0;
        retry.budget.deposit();
        loop {
            // By the wall clock, and before each try: machines sleep.
            if self.key && self.is_too_old() {
                let kind = ErrorKind::Stopped(Reason::Expired);
                return Err(self.error(kind, Effect::None, tries, None));
            }
            tries += 1;
            // On its way it may have its effect, also if nobody waits for the end of this call.
            let lost = self.intent.possible.fetch_add(1, Ordering::SeqCst) > 0;
            let time = retry.try_timeout.min(end - Instant::now());
            let came = timeout(time, send())
                .await
                .unwrap_or_else(|elapsed| Err(Broken::late(elapsed)));
            let decision = self.decide(&came, lost);
            match (decision.effect, lost) {
                (Effect::None, false) => drop(self.intent.possible.fetch_sub(1, Ordering::SeqCst)),
                // The recorded answer says that none of the tries had an effect.
                (Effect::None, true) => self.intent.possible.store(0, Ordering::SeqCst),
                (Effect::Happened, _) if decision.next != Next::Done => {
                    self.intent.happened.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
            let kind = match decision.next {
                Next::Done => None,
                Next::Stop(reason) => Some(ErrorKind::Stopped(reason)),
                Next::NewKeyAllowed(reason) => Some(ErrorKind::NewKeyAllowed(reason)),
                Next::RetrySameKey(retry_after) => {
                    if self.pause(retry_after, &mut longest, end).await {
                        continue;
                    }
                    Some(ErrorKind::GaveUp { retry_after })
                }
            };
            return match (came, kind) {
                (Ok(read), None) => Ok(read.into_response(decision.replayed, tries)),
                // Without a key there is no intent that could be taken for done: callers read the status.
                (Ok(read), Some(_)) if !self.key => Ok(read.into_response(false, tries)),
                (came, kind) => {
                    // A failure is never done.
                    let kind = kind.unwrap_or(ErrorKind::Stopped(Reason::Unknown));
                    let (answer, source) = match came {
                        Ok(read) => (Some(read.into_problem()), None),
                        Err(broken) => (None, Some(broken.source)),
                    };
                    let mut error = self.error(kind, decision.effect, tries, source);
                    error.answer = answer;
                    Err(error)
                }
            };
        }
    }

    fn decide<R>(&self, came: &Result<Read<R>, Broken>, lost: bool) -> Decision {
        let sent = Sent {
            method: &self.method,
            key: self.key,
            lost,
        };
        let came = match came {
            Ok(read) => Came::Answer {
                status: read.head.status,
                headers: &read.head.headers,
                body: read.body(),
            },
            Err(broken) => Came::Failed(broken.failure),
        };
        decide(sent, came, now())
    }

    /// Waits for the next try; not, if that would be after the end.
    async fn pause(&self, mut after: Duration, longest: &mut Duration, end: Instant) -> bool {
        loop {
            let pause = after.saturating_add(Retry::jitter(*longest));
            *longest = longest.saturating_mul(2).min(self.retry.longest_pause);
            if pause >= end - Instant::now() {
                return false;
            }
            sleep(pause).await;
            if self.retry.budget.withdraw() {
                return true;
            }
            after = Duration::ZERO;
        }
    }

    fn is_too_old(&self) -> bool {
        match now().duration_since(self.intent.begun) {
            Ok(age) => age >= self.retry.key_lifetime,
            // The clock was set back, and its age is not known.
            Err(ahead) => ahead.duration() > MOST_AHEAD,
        }
    }

    fn error(
        &self,
        kind: ErrorKind,
        effect: Effect,
        tries: u32,
        source: Option<BoxError>,
    ) -> Error {
        // Of earlier calls, and of those that run beside this one.
        let others = if self.intent.happened.load(Ordering::SeqCst) {
            Effect::Happened
        } else if self.intent.possible.load(Ordering::SeqCst) > 0 {
            Effect::Possible
        } else {
            Effect::None
        };
        let kind = match kind {
            ErrorKind::NewKeyAllowed(reason) if others > Effect::None => ErrorKind::Stopped(reason),
            kind => kind,
        };
        Error {
            kind,
            effect: effect.max(others),
            tries,
            answer: None,
            source,
        }
    }
}

impl Retry {
    fn field(&self, key: &str) -> Option<HeaderValue> {
        let quote = if self.quotes_key { "\"" } else { "" };
        let mut field = HeaderValue::try_from(format!("{quote}{key}{quote}")).ok()?;
        field.set_sensitive(true);
        Some(field)
    }
}

/// Where an outbox puts a key that the request has nowhere.
pub(crate) const OUTBOX_FIELD: &str = "idempotency-key";

/// By so much clocks are corrected.
const MOST_AHEAD: Duration = Duration::from_mins(1);

/// A longer one would be none, and instants have an end.
const LONGEST_DEADLINE: Duration = Duration::from_hours(24 * 365);

#[expect(
    clippy::disallowed_methods,
    reason = "dates in answers, and the age of what this client began; nothing expires by it at the service"
)]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Unique, and of a form that every convention takes.
pub(crate) fn new_key() -> Result<Key, KeyError> {
    Key::new(&Uuid::now_v7().to_string())
}
