//! B. Key presence and scope (rows 13 to 22).

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderName, Method, StatusCode};
use semel::guard::Policy;
use semel::{Scope, Service};
use tower_http::cors::{Any, CorsLayer};

use semel_tower::{IdempotencyLayer, Preset};

use crate::support::{App, Call, Execs, K, Memory, layer, layer_over};

fn as_user(token: &str) -> Call {
    Call::order().header("authorization", token)
}

#[tokio::test]
async fn row_13_a_missing_key_is_refused_where_one_is_required() {
    let app = App::orders(layer().with_problem_base("https://api.example/docs#"));
    for _ in 0..2 {
        let answer = app.send(Call::post("/orders")).await;
        answer.assert_problem(400, "missing-key");
        assert_eq!(
            answer.header("link"),
            Some("<https://api.example/docs#missing-key>; rel=\"describedby\"")
        );
    }
    // Idempotent of themselves (RFC 9110, section 9.2.2).
    for method in [Method::PUT, Method::DELETE] {
        app.send(Call::new(method, "/orders"))
            .await
            .assert_first(201);
    }
    app.send(Call::new(Method::PATCH, "/orders"))
        .await
        .assert_problem(400, "missing-key");
    assert_eq!(app.execs(), 2);
}

#[tokio::test]
async fn row_13_a_missing_key_runs_plainly_and_stores_nothing_where_it_is_optional() {
    let store = Memory::default();
    let app = App::orders(layer_over(&store).with_policy(Policy::default()));
    for _ in 0..2 {
        app.send(Call::post("/orders")).await.assert_first(201);
    }
    assert_eq!((app.execs(), store.len()), (2, 0));
}

#[tokio::test]
async fn row_14_a_key_on_a_safe_method_is_ignored() {
    let store = Memory::default();
    let app = App::orders(layer_over(&store));
    for method in [
        Method::GET,
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
    ] {
        app.send(Call::new(method, "/orders").key(K))
            .await
            .assert_first(201);
    }
    assert_eq!((app.execs(), store.len()), (5, 0));
    app.send(Call::order()).await.assert_first(201);
    assert_eq!(app.execs(), 6);
}

fn cross_origin(execs: &Execs, cors: CorsLayer) -> Router {
    let execs = execs.clone();
    let handler = move || async move {
        execs.add();
        StatusCode::CREATED
    };
    Router::new()
        .route("/orders", post(handler))
        .layer(cors)
        .layer(layer())
}

/// A key that is sent with its date needs both.
#[tokio::test]
async fn row_15_a_preflight_admits_what_belongs_to_the_key() {
    let cors = CorsLayer::new()
        .allow_origin(["https://shop.example".parse().unwrap()])
        .allow_methods([Method::POST]);
    let layer = IdempotencyLayer::preset(Preset::Oasis, Memory::default());
    let app = App::routing(|_| {
        Router::new()
            .route("/orders", post(""))
            .layer(cors)
            .layer(layer)
    });
    let preflight = Call::new(Method::OPTIONS, "/orders")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "repeatability-request-id");
    let answer = app.send(preflight).await;
    assert_eq!(
        answer.all("access-control-allow-headers"),
        ["repeatability-request-id", "repeatability-first-sent"]
    );
}

