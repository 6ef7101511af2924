//! Which requests take a key, and which responses are kept.

use http::{Method, StatusCode};

/// What becomes of the record once the inner service has answered.
///
/// The layer decides by status ([`of_status`](Self::of_status)), or by the function given to
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

impl Disposition {
    /// What a status means where nobody says otherwise.
    ///
    /// | status | disposition |
    /// |---|---|
    /// | 2xx, 3xx | kept as a success |
    /// | 400, 401, 403, 405, 406, 407, 408, 411, 413, 414, 415, 417, 421, 425, 426, 428, 429, 431 | released: refused before anything happened |
    /// | every other 4xx, for instance 402, 404, 409, 410, 412, 422 | kept as a failure |
    /// | 1xx, 5xx and unassigned | released |
    pub const fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=399 => Self::KeepSuccess,
            400
            | 401
            | 403
            | 405..=408
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
            101, 400, 401, 403, 405, 406, 407, 408, 411, 413, 414, 415, 417, 421, 425, 426, 428,
            429, 431, 500, 502, 503, 504, 599, 700,
        ] {
            assert_eq!(of(status), Disposition::Release, "{status}");
        }
    }
}
