//! The claim API.

pub(crate) mod api;
mod described;
mod rights;
#[cfg(feature = "sqlite")]
mod shared;
mod waiting;

use std::time::Duration;

use serde_json::json;

use self::api::{Api, Held, said};
use crate::support::{Gateway, eventually, get};

/// Nothing listens there: no request goes to an upstream.
fn nowhere() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 9).into()
}

fn gateway() -> Gateway {
    Gateway::start(nowhere(), &[])
}

const CLAIMERS: usize = 32;

/// Of any number of claims at once one is acquired (R1), and all see its outcome.
#[tokio::test]
async fn one_of_many_claims_is_acquired() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let all = || async {
        let claims = (0..CLAIMERS).map(|_| {
            let api = api.clone();
            tokio::spawn(async move { api.claim("race", json!({})).await })
        });
        let mut answers = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            answers.push(claim.await.unwrap());
        }
        answers
    };
    let answers = all().await;
    let (acquired, others): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(acquired.len(), 1);
    for other in others {
        assert_eq!(
            (other.status.as_u16(), &*other.problem()),
            (409, "in-flight")
        );
        assert_eq!(other.header("retry-after"), Some("1"));
        assert_eq!(said(&other)["id"], said(&acquired[0])["id"]);
    }
    let held = Held {
        api: api.clone(),
        said: said(&acquired[0]),
    };
    held.told("complete", json!({"outcome": {"json": {"n": 1}}}))
        .await;
    for answer in all().await {
        assert_eq!(answer.status, 200);
        assert_eq!(said(&answer)["outcome"]["json"], json!({"n": 1}));
    }
    let metrics = gateway.metrics().await;
    for (event, count) in [("new", 1), ("completed", 1), ("replayed", CLAIMERS)] {
        let line = format!("semel_events_total{{event=\"{event}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// A claim whose answer was lost is sent again.
#[tokio::test]
async fn the_same_nonce_gets_the_same_token() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let nonce = json!({"nonce": "00112233445566778899AABBCCDDEEFF", "payload": [1]});
    let held = api.acquire("k", nonce.clone()).await;
    let again = api.acquire("k", nonce.clone()).await;
    assert_eq!(held.said, again.said);
    // A program that was restarted finds what it finished.
    held.told("steps", json!({"name": "a", "result": {"text": "done"}}))
        .await;
    let again = api.acquire("k", nonce.clone()).await;
    assert_eq!(again.token(), held.token());
    assert_eq!(again.said["steps"][0]["name"], "a");
    assert_eq!(again.said["steps"][0]["result"]["text"], "done");
    for other in [
        json!({"payload": [1]}),
        json!({"payload": [1], "nonce": "0".repeat(32)}),
    ] {
        assert_eq!(api.claim("k", other).await.problem(), "in-flight");
    }
    held.told("complete", json!({})).await;
    assert_eq!(api.claim("k", nonce).await.status, 200);
}

#[tokio::test]
async fn the_nonce_of_an_abandoned_attempt_begins_and_awaits_nothing() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let claim = json!({"nonce": "0".repeat(32), "payload": [1], "wait": "10m"});
    api.acquire("k", claim.clone())
        .await
        .told("abandon", json!({}))
        .await;
    let refused = api.claim("k", claim).await;
    assert_eq!(refused.problem(), "in-flight");
    assert!(
        refused.text().contains("another nonce"),
        "{}",
        refused.text()
    );
    api.acquire("k", json!({"payload": [2]})).await;
}

