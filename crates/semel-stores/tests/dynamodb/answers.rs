//! What DynamoDB may answer that the emulator does not: throttling, refusals, nothing at all.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use semel::record::Change;
use semel::store::{Fence, Result, Token};
use semel::versioned::{Expected, NaturalKey, VersionedStore as _, WriteError};
use semel::{FinishedStep, StoreErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::servers::did_not_happen;

#[derive(Debug, Clone)]
enum Answer {
    Error(u16, &'static str, &'static str),
    /// The condition does not hold; the item as it is.
    Is(String),
    Text(&'static str),
    Found(String),
    Cut,
    Never,
}

use Answer::{Cut, Error, Found, Is, Never, Text};

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
        let asked = String::from_utf8_lossy(&received[end..end + length]).into_owned();
        received.drain(..end + length);
        let answer = if head.contains(".getitem") && asked.contains(r#"{"S":"semel"}"#) {
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
            Is(item) => {
                let failed = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
                let body = format!(r#"{{"__type":"{failed}","message":"no","Item":{item}}}"#);
                (400, body)
            }
            Text(body) => (200, body.to_owned()),
            Found(body) => (200, body),
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

/// A store on a server that answers so.
async fn answered(answers: &[Answer]) -> (Canned, DynamoDbStore) {
    let server = canned(answers).await;
    let url = format!(
        "dynamodb://table?endpoint=http://{}&timeout=2s",
        server.address
    );
    let options = DynamoDbOptions::from_url(&url).unwrap();
    (server, options.open().await.unwrap())
}

/// Claims once from a server that answers so; with how many requests it took.
async fn claimed(answers: &[Answer]) -> (Result<Claim>, u64) {
    let (server, store) = answered(answers).await;
    let (key, mine) = (identity("secret-key-of-mine"), request(LONG, OnLost::Hold));
    let answer = store.claim(&key, &mine).await;
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
    for (code, said) in [
        ("ThrottlingException", StoreErrorKind::NotApplied),
        ("RequestLimitExceeded", StoreErrorKind::NotApplied),
        ("TransactionConflictException", StoreErrorKind::Contended),
    ] {
        let (kind, message, _) = failed(&[Error(400, code, "later")]).await;
        assert_eq!(kind, said, "{message}");
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

/// The first sending of a step is lost and its repetition meets the record as it is: what ends the step then
/// says nothing of the first.
#[tokio::test]
async fn an_error_in_a_later_round_leaves_the_first_in_doubt() {
    let token = Token {
        fence: Fence(7),
        nonce: Nonce::from_bytes([0; 16]),
    };
    let item = |state: &str| {
        let (nonce, fingerprint) = ("A".repeat(22) + "==", "A".repeat(44));
        format!(
            r#"{{"state":{{"S":"{state}"}},"fence":{{"N":"7"}},"nonce":{{"B":"{nonce}"}},"renewals":{{"N":"0"}},
                "attempt":{{"N":"1"}},"fingerprint":{{"B":"{fingerprint}"}},"lease_us":{{"N":"9000000000"}},
                "lease_until_us":{{"N":"0"}},"created_us":{{"N":"0"}},"claimed_us":{{"N":"0"}}}}"#
        )
    };
    let step = FinishedStep::new("charge", b"").unwrap();
    let resolution = did_not_happen(token.fence);
    for (change, state) in [
        (Change::renew(&token, LONG), "in-flight"),
        (Change::keep_step(&token, &step, 0), "in-flight"),
        (Change::abandon(&token), "in-flight"),
        (Change::complete(&token, &outcome(), DAY), "unknown"),
        (Change::resolve(&resolution), "unknown"),
    ] {
        let found = item(state);
        let is_read = matches!(change, Change::Resolve(_));
        let read = is_read.then(|| Found(format!(r#"{{"Item":{found}}}"#)));
        let met = Is(found);
        for last in [met.clone(), THROTTLED] {
            let answers = read.clone().into_iter().chain([Cut, met.clone(), last]);
            let (_server, store) = answered(&answers.collect::<Vec<_>>()).await;
            let error = store.change(identity("one").digest(), &change).await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unknown, "{change:?}: {error}");
        }
    }
    // A versioned record that was deleted, and written again at once.
    let found = r#"{"version":{"N":"1"},"nonce":{"B":"AAAAAAAAAAAAAAAAAAAAAA=="}}"#;
    let (_server, store) = answered(&[Cut, Is(found.into()), THROTTLED]).await;
    let key = NaturalKey::new(Scope::new(["test"]), "one");
    let written = store.write(&key, Expected::Absent, "1".into()).await;
    let Err(WriteError::Store(error)) = written else {
        panic!("{written:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unknown, "{error}");
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
