//! Both ends of a connection, byte by byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;

/// An address where nobody listens, and nobody else can as long as the socket is there.
pub(crate) fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// What a scripted upstream does with a request that it has read.
#[derive(Debug, Clone)]
pub(crate) enum Reaction {
    /// Closes the connection without a word.
    Close,
    /// Keeps the connection open and says nothing.
    Silence,
    /// Sends these bytes, and closes.
    Send(&'static str),
}

/// An upstream that does as it is told, one connection per request.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    reaction: Arc<Mutex<Reaction>>,
    server: JoinHandle<()>,
}

impl Script {
    pub(crate) async fn start(reaction: Reaction) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let reaction = Arc::new(Mutex::new(reaction));
        let (seen, react) = (Arc::clone(&requests), Arc::clone(&reaction));
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (seen, react) = (Arc::clone(&seen), Arc::clone(&react));
                tokio::spawn(async move {
                    let Some(request) = read_request(&mut stream).await else {
                        return;
                    };
                    seen.lock().unwrap().push(request);
                    let reaction = react.lock().unwrap().clone();
                    match reaction {
                        Reaction::Close => {}
                        Reaction::Silence => std::future::pending().await,
                        Reaction::Send(bytes) => {
                            stream.write_all(bytes.as_bytes()).await.ok();
                            stream.shutdown().await.ok();
                        }
                    }
                });
            }
        });
        Self {
            address,
            requests,
            reaction,
            server,
        }
    }

    /// From now on.
    pub(crate) fn react(&self, reaction: Reaction) {
        *self.reaction.lock().unwrap() = reaction;
    }

    /// The requests that came, headers and bodies.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The lines of this field, in the order of the requests.
    pub(crate) fn fields(&self, name: &str) -> Vec<Vec<String>> {
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned());
        let lines = |request: &String| request.lines().filter_map(value).collect();
        self.requests().iter().map(lines).collect()
    }

    /// The fences that came, in the order of the requests.
    pub(crate) fn fences(&self) -> Vec<u64> {
        let fields = self.fields("idempotency-fence");
        fields.iter().map(|f| f[0].parse().unwrap()).collect()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Reads a request whose body has a length or is not there.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = read_head(stream).await?;
    let length = request
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    request.push_str(&String::from_utf8(body).unwrap());
    Some(request)
}

/// Reads up to the empty line that ends a header.
pub(crate) async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Sends bytes on a new connection, which stays open.
pub(crate) async fn send_raw(address: SocketAddr, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}