#[tokio::test]
async fn another_payload_is_a_mismatch_and_changes_nothing() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api
        .acquire("k", json!({"payload": {"a": 1, "b": [true]}}))
        .await;
    let before = api.show(held.id()).await;
    for other in [
        json!({"payload": {"a": 2}}),
        json!({"payload_base64": "YQ=="}),
        json!({}),
    ] {
        let answer = api.claim("k", other).await;
        assert_eq!(
            (answer.status.as_u16(), &*answer.problem()),
            (422, "mismatch")
        );
    }
    assert_eq!(api.show(held.id()).await, before);
    let same = json!({"payload": {"b": [true], "a": 1}});
    assert_eq!(api.claim("k", same.clone()).await.problem(), "in-flight");
    held.told("complete", json!({})).await;
    assert_eq!(api.claim("k", json!({})).await.problem(), "mismatch");
    assert_eq!(api.claim("k", same).await.status, 200);
    // Another service, operation or scope is another record.
    for other in [
        json!({"service": "orders"}),
        json!({"operation": "b"}),
        json!({"scope": [""]}),
    ] {
        api.acquire("k", other).await;
    }
}

/// Only the current token changes anything (R4).
#[tokio::test]
async fn a_stale_token_changes_nothing() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let lost = api.acquire("k", json!({"lease": "100ms"})).await;
    let taken = json!({"on_lost": "retry", "wait": "1m"});
    let held = api.acquire("k", taken).await;
    assert_eq!(held.said["attempt"], 2);
    assert!(held.said["fence"].as_u64() > lost.said["fence"].as_u64());
    let before = api.show(held.id()).await;
    for endpoint in ["renew", "complete", "abandon", "unknown"] {
        let answer = lost.tell(endpoint, json!({})).await;
        assert_eq!(
            (answer.status.as_u16(), &*answer.problem()),
            (409, "stale"),
            "{endpoint}"
        );
        assert_eq!(said(&answer)["reason"], "superseded");
    }
    let answer = lost.tell("steps", json!({"name": "a"})).await;
    assert_eq!(said(&answer)["reason"], "superseded");
    let answer = lost.tell("abandon", json!({"keys_given": true})).await;
    assert_eq!(said(&answer)["reason"], "superseded");
    assert_eq!(api.show(held.id()).await, before);
    // What is settled stays so; what was told before may be told again.
    let outcome = json!({"outcome": {"text": "done"}});
    for _ in 0..2 {
        let told = held.told("complete", outcome.clone()).await;
        assert_eq!(told, json!({"state": "completed", "omitted": false}));
    }
    for (endpoint, more) in [
        ("complete", json!({"outcome": {"text": "other"}})),
        ("abandon", json!({})),
        ("unknown", json!({})),
        ("renew", json!({})),
        ("steps", json!({"name": "a"})),
    ] {
        let answer = held.tell(endpoint, more).await;
        assert_eq!(said(&answer)["reason"], "completed", "{endpoint}");
    }
    let nobody = Held {
        said: json!({"id": "0".repeat(64), "token": held.token()}),
        ..held.clone()
    };
    assert_eq!(
        said(&nobody.tell("renew", json!({})).await)["reason"],
        "missing"
    );
    let metrics = gateway.metrics().await;
    assert!(
        metrics.contains("semel_events_total{event=\"stale\"} 12\n"),
        "{metrics}"
    );
}

/// R7: a lost attempt is not run again, unless the claim says so.
#[tokio::test]
async fn a_lost_attempt_is_held_until_its_outcome_comes() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let lost = api.acquire("k", json!({"lease": "100ms"})).await;
    let answer = api.claim("k", json!({"wait": "1m"})).await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.problem()),
        (409, "outcome-unknown")
    );
    assert_eq!(said(&answer)["fence"], lost.said["fence"]);
    assert_eq!(api.show(lost.id()).await["state"], "unknown");
    lost.told(
        "complete",
        json!({"outcome": {"kind": "failure", "code": 7}}),
    )
    .await;
    let outcome = said(&api.claim("k", json!({})).await)["outcome"].clone();
    assert_eq!(outcome, json!({"kind": "failure", "code": 7}));
    // One that says itself that it does not know.
    let marked = api.acquire("m", json!({})).await;
    for _ in 0..2 {
        assert_eq!(
            marked.told("unknown", json!({})).await,
            json!({"state": "unknown"})
        );
    }
    assert_eq!(api.claim("m", json!({})).await.problem(), "outcome-unknown");
    let again = api.acquire("m", json!({"on_lost": "retry"})).await;
    assert_eq!(again.said["attempt"], 2);
    for _ in 0..2 {
        assert_eq!(
            again.told("abandon", json!({})).await,
            json!({"state": "released"})
        );
    }
    assert_eq!(api.acquire("m", json!({})).await.said["attempt"], 3);
}

