//! Every shape that is read, and what is said of others.

use std::sync::Arc;

use semel::memory::MemoryStore;
use semel_lambda::{Answer, Dispatcher, EventError, Function, FunctionError, Inbox, PlainMessages};
use serde_json::{Value, json};

use crate::stage::{QUEUE, batch, event, invocation, message};

/// What a function saw of an event: source, id, type, detail.
type Seen = (String, String, String, Value);

/// Invokes a function that takes every type; what it saw.
async fn seen(plain: PlainMessages, payload: &Value) -> (Result<Answer, FunctionError>, Vec<Seen>) {
    let events = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = events.clone();
    let dispatcher = Dispatcher::new().otherwise(move |envelope, _| {
        seen.lock().push((
            envelope.source().to_owned(),
            envelope.id().to_owned(),
            envelope.event_type().to_owned(),
            serde_json::from_slice(envelope.detail()).unwrap(),
        ));
        async { Ok::<_, std::io::Error>(()) }
    });
    let function = Function::new(Inbox::new(MemoryStore::default(), "tests"), dispatcher)
        .with_plain_messages(plain);
    let answer = function.invoke(invocation(payload)).await;
    let seen = events.lock().clone();
    (answer, seen)
}

async fn one(plain: PlainMessages, message: Value) -> Seen {
    let (answer, mut seen) = seen(plain, &batch([message])).await;
    let Ok(Answer::Batch(answer)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((answer.failures().len(), seen.len()), (0, 1));
    seen.remove(0)
}

fn is(source: &str, id: &str, event_type: &str, detail: Value) -> Seen {
    (source.into(), id.into(), event_type.into(), detail)
}

const TOPIC: &str = "arn:aws:sns:eu-central-1:000000000000:tasks";

fn notification(published: &str, attributes: &Value) -> String {
    json!({
        "Type": "Notification", "MessageId": "n-1", "TopicArn": TOPIC, "Message": published,
        "Timestamp": "2026-11-21T12:00:00.000Z", "SignatureVersion": "1", "Signature": "…",
        "MessageAttributes": attributes,
    })
    .to_string()
}

#[tokio::test]
async fn events_of_event_bridge() {
    let given = event("e-1", "order.placed", &json!({"order": 1}));
    let expected = is(
        "com.example.tests",
        "e-1",
        "order.placed",
        json!({"order": 1}),
    );
    let (answer, direct) = seen(PlainMessages::default(), &given).await;
    assert!(matches!(answer, Ok(Answer::Event { .. })));
    assert_eq!(direct, std::slice::from_ref(&expected));
    for body in [
        given.to_string(),
        notification(&given.to_string(), &json!({})),
    ] {
        let seen = one(PlainMessages::default(), message("m-1", &body)).await;
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn plain_messages_by_attribute_by_field_and_by_rule() {
    let body = json!({"type": "a", "kind": "b", "key": "k-1", "from": "shop", "data": [1.10]});
    let rules = PlainMessages::default();
    let text = body.to_string();

    let seen = one(rules.clone(), message("m-1", &text)).await;
    assert_eq!(seen, is(QUEUE, "m-1", "a", body.clone()));

    let mut with_attribute = message("m-1", &text);
    with_attribute["messageAttributes"] = json!({
        "type": {"stringValue": "c", "dataType": "String"},
        "size": {"binaryValue": "AA==", "dataType": "Binary"},
    });
    let seen = one(rules.clone(), with_attribute).await;
    assert_eq!(seen, is(QUEUE, "m-1", "c", body.clone()));

    let own = rules
        .clone()
        .with_type_field("kind")
        .with_id_field("key")
        .with_source_field("from")
        .with_detail_field("data");
    let seen = one(own, message("m-1", &text)).await;
    assert_eq!(seen, is("shop", "k-1", "b", json!([1.10])));

    let fixed = rules.clone().with_type("always");
    let seen = one(fixed, message("m-1", " [1, 2]")).await;
    assert_eq!(seen, is(QUEUE, "m-1", "always", json!([1, 2])));

    let cloud = json!({
        "specversion": "1.0", "type": "com.example.placed", "source": "/shop", "id": "A-1",
        "data": {"order": 1},
    });
    let seen = one(
        PlainMessages::cloud_events(),
        message("m-1", &cloud.to_string()),
    )
    .await;
    assert_eq!(
        seen,
        is("/shop", "A-1", "com.example.placed", json!({"order": 1}))
    );

    // Through a topic: its name and its id, as the message of the queue may be one of several.
    let published = notification(&text, &json!({"type": {"Type": "String", "Value": "d"}}));
    let seen = one(rules.clone(), message("m-1", &published)).await;
    assert_eq!(seen, is(TOPIC, "n-1", "d", body));
    let twice = notification(&notification("{}", &json!({})), &json!({}));
    let (answer, seen) = self::seen(rules, &batch([message("m-1", &twice)])).await;
    let Ok(Answer::Batch(answer)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(answer.failures().collect::<Vec<_>>(), ["m-1"]);
    assert!(seen.is_empty());
}

#[tokio::test]
async fn other_shapes_are_errors_that_say_what_was_expected() {
    let mut records = vec![];
    for (field, value) in [("messageId", json!("")), ("eventSourceARN", Value::Null)] {
        let mut record = message("m-1", "{}");
        record.as_object_mut().unwrap().remove(field);
        if !value.is_null() {
            record[field] = value;
        }
        records.push((
            batch([record]),
            format!("a message of SQS needs a text in `{field}`"),
        ));
    }
    let of_s3 = json!({"Records": [{"eventSource": "aws:s3", "s3": {}}]});
    let of_sns = json!({"Records": [{"EventSource": "aws:sns", "Sns": {}}]});
    let mut without_id = event("e-1", "t", &json!({}));
    without_id["id"] = json!(7);
    let mut without_detail = event("e-1", "t", &json!({}));
    without_detail.as_object_mut().unwrap().remove("detail");
    let known = "expected a batch of SQS (`Records`) or an event of EventBridge";
    for (payload, said) in [
        (
            json!([1]),
            format!("{known} (`id`, `source`, `detail-type`, `detail`), but it is no object"),
        ),
        (
            json!({"a": 1, "b": 2}),
            "its fields are `a`, `b`".to_owned(),
        ),
        (of_s3, "it has records of \"aws:s3\"".to_owned()),
        (of_sns, "it has records of \"aws:sns\"".to_owned()),
        (
            json!({"Records": 1}),
            "a batch of SQS needs a list of messages in `Records`".to_owned(),
        ),
        (
            without_id,
            "an event of EventBridge needs a text in `id`".to_owned(),
        ),
        (
            without_detail,
            "an event of EventBridge needs a value in `detail`".to_owned(),
        ),
    ]
    .into_iter()
    .chain(records)
    {
        let (answer, seen) = seen(PlainMessages::default(), &payload).await;
        let Err(error) = answer else {
            panic!("{payload} was taken for an event: {answer:?}");
        };
        assert!(error.to_string().contains(&said), "{error}");
        assert!(matches!(
            error,
            FunctionError::Event(EventError::Envelope(_))
        ));
        assert_eq!(error.name(), "Envelope");
        assert!(seen.is_empty());
    }
}

#[tokio::test]
async fn no_error_shows_an_id() {
    const ID: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    let said = Arc::new(parking_lot::Mutex::new(String::new()));
    let heard = said.clone();
    let dispatcher = Dispatcher::new()
        .on("task", |_: u32, _| async { Err("failed") })
        .on("quick", |_: u32, _| async { Ok::<_, std::io::Error>(()) });
    let function = Function::new(Inbox::new(MemoryStore::default(), "tests"), dispatcher)
        .with_on_failure(move |failure| {
            *heard.lock() += &format!("{} {:?}\n", failure.error, failure.error);
        });
    let message = |kind: &str, detail: Value| message("m", &event(ID, kind, &detail).to_string());
    for messages in [
        message("unknown", json!(1)),
        message("task", json!("no number")),
        message("task", json!(1)),
        message("quick", json!(1)),
        // Mismatch: or, after a failure, the same.
        message("quick", json!(2)),
        json!({"id": ID}),
    ] {
        let answer = function.invoke(invocation(&batch([messages]))).await;
        if let Err(error) = answer {
            *said.lock() += &format!("{error} {error:?}\n");
        }
    }
    let said = said.lock();
    assert_eq!(said.lines().count(), 6, "{said}");
    assert!(!said.contains(ID), "{said}");
}
