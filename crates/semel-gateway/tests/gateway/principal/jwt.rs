//! Claims of verified tokens.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, RsaKeySize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{
    AUDIENCE, KeyFile, Signer, after, assert_first, assert_refused, assert_replay, claims,
    flags_for, jwks, order_as, order_by, with,
};
use crate::support::{Gateway, Shop, eventually, order, order_with, request, send};

#[tokio::test]
async fn a_token_names_the_caller_also_after_it_was_refreshed() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let gateway = Gateway::start(shop.address, &keys.flags(&["--require-principal"]));
    let first = order_by(&gateway, &signer.sign(&claims("ann"))).await;
    assert_first(&first);
    let refreshed = json!({"exp": after(3600), "iat": after(0), "jti": "2"});
    let again = order_by(&gateway, &signer.sign(&with(claims("ann"), &refreshed))).await;
    assert_replay(&again);
    assert_eq!(again.body, first.body);
    assert_first(&order_by(&gateway, &signer.sign(&claims("bob"))).await);
    assert_eq!(shop.placed(), 2);

    // Other schemes are no tokens; empty ones are bad tokens.
    for missing in ["Basic YTpi", ""] {
        assert_refused(&order_as(&gateway, missing).await, 400, "missing-principal");
    }
    let anonymous = order(gateway.address, "\"k\"").await;
    assert_refused(&anonymous, 400, "missing-principal");
    assert_eq!(shop.received(), 2);
    let log = gateway.log();
    assert!(!log.contains("eyJ") && !log.contains("ann"), "{log}");
}

/// The gateway knows whose keys are whose. Who may use the service is said by the service.
#[tokio::test]
async fn requests_without_a_key_are_not_verified() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let gateway = Gateway::start(shop.address, &keys.flags(&["--require-principal"]));
    let bad = [("authorization", "Bearer x")];
    let plain = order_with(gateway.address, &bad).await;
    assert_eq!(plain.status, 201);
    let keyed = [bad[0], ("idempotency-key", "\"k\"")];
    let safe = request(Method::GET, gateway.address, "/orders", &keyed, "");
    assert_ne!(send(safe).await.unwrap().status, 401);
    let answer = order_with(gateway.address, &keyed).await;
    assert_refused(&answer, 401, "invalid-token");
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn without_a_token_callers_are_anonymous_unless_a_principal_is_required() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let gateway = Gateway::start(shop.address, &keys.flags(&[]));
    assert_first(&order(gateway.address, "\"k\"").await);
    assert_first(&order_by(&gateway, &signer.sign(&claims("anonymous"))).await);
    assert_replay(&order(gateway.address, "\"k\"").await);
    assert_eq!(shop.placed(), 2);
}