#[tokio::test]
async fn a_lease_is_prolonged() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({"lease": "100ms"})).await;
    assert_eq!(held.said["lease_ms"], 100);
    assert_eq!(
        held.told("renew", json!({})).await,
        json!({"lease_ms": 100})
    );
    let hour = held.told("renew", json!({"lease": "1h"})).await;
    assert_eq!(hour, json!({"lease_ms": 3_600_000}));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        api.claim("k", json!({"on_lost": "retry"})).await.problem(),
        "in-flight"
    );
}

#[tokio::test]
async fn outcomes_expire_as_they_were_told_to() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let claimed = json!({"lease": "100ms", "ttl": "200ms"});
    let held = api.acquire("k", claimed.clone()).await;
    held.told("complete", json!({})).await;
    eventually("the end of retention", || async {
        let answer = api.claim("k", claimed.clone()).await;
        (answer.status == 201).then_some(())
    })
    .await;
    let held = api
        .acquire("t", json!({"lease": "100ms", "tombstone": "1h"}))
        .await;
    held.told("complete", json!({"ttl": "100ms"})).await;
    eventually("the tombstone", || async {
        let answer = api.claim("t", json!({})).await;
        (answer.status == 409).then(|| assert_eq!(answer.problem(), "expired"))
    })
    .await;
    let held = api.acquire("p", json!({"ttl": "payment"})).await;
    held.told("complete", json!({})).await;
    let remaining = said(&api.claim("p", json!({})).await)["remaining_ms"]
        .as_u64()
        .unwrap();
    let week = 7 * 24 * 3_600_000;
    assert!((week - 600_000..=week).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn a_takeover_continues_after_the_last_step() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let first = api.acquire("k", json!({"lease": "100ms"})).await;
    let charge = json!({"name": "charge", "result": {"json": {"id": "ch_1"}}});
    for _ in 0..2 {
        assert_eq!(
            first.told("steps", charge.clone()).await,
            json!({"steps": 1})
        );
    }
    let other = json!({"name": "charge", "result": {"json": {"id": "ch_2"}}});
    let answer = first.tell("steps", other).await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.problem()),
        (409, "step-conflict")
    );
    assert_eq!(
        first.told("steps", json!({"name": "mail"})).await,
        json!({"steps": 2})
    );
    let large = json!({"name": "large", "result": {"text": "x".repeat(70_000)}});
    let answer = first.tell("steps", large).await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.problem()),
        (413, "too-large")
    );
    let second = api
        .acquire("k", json!({"on_lost": "retry", "wait": "1m"}))
        .await;
    let steps = &second.said["steps"];
    assert_eq!(steps.as_array().unwrap().len(), 2);
    assert_eq!(steps[0]["name"], "charge");
    assert_eq!(steps[0]["result"]["json"], json!({"id": "ch_1"}));
    assert_eq!(
        steps[1],
        json!({"name": "mail", "result": {"kind": "success", "code": 0}})
    );
    assert_eq!(second.said["since"], first.said["since"]);
    assert_eq!(api.show(second.id()).await["steps"], *steps);
    second.told("complete", json!({})).await;
    assert_eq!(api.show(second.id()).await["steps"], json!([]));
}

