//! The admin API.

use std::collections::HashSet;
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{PLACED, lose, post, read};
use crate::claims::api::Api;
use crate::support::{Gateway, Reaction, Script, eventually, get, order, request, send};

#[tokio::test]
async fn a_record_is_listed_shown_and_found_by_its_key() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(order(gateway.address, "order-4711").await.status, 201);
    let lost = lose(&upstream, &gateway, "order-4712").await;

    let page = read(&gateway, "records").await;
    let states: Vec<&Value> = page["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["state"])
        .collect();
    // What somebody should look at first.
    assert_eq!(states, ["unknown", "completed"]);
    assert_eq!(
        (&page["next"], &page["partial"]),
        (&Value::Null, &json!(false))
    );

    let unknown = read(&gateway, &format!("records/{lost}")).await;
    assert_eq!(unknown["id"], lost);
    assert_eq!(
        (&unknown["state"], &unknown["attempt"]),
        (&json!("unknown"), &json!(1))
    );
    assert_eq!(
        (&unknown["service"], &unknown["operation"]),
        (&json!("default"), &json!("http"))
    );
    assert_eq!(
        (&unknown["scope"], &unknown["key_hint"]),
        (&json!(["anonymous"]), &json!("order"))
    );
    assert_eq!(
        (&unknown["outcome"], &unknown["expires_at"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(unknown["actions"][0]["action"], "resolve --happened");

    let found = post(&gateway, "records/lookup", &json!({"key": "order-4711"})).await;
    let found: Value = serde_json::from_str(found.text()).unwrap();
    assert_eq!(found["state"], "completed");
    // No value of the answer is shown.
    let outcome = &found["outcome"];
    assert_eq!(
        (&outcome["status"], &outcome["body_bytes"]),
        (&json!(201), &json!(6))
    );
    assert_eq!(
        (&outcome["redacted"], &outcome["body"]),
        (&json!(true), &Value::Null)
    );
    let fields = outcome["headers"].as_array().unwrap();
    assert!(
        fields
            .iter()
            .any(|field| field["name"] == "x-part" && field["value"].is_null())
    );
    let other = json!({"key": "order-4711", "scope": ["somebody else"]});
    assert_eq!(
        post(&gateway, "records/lookup", &other).await.problem(),
        "no-record"
    );
    // What stands where a key does is not repeated (protocol rule R12).
    let wrong = post(&gateway, "records/lookup", &json!({"key": 47_114_711})).await;
    assert_eq!(wrong.problem(), "invalid-request");
    assert!(!format!("{wrong:?}").contains("47114711"), "{wrong:?}");
}

#[tokio::test]
async fn a_list_is_filtered_and_paged() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &["--service", "shop"]);
    for nth in 0..7 {
        assert_eq!(
            order(gateway.address, &format!("order-{nth}")).await.status,
            201
        );
    }
    let lost = lose(&upstream, &gateway, "lost-order").await;
    let ids = |page: &Value| -> Vec<String> {
        let records = page["records"].as_array().unwrap().iter();
        records
            .map(|record| record["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for (filter, count) in [
        ("", 8),
        ("state=unknown", 1),
        ("stuck=true", 1),
        ("lapsed=true", 0),
        (
            "state=completed&service=shop&operation=http&scope=anonymous",
            7,
        ),
        ("service=default", 0),
        ("scope=anony", 0),
        ("scope=anonymous&scope=more", 0),
        ("older=1h", 0),
        ("older=0s", 8),
    ] {
        assert_eq!(
            ids(&read(&gateway, &format!("records?{filter}")).await).len(),
            count,
            "{filter}"
        );
    }
    let (mut seen, mut cursor, mut pages) = (HashSet::new(), String::new(), 0);
    loop {
        let page = read(&gateway, &format!("records?limit=3{cursor}")).await;
        pages += 1;
        for id in ids(&page) {
            assert!(seen.insert(id), "twice");
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((seen.len(), seen.contains(&lost)), (8, true));
    assert!((3..=5).contains(&pages), "{pages}");
    for (query, part) in [
        ("state=lost", "state: there is no state `lost`"),
        ("method=POST", "method: there is no such filter"),
        ("limit=0", "limit: it is a number from 1 to 500"),
        ("cursor=***", "cursor: "),
    ] {
        let answer = get(gateway.admin, &format!("/api/v1/records?{query}")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (400, "invalid-request"),
            "{query}"
        );
        assert!(answer.text().contains(part), "{}", answer.text());
    }
}

#[tokio::test]
async fn what_happened_is_replayed_and_what_did_not_runs() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let paid = lose(&upstream, &gateway, "order-4711").await;
    let unpaid = lose(&upstream, &gateway, "order-4712").await;
    upstream.react(PLACED);
    assert_eq!(
        order(gateway.address, "order-4711").await.problem(),
        "outcome-unknown"
    );

    let fence = async |id: &str| read(&gateway, &format!("records/{id}")).await["fence"].clone();
    let happened = json!({
        "fence": fence(&paid).await, "reason": "charge ch_81 is in the books", "happened": true,
        "outcome": {"status": 201, "headers": {"x-by": "hand"}, "body": "paid"}, "ttl": "7d",
    });
    let done = post(&gateway, &format!("records/{paid}/resolve"), &happened).await;
    assert_eq!(done.status, 200, "{}", done.text());
    let done: Value = serde_json::from_str(done.text()).unwrap();
    assert_eq!(
        (&done["state"], &done["resolved"]["by"]),
        (&json!("completed"), &json!("local"))
    );
    let replay = order(gateway.address, "order-4711").await;
    assert_eq!(
        (replay.status.as_u16(), replay.text(), replay.is_replay()),
        (201, "paid", true)
    );
    assert_eq!(replay.header("x-by"), Some("hand"));

    let not =
        json!({"fence": fence(&unpaid).await, "reason": "nothing in the books", "happened": false});
    assert_eq!(
        post(&gateway, &format!("records/{unpaid}/resolve"), &not)
            .await
            .status,
        200
    );
    let ran = order(gateway.address, "order-4712").await;
    assert_eq!(
        (ran.status.as_u16(), ran.text(), ran.is_replay()),
        (201, "placed", false)
    );
}

/// Where an order says no `ttl`: as long as an answer that comes by itself. Routes say nothing of what the
/// claim API claims.
#[tokio::test]
async fn an_answer_is_kept_for_as_long_as_others() {
    let upstream = Script::start(PLACED).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let orders = "[[routes]]\npath = \"/orders\"\nttl = \"email\"\n";
    std::fs::write(file.path(), orders).unwrap();
    let flags = ["--ttl", "api", "--config", file.path().to_str().unwrap()];
    let gateway = Gateway::start(upstream.address, &flags);
    let api = Api::of(gateway.admin).await;
    let claimed = api.acquire("k", json!({})).await;
    claimed.told("unknown", json!({})).await;
    let lost = lose(&upstream, &gateway, "order-4711").await;
    for (id, hours) in [(&*lost, 1), (claimed.id(), 24)] {
        let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
        let happened = json!({
            "fence": fence, "reason": "seen", "happened": true, "outcome": {"kind": "success"},
        });
        let done = post(&gateway, &format!("records/{id}/resolve"), &happened).await;
        assert_eq!(done.status, 200, "{}", done.text());
        let record = read(&gateway, &format!("records/{id}")).await;
        let time = |of: &str| humantime::parse_rfc3339(record[of].as_str().unwrap()).unwrap();
        let kept = time("expires_at").duration_since(time("settled_at"));
        assert_eq!(kept.unwrap(), Duration::from_hours(hours), "{record}");
    }
}

#[tokio::test]
async fn an_action_is_refused_with_a_reason_of_its_own() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &["--lease", "60s"]);
    let lost = lose(&upstream, &gateway, "order-1").await;
    let seen = read(&gateway, &format!("records/{lost}")).await["fence"].clone();
    let whole = json!({"fence": seen, "reason": "r"});
    for (path, body, code) in [
        (
            format!("records/{lost}/release"),
            json!({"fence": seen}),
            "missing-reason",
        ),
        (
            format!("records/{lost}/release"),
            json!({"reason": "r"}),
            "invalid-request",
        ),
        (
            format!("records/{lost}/release"),
            json!({"fence": 1, "reason": "r"}),
            "record-changed",
        ),
        (
            format!("records/{lost}/release"),
            json!({"fence": seen, "reason": "r", "force": true}),
            "invalid-request",
        ),
        (
            format!("records/{lost}/free"),
            whole.clone(),
            "invalid-request",
        ),
        (
            format!("records/{lost}/resolve"),
            whole.clone(),
            "invalid-request",
        ),
        (
            format!("records/{lost}/reveal"),
            json!({"reason": "r"}),
            "wrong-state",
        ),
        (
            format!("records/{}/release", "0".repeat(64)),
            whole.clone(),
            "no-record",
        ),
        (
            "records/4711/release".to_owned(),
            whole.clone(),
            "not-found",
        ),
    ] {
        let answer = post(&gateway, &path, &body).await;
        assert_eq!(answer.problem(), code, "{path} {body}: {}", answer.text());
    }
    assert_eq!(
        read(&gateway, &format!("records/{lost}")).await["state"],
        "unknown"
    );
    // A completed record has nothing to decide about.
    upstream.react(PLACED);
    assert_eq!(
        post(&gateway, &format!("records/{lost}/release"), &whole)
            .await
            .status,
        200
    );
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    let done = read(&gateway, &format!("records/{lost}")).await["fence"].clone();
    let body = json!({"fence": done, "reason": "r"});
    assert_eq!(
        post(&gateway, &format!("records/{lost}/release"), &body)
            .await
            .problem(),
        "wrong-state"
    );
    // Its answer is shown to whoever says why.
    let answer = post(
        &gateway,
        &format!("records/{lost}/reveal"),
        &json!({"reason": "the customer asks"}),
    )
    .await;
    let answer: Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(
        (&answer["body"], &answer["redacted"]),
        (&json!("placed"), &json!(false))
    );
}

/// The claim API shows what its own work came to, and no answer to a request: nobody would be in the log.
#[tokio::test]
async fn an_answer_to_a_request_is_shown_nowhere_else() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(order(gateway.address, "order-1").await.text(), "placed");
    let id = upstream.fields("idempotency-id")[0][0].clone();
    let json = [("content-type", "application/json")];
    let ask = async |method: Method, path: &str, body: Value| -> Value {
        let request = request(method, gateway.admin, path, &json, &body.to_string());
        serde_json::from_str(send(request).await.unwrap().text()).unwrap()
    };
    let shown = async |id: &str| ask(Method::GET, &format!("/v1/claims/{id}"), json!({})).await;
    let of_request = shown(&id).await;
    assert_eq!(of_request["state"], "completed", "{of_request}");
    assert_eq!(of_request["outcome"], Value::Null);
    let claim = json!({"operation": "job", "key": "order-1"});
    let claimed = ask(Method::POST, "/v1/claims", claim).await;
    let id = claimed["id"].as_str().unwrap();
    let outcome = json!({"token": claimed["token"], "outcome": {"text": "settled"}});
    ask(Method::POST, &format!("/v1/claims/{id}/complete"), outcome).await;
    assert_eq!(shown(id).await["outcome"]["text"], "settled");
}

#[tokio::test]
async fn an_attempt_that_runs_is_not_decided_about() {
    let upstream = Script::start(Reaction::Silence).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let client = tokio::spawn(async move { order(gateway.address, "order-1").await.status });
    let gateway = Gateway::start(upstream.address, &[]);
    let address = gateway.address;
    let running = tokio::spawn(async move { order(address, "order-1").await.status });
    let record = eventually("an attempt", async || {
        read(&gateway, "records?state=in-flight").await["records"]
            .get(0)
            .cloned()
    })
    .await;
    let (id, fence) = (record["id"].as_str().unwrap(), &record["fence"]);
    let body = json!({"fence": fence, "reason": "impatient"});
    let refused = post(&gateway, &format!("records/{id}/release"), &body).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (409, "attempt-running")
    );
    assert_eq!(
        read(&gateway, &format!("records/{id}")).await["state"],
        "in-flight"
    );
    running.abort();
    client.abort();
}

