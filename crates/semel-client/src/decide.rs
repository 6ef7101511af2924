//! What to do with what came back. `clients/retry-cases.json` is the table that this is tested by, and
//! that the clients for other languages share.

use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

/// No problem is longer, and a longer body is not looked into.
pub(crate) const LONGEST_PROBLEM: usize = 16 << 10;

/// What of a request decides whether it may be sent again.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Whether it carries an idempotency key, and the service is known to honour those.
    pub key: bool,
    /// Whether an earlier try of the same intent may have had its effect: the [`Decision::effect`] of
    /// that try was another than [`Effect::None`].
    pub lost: bool,
}

/// What came back.
#[derive(Debug, Clone, Copy)]
pub enum Came<'a> {
    /// An answer, whole.
    Answer {
        /// Its status.
        status: StatusCode,
        /// Its fields.
        headers: &'a HeaderMap,
        /// Its body. Of a success nothing is read, and of others 16 KiB.
        body: &'a [u8],
    },
    /// No answer, or not the whole of it.
    Failed(Failure),
}

/// Why there is no whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub kind: FailureKind,
    /// Whether anything of the request was written to the connection. `true` where that is not known.
    pub sent: bool,
}

/// What went wrong on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// No connection could be made.
    Refused,
    /// The connection broke.
    Reset,
    /// No answer came in time.
    Timeout,
    /// The head of an answer with this status came, and not the whole of its body.
    BrokenAnswer(StatusCode),
    /// The request cannot be sent at all: its URL, a field or its body is not what can be sent, or the
    /// service's certificate is not trusted.
    InvalidRequest,
}

/// What to do, and what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub next: Next,
    /// What is known of the operation's effect if nothing more is sent. Of an answer ([`Next::Done`]) the
    /// answer itself says that.
    pub effect: Effect,
    /// Whether the answer is marked as a replay.
    pub replayed: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing: this is the operation's answer, a success or its lasting failure.
    Done,
    /// Send the same request again, with the same key if it had one, and not before this much time.
    RetrySameKey(Duration),
    /// The key has had no effect and never will. Whoever made the intent may begin it anew with another
    /// one; a client does not do that by itself.
    NewKeyAllowed(Reason),
    /// Asking again changes nothing, or may do it twice.
    Stop(Reason),
}

/// Why a client stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The key was used with another request.
    Mismatch,
    /// It may have happened, and nobody can tell.
    Unknown,
    /// It was done, or first sent, too long ago.
    Expired,
    /// The request has to be corrected.
    Invalid,
    /// Credentials are missing, refused or out of date.
    Unauthorized,
    /// The record has another version.
    Precondition,
    /// The service does not take such keys.
    InvalidKey,
    /// It happened, and the answer did not come whole.
    AnswerLost,
    /// Refused for the time being; without a key it is not sent again.
    Busy,
}

impl Reason {
    /// Its word in the table of cases.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Invalid => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Precondition => "precondition",
            Self::InvalidKey => "invalid-key",
            Self::AnswerLost => "answer-lost",
            Self::Busy => "busy",
        }
    }
}

/// What is known of the operation's effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    /// There was none.
    None,
    /// There may have been one.
    Possible,
    /// It happened.
    Happened,
}

/// Decides, by the clock `now`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, Method, StatusCode};
/// use semel_client::decide::{Came, Next, Sent, decide};
///
/// let sent = Sent { method: &Method::POST, key: true, lost: false };
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "2".parse()?);
/// let came = Came::Answer { status: StatusCode::SERVICE_UNAVAILABLE, headers: &headers, body: b"" };
/// let decision = decide(sent, came, SystemTime::now());
/// assert_eq!(decision.next, Next::RetrySameKey(Duration::from_secs(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decide(sent: Sent<'_>, came: Came<'_>, now: SystemTime) -> Decision {
    match came {
        Came::Failed(failure) => after_failure(sent, failure),
        Came::Answer {
            status,
            headers,
            body,
        } => after_answer(sent, status, headers, body, now),
    }
}

fn after_failure(sent: Sent<'_>, failure: Failure) -> Decision {
    use FailureKind::{BrokenAnswer, InvalidRequest};
    match failure.kind {
        InvalidRequest if !failure.sent => sent.stop(Reason::Invalid, Effect::None),
        InvalidRequest => sent.stop(Reason::Invalid, Effect::Possible),
        BrokenAnswer(status) if status.is_success() => {
            sent.again_or(Reason::AnswerLost, Effect::Happened)
        }
        BrokenAnswer(_) => sent.again_or(Reason::Unknown, Effect::Possible),
        _ if !failure.sent => sent.again(Duration::ZERO, Effect::None),
        _ => sent.again_or(Reason::Unknown, Effect::Possible),
    }
}

