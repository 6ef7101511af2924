//! Bodies: bounded reading, and the body that the layer answers with.

use std::any::Any;
use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError};
use tokio::sync::mpsc;

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
    }
}

pin_project_lite::pin_project! {
    #[project = KindProj]
    enum Kind<R, E> {
        // Straight through.
        Inner { #[pin] body: R },
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
pub(crate) enum Relayed<E> {
    Frame(Result<Frame<Bytes>, E>),
    Panic(Box<dyn Any + Send>),
}

impl<R: HttpBody> Body<R> {
    pub(crate) fn inner(body: R) -> Self {
        Self {
            kind: Kind::Inner { body },
        }
    }

    pub(crate) fn whole(data: Bytes) -> Self {
        Self::with_trailers(data, None)
    }

    pub(crate) fn with_trailers(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self {
            kind: Kind::Whole {
                data: Some(data).filter(|d| !d.is_empty()),
                trailers: trailers.map(Box::new),
            },
        }
    }

    pub(crate) fn relayed(
        read: VecDeque<Frame<Bytes>>,
        coming: mpsc::Receiver<Relayed<R::Error>>,
        size: SizeHint,
    ) -> Self {
        Self {
            kind: Kind::Relayed { read, coming, size },
        }
    }
}

impl<R: HttpBody<Data = Bytes>> HttpBody for Body<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body } => body.poll_frame(cx),
            KindProj::Whole { data, trailers } => Poll::Ready(
                data.take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(|t| Frame::trailers(*t)))
                    .map(Ok),
            ),
            KindProj::Relayed { read, coming, size } => {
                let frame = match read.pop_front() {
                    Some(frame) => Some(Ok(frame)),
                    None => match std::task::ready!(coming.poll_recv(cx)) {
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
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Kind::Relayed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Whole { data, trailers } => {
                let len = data.as_ref().map_or(0, |d| d.len() as u64);
                let mut size = SizeHint::new();
                size.set_lower(len);
                // A body of exact size goes without chunks in HTTP/1, and so without trailers.
                if trailers.is_none() {
                    size.set_upper(len);
                }
                size
            }
            Kind::Relayed { size, .. } => *size,
        }
    }
}

impl<R: HttpBody> fmt::Debug for Body<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Inner { .. } => "Body::Inner",
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
    Failed,
}

/// Reads a request body of at most `limit` bytes. Its trailers are dropped.
pub(crate) async fn read<B>(body: B, limit: usize) -> Read
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
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

/// Pieces of a body; joined without copying where there is only one.
#[derive(Default)]
pub(crate) struct Chunks {
    chunks: VecDeque<Bytes>,
    pub(crate) len: usize,
}

impl Chunks {
    pub(crate) fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.len += data.len();
            self.chunks.push_back(data);
        }
    }

    pub(crate) fn join(mut self) -> Bytes {
        if self.chunks.len() <= 1 {
            return self.chunks.pop_front().unwrap_or_default();
        }
        let mut whole = BytesMut::with_capacity(self.len);
        self.chunks.iter().for_each(|c| whole.extend_from_slice(c));
        whole.freeze()
    }

    pub(crate) fn into_frames(self) -> VecDeque<Frame<Bytes>> {
        self.chunks.into_iter().map(Frame::data).collect()
    }
}
