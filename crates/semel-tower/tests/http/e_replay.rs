//! E. Replay fidelity (rows 46 to 58).

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use semel_tower::IdempotencyLayer;
use tokio::time::Instant;
use tower::ServiceExt as _;
use tower_http::compression::CompressionLayer;

use crate::support::{Answer, App, Call, Execs, K, Memory, layer, pieces};

fn respond(status: u16, headers: &[(&'static str, &str)], body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let name = HeaderName::from_static(name);
        response
            .headers_mut()
            .append(name, HeaderValue::from_str(value).unwrap());
    }
    response
}

type Headers = &'static [(&'static str, &'static str)];

/// The first answer of a handler that sets these fields, and its replay.
async fn twice(layer: IdempotencyLayer<Memory>, status: u16, headers: Headers) -> [Answer; 2] {
    let app = App::answering(layer, move |_| respond(status, headers, "body"));
    let answers = [app.send(Call::order()).await, app.send(Call::order()).await];
    answers[0].assert_first(status);
    answers[1].assert_replay_of(&answers[0]);
    assert_eq!(app.execs(), 1);
    answers
}

#[tokio::test]
async fn row_46_status_bytes_and_content_headers_are_the_same() {
    const HEADERS: Headers = &[
        ("content-type", "application/json; charset=utf-8"),
        ("content-language", "la"),
        ("location", "/orders/1"),
        ("content-location", "/orders/1"),
        ("etag", "\"v1\""),
        ("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT"),
        ("link", "</>; rel=\"up\""),
        ("vary", "accept"),
        ("x-own", "kept"),
        ("retry-after", "2"),
    ];
    let [_, replay] = twice(layer(), 201, HEADERS).await;
    for (name, value) in HEADERS {
        assert_eq!(replay.all(name), [*value], "{name}");
    }
    // Bytes, whatever they are.
    let bytes: Vec<u8> = (0..=255).collect();
    let app = App::answering(layer(), move |_| respond(200, &[], bytes.clone()));
    let first = app.send(Call::order()).await;
    assert_eq!(first.body.len(), 256);
    app.send(Call::order()).await.assert_replay_of(&first);
}

#[tokio::test]
async fn row_47_replays_are_marked_and_first_answers_never_are() {
    const HEADERS: Headers = &[
        ("idempotency-replayed", "true"),
        ("idempotency-body-omitted", "true"),
        ("idempotency-protected", "false"),
    ];
    let [first, replay] = twice(layer(), 201, HEADERS).await;
    assert_eq!(replay.all("idempotency-replayed"), ["true"]);
    for name in ["idempotency-body-omitted", "idempotency-protected"] {
        assert!(first.header(name).is_none() && replay.header(name).is_none());
    }
    // Under another name.
    let name = HeaderName::from_static("idempotent-replayed");
    let app = App::answering(layer().with_replay_header(name), |_| {
        respond(200, &[("idempotent-replayed", "true")], "")
    });
    assert_eq!(
        app.send(Call::order()).await.header("idempotent-replayed"),
        None
    );
    let replay = app.send(Call::order()).await;
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert!(!replay.is_replay());
}

#[tokio::test]
async fn row_48_49_52_what_belongs_to_one_transmission_is_not_replayed() {
    const HEADERS: Headers = &[
        ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
        ("connection", "X-Hop, close"),
        ("x-hop", "1"),
        ("proxy-connection", "close"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("trailer", "x-sum"),
        ("set-cookie", "session=1"),
        ("age", "3"),
        ("ratelimit", "\"default\";r=50;t=30"),
        ("ratelimit-policy", "\"default\";q=100"),
        ("x-ratelimit-remaining", "50"),
        ("server-timing", "db;dur=53"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "a=b"),
        ("x-request-id", "1"),
    ];
    let [first, replay] = twice(layer(), 201, HEADERS).await;
    for (name, _) in HEADERS {
        assert!(first.header(name).is_some(), "{name}");
        assert!(replay.header(name).is_none(), "{name}");
    }
}

#[tokio::test]
async fn row_50_a_204_has_neither_body_nor_length() {
    for status in [204, 205, 304] {
        let app = App::answering(layer(), move |_| respond(status, &[], Body::empty()));
        app.send(Call::order()).await.assert_first(status);
        let replay = app.send(Call::order()).await;
        assert_eq!((replay.status, replay.body.len()), (status, 0));
        assert!(replay.is_replay());
        assert_length(&replay);
    }
    // Even if the handler made one up.
    let app = App::answering(layer(), |_| respond(204, &[], "made up"));
    app.send(Call::order()).await.assert_first(204);
    assert!(app.send(Call::order()).await.body.is_empty());
    // A length that the handler states is not kept, but made anew from what is.
    let app = App::answering(layer(), |_| {
        respond(201, &[("content-length", "04")], "body")
    });
    app.send(Call::order()).await.assert_first(201);
    assert_eq!(app.send(Call::order()).await.all("content-length"), ["4"]);
}

/// axum states the length of every body that it knows; hyper takes it off again where there must
/// be none (`socket::row_50`).
#[track_caller]
fn assert_length(answer: &Answer) {
    let length = answer.body.len().to_string();
    assert!(
        answer.header("content-length").is_none_or(|l| l == length),
        "{answer:?}"
    );
}

#[tokio::test]
async fn row_51_52_repeated_fields_keep_count_and_order_and_cookies_can_be_allowed() {
    const HEADERS: Headers = &[
        ("link", "</a>"),
        ("set-cookie", "a=1, x"),
        ("link", "</b>"),
        ("set-cookie", "b=2"),
    ];
    let [_, replay] = twice(layer(), 201, HEADERS).await;
    assert_eq!(replay.all("link"), ["</a>", "</b>"]);
    assert!(replay.all("set-cookie").is_empty());
    let allowing = layer().with_allowed_replay_headers([SET_COOKIE, http::header::CONNECTION]);
    let [_, replay] = twice(allowing, 201, HEADERS).await;
    assert_eq!(replay.all("set-cookie"), ["a=1, x", "b=2"]);
    // Hop-by-hop fields not even then.
    let allowing = layer().with_allowed_replay_headers([http::header::CONNECTION]);
    let [_, replay] = twice(allowing, 201, &[("connection", "close")]).await;
    assert!(replay.all("connection").is_empty());
}

#[tokio::test]
async fn row_53_what_is_kept_is_readable_whatever_codings_are_accepted() {
    let text = "to be compressed ".repeat(100);
    let handler = {
        let text = text.clone();
        move |_| {
            respond(
                200,
                &[("content-type", "text/plain"), ("etag", "\"v1\"")],
                text.clone(),
            )
        }
    };
    // Compression outside the layer codes each answer for its own client.
    let mut app = App::answering(layer(), handler.clone());
    app.router = app.router.layer(CompressionLayer::new());
    let gzip = || Call::order().header("accept-encoding", "gzip");
    let first = app.send(gzip()).await;
    assert_eq!(first.header("content-encoding"), Some("gzip"));
    let plain = app.send(Call::order()).await;
    assert_eq!(
        (plain.header("content-encoding"), plain.text()),
        (None, &*text)
    );
    assert_eq!(
        app.send(gzip()).await.header("content-encoding"),
        Some("gzip")
    );
    // Compression inside is not offered any coding.
    let app = App::routing(|_| {
        axum::Router::new()
            .route(
                "/orders",
                axum::routing::post(move || std::future::ready(handler(0))),
            )
            .layer(CompressionLayer::new())
            .layer(layer())
    });
    for call in [gzip(), Call::order(), gzip()] {
        let answer = app.send(call).await;
        assert_eq!(
            (answer.header("content-encoding"), answer.text()),
            (None, &*text)
        );
        assert_eq!(answer.header("etag"), Some("\"v1\""));
    }
    // A handler that codes regardless is replayed as it answered, with what says so.
    const HEADERS: Headers = &[("content-encoding", "gzip"), ("vary", "accept-encoding")];
    let [_, replay] = twice(layer(), 200, HEADERS).await;
    assert_eq!(replay.header("content-encoding"), Some("gzip"));
    assert_eq!(replay.header("vary"), Some("accept-encoding"));
}

#[tokio::test]
async fn row_54_the_lookup_comes_before_preconditions() {
    use axum::Router;
    use axum::routing::patch;
    // Answers 412 once the order is past "v1", as it is after the first execution.
    let app = App::routing(|execs| {
        let execs = execs.clone();
        let handler = move || {
            let n = execs.add();
            async move { respond(if n == 1 { 200 } else { 412 }, &[("etag", "\"v2\"")], "") }
        };
        Router::new()
            .route("/orders/1", patch(handler))
            .layer(layer())
    });
    let call = || {
        Call::new(Method::PATCH, "/orders/1")
            .key(K)
            .header("if-match", "\"v1\"")
    };
    let first = app.send(call()).await;
    first.assert_first(200);
    app.send(call()).await.assert_replay_of(&first);
}

#[tokio::test]
async fn row_55_trailers_are_replayed_and_never_become_headers() {
    let app = App::answering(layer(), |_| {
        let (mut sender, body) = Channel::<Bytes>::new(2);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("1"));
        sender
            .try_send(Frame::data(Bytes::from_static(b"body")))
            .unwrap();
        sender.try_send(Frame::trailers(trailers)).unwrap();
        respond(201, &[("trailer", "x-sum")], Body::new(body))
    });
    let first = app.send(Call::order()).await;
    assert_eq!(first.trailers.as_ref().unwrap()["x-sum"], "1");
    let replay = app.send(Call::order()).await;
    replay.assert_replay_of(&first);
    assert_eq!(replay.trailers, first.trailers);
    assert!(replay.header("x-sum").is_none());
}

#[tokio::test]
async fn row_56_redirects_are_replayed_as_they_are() {
    for status in [301, 302, 303, 307, 308] {
        let [_, replay] = twice(layer(), status, &[("location", "/elsewhere")]).await;
        assert_eq!(replay.header("location"), Some("/elsewhere"));
    }
}

/// The first client gets everything, retries get what was kept, and nothing runs again.
async fn assert_omitted(app: &App, whole: &str) {
    let first = app.send(Call::order()).await;
    first.assert_first(200);
    assert_eq!(first.text(), whole);
    assert!(first.header("idempotency-body-omitted").is_none());
    for _ in 0..2 {
        let replay = app.send(Call::order()).await;
        assert_eq!((replay.status, replay.body.len()), (200, 0));
        assert!(replay.is_replay());
        assert_eq!(replay.header("idempotency-body-omitted"), Some("true"));
        assert_eq!(replay.header("x-own"), Some("kept"));
        assert_eq!(replay.header("content-type"), None);
        assert_length(&replay);
    }
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_57_large_answers_and_streams_never_run_again() {
    const PLAIN: Headers = &[("content-type", "text/plain"), ("x-own", "kept")];
    const EVENTS: Headers = &[
        ("content-type", "text/event-stream; charset=utf-8"),
        ("x-own", "kept"),
    ];
    let limited = || layer().with_max_response_body(8);
    // Known to be too large; found to be while it is read; a stream.
    let known = App::answering(limited(), |_| respond(200, PLAIN, "123456789"));
    assert_omitted(&known, "123456789").await;
    let found = App::answering(limited(), |_| {
        respond(200, PLAIN, pieces(&["1234", "5678", "9"]))
    });
    assert_omitted(&found, "123456789").await;
    let events = App::answering(layer(), |_| respond(200, EVENTS, pieces(&["data: 1\n\n"])));
    assert_omitted(&events, "data: 1\n\n").await;
    // Exactly the limit is kept.
    let app = App::answering(limited(), |_| {
        respond(200, PLAIN, pieces(&["1234", "5678"]))
    });
    let first = app.send(Call::order()).await;
    app.send(Call::order()).await.assert_replay_of(&first);
}

/// The first client's answer, of which nothing was read yet.
async fn unread(app: &App) -> Response {
    let answered = app.router.clone().oneshot(Call::order().request()).await;
    answered.unwrap()
}

#[track_caller]
fn assert_omits(replay: &Answer) {
    assert!(replay.is_replay(), "{replay:?}");
    assert_eq!(replay.header("idempotency-body-omitted"), Some("true"));
}

/// A handler that streams for ten seconds, in 100 pieces. Counts those that were taken.
fn streaming(layer: IdempotencyLayer<Memory>) -> (App, Execs) {
    let made = Execs::default();
    let making = made.clone();
    let app = App::answering(layer, move |_| {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let made = making.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if sender.send_data(Bytes::from_static(b"x")).await.is_err() {
                    return;
                }
                made.add();
            }
        });
        respond(
            200,
            &[("content-type", "text/event-stream")],
            Body::new(body),
        )
    });
    (app, made)
}

