//! Several addresses of one service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use http::{Method, Response, StatusCode};

use crate::support::{
    Gateway, Reaction, Script, Served, eventually, get, nobody, order, order_with, read_head,
    request, send, send_raw,
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
    for n in 0..8 {
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
    assert_eq!(failed, 4);
    assert_eq!([broken.requests().len(), good.seen().len()], [5, 5]);
}

/// However an instance is broken: that it answers fast must not bring it the most requests.
#[tokio::test]
async fn an_address_that_does_not_answer_gets_no_requests() {
    for reaction in [
        Reaction::Close,
        Reaction::Silence,
        Reaction::Send("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"),
        Reaction::Send("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        Reaction::Send("no HTTP\r\n\r\n"),
    ] {
        let broken = Script::start(reaction.clone()).await;
        let good = Served::start(None).await;
        let addresses = [broken.address, good.address];
        let gateway = start(&addresses, &["--upstream-timeout", "500ms"]);
        let mut done = 0;
        for n in 0..40 {
            let answer = order(gateway.address, &format!("\"k{n}\"")).await;
            done += usize::from(answer.status == 201);
        }
        let failed = broken.requests().len();
        assert_eq!(done + failed, 40, "{reaction:?}");
        // And once more after each pause, if this took so long.
        assert!((5..8).contains(&failed), "{reaction:?}: {failed}");
        assert_eq!(metric(&gateway, "up", broken.address).await, 0);
        assert_eq!(metric(&gateway, "up", good.address).await, 1);
        logged(&gateway, "upstream: down: 5 requests in a row").await;
    }
}

#[tokio::test]
async fn an_address_that_answers_is_up_whatever_it_says() {
    for answer in [
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n",
    ] {
        let one = Script::start(Reaction::Send(answer)).await;
        let two = Script::start(Reaction::Send(answer)).await;
        let gateway = start(&[one.address, two.address], &[]);
        for n in 0..20 {
            order(gateway.address, &format!("\"k{n}\"")).await;
        }
        assert_eq!([one.requests().len(), two.requests().len()], [10, 10]);
        assert_eq!(metric(&gateway, "up", one.address).await, 1);
    }
}

/// Clients can be what is wrong: the last address has not all the requests.
#[tokio::test]
async fn bad_answers_take_out_no_more_than_half_of_the_addresses() {
    let broken = [
        Script::start(Reaction::Close).await,
        Script::start(Reaction::Close).await,
    ];
    let good = Served::start(None).await;
    let addresses = [broken[0].address, broken[1].address, good.address];
    let gateway = start(&addresses, &[]);
    for n in 0..60 {
        order(gateway.address, &format!("\"k{n}\"")).await;
    }
    for (script, address) in broken.iter().zip(addresses) {
        assert!(script.requests().len() > 10);
        assert_eq!(metric(&gateway, "up", address).await, 0);
    }
    assert!(good.seen().len() > 10);
}

#[tokio::test]
async fn where_no_address_answers_all_are_asked_and_one_that_answers_is_up() {
    let scripts = [
        Script::start(Reaction::Close).await,
        Script::start(Reaction::Close).await,
    ];
    let addresses = scripts.each_ref().map(|script| script.address);
    let gateway = start(&addresses, &[]);
    for n in 0..20 {
        let answer = order(gateway.address, &format!("\"k{n}\"")).await;
        assert_eq!(answer.problem(), "upstream-failed");
    }
    for (script, address) in scripts.iter().zip(addresses) {
        assert!(script.requests().len() >= 5);
        assert_eq!(metric(&gateway, "up", address).await, 0);
    }
    scripts[1].react(Reaction::Send(
        "HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n",
    ));
    eventually("an answer", async || {
        let answer = order_with(gateway.address, &[]).await;
        (answer.status == 201).then_some(())
    })
    .await;
    assert_eq!(metric(&gateway, "up", addresses[1]).await, 1);
    assert_eq!(metric(&gateway, "up", addresses[0]).await, 0);
    assert_eq!(order(gateway.address, "\"k\"").await.status, 201);
}

#[tokio::test]
async fn an_only_address_is_up_as_long_as_it_can_be_reached() {
    let broken = Script::start(Reaction::Close).await;
    let gateway = Gateway::start(broken.address, &[]);
    for n in 0..10 {
        order(gateway.address, &format!("\"k{n}\"")).await;
    }
    assert_eq!(broken.requests().len(), 10);
    assert_eq!(metric(&gateway, "up", broken.address).await, 1);
}

/// A client that does not send the rest of its body is not the address's fault.
#[tokio::test]
async fn an_upload_that_stalls_says_nothing_of_the_address() {
    let [one, two] = [Served::start(None).await, Served::start(None).await];
    let addresses = [one.address, two.address];
    let gateway = start(&addresses, &["--upstream-timeout", "50ms"]);
    let stalls = "PUT /orders HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";
    for _ in 0..12 {
        let mut stream = send_raw(gateway.address, stalls).await;
        let head = read_head(&mut stream).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    }
    for address in addresses {
        assert_eq!(metric(&gateway, "up", address).await, 1);
    }
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
