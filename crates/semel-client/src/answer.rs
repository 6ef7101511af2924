//! Answers: read whole before they are given out, so that one that breaks off is asked for again.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::BoxError;
use crate::decide::LONGEST_PROBLEM;

/// What is known of an answer: among its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerInfo {
    /// How often the request was sent, with this answer's.
    pub tries: u32,
    /// Whether this is the recorded answer of an earlier try.
    pub replayed: bool,
    /// Whether the recorded answer was too large to keep, and its body is not here.
    pub body_omitted: bool,
    /// `false`: the service says that it ran the request without keeping its key.
    pub protected: bool,
}

impl AnswerInfo {
    fn of(headers: &HeaderMap, replayed: bool, tries: u32) -> Self {
        let says = |name: &str, what: &str| headers.get(name).is_some_and(|value| value == what);
        Self {
            tries,
            replayed,
            body_omitted: says("idempotency-body-omitted", "true"),
            protected: !says("idempotency-protected", "false"),
        }
    }
}

/// The body of an answer: what was read, and the rest of one that is long or a stream of events.
#[derive(Debug)]
pub struct Answer<R> {
    read: Bytes,
    trailers: Option<HeaderMap>,
    rest: Option<R>,
}

impl<R: Body + Unpin> Body for Answer<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let this = self.get_mut();
        if !this.read.is_empty() {
            let read = std::mem::take(&mut this.read);
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        if let Some(rest) = &mut this.rest {
            let frame = ready!(Pin::new(rest).poll_frame(cx));
            return Poll::Ready(frame.map(|frame| Ok(frame?.map_data(to_bytes))));
        }
        let trailers = this.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let is_rest_over = self.rest.as_ref().is_none_or(Body::is_end_stream);
        self.read.is_empty() && self.trailers.is_none() && is_rest_over
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.len() as u64;
        let rest = self.rest.as_ref();
        let rest = rest.map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut both = SizeHint::new();
        both.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            both.set_upper(upper);
        }
        both
    }
}

/// An answer, as far as it was read.
pub(crate) struct Read<R> {
    pub(crate) head: Parts,
    body: Answer<R>,
}

/// The head of an answer came, and then its body broke off.
pub(crate) struct BrokenOff {
    pub(crate) status: StatusCode,
    pub(crate) source: BoxError,
}

impl<R> Read<R>
where
    R: Body + Unpin,
    R::Error: Into<BoxError>,
{
    /// Reads a body of at most `limit` bytes whole, and of a longer one or a stream what comes before that.
    pub(crate) async fn read(answer: Response<R>, limit: usize) -> Result<Self, BrokenOff> {
        let (head, mut rest) = answer.into_parts();
        let is_refusal = head.status.is_client_error() || head.status.is_server_error();
        let limit = if is_refusal {
            limit.max(LONGEST_PROBLEM)
        } else {
            limit
        };
        let mut read = BytesMut::new();
        let mut trailers = None;
        let mut over = rest.size_hint().lower() > limit as u64 || is_stream(&head);
        while !over {
            match rest.frame().await {
                None => break,
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        read.extend_from_slice(&to_bytes(data));
                        over = read.len() > limit;
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
                Some(Err(error)) => {
                    return Err(BrokenOff {
                        status: head.status,
                        source: error.into(),
                    });
                }
            }
        }
        let body = Answer {
            read: read.freeze(),
            trailers,
            rest: over.then_some(rest),
        };
        Ok(Self { head, body })
    }
}

impl<R> Read<R> {
    /// What was read of the body.
    pub(crate) fn body(&self) -> &Bytes {
        &self.body.read
    }

    pub(crate) fn into_response(mut self, replayed: bool, tries: u32) -> Response<Answer<R>> {
        let info = AnswerInfo::of(&self.head.headers, replayed, tries);
        self.head.extensions.insert(info);
        Response::from_parts(self.head, self.body)
    }

    /// What an error shows of it.
    pub(crate) fn into_problem(self) -> Box<Response<Bytes>> {
        let mut body = self.body.read;
        body.truncate(LONGEST_PROBLEM);
        Box::new(Response::from_parts(self.head, body))
    }
}

const EVENTS: &[u8] = b"text/event-stream";

/// Events come as they happen.
fn is_stream(head: &Parts) -> bool {
    let media_type = head.headers.get(CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.as_bytes().get(..EVENTS.len()));
    media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case(EVENTS))
}

fn to_bytes(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}