/// Of many who decide at once one decides, and the others are told so.
#[tokio::test]
async fn one_of_many_operators_decides() {
    const OPERATORS: u64 = 12;
    let upstream = Script::start(PLACED).await;
    let gateway = std::sync::Arc::new(Gateway::start(upstream.address, &[]));
    let id = lose(&upstream, &gateway, "order-1").await;
    let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
    let mut deciding = JoinSet::new();
    for nth in 0..OPERATORS {
        let (gateway, id) = (std::sync::Arc::clone(&gateway), id.clone());
        let body = json!({
            "fence": fence, "reason": format!("operator {nth}"), "happened": true,
            "outcome": {"status": 201, "body": format!("answer {nth}")},
        });
        deciding.spawn(async move {
            let answer = post(&gateway, &format!("records/{id}/resolve"), &body).await;
            let is_done = answer.status == 200;
            let code = (!is_done).then(|| answer.problem());
            (nth, code)
        });
    }
    let decided = deciding.join_all().await;
    let done: Vec<u64> = decided
        .iter()
        .filter(|(_, code)| code.is_none())
        .map(|(nth, _)| *nth)
        .collect();
    assert_eq!(done.len(), 1, "{decided:?}");
    let others = decided.iter().filter_map(|(_, code)| code.as_deref());
    for code in others {
        assert_eq!(code, "record-changed");
    }
    let replay = order(gateway.address, "order-1").await;
    assert_eq!(replay.text(), format!("answer {}", done[0]));
    // Every one of them is in the log, under a number of its own.
    let log = read(&gateway, "audit").await;
    let entries = log["entries"].as_array().unwrap();
    let reasons: HashSet<&str> = entries
        .iter()
        .map(|entry| entry["reason"].as_str().unwrap())
        .collect();
    let results = entries
        .iter()
        .filter(|entry| entry["result"] == "done")
        .count();
    assert_eq!(
        (entries.len() as u64, reasons.len() as u64, results),
        (OPERATORS, OPERATORS, 1)
    );
}

