//! The service over HTTP, in this process or another.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use trading::http::router;

use super::{BALANCE, folder, open};

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Got {
    pub(super) status: StatusCode,
    pub(super) replayed: bool,
    pub(super) body: Value,
}

/// Asks as `ann`; an error where no whole answer came.
pub(super) async fn ask(
    address: SocketAddr,
    method: Method,
    path: &str,
    key: Option<&str>,
    body: Value,
) -> Result<Got, Box<dyn std::error::Error + Send + Sync>> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("x-user", "ann")
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let request = request.body(Body::from(body.to_string()))?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = client.request(request).await?;
    let status = response.status();
    let replayed = response.headers().contains_key("idempotency-replayed");
    let body = response.into_body().collect().await?.to_bytes();
    let body = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&body)?,
    };
    Ok(Got {
        status,
        replayed,
        body,
    })
}

#[tokio::test]
async fn answers_have_their_status_and_replays_their_mark() {
    let (_folder, file) = folder();
    let trading = Arc::new(open(&file));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, router(trading)).into_future());
    let ask = async |method, path: &str, key, body| {
        let got = ask(address, method, path, key, body).await.unwrap();
        (got.status.as_u16(), got.replayed, got.body)
    };
    let post = async |path: &str, key, body| ask(Method::POST, path, key, body).await;
    let none = || Value::Null;

    let opened = json!({"portfolio": 1, "account": 1, "cash": BALANCE});
    assert_eq!(
        post("/accounts", Some("k"), none()).await,
        (201, false, opened.clone())
    );
    assert_eq!(
        post("/accounts", Some("k"), none()).await,
        (201, true, opened)
    );

    let buy = json!({"symbol": "ACME", "quantity": 3});
    let filled = json!({"position": 1, "cost": 37_500, "cash": BALANCE - 37_500});
    let path = "/accounts/1/positions";
    assert_eq!(
        post(path, Some("k"), buy.clone()).await,
        (201, false, filled.clone())
    );
    let quoted = ask(Method::PUT, "/quotes/ACME", None, json!({"cents": 12_600})).await;
    assert_eq!(quoted, (204, false, none()));
    assert_eq!(
        post(path, Some("k"), buy.clone()).await,
        (201, true, filled)
    );

    let sold = json!({"proceeds": 37_800, "cash": BALANCE + 300});
    let path = "/accounts/1/positions/1/close";
    assert_eq!(post(path, Some("k"), none()).await, (200, false, sold));
    let (status, _, body) = post(path, Some("another"), none()).await;
    assert_eq!((status, &body["code"]), (409, &json!("position-closed")));
    let (status, replayed, _) = post(path, Some("another"), none()).await;
    assert_eq!((status, replayed), (409, true));

    let path = "/accounts/1/challenge";
    assert_eq!(post(path, None, none()).await, (204, false, none()));
    assert_eq!(post(path, Some("k"), none()).await, (204, false, none()));
    assert_eq!(post(path, Some("k"), none()).await, (204, true, none()));

    let reset = json!({"account": 2, "replaced": 1, "closed": 0, "cash": BALANCE});
    let path = "/accounts/1/reset";
    assert_eq!(
        post(path, Some("k"), none()).await,
        (201, false, reset.clone())
    );
    assert_eq!(
        post("/accounts/2/reset", Some("k"), none()).await,
        (201, true, reset)
    );
    let (status, _, body) = post(path, Some("another"), none()).await;
    assert_eq!(
        (status, &body["code"], &body["by"]),
        (409, &json!("replaced"), &json!(2))
    );

    for (path, key, sent, status, code) in [
        ("/accounts/1/reset", None, none(), 400, "missing-key"),
        ("/accounts/1/reset", Some(""), none(), 400, "invalid-key"),
        ("/accounts/9/reset", Some("k"), none(), 404, "no-account"),
        (
            "/accounts/1/positions",
            Some("k"),
            json!({"symbol": "ACME", "quantity": 4}),
            422,
            "mismatch",
        ),
        (
            "/accounts/2/positions",
            Some("k"),
            json!({"symbol": "ACME", "quantity": 99}),
            402,
            "too-dear",
        ),
    ] {
        let got = post(path, key, sent).await;
        assert_eq!((got.0, &got.2["code"]), (status, &json!(code)), "{path}");
    }
    let (_, _, body) = ask(Method::GET, "/accounts/2", None, none()).await;
    assert_eq!(
        (&body["cash"], &body["challenges"]),
        (&json!(BALANCE), &json!(2))
    );
}
