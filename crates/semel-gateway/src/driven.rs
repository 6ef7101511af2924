//! Connections of HTTP/1 to an upstream. Whoever waits for something of one drives it: a request takes no
//! task but its client's, and wakes none.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, poll_fn};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::runtime::Handle;
use tokio::task::unconstrained;
use tokio::time::timeout;

use crate::body::Body;

/// How many fields an answer may have. More than any client takes: an answer beyond is lost although the
/// operation ran, so the limit is there to bound memory only. More than 100 fields cost an allocation for
/// each answer, a tenth of the gateway's work: an answer is worth it.
const MAX_FIELDS: usize = 256;

/// How long a connection that nobody uses any more may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

type Connection = BoxFuture<'static, hyper::Result<()>>;

/// A connection for one request at a time. One that is dropped in a runtime ends in an orderly way.
pub(crate) struct Driven {
    sender: http1::SendRequest<Body>,
    /// Until it ended, or was left to a task.
    connection: Option<Connection>,
    is_stuck: Arc<AtomicBool>,
}

impl Driven {
    /// Begins to speak HTTP/1. An answer's header has at most `max_head` bytes.
    pub(crate) async fn begin(
        stream: impl Read + Write + Unpin + Send + 'static,
        max_head: u32,
    ) -> hyper::Result<Self> {
        let is_stuck = Arc::default();
        let stream = Stream {
            stream,
            is_stuck: Arc::clone(&is_stuck),
        };
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(max_head as usize)
            .handshake(stream)
            .await?;
        Ok(Self {
            sender,
            connection: Some(connection.with_upgrades().boxed()),
            is_stuck,
        })
    }

    /// Sends a request, and waits for the header of its answer. The connection has it before the future is polled,
    /// which therefore need not hold it.
    pub(crate) fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> {
        let answer = self.sender.try_send_request(request);
        let connection = &mut self.connection;
        async move {
            let mut answer = pin!(answer);
            poll_fn(|cx| drive(connection, cx, |cx| answer.as_mut().poll(cx))).await
        }
    }

    /// Waits for what comes of the connection.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        looks: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        drive(&mut self.connection, cx, looks)
    }

    /// Whether a part of the request waits here, mostly until the upstream takes it.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Leaves the rest to a task, for what nobody waits for: a request that goes on after its answer, what
    /// leaves HTTP, an orderly end.
    pub(crate) fn leave(&mut self) {
        if let Some(rest) = self.rest() {
            tokio::spawn(rest);
        }
    }

    fn rest(&mut self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut connection = self.connection.take()?;
        let is_stuck = Arc::clone(&self.is_stuck);
        let rest = poll_fn(move |cx| {
            loop {
                let was_stuck = is_stuck.load(Ordering::Relaxed);
                let polled = connection.poll_unpin(cx);
                // hyper looks for the next request, and whether there will be one, before it writes, and not after.
                let looks_again = was_stuck && !is_stuck.load(Ordering::Relaxed);
                if polled.is_ready() || !looks_again {
                    return polled;
                }
            }
        });
        Some(async move { ended(rest.await) })
    }

    /// An answer was read to its end. Whether there may be another one: once the request was sent, which is left to a
    /// task.
    pub(crate) fn goes_on(&mut self) -> bool {
        if !self.sender.is_ready() {
            self.leave();
        }
        !self.sender.is_closed()
    }

    /// Whether it can take a request, of one that nobody uses.
    pub(crate) fn is_ready(&mut self) -> bool {
        let mut here = Context::from_waker(Waker::noop());
        let mut look = unconstrained(poll_fn(|cx| {
            go_on(&mut self.connection, cx);
            Poll::Ready(self.sender.is_ready())
        }));
        look.poll_unpin(&mut here) == Poll::Ready(true)
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // It sees that there will be no more requests.
        if let (Ok(runtime), Some(rest)) = (Handle::try_current(), self.rest()) {
            // An upstream that takes nothing more would hold the connection for ever.
            runtime.spawn(timeout(LONGEST_END, rest));
        }
    }
}

impl fmt::Debug for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").finish_non_exhaustive()
    }
}

/// Looks for what a connection brings, and brings it about. It can only come while the connection is polled: who looks
/// is not to be woken for it once more, and not to be put off because its task did enough for now.
fn drive<T>(
    connection: &mut Option<Connection>,
    cx: &mut Context<'_>,
    mut looks: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let mut found = Poll::Pending;
    if connection.is_some() {
        let mut here = Context::from_waker(Waker::noop());
        let mut look = unconstrained(poll_fn(&mut looks));
        found = look.poll_unpin(&mut here);
        if found.is_pending() {
            go_on(connection, cx);
            found = look.poll_unpin(&mut here);
        }
    }
    match connection {
        None if found.is_pending() => looks(cx),
        _ => found,
    }
}

fn go_on(connection: &mut Option<Connection>, cx: &mut Context<'_>) {
    let polled = connection
        .as_mut()
        .map(|connection| connection.poll_unpin(cx));
    if let Some(Poll::Ready(result)) = polled {
        *connection = None;
        ended(result);
    }
}