#[tokio::test]
async fn what_holds_is_shown() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &["--ttl", "7d", "--on-lost", "retry"]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    assert!(order(gateway.address, "order-1").await.is_replay());
    let policy = read(&gateway, "policy").await;
    let route = &policy["routes"][0];
    assert_eq!(
        (&route["ttl"], &route["on_lost"]),
        (&json!("7days"), &json!("retry"))
    );
    assert_eq!(
        (&route["service"], &route["preset"]),
        (&json!("default"), &json!("ietf"))
    );
    let store = read(&gateway, "store").await;
    assert_eq!(
        (&store["store"], &store["survives"]),
        (&json!("file"), &json!("a loss of power"))
    );
    assert_eq!(store["finds_by_state"], true);
    let overview = read(&gateway, "overview").await;
    assert_eq!(overview["store"]["condition"], "up");
    assert_eq!(
        (
            &overview["events"]["replayed"],
            &overview["records"]["unknown"]["records"]
        ),
        (&json!(1), &json!(0))
    );
}

#[tokio::test]
async fn no_answer_is_kept_by_a_cache_and_no_page_of_another_site_changes_anything() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let id = lose(&upstream, &gateway, "order-1").await;
    let fence = read(&gateway, &format!("records/{id}")).await["fence"].clone();
    let answer = get(gateway.admin, "/api/v1/records").await;
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let body = json!({"fence": fence, "reason": "r"}).to_string();
    let path = format!("/api/v1/records/{id}/release");
    for fields in [
        &[("content-type", "text/plain")][..],
        &[
            ("content-type", "application/json"),
            ("origin", "https://evil.example"),
        ],
        &[
            ("content-type", "application/json"),
            ("sec-fetch-site", "cross-site"),
        ],
    ] {
        let answer = send(request(Method::POST, gateway.admin, &path, fields, &body))
            .await
            .unwrap();
        assert!(answer.status.is_client_error(), "{fields:?}: {answer:?}");
    }
    assert_eq!(
        read(&gateway, &format!("records/{id}")).await["state"],
        "unknown"
    );
}
