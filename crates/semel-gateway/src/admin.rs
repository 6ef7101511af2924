//! The operators' listener: liveness, readiness, metrics, and around them the interfaces and the console.

use std::net::IpAddr;
use std::str::FromStr as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use semel::store::Store;
use semel_tower::IdempotencyLayer;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Gate, site};
use crate::claims::{self, Claims, MAX_REQUEST};
use crate::exchange::Told;
use crate::metrics::Metrics;
use crate::openapi;
use crate::pool::Pools;
use crate::refused::{Code, Refused};
use crate::store::{Condition, Health, PROBE_TIMEOUT};

/// What the operators' listener looks at.
pub struct Admin<S> {
    /// The layer, whose store is probed.
    pub layer: IdempotencyLayer<S>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// What is known of the store.
    pub health: Arc<Health>,
    /// The connections to upstreams.
    pub pools: Arc<Pools>,
    /// Who may come in, where not everybody may.
    pub gate: Arc<Gate>,
    /// The claim API.
    pub claims: Arc<Claims>,
    /// Whether the gateway is stopping.
    pub stopping: watch::Receiver<bool>,
    /// The names under which it may be asked, besides `localhost` and addresses.
    pub hosts: Vec<String>,
}

/// The routes of the operators' listener.
pub(crate) fn router<S: Store>(admin: Admin<S>, api: OpenApiRouter, console: Router) -> Router {
    let admin = Arc::new(admin);
    // What only those may use whom the gate lets in.
    let described = OpenApiRouter::with_openapi(openapi::head());
    let described = described.merge(claims::router(Arc::clone(&admin.claims)));
    let described = described.merge(api);
    let (interfaces, document) = described.split_for_parts();
    // Shared: for each request, whatever its path, all handlers are cloned.
    let document = Arc::new(openapi::served(&document));
    let guarded = interfaces
        .method_not_allowed_fallback(not_so)
        .route("/api/v1/{*path}", any(nothing))
        .route("/v1/{*path}", any(nothing))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&admin),
            admitted::<S>,
        ));
    Router::new()
        .route(
            "/openapi.json",
            get(async move || Told(StatusCode::OK, &*document).into_response()),
        )
        .route("/healthz", get(|| async { "up\n" }))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(metrics::<S>))
        .with_state(Arc::clone(&admin))
        .merge(guarded)
        // It finds out by itself who calls: browsers have sessions.
        .merge(console.layer(DefaultBodyLimit::max(MAX_REQUEST)))
        .layer(middleware::from_fn_with_state(admin, known_host::<S>))
}

async fn not_so() -> Refused {
    Refused::new(
        Code::MethodNotAllowed,
        "`Allow` says which methods there are.",
    )
}

async fn nothing() -> Refused {
    Refused::new(Code::NotFound, "No such path. See /openapi.json.")
}

/// Finds out who calls, and tells those behind: a [`Caller`](crate::access::Caller) among the extensions.
async fn admitted<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match admin.gate.admit(&parts) {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(refused) => refused.into_response(),
    }
}

/// Refuses requests for a name that is not this listener's. Otherwise a web page could read it from an
/// operator's browser, by having its own name resolve to this address (DNS rebinding).
async fn known_host<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    request: Request,
    next: Next,
) -> Response {
    match site::host(request.uri(), request.headers()) {
        // HTTP/1.0, and no browser.
        None => next.run(request).await,
        Some(host) if is_known(host, &admin.hosts) => next.run(request).await,
        Some(_) => {
            let message = "this listener does not answer to that name: see --admin-host\n";
            (StatusCode::MISDIRECTED_REQUEST, message).into_response()
        }
    }
}

fn is_known(host: &str, names: &[String]) -> bool {
    let Ok(host) = Authority::from_str(host) else {
        return false;
    };
    let host = host.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| host.eq_ignore_ascii_case(name))
}

async fn ready<S: Store>(State(admin): State<Arc<Admin<S>>>) -> (StatusCode, String) {
    let not = |reason: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"));
    if *admin.stopping.borrow() {
        return not("stopping".to_owned());
    }
    let ready = match admin.health.condition() {
        // A probe would not see it: some stores read, and take nothing (a read-only PostgreSQL).
        Condition::Down(reason) => return not(format!("store: {reason}")),
        // What it can still do, other gateways on a full store cannot do better.
        Condition::Full(reason) => format!("ready, no room for new keys: {reason}\n"),
        Condition::Up => "ready\n".to_owned(),
    };
    // Replays need no upstream, and other gateways would not reach it either.
    let conditions = admin.pools.conditions().into_iter();
    let down = conditions.filter_map(|(upstream, is_up)| (!is_up).then_some(upstream));
    let down = down.collect::<Vec<_>>().join(", ");
    let ready = match down.is_empty() {
        true => ready,
        false => format!("{ready}upstreams that are down: {down}\n"),
    };
    let store = admin.layer.guard().store();
    match tokio::time::timeout(PROBE_TIMEOUT, store.probe()).await {
        Ok(Ok(_)) => (StatusCode::OK, ready),
        Ok(Err(error)) => not(format!("store: {error}")),
        Err(_) => not("store: no answer in time".to_owned()),
    }
}

async fn metrics<S: Store>(State(admin): State<Arc<Admin<S>>>) -> impl IntoResponse {
    admin.metrics.claims_wait(admin.claims.waiting());
    let text = admin.metrics.text(admin.layer.guard(), &admin.pools);
    // The format that Prometheus asks for first, and that prometheus-client writes.
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, format)], text)
}

#[cfg(test)]
mod tests {
    use semel::AnyStore;
    use semel::guard::Guard;
    use semel::memory::MemoryStore;

    use super::*;
    use crate::access::Access;

    #[tokio::test]
    async fn a_store_that_answers_and_takes_nothing_is_not_ready() {
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Arc::clone(&metrics)));
        let (_stop, stopping) = watch::channel(false);
        let claimed = Guard::from(AnyStore::new(MemoryStore::default()));
        let admin = State(Arc::new(Admin {
            layer: IdempotencyLayer::new(Guard::from(MemoryStore::default())),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            pools: Arc::new(Pools::new(Arc::default(), Arc::clone(&metrics))),
            gate: Arc::new(Gate::new(Access::default(), true)),
            claims: Arc::new(Claims::new(claimed, 1, stopping.clone())),
            stopping,
            hosts: Vec::new(),
        }));
        assert_eq!(
            ready(admin.clone()).await,
            (StatusCode::OK, "ready\n".to_owned())
        );
        health.found(Condition::Down("read-only".to_owned()));
        let (status, text) = ready(admin).await;
        assert_eq!(
            (status, text.as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "store: read-only\n")
        );
    }
}
