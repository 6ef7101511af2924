//! Intents and what is known of them.

use std::collections::HashSet;
use std::time::Duration;

use http::{Method, Request};
use semel::KeyRule;
use semel_client::decide::{Effect, Reason};
use semel_client::{ErrorKind, Outbox, OutboxError, Retry};
use tower::ServiceExt as _;

use crate::support::{Does, Service, status};

type Made = http::Result<Request<String>>;

fn order(item: &str) -> impl Fn(&semel::Key) -> Made {
    move |_| Request::post("http://shop.example/orders").body(item.to_owned())
}

#[tokio::test]
async fn a_name_has_one_key_until_it_is_finished() {
    let outbox = Outbox::in_memory();
    let intent = outbox.begin("order 1", order("apple")).await.unwrap();
    let again = outbox.begin("order 1", order("apple")).await.unwrap();
    assert_eq!(intent.key(), again.key());
    KeyRule::UUID_V7.parse(intent.key().as_str()).unwrap();
    assert_eq!(
        intent.request().headers()["idempotency-key"],
        intent.key().as_str()
    );
    // Whoever logs the request does not log its key.
    assert!(!format!("{:?} {intent:?}", intent.request()).contains(intent.key().as_str()));
    assert_eq!(outbox.pending().len(), 1);
    again.finish().await.unwrap();
    assert!(outbox.pending().is_empty() && outbox.get("order 1").is_none());
    let anew = outbox.begin("order 1", order("pear")).await.unwrap();
    assert_ne!(anew.key(), intent.key());
    // Finished twice: the new one under its name stays.
    intent.finish().await.unwrap();
    assert_eq!(outbox.pending().len(), 1);
}

#[tokio::test]
async fn another_request_under_the_name_is_refused() {
    let outbox = Outbox::in_memory();
    outbox.begin("order 1", order("apple")).await.unwrap();
    let post = |uri: &'static str| move |_: &_| Request::post(uri).body("apple");
    let put = |_: &_| Request::put("http://shop.example/orders").body("apple");
    let refused = [
        (outbox.begin("order 1", order("pear")).await, "body"),
        (
            outbox.begin("order 1", post("http://shop.example/2")).await,
            "target",
        ),
        (outbox.begin("order 1", put).await, "method"),
    ];
    for (refused, expected) in refused {
        let error = refused.unwrap_err();
        assert!(
            matches!(error, OutboxError::Differs { what } if what == expected),
            "{error}"
        );
    }
}

#[tokio::test]
async fn one_name_begun_by_many_at_once_is_one_intent() {
    let outbox = Outbox::in_memory();
    let begin = |_| {
        let outbox = outbox.clone();
        tokio::spawn(async move { outbox.begin("order 1", order("apple")).await })
    };
    let mut keys = HashSet::new();
    for begun in (0..64).map(begin).collect::<Vec<_>>() {
        keys.insert(begun.await.unwrap().unwrap().key().clone());
    }
    assert_eq!(keys.len(), 1);
}

#[tokio::test]
async fn the_key_may_be_put_elsewhere() {
    let outbox = Outbox::in_memory();
    let in_body = |key: &semel::Key| {
        let body = format!("{{\"idempotency_key\": \"{}\"}}", key.as_str());
        Request::post("http://seller.example/").body(body)
    };
    let intent = outbox.begin("in the body", in_body).await.unwrap();
    assert!(intent.request().headers().is_empty());
    let quoted = |key: &semel::Key| {
        let post = Request::post("http://shop.example/");
        post.header("x-key", format!("\"{}\"", key.as_str()))
            .body("")
    };
    let intent = outbox.begin("quoted", quoted).await.unwrap();
    assert_eq!(intent.request().headers().len(), 1);
    // Retries of it are retries with a key, wherever that is.
    let service = Service::new([Does::Reset, status(200)]);
    let client = service.behind(&Retry::new());
    client.oneshot(intent.request()).await.unwrap();
    assert_eq!(service.seen()[0].headers, service.seen()[1].headers);
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused() {
    let outbox = Outbox::in_memory();
    for field in ["authorization", "proxy-authorization", "cookie"] {
        let secret = |_: &_| {
            Request::post("http://shop.example/")
                .header(field, "Bearer t")
                .body("")
        };
        let error = outbox.begin("order 1", secret).await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("the field {field} cannot")),
            "{error}"
        );
    }
    let bytes = |_: &_| {
        Request::post("http://shop.example/")
            .header("x", &b"\xff"[..])
            .body("")
    };
    assert!(outbox.begin("order 1", bytes).await.is_err());
    assert!(outbox.begin("", order("apple")).await.is_err());
    assert!(
        outbox
            .begin(&"n".repeat(1025), order("apple"))
            .await
            .is_err()
    );
    assert!(outbox.pending().is_empty());
}