/// A token of three parts, whatever is in them.
fn token(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let parts = [
        header.to_string().into_bytes(),
        claims.to_string().into_bytes(),
    ];
    let [header, claims] = parts.map(|part| URL_SAFE_NO_PAD.encode(part));
    format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Tokens that nobody may accept, each with what is wrong with it.
fn bad_tokens(signer: &Signer) -> Vec<(&'static str, String)> {
    let good = || claims("ann");
    let sign = |more: Value| signer.sign(&with(good(), &more));
    let other = Signer::new("one");
    let mut bad = vec![
        ("another key of the same name", other.sign(&good())),
        ("a key that is not known", Signer::new("two").sign(&good())),
        ("expired", sign(json!({"exp": after(-120)}))),
        ("without an end", sign(json!({"exp": null}))),
        ("an end that is no number", sign(json!({"exp": "never"}))),
        ("not valid yet", sign(json!({"nbf": after(120)}))),
        ("a start that is no number", sign(json!({"nbf": "now"}))),
        ("another audience", sign(json!({"aud": "refunds"}))),
        (
            "other audiences",
            sign(json!({"aud": ["refunds", "orders2"]})),
        ),
        ("without an audience", sign(json!({"aud": null}))),
        ("an audience that is none", sign(json!({"aud": 7}))),
        (
            "another issuer",
            sign(json!({"iss": "https://other.example"})),
        ),
        ("without an issuer", sign(json!({"iss": null}))),
        ("issuers", sign(json!({"iss": [super::ISSUER, "x"]}))),
        ("without a subject", sign(json!({"sub": null}))),
        ("an empty subject", sign(json!({"sub": ""}))),
        ("a subject of parts", sign(json!({"sub": {"id": "ann"}}))),
        ("no token", "x".to_owned()),
        ("nothing", String::new()),
        ("parts that are empty", "..".to_owned()),
    ];
    // Without a signature.
    for algorithm in ["none", "None", "NONE", "nOnE", ""] {
        let header = json!({"typ": "JWT", "alg": algorithm, "kid": "one"});
        bad.push(("no signature", token(&header, &good(), b"")));
    }
    let signed = signer.sign(&good());
    let (unsigned, _) = signed.rsplit_once('.').unwrap();
    bad.push(("the signature left out", format!("{unsigned}.")));
    bad.push(("two parts", unsigned.to_owned()));
    bad.push(("five parts", format!("{signed}.x.y")));
    // Another payload under the same signature.
    let parts: Vec<&str> = signed.split('.').collect();
    let eve = URL_SAFE_NO_PAD.encode(claims("eve").to_string());
    bad.push(("other claims", format!("{}.{eve}.{}", parts[0], parts[2])));
    // Signed with what is public as a secret.
    let jwk = signer.jwk();
    let point = signer.pair.public_key_raw();
    let pem = signer.pair.public_key_pem();
    for secret in [point, pem.as_bytes(), jwk.to_string().as_bytes(), b""] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            header.kid = Some("one".to_owned());
            let secret = EncodingKey::from_secret(secret);
            let forged = encode(&header, &good(), &secret).unwrap();
            bad.push(("a public key as secret", forged));
        }
    }
    // An algorithm that is not configured, with the right key and with a wrong one.
    for algorithm in ["ES384", "RS256", "PS256", "EdDSA"] {
        let header = json!({"alg": algorithm, "kid": "one"});
        bad.push(("another algorithm", token(&header, &good(), b"signature")));
    }
    // The key comes with the token.
    let mut header = other.header();
    header.jwk = serde_json::from_value(other.jwk()).ok();
    assert!(header.jwk.is_some());
    bad.push(("a key of its own", other.sign_with(&header, &good())));
    header.jwk = None;
    header.jku = Some("http://127.0.0.1:1/jwks.json".to_owned());
    bad.push(("a place of its key", other.sign_with(&header, &good())));
    let mut header = signer.header();
    header.crit = Some(vec!["exp".to_owned()]);
    bad.push(("a critical extension", signer.sign_with(&header, &good())));
    bad
}

#[tokio::test]
async fn tokens_that_are_no_good_are_refused_and_get_no_stored_answer() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    // Nobody else's rules: everything that could be signed with a public key may be.
    let all = ["--jwt-algorithms", "ES256,ES384,RS256,PS256,EdDSA"];
    for flags in [keys.flags(&[]), keys.flags(&all)] {
        let gateway = Gateway::start(shop.address, &flags);
        let before = shop.received();
        let good = signer.sign(&claims("ann"));
        assert_first(&order_by(&gateway, &good).await);
        let bad = bad_tokens(&signer);
        assert!(bad.len() > 40, "{}", bad.len());
        for (wrong, token) in &bad {
            let answer = order_by(&gateway, token).await;
            assert_refused(&answer, 401, "invalid-token");
            let challenge = answer.header("www-authenticate").unwrap();
            assert!(challenge.starts_with("Bearer "), "{wrong}: {challenge}");
            assert!(challenge.contains("error=\"invalid_token\""), "{wrong}");
            let said = answer.text();
            assert!(token.len() < 20 || !said.contains(token), "{wrong}: {said}");
        }
        let two = [
            ("idempotency-key", "\"k\""),
            ("authorization", &*format!("Bearer {good}")),
            ("authorization", "Bearer x"),
        ];
        let answer = order_with(gateway.address, &two).await;
        assert_refused(&answer, 401, "invalid-token");
        assert_replay(&order_by(&gateway, &good).await);
        assert_eq!(shop.received(), before + 1);
        let metrics = gateway.metrics().await;
        let line = format!(
            "semel_refused_callers_total{{code=\"invalid-token\"}} {}",
            bad.len() + 1
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn clocks_may_differ_a_little_and_audiences_be_several() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let gateway = Gateway::start(shop.address, &keys.flags(&["--jwt-leeway", "5m"]));
    let several = json!({"aud": ["refunds", AUDIENCE], "exp": after(-120), "nbf": after(120)});
    assert_first(&order_by(&gateway, &signer.sign(&with(claims("ann"), &several))).await);
    assert_replay(&order_by(&gateway, &signer.sign(&claims("ann"))).await);
    // The name of the key may be left out.
    let nameless = signer.sign_with(&Header::new(Algorithm::ES256), &claims("ann"));
    assert_replay(&order_by(&gateway, &nameless).await);
}

#[tokio::test]
async fn without_an_audience_only_tokens_without_one_are_accepted() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let flags = keys.flags(&[]);
    let gateway = Gateway::start(shop.address, &flags[..6]);
    for audience in [json!(AUDIENCE), json!([AUDIENCE]), json!(7), json!([])] {
        let token = signer.sign(&with(claims("ann"), &json!({"aud": audience})));
        assert_refused(&order_by(&gateway, &token).await, 401, "invalid-token");
    }
    let token = signer.sign(&with(claims("ann"), &json!({"aud": null})));
    assert_first(&order_by(&gateway, &token).await);
}