/// Tells of a connection that ended.
pub(crate) fn ended(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!("connection to the upstream: {error}");
    }
}

/// What HTTP is spoken over, and whether the upstream takes what is written.
struct Stream<S> {
    stream: S,
    is_stuck: Arc<AtomicBool>,
}

impl<S> Stream<S> {
    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        self.is_stuck.store(written.is_pending(), Ordering::Relaxed);
        written
    }
}

impl<S: Read + Unpin> Read for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: Write + Unpin> Write for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::Body as _;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::coop;

    use super::*;

    fn post(body: &'static [u8]) -> Request<Body> {
        let post = Request::post("/").header("host", "upstream");
        post.body(Body::from(Bytes::from(body))).unwrap()
    }

    /// The header of an answer that comes as soon as a part of the request is there.
    async fn answered(
        driven: &mut Driven,
        request: Request<Body>,
        upstream: &mut DuplexStream,
        answer: &str,
        spent: u32,
    ) -> Response<Incoming> {
        let mut sent = pin!(driven.send(request));
        let mut asked = [0; 1024];
        tokio::select! {
            biased;
            _ = &mut sent => panic!("answered, and not asked"),
            asked = upstream.read(&mut asked) => assert!(asked.unwrap() > 0),
        }
        upstream.write_all(answer.as_bytes()).await.unwrap();
        let answer = found(spent, |cx| sent.as_mut().poll(cx)).await;
        answer.unwrap_or_else(|failed| panic!("{:?}", failed.error()))
    }

    static BODY: [u8; 1 << 16] = [b'x'; 1 << 16];
    const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";

    /// A connection whose request was answered before the upstream had taken it, and the upstream's end.
    async fn answered_early() -> (Driven, DuplexStream) {
        let (ours, mut theirs) = duplex(1 << 12);
        let mut driven = begun(ours).await;
        answered(&mut driven, post(&BODY), &mut theirs, ACCEPTED, 0).await;
        assert!(driven.is_stuck());
        (driven, theirs)
    }

    async fn begun(stream: DuplexStream) -> Driven {
        Driven::begin(TokioIo::new(stream), 1 << 14).await.unwrap()
    }

    /// A task is put off when it did enough for now: what it waits for is not to be missed then.
    #[tokio::test(start_paused = true)]
    async fn what_comes_is_found_however_much_its_task_did() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone";
        for spent in 0..=128 {
            let (ours, mut theirs) = duplex(1 << 12);
            let mut driven = begun(ours).await;
            let answer = answered(&mut driven, post(b""), &mut theirs, answer, spent).await;
            let mut body = answer.into_body();
            let next =
                |cx: &mut Context<'_>| driven.poll(cx, |cx| Pin::new(&mut body).poll_frame(cx));
            let frame = found(spent, next).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "done");
            assert!(!driven.is_stuck());
            assert!(driven.goes_on() && driven.connection.is_some() && driven.is_ready());
            drop(theirs);
            assert!(!driven.is_ready());
        }
    }

    /// In nobody's hands, and the connection takes another one then.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_answered_early_is_sent_to_its_end() {
        let (mut driven, mut theirs) = answered_early().await;
        assert!(driven.goes_on());
        let (mut came, mut buffer) = (0, [0; 1 << 12]);
        while let Ok(read) = timeout(Duration::from_secs(1), theirs.read(&mut buffer)).await {
            came += buffer[..read.unwrap()]
                .iter()
                .filter(|&&byte| byte == b'x')
                .count();
        }
        assert!(came >= BODY.len() - 1024, "{came} bytes");
        assert!(driven.is_ready());
        answered(&mut driven, post(b"once"), &mut theirs, ACCEPTED, 0).await;
        drop(driven);
        let end = timeout(Duration::from_secs(1), theirs.read_to_end(&mut Vec::new())).await;
        end.unwrap().unwrap();
    }

    /// Nobody waits for what is left of its request, and the upstream takes nothing.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_dropped_ends_though_the_upstream_stands_still() {
        let (driven, mut theirs) = answered_early().await;
        drop(driven);
        tokio::time::sleep(2 * LONGEST_END).await;
        // Nothing but what was written before is still to come.
        let mut left = Vec::new();
        let end = timeout(Duration::from_secs(1), theirs.read_to_end(&mut left)).await;
        end.unwrap().unwrap();
        assert!(left.len() <= 1 << 12, "{} bytes", left.len());
    }

    async fn found<T>(spent: u32, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        let mut left = spent;
        let polled = poll_fn(|cx| {
            for _ in 0..std::mem::take(&mut left) {
                coop::poll_proceed(cx)
                    .map(|unit| unit.made_progress())
                    .is_ready();
            }
            poll(cx)
        });
        let found = timeout(Duration::from_secs(1), polled).await;
        found.unwrap_or_else(|_| panic!("missed after {spent}"))
    }
}
