//! The layer's own answers, in the words of a convention.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::problem::{self, Problem, ProblemCode};

/// In which words the layer gives its own answers: status, code and form. Fields that all have in
/// common (`Retry-After`, `Cache-Control: no-store`, a `Link` to the description) are the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Dialect {
    /// Problem details (RFC 9457).
    #[default]
    Problem,
    /// `{"error": {"type", "code", "message", "doc_url"}}`, as Stripe's APIs have it.
    Stripe,
    /// AdCP's errors, with the request's own `context`; on replays `replayed: true` and the present
    /// request's `context`.
    Adcp,
    /// `{"type", "code", "message"}`, as the Agentic Commerce Protocol has it.
    Acp,
    /// `{"error": {"message", "type", "code"}}`, as Iceberg's REST catalog has it.
    Iceberg,
    /// `{"error": {"code", "message"}}`, as OData has it, and `Repeatability-Result`.
    Odata,
}

/// Says of every answer to a repeatable request whether it is one that counts.
const RESULT: HeaderName = HeaderName::from_static("repeatability-result");
const ACCEPTED: HeaderValue = HeaderValue::from_static("accepted");
const REJECTED: HeaderValue = HeaderValue::from_static("rejected");

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 6] = [
        Self::Problem,
        Self::Stripe,
        Self::Adcp,
        Self::Acp,
        Self::Iceberg,
        Self::Odata,
    ];

    /// The name in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Stripe => "stripe",
            Self::Adcp => "adcp",
            Self::Acp => "acp",
            Self::Iceberg => "iceberg",
            Self::Odata => "odata",
        }
    }

    /// The status with which the layer says this.
    pub const fn status(self, code: ProblemCode) -> StatusCode {
        match (self, code) {
            (Self::Stripe | Self::Odata, ProblemCode::Mismatch) => StatusCode::BAD_REQUEST,
            // A 409 of a catalog means that nothing was committed.
            (Self::Iceberg, ProblemCode::OutcomeUnknown) => StatusCode::INTERNAL_SERVER_ERROR,
            (_, code) => code.status(),
        }
    }

    /// The word with which the layer says this: `code`, or what the convention has in its place.
    pub fn code(self, code: ProblemCode) -> String {
        let word = match (self, code) {
            (Self::Problem, code) => code.as_str(),
            (Self::Stripe, ProblemCode::InFlight) => "idempotency_key_in_use",
            (Self::Stripe, ProblemCode::Mismatch) => "idempotency_key_reused",
            (Self::Stripe | Self::Acp, ProblemCode::MissingKey) => "idempotency_key_required",
            (Self::Stripe | Self::Acp, ProblemCode::InvalidKey) => "idempotency_key_invalid",
            (Self::Acp, ProblemCode::InFlight) => "idempotency_in_flight",
            (Self::Acp, ProblemCode::Mismatch) => "idempotency_conflict",
            (Self::Adcp, ProblemCode::InFlight) => "IDEMPOTENCY_IN_FLIGHT",
            (Self::Adcp, ProblemCode::Mismatch) => "IDEMPOTENCY_CONFLICT",
            (Self::Adcp, ProblemCode::Expired) => "IDEMPOTENCY_EXPIRED",
            (Self::Adcp, ProblemCode::OutcomeUnknown) => "IDEMPOTENCY_OUTCOME_UNKNOWN",
            (Self::Adcp, ProblemCode::MissingPrincipal) => "AUTH_MISSING",
            (Self::Adcp, code) => match code.status().as_u16() {
                429 => "RATE_LIMITED",
                500.. => "SERVICE_UNAVAILABLE",
                _ => "INVALID_REQUEST",
            },
            (Self::Iceberg, ProblemCode::OutcomeUnknown) => "CommitStateUnknownException",
            (Self::Iceberg, code) => match code.status().as_u16() {
                409 => "ConflictException",
                422 => "UnprocessableEntityException",
                429 => "SlowDownException",
                500.. => "ServiceUnavailableException",
                _ => "BadRequestException",
            },
            (Self::Stripe | Self::Acp, code) => return code.as_str().replace('-', "_"),
            (Self::Odata, code) => return pascal_case(code.as_str()),
        };
        word.to_owned()
    }

    /// The whole answer. `context` is the request's own.
    pub(crate) fn write(
        self,
        problem: &Problem,
        base: &str,
        context: Option<&RawValue>,
    ) -> Response<Bytes> {
        let code = problem.code;
        let uri = format!("{base}{}", code.as_str());
        let (status, word, detail) = (self.status(code), self.code(code), &problem.detail);
        let after = problem.retry_after;
        if self == Self::Problem {
            return problem::write(&uri, &word, status, code.title(), detail, after);
        }
        let message = format!("{}. {detail}", code.title());
        let body = match self {
            Self::Stripe => json!({"error": {
                "type": stripe_type(code),
                "code": word,
                "message": message,
                "doc_url": uri,
            }}),
            Self::Acp => json!({"type": acp_type(code), "code": word, "message": message}),
            Self::Iceberg => json!({"error": {
                "message": message,
                "type": word,
                "code": status.as_u16(),
            }}),
            Self::Adcp => {
                let mut error = json!({
                    "code": word,
                    "message": message,
                    "recovery": adcp_recovery(code),
                });
                if let Some(after) = after {
                    // As long as AdCP 3.2 lets a seller ask for, and no longer than any answer is kept.
                    let seconds = problem::whole_seconds(after).min(3600);
                    error["retry_after"] = Value::from(seconds);
                }
                json!({"status": "failed", "error": error, "adcp_error": error, "errors": [error]})
            }
            Self::Problem | Self::Odata => json!({"error": {"code": word, "message": message}}),
        };
        let mut text = body.to_string();
        if let Some(context) = context {
            // Before the brace that ends it, byte for byte as it came.
            text.pop();
            text.push_str(",\"context\":");
            text.push_str(context.get());
            text.push('}');
        }
        let mut response = Response::new(Bytes::from(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        problem::write_fields(headers, &uri, after);
        if self == Self::Odata {
            let is_accepted = matches!(code, ProblemCode::InFlight | ProblemCode::OutcomeUnknown);
            headers.insert(RESULT, if is_accepted { ACCEPTED } else { REJECTED });
        }
        response
    }

    /// What every answer of the operation carries.
    pub(crate) fn accept(self, headers: &mut http::HeaderMap) {
        if self == Self::Odata {
            headers.insert(RESULT, ACCEPTED);
        }
    }
}

/// The error's type, of those that clients of Stripe know.
fn stripe_type(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::Mismatch
        | ProblemCode::InFlight
        | ProblemCode::OutcomeUnknown
        | ProblemCode::Expired => "idempotency_error",
        code if code.status().is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

fn acp_type(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::OutcomeUnknown | ProblemCode::Expired => "processing_error",
        code if code.status().is_server_error() => "service_unavailable",
        _ => "invalid_request",
    }
}

/// What a buyer's agent does by itself.
fn adcp_recovery(code: ProblemCode) -> &'static str {
    match code {
        ProblemCode::OutcomeUnknown => "terminal",
        ProblemCode::InFlight | ProblemCode::IncompleteBody => "transient",
        code if code.status().is_server_error() => "transient",
        code if code.status() == StatusCode::TOO_MANY_REQUESTS => "transient",
        _ => "correctable",
    }
}

fn pascal_case(words: &str) -> String {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1);
        first.to_ascii_uppercase() + rest
    };
    words.split('-').map(capital).collect()
}
