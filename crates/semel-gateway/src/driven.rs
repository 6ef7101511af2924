//! Connections of HTTP/1 to an upstream. Whoever waits for something of one drives it: a request takes no
//! task but its client's, and wakes none.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, poll_fn};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper::rt::{Read, Write};
use tokio::task::unconstrained;

use crate::body::Body;

/// How many fields an answer may have. More than any client takes: an answer beyond is lost although the
/// operation ran, so the limit is there to bound memory only. More than 100 fields cost an allocation for
/// each answer, a tenth of the gateway's work: an answer is worth it.
const MAX_FIELDS: usize = 256;

/// A connection for one request at a time.
pub(crate) struct Driven {
    sender: http1::SendRequest<Body>,
    /// Until it ended, or was left to a task.
    connection: Option<BoxFuture<'static, hyper::Result<()>>>,
}

impl Driven {
    /// Begins to speak HTTP/1. An answer's header has at most `max_head` bytes.
    pub(crate) async fn begin(
        stream: impl Read + Write + Unpin + Send + 'static,
        max_head: u32,
    ) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(max_head as usize)
            .handshake(stream)
            .await?;
        Ok(Self {
            sender,
            connection: Some(connection.with_upgrades().boxed()),
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

    /// Leaves the rest to a task, for what nobody waits for: a request that goes on after its answer, what
    /// leaves HTTP, an orderly end. It takes no other request.
    pub(crate) fn leave(&mut self) {
        if let Some(connection) = self.connection.take() {
            tokio::spawn(async move { ended(connection.await) });
        }
    }

    /// Whether it can take a request, of one that nobody uses.
    pub(crate) fn is_ready(&mut self) -> bool {
        let mut here = Context::from_waker(Waker::noop());
        let mut look = unconstrained(poll_fn(|cx| {
            go_on(&mut self.connection, cx);
            Poll::Ready(self.connection.is_some() && self.sender.is_ready())
        }));
        look.poll_unpin(&mut here) == Poll::Ready(true)
    }

    /// Whether it did not end, nor was left to a task.
    pub(crate) const fn is_open(&self) -> bool {
        self.connection.is_some()
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
    connection: &mut Option<BoxFuture<'static, hyper::Result<()>>>,
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

fn go_on(connection: &mut Option<BoxFuture<'static, hyper::Result<()>>>, cx: &mut Context<'_>) {
    let polled = connection
        .as_mut()
        .map(|connection| connection.poll_unpin(cx));
    if let Some(Poll::Ready(result)) = polled {
        *connection = None;
        ended(result);
    }
}

fn ended(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!("connection to the upstream: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http_body::Body as _;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::task::coop;
    use tokio::time::timeout;

    use super::*;

    /// A task is put off when it did enough for now: what it waits for is not to be missed then.
    #[tokio::test(start_paused = true)]
    async fn what_comes_is_found_however_much_its_task_did() {
        for spent in 0..=128 {
            let (ours, mut theirs) = duplex(1 << 12);
            let mut driven = Driven::begin(TokioIo::new(ours), 1 << 14).await.unwrap();
            let get = Request::get("/").header("host", "upstream");
            let get = get.body(Body::from(Bytes::new())).unwrap();
            let answer = {
                let mut sent = pin!(driven.send(get));
                let mut asked = [0; 1024];
                tokio::select! {
                    biased;
                    _ = &mut sent => panic!("answered, and not asked"),
                    asked = theirs.read(&mut asked) => assert!(asked.unwrap() > 0),
                }
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone";
                theirs.write_all(head).await.unwrap();
                found(spent, |cx| sent.as_mut().poll(cx)).await
            };
            let mut body = answer
                .unwrap_or_else(|failed| panic!("{spent}: {:?}", failed.error()))
                .into_body();
            let next = |cx: &mut Context<'_>| {
                driven.poll(cx, |cx| std::pin::Pin::new(&mut body).poll_frame(cx))
            };
            let frame = found(spent, next).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "done");
            assert!(driven.is_ready());
            drop(theirs);
            assert!(!driven.is_ready());
        }
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
