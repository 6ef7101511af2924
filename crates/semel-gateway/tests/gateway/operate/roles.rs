//! Who may do what.

use axum::http::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{PLACED, failed, semel};
use crate::support::{Answer, Gateway, Reaction, Script, order, request, send};

const ROLES: [&str; 4] = ["none", "read-only", "operator", "admin"];

fn token(role: &str) -> String {
    format!("0123456789abcdef-{role}")
}

fn configuration(upstream: std::net::SocketAddr, more: &str) -> String {
    let tokens = ROLES.map(|role| {
        let digest = Sha256::digest(token(role));
        let digest = hex::encode(digest);
        let rights = match role {
            "none" => "claims = [\"*/*\"]".to_owned(),
            role => format!("role = \"{role}\""),
        };
        format!("[[tokens]]\nname = \"{role}-name\"\nsha256 = \"{digest}\"\n{rights}\n")
    });
    format!(
        "upstream = \"http://{upstream}\"\n{more}{}",
        tokens.concat()
    )
}

async fn ask(gateway: &Gateway, role: &str, method: Method, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {}", token(role));
    asked(gateway, Some(&bearer), method, path, body).await
}

async fn asked(
    gateway: &Gateway,
    credentials: Option<&str>,
    method: Method,
    path: &str,
    body: &Value,
) -> Answer {
    let mut fields = vec![("content-type", "application/json")];
    fields.extend(credentials.map(|credentials| ("authorization", credentials)));
    let path = format!("/api/v1/{path}");
    let request = request(method, gateway.admin, &path, &fields, &body.to_string());
    send(request).await.unwrap()
}

/// That of a record now.
async fn fence(gateway: &Gateway, id: &str) -> Value {
    let seen = ask(
        gateway,
        "read-only",
        Method::GET,
        &format!("records/{id}"),
        &json!({}),
    )
    .await;
    let seen: Value = serde_json::from_str(seen.text()).unwrap();
    seen["fence"].clone()
}

