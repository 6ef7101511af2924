//! The proxy, before a server that answers each line with the same line.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_testkit::proxy::{Fault, Proxy};

/// Counts the lines that reached it.
fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = lines.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, lines) = (stream.unwrap(), counted.clone());
            std::thread::spawn(move || {
                let reader = BufReader::new(stream.try_clone().unwrap());
                for line in reader.lines().map_while(Result::ok) {
                    lines.fetch_add(1, Ordering::SeqCst);
                    if stream.write_all(format!("{line}\n").as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, lines)
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        Self(stream)
    }

    /// What comes back within a moment: at most as much as was sent.
    fn ask(&mut self, line: &str) -> std::io::Result<String> {
        self.0.write_all(line.as_bytes())?;
        self.read(line.len())
    }

    fn read(&mut self, length: usize) -> std::io::Result<String> {
        let mut answer = vec![0; length];
        let mut read = 0;
        while read < answer.len() {
            match self.0.read(&mut answer[read..])? {
                0 => break,
                more => read += more,
            }
        }
        answer.truncate(read);
        Ok(String::from_utf8(answer).unwrap())
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !what() {
        assert!(Instant::now() < end, "did not come to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn counts_round_trips_not_packets() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    for trips in 1..=3 {
        assert_eq!(client.ask("question\n").unwrap(), "question\n");
        assert_eq!(proxy.round_trips(), trips);
    }
    assert_eq!(proxy.connections(), 1);
    assert_eq!(proxy.hits(), 0);
}

#[test]
fn answers_are_swallowed_after_the_request_went_on() {
    let (server, lines) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::SwallowAnswers);
    client.ask("question\n").unwrap_err();
    wait_for(|| lines.load(Ordering::SeqCst) == 1);
    proxy.set(Fault::None);
    assert_eq!(client.ask("again\n").unwrap(), "again\n");
    assert!(proxy.hits() > 0);
}

#[test]
fn connections_are_cut_when_the_answer_comes_whole_or_half() {
    let (server, lines) = echo();
    let proxy = Proxy::start(server).unwrap();
    for (fault, left) in [(Fault::CutAnswers, ""), (Fault::HalveAnswers, "1234")] {
        let mut client = Client::connect(&proxy);
        proxy.set(fault);
        assert_eq!(client.ask("1234567\n").unwrap(), left);
    }
    assert_eq!(lines.load(Ordering::SeqCst), 2);
}

#[test]
fn a_fault_that_happens_once_meets_one_answer() {
    let (server, lines) = echo();
    let proxy = Proxy::start(server).unwrap();
    proxy.once(Fault::CutAnswers);
    assert_eq!(Client::connect(&proxy).ask("1\n").unwrap(), "");
    assert_eq!(Client::connect(&proxy).ask("2\n").unwrap(), "2\n");
    assert_eq!(proxy.hits(), 1);
    assert_eq!(lines.load(Ordering::SeqCst), 2);
}

#[test]
fn a_request_that_is_duplicated_comes_twice_and_is_answered_once() {
    let (server, lines) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    proxy.once(Fault::Duplicate);
    assert_eq!(client.ask("1\n").unwrap(), "1\n");
    assert_eq!(client.ask("2\n").unwrap(), "2\n");
    wait_for(|| lines.load(Ordering::SeqCst) == 3);
    assert_eq!((proxy.hits(), proxy.round_trips()), (1, 2));
}

#[test]
fn a_blackhole_keeps_what_was_sent() {
    let (server, lines) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::Blackhole);
    client.ask("question\n").unwrap_err();
    assert_eq!(lines.load(Ordering::SeqCst), 0);
    proxy.set(Fault::None);
    assert_eq!(client.read(9).unwrap(), "question\n");
}

#[test]
fn a_delay_is_added_each_way() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::Delay(Duration::from_millis(30)));
    let from = Instant::now();
    assert_eq!(client.ask("question\n").unwrap(), "question\n");
    assert!(from.elapsed() >= Duration::from_millis(60));
}

#[test]
fn cut_and_refused_connections_end() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).unwrap();
    let mut client = Client::connect(&proxy);
    client.ask("question\n").unwrap();
    proxy.cut();
    assert_eq!(client.read(1).unwrap_or_default(), "");
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("question\n").unwrap(), "question\n");
    proxy.set(Fault::Refuse);
    assert_eq!(client.read(1).unwrap_or_default(), "");
    assert_eq!(
        Client::connect(&proxy)
            .ask("question\n")
            .unwrap_or_default(),
        ""
    );
}
