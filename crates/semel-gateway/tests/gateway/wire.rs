//! HTTP as a gateway speaks it.

use axum::http::{Method, Version};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncReadExt as _;

use crate::support::{Gateway, Reaction, Script, Shop, order, read_head, request, send, send_raw};

const KEY: (&str, &str) = ("idempotency-key", "\"k\"");

#[tokio::test]
async fn an_expectation_is_answered_by_the_gateway() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let head = |key: &str| {
        format!(
            "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\n\
             expect: 100-continue\r\ncontent-length: 10\r\n\r\n"
        )
    };
    // What the header alone shows to be wrong is said at once.
    let mut stream = send_raw(gateway.address, &head("\"bad")).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(shop.received(), 0);

    let mut stream = send_raw(gateway.address, &head("\"good\"")).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 100 Continue\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"{\"item\":1}")
        .await
        .unwrap();
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
}

/// RFC 9110, section 2.5: the version is that of who sends the message.
#[tokio::test]
async fn an_old_upstream_makes_no_old_gateway() {
    let old = Reaction::Send("HTTP/1.0 201 Created\r\ncontent-length: 2\r\n\r\nok");
    let upstream = Script::start(old).await;
    let gateway = Gateway::start(upstream.address, &[]);
    for key in [
        "",
        "idempotency-key: \"k\"\r\n",
        "idempotency-key: \"k\"\r\n",
    ] {
        let request = format!("POST /orders HTTP/1.1\r\nhost: x\r\n{key}content-length: 0\r\n\r\n");
        let mut stream = send_raw(gateway.address, &request).await;
        let answer = read_head(&mut stream).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 201 "), "{key}: {answer}");
    }
}

#[tokio::test]
async fn fields_of_one_connection_stay_on_it() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 201 Created\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
         x-end: 2\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 2\r\n\r\nok",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    let headers = [
        KEY,
        ("connection", "x-mine"),
        ("x-mine", "1"),
        ("te", "trailers"),
        ("idempotency-fence", "99"),
        ("x-end", "3"),
    ];
    for replay in [false, true] {
        let answer = send(request(
            Method::POST,
            gateway.address,
            "/a?b=%2F",
            &headers,
            "{}",
        ))
        .await
        .unwrap();
        assert_eq!(answer.is_replay(), replay);
        assert_eq!(answer.text(), "ok");
        assert_eq!(answer.header("x-hop"), None);
        assert_eq!(answer.header("keep-alive"), None);
        assert_eq!(answer.header("x-end"), Some("2"));
        // They belong to the first client only.
        let cookies = answer.headers.get_all("set-cookie").iter().count();
        assert_eq!(cookies, if replay { 0 } else { 2 });
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert!(
        request.starts_with("POST /a?b=%2F HTTP/1.1\r\n"),
        "{request}"
    );
    let has = |line: &str| request.contains(&format!("\r\n{line}\r\n"));
    assert!(has("idempotency-key: \"k\""), "{request}");
    assert!(has(&format!("host: {}", upstream.address)), "{request}");
    assert!(
        has(&format!("x-forwarded-host: {}", gateway.address)),
        "{request}"
    );
    assert!(has("x-forwarded-for: 127.0.0.1"), "{request}");
    assert!(has("x-forwarded-proto: http"), "{request}");
    assert!(has("x-end: 3") && has("content-length: 2"), "{request}");
    assert!(
        !request.contains("x-mine") && !has("idempotency-fence: 99"),
        "{request}"
    );
    assert!(upstream.fences()[0] > 0);
}

#[tokio::test]
async fn a_fence_of_the_client_is_removed_without_a_key_too() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let headers = [("idempotency-fence", "99")];
    let answer = send(request(
        Method::PUT,
        gateway.address,
        "/echo",
        &headers,
        "x",
    ))
    .await;
    let answer = answer.unwrap();
    assert!(
        answer.text().starts_with("PUT /echo\n"),
        "{}",
        answer.text()
    );
    assert!(
        !answer.text().contains("idempotency-fence"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn redirects_are_answers_like_others() {
    for status in ["303 See Other", "307 Temporary Redirect"] {
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: http://elsewhere.example/1\r\ncontent-length: 0\r\n\r\n"
        );
        let upstream = Script::start(Reaction::Send(answer.leak())).await;
        let gateway = Gateway::start(upstream.address, &[]);
        for replay in [false, true] {
            let answer = order(gateway.address, "\"k\"").await;
            assert_eq!(answer.status.as_str(), &status[..3]);
            assert_eq!(
                answer.header("location"),
                Some("http://elsewhere.example/1")
            );
            assert_eq!(answer.is_replay(), replay);
        }
        assert_eq!(upstream.requests().len(), 1);
    }
}

#[tokio::test]
async fn http_2_is_spoken_with_prior_knowledge() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let ask = || {
        request(
            Method::POST,
            gateway.address,
            "/orders",
            &[KEY],
            "{\"item\":1}",
        )
    };
    let first = client.request(ask()).await.unwrap();
    assert_eq!(
        (first.version(), first.status().as_u16()),
        (Version::HTTP_2, 201)
    );
    // The same request over HTTP/1.1 is the same request.
    let again = order(gateway.address, "\"k\"").await;
    assert!(again.is_replay());
    assert_eq!(
        first.into_body().collect().await.unwrap().to_bytes(),
        again.body
    );

    let echo = client
        .request(request(Method::PUT, gateway.address, "/echo", &[], ""))
        .await
        .unwrap();
    let echo = echo.into_body().collect().await.unwrap().to_bytes();
    let forwarded = format!("x-forwarded-host: {}\n", gateway.address);
    assert!(
        std::str::from_utf8(&echo).unwrap().contains(&forwarded),
        "{echo:?}"
    );
}

#[tokio::test]
async fn tunnels_are_refused_and_h2c_is_ignored() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let connect = "CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n";
    let mut stream = send_raw(gateway.address, connect).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 501 "), "{answer}");
    let h2c = "GET /echo HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\n\
               upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n";
    let mut stream = send_raw(gateway.address, h2c).await;
    let answer = read_head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let large = format!(
        "GET /echo HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n",
        "x".repeat(128 << 10)
    );
    let mut stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    // The gateway may close before all of it is sent.
    tokio::io::AsyncWriteExt::write_all(&mut stream, large.as_bytes())
        .await
        .ok();
    let mut status = [0; 13];
    if stream.read_exact(&mut status).await.is_ok() {
        assert_eq!(&status, b"HTTP/1.1 431 ");
    }
    let answer = send(request(Method::GET, gateway.address, "/echo", &[], "")).await;
    assert_eq!(answer.unwrap().status, 200);
}

#[tokio::test]
async fn informational_answers_and_trailers_are_no_part_of_the_header() {
    let upstream = Script::start(Reaction::Send(
        "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n\
         HTTP/1.1 201 Created\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n",
    ))
    .await;
    let gateway = Gateway::start(upstream.address, &[]);
    for replay in [false, true] {
        let mut stream = send_raw(
            gateway.address,
            "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\nte: trailers\r\n\
             connection: te, close\r\ncontent-length: 0\r\n\r\n",
        )
        .await;
        let head = read_head(&mut stream).await.unwrap();
        let mut body = String::new();
        stream.read_to_string(&mut body).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
        assert!(
            !head.contains("link:") && !head.contains("x-sum:"),
            "{head}"
        );
        assert_eq!(head.contains("idempotency-replayed: true"), replay);
        assert_eq!(body, "2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n", "{head}");
    }
    assert!(upstream.requests()[0].contains("\r\nte: trailers\r\n"));
}
