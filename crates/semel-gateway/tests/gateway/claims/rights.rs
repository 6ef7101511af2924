//! What a token may do at each endpoint.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::api::{Api, Held};
use super::nowhere;
use crate::support::Gateway;

/// Names and rights; the token is `token-of-` and the name.
const TOKENS: [(&str, &str); 6] = [
    ("root", "role = \"admin\""),
    ("ours", "claims = [\"orders/settle-*\"]"),
    ("all", "claims = [\"*/*\"]"),
    ("others", "claims = [\"orders/pay\", \"default/settle-*\"]"),
    ("operator", "role = \"operator\""),
    ("reader", "role = \"read-only\"\nclaims = [\"default/*\"]"),
];

fn file() -> tempfile::NamedTempFile {
    let mut text = format!("upstream = \"http://{}\"\n", nowhere());
    for (name, rights) in TOKENS {
        let digest = Sha256::digest(format!("token-of-{name}"));
        let digest = hex::encode(digest);
        text += &format!("[[tokens]]\nname = \"{name}\"\nsha256 = \"{digest}\"\n{rights}\n");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn ours() -> Value {
    json!({"operation": "settle-1", "service": "orders"})
}

/// Every endpoint with every token: those with the right are answered, the others change nothing.
#[tokio::test]
async fn each_endpoint_asks_for_the_right_to_its_record() {
    let file = file();
    let gateway = Gateway::start_with(file.path(), &[]);
    let open = Api::of(gateway.admin).await;
    let root = open.with_token("token-of-root");
    let fresh = async |name: &str| {
        let key = format!("{name}-{}", another());
        root.acquire(&key, ours()).await
    };
    for (name, may) in [
        ("root", true),
        ("ours", true),
        ("all", true),
        ("others", false),
        ("operator", false),
        ("reader", false),
        ("nobody", false),
    ] {
        let api = match name {
            "nobody" => open.clone(),
            name => open.with_token(&format!("token-of-{name}")),
        };
        let refused = match name {
            "nobody" => "unauthorized",
            _ => "forbidden",
        };
        let answer = api.claim(&format!("claim-{name}"), ours()).await;
        match may {
            true => assert_eq!(answer.status, 201, "{name}"),
            false => assert_eq!(answer.problem(), refused, "{name}"),
        }
        for endpoint in ["renew", "steps", "complete", "abandon", "unknown", ""] {
            let held = fresh(name).await;
            let before = root.show(held.id()).await;
            let theirs = Held {
                api: api.clone(),
                ..held
            };
            let answer = match endpoint {
                "" => {
                    api.ask("GET", &format!("/v1/claims/{}", theirs.id()), "")
                        .await
                }
                "steps" => theirs.tell("steps", json!({"name": "a"})).await,
                endpoint => theirs.tell(endpoint, json!({})).await,
            };
            match may {
                true => assert_eq!(answer.status, 200, "{name} {endpoint}: {}", answer.text()),
                false => {
                    assert_eq!(answer.problem(), refused, "{name} {endpoint}");
                    assert_eq!(root.show(theirs.id()).await, before, "{name} {endpoint}");
                }
            }
        }
        assert_eq!(
            api.ask("GET", "/openapi.json", "").await.status,
            200,
            "{name}"
        );
    }
}

/// Somebody who holds them would hold up every gateway of the store.
#[tokio::test]
async fn the_gateways_own_records_are_not_claimed() {
    let file = file();
    let gateway = Gateway::start_with(file.path(), &[]);
    let api = Api::of(gateway.admin).await.with_token("token-of-root");
    for operation in ["check", "large-answers"] {
        let own = json!({"operation": operation, "scope": ["semel"]});
        assert_eq!(api.claim("k", own).await.problem(), "forbidden");
        let other = json!({"operation": operation, "scope": ["shop"]});
        assert_eq!(api.claim("k", other).await.status, 201);
    }
}

/// A gateway that has not seen the claim asks the store whose it is.
#[tokio::test]
async fn rights_hold_after_a_restart() {
    let file = file();
    let gateway = Gateway::start_with(file.path(), &[]);
    let directory = gateway.directory();
    let ours_of = |api: &Api| api.with_token("token-of-ours");
    let api = Api::of(gateway.admin).await;
    let held = ours_of(&api).acquire("k", ours()).await;
    gateway.kill();
    let flags = ["--config", file.path().to_str().unwrap()];
    let gateway = Gateway::start_in(&directory, nowhere(), &flags);
    let api = Api::of(gateway.admin).await;
    let others = Held {
        api: api.with_token("token-of-others"),
        ..held.clone()
    };
    assert_eq!(
        others.tell("complete", json!({})).await.problem(),
        "forbidden"
    );
    let held = Held {
        api: ours_of(&api),
        ..held
    };
    held.told("complete", json!({})).await;
    // Of what there is not, nothing can be told.
    let none = "0".repeat(64);
    let answer = others
        .api
        .ask("GET", &format!("/v1/claims/{none}"), "")
        .await;
    assert_eq!(answer.problem(), "not-found");
}

/// Another one each time.
fn another() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}