/// A release after step keys were given out is remembered for longer.
#[tokio::test]
async fn who_gave_out_step_keys_can_say_so() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({"payload": 1})).await;
    for _ in 0..2 {
        held.told("abandon", json!({"keys_given": true})).await;
    }
    let shown = api.show(held.id()).await;
    assert_eq!(
        (&shown["state"], &shown["steps"]),
        (&json!("released"), &json!([]))
    );
    assert_eq!(
        api.claim("k", json!({"payload": 2})).await.problem(),
        "mismatch"
    );
    let again = api.acquire("k", json!({"payload": 1})).await;
    assert_eq!(again.said["since"], held.said["since"]);
    // Without, another payload is welcome.
    let plain = api.acquire("p", json!({"payload": 1})).await;
    plain.told("abandon", json!({})).await;
    api.acquire("p", json!({"payload": 2})).await;
}

/// The record is the store's: neither a claim nor its token ends with the process.
#[tokio::test]
async fn a_claim_outlives_the_gateway() {
    let gateway = gateway();
    let directory = gateway.directory();
    let api = Api::of(gateway.admin).await;
    let held = api.acquire("k", json!({"payload": {"n": 1}})).await;
    held.told("steps", json!({"name": "a", "result": {"base64": "/wA="}}))
        .await;
    gateway.kill();
    let gateway = Gateway::start_in(&directory, nowhere(), &[]);
    let api = Api::of(gateway.admin).await;
    let held = Held {
        api: api.clone(),
        ..held
    };
    let answer = api.claim("k", json!({"payload": {"n": 1}})).await;
    assert_eq!(answer.problem(), "in-flight");
    held.told("renew", json!({})).await;
    assert_eq!(
        held.told("steps", json!({"name": "b"})).await,
        json!({"steps": 2})
    );
    held.told("complete", json!({"outcome": {"json": [1.50]}}))
        .await;
    gateway.kill();
    let gateway = Gateway::start_in(&directory, nowhere(), &[]);
    let api = Api::of(gateway.admin).await;
    let replayed = api.claim("k", json!({"payload": {"n": 1}})).await;
    assert_eq!(replayed.status, 200);
    assert_eq!(said(&replayed)["outcome"]["json"], json!([1.50]));
    let shown = api.show(held.id()).await;
    assert_eq!(shown["state"], "completed");
    assert_eq!(shown["outcome"], said(&replayed)["outcome"]);
}

/// R12, and a body that is too large for a request.
#[tokio::test]
async fn keys_are_in_no_log_and_no_answer() {
    let gateway = Gateway::start(nowhere(), &["--log-level", "debug"]);
    let api = Api::of(gateway.admin).await;
    let key = "secret-key-0123456789";
    let held = api
        .acquire(key, json!({"service": "orders", "scope": ["acme"]}))
        .await;
    let shown = api.show(held.id()).await;
    assert_eq!(shown["key_hint"], "secret-k");
    assert_eq!(
        (&shown["service"], &shown["operation"]),
        (&json!("orders"), &json!("job"))
    );
    assert_eq!(shown["scope"], json!(["acme"]));
    let mut answers = vec![shown.to_string()];
    for wrong in [
        format!(r#"{{"operation": "job", "key": "{key}"#),
        format!(r#"{{"operation": "job", "key": ["{key}"]}}"#),
        format!(r#"{{"operation": "job", "key": "k", "scope": "{key}"}}"#),
        format!(r#"{{"operation": "job", "key": "k", "on_lost": "{key}"}}"#),
        format!(r#"{{"operation": "job", "key": "{key}\n"}}"#),
    ] {
        let answer = api.ask("POST", "/v1/claims", &wrong).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        answers.push(answer.text().to_owned());
    }
    let large = json!({"outcome": {"text": "x".repeat(2 << 20)}});
    assert_eq!(held.tell("complete", large).await.problem(), "too-large");
    for text in answers
        .iter()
        .chain([&gateway.log(), &gateway.metrics().await])
    {
        assert!(!text.contains(key), "{text}");
    }
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
}