/// Serves keys, and counts how often it is asked.
struct KeyServer {
    url: String,
    asked: Arc<AtomicUsize>,
    set: Arc<Mutex<Option<String>>>,
}

impl KeyServer {
    async fn start(set: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let set = Arc::new(Mutex::new(set));
        let (counting, serving) = (Arc::clone(&asked), Arc::clone(&set));
        let answer = move || {
            counting.fetch_add(1, Ordering::SeqCst);
            let set = serving.lock().unwrap().clone();
            async { set.ok_or(http::StatusCode::INTERNAL_SERVER_ERROR) }
        };
        let router = Router::new().route("/jwks.json", get(answer));
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { url, asked, set }
    }

    fn hold(&self, signers: &[&Signer]) {
        *self.set.lock().unwrap() = Some(jwks(signers));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn keys_are_rotated_and_made_up_ones_fetch_nothing() {
    let shop = Shop::open().await;
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let server = KeyServer::start(Some(jwks(&[&old]))).await;
    let gateway = Gateway::start(shop.address, &flags_for(&server.url));
    assert_first(&order_by(&gateway, &old.sign(&claims("ann"))).await);
    assert_eq!(server.asked(), 1);
    server.hold(&[&old, &new]);
    assert_replay(&order_by(&gateway, &new.sign(&claims("ann"))).await);
    assert_replay(&order_by(&gateway, &old.sign(&claims("ann"))).await);
    assert_eq!(server.asked(), 2);
    let began = std::time::Instant::now();
    let unknown = Signer::new("made up").sign(&claims("ann"));
    for _ in 0..100 {
        let answer = order_by(&gateway, &unknown).await;
        assert_refused(&answer, 401, "invalid-token");
    }
    // Once in ten seconds.
    let most = 2 + began.elapsed().as_secs() / 10 + 1;
    assert!(server.asked() as u64 <= most, "{}", server.asked());
}

#[tokio::test]
async fn a_key_that_is_taken_out_is_not_accepted_for_long() {
    let shop = Shop::open().await;
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let keys = KeyFile::of(&[&old, &new]);
    let gateway = Gateway::start(shop.address, &keys.flags(&["--jwt-refresh", "1s"]));
    let revoked = old.sign(&claims("ann"));
    assert_first(&order_by(&gateway, &revoked).await);
    keys.hold(&[&new]);
    eventually("refused", || async {
        let answer = order_by(&gateway, &revoked).await;
        (answer.status == 401).then_some(())
    })
    .await;
    assert_replay(&order_by(&gateway, &new.sign(&claims("ann"))).await);
    assert_eq!(shop.placed(), 1);
    // A set that cannot be read takes none away.
    std::fs::write(&keys.path, "{").unwrap();
    eventually("told", || async {
        gateway
            .log()
            .contains("the keys cannot be read")
            .then_some(())
    })
    .await;
    assert_replay(&order_by(&gateway, &new.sign(&claims("ann"))).await);
}

#[tokio::test]
async fn without_keys_nobody_is_refused_for_good() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let server = KeyServer::start(None).await;
    let flags = [&flags_for(&server.url)[..], &["--jwt-refresh", "1s"]].concat();
    let gateway = Gateway::start(shop.address, &flags);
    let token = signer.sign(&claims("ann"));
    let answer = order_by(&gateway, &token).await;
    assert_refused(&answer, 503, "auth-unavailable");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(shop.received(), 0);
    server.hold(&[&signer]);
    let first = eventually("let in", || async {
        let answer = order_by(&gateway, &token).await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    assert_first(&first);
}

#[tokio::test]
async fn each_route_verifies_as_it_says() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let text = format!(
        "upstream = \"http://{}\"\nprincipal = [\"jwt\"]\n\
         [jwt]\njwks = \"{}\"\nissuer = [\"{}\"]\naudience = [\"{AUDIENCE}\"]\n\
         [[routes]]\npath = \"/hooks\"\nprincipal = []\nscope = [\"X-Source\"]\n\
         [[routes]]\npath = \"/orders\"\nrequire-principal = true\nscope = [\"X-Mode\"]\n",
        shop.address,
        keys.path.display(),
        super::ISSUER,
    );
    std::fs::write(&file, text).unwrap();
    let gateway = Gateway::start_with(&file, &[]);
    let bad = [
        ("idempotency-key", "\"k\""),
        ("authorization", "Bearer x"),
        ("x-source", "s"),
    ];
    for refused in ["/orders", "/others"] {
        let order = request(Method::POST, gateway.address, refused, &bad, "{}");
        let answer = send(order).await.unwrap();
        assert_refused(&answer, 401, "invalid-token");
    }
    let hook = request(Method::POST, gateway.address, "/hooks", &bad, "{}");
    let answer = send(hook).await.unwrap();
    assert_ne!(answer.status, 401, "{answer:?}");
    let nobody = order(gateway.address, "\"k\"").await;
    assert_refused(&nobody, 400, "missing-principal");
    assert_first(&order_by(&gateway, &signer.sign(&claims("ann"))).await);

    let explained = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["check", "--request", "POST /orders"])
        .args(["--header", "Idempotency-Key: k", "--header", "X-Mode: live"])
        .args(["--header", "Authorization: Bearer x"])
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    let explained = String::from_utf8(explained.stdout).unwrap();
    for line in [
        "scope              jwt x-mode …",
        "principal          verified when the request comes, or it is refused",
    ] {
        assert!(explained.lines().any(|shown| shown == line), "{explained}");
    }
    assert!(!explained.contains("Bearer"), "{explained}");
}

/// Where the key is in the body, whoever may have one is verified.
#[tokio::test]
async fn keys_in_bodies_are_no_way_around() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let gateway = Gateway::start(shop.address, &keys.flags(&["--preset", "adcp"]));
    let body = r#"{"idempotency_key":"8e03978e-40d5-43dd-bc93-6894a57f9324"}"#;
    let ask = |token: String| {
        let credentials = format!("Bearer {token}");
        let fields = [
            ("authorization", credentials.as_str()),
            ("content-type", "application/json"),
        ];
        send(request(
            Method::POST,
            gateway.address,
            "/orders",
            &fields,
            body,
        ))
    };
    let first = ask(signer.sign(&claims("ann"))).await.unwrap();
    assert_eq!(first.status, 201, "{first:?}");
    let refused = ask(Signer::new("one").sign(&claims("ann"))).await.unwrap();
    assert_refused(&refused, 401, "invalid-token");
    let other = ask(signer.sign(&claims("bob"))).await.unwrap();
    assert_eq!((other.status.as_u16(), shop.placed()), (201, 2));
    let again = ask(signer.sign(&claims("ann"))).await.unwrap();
    assert_eq!((again.status.as_u16(), shop.placed()), (201, 2));
}

