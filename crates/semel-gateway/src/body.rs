//! The body of every request and answer that passes through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::headers::Rules;
use crate::pool::Lent;
use crate::shared::Place;

/// A body in memory, or one that is passed on as it comes.
#[derive(Debug)]
pub struct Body(Kind);

#[derive(Debug)]
enum Kind {
    Whole(Full<Bytes>),
    // Boxed: a body is moved some thirty times on its way.
    Stream(Box<Stream>),
}

/// A body that comes from elsewhere, whose sender may not be silent for longer than a limit.
#[derive(Debug)]
struct Stream {
    body: Incoming,
    is_http2: bool,
    limit: Option<Duration>,
    /// How many bytes more there may be with this limit, unless any.
    limited: Option<usize>,
    silence: Option<Pin<Box<Sleep>>>,
    /// When all of it is to be there; later with every piece that comes.
    due: Option<Instant>,
    progress: Option<Progress>,
    rules: Option<Arc<Rules>>,
    /// Held until the body is read or given up.
    room: Option<Arc<OwnedSemaphorePermit>>,
    /// Where it comes from, until it is read.
    connection: Option<Lent>,
    /// Where it goes to, until it is dropped.
    place: Option<Arc<Place>>,
}

/// So many bytes prolong the time of a body by a second.
const BYTES_A_SECOND: u32 = 16 << 10;

/// The sender of a body was silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("the rest of the body did not come in time")]
pub struct Stalled;

/// What goes wrong in a body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection broke, or what came was not HTTP.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The sender was silent for too long.
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// The sender took its request back, or gave up its answer, without an error.
    #[error("the body was given up before its end")]
    GivenUp,
}

impl Body {
    /// A body that comes from elsewhere, in this version of HTTP. Nobody waits longer than `limit` for its
    /// next piece.
    pub fn stream(body: Incoming, version: Version, limit: Option<Duration>) -> Self {
        if body.is_end_stream() {
            return Self::from(Bytes::new());
        }
        Self(Kind::Stream(Box::new(Stream {
            body,
            is_http2: version == Version::HTTP_2,
            limit,
            limited: None,
            silence: None,
            due: None,
            progress: None,
            rules: None,
            room: None,
            connection: None,
            place: None,
        })))
    }

    /// The body of an answer, with the connection that it comes from. The limit is one of answers up to a size:
    /// the rest of a larger one has none.
    pub(crate) fn answer(
        body: Incoming,
        version: Version,
        limit: Option<(Duration, usize)>,
        connection: Lent,
    ) -> Self {
        let larger = |size: usize| body.size_hint().lower() > size as u64;
        let (limit, limited) = limit.filter(|(_, size)| !larger(*size)).unzip();
        let mut body = Self::stream(body, version, limit);
        match &mut body.0 {
            Kind::Stream(stream) => {
                stream.limited = limited;
                stream.connection = Some(connection);
            }
            Kind::Whole(_) => connection.give_back(),
        }
        body
    }

    /// The same for a body that is to be there within `time`, and a second more for each
    /// 16 KiB that came.
    pub fn stream_in_time(
        body: Incoming,
        version: Version,
        limit: Option<Duration>,
        time: Option<Duration>,
    ) -> Self {
        let mut body = Self::stream(body, version, limit);
        if let Kind::Stream(stream) = &mut body.0 {
            stream.due = time.map(|time| Instant::now() + time);
        }
        body
    }

    /// The same body, which holds `room` until it was read or is given up.
    pub(crate) fn holding(mut self, room: Arc<OwnedSemaphorePermit>) -> Self {
        if let Kind::Stream(stream) = &mut self.0 {
            stream.room = Some(room);
        }
        self
    }

    /// The same body on its way over a shared connection, where it keeps its place until it is dropped.
    pub(crate) fn sent_from(mut self, place: &Arc<Place>) -> Self {
        if let Kind::Stream(stream) = &mut self.0 {
            stream.place = Some(Arc::clone(place));
        }
        self
    }

    /// The same body once more, if it is in memory.
    pub(crate) fn again(&self) -> Option<Self> {
        match &self.0 {
            Kind::Whole(body) => Some(Self(Kind::Whole(body.clone()))),
            Kind::Stream(_) => None,
        }
    }