fn after_answer(
    sent: Sent<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now: SystemTime,
) -> Decision {
    let says = |name: &str, what: &str| headers.get(name).is_some_and(|value| value == what);
    let replayed = REPLAY_MARKS.iter().any(|mark| says(mark, "true"));
    let done = Decision {
        next: Next::Done,
        effect: Effect::Happened,
        replayed,
    };
    if status.is_success() || status.is_redirection() {
        return done;
    }
    // A service that could not keep the key would run the request again.
    let sent = Sent {
        key: sent.key && !says("idempotency-protected", "false"),
        ..sent
    };
    let problem = problem(headers, body);
    let meaning = meaning(status, problem.as_ref());
    if replayed && meaning != Some(Meaning::PreconditionFailed) {
        return done;
    }
    let after = retry_after(headers, problem.as_ref(), now);
    let waits = headers.contains_key(RETRY_AFTER);
    let decision = match meaning {
        Some(Meaning::Unknown) => sent.stop(Reason::Unknown, Effect::Possible),
        // Without a key these are the service's own words.
        Some(Meaning::Mismatch) if sent.key => sent.stop(Reason::Mismatch, Effect::Possible),
        Some(Meaning::Expired) if sent.key => sent.stop(Reason::Expired, Effect::Happened),
        Some(Meaning::OutsideWindow) => sent.stop(Reason::Expired, Effect::None),
        Some(Meaning::InFlight) if sent.key => sent.again(after, Effect::Possible),
        Some(Meaning::InvalidKey) => sent.anew(Reason::InvalidKey),
        Some(Meaning::PreconditionFailed) if replayed => Sent {
            // What is recorded under the key is what became of the lost try.
            lost: false,
            ..sent
        }
        .anew(Reason::Precondition),
        Some(Meaning::PreconditionFailed) => sent.anew(Reason::Precondition),
        Some(Meaning::Unauthorized) => sent.stop(Reason::Unauthorized, Effect::None),
        Some(Meaning::Invalid) => sent.stop(Reason::Invalid, Effect::None),
        Some(Meaning::NothingRan) if sent.is_repeatable() => sent.again(after, Effect::None),
        Some(Meaning::NothingRan) => sent.stop(Reason::Busy, Effect::None),
        _ if sent.is_repeatable() && says("stripe-should-retry", "true") => {
            sent.again(after, Effect::Possible)
        }
        _ if says("stripe-should-retry", "false") && !matches!(status.as_u16(), 400..=408) => done,
        _ => match status.as_u16() {
            409 if sent.key && waits => sent.again(after, Effect::Possible),
            425 | 429 if sent.is_repeatable() => sent.again(after, Effect::None),
            425 | 429 => sent.stop(Reason::Busy, Effect::None),
            401 | 403 | 407 | 419 => sent.stop(Reason::Unauthorized, Effect::None),
            400 | 405 | 406 | 411 | 413 | 414 | 415 | 417 | 421 | 426 | 428 | 431 | 501 | 505 => {
                sent.stop(Reason::Invalid, Effect::None)
            }
            408 | 500.. if sent.is_repeatable() => sent.again(after, Effect::Possible),
            408 | 500.. => sent.stop(Reason::Unknown, Effect::Possible),
            _ => done,
        },
    };
    Decision {
        replayed,
        ..decision
    }
}

impl Sent<'_> {
    /// RFC 9110, section 9.2.2; of other methods the key makes it so.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.key || self.method.is_idempotent()
    }

    fn decision(&self, next: Next, effect: Effect) -> Decision {
        let before = if self.lost {
            Effect::Possible
        } else {
            Effect::None
        };
        Decision {
            next,
            effect: effect.max(before),
            replayed: false,
        }
    }

    fn again(&self, after: Duration, effect: Effect) -> Decision {
        self.decision(Next::RetrySameKey(after), effect)
    }

    fn stop(&self, reason: Reason, effect: Effect) -> Decision {
        self.decision(Next::Stop(reason), effect)
    }

    fn again_or(&self, reason: Reason, effect: Effect) -> Decision {
        match self.is_repeatable() {
            true => self.again(Duration::ZERO, effect),
            false => self.stop(reason, effect),
        }
    }

    /// With another key, if no earlier try may have had its effect under this one.
    fn anew(&self, reason: Reason) -> Decision {
        match self.lost {
            true => self.stop(reason, Effect::Possible),
            false => self.decision(Next::NewKeyAllowed(reason), Effect::None),
        }
    }
}

/// The fields that mark replays: semel's and the draft's implementers', and Stripe's and ACP's.
const REPLAY_MARKS: [&str; 2] = ["idempotency-replayed", "idempotent-replayed"];

/// What the code of a problem means, by semel and by the conventions that it has presets for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    InFlight,
    Unknown,
    Mismatch,
    Expired,
    OutsideWindow,
    InvalidKey,
    PreconditionFailed,
    Unauthorized,
    Invalid,
    NothingRan,
}

