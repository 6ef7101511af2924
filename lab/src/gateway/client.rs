//! A client: calls gateways over HTTP/1.1 or HTTP/2, and writes down what came of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::records::{Answer, Call, Identity, Said};
use super::upstream::{CALL, EXECUTION, WHOSE, body_digest, head_digest};
use super::work::Board;
use crate::clock::now;
use crate::history::digest;

/// A client that waits for so long finds nobody there.
const PATIENCE: Duration = Duration::from_secs(20);

/// What it asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) identity: Identity,
    /// Whether it is what nobody else asks for under this key.
    pub(super) odd: bool,
    pub(super) gateway: usize,
    /// It leaves without the answer after so long.
    pub(super) leaves: Option<Duration>,
}

/// A client, with a connection to each gateway.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) http2: bool,
    connections: HashMap<usize, (SocketAddr, Sender)>,
}

#[derive(Debug)]
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    fn is_ready(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_ready(),
            Self::Two(sender) => sender.is_ready(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => sender.send_request(request).await,
            Self::Two(sender) => sender.send_request(request).await,
        }
    }
}

impl Client {
    pub(super) fn new(http2: bool) -> Self {
        Self {
            http2,
            connections: HashMap::new(),
        }
    }

    /// Calls, and writes it down.
    pub(super) async fn call(&mut self, board: &Board, wish: Wish) -> Said {
        let body = body(wish.identity, wish.odd);
        let mut call = Call {
            id: board.next_call(),
            identity: wish.identity,
            body: digest(&body),
            gateway: wish.gateway,
            http2: self.http2,
            sent: now(),
            answered: 0,
            said: Said::Left,
        };
        let lie = board.liar.as_ref().and_then(|liar| liar.instead(&call));
        call.said = match lie {
            Some(lie) => lie,
            None => self.ask(board, wish, call.id, body).await,
        };
        if let Some(liar) = &board.liar {
            liar.twist(&mut call);
        }
        call.answered = now();
        board.note(&call);
        call.said
    }

    async fn ask(&mut self, board: &Board, wish: Wish, id: u64, body: Bytes) -> Said {
        let asked = self.exchange(board, wish, id, body);
        match timeout(wish.leaves.unwrap_or(PATIENCE), asked).await {
            Ok(Ok((head, body))) => said(&head, &body),
            Ok(Err(error)) => {
                self.connections.remove(&wish.gateway);
                Said::Broken(format!("{error:#}"))
            }
            Err(_) => {
                self.connections.remove(&wish.gateway);
                match wish.leaves {
                    Some(_) => Said::Left,
                    None => Said::Broken(format!("nothing in {PATIENCE:?}")),
                }
            }
        }
    }

    async fn exchange(
        &mut self,
        board: &Board,
        wish: Wish,
        id: u64,
        body: Bytes,
    ) -> Result<(hyper::http::response::Parts, Bytes)> {
        let address = board.address(wish.gateway);
        let sender = self.connected(wish.gateway, address).await?;
        let request = request(wish.identity, id, address, body, sender)?;
        let answer = sender.send(request).await?;
        let (head, body) = answer.into_parts();
        Ok((head, body.collect().await?.to_bytes()))
    }

    async fn connected(&mut self, gateway: usize, address: SocketAddr) -> Result<&mut Sender> {
        let usable = self
            .connections
            .get(&gateway)
            .is_some_and(|(at, sender)| *at == address && sender.is_ready());
        if !usable {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = TokioIo::new(stream);
            let sender = if self.http2 {
                let executor = TokioExecutor::new();
                let (sender, connection) = http2::handshake(executor, stream).await?;
                tokio::spawn(connection);
                Sender::Two(sender)
            } else {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Sender::One(sender)
            };
            self.connections.insert(gateway, (address, sender));
        }
        let (_, sender) = self.connections.get_mut(&gateway).context("connected")?;
        Ok(sender)
    }
}

fn request(
    identity: Identity,
    id: u64,
    address: SocketAddr,
    body: Bytes,
    sender: &Sender,
) -> Result<Request<Full<Bytes>>> {
    // One path for all of them: only the identity keeps them apart.
    let mut request = Request::post("/orders?from=lab")
        .header("idempotency-key", format!("order-{:08}", identity.key))
        .header(CONTENT_TYPE, "application/json")
        .header(WHOSE, identity.to_string())
        .header(CALL, id);
    match identity.principal {
        0 => {}
        // Both schemes whose credentials stay the same.
        1 => request = request.header(AUTHORIZATION, "Basic YWxpY2U6c2VjcmV0"),
        n => request = request.header(AUTHORIZATION, format!("Bearer token-{n}")),
    }
    request = match sender {
        Sender::One(_) => request.header(HOST, address.to_string()),
        Sender::Two(_) => request
            .version(Version::HTTP_2)
            .uri(format!("http://{address}/orders?from=lab")),
    };
    Ok(request.body(Full::new(body))?)
}

/// What an identity's calls ask for: nearly always the same. Principals and services ask alike, so that
/// an answer that strays would fit.
fn body(identity: Identity, odd: bool) -> Bytes {
    let key = identity.key;
    let size = if key.is_multiple_of(9) {
        40_000
    } else {
        key % 300
    };
    let note = "n".repeat(size as usize);
    let amount = key + u32::from(odd);
    format!("{{\"order\": {key}, \"amount\": {amount}, \"note\": \"{note}\"}}").into()
}

fn said(head: &hyper::http::response::Parts, body: &[u8]) -> Said {
    let status = head.status.as_u16();
    let headers = &head.headers;
    if let Some(execution) = number(headers) {
        return Said::Answer(Answer {
            execution,
            replayed: is(headers, "idempotency-replayed"),
            omitted: is(headers, "idempotency-body-omitted"),
            head: head_digest(head.status, headers),
            body: body_digest(headers, body),
        });
    }
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    if kind != Some(b"application/problem+json") {
        return match head.status {
            status if status.is_success() => Said::Answer(Answer {
                execution: 0,
                replayed: false,
                omitted: false,
                head: head_digest(StatusCode::OK, headers),
                body: body_digest(headers, body),
            }),
            _ => Said::Failed { status },
        };
    }
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let code = problem["code"].as_str().unwrap_or("?").to_owned();
    Said::Problem { status, code }
}

fn number(headers: &HeaderMap) -> Option<u64> {
    headers.get(EXECUTION)?.to_str().ok()?.parse().ok()
}

fn is(headers: &HeaderMap, name: &str) -> bool {
    headers.get(name).is_some_and(|value| value == "true")
}
