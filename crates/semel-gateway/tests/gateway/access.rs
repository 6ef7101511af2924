//! Who may use the operators' listener.

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use sha2::{Digest as _, Sha256};

use crate::support::{Answer, Gateway, Shop, eventually, get, send};

const OPS: &str = "0123456789abcdef-ops";
const JOB: &str = "0123456789abcdef-job";

fn hex(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

fn token(name: &str, token: &str, rights: &str) -> String {
    format!(
        "[[tokens]]\nname = \"{name}\"\nsha256 = \"{}\"\n{rights}\n",
        hex(token)
    )
}

async fn ask(admin: SocketAddr, method: &str, fields: &[(&str, &str)]) -> Answer {
    ask_for(admin, method, "/v1/nowhere", fields).await
}

async fn ask_for(admin: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{admin}{path}"));
    let request = fields.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    send(request.body(Full::new(Bytes::new())).unwrap())
        .await
        .unwrap()
}

/// What a request with this token is answered.
async fn status(admin: SocketAddr, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    ask(admin, "GET", &[("authorization", &bearer)])
        .await
        .status
        .as_u16()
}

fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn on_a_loopback_address_everybody_may_and_elsewhere_nobody() {
    let shop = Shop::open().await;
    let local = Gateway::start(shop.address, &[]);
    let answer = ask(local.admin, "GET", &[]).await;
    assert_eq!(answer.problem(), "not-found");
    let open = Gateway::start(shop.address, &["--admin", "0.0.0.0:0"]);
    let answer = ask(open.admin, "GET", &[]).await;
    assert_eq!(
        (answer.status.as_u16(), &*answer.problem()),
        (401, "unauthorized")
    );
    assert!(answer.text().contains("[[tokens]]"), "{}", answer.text());
    let schemes: Vec<_> = answer.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(schemes, ["Bearer realm=\"semel\"", "Basic realm=\"semel\""]);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(open.admin, path).await.status, 200, "{path}");
    }
}

/// Nothing is changed by what a page of another site can send.
#[tokio::test]
async fn other_sites_change_nothing() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let json = ("content-type", "application/json");
    let own = format!("http://{}", gateway.admin);
    let record = format!("/api/v1/records/{}/release", "0".repeat(64));
    let claim = "/v1/claims";
    for path in [
        claim,
        &format!("{claim}/{}/complete", "0".repeat(64)),
        &record,
        "/api/v1/records/lookup",
        "/api/v1/purge",
        "/api/v1/erase",
    ] {
        for (fields, code) in [
            // Nothing is not JSON.
            (&[json][..], "invalid-request"),
            (&[json, ("origin", &own)], "invalid-request"),
            (&[json, ("origin", "https://evil.example")], "forbidden"),
            (&[json, ("sec-fetch-site", "cross-site")], "forbidden"),
            (&[("content-type", "text/plain")], "unsupported-media-type"),
            (&[], "unsupported-media-type"),
        ] {
            let answer = ask_for(gateway.admin, "POST", path, fields).await;
            assert_eq!(answer.problem(), code, "{path} {fields:?}");
        }
    }
    let answer = ask_for(gateway.admin, "PUT", claim, &[]).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("allow")),
        (405, Some("POST"))
    );
}

#[tokio::test]
async fn tokens_follow_the_file() {
    let shop = Shop::open().await;
    let directory = tempfile::tempdir().unwrap();
    let (file, secret) = (
        directory.path().join("semel.toml"),
        directory.path().join("ops"),
    );
    let upstream = format!("upstream = \"http://{}\"\n", shop.address);
    let ops = format!(
        "[[tokens]]\nname = \"ops\"\ntoken-file = \"{}\"\nrole = \"operator\"\n",
        secret.display()
    );
    std::fs::write(&secret, OPS).unwrap();
    write(&file, &format!("{upstream}{ops}"));
    let gateway = Gateway::start_with(&file, &["--admin", "0.0.0.0:0"]);
    assert!(
        gateway.log().contains("tokens cross the network"),
        "{}",
        gateway.log()
    );
    assert_eq!(status(gateway.admin, OPS).await, 404);
    assert_eq!(status(gateway.admin, JOB).await, 401);
    // One more.
    let job = token("job", JOB, "claims = [\"default/settle-*\"]");
    write(&file, &format!("{upstream}{ops}{job}"));
    eventually("the new token", async || {
        (status(gateway.admin, JOB).await == 404).then_some(())
    })
    .await;
    // Another secret in the same file.
    std::fs::write(&secret, "another-secret-of-ops\n").unwrap();
    gateway.hang_up();
    eventually("the new secret", async || {
        (status(gateway.admin, "another-secret-of-ops").await == 404).then_some(())
    })
    .await;
    assert_eq!(status(gateway.admin, OPS).await, 401);
    // One that cannot be used changes nothing.
    std::fs::write(&secret, "short").unwrap();
    gateway.hang_up();
    eventually("the complaint", async || {
        gateway
            .log()
            .contains("16 characters at least")
            .then_some(())
    })
    .await;
    assert_eq!(status(gateway.admin, "another-secret-of-ops").await, 404);
    assert_eq!(status(gateway.admin, JOB).await, 404);
    for secret in [OPS, JOB, "another-secret-of-ops"] {
        assert!(!gateway.log().contains(secret));
    }
}
