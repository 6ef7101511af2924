//! Bodies: bounded reading, and the body that the layer answers with.

use std::any::Any;
use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError};
use semel::Store;
use semel::guard::{Guard, catch_panic};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::limits::{Bodies, Slot};
use crate::observe::Watch;
use crate::preset::unmark::Unmark;

/// What errors of request bodies are made into, to be looked at.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

pin_project_lite::pin_project! {
    /// The body of every response of the layer. `R` is the inner service's.
    pub struct Body<R>
    where
        R: HttpBody,
    {
        #[pin]
        kind: Kind<R, R::Error>,
        // What is taken back of what passes.
        unmark: Option<Box<Unmark>>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProj]
    enum Kind<R, E> {
        // Straight through. Of an attempt whose answer is not kept, its slot: until it is read.
        Inner { #[pin] body: R, slot: Option<Slot> },
        // The same, and looked at on its way.
        Watched { #[pin] body: R, watch: Box<Watch> },
        // In memory: recorded, replayed, or an answer of the layer itself.
        Whole { data: Option<Bytes>, trailers: Option<Box<HeaderMap>> },
        // Read by the attempt's task: first what it had read before it gave up keeping the answer,
        // then what comes.
        Relayed {
            read: VecDeque<Frame<Bytes>>,
            coming: mpsc::Receiver<Relayed<E>>,
            size: SizeHint,
        },
    }
}

/// What the attempt's task passes on of a body.
enum Relayed<E> {
    Frame(Result<Frame<Bytes>, E>),
    Panic(Box<dyn Any + Send>),
}

impl<R: HttpBody> Body<R> {
    pub(crate) fn inner(body: R) -> Self {
        Self::of(Kind::Inner { body, slot: None })
    }

    const fn of(kind: Kind<R, R::Error>) -> Self {
        Self { kind, unmark: None }
    }

    /// The same, in which no JSON object says of itself that it is a replay of AdCP.
    pub(crate) fn unmarked(self) -> Self {
        Self {
            unmark: Some(Box::default()),
            ..self
        }
    }

    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.kind, Kind::Whole { .. })
    }

    /// Another text in place of that in memory.
    pub(crate) fn set_data(&mut self, text: Bytes) {
        if let Kind::Whole { data, .. } = &mut self.kind {
            *data = Some(text);
        }
    }

    /// Passes as it is. What `watch` sees of it is told once.
    pub(crate) fn watched(body: R, mut watch: Watch) -> Self {
        if body.is_end_stream() {
            watch.ended();
        }
        let watch = Box::new(watch);
        Self::of(Kind::Watched { body, watch })
    }

    pub(crate) fn whole(data: Bytes) -> Self {
        Self::with_trailers(data, None)
    }

    pub(crate) fn with_trailers(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::of(Kind::Whole {
            data: Some(data).filter(|d| !d.is_empty()),
            trailers: trailers.map(Box::new),
        })
    }

    fn relayed(
        read: VecDeque<Frame<Bytes>>,
        coming: mpsc::Receiver<Relayed<R::Error>>,
        size: SizeHint,
    ) -> Self {
        Self::of(Kind::Relayed { read, coming, size })
    }
}

impl<R: HttpBody> From<Bytes> for Body<R> {
    /// A body in memory, for services around the layer that answer in its place.
    fn from(data: Bytes) -> Self {
        Self::whole(data)
    }
}

impl<R: HttpBody<Data = Bytes>> HttpBody for Body<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let this = self.project();
        let frame = ready!(this.kind.poll_frame(cx));
        Poll::Ready(match this.unmark {
            Some(unmark) => {
                frame.map(|frame| frame.map(|frame| frame.map_data(|data| unmark.pass(data))))
            }
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.kind.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.unmark {
            Some(_) => SizeHint::new(),
            None => self.kind.size_hint(),
        }
    }
}

