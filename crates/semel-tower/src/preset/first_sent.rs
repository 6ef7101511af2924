//! `Repeatability-First-Sent`: when a request was first sent, as its client's clock says.
//!
//! It decides nothing but that a request is refused: how long an answer is replayed is the store's
//! to say (protocol rule R6).

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::HeaderName;
use semel::Timestamp;

use crate::problem::{Problem, ProblemCode};

pub(crate) const FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");

/// How far the clocks of clients may be ahead. Answers are replayed for so much longer than requests
/// are taken: else a request could run again that was sent by such a clock.
pub(crate) const AHEAD: Duration = Duration::from_mins(5);

/// Whether a request was first sent in the time in which its answer is still known.
pub(crate) fn check(headers: &HeaderMap, now: Timestamp, window: Duration) -> Result<(), Problem> {
    let malformed =
        |detail: &'static str| Problem::new(ProblemCode::InvalidKey).with_detail(detail);
    let mut values = headers.get_all(FIRST_SENT).iter();
    let Some(value) = values.next() else {
        return Err(malformed(
            "`Repeatability-First-Sent` is missing: when was the request first sent? Nothing was run.",
        ));
    };
    let text = value.to_str().unwrap_or_default().trim();
    let date = httpdate::parse_http_date(text)
        .ok()
        // Of the forms of HTTP only the first (RFC 9110, section 5.6.7).
        .filter(|date| httpdate::fmt_http_date(*date) == text && values.next().is_none())
        .and_then(|date| date.duration_since(UNIX_EPOCH).ok());
    let Some(since) = date else {
        return Err(malformed(
            "`Repeatability-First-Sent` is no date as `Sun, 06 Nov 1994 08:49:37 GMT`, or was sent more \
             than once. Nothing was run.",
        ));
    };
    let sent = Timestamp::default().after(since);
    match sent.after(window) < now || now.after(AHEAD) < sent {
        true => Err(Problem::new(ProblemCode::OutsideWindow)),
        false => Ok(()),
    }
}
