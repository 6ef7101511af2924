//! The audit log.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{PLACED, lose, post, read};
use crate::support::{Gateway, Script, get};

#[tokio::test]
async fn an_entry_says_who_what_why_before_and_after() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(read(&gateway, "audit").await["entries"], json!([]));
    let id = lose(&upstream, &gateway, "order-4711").await;
    let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
    let body = json!({
        "fence": fence, "reason": "ch_81 is in the books", "happened": true,
        "outcome": {"status": 201, "body": "secret answer"},
    });
    let done = post(&gateway, &format!("records/{id}/resolve"), &body).await;
    let done: Value = serde_json::from_str(done.text()).unwrap();
    let again = post(&gateway, &format!("records/{id}/resolve"), &body).await;
    assert_eq!(again.problem(), "record-changed");
    post(
        &gateway,
        &format!("records/{id}/reveal"),
        &json!({"reason": "the customer asks"}),
    )
    .await;

    let log = read(&gateway, "audit").await;
    let [reveal, refused, entry] = &log["entries"].as_array().unwrap()[..] else {
        panic!("{log}");
    };
    assert_eq!(entry["number"], done["audit"]);
    assert_eq!(
        (&entry["action"], &entry["id"], &entry["result"]),
        (&json!("resolve-happened"), &json!(id), &json!("done"))
    );
    assert_eq!(
        (&entry["by"], &entry["from"], &entry["reason"]),
        (
            &json!("local"),
            &json!("127.0.0.1"),
            &json!("ch_81 is in the books")
        )
    );
    assert_eq!(
        (&entry["before"]["state"], &entry["before"]["fence"]),
        (&json!("unknown"), &fence)
    );
    assert_eq!(
        (
            &entry["after"]["state"],
            &entry["after"]["outcome"]["status"]
        ),
        (&json!("completed"), &json!(201))
    );
    assert!(entry["at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        (&refused["result"], &refused["action"]),
        (&json!("refused"), &json!("resolve-happened"))
    );
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .starts_with("record-changed: ")
    );
    assert_eq!(
        (&reveal["action"], &reveal["reason"]),
        (&json!("reveal"), &json!("the customer asks"))
    );
    // Neither key nor answer.
    assert!(!log.to_string().contains("secret answer") && !log.to_string().contains("order-4711"));

    // Its records are not among those of operations.
    let records = read(&gateway, "records").await;
    assert_eq!(records["records"].as_array().unwrap().len(), 1);
    let lines = get(gateway.admin, "/api/v1/audit?format=jsonl&limit=2").await;
    assert_eq!(lines.header("content-type"), Some("application/jsonl"));
    let first: Value = serde_json::from_str(lines.text().lines().next().unwrap()).unwrap();
    assert_eq!((&first, lines.text().lines().count()), (reveal, 2));
    let rest = lines.header("semel-next").unwrap();
    let rest = read(&gateway, &format!("audit?cursor={rest}")).await;
    assert_eq!(rest["entries"], json!([entry]));
}

/// The log's own records are no claims, and a page of it ends wherever somebody lets it begin.
#[tokio::test]
async fn it_is_read_there_and_nowhere_else() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let id = lose(&upstream, &gateway, "order-4711").await;
    let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
    let body = json!({"fence": fence, "reason": "r", "happened": false});
    let done = post(&gateway, &format!("records/{id}/resolve"), &body).await;
    let done: Value = serde_json::from_str(done.text()).unwrap();
    let (period, nth) = done["audit"].as_str().unwrap().split_once('-').unwrap();
    let key = semel::Key::new(nth).unwrap();
    let entry = semel::Identity::new(semel::Scope::new([period]), "audit@", key);
    for path in ["/v1/claims", "/api/v1/records"] {
        let answer = get(gateway.admin, &format!("{path}/{}", entry.digest())).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
    }
    let far = format!("audit?cursor={period}-{}", u64::MAX);
    let patience = std::time::Duration::from_secs(30);
    let far = tokio::time::timeout(patience, read(&gateway, &far)).await;
    assert_eq!(far.unwrap()["entries"].as_array().unwrap().len(), 1);
}

/// Of a gateway that is killed while many act, every action that was answered is in the log with its
/// result, there is no gap, and an action that was not answered is in it, or did not happen.
#[tokio::test]
async fn it_is_complete_after_a_kill() {
    const RECORDS: usize = 40;
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let mut lost = Vec::new();
    for nth in 0..RECORDS {
        let id = lose(&upstream, &gateway, &format!("order-{nth}")).await;
        let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
        lost.push((id, fence));
    }
    let (admin, directory) = (gateway.admin, gateway.directory());
    let mut acting = JoinSet::new();
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let answered = Arc::new(answered);
    for (id, fence) in lost.clone() {
        let answered = Arc::clone(&answered);
        acting.spawn(async move {
            let body = json!({"fence": fence, "reason": "r", "happened": false}).to_string();
            let fields = [("content-type", "application/json")];
            let path = format!("/api/v1/records/{id}/resolve");
            let post = crate::support::request(http::Method::POST, admin, &path, &fields, &body);
            let answer = crate::support::send(post).await;
            if answer.is_ok_and(|answer| answer.status == 200) {
                answered.send(id).ok();
            }
        });
    }
    // In the middle of it.
    for _ in 0..RECORDS / 4 {
        answers.recv().await.unwrap();
    }
    gateway.kill();
    acting.join_all().await;
    drop(answered);
    let gateway = Gateway::start_in(&directory, upstream.address, &[]);
    let mut known = HashSet::new();
    while let Some(id) = answers.recv().await {
        known.insert(id);
    }
    let log = read(&gateway, "audit?limit=500").await;
    let entries = log["entries"].as_array().unwrap();
    let numbers: Vec<u64> = entries
        .iter()
        .map(|entry| {
            entry["number"]
                .as_str()
                .unwrap()
                .split_once('-')
                .unwrap()
                .1
                .parse()
                .unwrap()
        })
        .collect();
    let expected: Vec<u64> = (1..=numbers.len() as u64).rev().collect();
    assert_eq!(numbers, expected, "no gap");
    let of = |id: &str| entries.iter().find(|entry| entry["id"] == id);
    for (id, fence) in &lost {
        let record = read(&gateway, "records?state=unknown&limit=500").await;
        let is_unknown = record["records"]
            .as_array()
            .unwrap()
            .iter()
            .any(|r| r["id"] == json!(id) && r["fence"] == *fence);
        match of(id) {
            Some(entry) if known.contains(id) => assert_eq!(entry["result"], "done"),
            // The intention at least.
            Some(entry) => assert!(
                ["done", "unknown"].contains(&entry["result"].as_str().unwrap()),
                "{entry}"
            ),
            None => assert!(
                is_unknown && !known.contains(id),
                "{id} was changed, and nobody wrote it down"
            ),
        }
    }
}
