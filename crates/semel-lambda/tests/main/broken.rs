//! Sandboxes that are killed, and that are frozen past the lease.

use std::time::Duration;

use semel::StateKind;
use semel::store::{ListQuery, Store as _};
use semel_stores::SqliteOptions;
use serde_json::json;
use tokio::time::sleep;

use crate::stage::{
    Answered, Stage, TIMEOUT, batch, database, event, failures, failures_of, freeze, invoke, task,
    thaw,
};

/// The lease of these tests; renewed every third of it.
const LEASE: Duration = Duration::from_millis(600);

fn stage() -> Stage {
    Stage::new().with("LEASE_MS", &LEASE.as_millis().to_string())
}

#[tokio::test]
async fn a_message_whose_sandbox_was_killed_is_handled_by_the_next() {
    let stage = stage().with("RETRY", "1");
    for (kind, name) in [("task", "plain"), ("write", "transacted")] {
        // Whoever is not killed takes no time.
        let messages = batch([task(name, kind, name, &json!({"takes_ms": 700}))]);
        let mut first = stage.sandbox().await;
        tokio::select! {
            answered = first.invoke(&messages, TIMEOUT) => panic!("{answered:?} before the kill"),
            () = stage.begun(name) => first.kill().await,
        }
        let second = stage.sandbox().await;
        // While the lease of the dead one lasts its event is in flight, and comes again.
        while !failures(&second, &messages).await.is_empty() {
            sleep(LEASE / 4).await;
        }
        assert!(failures(&second, &messages).await.is_empty());
    }
    assert_eq!(
        (stage.entries("plain"), stage.effects("transacted")),
        (1, 1)
    );
}

#[tokio::test]
async fn a_sandbox_frozen_past_its_lease_has_its_effect_refused() {
    let stage = stage().with("RETRY", "1");
    let messages = batch([task("m-1", "task", "frozen", &json!({"takes_ms": 300}))]);
    let (first, second) = (stage.sandbox().await, stage.sandbox().await);
    let froze = async {
        stage.begun("frozen").await;
        freeze(&first);
        sleep(LEASE * 2).await;
        assert_eq!(failures(&second, &messages).await, [""; 0]);
        thaw(&first);
    };
    let (answered, ()) = tokio::join!(invoke(&first, &messages), froze);
    // The ledger refused its entry, and the store its completion: it is delivered once more.
    assert_eq!(failures_of(answered), ["m-1"]);
    assert_eq!(stage.entries("frozen"), 1);
    assert!(failures(&first, &messages).await.is_empty());
}

#[tokio::test]
async fn a_thawed_sandbox_whose_connections_are_gone_goes_on() {
    let application = format!("semel-lambda-{}", std::process::id());
    let (url, client) = database(&application).await;
    let stage = Stage::on(url);
    let sandbox = stage.sandbox().await;
    let event = |id: &str| {
        let id = format!("{}-{id}", stage.name());
        event(&id, "write", &json!({"name": id}))
    };
    let handled = Answered::Response(json!({"receipt": "handled"}));
    assert_eq!(invoke(&sandbox, &event("before")).await, handled);
    freeze(&sandbox);
    let ended = client
        .query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
            &[&application],
        )
        .await
        .unwrap();
    assert!(!ended.is_empty());
    thaw(&sandbox);
    assert_eq!(invoke(&sandbox, &event("after")).await, handled);
}

#[tokio::test]
async fn a_transaction_frozen_past_its_lease_is_rolled_back() {
    let (url, client) = database("frozen").await;
    let stage = Stage::on(url).with("LEASE_MS", &LEASE.as_millis().to_string());
    let name = stage.name();
    let event = event(&name, "write", &json!({"name": name, "takes_ms": 300}));
    let (first, second) = (stage.sandbox().await, stage.sandbox().await);
    let froze = async {
        stage.begun(&name).await;
        freeze(&first);
        sleep(LEASE * 2).await;
        let handled = invoke(&second, &event).await;
        assert_eq!(handled, Answered::Response(json!({"receipt": "handled"})));
        thaw(&first);
    };
    let (answered, ()) = tokio::join!(invoke(&first, &event), froze);
    let Answered::Error(error) = answered else {
        panic!("{answered:?}: an overtaken attempt is no success");
    };
    assert_eq!(error["errorType"], "Superseded");
    let again = invoke(&first, &event).await;
    assert_eq!(again, Answered::Response(json!({"receipt": "duplicate"})));
    let sql = "SELECT count(*) FROM lambda_effects WHERE name = $1";
    let effects: i64 = client.query_one(sql, &[&name]).await.unwrap().get(0);
    assert_eq!(effects, 1);
}

#[tokio::test]
async fn what_may_have_happened_is_held_and_reported_each_time() {
    let stage = stage();
    let messages = batch([task("m-1", "task", "killed", &json!({"takes_ms": 700}))]);
    let mut first = stage.sandbox().await;
    tokio::select! {
        answered = first.invoke(&messages, TIMEOUT) => panic!("{answered:?} before the kill"),
        () = stage.begun("killed") => first.kill().await,
    }
    sleep(LEASE * 2).await;
    let second = stage.sandbox().await;
    for _ in 0..2 {
        assert_eq!(failures(&second, &messages).await, ["m-1"]);
    }
    assert_eq!(stage.entries("killed"), 0);
    // Of a transaction nothing can have happened: it is run again unless it is said otherwise.
    let messages = batch([task(
        "m-2",
        "write",
        "rolled-back",
        &json!({"takes_ms": 300}),
    )]);
    let mut third = stage.sandbox().await;
    tokio::select! {
        answered = third.invoke(&messages, TIMEOUT) => panic!("{answered:?} before the kill"),
        () = stage.begun("rolled-back") => third.kill().await,
    }
    sleep(LEASE * 2).await;
    assert!(failures(&second, &messages).await.is_empty());
    assert_eq!(stage.effects("rolled-back"), 1);
}

#[tokio::test]
async fn nothing_is_in_flight_once_the_function_has_answered() {
    let stage = stage();
    let sandbox = stage.sandbox().await;
    let messages = batch([
        task("m-1", "task", "good", &json!({})),
        task(
            "m-2",
            "task",
            "failing",
            &json!({"fails": true, "takes_ms": 100}),
        ),
        task(
            "m-3",
            "write",
            "panicking",
            &json!({"panics": true, "takes_ms": 200}),
        ),
        task("m-4", "write", "slow", &json!({"takes_ms": 300})),
    ]);
    assert_eq!(failures(&sandbox, &messages).await, ["m-2", "m-3"]);
    // From here on Lambda may freeze it, for as long as it likes.
    freeze(&sandbox);
    let store = SqliteOptions::new()
        .open(stage.path().join("store.db"))
        .unwrap();
    let page = store
        .list(&ListQuery::new(StateKind::InFlight))
        .await
        .unwrap();
    assert_eq!(page.entries, []);
    // And the next sandbox waits for nothing.
    std::fs::write(stage.path().join("mended"), "").unwrap();
    let second = stage.sandbox().await;
    assert!(failures(&second, &messages).await.is_empty());
    for (name, entries, effects) in [
        ("good", 1, 0),
        ("failing", 1, 0),
        ("panicking", 0, 1),
        ("slow", 0, 1),
    ] {
        assert_eq!(
            (stage.entries(name), stage.effects(name)),
            (entries, effects),
            "{name}"
        );
    }
}
