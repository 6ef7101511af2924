//! What the upstream answers that is not as it should be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Reply;
use super::case::{self, Case, Outcome, Want};
use super::http1;
use crate::support::{Gateway, read_request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_of_the_upstream_makes_it_run_twice() {
    let cases = case::read(&[include_str!("answers.cases")]);
    let answers: HashMap<String, Vec<u8>> = cases
        .iter()
        .map(|case| (case.name.clone(), case.bytes()))
        .collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let runs = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let (answers, counts) = (Arc::new(answers), Arc::clone(&runs));
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(answer(stream, Arc::clone(&answers), Arc::clone(&counts)));
        }
    });
    let gateway = Gateway::start(upstream, &["--store", "memory:"]);
    let mut running = JoinSet::new();
    for case in cases {
        let address = gateway.address;
        running.spawn(async move {
            let mut replies = Vec::new();
            for _ in 0..3 {
                let stream = TcpStream::connect(address).await.unwrap();
                let (reader, mut writer) = stream.into_split();
                let request = format!(
                    "POST /{0} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {0}\r\nContent-Length: 0\r\n\r\n",
                    case.name
                );
                writer.write_all(request.as_bytes()).await.unwrap();
                replies.push(http1::read(&mut BufReader::new(reader), false).await.ok());
            }
            (case, replies)
        });
    }
    let mut wrong = Vec::new();
    while let Some(done) = running.join_next().await {
        let (case, replies) = done.unwrap();
        let times = runs.lock().unwrap().get(&case.name).copied();
        if times != Some(1) || !is_as_expected(&case, &replies) {
            wrong.push(format!("{}: ran {times:?}, {replies:?}", case.name));
        }
    }
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    server.abort();
}

/// Sends the answer that the request's path names, and closes.
async fn answer(
    mut stream: TcpStream,
    answers: Arc<HashMap<String, Vec<u8>>>,
    runs: Arc<Mutex<HashMap<String, usize>>>,
) {
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    let name = request.split([' ', '/']).nth(2).unwrap().to_owned();
    let answer = &answers[&name];
    *runs.lock().unwrap().entry(name).or_default() += 1;
    // The gateway may have enough of it before all is sent.
    stream.write_all(answer).await.ok();
    stream.shutdown().await.ok();
}

fn is_as_expected(case: &Case, replies: &[Option<Reply>]) -> bool {
    let (first, later) = replies.split_first().unwrap();
    let has_body = |reply: &Reply| {
        let is = |want: &Want| !matches!(want, Want::Body(body) if *body != reply.body.as_bytes());
        case.wants.iter().all(is)
    };
    let is = |reply: &Option<Reply>, status: u16, replayed: bool| {
        reply.as_ref().is_some_and(|reply| {
            (reply.status, reply.replayed) == (status, Some(replayed)) && has_body(reply)
        })
    };
    match case.outcomes[..] {
        [Outcome::Kept] => is(first, 201, false) && later.iter().all(|reply| is(reply, 201, true)),
        [Outcome::Omitted] => first.is_none() && later.iter().all(|reply| is(reply, 201, true)),
        [Outcome::Unknown] => {
            is(first, 502, false) && later.iter().all(|reply| is(reply, 409, false))
        }
        _ => panic!("{case:?}"),
    }
}
