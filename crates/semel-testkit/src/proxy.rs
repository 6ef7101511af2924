//! Stands before a server: counts round trips and plays the faults of a network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// How long a server is silent that has done what it was sent.
const SILENCE: Duration = Duration::from_millis(200);

/// What goes wrong on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Each piece of data goes on this much later, in either direction.
    Delay(Duration),
    /// Connections stand, and nothing goes on. What was sent meanwhile goes on afterwards.
    Blackhole,
    /// Requests go on; answers are lost, and the connection stands.
    SwallowAnswers,
    /// Requests go on; the connection is cut when an answer comes.
    CutAnswers,
    /// Requests go on; half of the next piece of an answer goes on, and then the connection is cut.
    HalveAnswers,
    /// Requests go on, and once more on a connection of their own, whose answer nobody gets.
    Duplicate,
    /// Connections are cut, and new ones as soon as they are made.
    Refuse,
}

/// What goes wrong at present.
#[derive(Debug, Clone, Copy, Default)]
struct Now {
    fault: Fault,
    // With the next answer it is over; of `Duplicate` with the next request.
    once: bool,
}

/// A proxy on a port of its own, in a thread of its own. Stops when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    fault: watch::Sender<Now>,
    // Where new connections lead. When it is set, also to the same, all others are cut.
    target: watch::Sender<SocketAddr>,
    round_trips: AtomicU64,
    answered: AtomicU64,
    connections: AtomicU64,
    hits: AtomicU64,
}

impl Proxy {
    /// Starts a proxy before `target`.
    ///
    /// # Errors
    /// Where no port or thread can be had.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            fault: watch::Sender::new(Now::default()),
            target: watch::Sender::new(target),
            round_trips: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serving = shared.clone();
        std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                runtime.block_on(async {
                    let Ok(listener) = TcpListener::from_std(listener) else {
                        return;
                    };
                    tokio::select! {
                        _ = stopped => {}
                        () = serve(&listener, &serving) => {}
                    }
                });
                // Connections end with their runtime.
            })
            .context("no thread for a proxy")?;
        Ok(Self {
            address,
            shared,
            _stop: stop,
        })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this goes wrong.
    pub fn set(&self, fault: Fault) {
        let once = false;
        self.shared.fault.send_replace(Now { fault, once });
        if fault == Fault::Refuse {
            self.cut();
        }
    }

    /// This goes wrong with the next answer (or request, to duplicate it), and with no other.
    pub fn once(&self, fault: Fault) {
        let once = true;
        self.shared.fault.send_replace(Now { fault, once });
    }

    /// Cuts every connection, once.
    pub fn cut(&self) {
        self.shared.target.send_modify(|_| {});
    }

    /// Cuts every connection; new ones lead to `target`: what clients see of a failover by DNS or a
    /// virtual address.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.target.send_replace(target);
    }

    /// How often a client began to send after it had got an answer, or after it had connected: with
    /// one caller and one connection these are round trips.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Ordering::SeqCst)
    }

    /// How many bytes the server answered.
    pub fn answered_bytes(&self) -> u64 {
        self.shared.answered.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many pieces of data a fault has met, and connections that were refused or cut.
    pub fn hits(&self) -> u64 {
        self.shared.hits.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// The fault, for the piece that came first of those that it is for.
    fn take(&self, way: Way) -> Fault {
        let mut taken = Fault::None;
        self.fault.send_if_modified(|now| {
            let of = if now.fault == Fault::Duplicate {
                Way::Request
            } else {
                Way::Answer
            };
            if !now.once {
                taken = now.fault;
            } else if way == of {
                taken = std::mem::take(now).fault;
            }
            false
        });
        taken
    }
}

async fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors: others may free some.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        tokio::spawn(async move {
            let mut target = shared.target.subscribe();
            let to = *target.borrow_and_update();
            tokio::select! {
                _ = target.changed() => {
                    shared.hits.fetch_add(1, Ordering::SeqCst);
                }
                _ = connection(client, to, &shared) => {}
            }
        });
    }
}

async fn connection(client: TcpStream, target: SocketAddr, shared: &Shared) -> std::io::Result<()> {
    if shared.fault.borrow().fault == Fault::Refuse {
        shared.hits.fetch_add(1, Ordering::SeqCst);
        return Ok(());
    }
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let so_far = SoFar {
        answered: AtomicBool::new(true),
        held: AtomicBool::new(false),
    };
    // Either side's end ends both: what a broken connection looks like.
    let done = tokio::select! {
        done = forward(from_client, &mut to_server, target, Way::Request, &so_far, shared) => done,
        done = forward(&mut from_server, to_client, target, Way::Answer, &so_far, shared) => done,
    };
    // What was held is done before the server hears of the client's end.
    let mut dropped = [0; 1024];
    while so_far.held.load(Ordering::SeqCst)
        && let Ok(Ok(1..)) = timeout(SILENCE, from_server.read(&mut dropped)).await
    {}
    done
}

/// Sends this, and drops what is answered.
async fn send(target: SocketAddr, data: Vec<u8>) -> std::io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    server.write_all(&data).await?;
    let mut dropped = [0; 1024];
    while server.read(&mut dropped).await? > 0 {}
    Ok(())
}

/// Of one connection.
struct SoFar {
    /// The last that went on was an answer.
    answered: AtomicBool,
    /// A request was held in a black hole.
    held: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    target: SocketAddr,
    way: Way,
    so_far: &SoFar,
    shared: &Shared,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut fault = shared.fault.subscribe();
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        match way {
            Way::Request if so_far.answered.swap(false, Ordering::SeqCst) => {
                shared.round_trips.fetch_add(1, Ordering::SeqCst);
            }
            Way::Request => {}
            Way::Answer => {
                so_far.answered.store(true, Ordering::SeqCst);
                shared.answered.fetch_add(read as u64, Ordering::SeqCst);
            }
        }
        let hole = |now: &Now| now.fault == Fault::Blackhole;
        if hole(&fault.borrow_and_update()) {
            shared.hits.fetch_add(1, Ordering::SeqCst);
            if way == Way::Request {
                so_far.held.store(true, Ordering::SeqCst);
            }
        }
        // The sender lives as long as the proxy.
        let now = fault
            .wait_for(|now| !hole(now))
            .await
            .map_or_else(|_| Now::default(), |now| *now);
        let now = if now.once {
            shared.take(way)
        } else {
            now.fault
        };
        let of_requests = matches!(now, Fault::Delay(_) | Fault::Duplicate);
        let of_answers = now != Fault::Duplicate;
        if now != Fault::None
            && (if way == Way::Answer {
                of_answers
            } else {
                of_requests
            })
        {
            shared.hits.fetch_add(1, Ordering::SeqCst);
        }
        let data = &buffer[..read];
        match (now, way) {
            (Fault::Delay(time), _) => {
                tokio::time::sleep(time).await;
                to.write_all(data).await?;
            }
            (Fault::Duplicate, Way::Request) => {
                tokio::spawn(send(target, data.to_vec()));
                to.write_all(data).await?;
            }
            (Fault::SwallowAnswers, Way::Answer) => {}
            (Fault::CutAnswers, Way::Answer) => return Ok(()),
            (Fault::HalveAnswers, Way::Answer) => {
                to.write_all(&data[..read / 2]).await?;
                return to.flush().await;
            }
            _ => to.write_all(data).await?,
        }
    }
}
