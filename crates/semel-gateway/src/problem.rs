//! Answers of the gateway itself: problem details (RFC 9457), like those of the layer.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER};
use http::{Response, StatusCode};

/// What kind of answer the gateway gave in place of the upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No connection could be made: nothing was sent.
    Unreachable,
    /// The request was sent, or begun to be, and the connection broke before an answer came.
    Failed,
    /// The request was sent, or begun to be, and no answer came in time.
    Timeout,
    /// The client's body broke off, or did not come in time.
    IncompleteBody,
    /// The request breaks a rule of HTTP: this one.
    Malformed(&'static str),
    /// Something was asked for that the gateway does not do.
    NotSupported(&'static str),
    /// No route takes the request.
    NoRoute,
    /// Servers read its path in several ways, for which there are several routes.
    AmbiguousPath,
    /// As many requests without a key are on their way to the upstream as may be, or the gateway had
    /// no descriptor, port or memory for a connection: nothing was sent.
    Overloaded,
    /// The token that says who asks is no good, for this reason.
    InvalidToken(&'static str),
    /// The endpoint that is asked about callers answered 401.
    Unauthenticated,
    /// The endpoint that is asked about callers answered 403.
    Forbidden,
    /// It cannot be found out now who asks.
    AuthUnavailable,
}

impl Problem {
    pub(crate) const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Unreachable => (
                StatusCode::BAD_GATEWAY,
                "upstream-unreachable",
                "The service cannot be reached",
            ),
            Self::Failed => (
                StatusCode::BAD_GATEWAY,
                "upstream-failed",
                "The service broke off without an answer",
            ),
            Self::Timeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "upstream-timeout",
                "The service did not answer in time",
            ),
            Self::IncompleteBody => (
                StatusCode::BAD_REQUEST,
                "incomplete-body",
                "The request body is incomplete",
            ),
            Self::Malformed(_) => (
                StatusCode::BAD_REQUEST,
                "malformed-request",
                "The request is not well-formed HTTP",
            ),
            Self::NoRoute => (
                StatusCode::NOT_FOUND,
                "no-route",
                "There is no route for this request",
            ),
            Self::AmbiguousPath => (
                StatusCode::BAD_REQUEST,
                "ambiguous-path",
                "The path can be read in several ways",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "The gateway has no room for this request",
            ),
            Self::InvalidToken(_) => (
                StatusCode::UNAUTHORIZED,
                "invalid-token",
                "The token is not accepted",
            ),
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "The credentials are missing or not accepted",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "The caller may not do this",
            ),
            Self::AuthUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "auth-unavailable",
                "It cannot be found out now who is calling",
            ),
            Self::NotSupported(_) => (
                StatusCode::NOT_IMPLEMENTED,
                "not-supported",
                "The gateway passes on requests and answers only",
            ),
        }
    }

    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::Unreachable => "Nothing was sent to it. Try again.",
            Self::Failed | Self::Timeout => {
                "The request was sent to it, and may have had its effect."
            }
            Self::IncompleteBody => "The body broke off, or its next piece did not come in time.",
            Self::NoRoute => "No service is behind this host, path and method. Nothing was run.",
            Self::AmbiguousPath => {
                "It has encoded slashes, dot segments, empty segments or the like, which servers \
                 read in different ways. Write it without them. Nothing was run."
            }
            Self::Overloaded => {
                "Nothing was sent to the service. Try again, and with the same key if there was one."
            }
            Self::Unauthenticated | Self::Forbidden => {
                "Nothing was run, and no earlier answer is given out."
            }
            Self::AuthUnavailable => "Nothing was run. Try again with the same key.",
            Self::Malformed(detail) | Self::NotSupported(detail) | Self::InvalidToken(detail) => {
                detail
            }
        }
    }

    /// The stable `code` member.
    pub(crate) const fn code(self) -> &'static str {
        self.parts().1
    }

    /// The whole answer.
    pub(crate) fn respond<B: From<Bytes>>(self) -> Response<B> {
        let (status, code, title) = self.parts();
        let uri = format!("{DOCUMENTATION}#{code}");
        let text = serde_json::json!({
            "type": uri,
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail(),
            "code": code,
        })
        .to_string();
        let mut response = Response::new(B::from(Bytes::from(text)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(link) = HeaderValue::try_from(format!("<{uri}>; rel=\"describedby\"")) {
            headers.insert(LINK, link);
        }
        if matches!(self, Self::Overloaded | Self::AuthUnavailable) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

const DOCUMENTATION: &str = "https://github.com/semel-rs/semel/blob/main/docs/gateway.md";