#[tokio::test]
async fn each_role_may_do_its_own() {
    let upstream = Script::start(PLACED).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), configuration(upstream.address, "")).unwrap();
    let gateway = Gateway::start_with(file.path(), &[]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    upstream.react(Reaction::Close);
    order(gateway.address, "order-2").await;
    let names = upstream.fields("idempotency-id");
    let [done, lost] = [&names[0][0], &names[1][0]];
    let ask = async |role: Option<&str>, method: Method, path: &str, body: &Value| match role {
        Some(role) => ask(&gateway, role, method, path, body).await,
        None => asked(&gateway, None, method, path, body).await,
    };
    let reason = json!({"reason": "r", "fence": 1, "scope": []});
    // What is asked, and from which role on it is more than forbidden.
    for (method, path, least) in [
        (Method::GET, "records".to_owned(), 1),
        (Method::GET, "overview".to_owned(), 1),
        (Method::GET, "audit".to_owned(), 1),
        (Method::GET, "policy".to_owned(), 1),
        (Method::GET, "store".to_owned(), 1),
        (Method::GET, format!("records/{done}"), 1),
        (Method::POST, "records/lookup".to_owned(), 1),
        (Method::POST, format!("records/{lost}/resolve"), 2),
        (Method::POST, format!("records/{lost}/release"), 2),
        (Method::POST, format!("records/{done}/extend"), 2),
        (Method::POST, format!("records/{done}/reveal"), 2),
        (Method::POST, format!("records/{done}/erase"), 3),
        (Method::POST, "purge".to_owned(), 3),
        (Method::POST, "reencrypt".to_owned(), 3),
        (Method::POST, "erase".to_owned(), 3),
    ] {
        let answer = ask(None, method.clone(), &path, &reason).await;
        assert_eq!(answer.problem(), "unauthorized", "{path}");
        for (rank, role) in ROLES.into_iter().enumerate() {
            let answer = ask(Some(role), method.clone(), &path, &reason).await;
            let is_forbidden = answer.status == 403;
            assert_eq!(is_forbidden, rank < least, "{role} {path}: {answer:?}");
        }
    }
    // The log has the token's name.
    let body = json!({"reason": "nothing happened", "fence": 1});
    ask(
        Some("operator"),
        Method::POST,
        &format!("records/{lost}/release"),
        &body,
    )
    .await;
    let log = ask(Some("read-only"), Method::GET, "audit?limit=1", &json!({})).await;
    let log: Value = serde_json::from_str(log.text()).unwrap();
    assert_eq!(log["entries"][0]["by"], "operator-name");

    let admin = format!("http://{}", gateway.admin);
    let (_, why) = failed(&semel(&["records", "list", "--admin", &admin]));
    assert!(why.contains("--token-file"), "{why}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), token("read-only") + "\n").unwrap();
    let with = [
        "--admin",
        &admin,
        "--token-file",
        file.path().to_str().unwrap(),
    ];
    let list = semel(&[&["records", "list", "--json"][..], &with].concat());
    assert_eq!(super::lines(&list).len(), 2);
    let release = ["records", "release", lost, "--reason", "r", "--yes"];
    let (_, why) = failed(&semel(&[&release[..], &with].concat()));
    assert!(why.contains("forbidden"), "{why}");
    // Not over a network that anybody may listen on.
    let far = [
        "records",
        "list",
        "--admin",
        "http://semel.internal:8081",
        "--token-file",
    ];
    let (code, why) = failed(&semel(
        &[&far[..], &[file.path().to_str().unwrap()]].concat(),
    ));
    assert!(code == 2 && why.contains("https://"), "{why}");
}

#[tokio::test]
async fn what_needs_two_is_done_by_two() {
    let upstream = Script::start(PLACED).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = "four-eyes = [\"resolve\", \"erase\"]\n";
    std::fs::write(file.path(), configuration(upstream.address, settings)).unwrap();
    let gateway = Gateway::start_with(file.path(), &[]);
    upstream.react(Reaction::Close);
    order(gateway.address, "order-1").await;
    let id = upstream.fields("idempotency-id")[0][0].clone();
    let ask = async |role: &str, method: Method, path: &str, body: &Value| {
        ask(&gateway, role, method, path, body).await
    };
    let mut body = json!({
        "fence": fence(&gateway, &id).await, "reason": "in the books", "happened": true,
        "outcome": {"status": 201, "body": "paid"},
    });
    let path = format!("records/{id}/resolve");
    let proposed = ask("operator", Method::POST, &path, &body).await;
    assert_eq!(proposed.status, 202, "{proposed:?}");
    let proposed: Value = serde_json::from_str(proposed.text()).unwrap();
    assert_eq!(
        (&proposed["proposed"], &proposed["state"]),
        (&json!(true), &json!("unknown"))
    );
    assert_eq!(
        order(gateway.address, "order-1").await.problem(),
        "outcome-unknown"
    );

    body["proposal"] = proposed["audit"].clone();
    let own = ask("operator", Method::POST, &path, &body).await;
    assert_eq!(own.problem(), "not-confirmed", "{own:?}");
    for (member, value) in [
        ("outcome", json!({"status": 201, "body": "paid more"})),
        ("ttl", json!("7d")),
        ("proposal", json!("692-999")),
        ("proposal", json!("x")),
    ] {
        let mut other = body.clone();
        other[member] = value;
        let refused = ask("admin", Method::POST, &path, &other).await;
        assert_eq!(refused.problem(), "not-confirmed", "{member}: {refused:?}");
    }
    assert_eq!(
        order(gateway.address, "order-1").await.problem(),
        "outcome-unknown"
    );
    // Another reason is no other order.
    body["reason"] = json!("I saw it too");
    let done = ask("admin", Method::POST, &path, &body).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(order(gateway.address, "order-1").await.text(), "paid");
    let again = ask("admin", Method::POST, &path, &body).await;
    assert_eq!(again.problem(), "record-changed", "{again:?}");
    // What is not named needs one.
    let reveal = ask(
        "operator",
        Method::POST,
        &format!("records/{id}/reveal"),
        &json!({"reason": "r"}),
    )
    .await;
    assert_eq!(reveal.status, 200, "{reveal:?}");
    let log = ask("read-only", Method::GET, "audit", &json!({})).await;
    let log: Value = serde_json::from_str(log.text()).unwrap();
    let found: Vec<[&str; 2]> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| ["by", "result"].map(|member| entry[member].as_str().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            ["operator-name", "done"],
            ["admin-name", "done"],
            ["operator-name", "proposed"],
        ]
    );
    assert_eq!(log["entries"][1]["confirms"], proposed["audit"]);
    assert!(!log.to_string().contains("paid"), "{log}");
}

