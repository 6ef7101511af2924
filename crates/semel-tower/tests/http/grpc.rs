//! gRPC: what an answer means stands behind its body.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::channel::Channel;

use crate::support::{App, Call, layer};

const MESSAGE: Bytes = Bytes::from_static(b"\0\0\0\0\x05apple");

/// A message and these fields behind it.
fn answer(trailers: &[(&'static str, String)]) -> Response {
    let (mut sender, body) = Channel::<Bytes>::new(2);
    sender.try_send(Frame::data(MESSAGE)).unwrap();
    let mut fields = HeaderMap::new();
    for (name, value) in trailers {
        fields.insert(*name, value.parse().unwrap());
    }
    if !fields.is_empty() {
        sender.try_send(Frame::trailers(fields)).unwrap();
    }
    grpc(Body::new(body))
}

fn grpc(body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc+proto");
    response.headers_mut().insert("content-type", kind);
    response
}

fn status(status: u16) -> Response {
    answer(&[
        ("grpc-status", status.to_string()),
        ("grpc-message", format!("status {status}")),
    ])
}

/// Answers `status` first, then 0.
fn first(code: u16) -> App {
    App::answering(layer(), move |n| status(if n == 1 { code } else { 0 }))
}

fn call() -> Call {
    Call::order().content_type("application/grpc+proto")
}

#[tokio::test]
async fn success_and_lasting_failures_are_replayed_with_their_trailers() {
    for code in [0, 5, 6, 9] {
        let app = first(code);
        let answer = app.send(call()).await;
        answer.assert_first(200);
        let trailers = answer.trailers.as_ref().unwrap();
        assert_eq!(trailers["grpc-status"], code.to_string());
        let replay = app.send(call()).await;
        replay.assert_replay_of(&answer);
        assert_eq!(replay.body, MESSAGE);
        assert_eq!(replay.trailers, answer.trailers, "{code}");
        assert_eq!(replay.header("grpc-status"), None);
        assert_eq!(
            replay.header("content-type"),
            Some("application/grpc+proto")
        );
        assert_eq!(app.execs(), 1);
    }
}

#[tokio::test]
async fn a_failure_that_did_nothing_is_released() {
    for code in [2, 3, 7, 8, 10, 11, 12, 13, 14, 15, 16] {
        let app = first(code);
        let answer = app.send(call()).await;
        answer.assert_first(200);
        assert_eq!(answer.trailers.unwrap()["grpc-status"], code.to_string());
        let second = app.send(call()).await;
        second.assert_first(200);
        assert_eq!(second.trailers.as_ref().unwrap()["grpc-status"], "0");
        app.send(call()).await.assert_replay_of(&second);
        assert_eq!(app.execs(), 2);
    }
}

#[tokio::test]
async fn a_deadline_a_cancellation_and_no_status_at_all_are_unknown() {
    for trailers in [
        vec![("grpc-status", "4".to_owned())],
        vec![("grpc-status", "1".to_owned())],
        vec![("x-sum", "1".to_owned())],
        vec![],
    ] {
        let app = App::answering(layer(), move |_| answer(&trailers));
        let first = app.send(call()).await;
        first.assert_first(200);
        assert_eq!(first.body, MESSAGE);
        for _ in 0..2 {
            let second = app.send(call()).await;
            second.assert_problem(409, "outcome-unknown");
        }
        assert_eq!(app.execs(), 1);
    }
}

/// The status may stand in the head, where there is no message.
#[tokio::test]
async fn an_answer_without_a_message_counts_by_its_head() {
    let trailers_only = |code: u16| {
        App::answering(layer(), move |n| {
            let code = if n == 1 { code } else { 0 };
            let mut response = grpc(Body::empty());
            let code = HeaderValue::from(code);
            response.headers_mut().insert("grpc-status", code);
            response
        })
    };
    let app = trailers_only(5);
    let first = app.send(call()).await;
    let replay = app.send(call()).await;
    replay.assert_replay_of(&first);
    assert_eq!(replay.header("grpc-status"), Some("5"));
    let app = trailers_only(14);
    app.send(call()).await.assert_first(200);
    let second = app.send(call()).await;
    second.assert_first(200);
    assert_eq!(second.header("grpc-status"), Some("0"));
    let app = trailers_only(4);
    app.send(call()).await.assert_first(200);
    let second = app.send(call()).await;
    second.assert_problem(409, "outcome-unknown");
}

#[tokio::test]
async fn trailers_too_large_to_keep_omit_the_answer_and_it_never_runs_again() {
    let app = App::answering(layer(), |_| {
        answer(&[
            ("grpc-status", "0".to_owned()),
            ("x-large", "x".repeat(8 << 10)),
        ])
    });
    let first = app.send(call()).await;
    first.assert_first(200);
    assert_eq!(first.body, MESSAGE);
    assert_eq!(first.trailers.unwrap()["x-large"].len(), 8 << 10);
    for _ in 0..2 {
        let replay = app.send(call()).await;
        assert!(replay.is_replay());
        assert_eq!(replay.header("idempotency-body-omitted"), Some("true"));
        assert_eq!((replay.status, replay.body.len()), (200, 0));
        assert!(replay.trailers.is_none());
    }
    assert_eq!(app.execs(), 1);
    // What says that nothing happened is released, however large.
    let app = App::answering(layer(), |_| {
        answer(&[
            ("grpc-status", "14".to_owned()),
            ("x-large", "x".repeat(8 << 10)),
        ])
    });
    for _ in 0..2 {
        app.send(call()).await.assert_first(200);
    }
    assert_eq!(app.execs(), 2);
}
