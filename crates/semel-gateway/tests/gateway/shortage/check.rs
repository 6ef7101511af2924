//! `semel check` opens the store that `semel serve` would open, and makes nothing.

use std::process::{Command, Output, Stdio};

use crate::support::{Gateway, Shop, order, store_in};

fn check(store: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .args([
            "check",
            "--upstream",
            "http://127.0.0.1:9",
            "--store",
            store,
        ])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    let text = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn check_opens_the_store_and_makes_none() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    order(gateway.address, "\"k\"").await;
    let directory = gateway.directory();
    let store = store_in(directory.path());
    let in_use = check(&store);
    assert_eq!(in_use.status.code(), Some(2), "{}", said(&in_use));
    assert!(said(&in_use).contains("is in use"), "{}", said(&in_use));
    gateway.kill();
    let opened = check(&store);
    assert_eq!(opened.status.code(), Some(0), "{}", said(&opened));
    assert!(
        said(&opened).contains("store: opened, and works"),
        "{}",
        said(&opened)
    );

    let elsewhere = tempfile::tempdir().unwrap();
    let mut missing = vec![format!(
        "file:{}",
        elsewhere.path().join("records").display()
    )];
    if cfg!(feature = "sqlite") {
        missing.push(format!(
            "sqlite:{}",
            elsewhere.path().join("records.db").display()
        ));
    }
    for store in missing {
        let output = check(&store);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(
            said(&output).contains("there is nothing yet"),
            "{}",
            said(&output)
        );
    }
    assert_eq!(
        elsewhere.path().read_dir().unwrap().count(),
        0,
        "it made something"
    );
}

#[test]
fn check_says_why_serve_would_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    std::fs::write(&file, "text").unwrap();
    let mut wrong = vec![format!("file:{}", file.display())];
    if cfg!(feature = "redis") {
        wrong.push("redis://127.0.0.1:1/".to_owned());
    }
    for store in wrong {
        let output = check(&store);
        assert_eq!(output.status.code(), Some(2), "{store}: {}", said(&output));
        assert!(
            said(&output).contains("error: --store: "),
            "{}",
            said(&output)
        );
    }
}

#[cfg(feature = "postgres")]
#[test]
fn check_makes_no_tables() {
    use semel_testkit::servers::{Postgres, Server as _};
    let server = Postgres::start(&[]).unwrap();
    for _ in 0..2 {
        let output = check(&server.url());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(
            said(&output).contains("there is nothing yet"),
            "{}",
            said(&output)
        );
    }
}
