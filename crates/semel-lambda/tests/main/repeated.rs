//! Events that are delivered again.

use serde_json::json;

use crate::stage::{Answered, Stage, batch, event, example, failures, invoke, start, task};

#[tokio::test]
async fn a_message_is_handled_once_in_two_invocations_and_two_processes() {
    let stage = Stage::new();
    let messages = batch([
        task("m-1", "task", "plain", &json!({})),
        task("m-2", "write", "transacted", &json!({})),
    ]);
    let (one, two) = (stage.sandbox().await, stage.sandbox().await);
    for sandbox in [&one, &one, &two, &two] {
        assert!(failures(sandbox, &messages).await.is_empty());
    }
    assert_eq!(
        (stage.entries("plain"), stage.effects("transacted")),
        (1, 1)
    );
}

#[tokio::test]
async fn deliveries_at_the_same_time_are_handled_once() {
    let stage = Stage::new();
    let messages = batch([
        task("m-1", "task", "plain", &json!({"takes_ms": 300})),
        task("m-2", "write", "transacted", &json!({"takes_ms": 10})),
    ]);
    let (one, two) = (stage.sandbox().await, stage.sandbox().await);
    let (a, b) = tokio::join!(failures(&one, &messages), failures(&two, &messages));
    // Who came second was told so, and the queue will deliver again.
    assert!(a.is_empty() || b.is_empty() || a != b, "{a:?} {b:?}");
    assert!(
        a.contains(&"m-1".to_owned()) != b.contains(&"m-1".to_owned()),
        "{a:?} {b:?}"
    );
    assert!(failures(&one, &messages).await.is_empty());
    assert_eq!(
        (stage.entries("plain"), stage.effects("transacted")),
        (1, 1)
    );
}

#[tokio::test]
async fn an_event_is_the_same_directly_in_a_message_and_through_a_topic() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    let event = event("e-1", "task", &json!({"name": "thrice"}));
    let handled = invoke(&sandbox, &event).await;
    assert_eq!(handled, Answered::Response(json!({"receipt": "handled"})));
    let again = invoke(&sandbox, &event).await;
    assert_eq!(again, Answered::Response(json!({"receipt": "duplicate"})));

    let notification = json!({
        "Type": "Notification", "MessageId": "n-1", "Message": event.to_string(),
        "TopicArn": "arn:aws:sns:eu-central-1:000000000000:tasks",
    });
    let messages = batch([
        crate::stage::message("m-1", &event.to_string()),
        crate::stage::message("m-2", &notification.to_string()),
    ]);
    assert!(failures(&sandbox, &messages).await.is_empty());
    assert_eq!(stage.entries("thrice"), 1);
}

#[tokio::test]
async fn the_example_writes_each_order_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.db");
    let sandbox = start("orders", &[("ORDERS", file.display().to_string())]).await;
    let placed = serde_json::from_str(include_str!("../../examples/events/placed.json")).unwrap();
    let messages = serde_json::from_str(include_str!("../../examples/events/batch.json")).unwrap();
    for receipt in ["handled", "duplicate"] {
        let answered = invoke(&sandbox, &placed).await;
        assert_eq!(answered, Answered::Response(json!({"receipt": receipt})));
        // Nobody handles orders that were lost.
        let failed = failures(&sandbox, &messages).await;
        assert_eq!(failed, ["2e1424d4-f796-459a-8184-9c92662be6da"]);
    }
    let orders = semel_stores::sqlite::rusqlite::Connection::open(file).unwrap();
    let (count, pieces) = orders
        .query_row("SELECT count(*), sum(pieces) FROM orders", (), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        })
        .unwrap();
    assert_eq!((count, pieces), (2, 4));
}

#[tokio::test]
async fn the_documented_command_runs_a_function_here() {
    let folder = tempfile::tempdir().unwrap();
    let events = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/events/");
    let output = tokio::process::Command::new(example("local"))
        .arg(example("orders"))
        .args(["placed.json", "placed.json", "batch.json"].map(|file| format!("{events}{file}")))
        .env("ORDERS", folder.path().join("orders.db"))
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(_, a)| a)
        .collect();
    let expected = [
        r#"answer {"receipt":"handled"}"#,
        r#"answer {"receipt":"duplicate"}"#,
        r#"answer {"batchItemFailures":[{"itemIdentifier":"2e1424d4-f796-459a-8184-9c92662be6da"}]}"#,
    ];
    assert_eq!(answers, expected);
}
