//! What DynamoDB may answer that the emulator does not: throttling, refusals, nothing at all.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use semel::StoreErrorKind;
use semel::store::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[derive(Debug, Clone)]
enum Answer {
    Error(u16, &'static str, &'static str),
    Text(&'static str),
    Cut,
    Never,
}

use Answer::{Cut, Error, Never, Text};

/// A server that answers requests for the table's version, and all others from a list; when the
/// list is at its end, with its last answer.
struct Canned {
    address: SocketAddr,
    taken: Arc<Mutex<u64>>,
}

async fn canned(answers: &[Answer]) -> Canned {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = Arc::new(Mutex::new(0));
    let left: Arc<Mutex<VecDeque<Answer>>> =
        Arc::new(Mutex::new(answers.iter().cloned().collect()));
    let counted = taken.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (left, taken) = (left.clone(), counted.clone());
            tokio::spawn(async move { connection(stream, &left, &taken).await });
        }
    });
    Canned { address, taken }
}

async fn connection(
    mut stream: TcpStream,
    left: &Mutex<VecDeque<Answer>>,
    taken: &Mutex<u64>,
) -> Option<()> {
    let mut received = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = received.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut received).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |value| value.trim().parse().unwrap());
        while received.len() < end + length {
            stream.read_buf(&mut received).await.ok()?;
        }
        received.drain(..end + length);
        let answer = if head.contains(".getitem") {
            Text(r#"{"Item":{"pk":{"S":"semel"},"schema_version":{"N":"2"}}}"#)
        } else {
            *taken.lock() += 1;
            let mut left = left.lock();
            if left.len() > 1 {
                left.pop_front()?
            } else {
                left.front()?.clone()
            }
        };
        let (status, body) = match answer {
            Error(status, code, message) => (
                status,
                format!(
                    r##"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"##
                ),
            ),
            Text(body) => (200, body.to_owned()),
            Cut => return None,
            Never => std::future::pending().await,
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// Claims once from a server that answers so; with how many requests it took.
async fn claimed(answers: &[Answer]) -> (Result<Claim>, u64) {
    let server = canned(answers).await;
    let url = format!(
        "dynamodb://table?endpoint=http://{}&timeout=2s",
        server.address
    );
    let store = DynamoDbOptions::from_url(&url)
        .unwrap()
        .open()
        .await
        .unwrap();
    let answer = store
        .claim(
            &identity("secret-key-of-mine"),
            &request(LONG, OnLost::Hold),
        )
        .await;
    let taken = *server.taken.lock();
    (answer, taken)
}

async fn failed(answers: &[Answer]) -> (StoreErrorKind, String, u64) {
    let (answer, taken) = claimed(answers).await;
    let error = answer.unwrap_err();
    let message = error.to_string();
    assert!(!message.contains("secret-key"), "{message}");
    (error.kind(), message, taken)
}

const THROTTLED: Answer = Error(400, "ProvisionedThroughputExceededException", "slow down");
const DENIED: Answer = Error(400, "AccessDeniedException", "user x may not UpdateItem");
const BROKEN: Answer = Error(500, "InternalServerError", "oops");

#[tokio::test]
async fn throttling_is_waited_out_and_then_said() {
    let (kind, message, taken) = failed(&[THROTTLED]).await;
    assert_eq!(kind, StoreErrorKind::NotApplied, "{message}");
    assert!(message.contains("takes no more requests"), "{message}");
    assert_eq!(taken, 4);
    for code in [
        "ThrottlingException",
        "RequestLimitExceeded",
        "TransactionConflictException",
    ] {
        let (kind, message, _) = failed(&[Error(400, code, "later")]).await;
        assert_eq!(kind, StoreErrorKind::NotApplied, "{message}");
    }
}

#[tokio::test]
async fn a_clock_that_is_far_off_is_refused_by_name() {
    let expired = "Signature expired: 20260101T000000Z is now earlier than 20260101T100000Z";
    let (kind, message, taken) = failed(&[Error(400, "InvalidSignatureException", expired)]).await;
    assert_eq!(kind, StoreErrorKind::NotApplied, "{message}");
    assert!(message.contains("clock"), "{message}");
    assert_eq!(taken, 4, "a process that stood still goes on");
}

#[tokio::test]
async fn an_attempt_that_was_refused_says_nothing_of_one_that_was_lost() {
    for lost in [BROKEN, Cut, Text("not json")] {
        for then in [THROTTLED, DENIED] {
            let (kind, message, taken) = failed(&[lost.clone(), then]).await;
            assert_eq!(kind, StoreErrorKind::Unknown, "{lost:?}: {message}");
            assert!(taken >= 2);
        }
    }
}

#[tokio::test]
async fn a_lost_answer_is_unknown() {
    for lost in [BROKEN, Cut, Never, Text("not json")] {
        let (kind, message, _) = failed(std::slice::from_ref(&lost)).await;
        assert_eq!(kind, StoreErrorKind::Unknown, "{lost:?}: {message}");
    }
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    for (answer, says) in [
        (DENIED, "lists the permissions"),
        (
            Error(400, "ResourceNotFoundException", "no"),
            "semel migrate",
        ),
        (
            Error(400, "UnrecognizedClientException", "bad token"),
            "credentials",
        ),
        (Error(400, "ExpiredTokenException", "old"), "credentials"),
        (
            Error(400, "ValidationException", "bad expression"),
            "bad expression",
        ),
    ] {
        let (kind, message, taken) = failed(std::slice::from_ref(&answer)).await;
        assert_eq!(kind, StoreErrorKind::Config, "{answer:?}: {message}");
        assert!(message.contains(says), "{message}");
        assert_eq!(taken, 1, "not asked again: {answer:?}");
    }
    let large = "Item size to update has exceeded the maximum allowed size";
    let (kind, message, _) = failed(&[Error(400, "ValidationException", large)]).await;
    assert_eq!(kind, StoreErrorKind::TooLarge, "{message}");
}

#[tokio::test]
async fn an_item_that_is_not_semels_is_corrupt() {
    let odd = r#"{"Attributes":{"pk":{"S":"x"},"state":{"S":"in-flight"}}}"#;
    let (kind, message, _) = failed(&[Text(odd)]).await;
    assert_eq!(kind, StoreErrorKind::Corrupt, "{message}");
    assert!(message.contains("attribute `"), "{message}");
}