    /// The same body on its way to the upstream: trailers lose what `rules` say.
    pub(crate) fn under(mut self, rules: &Arc<Rules>) -> Self {
        if let Kind::Stream(stream) = &mut self.0 {
            stream.rules = Some(Arc::clone(rules));
        }
        self
    }

    /// Tells `progress` of every piece that is read.
    pub(crate) fn report_to(&mut self, progress: &Progress) {
        if let Kind::Stream(stream) = &mut self.0 {
            stream.progress = Some(progress.clone());
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(Full::new(bytes)))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Whole(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Kind::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(body) => body.is_end_stream(),
            Kind::Stream(stream) => stream.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(body) => body.size_hint(),
            Kind::Stream(stream) => stream.body.size_hint(),
        }
    }
}

impl Stream {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut body = Pin::new(&mut self.body);
        let frame = match &mut self.connection {
            Some(connection) => connection.poll(cx, |cx| body.as_mut().poll_frame(cx)),
            None => body.poll_frame(cx),
        };
        if let Poll::Ready(frame) = frame {
            self.silence = None;
            // hyper takes a stream that is reset with `NO_ERROR` for one that ended.
            if frame.is_none() && self.is_http2 && !self.body.is_end_stream() {
                if let Some(progress) = &self.progress {
                    progress.breaks();
                }
                return Poll::Ready(Some(Err(BodyError::GivenUp)));
            }
            if let (Some(due), Some(Ok(frame))) = (&mut self.due, &frame) {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                *due += Duration::from_secs(1) * bytes / BYTES_A_SECOND;
            }
            if let (Some(limited), Some(Ok(frame))) = (&mut self.limited, &frame) {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match limited.checked_sub(bytes) {
                    Some(rest) => *limited = rest,
                    None => self.limit = None,
                }
            }
            if let Some(progress) = &self.progress {
                progress.made();
                if matches!(frame, Some(Err(_))) {
                    progress.breaks();
                }
            }
            // Not every reader asks again after the last piece.
            if (frame.is_none() || self.body.is_end_stream())
                && let Some(connection) = self.connection.take()
            {
                connection.give_back();
            }
            let mut frame = frame.map(|frame| frame.map_err(BodyError::from));
            if let (Some(rules), Some(Ok(frame))) = (&self.rules, &mut frame)
                && let Some(trailers) = frame.trailers_mut()
            {
                rules.trailers_to_upstream(trailers);
            }
            return Poll::Ready(frame);
        }
        if self.silence.is_none() {
            let silent = self.limit.map(|limit| Instant::now() + limit);
            let until = silent.into_iter().chain(self.due).min();
            self.silence = until.map(|until| Box::pin(sleep_until(until)));
        }
        let Some(silence) = &mut self.silence else {
            return Poll::Pending;
        };
        ready!(silence.as_mut().poll(cx));
        if let Some(progress) = &self.progress {
            progress.breaks();
        }
        Poll::Ready(Some(Err(Stalled.into())))
    }
}

/// When a piece of a body was last passed on, and whether there will be no more.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Passed>);

#[derive(Debug)]
struct Passed {
    since: Instant,
    /// In milliseconds after `since`.
    last: AtomicU64,
    is_broken: AtomicBool,
}

impl Progress {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Passed {
            since: Instant::now(),
            last: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
        }))
    }

    /// Whether more of the body is to come: it is still there.
    pub(crate) fn goes_on(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether the body broke off.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.is_broken.load(Ordering::Acquire)
    }

    fn breaks(&self) {
        self.0.is_broken.store(true, Ordering::Release);
    }

    fn made(&self) {
        let since = self.0.since.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.last.store(since, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.0.since + Duration::from_millis(self.0.last.load(Ordering::Relaxed))
    }

    /// Returns once there was none for `limit`; never where there is no limit.
    pub(crate) async fn ceases(&self, limit: Option<Duration>) {
        let Some(limit) = limit else {
            return std::future::pending().await;
        };
        loop {
            let last = self.last();
            tokio::time::sleep_until(last + limit).await;
            if self.last() == last {
                return;
            }
        }
    }
}
