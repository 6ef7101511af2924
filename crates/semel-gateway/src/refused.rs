//! What the interfaces of the operators' listener answer in place of what was asked: problem details
//! (RFC 9457), with the codes of the layer where they mean the same.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use semel::{StoreError, StoreErrorKind};
use semel_tower::ProblemCode;
use serde_json::{Map, Value, json};

const DOCUMENTATION: &str = "https://github.com/semel-rs/semel/blob/main/docs";

/// What only these interfaces answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    UnsupportedMediaType,
    // The claim API.
    Stale,
    StepConflict,
    // The admin API.
    MissingReason,
    NoRecord,
    AttemptRunning,
    RecordChanged,
    WrongState,
    NotConfirmed,
    OutcomeTooLarge,
    ActionUnknown,
}

impl Code {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (
                StatusCode::BAD_REQUEST,
                "invalid-request",
                "The request is not valid",
            ),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "A token is required",
            ),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "This is not allowed"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is nothing here"),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "This method is not possible here",
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The request is not JSON",
            ),
            Self::Stale => (
                StatusCode::CONFLICT,
                "stale",
                "The token is not the current one",
            ),
            Self::StepConflict => (
                StatusCode::CONFLICT,
                "step-conflict",
                "The step is kept with another result",
            ),
            Self::MissingReason => (
                StatusCode::BAD_REQUEST,
                "missing-reason",
                "An action needs a reason",
            ),
            Self::NoRecord => (
                StatusCode::NOT_FOUND,
                "no-record",
                "There is no such record",
            ),
            Self::AttemptRunning => (
                StatusCode::CONFLICT,
                "attempt-running",
                "An attempt is running",
            ),
            Self::RecordChanged => (
                StatusCode::CONFLICT,
                "record-changed",
                "The record has changed since it was looked at",
            ),
            Self::WrongState => (
                StatusCode::CONFLICT,
                "wrong-state",
                "The record's state does not allow it",
            ),
            Self::NotConfirmed => (
                StatusCode::FORBIDDEN,
                "not-confirmed",
                "Somebody else has to confirm it",
            ),
            Self::OutcomeTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "outcome-too-large",
                "The store cannot keep an answer of this size",
            ),
            Self::ActionUnknown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "action-unknown",
                "It is not known whether the store did it",
            ),
        }
    }

    /// Where it is described.
    const fn page(self) -> &'static str {
        match self {
            Self::MissingReason
            | Self::NoRecord
            | Self::AttemptRunning
            | Self::RecordChanged
            | Self::WrongState
            | Self::NotConfirmed
            | Self::OutcomeTooLarge
            | Self::ActionUnknown => "operate.md",
            _ => "claims.md",
        }
    }
}

/// A problem answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused(Box<Parts>);

#[derive(Debug, Clone, PartialEq)]
struct Parts {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    page: &'static str,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    /// Members besides.
    members: Map<String, Value>,
    challenges: bool,
}

impl Refused {
    /// An answer of these interfaces only. The detail says what happened this time, without keys and
    /// tokens.
    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        let (status, name, title) = code.parts();
        Self::of(code.page(), status, name, title, detail.into())
    }

    /// An answer that the layer gives too.
    pub(crate) fn of_layer(code: ProblemCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let (status, title) = (code.status(), code.title());
        Self::of("http.md", status, code.as_str(), title, detail.into())
    }

    fn of(
        page: &'static str,
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: Cow<'static, str>,
    ) -> Self {
        Self(Box::new(Parts {
            status,
            code,
            title,
            page,
            detail,
            retry_after: None,
            members: Map::new(),
            challenges: false,
        }))
    }

    /// The request is wrong: so.
    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidRequest, detail)
    }

    /// Whether it is for this reason.
    pub(crate) fn is(&self, code: Code) -> bool {
        self.0.code == code.parts().1
    }

    /// The stable `code` member.
    pub(crate) const fn code(&self) -> &'static str {
        self.0.code
    }

    /// What happened.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The status of the answer.
    pub(crate) const fn status(&self) -> StatusCode {
        self.0.status
    }

    /// In a few words, the same for all of a code.
    pub(crate) const fn title(&self) -> &'static str {
        self.0.title
    }

    /// When to ask again.
    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// A member besides those of all problems.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// Says how to authenticate.
    pub(crate) fn challenging(mut self) -> Self {
        self.0.challenges = true;
        self
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        // What the store says may name its address: it stands in the log.
        tracing::debug!("store: {error}");
        let (code, detail) = match error.kind() {
            StoreErrorKind::Capacity => (
                ProblemCode::Capacity,
                "No new records are taken at present. Send the same request again later.",
            ),
            _ => (
                ProblemCode::StoreUnavailable,
                "Whether the store did it is not known. Send the same request again.",
            ),
        };
        Self::of_layer(code, detail).retry_after(Duration::from_secs(1))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let problem = *self.0;
        let mut members = problem.members;
        for (name, value) in [
            (
                "type",
                json!(format!("{DOCUMENTATION}/{}#{}", problem.page, problem.code)),
            ),
            ("title", json!(problem.title)),
            ("status", json!(problem.status.as_u16())),
            ("detail", json!(problem.detail)),
            ("code", json!(problem.code)),
        ] {
            members.insert(name.to_owned(), value);
        }
        let mut response = Response::new(Body::from(Value::Object(members).to_string()));
        *response.status_mut() = problem.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = problem.retry_after {
            // Whole and at least one: the field knows no fractions.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if problem.challenges {
            for scheme in ["Bearer realm=\"semel\"", "Basic realm=\"semel\""] {
                headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
            }
        }
        response
    }
}

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.detail)
    }
}
