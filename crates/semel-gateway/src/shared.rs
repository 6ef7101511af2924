//! Connections of HTTP/2 to an upstream, which several requests share.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::Instant;

use crate::body::Body;
use crate::connector::ConnectError;
use crate::driven;
use crate::tls::stream::Stream;

/// How often an upstream is asked whether it is there, while its connection is silent.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How many requests a connection takes at once, and fewer if the upstream says so: as many as RFC 9113
/// (section 6.5.2) wants it to allow at least. hyper would let others wait there without a word.
const MAX_STREAMS: usize = 100;
/// How much of an answer may be on its way that its client does not take yet; and of all answers of a
/// connection, as much as there can be: those who take nothing hinder no others.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// A connection for several requests.
pub(crate) struct Shared {
    taken: Instant,
    sender: SendRequest<Body>,
    /// How many requests the upstream takes at once. Each of them has a clone.
    room: Arc<AtomicUsize>,
}

/// What one request has of it.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) sender: SendRequest<Body>,
    /// The request's body has it, too: an upload may go on after its answer.
    pub(crate) place: Arc<Place>,
}

/// One of the requests on a connection.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Shared {
    /// Begins to speak HTTP/2, until the upstream has said how many requests it takes. That is the first
    /// thing it says: who does not is sent no request.
    pub(crate) async fn begin(
        stream: TokioIo<Stream>,
        max_head: u32,
    ) -> Result<Self, ConnectError> {
        let waking = Waking::default();
        let (sender, mut connection) = http2::Builder::new(waking.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(max_head)
            .initial_max_send_streams(0)
            .handshake(stream)
            .await?;
        let settled = poll_fn(|cx| {
            waking.0.register(cx.waker());
            if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                let closed = || ConnectError::from("closed before anything was said in HTTP/2");
                return Poll::Ready(Err(ended.err().map_or_else(closed, Into::into)));
            }
            match connection.current_max_send_streams() {
                0 => Poll::Pending,
                room => Poll::Ready(Ok(room)),
            }
        });
        let room = Arc::new(AtomicUsize::new(settled.await?));
        let (taken, said) = (Instant::now(), Arc::downgrade(&room));
        tokio::spawn(async move {
            let ended = poll_fn(|cx| {
                waking.0.register(cx.waker());
                let polled = Pin::new(&mut connection).poll(cx);
                // It can be said again, and differently.
                if let Some(room) = said.upgrade() {
                    room.store(connection.current_max_send_streams(), Ordering::Relaxed);
                }
                polled
            });
            driven::ended(ended.await);
        });
        Ok(Self {
            taken,
            sender,
            room,
        })
    }

    pub(crate) fn lend(&mut self) -> Share {
        self.taken = Instant::now();
        Share {
            sender: self.sender.clone(),
            place: Arc::new(Place(Arc::clone(&self.room))),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    pub(crate) fn is_that_of(&self, share: &Share) -> bool {
        Arc::ptr_eq(&self.room, &share.place.0)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.under_way() < self.room.load(Ordering::Relaxed).min(MAX_STREAMS)
    }

    pub(crate) fn under_way(&self) -> usize {
        Arc::strong_count(&self.room) - 1
    }

    /// When a request took it last.
    pub(crate) const fn taken(&self) -> &Instant {
        &self.taken
    }
}

/// Runs what a connection consists of, and wakes who waits for what the upstream says.
#[derive(Debug, Clone, Default)]
struct Waking(Arc<AtomicWaker>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Waking {
    fn execute(&self, future: F) {
        let waker = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let polled = future.as_mut().poll(cx);
                waker.wake();
                polled
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    /// SETTINGS, with how many streams there may be.
    const fn room_for(streams: u8) -> [u8; 15] {
        [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, streams]
    }

    #[tokio::test]
    async fn what_the_upstream_says_later_holds_without_a_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (mut upstream, _) = listener.accept().await.unwrap();
        upstream.write_all(&room_for(5)).await.unwrap();
        let stream = TokioIo::new(stream.unwrap().into());
        let shared = Shared::begin(stream, 1 << 14).await.unwrap();
        for streams in [1, 7] {
            upstream.write_all(&room_for(streams)).await.unwrap();
            let follows = async {
                while shared.room.load(Ordering::Relaxed) != usize::from(streams) {
                    yield_now().await;
                }
            };
            timeout(Duration::from_secs(10), follows).await.unwrap();
        }
    }
}