impl<R: HttpBody<Data = Bytes>> Kind<R, R::Error> {
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project() {
            KindProj::Inner { body, slot } => {
                let frame = ready!(body.poll_frame(cx));
                if frame.is_none() {
                    drop(slot.take());
                }
                Poll::Ready(frame)
            }
            KindProj::Watched { mut body, watch } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                match &frame {
                    Some(Ok(frame)) => watch.saw(frame),
                    Some(Err(_)) => watch.broke(),
                    None => watch.ended(),
                }
                // Who knows the length of it does not ask for its end.
                if body.is_end_stream() {
                    watch.ended();
                }
                Poll::Ready(frame)
            }
            KindProj::Whole { data, trailers } => Poll::Ready(
                data.take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(|t| Frame::trailers(*t)))
                    .map(Ok),
            ),
            KindProj::Relayed { read, coming, size } => {
                let frame = match read.pop_front() {
                    Some(frame) => Some(Ok(frame)),
                    None => match ready!(coming.poll_recv(cx)) {
                        Some(Relayed::Frame(frame)) => Some(frame),
                        // As if the inner body had been polled here.
                        Some(Relayed::Panic(panic)) => resume_unwind(panic),
                        None => None,
                    },
                };
                if let Some(data) = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()) {
                    *size = minus(size, data.len() as u64);
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner { body, .. } | Self::Watched { body, .. } => body.is_end_stream(),
            Self::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Self::Relayed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Inner { body, .. } | Self::Watched { body, .. } => body.size_hint(),
            Self::Whole { data, trailers } => {
                let len = data.as_ref().map_or(0, |d| d.len() as u64);
                let mut size = SizeHint::new();
                size.set_lower(len);
                // A body of exact size goes without chunks in HTTP/1, and so without trailers.
                if trailers.is_none() {
                    size.set_upper(len);
                }
                size
            }
            Self::Relayed { size, .. } => *size,
        }
    }
}

impl<R: HttpBody> fmt::Debug for Body<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Inner { .. } => "Body::Inner",
            Kind::Watched { .. } => "Body::Watched",
            Kind::Whole { .. } => "Body::Whole",
            Kind::Relayed { .. } => "Body::Relayed",
        })
    }
}

impl<R: HttpBody + Default> Default for Body<R> {
    fn default() -> Self {
        Self::inner(R::default())
    }
}

fn minus(size: &SizeHint, read: u64) -> SizeHint {
    let mut rest = SizeHint::new();
    if let Some(upper) = size.upper() {
        rest.set_upper(upper.saturating_sub(read));
    }
    rest.set_lower(size.lower().saturating_sub(read));
    rest
}

/// How reading a request body ended.
pub(crate) enum Read {
    Whole(Bytes),
    TooLarge,
    /// There is no room in memory.
    NoRoom,
    Failed,
}

/// Reads a request body of at most `limit` bytes, as far as there is room. Its trailers are dropped.
pub(crate) async fn read<B>(body: B, limit: usize, held: &Bodies) -> Read
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if !held.take(0) {
        return Read::NoRoom;
    }
    let mut body = std::pin::pin!(body);
    let mut chunks = Chunks::default();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return failed(&*error.into()),
        };
        if let Ok(data) = frame.into_data() {
            if chunks.len + data.len() > limit {
                return Read::TooLarge;
            }
            if !held.take(data.len()) {
                return Read::NoRoom;
            }
            chunks.push(data);
        }
    }
    Read::Whole(chunks.join())
}

fn failed(error: &(dyn StdError + 'static)) -> Read {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            // A limit set outside this layer.
            return Read::TooLarge;
        }
        cause = error.source();
    }
    Read::Failed
}

/// The body of a response, as far as it was read.
pub(crate) enum Content<R: HttpBody> {
    /// Not kept, and not looked at.
    Untouched(R),
    Whole(Bytes, Option<HeaderMap>),
    /// Larger than is kept, or a stream: what was read, and the rest.
    Large(Chunks, Pin<Box<R>>),
    /// It failed after this much.
    Broken(Chunks, R::Error),
}

impl<R: HttpBody> Content<R> {
    /// Of which nothing is read.
    pub(crate) fn stream(body: R) -> Self {
        Self::Large(Chunks::default(), Box::pin(body))
    }
}

/// A body that a task of its own can pass on.
pub(crate) trait Relayable: HttpBody<Data = Bytes, Error: Send> + Send + 'static {}

impl<R: HttpBody<Data = Bytes, Error: Send> + Send + 'static> Relayable for R {}

impl<R: Relayable> Content<R> {
    /// What the client gets. The attempt's `slot` is given back once all of it was read.
    pub(crate) fn into_body<S: Store>(self, guard: &Guard<S>, slot: Slot) -> Body<R> {
        match self {
            Self::Untouched(body) => Body::of(Kind::Inner {
                slot: Some(slot).filter(|_| !body.is_end_stream()),
                body,
            }),
            Self::Whole(data, trailers) => Body::with_trailers(data, trailers),
            Self::Broken(read, error) => {
                let (relay, coming) = mpsc::channel(1);
                relay.try_send(Relayed::Frame(Err(error))).ok();
                Body::relayed(read.into_frames(), coming, SizeHint::new())
            }
            Self::Large(read, rest) => {
                let (relay, coming) = mpsc::channel(RELAYED_FRAMES);
                let size = plus(&rest.size_hint(), read.len as u64);
                guard.spawn(async {
                    pass_on(rest, relay).await;
                    drop(slot);
                });
                Body::relayed(read.into_frames(), coming, size)
            }
        }
    }
}

