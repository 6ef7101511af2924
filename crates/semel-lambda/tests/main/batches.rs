//! What is reported of a batch.

use std::time::Duration;

use serde_json::{Value, json};

use crate::stage::{
    Answered, Stage, TIMEOUT, batch, event, failures, failures_of, in_group, invoke, message, task,
};

#[tokio::test]
async fn only_what_failed_is_reported_and_handled_again() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    let messages = batch([
        task("good", "task", "good", &json!({})),
        task("failing", "task", "failing", &json!({"fails": true})),
        task("panicking", "write", "panicking", &json!({"panics": true})),
        task("written", "write", "written", &json!({})),
    ]);
    assert_eq!(
        failures(&sandbox, &messages).await,
        ["failing", "panicking"]
    );
    assert_eq!(
        (stage.entries("failing"), stage.effects("panicking")),
        (0, 0)
    );
    std::fs::write(stage.path().join("mended"), "").unwrap();
    assert!(failures(&sandbox, &messages).await.is_empty());
    assert_eq!((stage.entries("good"), stage.effects("written")), (1, 1));
    assert_eq!(
        (stage.entries("failing"), stage.effects("panicking")),
        (1, 1)
    );
}

#[tokio::test]
async fn an_unknown_type_and_a_wrong_detail_are_reported_and_nothing_is_claimed() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    let messages = batch([
        task("unknown", "tusk", "unknown", &json!({})),
        message("nameless", &json!({"type": "task"}).to_string()),
        message("text", "no JSON"),
        message("typeless", "{}"),
        task("good", "task", "good", &json!({})),
    ]);
    let failed = failures(&sandbox, &messages).await;
    assert_eq!(failed, ["unknown", "nameless", "text", "typeless"]);

    let Answered::Error(error) = invoke(&sandbox, &event("e", "tusk", &json!({}))).await else {
        panic!("an unknown type is an error");
    };
    assert_eq!(error["errorType"], "UnknownType");
    let said = error["errorMessage"].as_str().unwrap();
    assert!(
        said.contains("\"tusk\"") && said.contains(r#"["task", "write"]"#),
        "{said}"
    );

    let wrong = event("e", "task", &json!({"name": 4711}));
    let Answered::Error(error) = invoke(&sandbox, &wrong).await else {
        panic!("a wrong detail is an error");
    };
    assert_eq!(error["errorType"], "WrongDetail");
    // What the event brings may be its id (R12).
    let said = error["errorMessage"].as_str().unwrap();
    assert!(said.contains("column") && !said.contains("4711"), "{said}");

    // Nothing was claimed: once the code is mended the same ids are handled.
    let mended = stage.with("OTHERWISE", "1");
    let sandbox = mended.sandbox().await;
    assert_eq!(
        failures(&sandbox, &messages).await,
        ["nameless", "text", "typeless"]
    );
    assert_eq!((mended.entries("tusk"), mended.entries("good")), (1, 1));
}

#[tokio::test]
async fn after_a_failure_the_rest_of_its_group_is_reported_and_not_begun() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    let good = |id: &str| task(id, "task", id, &json!({}));
    let messages = batch([
        in_group("a", good("a1")),
        in_group("b", good("b1")),
        in_group("a", task("a2", "task", "a2", &json!({"fails": true}))),
        in_group("b", good("b2")),
        in_group("a", good("a3")),
        in_group("c", message("c1", "no JSON")),
        in_group("a", good("a4")),
        in_group("c", good("c2")),
    ]);
    assert_eq!(
        failures(&sandbox, &messages).await,
        ["a2", "a3", "c1", "a4", "c2"]
    );
    for handled in ["a1", "b1", "b2"] {
        assert_eq!(stage.entries(handled), 1);
    }
    for waiting in ["a3", "a4", "c2"] {
        assert!(
            !stage.has_begun(waiting),
            "{waiting} overtook what failed before it"
        );
    }
}

#[tokio::test]
async fn messages_of_a_group_are_handled_in_order_and_groups_beside_each_other() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    // The first of a group takes longest: in the wrong order, or beside it, it would come last.
    let messages = batch([
        in_group("a", task("a1", "task", "a1", &json!({"takes_ms": 400}))),
        in_group("a", task("a2", "task", "a2", &json!({}))),
        in_group("b", task("b1", "task", "b1", &json!({}))),
    ]);
    assert!(failures(&sandbox, &messages).await.is_empty());
    let ledger = semel_stores::sqlite::rusqlite::Connection::open(stage.path().join("ledger.db"));
    let ledger = ledger.unwrap();
    let mut sorted = ledger
        .prepare("SELECT name FROM entries ORDER BY rowid")
        .unwrap();
    let names = sorted.query_map((), |row| row.get(0)).unwrap();
    let names: Vec<String> = names.map(Result::unwrap).collect();
    assert_eq!(names, ["b1", "a1", "a2"]);
}

#[tokio::test]
async fn a_standard_queue_has_no_order_even_where_messages_have_groups() {
    let stage = Stage::new();
    let sandbox = stage.sandbox().await;
    let grouped = |mut message: Value| {
        message["attributes"]["MessageGroupId"] = "tenant".into();
        message
    };
    let messages = batch([
        grouped(task("bad", "task", "bad", &json!({"fails": true}))),
        grouped(task("good", "task", "good", &json!({}))),
    ]);
    assert_eq!(failures(&sandbox, &messages).await, ["bad"]);
    assert_eq!(stage.entries("good"), 1);
}

#[tokio::test]
async fn what_there_is_no_time_for_is_reported_and_not_begun() {
    // A margin longer than the function has is taken for half of what it has.
    let stage = Stage::new().with("MARGIN_MS", "60000");
    let sandbox = stage.sandbox().await;
    assert!(failures(&sandbox, &batch([])).await.is_empty());
    let messages = batch([
        in_group("a", task("a1", "task", "a1", &json!({"takes_ms": 1_200}))),
        in_group("a", task("a2", "task", "a2", &json!({}))),
    ]);
    let answered = tokio::time::timeout(TIMEOUT, sandbox.invoke(&messages, Duration::from_secs(2)));
    assert_eq!(failures_of(answered.await.unwrap().unwrap()), ["a2"]);
    assert_eq!(stage.entries("a1"), 1);
    assert!(!stage.has_begun("a2"));
}

#[tokio::test]
async fn a_function_without_partial_answers_fails_as_a_whole() {
    let stage = Stage::new().with("WHOLE_BATCHES", "1");
    let sandbox = stage.sandbox().await;
    let messages = batch([
        task("good", "task", "good", &json!({})),
        task("bad", "task", "bad", &json!({"fails": true})),
    ]);
    for _ in 0..2 {
        let Answered::Error(error) = invoke(&sandbox, &messages).await else {
            panic!("a failure fails the batch");
        };
        assert_eq!(error["errorMessage"], "1 of 2 messages were not handled");
    }
    assert_eq!(stage.entries("good"), 1);
}