/// Codes count with the statuses that they come with: a service may use the same words for its own
/// purposes.
fn meaning(status: StatusCode, problem: Option<&Value>) -> Option<Meaning> {
    let code = problem.and_then(code_of);
    let meaning = match (status.as_u16(), code.as_deref().unwrap_or_default()) {
        (
            _,
            "outcome-unknown" | "idempotency-outcome-unknown" | "commit-state-unknown-exception",
        ) => Meaning::Unknown,
        (
            400..=499,
            "mismatch" | "idempotency-mismatch" | "idempotency-conflict" | "idempotency-key-reused",
        ) => Meaning::Mismatch,
        (409, "expired") | (400..=499, "idempotency-expired") => Meaning::Expired,
        (412, "outside-window") => Meaning::OutsideWindow,
        (
            409,
            "in-flight"
            | "in-progress"
            | "idempotency-in-flight"
            | "idempotency-in-progress"
            | "idempotency-key-in-use"
            | "request-in-progress"
            | "operation-in-progress"
            | "previous-request-in-progress"
            | "concurrent-request",
        ) => Meaning::InFlight,
        (400, "invalid-key" | "idempotency-key-invalid") => Meaning::InvalidKey,
        (412, "precondition-failed") => Meaning::PreconditionFailed,
        (400, "missing-principal" | "auth-missing") => Meaning::Unauthorized,
        (404, "no-route") => Meaning::Invalid,
        (503, "overloaded" | "capacity" | "contended" | "auth-unavailable")
        | (429, "limit")
        | (502, "upstream-unreachable")
        | (400, "incomplete-body") => Meaning::NothingRan,
        (400 | 409, _) if has_idempotency_type(problem) => match status {
            StatusCode::CONFLICT => Meaning::InFlight,
            _ => Meaning::Mismatch,
        },
        _ => return None,
    };
    Some(meaning)
}

/// Stripe's own answers have a type, and not always a code.
fn has_idempotency_type(problem: Option<&Value>) -> bool {
    problem.and_then(|problem| problem.pointer("/error/type")?.as_str())
        == Some("idempotency_error")
}

fn problem(headers: &HeaderMap, body: &[u8]) -> Option<Value> {
    let media_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = media_type
        .split(';')
        .next()?
        .trim_ascii()
        .to_ascii_lowercase();
    let is_json = media_type == "application/json" || media_type.ends_with("+json");
    (is_json && body.len() <= LONGEST_PROBLEM)
        .then(|| serde_json::from_slice(body).ok())
        .flatten()
}

/// The code, where services have it: at the top (RFC 9457's extension), in `error`, in the first of
/// `errors`; Iceberg's is a `type`. Words in small letters, joined by `-`.
fn code_of(problem: &Value) -> Option<String> {
    let code = [
        "/code",
        "/error/code",
        "/error/type",
        "/error",
        "/errors/0/code",
        "/adcp_error/code",
    ]
    .iter()
    .find_map(|place| problem.pointer(place)?.as_str())?;
    let mut words = String::with_capacity(code.len() + 4);
    let mut after_small = false;
    for c in code.chars() {
        if c.is_ascii_uppercase() && after_small {
            words.push('-');
        }
        after_small = c.is_ascii_lowercase();
        words.push(match c {
            '_' | '.' | ' ' => '-',
            c => c.to_ascii_lowercase(),
        });
    }
    Some(words)
}

/// How long the service asks to wait: the field, else AdCP's member.
fn retry_after(headers: &HeaderMap, problem: Option<&Value>, now: SystemTime) -> Duration {
    let field = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    if let Some(field) = field {
        return time_in(field.trim_ascii(), headers, now).unwrap_or_default();
    }
    let places = [
        "/error/retry_after",
        "/adcp_error/retry_after",
        "/errors/0/retry_after",
    ];
    let member = places
        .iter()
        .find_map(|place| problem?.pointer(place)?.as_f64());
    member
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map_or(Duration::ZERO, |time| time.min(LONGEST_TIME))
}

/// RFC 9111, section 1.2.2: what cannot be counted is this much.
const LONGEST_TIME: Duration = Duration::from_secs(1 << 31);

fn time_in(field: &str, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    if !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit()) {
        let seconds = field.parse().map_or(LONGEST_TIME, Duration::from_secs);
        return Some(seconds.min(LONGEST_TIME));
    }
    let until = httpdate::parse_http_date(field).ok()?;
    // The service's own clock, where it says what that is: the client's may be wrong.
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let now = date
        .and_then(|date| httpdate::parse_http_date(date).ok())
        .unwrap_or(now);
    Some(until.duration_since(now).unwrap_or_default())
}
