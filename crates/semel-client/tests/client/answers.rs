//! What is done with bodies of answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use semel_client::decide::{Effect, Reason};
use semel_client::{Answer, AnswerInfo, Error, ErrorKind, Retry};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

use crate::support::order;

type Frames = Vec<Result<Frame<Bytes>, BoxError>>;
/// The head of an answer, and what makes its body.
type Made = (Response<()>, fn() -> Frames);
type Streamed = http_body_util::combinators::BoxBody<Bytes, BoxError>;

fn data(bytes: &'static [u8]) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

/// Sends through a service that answers with each of these in turn, and counts its requests.
async fn sent(
    retry: &Retry,
    answers: Vec<Made>,
) -> (Result<Response<Answer<Streamed>>, Error>, usize) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let answers = Arc::new(answers);
    let service = service_fn(move |_: Request<Full<Bytes>>| {
        let n = counted.fetch_add(1, Ordering::SeqCst);
        let (head, frames) = &answers[n.min(answers.len() - 1)];
        let mut answer =
            Response::new(StreamBody::new(futures_util::stream::iter(frames())).boxed());
        *answer.status_mut() = head.status();
        *answer.headers_mut() = head.headers().clone();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let answer = retry.layer(service).oneshot(order()).await;
    (answer, count.load(Ordering::SeqCst))
}

fn head(status: u16, fields: &[(&'static str, &'static str)]) -> Response<()> {
    let head = Response::builder().status(status);
    let head = fields
        .iter()
        .fold(head, |head, (name, value)| head.header(*name, *value));
    head.body(()).unwrap()
}

fn broken() -> Frames {
    vec![data(b"{\"id\""), Err("the connection broke".into())]
}

fn whole() -> Frames {
    vec![data(b"{\"id\""), data(b":1}")]
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_asked_for_again() {
    let replay = head(201, &[("idempotency-replayed", "true")]);
    let answers = vec![(head(201, &[]), broken as fn() -> Frames), (replay, whole)];
    let (answer, count) = sent(&Retry::new(), answers).await;
    let answer = answer.unwrap();
    assert_eq!(count, 2);
    assert!(answer.extensions().get::<AnswerInfo>().unwrap().replayed);
    assert_eq!(
        answer.into_body().collect().await.unwrap().to_bytes(),
        "{\"id\":1}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_key_a_lost_answer_is_reported() {
    let answers = vec![(head(201, &[]), broken as fn() -> Frames)];
    let (answer, count) = sent(&Retry::new().without_keys(), answers).await;
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::AnswerLost));
    assert_eq!((error.effect(), count), (Effect::Happened, 1));
}

#[tokio::test(start_paused = true)]
async fn long_answers_and_streams_of_events_are_handed_on() {
    let retry = Retry::new().with_max_answer(6);
    let long = vec![(head(200, &[]), whole as fn() -> Frames)];
    let events = [("content-type", "text/event-stream; charset=utf-8")];
    let stream = vec![(head(200, &events), whole as fn() -> Frames)];
    for answers in [long, stream] {
        let (answer, count) = sent(&retry, answers).await;
        let body = answer.unwrap().into_body().collect().await.unwrap();
        assert_eq!((body.to_bytes(), count), (Bytes::from("{\"id\":1}"), 1));
    }
    // What breaks off later is the reader's to see.
    let answers = vec![(head(200, &events), broken as fn() -> Frames)];
    let (answer, count) = sent(&retry, answers).await;
    assert!(answer.unwrap().into_body().collect().await.is_err());
    assert_eq!(count, 1);
}

#[tokio::test(start_paused = true)]
async fn the_code_of_a_refusal_is_read_whatever_the_limit() {
    let json = [("content-type", "application/json")];
    let mismatch = || vec![data(br#"{"code":"mismatch"}"#)];
    let (answer, count) = sent(
        &Retry::new().with_max_answer(0),
        vec![(head(422, &json), mismatch)],
    )
    .await;
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Mismatch));
    assert_eq!(count, 1);
}

#[tokio::test(start_paused = true)]
async fn trailers_and_lengths_are_kept() {
    let frames = || {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        vec![data(b"ab"), Ok(Frame::trailers(trailers))]
    };
    let (answer, _) = sent(&Retry::new(), vec![(head(200, &[]), frames)]).await;
    let body = answer.unwrap().into_body();
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(2));
    let body = body.collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), "ab");
}

#[tokio::test(start_paused = true)]
async fn what_the_answer_says_of_itself_is_told() {
    let fields = [
        ("idempotency-replayed", "true"),
        ("idempotency-body-omitted", "true"),
    ];
    let (answer, _) = sent(&Retry::new(), vec![(head(201, &fields), Vec::new)]).await;
    let answer = answer.unwrap();
    let info = answer.extensions().get::<AnswerInfo>().unwrap();
    assert!(info.replayed && info.body_omitted && info.protected);
    let fields = [("idempotency-protected", "false")];
    let (answer, _) = sent(&Retry::new(), vec![(head(201, &fields), Vec::new)]).await;
    let answer = answer.unwrap();
    let info = answer.extensions().get::<AnswerInfo>().unwrap();
    assert!(!info.replayed && !info.body_omitted && !info.protected);
}
