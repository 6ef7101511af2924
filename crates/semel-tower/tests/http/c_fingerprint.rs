//! C. Fingerprint (rows 23 to 33 and 35; 34 is AdCP's).

use axum::body::Body;
use http::header::USER_AGENT;
use semel::store::{Claim, ClaimRequest, Nonce, Retention, Store as _, StoreExt as _};
use semel::{Fingerprint, Outcome};
use semel_tower::{BodyForm, json};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::time::Duration;

use crate::support::{Answer, App, Call, K, Memory, layer, layer_over, order_record, pieces};

/// Whether the second call is a replay of the first; if not, it is a mismatch.
async fn same(form: BodyForm, first: Call, second: Call) -> bool {
    let app = App::orders(layer().with_body_form(form));
    let first = app.send(first).await;
    first.assert_first(201);
    let second = app.send(second).await;
    if second.is_replay() {
        second.assert_replay_of(&first);
    } else {
        second.assert_problem(422, "mismatch");
    }
    assert_eq!(app.execs(), 1);
    second.is_replay()
}

async fn same_body(form: BodyForm, first: &'static str, second: &'static str) -> bool {
    same(form, Call::order().body(first), Call::order().body(second)).await
}

#[tokio::test]
async fn row_23_another_payload_is_refused_and_poisons_nothing() {
    let app = App::orders(layer());
    let first = app.send(Call::order()).await;
    first.assert_first(201);
    app.send(Call::order().body("other"))
        .await
        .assert_problem(422, "mismatch");
    app.send(Call::order()).await.assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_24_method_path_and_query_count() {
    for uri in ["/orders?dry=1", "/orders/", "/orders?"] {
        assert!(
            !same(BodyForm::Raw, Call::order(), Call::post(uri).key(K)).await,
            "{uri}"
        );
    }
    // One target in two spellings (RFC 3986, section 6.2.2).
    assert!(same(BodyForm::Raw, Call::order(), Call::post("/%6frders").key(K)).await);
}

/// Another condition is another request: whoever read again and asks under the old key must not be
/// given the answer to the condition from before.
#[tokio::test]
async fn preconditions_count() {
    for field in ["if-match", "if-none-match"] {
        let with = |value| Call::order().header(field, value);
        let seven = || with("\"7\"");
        assert!(same(BodyForm::Raw, seven(), seven()).await, "{field}");
        assert!(
            !same(BodyForm::Raw, seven(), with("\"8\"")).await,
            "{field}"
        );
        assert!(
            !same(BodyForm::Raw, seven(), Call::order()).await,
            "{field}"
        );
        assert!(
            !same(BodyForm::Raw, Call::order(), seven()).await,
            "{field}"
        );
    }
    let (matches, none) = (("if-match", "*"), ("if-none-match", "*"));
    let with = |(field, value): (&'static str, &str)| Call::order().header(field, value);
    assert!(!same(BodyForm::Raw, with(matches), with(none)).await);
}

#[tokio::test]
async fn row_25_volatile_headers_do_not_count() {
    let retry = Call::order()
        .header("user-agent", "other")
        .header("date", "Sat, 21 Nov 2026 00:00:00 GMT")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .header("x-request-id", "2")
        .header("expect", "100-continue")
        .header("content-length", "16");
    assert!(same(BodyForm::Raw, Call::order(), retry.clone()).await);
    // With a stable principal, other credentials neither.
    let app = App::orders(layer().with_principal_header("x-user"));
    let call = || Call::order().header("x-user", "p");
    let first = app.send(call().header("authorization", "a")).await;
    app.send(call().header("authorization", "b"))
        .await
        .assert_replay_of(&first);
    // Unless they are chosen.
    let app = App::orders(layer().with_fingerprint_headers([USER_AGENT]));
    app.send(Call::order()).await.assert_first(201);
    app.send(retry).await.assert_problem(422, "mismatch");
}

#[tokio::test]
async fn row_26_framing_does_not_count() {
    use tower::ServiceExt as _;
    let app = App::orders(layer());
    let first = app
        .send(Call::order().body("3 apples").header("content-length", "8"))
        .await;
    let chunked = Call::order().request_with(pieces(&["3 ap", "", "ples"]));
    let retry = app.router.clone().oneshot(chunked).await.unwrap();
    Answer::of(retry).await.assert_replay_of(&first);
}

#[tokio::test]
async fn row_27_json_by_bytes_or_by_meaning() {
    for (first, second) in [
        (r#"{"b":2,"a":1}"#, r#"{"a":1.0,"b":2e0}"#),
        (r#"{"a":1}"#, " { \"a\" : 1 }\n"),
        (r#""/A""#, r#""\/\u0041""#),
    ] {
        assert!(!same_body(BodyForm::Raw, first, second).await, "{first}");
        assert!(same_body(BodyForm::Json, first, second).await, "{first}");
    }
    assert_eq!(
        hex(&json::canonical(br#"{"a":1.0,"b":2e0}"#).unwrap()),
        "43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"
    );
    // By its media type only, and not under a content coding.
    let (first, second) = (r#"{"a":1}"#, r#"{"a":1.0}"#);
    for (content_type, equal) in [
        ("application/json; charset=utf-8", true),
        ("Application/Merge-Patch+JSON", true),
        ("text/plain", false),
        ("application/jsonl", false),
    ] {
        let call = |body| Call::order().content_type(content_type).body(body);
        assert_eq!(same(BodyForm::Json, call(first), call(second)).await, equal);
    }
    let call = |body| Call::order().header("content-encoding", "x").body(body);
    assert!(!same(BodyForm::Json, call(first), call(second)).await);
}

fn hex(bytes: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    semel::IdentityDigest::from_bytes(digest).to_string()
}

/// Published vectors; what a double cannot hold is taken raw instead of collapsing (row 30).
#[test]
fn row_28_the_canonical_form_is_that_of_rfc_8785() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/jcs.json")).unwrap();
    let mut seen = 0;
    for vector in vectors.as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let canonical = json::canonical(vector["input"].as_str().unwrap().as_bytes());
        let Some(digest) = vector["sha256"].as_str() else {
            assert_eq!(canonical, None, "{name}");
            continue;
        };
        // A double does not keep the digits of 2^68, nor of the 333333333.33333329 in "exp".
        if ["2^68", "exp"].contains(&name) {
            assert_eq!(canonical, None, "{name}");
            continue;
        }
        let canonical = canonical.unwrap_or_else(|| panic!("{name} is not canonicalised"));
        assert_eq!(hex(&canonical), digest, "{name}");
        assert_eq!(
            String::from_utf8(canonical).unwrap(),
            vector["canonical"].as_str().unwrap()
        );
        seen += 1;
    }
    assert_eq!(seen, 11);
}

#[tokio::test]
async fn row_29_what_is_not_i_json_is_taken_byte_for_byte() {
    for (first, second) in [
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a": 1,"a":2}"#),
        (r#""\ud800""#, r#""\ud801""#),
        ("[1e400]", "[1e401]"),
        ("NaN", "NaN "),
        ("\u{feff}{}", "{}"),
    ] {
        assert!(!same_body(BodyForm::Json, first, second).await, "{first}");
        assert!(same_body(BodyForm::Json, first, first).await, "{first}");
    }
    let invalid = |byte: u8| Call::order().body(vec![b'"', byte, b'"']);
    assert!(!same(BodyForm::Json, invalid(0xff), invalid(0xfe)).await);
}

#[tokio::test]
async fn row_30_numbers_that_a_double_does_not_hold_do_not_collapse() {
    for (first, second) in [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740993", "9007199254740992"),
        ("295147905179352825856", "295147905179352830000"),
        ("18446744073709551615", "18446744073709551616"),
        // Nor do amounts with 18 digits behind the point.
        ("1.000000000000000001", "1.000000000000000002"),
        (r#"{"amount":100}"#, r#"{"amount":99.99999999999999999}"#),
    ] {
        assert!(!same_body(BodyForm::Json, first, second).await, "{first}");
    }
    assert!(same_body(BodyForm::Json, "1e21", "1E+21").await);
    assert!(same_body(BodyForm::Json, "4.50", "45e-1").await);
}

#[tokio::test]
async fn row_31_unicode_null_and_order_count() {
    for (first, second) in [
        ("\"\u{c5}\"", "\"A\u{30a}\""),
        (r#"{"a":null}"#, "{}"),
        ("[1,2]", "[2,1]"),
    ] {
        assert!(!same_body(BodyForm::Json, first, second).await, "{first}");
    }
}

#[tokio::test]
async fn row_32_of_the_content_type_only_the_media_type_counts() {
    let with = |value| Call::order().content_type(value);
    let json = || with("application/json");
    for value in [
        "application/json; charset=utf-8",
        "Application/JSON ;charset=x",
    ] {
        assert!(same(BodyForm::Raw, json(), with(value)).await, "{value}");
    }
    assert!(!same(BodyForm::Raw, json(), with("text/plain")).await);
}

/// Raw mode, as documented: a new boundary is another body.
#[tokio::test]
async fn row_33_a_multipart_body_with_a_new_boundary_is_another_body() {
    let with = |boundary: &str| {
        Call::order()
            .content_type(&format!("multipart/form-data; boundary={boundary}"))
            .body(format!("--{boundary}\r\n\r\nfield\r\n--{boundary}--\r\n"))
    };
    assert!(!same(BodyForm::Raw, with("x"), with("y")).await);
    assert!(same(BodyForm::Raw, with("x"), with("x")).await);
}

#[tokio::test]
async fn row_35_a_fingerprint_of_an_unknown_version_fails_closed() {
    let store = Memory::default();
    let (identity, fingerprint) = order_record();
    let mut bytes = fingerprint.to_bytes();
    bytes[0] = 0;
    let request = ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::from_bytes(bytes),
        Duration::from_secs(1),
    );
    let Claim::Acquired(acquired) = store.claim(&identity, &request).await.unwrap() else {
        panic!("the store is empty");
    };
    let retention = Retention::ORDER;
    let outcome = Outcome::success(b"old");
    let done = store.complete(identity.digest(), &acquired.token, &outcome, retention);
    assert_eq!(done.await.unwrap(), semel::store::Fenced::Applied);
    let app = App::orders(layer_over(&store));
    app.send(Call::order())
        .await
        .assert_problem(422, "mismatch");
    assert_eq!(app.execs(), 0);
}

#[tokio::test]
async fn a_body_that_is_too_large_or_breaks_off_is_not_run() {
    use tower::ServiceExt as _;
    let app = App::orders(layer().with_max_request_body(8));
    let send = async |body| {
        let request = Call::order().request_with(body);
        Answer::of(app.router.clone().oneshot(request).await.unwrap()).await
    };
    send(Body::from("123456789"))
        .await
        .assert_problem(413, "too-large");
    send(pieces(&["12345", "6789"]))
        .await
        .assert_problem(413, "too-large");
    let lying = Call::order().body("1").header("content-length", "9");
    app.send(lying).await.assert_problem(413, "too-large");
    let (sender, broken) = http_body_util::channel::Channel::<bytes::Bytes, std::io::Error>::new(1);
    sender.abort(std::io::Error::other("the connection broke"));
    send(Body::new(broken))
        .await
        .assert_problem(400, "incomplete-body");
    assert_eq!(app.execs(), 0);
    send(pieces(&["1234", "5678"])).await.assert_first(201);
}

#[tokio::test]
async fn a_limit_outside_the_layer_is_told_from_a_broken_body() {
    use tower::ServiceExt as _;
    let mut app = App::orders(layer());
    app.router = app
        .router
        .layer(tower_http::limit::RequestBodyLimitLayer::new(8));
    let request = Call::order().request_with(pieces(&["12345", "6789"]));
    let answer = app.router.clone().oneshot(request).await.unwrap();
    Answer::of(answer).await.assert_problem(413, "too-large");
}

#[tokio::test]
async fn a_convention_may_make_its_own_fingerprint() {
    let app = App::orders(layer().with_fingerprint_by(|_, body| Fingerprint::of(&body[..2])));
    let first = app.send(Call::order().body("ab1")).await;
    app.send(Call::order().body("ab2"))
        .await
        .assert_replay_of(&first);
    app.send(Call::order().body("bb1"))
        .await
        .assert_problem(422, "mismatch");
}
