//! What clients send, and upstreams answer, that is not as it should be: cases as data, written down
//! in `http1/`, `http2/` and `answers.cases`.

mod answers;
mod case;
mod frames;
mod http1;
mod http2;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::{Gateway, Recorder, Seen, get};
use case::{Case, Outcome, Want};

/// How many cases run at the same time.
const AT_ONCE: usize = 32;
/// Less than the gateway's own limits on time, 30 s, and much more than any case takes.
const LONG: Duration = Duration::from_secs(25);

const HTTP_1: [&str; 8] = [
    include_str!("http1/chunks.cases"),
    include_str!("http1/connection.cases"),
    include_str!("http1/fields.cases"),
    include_str!("http1/host.cases"),
    include_str!("http1/keys.cases"),
    include_str!("http1/length.cases"),
    include_str!("http1/line.cases"),
    include_str!("http1/requests.cases"),
];
const HTTP_2: [&str; 1] = [include_str!("http2/streams.cases")];

/// An answer, as far as it matters here.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Whether it is marked as a replay, where that can be seen.
    pub(crate) replayed: Option<bool>,
    pub(crate) body: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_http_1_is_as_expected() {
    let cases = case::read(&HTTP_1);
    assert!(cases.len() >= 800, "{}", cases.len());
    run(cases, Version::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_http_2_is_as_expected() {
    let cases = case::read(&HTTP_2);
    assert!(cases.len() >= 150, "{}", cases.len());
    run(cases, Version::Http2).await;
}

#[derive(Clone, Copy)]
enum Version {
    Http1,
    Http2,
}

/// Sends all cases through one gateway, and tells of all that are not as expected.
async fn run(cases: Vec<Case>, version: Version) {
    let upstream = Recorder::start().await;
    let flags = ["--store", "memory:", "--scope-header", "x-account"];
    let gateway = Gateway::start(upstream.address, &flags);
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for case in cases {
        let (room, address) = (Arc::clone(&room), gateway.address);
        running.spawn(async move {
            let _permit = room.acquire().await.unwrap();
            let since = Instant::now();
            let replies = send(&case, address, version).await;
            (case, replies, since.elapsed())
        });
    }
    let mut wrong = Vec::new();
    let mut sent = Vec::new();
    while let Some(done) = running.join_next().await {
        let (case, replies, took) = done.unwrap();
        if took > LONG {
            wrong.push(format!("{}: waited for a time limit", case.name));
        }
        if let Err(reason) = replies.and_then(|replies| check_replies(&case, &replies)) {
            wrong.push(format!("{}: {reason}", case.name));
        }
        sent.push(case);
    }
    let alive = get(gateway.address, "/alive").await;
    assert_eq!((alive.status.as_u16(), alive.text()), (200, "ok"));
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());

    let mut seen: HashMap<&str, Vec<Seen>> = sent
        .iter()
        .map(|case| (case.name.as_str(), Vec::new()))
        .collect();
    for request in upstream.seen() {
        if !request.faults.is_empty() {
            wrong.push(format!("{}: {:?}", request.line, request.faults));
        }
        let of_case = names(&request).find(|name| seen.contains_key(name));
        match of_case.map(str::to_owned) {
            Some(name) if request.complete => seen.get_mut(name.as_str()).unwrap().push(request),
            Some(_) => {}
            None if is_ours(&request) => {}
            None => wrong.push(format!("nobody sent {request:?}")),
        }
    }
    for case in &sent {
        if let Err(reason) = check_upstream(case, &seen[case.name.as_str()]) {
            wrong.push(format!("{}: {reason}", case.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The answers to a case; of all times that it was sent.
async fn send(
    case: &Case,
    address: SocketAddr,
    version: Version,
) -> Result<Vec<Vec<Reply>>, String> {
    let mut replies = Vec::new();
    for _ in 0..case.times() {
        replies.push(match version {
            Version::Http1 => http1::send(case, address).await?,
            Version::Http2 => http2::send(case, address).await?,
        });
    }
    Ok(replies)
}

/// What may be the name of a request's case.
fn names(seen: &Seen) -> impl Iterator<Item = &str> {
    let target = seen.line.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    path.split('/').chain(seen.values("x-case"))
}

/// What this test sends between the cases, and what floods are made of.
fn is_ours(seen: &Seen) -> bool {
    ["GET /alive ", "GET /probe-", "POST /flood "]
        .iter()
        .any(|begin| seen.line.starts_with(begin))
}

fn check_replies(case: &Case, replies: &[Vec<Reply>]) -> Result<(), String> {
    for (time, replies) in replies.iter().enumerate() {
        for (outcome, reply) in case.outcomes.iter().zip(replies) {
            let (status, replayed) = match outcome {
                Outcome::Once => (200, time > 0),
                Outcome::Refused(status) => (*status, false),
                _ => (200, false),
            };
            if reply.status != status || reply.replayed.is_some_and(|mark| mark != replayed) {
                return Err(format!("answered {reply:?}"));
            }
            for want in &case.wants {
                match want {
                    Want::Problem(code)
                        if !reply.body.contains(&format!("\"code\":\"{code}\"")) =>
                    {
                        return Err(format!("answered {reply:?}"));
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

fn check_upstream(case: &Case, seen: &[Seen]) -> Result<(), String> {
    let runs = |outcome: &Outcome| match outcome {
        Outcome::Plain => case.times(),
        Outcome::Once => 1,
        _ => 0,
    };
    let expected: usize = case.outcomes.iter().map(runs).sum();
    if seen.len() != expected {
        return Err(format!(
            "the upstream got {} in place of {expected}: {seen:?}",
            seen.len()
        ));
    }
    let keyed = case.outcomes.contains(&Outcome::Once);
    for seen in seen {
        if seen.values("idempotency-fence").len() != usize::from(keyed) {
            return Err(format!("the upstream got {seen:?}"));
        }
        for want in &case.wants {
            let fulfilled = match want {
                Want::Body(body) => seen.body == *body,
                Want::Target(target) => seen.line.split(' ').nth(1) == Some(target),
                Want::Field(name, value) => seen.values(name) == [value.as_str()],
                Want::No(name) => {
                    seen.values(name).is_empty() && seen.trailers.iter().all(|(n, _)| n != name)
                }
                Want::Trailer(name, value) => {
                    seen.trailers.contains(&(name.clone(), value.clone()))
                }
                Want::Problem(_) | Want::Closes => true,
            };
            if !fulfilled {
                return Err(format!("wanted {want:?}, and the upstream got {seen:?}"));
            }
        }
    }
    Ok(())
}