#[tokio::test]
async fn a_key_of_the_callers_own_is_refused() {
    let outbox = Outbox::in_memory();
    let with_own = |field: &'static str| {
        move |_: &_| {
            let post = Request::post("http://shop.example/orders");
            post.header(field, "invoice-4711").body("apple")
        }
    };
    let in_body = |key: &semel::Key| {
        let post = Request::post("http://shop.example/orders");
        let post = post.header("idempotency-key", "invoice-4711");
        post.body(key.as_str().to_owned())
    };
    outbox.begin("begun", order("apple")).await.unwrap();
    for refused in [
        outbox.begin("new", with_own("idempotency-key")).await,
        outbox.begin("begun", with_own("idempotency-key")).await,
        outbox.begin("new", in_body).await,
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, OutboxError::Field { field, .. } if field == "idempotency-key"),
            "{error}"
        );
    }
    assert_eq!(outbox.pending().len(), 1);

    // Of this field only `Retry` knows that it is the key's.
    let field = http::HeaderName::from_static("x-request-id");
    let intent = outbox.begin("new", with_own("x-request-id")).await.unwrap();
    let service = Service::new([status(201)]);
    let client = service.behind(&Retry::new().with_key_header(field));
    let error = client.oneshot(intent.request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Invalid));
    assert_eq!((error.effect(), error.tries()), (Effect::None, 0));
    assert!(service.seen().is_empty());
}

#[tokio::test]
async fn it_is_bounded() {
    let outbox = Outbox::in_memory().with_limits(2, 1000);
    let first = outbox.begin("1", order("apple")).await.unwrap();
    outbox.begin("2", order("apple")).await.unwrap();
    let error = outbox.begin("3", order("apple")).await.unwrap_err();
    assert!(
        matches!(error, OutboxError::Full { intents: 2, .. }),
        "{error}"
    );
    first.finish().await.unwrap();
    let long = "a".repeat(1000);
    let error = outbox.begin("3", order(&long)).await.unwrap_err();
    assert!(
        matches!(error, OutboxError::Full { intents: 1, .. }),
        "{error}"
    );
    outbox.begin("3", order("apple")).await.unwrap();
    let names: Vec<String> = outbox
        .pending()
        .iter()
        .map(|i| i.name().to_owned())
        .collect();
    assert_eq!(names, ["2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_an_intent_outlives_a_call() {
    let outbox = Outbox::in_memory();
    let service = Service::new([Does::Refuse]);
    let retry = Retry::new().with_deadline(Duration::from_secs(1));
    let intent = outbox.begin("order 1", order("apple")).await.unwrap();
    let error = service
        .behind(&retry)
        .oneshot(intent.request())
        .await
        .unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    // A call that is dropped on its way.
    let hanging = Service::new([Does::Hang]);
    let call = hanging.behind(&Retry::new()).oneshot(intent.request());
    tokio::time::timeout(Duration::from_secs(1), call)
        .await
        .unwrap_err();
    let refusing = Service::new([status(401)]);
    let error = refusing
        .behind(&retry)
        .oneshot(intent.request())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Unauthorized));
    assert_eq!(error.effect(), Effect::Possible);
}

#[tokio::test(start_paused = true)]
async fn an_intent_whose_key_may_be_forgotten_is_not_sent() {
    let outbox = Outbox::in_memory();
    let intent = outbox.begin("order 1", order("apple")).await.unwrap();
    let service = Service::new([status(201)]);
    let client = service.behind(&Retry::new().with_key_lifetime(Duration::ZERO));
    let error = client.oneshot(intent.request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Expired));
    assert_eq!((error.effect(), error.tries()), (Effect::None, 0));
    assert!(service.seen().is_empty());
    assert_eq!(intent.request().method(), Method::POST);
}

#[tokio::test(start_paused = true)]
async fn its_key_is_where_the_service_wants_it() {
    let field = http::HeaderName::from_static("x-request-id");
    let retry = Retry::new().with_key_header(field).with_quoted_keys();
    let outbox = Outbox::in_memory();
    let intent = outbox.begin("order 1", order("apple")).await.unwrap();
    let service = Service::new([Does::Reset, status(201)]);
    let client = service.behind(&retry);
    client.oneshot(intent.request()).await.unwrap();
    let quoted = format!("\"{}\"", intent.key().as_str());
    for seen in service.seen() {
        assert_eq!(seen.headers["x-request-id"], quoted);
        assert!(!seen.headers.contains_key("idempotency-key"));
    }
    // Quoted by whoever made the request: not twice.
    let own = |key: &semel::Key| {
        let post = Request::post("http://shop.example/");
        post.header("idempotency-key", format!("\"{}\"", key.as_str()))
            .body("")
    };
    let intent = outbox.begin("quoted", own).await.unwrap();
    let service = Service::new([status(201)]);
    let client = service.behind(&Retry::new().with_quoted_keys());
    client.oneshot(intent.request()).await.unwrap();
    let quoted = format!("\"{}\"", intent.key().as_str());
    assert_eq!(service.seen()[0].key(), quoted);
}

#[tokio::test]
async fn another_header_under_the_name_is_refused() {
    let outbox = Outbox::in_memory();
    let of = |tenant: &'static str, trace: &'static str| {
        move |_: &_| {
            let post = Request::post("http://shop.example/orders");
            post.header("x-tenant", tenant)
                .header("traceparent", trace)
                .body("apple")
        }
    };
    outbox.begin("order 1", of("a", "1")).await.unwrap();
    outbox.begin("order 1", of("a", "2")).await.unwrap();
    let error = outbox.begin("order 1", of("b", "1")).await.unwrap_err();
    assert!(
        matches!(error, OutboxError::Differs { what: "header" }),
        "{error}"
    );
}
