//! Several addresses of one service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use http::{Method, Response, StatusCode};

use crate::support::{
    Gateway, Reaction, Script, Served, eventually, get, nobody, order, order_with, request, send,
};

fn start(upstreams: &[SocketAddr], more: &[&str]) -> Gateway {
    let urls = upstreams.iter().map(|address| format!("http://{address}"));
    let urls = format!("--upstream={}", urls.collect::<Vec<_>>().join(","));
    Gateway::start(upstreams[0], &[&[&*urls], more].concat())
}

/// The value of a metric of an address.
async fn metric(gateway: &Gateway, name: &str, address: SocketAddr) -> u64 {
    let metrics = get(gateway.admin, "/metrics").await;
    let name = format!("semel_upstream_{name}{{upstream=\"http://{address}\"}} ");
    let mut lines = metrics.text().lines();
    let value = lines.find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().unwrap())
}

async fn logged(gateway: &Gateway, line: &str) {
    eventually(line, async || gateway.log().contains(line).then_some(())).await;
}

#[tokio::test]
async fn requests_are_shared_out() {
    let [one, two] = [Served::start(None).await, Served::start(None).await];
    let gateway = start(&[one.address, two.address], &[]);
    for n in 0..10 {
        assert_eq!(
            order(gateway.address, &format!("\"k{n}\"")).await.status,
            201
        );
        assert_eq!(order_with(gateway.address, &[]).await.status, 201);
    }
    assert_eq!([one.seen().len(), two.seen().len()], [10, 10]);
    for upstream in [one, two] {
        let host = upstream.address.to_string();
        assert!(
            upstream
                .seen()
                .iter()
                .all(|seen| seen.headers["host"] == *host)
        );
        assert_eq!(metric(&gateway, "up", upstream.address).await, 1);
    }
}

#[tokio::test]
async fn what_cannot_be_reached_at_one_address_is_sent_to_the_next() {
    let (_socket, dead) = nobody();
    let alive = Served::start(None).await;
    let gateway = start(&[dead, alive.address], &[]);
    for n in 0..10 {
        let key = format!("\"k{n}\"");
        let answer = order(gateway.address, &key).await;
        assert_eq!(answer.status, 201, "{answer:?} {}", gateway.log());
        // A body that is passed on as it comes was not begun either.
        let put = request(Method::PUT, gateway.address, "/", &[], &"x".repeat(100_000));
        let answer = send(put).await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?} {}", gateway.log());
    }
    assert_eq!(alive.seen().len(), 20);
    assert_eq!(metric(&gateway, "up", dead).await, 0);
    assert_eq!(metric(&gateway, "up", alive.address).await, 1);
    // Then it was left alone; and once more, if this took longer than 10 s.
    let failed = metric(&gateway, "unreached_total", dead).await;
    assert!((3..10).contains(&failed), "{failed}");
    let ready = get(gateway.admin, "/readyz").await;
    let down = format!("ready\nupstreams that are down: http://{dead}\n");
    assert_eq!((ready.status.as_u16(), ready.text()), (200, &*down));
    logged(&gateway, "upstream: down: 3 connections in a row failed").await;
}

#[tokio::test]
async fn what_may_have_been_sent_to_one_address_is_sent_to_no_other() {
    let broken = Script::start(Reaction::Close).await;
    let good = Served::start(None).await;
    let gateway = start(&[broken.address, good.address], &[]);
    let mut failed = 0;
    for n in 0..10 {
        let key = format!("\"k{n}\"");
        let answer = order(gateway.address, &key).await;
        if answer.status == 201 {
            continue;
        }
        failed += 1;
        assert_eq!(answer.problem(), "upstream-failed");
        assert_eq!(
            order(gateway.address, &key).await.problem(),
            "outcome-unknown"
        );
    }
    let unkeyed = [(); 2].map(|()| order_with(gateway.address, &[]));
    for answer in unkeyed {
        answer.await;
    }
    assert_eq!(failed, 5);
    assert_eq!([broken.requests().len(), good.seen().len()], [6, 6]);
}

#[tokio::test]
async fn where_no_address_can_be_reached_all_are_tried() {
    let [(_socket, first), (socket, second)] = [nobody(), nobody()];
    let addresses = [first, second];
    let gateway = start(&addresses, &[]);
    for _ in 0..5 {
        let answer = order(gateway.address, "\"k\"").await;
        assert_eq!(answer.problem(), "upstream-unreachable");
    }
    for address in addresses {
        assert_eq!(metric(&gateway, "up", address).await, 0);
    }
    let upstream = Served::start_on(socket.listen(16).unwrap(), None, async |_| {
        let answer = Response::builder().status(StatusCode::CREATED);
        answer.body(Body::empty()).unwrap()
    });
    assert_eq!(order(gateway.address, "\"k\"").await.status, 201);
    assert_eq!(metric(&gateway, "up", addresses[1]).await, 1);
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn an_address_whose_checks_fail_gets_no_requests() {
    let is_well = Arc::new(AtomicBool::new(false));
    let wellness = Arc::clone(&is_well);
    let ill = Served::start_with(None, move |request| {
        let is_well = wellness.load(Ordering::SeqCst);
        async move {
            let status = match request.uri().path() {
                "/well" if !is_well => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::CREATED,
            };
            Response::builder()
                .status(status)
                .body(Body::empty())
                .unwrap()
        }
    })
    .await;
    let well = Served::start(None).await;
    let addresses = [ill.address, well.address];
    let gateway = start(&addresses, &["--upstream-health", "/well"]);
    let is = async |expected| {
        eventually("the checks", async || {
            (metric(&gateway, "up", ill.address).await == expected).then_some(())
        })
        .await;
    };
    is(0).await;
    logged(&gateway, "upstream: down: answered 503").await;
    let orders = |seen: &Served| {
        let seen = seen.seen();
        seen.iter()
            .filter(|seen| seen.method == Method::POST)
            .count()
    };
    for n in 0..10 {
        assert_eq!(
            order(gateway.address, &format!("\"k{n}\"")).await.status,
            201
        );
    }
    assert_eq!([orders(&ill), orders(&well)], [0, 10]);
    let checks = ill.seen();
    assert_eq!(checks[0].headers["host"], *ill.address.to_string());
    assert_eq!(checks[0].headers["user-agent"], "semel");

    is_well.store(true, Ordering::SeqCst);
    is(1).await;
    for n in 10..20 {
        assert_eq!(
            order(gateway.address, &format!("\"k{n}\"")).await.status,
            201
        );
    }
    assert_eq!([orders(&ill), orders(&well)], [5, 15]);
}
