//! Answers of the layer itself: problem details (RFC 9457).

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use semel::guard::Signal;

/// Where problems are described unless the layer says otherwise.
pub(crate) const DOCUMENTATION: &str = "https://github.com/semel-rs/semel/blob/main/docs/http.md#";

/// What kind of answer the layer gave in place of the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemCode {
    /// 400: the operation requires a key.
    MissingKey,
    /// 400: the header field is malformed, or the key breaks the rule.
    InvalidKey,
    /// 400: the operation requires a principal that its keys belong to.
    MissingPrincipal,
    /// 400: the body ended before it was complete.
    IncompleteBody,
    /// 409: another attempt is under way; `Retry-After` says when to ask again.
    InFlight,
    /// 409: an attempt may have had its effect, and nobody recorded it.
    OutcomeUnknown,
    /// 409: the outcome's retention ended, and its tombstone says so.
    Expired,
    /// 412: the request was first sent too long ago to know whether it ran.
    OutsideWindow,
    /// 413: the body is larger than the layer reads.
    TooLarge,
    /// 422: the key was first used with another request.
    Mismatch,
    /// 429: the scope has begun, runs or keeps as much as it may; `Retry-After` says when to ask again.
    Limit,
    /// 501: requests of this method are not made to happen once, and this one asks for it.
    NotSupported,
    /// 503: as much runs, or is held in memory, as may be.
    Overloaded,
    /// 503: the store cannot be asked, or could not record what happened.
    StoreUnavailable,
    /// 503: the store is full and takes no new claims.
    Capacity,
}

impl ProblemCode {
    /// Every code.
    pub const ALL: [Self; 15] = [
        Self::MissingKey,
        Self::InvalidKey,
        Self::MissingPrincipal,
        Self::IncompleteBody,
        Self::InFlight,
        Self::OutcomeUnknown,
        Self::Expired,
        Self::OutsideWindow,
        Self::TooLarge,
        Self::Mismatch,
        Self::Limit,
        Self::NotSupported,
        Self::Overloaded,
        Self::StoreUnavailable,
        Self::Capacity,
    ];