#[tokio::test]
async fn row_15_a_preflight_goes_past_and_admits_the_key() {
    let cors = CorsLayer::new()
        .allow_origin(["https://shop.example".parse().unwrap()])
        .allow_methods([Method::POST])
        .allow_headers([HeaderName::from_static("content-type")]);
    let app = App::routing(|execs| cross_origin(execs, cors));
    let preflight = Call::new(Method::OPTIONS, "/orders")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "content-type, Idempotency-Key",
        );
    let answer = app.send(preflight).await;
    answer.assert_first(200);
    assert_eq!(
        answer.all("access-control-allow-headers"),
        ["content-type", "idempotency-key"]
    );
    let call = Call::order().header("origin", "https://shop.example");
    let first = app.send(call.clone()).await;
    let replay = app.send(call).await;
    replay.assert_replay_of(&first);
    for answer in [first, replay] {
        assert_eq!(
            answer.header("access-control-allow-origin"),
            Some("https://shop.example")
        );
        assert_eq!(
            answer.all("access-control-expose-headers"),
            ["idempotency-replayed", "retry-after"]
        );
    }
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_15_what_cors_allows_already_is_left_alone() {
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_headers(Any)
        .expose_headers(Any);
    let app = App::routing(|execs| cross_origin(execs, cors));
    let preflight = Call::new(Method::OPTIONS, "/orders")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "idempotency-key");
    assert_eq!(
        app.send(preflight)
            .await
            .all("access-control-allow-headers"),
        ["*"]
    );
    let answer = app
        .send(Call::order().header("origin", "https://shop.example"))
        .await;
    assert_eq!(answer.all("access-control-expose-headers"), ["*"]);
    // Not a cross-origin request that is allowed: nothing is added.
    let app = App::orders(layer());
    let answer = app.send(Call::order()).await;
    assert!(answer.all("access-control-expose-headers").is_empty());
}

#[tokio::test]
async fn row_16_another_principal_has_records_of_its_own() {
    let app = App::orders(layer());
    let first = app.send(as_user("Bearer p1")).await;
    let second = app.send(as_user("Bearer p2")).await;
    first.assert_first(201);
    second.assert_first(201);
    assert_ne!(first.body, second.body);
    // With another body: its own mismatch, not a word of the first principal's.
    app.send(as_user("Bearer p2").body("other"))
        .await
        .assert_problem(422, "mismatch");
    app.send(as_user("Bearer p1"))
        .await
        .assert_replay_of(&first);
    assert_eq!(app.execs(), 2);
}

#[tokio::test]
async fn row_16_credentials_are_never_stored() {
    use semel::store::{ListQuery, Store as _};
    let store = Memory::default();
    let app = App::orders(layer_over(&store));
    app.send(as_user("Bearer secret-token"))
        .await
        .assert_first(201);
    let page = store
        .list(&ListQuery::new(semel::StateKind::Completed))
        .await
        .unwrap();
    let scope: Vec<_> = page.entries[0].label.scope.segments().collect();
    assert_eq!(
        (scope.len(), scope[0], scope[1].len()),
        (2, "authorization", 64)
    );
    assert!(!format!("{page:?}").contains("secret-token"));
}

#[tokio::test]
async fn row_17_a_stable_principal_outlives_its_token() {
    let user = HeaderName::from_static("x-user");
    let by_header = layer().with_principal_header(user);
    let by_function = layer().with_principal_by(|parts| {
        let user = parts.headers.get("x-user")?.to_str().ok()?;
        Some(Scope::new(["user", user]))
    });
    for layer in [by_header, by_function] {
        let app = App::orders(layer);
        let first = app.send(as_user("Bearer t1").header("x-user", "p1")).await;
        let retry = app.send(as_user("Bearer t2").header("x-user", "p1")).await;
        retry.assert_replay_of(&first);
        app.send(as_user("Bearer t2").header("x-user", "p2"))
            .await
            .assert_first(201);
        assert_eq!(app.execs(), 2);
    }
}

#[tokio::test]
async fn row_18_account_and_tenant_can_belong_to_the_scope() {
    let app = App::orders(layer().with_scope_header("x-account"));
    for account in ["a", "b"] {
        let call = as_user("Bearer p1").header("x-account", account);
        app.send(call.clone()).await.assert_first(201);
        assert!(app.send(call).await.is_replay());
    }
    // Not sent is another scope than sent empty.
    app.send(as_user("Bearer p1")).await.assert_first(201);
    app.send(as_user("Bearer p1").header("x-account", ""))
        .await
        .assert_first(201);
    assert_eq!(app.execs(), 4);
}

