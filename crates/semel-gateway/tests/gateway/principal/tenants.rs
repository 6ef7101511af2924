//! Tenants never see each other's answers, on any path.

use std::collections::HashMap;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

use super::{KeyFile, Signer, claims, with};
use crate::support::{Answer, Gateway, Shop, eventually, order_with, request, send};

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

/// Nor does one wait for another's attempt, or learn that there is one.
#[tokio::test]
async fn tenants_never_meet_in_flight() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    for more in [&["--require-principal"][..], &["--wait", "60s"]] {
        let gateway = Gateway::start(shop.address, &keys.flags(more));
        let tokens = ["ann", "bob"].map(|who| format!("Bearer {}", signer.sign(&claims(who))));
        let key = format!("\"{}\"", more[0]);
        let ask = async |who: usize, is_held: bool, is_http2: bool| {
            let mut fields = vec![
                ("idempotency-key", &*key),
                ("authorization", &tokens[who]),
                ("host", "a.example"),
            ];
            fields.extend(is_held.then_some(("x-held", "1")));
            match is_http2 {
                true => over_http2(&gateway, &fields).await,
                false => order_with(gateway.address, &fields).await,
            }
        };
        let before = shop.received();
        let others = async {
            eventually("the first one runs", || {
                std::future::ready((shop.received() > before).then_some(()))
            })
            .await;
            // While it does: a first answer each time, whatever is asked, and however.
            let first = ask(1, false, false).await;
            let again = ask(1, false, true).await;
            assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
            assert_eq!((again.status.as_u16(), again.is_replay()), (201, true));
            assert_eq!(told(&first), told(&again));
            shop.let_go();
            first
        };
        let (slow, other) = tokio::join!(ask(0, true, true), others);
        assert_eq!((slow.status.as_u16(), slow.is_replay()), (201, false));
        assert_ne!(slow.body, other.body);
        // Another request under the key is a mismatch to its own tenant alone.
        for (who, address) in [(0, "/refunds"), (1, "/refunds")] {
            let fields = [("idempotency-key", &*key), ("authorization", &tokens[who])];
            let asked = request(Method::POST, gateway.address, address, &fields, "{}");
            assert_eq!(send(asked).await.unwrap().problem(), "mismatch");
        }
        let third = format!("Bearer {}", signer.sign(&claims("eve")));
        let fields = [("idempotency-key", &*key), ("authorization", &third)];
        let asked = request(Method::POST, gateway.address, "/refunds", &fields, "{}");
        assert!(send(asked).await.unwrap().status.is_success());
    }
}
