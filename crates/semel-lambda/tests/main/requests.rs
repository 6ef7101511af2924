//! HTTP requests as API Gateway brings them.

use serde_json::{Value, json};

use crate::stage::{Answered, Sandbox, invoke, start};

fn post() -> Value {
    serde_json::from_str(include_str!("../../examples/events/post.json")).unwrap()
}

async fn response(sandbox: &Sandbox, request: &Value) -> Value {
    match invoke(sandbox, request).await {
        Answered::Response(response) => response,
        Answered::Error(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_request_with_a_key_is_answered_once_and_replayed_by_any_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("orders.db").display().to_string();
    let variables = [("ORDERS", file)];
    let one = start("orders_api", &variables).await;
    let two = start("orders_api", &variables).await;

    let first = response(&one, &post()).await;
    assert_eq!(first["statusCode"], 201);
    assert_eq!(first["headers"]["idempotency-replayed"], Value::Null);
    for sandbox in [&one, &two] {
        let again = response(sandbox, &post()).await;
        assert_eq!(again["headers"]["idempotency-replayed"], "true");
        assert_eq!(
            (&again["statusCode"], &again["body"]),
            (&json!(201), &first["body"])
        );
    }

    let mut other = post();
    other["body"] = json!("4 apples");
    let mismatch = response(&two, &other).await;
    assert_eq!(mismatch["statusCode"], 422);

    // Encoded it is the same request.
    let mut encoded = post();
    encoded["body"] = json!("MyBhcHBsZXM=");
    encoded["isBase64Encoded"] = json!(true);
    let again = response(&two, &encoded).await;
    assert_eq!(again["headers"]["idempotency-replayed"], "true");

    // The key of somebody else is another key.
    let mut of_another = post();
    of_another["requestContext"]["authorizer"]["jwt"]["claims"]["sub"] = json!("grace");
    let own = response(&two, &of_another).await;
    assert_eq!(own["statusCode"], 201);
    assert_eq!(own["headers"]["idempotency-replayed"], Value::Null);
    assert_ne!(own["body"], first["body"]);

    let mut of_nobody = post();
    of_nobody["requestContext"]["authorizer"] = Value::Null;
    let refused = response(&two, &of_nobody).await;
    assert_eq!(refused["statusCode"], 400);
}
