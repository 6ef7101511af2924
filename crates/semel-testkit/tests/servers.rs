//! Servers start, break, start again with what they kept, and end with whoever started them.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::servers::{Kind, Redis, Server as _, start};

fn redis(address: SocketAddr, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut answer = [0; 64];
    let read = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

#[test]
fn every_kind_starts_is_killed_and_starts_again() {
    std::thread::scope(|scope| {
        for kind in Kind::ALL {
            scope.spawn(move || {
                let server = start(kind).unwrap();
                assert!(server.url().contains(&server.address().port().to_string()));
                for node in server.nodes() {
                    node.kill();
                    TcpStream::connect(node.address()).unwrap_err();
                    node.launch().unwrap();
                }
                for node in server.nodes() {
                    node.wait_until_ready().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_server_keeps_its_data_and_answers_nothing_while_paused() {
    let server = Redis::start(&[]).unwrap();
    redis(server.address(), "SET a 1").unwrap();
    let node = server.nodes()[0];
    node.pause();
    redis(server.address(), "GET a").unwrap_err();
    node.resume();
    assert_eq!(redis(server.address(), "GET a").unwrap(), "$1\r\n1\r\n");
    node.kill();
    node.start().unwrap();
    assert_eq!(redis(server.address(), "GET a").unwrap(), "$1\r\n1\r\n");
}

#[test]
fn servers_end_with_the_process_that_started_them() {
    let mut parent = Command::new(env!("CARGO_BIN_EXE_with-servers"))
        .args([
            "--only",
            "redis",
            "sh",
            "-c",
            "echo $SEMEL_TEST_REDIS; read line",
        ])
        .env_remove("SEMEL_TEST_REDIS")
        // The command ends once this is closed.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(parent.stdout.take().unwrap())
        .read_line(&mut url)
        .unwrap();
    let address = url
        .trim()
        .trim_start_matches("redis://")
        .trim_end_matches('/');
    let address: SocketAddr = address.parse().unwrap();
    assert_eq!(redis(address, "PING").unwrap(), "+PONG\r\n");
    parent.kill().unwrap();
    parent.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < end, "the server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
