//! Each program, twice over the same folder: the second time nothing happens again.

use std::net::TcpListener;
use std::process::Command;

use reqwest::{Client, Response, StatusCode};
use tempfile::tempdir;

use crate::program::{Service, run};
use crate::provider::Provider;

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

async fn order(address: &str, account: Option<&str>, key: Option<&str>) -> Response {
    let mut order = Client::new()
        .post(format!("http://{address}/orders"))
        .body("apples");
    for (name, value) in [("x-account", account), ("idempotency-key", key)] {
        if let Some(value) = value {
            order = order.header(name, value);
        }
    }
    order.send().await.unwrap()
}

fn is_replay(answer: &Response) -> bool {
    answer.headers().contains_key("idempotency-replayed")
}

/// The quick start of the README is the program that runs here.
#[test]
fn the_readme_shows_the_quick_start() {
    let program = include_str!("../../src/bin/axum.rs");
    let code = program.split_once("\n\n").unwrap().1;
    assert!(include_str!("../../../../README.md").contains(code));
    let inside = code
        .lines()
        .skip_while(|line| !line.starts_with("async fn main"));
    let count = inside.filter(|line| !line.is_empty()).count();
    assert!(count <= 12, "{count} lines");
}

#[tokio::test]
async fn a_server_of_few_lines_is_durable_scoped_and_drained() {
    let (folder, address) = (tempdir().unwrap(), free_address());
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quick-axum"));
        Service::start_at(command.arg(&address).current_dir(&folder), &address)
    };
    let service = start();
    for (account, key) in [(None, Some("k-1")), (Some("acme"), None)] {
        let refused = order(&address, account, key).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    }
    let first = order(&address, Some("acme"), Some("k-1")).await;
    assert!(first.status() == StatusCode::OK && !is_replay(&first));
    assert!(service.stop("-INT").success());
    let service = start();
    assert!(is_replay(&order(&address, Some("acme"), Some("k-1")).await));
    let others = order(&address, Some("other"), Some("k-1")).await;
    assert!(!is_replay(&others), "another account's key is another key");
    assert!(service.stop("-INT").success());
}

#[tokio::test]
async fn an_order_is_committed_with_its_answer() {
    let (folder, address) = (tempdir().unwrap(), free_address());
    let mut command = Command::new(env!("CARGO_BIN_EXE_quick-transaction"));
    let service = Service::start_at(command.arg(&address).current_dir(&folder), &address);
    let first = order(&address, Some("acme"), Some("k-1")).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let again = order(&address, Some("acme"), Some("k-1")).await;
    assert!(is_replay(&again));
    assert_eq!(first.text().await.unwrap(), "order 1");
    assert_eq!(again.text().await.unwrap(), "order 1");
    let other = order(&address, Some("acme"), Some("k-2")).await;
    assert_eq!(other.text().await.unwrap(), "order 2");
    assert!(service.stop("-INT").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_charges_each_job_once() {
    let (folder, provider) = (tempdir().unwrap(), Provider::default());
    let url = provider.start().await;
    let job = |id: u32, cents: u32| {
        format!("{{\"id\":\"job-{id}\",\"card\":\"tok_1\",\"cents\":{cents}}}\n")
    };
    let worker = env!("CARGO_BIN_EXE_quick-worker");
    let work = |lines: &str| run(worker, folder.path(), &[&url], lines);
    // Nothing was charged, and the job may be given again.
    provider.ledger().busy = Some(1);
    assert!(work(&job(1, 900)).contains("job-1: later: "));
    assert!(provider.made().is_empty());
    provider.ledger().busy = None;
    let done = work(&[job(1, 900), job(2, 100), job(1, 900)].concat());
    let lines: Vec<_> = done.lines().collect();
    assert!(lines[0].starts_with("job-1: charged, "), "{done}");
    assert!(lines[1].starts_with("job-2: charged, "), "{done}");
    assert!(lines[2].starts_with("job-1: charged before, "), "{done}");
    // Another amount under the same id is another job.
    assert!(work(&job(1, 1)).contains("job-1: failed: this key was used"));
    assert_eq!(provider.made().len(), 2);
}

#[test]
fn an_inbox_adds_each_event_once() {
    let folder = tempdir().unwrap();
    let inbox = env!("CARGO_BIN_EXE_quick-inbox");
    let first = run(
        inbox,
        folder.path(),
        &[],
        "order-1 250\norder-2 100\norder-1 250\n",
    );
    assert_eq!(
        first,
        "order-1: Handled\norder-2: Handled\norder-1: Duplicate\ntotal: 350\n"
    );
    let later = run(inbox, folder.path(), &[], "order-2 100\norder-3 50\n");
    assert_eq!(later, "order-2: Duplicate\norder-3: Handled\ntotal: 400\n");
}

#[tokio::test]
async fn metrics_count_what_ran_and_what_did_not() {
    let (folder, address) = (tempdir().unwrap(), free_address());
    let mut command = Command::new(env!("CARGO_BIN_EXE_quick-metrics"));
    let service = Service::start_at(command.arg(&address).current_dir(&folder), &address);
    for _ in 0..3 {
        order(&address, Some("acme"), Some("k-1")).await;
    }
    let metrics = reqwest::get(format!("http://{address}/metrics"))
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    for (event, count) in [("new", 1), ("completed", 1), ("replayed", 2)] {
        let counted = metrics.lines().find(|line| {
            line.starts_with("semel_events_total{") && line.contains(&format!("event=\"{event}\""))
        });
        let counted = counted.unwrap_or_else(|| panic!("no {event}: {metrics}"));
        assert!(counted.ends_with(&format!(" {count}")), "{counted}");
    }
    assert!(service.stop("-INT").success());
}

#[test]
fn a_job_runs_once_a_day() {
    let folder = tempdir().unwrap();
    let report = |day| run(env!("CARGO_BIN_EXE_quick-job"), folder.path(), &[day], "");
    assert_eq!(report("2026-11-22"), "wrote the report of 2026-11-22\n");
    assert_eq!(
        report("2026-11-22"),
        "somebody wrote the report of 2026-11-22\n"
    );
    assert_eq!(report("2026-11-23"), "wrote the report of 2026-11-23\n");
}
