//! The shop to try the gateway on.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{Gateway, eventually, get, order};

fn demo(ledger: &Path) -> (Child, SocketAddr) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args([
            "demo",
            "--listen",
            "127.0.0.1:0",
            "--delay",
            "10ms",
            "--ledger",
        ])
        .arg(ledger)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let address = line.strip_prefix("a shop listens on http://").unwrap();
    let address = address.split_once(": ").unwrap().0.parse().unwrap();
    (process, address)
}

#[tokio::test]
async fn the_first_run_of_the_readme() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let (mut shop, address) = demo(&ledger);
    let gateway = Gateway::start(address, &[]);
    let first = order(gateway.address, "\"order-4711\"").await;
    let again = order(gateway.address, "\"order-4711\"").await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
    assert_eq!((again.status.as_u16(), again.is_replay()), (201, true));
    assert_eq!(first.header("location"), Some("/orders/1"));
    assert_eq!(first.body, again.body);
    assert_eq!(get(address, "/orders").await.text(), "{\"orders\":1}\n");

    let id = shop.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let ended = eventually("the end of the shop", || {
        std::future::ready(shop.try_wait().unwrap())
    });
    assert_eq!(ended.await.code(), Some(0));
    let (mut shop, address) = demo(&ledger);
    assert_eq!(get(address, "/orders").await.text(), "{\"orders\":1}\n");
    shop.kill().unwrap();
    shop.wait().unwrap();
}
