//! Presets, names of fields, and what is among the extensions of answers.

use axum::http::header::HeaderName;
use semel::guard::Policy;
use semel::store::Retention;
use semel_tower::IdempotencyLayer;

use crate::support::{App, Call, K, Memory, layer_over, order_record};

fn as_account(call: Call) -> Call {
    call.header("x-account", "acme")
}

#[tokio::test]
async fn payments_need_a_key_and_a_principal() {
    type Preset = fn(Memory) -> IdempotencyLayer<Memory>;
    let presets: [(Preset, Retention); 2] = [
        (IdempotencyLayer::payments, Retention::PAYMENT),
        (IdempotencyLayer::orders, Retention::ORDER),
    ];
    for (preset, retention) in presets {
        let layer = preset(Memory::default()).with_principal_header("x-account");
        assert_eq!(layer.guard().policy().retention(), retention);
        assert!(!layer.guard().policy().wait().is_zero());
        let app = App::orders(layer);
        app.send(as_account(Call::post("/orders")))
            .await
            .assert_problem(400, "missing-key");
        app.send(Call::order())
            .await
            .assert_problem(400, "missing-principal");
        assert_eq!(app.execs(), 0);
        let first = app.send(as_account(Call::order())).await;
        first.assert_first(201);
        app.send(as_account(Call::order()))
            .await
            .assert_replay_of(&first);
    }
}

#[tokio::test]
async fn fields_are_named_by_literals_and_by_names() {
    let named = layer_over(&Memory::default())
        .with_key_header("X-Request-Key")
        .with_principal_header(HeaderName::from_static("x-account"))
        .with_fingerprint_headers(["x-version"]);
    let app = App::orders(named);
    let call = |version| {
        let call = Call::post("/orders").header("x-request-key", K);
        as_account(call).header("x-version", version)
    };
    let first = app.send(call("1")).await;
    app.send(call("1")).await.assert_replay_of(&first);
    app.send(call("2")).await.assert_problem(422, "mismatch");
}

#[test]
#[should_panic(expected = "invalid")]
fn a_literal_that_is_no_name_fails_when_the_layer_is_made() {
    drop(layer_over(&Memory::default()).with_principal_header("x account"));
}

#[tokio::test]
async fn every_answer_to_a_key_names_its_operation() {
    let store = Memory::default();
    let policy = Policy::default().with_key_required(true);
    let app = App::orders(IdempotencyLayer::new(store.clone()).with_policy(policy));
    let (identity, _) = order_record();
    let of = |answer: &crate::support::Answer| {
        let operation = answer.operation.expect("it has a name");
        (operation.id, operation.attempt)
    };
    let ran = app.send(Call::order()).await;
    assert_eq!(of(&ran), (*identity.digest(), Some(1)));
    let replayed = app.send(Call::order()).await;
    assert!(replayed.is_replay());
    assert_eq!(of(&replayed), (*identity.digest(), None));
    let mismatch = app.send(Call::order().body("other")).await;
    mismatch.assert_problem(422, "mismatch");
    assert_eq!(of(&mismatch), (*identity.digest(), None));
    let refused = app.send(Call::post("/orders")).await;
    refused.assert_problem(400, "missing-key");
    assert!(refused.operation.is_none());
}