#[tokio::test]
async fn row_19_anonymous_callers_are_refused_on_request() {
    let app = App::orders(layer().with_principal_required(true));
    app.send(Call::order())
        .await
        .assert_problem(400, "missing-principal");
    assert_eq!(app.execs(), 0);
    app.send(as_user("Bearer p1")).await.assert_first(201);
    let user = HeaderName::from_static("x-user");
    let app = App::orders(
        layer()
            .with_principal_header(user)
            .with_principal_required(true),
    );
    for call in [Call::order(), Call::order().header("x-user", "")] {
        app.send(call)
            .await
            .assert_problem(400, "missing-principal");
    }
    assert_eq!(app.execs(), 0);
}

#[tokio::test]
async fn row_20_parts_of_the_scope_cannot_be_confused() {
    let layer = layer()
        .with_principal_header("x-user")
        .with_scope_header("x-account");
    let app = App::orders(layer);
    let call = |user: &str, account: &str, key: &str| {
        Call::post("/orders")
            .key(key)
            .header("x-user", user)
            .header("x-account", account)
    };
    for (user, account, key) in [
        ("a:b", "", "c"),
        ("a", "", "b:c"),
        ("a", "b", "c"),
        ("a:b", "c", "c"),
        ("a", "b:c", "c"),
    ] {
        app.send(call(user, account, key)).await.assert_first(201);
    }
    // A value that looks like the name of the next field.
    let confusing = call("a", "x-account", "k").header("x-account", "b");
    app.send(confusing).await.assert_first(201);
    let confused = call("a", "b", "k").header("x-user", "x-account");
    app.send(confused).await.assert_first(201);
    assert_eq!(app.execs(), 7);
}

#[tokio::test]
async fn row_21_the_same_key_on_another_route_is_a_mismatch() {
    let app = App::orders(layer());
    let first = app.send(Call::order()).await;
    app.send(Call::post("/refunds").key(K))
        .await
        .assert_problem(422, "mismatch");
    let put = Call::new(Method::PUT, "/orders").key(K);
    app.send(put).await.assert_problem(422, "mismatch");
    app.send(Call::order()).await.assert_replay_of(&first);
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_21_or_a_record_of_its_own_where_routes_are_operations() {
    let app = App::orders(layer().with_operation_by(|parts| parts.uri.path().to_owned()));
    app.send(Call::order()).await.assert_first(201);
    app.send(Call::post("/refunds").key(K))
        .await
        .assert_first(201);
    assert!(app.send(Call::order()).await.is_replay());
    assert_eq!(app.execs(), 2);
    // One store, two named operations.
    let store = Memory::default();
    for (n, name) in ["order", "refund"].into_iter().enumerate() {
        let app = App::orders(layer_over(&store).with_operation(name));
        app.send(Call::order()).await.assert_first(201);
        assert_eq!(store.len(), n + 1);
    }
}

#[tokio::test]
async fn row_21_services_that_share_a_store_are_apart() {
    let store = Memory::default();
    let service = |name| Service::new(name).unwrap();
    // Whichever is set first.
    let payments = layer_over(&store).with_service(service("payments"));
    let orders = layer_over(&store)
        .with_operation("http")
        .with_service(service("orders"));
    // An operation cannot play another service's.
    let forged = layer_over(&store).with_operation_by(|_| "http@payments".to_owned());
    let by_path = layer_over(&store)
        .with_operation_by(|parts| parts.uri.path().to_owned())
        .with_service(service("orders"));
    for (n, layer) in [payments, orders, forged, by_path, layer_over(&store)]
        .into_iter()
        .enumerate()
    {
        let app = App::orders(layer);
        app.send(Call::order()).await.assert_first(201);
        assert!(app.send(Call::order()).await.is_replay());
        assert_eq!(store.len(), n + 1);
    }
}

async fn authenticated(request: Request, next: Next) -> Response {
    if request.headers().contains_key("x-revoked") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
}

#[tokio::test]
async fn row_22_authentication_outside_the_layer_comes_before_the_lookup() {
    let mut app = App::orders(layer());
    app.router = app.router.layer(from_fn(authenticated));
    let first = app.send(as_user("Bearer p1")).await;
    let revoked = app.send(as_user("Bearer p1").header("x-revoked", "")).await;
    revoked.assert_first(401);
    assert!(revoked.body.is_empty());
    app.send(as_user("Bearer p1"))
        .await
        .assert_replay_of(&first);
}