/// How long a client may take nothing of a body that is passed on to it.
const LONGEST_STALL: Duration = Duration::from_mins(1);
/// How long a body is read that its client no longer waits for.
const LONGEST_ALONE: Duration = Duration::from_mins(10);

/// Passes on a body that is recorded already. It is read to its end also where the client goes away,
/// or takes nothing of it: the inner service may do its work while it writes (R11).
async fn pass_on<R: Relayable>(mut rest: Pin<Box<R>>, relay: mpsc::Sender<Relayed<R::Error>>) {
    let mut relay = Some(relay);
    let mut alone_until = None;
    let passed_on = catch_panic(async {
        loop {
            let next = match &relay {
                Some(client) => tokio::select! {
                    biased;
                    next = rest.frame() => next,
                    // A service that says nothing does not learn that nobody listens.
                    () = client.closed() => {
                        relay = None;
                        continue;
                    }
                },
                None => {
                    let end = *alone_until.get_or_insert_with(|| Instant::now() + LONGEST_ALONE);
                    // A body that is always ready never lets the time come.
                    if Instant::now() >= end {
                        break;
                    }
                    match timeout_at(end, rest.frame()).await {
                        Ok(next) => next,
                        Err(_) => break,
                    }
                }
            };
            let Some(frame) = next else { break };
            let broken = frame.is_err();
            if let Some(client) = relay.take() {
                match timeout(LONGEST_STALL, client.send(Relayed::Frame(frame))).await {
                    Ok(Ok(())) => relay = Some(client),
                    Ok(Err(_gone)) => {}
                    // An end would say that it got all: it gets nothing more until it goes away.
                    Err(_) => drop(tokio::spawn(async move { client.closed().await })),
                }
            }
            if broken {
                break;
            }
        }
    });
    if let (Err(panic), Some(client)) = (passed_on.await, relay) {
        client.send(Relayed::Panic(panic)).await.ok();
    }
}

/// How many frames of a relayed body wait for a client that reads slowly.
const RELAYED_FRAMES: usize = 16;

/// Reads a body of at most `limit` bytes; of a larger one no more than shows that it is.
pub(crate) async fn collect<R: HttpBody<Data = Bytes>>(
    body: R,
    limit: usize,
    held: &Bodies,
) -> Content<R> {
    if body.size_hint().lower() > limit as u64 {
        return Content::stream(body);
    }
    let mut body = Box::pin(body);
    let mut read = Chunks::default();
    let mut trailers: Option<HeaderMap> = None;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Content::Broken(read, error),
        };
        match frame.into_data() {
            Ok(data) => {
                held.add(data.len());
                read.push(data);
                if read.len > limit {
                    return Content::Large(read, body);
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    Content::Whole(read.join(), trailers)
}

/// Whether an answer is a stream of events (`text/event-stream`), of which the layer keeps nothing.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok()?.split(';').next())
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("text/event-stream"))
}

fn plus(rest: &SizeHint, read: u64) -> SizeHint {
    let mut size = SizeHint::new();
    if let Some(upper) = rest.upper() {
        size.set_upper(upper.saturating_add(read));
    }
    size.set_lower(rest.lower().saturating_add(read));
    size
}

/// Pieces of a body; joined without copying where there is only one.
#[derive(Default)]
pub(crate) struct Chunks {
    first: Bytes,
    more: VecDeque<Bytes>,
    /// Small pieces behind them. Each of its own would take many times its size.
    small: BytesMut,
    len: usize,
}

/// Pieces below this are copied together.
const SMALL: usize = 4 << 10;

impl Chunks {
    pub(crate) fn push(&mut self, data: Bytes) {
        let is_first = self.len == 0;
        self.len += data.len();
        if is_first {
            self.first = data;
        } else if data.len() < SMALL {
            self.small.extend_from_slice(&data);
        } else {
            self.gather();
            self.more.push_back(data);
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn gather(&mut self) {
        if !self.small.is_empty() {
            self.more.push_back(self.small.split().freeze());
        }
    }

    pub(crate) fn join(mut self) -> Bytes {
        self.gather();
        if self.more.is_empty() {
            return self.first;
        }
        let mut whole = BytesMut::with_capacity(self.len);
        whole.extend_from_slice(&self.first);
        self.more.iter().for_each(|c| whole.extend_from_slice(c));
        whole.freeze()
    }

    fn into_frames(mut self) -> VecDeque<Frame<Bytes>> {
        self.gather();
        if !self.first.is_empty() {
            self.more.push_front(self.first);
        }
        self.more.into_iter().map(Frame::data).collect()
    }
}
