//! A gateway process, upstreams to put behind it, and clients.

pub(crate) mod described;
mod gateway;
mod ledger;
mod raw;
mod recorder;
mod served;
pub(crate) mod tls;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use gateway::{Gateway, store_in};
pub(crate) use ledger::Shop;
pub(crate) use raw::{Reaction, Script, nobody, read_head, read_request, send_raw};
pub(crate) use recorder::{Recorder, Seen};
pub(crate) use served::Served;

/// Longer than anything here should take, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    /// The `code` of a problem; checks what every problem has.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        for member in ["type", "title", "detail"] {
            assert!(problem[member].is_string(), "{member} of {problem}");
        }
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// Sends a request on a connection of its own.
pub(crate) async fn send(request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build_http();
    let answer = client
        .request(request)
        .await
        .map_err(|e| format!("{e:?}"))?;
    read_whole(answer).await
}

pub(crate) async fn read_whole(answer: Response<Incoming>) -> Result<Answer, String> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|e| format!("{e:?}"))?;
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: body.to_bytes(),
    })
}

/// One connection, for requests one after the other.
pub(crate) struct Connection {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { address, sender }
    }

    pub(crate) async fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Answer, String> {
        let path = request.uri().path_and_query().unwrap().clone();
        *request.uri_mut() = path.into();
        let host = self.address.to_string().parse().unwrap();
        request.headers_mut().insert(http::header::HOST, host);
        let sent = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let answer = timeout(PATIENCE, sent).await.unwrap();
        read_whole(answer.map_err(|e| format!("{e:?}"))?).await
    }
}

pub(crate) fn request(
    method: Method,
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::from(body.to_owned())).unwrap()
}

/// Posts an order with this key.
pub(crate) async fn order(address: SocketAddr, key: &str) -> Answer {
    order_with(address, &[("idempotency-key", key)]).await
}

/// Posts an order with these header fields.
pub(crate) async fn order_with(address: SocketAddr, headers: &[(&str, &str)]) -> Answer {
    let request = request(Method::POST, address, "/orders", headers, "{\"item\":1}");
    send(request).await.unwrap()
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    send(request(Method::GET, address, path, &[], ""))
        .await
        .unwrap()
}

/// Asks again and again until the answer is there.
pub(crate) async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}
