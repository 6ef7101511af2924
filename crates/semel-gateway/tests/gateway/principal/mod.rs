//! Who callers are, verified before anything is run or replayed.

mod auth;
mod jwt;
mod settings;
mod tenants;
mod trusted;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, Gateway, order_with};

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "orders";

/// A key that signs tokens.
struct Signer {
    pair: KeyPair,
    id: &'static str,
}

impl Signer {
    fn new(id: &'static str) -> Self {
        let pair = KeyPair::generate().unwrap();
        Self { pair, id }
    }

    /// Its public half.
    fn jwk(&self) -> Value {
        let point = &self.pair.public_key_raw()[1..];
        let [x, y] = [&point[..32], &point[32..]].map(|part| URL_SAFE_NO_PAD.encode(part));
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": x, "y": y})
    }

    fn header(&self) -> Header {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.to_owned());
        header
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }

    fn sign_with(&self, header: &Header, claims: &Value) -> String {
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        encode(header, claims, &key).unwrap()
    }
}

fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

/// The time so many seconds from now.
fn after(seconds: i64) -> i64 {
    #[expect(clippy::disallowed_methods, reason = "tokens have the time of day")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + seconds
}

/// What a token of this caller says.
fn claims(subject: &str) -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": after(600)})
}

/// These claims, and others.
fn with(mut claims: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims
                .as_object_mut()
                .unwrap()
                .insert(name.clone(), value.clone()),
        };
    }
    claims
}

/// A file with keys.
struct KeyFile {
    path: PathBuf,
    _directory: TempDir,
}

impl KeyFile {
    fn of(signers: &[&Signer]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jwks.json");
        let file = Self {
            path,
            _directory: directory,
        };
        file.hold(signers);
        file
    }

    /// Puts other keys in their place, as a whole.
    fn hold(&self, signers: &[&Signer]) {
        let next = self.path.with_extension("next");
        std::fs::write(&next, jwks(signers)).unwrap();
        std::fs::rename(next, &self.path).unwrap();
    }

    fn flags<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let path = self.path.to_str().unwrap();
        [&flags_for(path)[..], more].concat()
    }
}

fn flags_for(jwks: &str) -> [&str; 8] {
    [
        "--principal",
        "jwt",
        "--jwt-jwks",
        jwks,
        "--jwt-issuer",
        ISSUER,
        "--jwt-audience",
        AUDIENCE,
    ]
}

/// Posts an order with the key `k` and this token.
async fn order_by(gateway: &Gateway, token: &str) -> Answer {
    order_as(gateway, &format!("Bearer {token}")).await
}

async fn order_as(gateway: &Gateway, credentials: &str) -> Answer {
    let headers = [("idempotency-key", "\"k\""), ("authorization", credentials)];
    order_with(gateway.address, &headers).await
}

fn assert_first(answer: &Answer) {
    assert_eq!(
        (answer.status.as_u16(), answer.is_replay()),
        (201, false),
        "{answer:?}"
    );
}

fn assert_replay(answer: &Answer) {
    assert_eq!(
        (answer.status.as_u16(), answer.is_replay()),
        (201, true),
        "{answer:?}"
    );
}

/// The answer to one who is not let in. Nothing of what was kept is in it.
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status.as_u16(), answer.problem().as_str()),
        (status, code),
        "{answer:?}"
    );
    assert!(!answer.is_replay());
    assert!(!answer.text().contains("item"), "{answer:?}");
}