/// What two agreed on is done once.
#[tokio::test]
async fn a_proposal_is_confirmed_once() {
    let upstream = Script::start(PLACED).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let settings = "four-eyes = [\"reveal\"]\n";
    std::fs::write(file.path(), configuration(upstream.address, settings)).unwrap();
    let gateway = Gateway::start_with(file.path(), &[]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    let id = upstream.fields("idempotency-id")[0][0].clone();
    let path = format!("records/{id}/reveal");
    let reveal = async |role, body: Value| ask(&gateway, role, Method::POST, &path, &body).await;
    let proposed = reveal("operator", json!({"reason": "the customer asks"})).await;
    assert_eq!(proposed.status, 202, "{proposed:?}");
    let proposed: Value = serde_json::from_str(proposed.text()).unwrap();
    let confirm = json!({"reason": "so it is", "proposal": proposed["audit"]});
    // Also of several at once.
    let both = tokio::join!(
        reveal("admin", confirm.clone()),
        reveal("admin", confirm.clone())
    );
    let mut statuses = [both.0.status.as_u16(), both.1.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 403]);
    assert_eq!(reveal("admin", confirm).await.problem(), "not-confirmed");
}

/// Either of the two gives a key back: neither is a way around the other.
#[tokio::test]
async fn whoever_needs_two_to_resolve_needs_two_to_release() {
    for (named, action, more) in [
        ("resolve", "release", json!({})),
        ("release", "resolve", json!({"happened": false})),
    ] {
        let upstream = Script::start(PLACED).await;
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = format!("four-eyes = [\"{named}\"]\n");
        std::fs::write(file.path(), configuration(upstream.address, &settings)).unwrap();
        let gateway = Gateway::start_with(file.path(), &[]);
        let id = super::lose(&upstream, &gateway, "order-1").await;
        upstream.react(PLACED);
        let (path, mut body) = (format!("records/{id}/{action}"), more);
        (body["fence"], body["reason"]) =
            (fence(&gateway, &id).await, json!("nothing in the books"));
        let mut earlier = body.clone();
        earlier["fence"] = json!(1);
        let earlier = ask(&gateway, "admin", Method::POST, &path, &earlier).await;
        assert_eq!(earlier.problem(), "record-changed");
        let proposed = ask(&gateway, "admin", Method::POST, &path, &body).await;
        assert_eq!(proposed.status, 202, "{action}: {proposed:?}");
        let refused = order(gateway.address, "order-1").await;
        assert_eq!(refused.problem(), "outcome-unknown", "{action}");
        // Whoever looks at the record in a browser sees it, however it was proposed.
        let bearer = format!("Bearer {}", token("operator"));
        let page = format!("/records/{id}");
        let fields = [("authorization", &*bearer)];
        let page = send(request(Method::GET, gateway.admin, &page, &fields, ""));
        let page = page.await.unwrap();
        assert!(page.text().contains("admin-name proposed this"), "{action}");
        let proposed: Value = serde_json::from_str(proposed.text()).unwrap();
        body["proposal"] = proposed["audit"].clone();
        let done = ask(&gateway, "operator", Method::POST, &path, &body).await;
        assert_eq!(done.status, 200, "{action}: {done:?}");
        assert_eq!(order(gateway.address, "order-1").await.status, 201);
    }
}