    /// The stable `code` member.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingKey => "missing-key",
            Self::InvalidKey => "invalid-key",
            Self::MissingPrincipal => "missing-principal",
            Self::IncompleteBody => "incomplete-body",
            Self::InFlight => "in-flight",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::Expired => "expired",
            Self::OutsideWindow => "outside-window",
            Self::TooLarge => "too-large",
            Self::Mismatch => "mismatch",
            Self::Limit => "limit",
            Self::NotSupported => "not-supported",
            Self::Overloaded => "overloaded",
            Self::StoreUnavailable => "store-unavailable",
            Self::Capacity => "capacity",
        }
    }

    /// What it is called to observers, where the request is refused before its key is claimed.
    pub(crate) const fn refusal(self) -> Option<Signal> {
        Some(match self {
            Self::MissingKey => Signal::MissingKey,
            Self::InvalidKey | Self::OutsideWindow | Self::NotSupported => Signal::InvalidKey,
            Self::MissingPrincipal => Signal::MissingPrincipal,
            Self::IncompleteBody => Signal::IncompleteBody,
            Self::TooLarge => Signal::TooLarge,
            Self::Limit => Signal::Limited,
            Self::Overloaded => Signal::Overloaded,
            _ => return None,
        })
    }

    /// The status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::MissingKey | Self::InvalidKey | Self::MissingPrincipal | Self::IncompleteBody => {
                StatusCode::BAD_REQUEST
            }
            Self::InFlight | Self::OutcomeUnknown | Self::Expired => StatusCode::CONFLICT,
            Self::OutsideWindow => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Limit => StatusCode::TOO_MANY_REQUESTS,
            Self::NotSupported => StatusCode::NOT_IMPLEMENTED,
            Self::Overloaded | Self::StoreUnavailable | Self::Capacity => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The `title` member: what the code means, the same each time.
    pub const fn title(self) -> &'static str {
        match self {
            Self::MissingKey => "An idempotency key is required",
            Self::InvalidKey => "The idempotency key is not valid",
            Self::MissingPrincipal => "A principal is required",
            Self::IncompleteBody => "The request body is incomplete",
            Self::InFlight => "The operation is still running",
            Self::OutcomeUnknown => "The outcome of the operation is not known",
            Self::Expired => "The answer to this key has expired",
            Self::OutsideWindow => "The request was first sent too long ago",
            Self::TooLarge => "The request body is too large",
            Self::Mismatch => "The idempotency key was used with another request",
            Self::Limit => "The limit of this caller is reached",
            Self::NotSupported => "Requests of this method are not repeatable",
            Self::Overloaded => "Too many operations are running",
            Self::StoreUnavailable => "The idempotency store is not available",
            Self::Capacity => "The idempotency store is full",
        }
    }

    const fn detail(self) -> &'static str {
        match self {
            Self::MissingKey => {
                "Send a key that is new for each operation, and the same for its retries."
            }
            Self::InvalidKey => "Nothing was run.",
            Self::MissingPrincipal => {
                "A key belongs to its sender, and this request does not say who that is. \
                 Nothing was run."
            }
            Self::IncompleteBody => {
                "The body broke off or could not be read. Nothing was run; send the request again \
                 with the same key."
            }
            Self::InFlight => {
                "An earlier request with this key is running. Ask again with the same key."
            }
            Self::OutcomeUnknown => {
                "An earlier attempt with this key may have had its effect, and its answer was \
                 lost. It is not run again until its outcome is resolved."
            }
            Self::Expired => {
                "The operation ran, and its answer is no longer kept. It is not run again with \
                 this key."
            }
            Self::OutsideWindow => {
                "Whether it ran is no longer known, or its date is in the future. Nothing was run; it \
                 may have been before."
            }
            Self::TooLarge => {
                "A request with a key is read whole before it is run. Nothing was run."
            }
            Self::Mismatch => {
                "Use the same key for retries of the same request only. Nothing was run or changed."
            }
            Self::Limit => {
                "This caller has begun as many operations with keys as it may, or has as many running. \
                 Nothing was run. Ask again with the same key; what was done before is still answered."
            }
            Self::NotSupported => {
                "Nothing was run. Without a key the request runs, as often as it is sent."
            }
            Self::Overloaded => {
                "No more operations with keys are begun at present. Nothing was run. Ask again with \
                 the same key."
            }
            Self::StoreUnavailable => "Nothing was run. Ask again with the same key.",
            Self::Capacity => {
                "No new operations with keys are taken at present. Nothing was run. Ask again with \
                 the same key."
            }
        }
    }
}

/// An answer of the layer itself. It stands among the extensions of the response, so that a service
/// outside can write it in another convention's form.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// What kind of answer.
    pub code: ProblemCode,
    /// What happened this time; holds neither key nor body.
    pub detail: Cow<'static, str>,
    /// When to ask again.
    pub retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode) -> Self {
        let retry_after = matches!(
            code,
            ProblemCode::InFlight
                | ProblemCode::Overloaded
                | ProblemCode::StoreUnavailable
                | ProblemCode::Capacity
        )
        .then_some(Duration::from_secs(1));
        Self {
            code,
            detail: Cow::Borrowed(code.detail()),
            retry_after,
        }
    }

    pub(crate) fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}

/// A problem as it is sent, never cached.
pub(crate) fn write(
    uri: &str,
    code: &str,
    status: StatusCode,
    title: &str,
    detail: &str,
    retry_after: Option<Duration>,
) -> Response<Bytes> {
    let text = serde_json::json!({
        "type": uri,
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
    })
    .to_string();
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    write_fields(headers, uri, retry_after);
    response
}

/// What an answer of the layer's own carries, whatever its form.
pub(crate) fn write_fields(headers: &mut HeaderMap, uri: &str, retry_after: Option<Duration>) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Where the URI can stand in a header field.
    if let Ok(link) = HeaderValue::try_from(format!("<{uri}>; rel=\"describedby\"")) {
        headers.insert(LINK, link);
    }
    if let Some(after) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
    }
}

// Whole and at least one: `Retry-After` knows no fractions (RFC 9110, section 10.2.3).
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_whole_and_at_least_one() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}