#[tokio::test]
async fn who_is_accepted_follows_the_file() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyFile::of(&[&signer]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let write = |issuer: &str| {
        let text = format!(
            "upstream = \"http://{}\"\nprincipal = \"jwt\"\n\
             [jwt]\njwks = \"{}\"\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\n",
            shop.address,
            keys.path.display(),
        );
        std::fs::write(&file, text).unwrap();
    };
    write(super::ISSUER);
    let gateway = Gateway::start_with(&file, &[]);
    let old = signer.sign(&claims("ann"));
    assert_first(&order_by(&gateway, &old).await);
    write("https://other.example");
    gateway.hang_up();
    eventually("refused", || async {
        (order_by(&gateway, &old).await.status == 401).then_some(())
    })
    .await;
    let other = with(claims("ann"), &json!({"iss": "https://other.example"}));
    assert_first(&order_by(&gateway, &signer.sign(&other)).await);
}

#[tokio::test]
async fn a_change_of_the_file_forgets_no_keys() {
    let (shop, signer) = (Shop::open().await, Signer::new("one"));
    let keys = KeyServer::start(Some(jwks(&[&signer]))).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let write = |issuers: &[&str]| {
        let text = format!(
            "upstream = \"http://{}\"\nprincipal = \"jwt\"\n\
             [jwt]\njwks = \"{}\"\nissuer = {issuers:?}\naudience = \"{AUDIENCE}\"\n",
            shop.address, keys.url,
        );
        std::fs::write(&file, text).unwrap();
    };
    write(&[super::ISSUER]);
    let gateway = Gateway::start_with(&file, &[]);
    assert_first(&order_by(&gateway, &signer.sign(&claims("ann"))).await);
    *keys.set.lock().unwrap() = None;
    let other = "https://other.example";
    write(&[super::ISSUER, other]);
    gateway.hang_up();
    let token = signer.sign(&with(claims("ann"), &json!({"iss": other})));
    let first = eventually("the new issuer's token is accepted", || async {
        let answer = order_by(&gateway, &token).await;
        (answer.status != 401).then_some(answer)
    })
    .await;
    assert_first(&first);
}

