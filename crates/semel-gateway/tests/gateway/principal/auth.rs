//! An endpoint that is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http::Method;
use tokio::net::TcpListener;

use super::{assert_first, assert_refused, assert_replay, order_as};
use crate::support::{Gateway, Shop, nobody, order_with, request, send};

/// What an endpoint says to these credentials.
#[derive(Clone, Copy)]
enum Says {
    Passes(&'static str),
    Answers(u16),
    Nothing,
}

/// An endpoint, and what it was asked.
#[derive(Clone, Default)]
struct Endpoint {
    says: Arc<Mutex<HashMap<&'static str, Says>>>,
    asked: Arc<Mutex<Vec<(Method, HeaderMap)>>>,
}

impl Endpoint {
    async fn start() -> (Self, String) {
        let endpoint = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/auth?tenant=a", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(endpoint.clone());
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        (endpoint, url)
    }

    fn say(&self, credentials: &'static str, says: Says) {
        self.says.lock().unwrap().insert(credentials, says);
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn answer(State(endpoint): State<Endpoint>, request: Request) -> Response {
    assert_eq!(request.uri(), "/auth?tenant=a");
    let headers = request.headers().clone();
    let credentials = headers
        .get("authorization")
        .map(|value| value.to_str().unwrap());
    let says = {
        let says = endpoint.says.lock().unwrap();
        credentials.and_then(|credentials| says.get(credentials).copied())
    };
    let asked = (request.method().clone(), headers.clone());
    endpoint.asked.lock().unwrap().push(asked);
    match says {
        Some(Says::Passes(name)) => (StatusCode::NO_CONTENT, [("x-user", name)]).into_response(),
        Some(Says::Answers(status)) => {
            let status = StatusCode::from_u16(status).unwrap();
            (
                status,
                [("www-authenticate", "Basic realm=\"shop\"")],
                "secret",
            )
                .into_response()
        }
        Some(Says::Nothing) => std::future::pending().await,
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

const NAMED: [&str; 2] = ["--auth-principal-header", "X-User"];

fn flags<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let asked = ["--principal", "auth", "--auth-url", url];
    let patient = ["--auth-timeout", "60s"];
    match more.contains(&"--auth-timeout") {
        true => [&asked[..], more].concat(),
        false => [&asked[..], &patient, more].concat(),
    }
}

#[tokio::test]
async fn the_endpoint_names_the_caller_and_a_revoked_one_gets_no_stored_answer() {
    let (shop, (endpoint, url)) = (Shop::open().await, Endpoint::start().await);
    let gateway = Gateway::start(shop.address, &flags(&url, &NAMED));
    endpoint.say("Bearer 1", Says::Passes("ann"));
    endpoint.say("Bearer 2", Says::Passes("ann"));
    endpoint.say("Bearer 3", Says::Passes("bob"));
    let first = order_as(&gateway, "Bearer 1").await;
    assert_first(&first);
    assert_replay(&order_as(&gateway, "Bearer 2").await);
    assert_first(&order_as(&gateway, "Bearer 3").await);
    assert_eq!((shop.placed(), endpoint.asked()), (2, 3));

    endpoint.say("Bearer 1", Says::Answers(401));
    let refused = order_as(&gateway, "Bearer 1").await;
    assert_refused(&refused, 401, "unauthenticated");
    assert_eq!(
        refused.header("www-authenticate"),
        Some("Basic realm=\"shop\"")
    );
    assert!(!refused.text().contains("secret"));
    endpoint.say("Bearer 1", Says::Answers(403));
    let refused = order_as(&gateway, "Bearer 1").await;
    assert_refused(&refused, 403, "forbidden");
    assert_refused(
        &order_as(&gateway, "Bearer 4").await,
        401,
        "unauthenticated",
    );
    // Whatever is no answer to the question is none.
    for status in [200, 302, 400, 404, 429, 500, 503] {
        endpoint.say("Bearer 1", Says::Answers(status));
        let refused = order_as(&gateway, "Bearer 1").await;
        assert_refused(&refused, 503, "auth-unavailable");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    endpoint.say("Bearer 1", Says::Passes(""));
    let nameless = order_as(&gateway, "Bearer 1").await;
    assert_refused(&nameless, 503, "auth-unavailable");
    assert_eq!(shop.received(), 2);

    // What was recorded is as it was.
    endpoint.say("Bearer 1", Says::Passes("ann"));
    let again = order_as(&gateway, "Bearer 1").await;
    assert_replay(&again);
    assert_eq!(again.body, first.body);
    assert!(!gateway.log().contains("Bearer"));
}

#[tokio::test]
async fn it_is_told_what_is_asked_and_by_whom_and_nothing_else() {
    let (shop, (endpoint, url)) = (Shop::open().await, Endpoint::start().await);
    let fields = ["--auth-fields", "Authorization,X-Api-Key"];
    let gateway = Gateway::start(shop.address, &flags(&url, &fields));
    endpoint.say("Bearer 1", Says::Passes("ann"));
    let headers = [
        ("idempotency-key", "\"k\""),
        ("authorization", "Bearer 1"),
        ("x-api-key", "one"),
        ("x-original-method", "GET"),
        ("x-original-uri", "/public"),
        ("cookie", "session=1"),
        ("connection", "x-api-key, authorization"),
        ("host", "shop.example"),
    ];
    let order = request(Method::POST, gateway.address, "/orders?a=b", &headers, "{}");
    assert_eq!(send(order).await.unwrap().status, 201);
    let asked = endpoint.asked.lock().unwrap().clone();
    let (method, fields) = &asked[0];
    assert_eq!((asked.len(), method), (1, &Method::GET));
    let of = |name| {
        fields
            .get_all(name)
            .iter()
            .map(|v| v.to_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("authorization"), ["Bearer 1"]);
    assert_eq!(of("x-api-key"), ["one"]);
    assert_eq!(of("x-original-method"), ["POST"]);
    assert_eq!(of("x-original-uri"), ["/orders?a=b"]);
    assert_eq!(of("x-forwarded-host"), ["shop.example"]);
    for none in [
        "idempotency-key",
        "cookie",
        "content-length",
        "content-type",
    ] {
        assert!(!fields.contains_key(none), "{none}: {fields:?}");
    }
}

/// It lets pass or not; the principal is what it is without it.
#[tokio::test]
async fn an_endpoint_may_name_nobody() {
    let (shop, (endpoint, url)) = (Shop::open().await, Endpoint::start().await);
    let gateway = Gateway::start(shop.address, &flags(&url, &["--require-principal"]));
    for credentials in ["Bearer 1", "Bearer 2", "Digest nc=1", ""] {
        endpoint.say(credentials, Says::Passes("ann"));
    }
    for credentials in ["Bearer 1", "Bearer 2"] {
        assert_first(&order_as(&gateway, credentials).await);
        assert_replay(&order_as(&gateway, credentials).await);
    }
    for differing in ["Digest nc=1", ""] {
        let refused = order_as(&gateway, differing).await;
        assert_refused(&refused, 400, "missing-principal");
    }
    endpoint.say("Bearer 1", Says::Answers(403));
    assert_refused(&order_as(&gateway, "Bearer 1").await, 403, "forbidden");
    assert_eq!(shop.placed(), 2);

    let by_field = ["--scope-header", "X-Account"];
    let gateway = Gateway::start(shop.address, &flags(&url, &by_field));
    let ask = |credentials: &'static str, account: &'static str| {
        let headers = [
            ("idempotency-key", "\"k\""),
            ("authorization", credentials),
            ("x-account", account),
        ];
        let address = gateway.address;
        async move { order_with(address, &headers).await }
    };
    assert_first(&ask("Bearer 2", "a").await);
    assert_replay(&ask("Digest nc=1", "a").await);
    assert_first(&ask("Bearer 2", "b").await);
    assert_refused(&ask("Bearer 1", "a").await, 403, "forbidden");
}

#[tokio::test]
async fn an_endpoint_that_is_silent_or_away_lets_nobody_pass() {
    let (shop, (endpoint, url)) = (Shop::open().await, Endpoint::start().await);
    let gateway = Gateway::start(shop.address, &flags(&url, &["--auth-timeout", "100ms"]));
    endpoint.say("Bearer 1", Says::Nothing);
    let silent = order_as(&gateway, "Bearer 1").await;
    assert_refused(&silent, 503, "auth-unavailable");
    let (_nobody_else_gets_it, address) = nobody();
    let away = format!("http://{address}/auth");
    let gateway = Gateway::start(shop.address, &flags(&away, &[]));
    let away = order_as(&gateway, "Bearer 1").await;
    assert_refused(&away, 503, "auth-unavailable");
    // It is asked about keys only.
    let plain = order_with(gateway.address, &[("authorization", "Bearer 1")]).await;
    assert_eq!((plain.status.as_u16(), shop.received()), (201, 1));
}

#[tokio::test]
async fn its_answers_are_remembered_for_the_same_question_and_so_long() {
    let (shop, (endpoint, url)) = (Shop::open().await, Endpoint::start().await);
    let more = [&NAMED[..], &["--auth-cache", "1h"]].concat();
    let gateway = Gateway::start(shop.address, &flags(&url, &more));
    endpoint.say("Bearer 1", Says::Passes("ann"));
    assert_first(&order_as(&gateway, "Bearer 1").await);
    endpoint.say("Bearer 1", Says::Answers(401));
    for _ in 0..10 {
        assert_replay(&order_as(&gateway, "Bearer 1").await);
    }
    assert_eq!(endpoint.asked(), 1);
    // Another target is another question, and who is refused is not remembered.
    let headers = [("idempotency-key", "\"k\""), ("authorization", "Bearer 1")];
    for asked in [2, 3] {
        let other = request(Method::POST, gateway.address, "/orders?a", &headers, "");
        let refused = send(other).await.unwrap();
        assert_refused(&refused, 401, "unauthenticated");
        assert_eq!(endpoint.asked(), asked);
    }

    let more = [&NAMED[..], &["--auth-cache", "100ms"]].concat();
    let gateway = Gateway::start(shop.address, &flags(&url, &more));
    endpoint.say("Bearer 1", Says::Passes("ann"));
    assert_first(&order_as(&gateway, "Bearer 1").await);
    endpoint.say("Bearer 1", Says::Answers(403));
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_refused(&order_as(&gateway, "Bearer 1").await, 403, "forbidden");
}