#[tokio::test(start_paused = true)]
async fn row_57_a_stream_comes_as_it_is_made_and_is_recorded_before() {
    let (app, made) = streaming(layer());
    let began = Instant::now();
    let mut body = unread(&app).await.into_body();
    assert_omits(&app.send(Call::order()).await);
    assert_eq!((began.elapsed(), made.count()), (Duration::ZERO, 0));
    for n in 1..=100 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "x");
        assert_eq!(made.count(), n);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(app.execs(), 1);
}

/// The rest of the body never comes, and nobody reads what is there.
#[tokio::test(start_paused = true)]
async fn row_57_a_client_that_does_not_read_holds_up_no_retry() {
    for kind in ["text/plain", "text/event-stream"] {
        let (rest, mut resting) = tokio::sync::mpsc::unbounded_channel();
        let app = App::answering(layer().with_max_response_body(8), move |_| {
            let (mut sender, body) = Channel::<Bytes>::new(2);
            let piece = Bytes::from_static(b"123456789");
            sender.try_send(Frame::data(piece)).unwrap();
            rest.send(sender).unwrap();
            respond(200, &[("content-type", kind)], Body::new(body))
        });
        let began = Instant::now();
        let first = unread(&app).await;
        assert!(first.headers().get("idempotency-body-omitted").is_none());
        for _ in 0..2 {
            assert_omits(&app.send(Call::order()).await);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(app.execs(), 1);
        // It loses nothing.
        let mut rest = resting.recv().await.unwrap();
        rest.send_data(Bytes::from_static(b"0")).await.unwrap();
        drop(rest);
        let first = Answer::of(first).await;
        first.assert_first(200);
        assert_eq!(first.text(), "1234567890");
    }
}

/// R11: the handler may do its work while it writes.
#[tokio::test(start_paused = true)]
async fn row_57_a_stream_is_read_to_its_end_without_its_client() {
    for read in [0, 3] {
        let (app, made) = streaming(layer());
        let mut body = unread(&app).await.into_body();
        for _ in 0..read {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert_omits(&app.send(Call::order()).await);
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!((made.count(), app.execs()), (100, 1));
    }
}

/// As for every attempt whose client went away.
#[tokio::test(start_paused = true)]
async fn row_57_a_drain_waits_for_a_stream_without_its_client() {
    let layer = layer();
    let (app, made) = streaming(layer.clone());
    drop(unread(&app).await);
    layer.drain().await;
    assert_eq!(made.count(), 100);
}

#[tokio::test]
async fn row_57_a_body_that_breaks_is_passed_on_and_not_run_again() {
    for limit in [100, 2] {
        let app = App::answering(layer().with_max_response_body(limit), |_| {
            let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(2);
            sender
                .try_send(Frame::data(Bytes::from_static(b"part")))
                .unwrap();
            sender.abort(std::io::Error::other("the disk broke"));
            respond(201, &[], Body::new(body))
        });
        let response = unread(&app).await;
        assert_eq!(response.status(), 201);
        let mut body = response.into_body();
        let mut read = 0;
        let error = loop {
            match body.frame().await.expect("an error comes before the end") {
                Ok(frame) => read += frame.into_data().unwrap().len(),
                Err(error) => break error,
            }
        };
        assert!(read <= 4, "{read}");
        assert_eq!(error.to_string(), "the disk broke");
        let replay = app.send(Call::order()).await;
        assert_eq!(
            (replay.status, replay.header("idempotency-body-omitted")),
            (201, Some("true"))
        );
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn row_58_a_replay_is_an_unchanging_snapshot() {
    let app = App::orders(layer());
    let first = app.send(Call::order()).await;
    // The service goes on; the answer does not.
    app.send(Call::post("/orders").key("\"other\""))
        .await
        .assert_first(201);
    app.send(Call::order()).await.assert_replay_of(&first);
}

#[tokio::test]
async fn access_control_allow_origin_is_replayed_to_its_own_origin_only() {
    const ONE: Headers = &[
        ("access-control-allow-origin", "https://a.example"),
        ("access-control-allow-credentials", "true"),
    ];
    const ANY: Headers = &[("access-control-allow-origin", "*")];
    for (headers, origin, replayed) in [
        (ONE, "https://a.example", Some("https://a.example")),
        (ONE, "https://b.example", None),
        (ANY, "https://b.example", Some("*")),
    ] {
        let app = App::answering(layer(), move |_| respond(200, headers, ""));
        app.send(Call::order().header("origin", "https://a.example"))
            .await
            .assert_first(200);
        let replay = app.send(Call::order().header("origin", origin)).await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("access-control-allow-origin"), replayed);
        let exposed = replay.all("access-control-expose-headers");
        assert_eq!(exposed.is_empty(), replayed.is_none());
    }
}