/// RSA and Ed25519 as well, each with the algorithm that is configured, and no other.
#[tokio::test]
async fn keys_of_other_kinds_sign_tokens_too() {
    let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    // In 2048 bits everything stands at the same place: behind 9 bytes the modulus, which is followed by
    // the exponent; behind 26 bytes of PKCS #8 the key.
    let modulus = URL_SAFE_NO_PAD.encode(&rsa.public_key_raw()[9..9 + 256]);
    let rsa_key = EncodingKey::from_rsa_der(&rsa.serialize_der()[26..]);
    let ed = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let point = URL_SAFE_NO_PAD.encode(ed.public_key_raw());
    let ed_key = EncodingKey::from_ed_der(&ed.serialize_der());
    let set = json!({"keys": [
        {"kty": "RSA", "kid": "rsa", "n": modulus, "e": "AQAB"},
        {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": point},
    ]});
    let server = KeyServer::start(Some(set.to_string())).await;
    let signed = |key: &EncodingKey, id: &str, algorithm| {
        let mut header = Header::new(algorithm);
        header.kid = Some(id.to_owned());
        encode(&header, &claims(id), key).unwrap()
    };
    let shop = Shop::open().await;
    let one = ["--jwt-algorithms", "RS256"];
    let gateway = Gateway::start(shop.address, &[&flags_for(&server.url)[..], &one].concat());
    let good = signed(&rsa_key, "rsa", Algorithm::RS256);
    assert_first(&order_by(&gateway, &good).await);
    let mut others = vec![signed(&ed_key, "ed", Algorithm::EdDSA)];
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256] {
        others.push(signed(&rsa_key, "rsa", algorithm));
    }
    // The modulus as a secret.
    let secret = EncodingKey::from_secret(modulus.as_bytes());
    let forged = signed(&secret, "rsa", Algorithm::HS256);
    for token in others.iter().chain([&forged]) {
        assert_refused(&order_by(&gateway, token).await, 401, "invalid-token");
    }
    let more = ["--jwt-algorithms", "RS384,RS512,PS256,EdDSA"];
    let gateway = Gateway::start(shop.address, &[&flags_for(&server.url)[..], &more].concat());
    for (nth, token) in others.iter().enumerate() {
        let answer = order_by(&gateway, token).await;
        // Those of the RSA key are one caller's.
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, nth > 1));
    }
    for token in [&good, &forged] {
        assert_refused(&order_by(&gateway, token).await, 401, "invalid-token");
    }
}
