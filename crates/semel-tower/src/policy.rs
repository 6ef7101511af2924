//! Which requests take a key, and which responses are kept.

use std::any::Any;
use std::error::Error as StdError;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode, response};
use tower::load_shed::error::Overloaded;

use crate::conflict;

/// What becomes of the record once the inner service has answered.
///
/// The layer decides by status ([`of_status`](Self::of_status), or as
/// [`with_disposition`](crate::IdempotencyLayer::with_disposition) says), or by the function given to
/// [`with_classifier`](crate::IdempotencyLayer::with_classifier). A handler that knows better puts
/// its decision among the response's extensions, and that one counts:
///
/// ```
/// use semel_tower::Disposition;
/// # fn respond() -> http::Response<()> {
/// let mut response = http::Response::new(());
/// // The card network did not answer: whether the charge happened is not known.
/// response.extensions_mut().insert(Disposition::Unknown);
/// # response
/// # }
/// # assert!(respond().extensions().get::<Disposition>().is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disposition {
    /// Replayed as a success.
    KeepSuccess,
    /// Replayed as the operation's lasting failure.
    KeepFailure,
    /// Not kept: the operation had no effect, and the next request with the key runs it.
    Release,
    /// The operation may have had its effect: the record becomes unknown.
    Unknown,
}

/// A response of the inner service, as far as it was read.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// Status and fields.
    pub head: &'a response::Parts,
    /// `None` where it was a stream, broken, or larger than is kept.
    pub body: Option<&'a Bytes>,
    /// The fields behind the body, where there are any.
    pub trailers: Option<&'a HeaderMap>,
}

impl Disposition {
    /// What a response means where nobody says otherwise: its [status](Self::of_status), but
    ///
    /// * of gRPC the `grpc-status`, mapped as the status codes of HTTP are: 0, `NOT_FOUND`,
    ///   `ALREADY_EXISTS` and `FAILED_PRECONDITION` are kept, `CANCELLED`, `DEADLINE_EXCEEDED` and none
    ///   at all are unknown, all others are released;
    /// * a 409 of a service that dedupes itself is not the operation's answer: one with a
    ///   `Retry-After`, or whose problem (`code`, at most 16 KiB of JSON) says `in-flight`,
    ///   `idempotency_key_in_use` or the like, is released; `outcome-unknown` is unknown;
    /// * a 422 with which axum's extractors refuse a body is released: the handler did not run.
    pub fn of(reply: &Reply<'_>) -> Self {
        let Reply {
            head,
            body,
            trailers,
        } = *reply;
        if is_grpc(head) {
            let status = trailers
                .and_then(grpc_status)
                .or_else(|| grpc_status(&head.headers));
            return match (status, body) {
                (Some(0), _) => Self::KeepSuccess,
                (Some(5 | 6 | 9), _) => Self::KeepFailure,
                (Some(1 | 4), _) | (None, Some(_)) => Self::Unknown,
                (Some(_), _) => Self::Release,
                // What was not read to its end did run.
                (None, None) => Self::of_status(head.status),
            };
        }
        let said = match head.status {
            StatusCode::CONFLICT => conflict::disposition(head, body),
            StatusCode::UNPROCESSABLE_ENTITY => body
                .is_some_and(|body| is_rejection(body))
                .then_some(Self::Release),
            _ => None,
        };
        said.unwrap_or_else(|| Self::of_status(head.status))
    }

    /// What a status means where nobody says otherwise.
    ///
    /// | status | disposition |
    /// |---|---|
    /// | 2xx, 3xx | kept as a success |
    /// | 408, 502, 504 | unknown: the sender stopped waiting for the one who works |
    /// | 400, 401, 403, 405, 406, 407, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429, 431 | released: refused before anything happened |
    /// | every other 4xx, for instance 402, 404, 409, 410, 412, 422 | kept as a failure |
    /// | 1xx, other 5xx and unassigned | released |
    pub const fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=399 => Self::KeepSuccess,
            408 | 502 | 504 => Self::Unknown,
            400
            | 401
            | 403
            | 405..=407
            | 411
            | 413..=415
            | 417
            | 421
            | 425
            | 426
            | 428
            | 429
            | 431 => Self::Release,
            402..=499 => Self::KeepFailure,
            _ => Self::Release,
        }
    }

    /// What an error of the inner service means where nobody says otherwise: unknown, unless it says
    /// that nothing ran, as tower's load shedding does.
    pub fn of_error(error: &dyn Any) -> Self {
        let boxed = error.downcast_ref::<Box<dyn StdError + Send + Sync>>();
        // Not among its sources: a service that was called may have been refused by another.
        match error.is::<Overloaded>() || boxed.is_some_and(|error| error.is::<Overloaded>()) {
            true => Self::Release,
            false => Self::Unknown,
        }
    }
}

/// What a response means, where its head alone says so.
pub(crate) fn by_head(head: &response::Parts) -> Option<Disposition> {
    let is_open = is_grpc(head) && grpc_status(&head.headers).is_none() || conflict::is_open(head);
    (!is_open).then(|| {
        Disposition::of(&Reply {
            head,
            body: None,
            trailers: None,
        })
    })
}

/// gRPC itself. gRPC-Web says its status in the body, and counts by the status of HTTP.
fn is_grpc(head: &response::Parts) -> bool {
    let kind = head.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    head.status == StatusCode::OK
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn grpc_status(fields: &HeaderMap) -> Option<u16> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// The texts with which axum's `Json` and `Form` refuse a body that is well-formed but not of the
/// handler's type. Nothing else in such a response says that the handler did not run.
fn is_rejection(body: &[u8]) -> bool {
    const TEXTS: [&[u8]; 2] = [
        b"Failed to deserialize the JSON body into the target type",
        b"Failed to deserialize form body",
    ];
    TEXTS.iter().any(|text| body.starts_with(text))
}

/// Safe methods go past the layer (RFC 9110, section 9.2.1).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    )
}

/// Methods that are idempotent of themselves (RFC 9110, section 9.2.2): a key is never required.
pub(crate) fn is_idempotent(method: &Method) -> bool {
    is_safe(method) || matches!(*method, Method::PUT | Method::DELETE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_kept_as_documented() {
        let of = |status| Disposition::of_status(StatusCode::from_u16(status).unwrap());
        for status in [200, 201, 204, 301, 303, 307, 308] {
            assert_eq!(of(status), Disposition::KeepSuccess, "{status}");
        }
        for status in [402, 404, 409, 410, 412, 418, 422, 423, 424, 451] {
            assert_eq!(of(status), Disposition::KeepFailure, "{status}");
        }
        for status in [
            101, 400, 401, 403, 405, 406, 407, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429,
            431, 500, 501, 503, 599, 700,
        ] {
            assert_eq!(of(status), Disposition::Release, "{status}");
        }
        for status in [408, 502, 504] {
            assert_eq!(of(status), Disposition::Unknown, "{status}");
        }
    }
}
