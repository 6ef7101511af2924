//! Tenants never see each other's answers, on any path.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

use super::{KeyFile, Signer, claims, with};
use crate::support::{Answer, Gateway, Shop, order_with};

/// Posts an order over HTTP/2.
async fn over_http2(gateway: &Gateway, fields: &[(&str, &str)]) -> Answer {
    let io = TokioIo::new(TcpStream::connect(gateway.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let host = fields.iter().find(|(name, _)| *name == "host").unwrap().1;
    let mut request = Request::post(format!("http://{host}/orders"));
    for (name, value) in fields.iter().filter(|(name, _)| *name != "host") {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from_static(b"{\"item\":1}"));
    let answer = sender.send_request(request.body(body).unwrap()).await;
    let (head, body) = answer.unwrap().into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

/// What of an answer tells one order from another.
fn told(answer: &Answer) -> (HeaderMap, Bytes) {
    let mut headers = answer.headers.clone();
    for name in [
        "date",
        "idempotency-replayed",
        "access-control-expose-headers",
    ] {
        headers.remove(name);
    }
    (headers, answer.body.clone())
}

#[tokio::test]
async fn tenants_never_see_each_others_answers() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let more = [
        "--jwt-claims",
        "sub,tenant",
        "--scope-header",
        "X-Mode,Host",
        "--require-principal",
    ];
    let gateway = Gateway::start(shop.address, &keys.flags(&more));
    let mut tenants = Vec::new();
    for (subject, tenant) in [
        ("ann", "a"),
        ("ann", "b"),
        ("bob", "a"),
        // What joins into the same text.
        ("a:b", "c"),
        ("a", "b:c"),
        ("a\0b", "c"),
        ("a", "b\0c"),
        ("a", "tenant"),
        ("tenant", "a"),
        ("1", "2"),
        ("12", "1"),
        ("x-mode", "live"),
    ] {
        for mode in ["live", "test", ""] {
            for host in ["a.example", "b.example"] {
                tenants.push((subject, tenant, mode, host));
            }
        }
    }
    let mut firsts = HashMap::new();
    for round in 0..4 {
        for (nth, (subject, tenant, mode, host)) in tenants.iter().enumerate() {
            // A token of its own each time.
            let own = json!({"tenant": tenant, "jti": format!("{round}-{nth}")});
            let token = signer.sign(&with(claims(subject), &own));
            let token = format!("Bearer {token}");
            let mut fields = vec![
                ("idempotency-key", "\"k\""),
                ("authorization", &token),
                ("host", host),
            ];
            if !mode.is_empty() {
                fields.push(("x-mode", mode));
            }
            let answer = match (round + nth) % 2 {
                0 => order_with(gateway.address, &fields).await,
                _ => over_http2(&gateway, &fields).await,
            };
            assert_eq!(answer.status, 201, "{answer:?}");
            assert_eq!(
                answer.is_replay(),
                round > 0,
                "{subject} {tenant} {mode} {host}"
            );
            let first = firsts.entry(nth).or_insert_with(|| told(&answer));
            assert_eq!(*first, told(&answer));
        }
    }
    assert_eq!(shop.placed(), tenants.len());
    let bodies: std::collections::HashSet<_> = firsts.values().map(|(_, body)| body).collect();
    assert_eq!(bodies.len(), tenants.len(), "each has an answer of its own");
}
