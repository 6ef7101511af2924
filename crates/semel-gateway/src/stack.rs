//! What a request passes through, from the outside in.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderName};
use http::{Request, Response};
use hyper::body::Incoming;
use semel::Store;
use semel::guard::{Guard, Policy};
use semel::store::Retention;
use semel_tower::{BodyForm, IdempotencyLayer, fingerprint};
use tower::ServiceBuilder;
use tower_service::Service;

use crate::body::Body;
use crate::bounded::Bounded;
use crate::config::Config;
use crate::descriptors::Shares;
use crate::headers;
use crate::logged::Logged;
use crate::metrics::{Measured, Metrics};
use crate::proxy::{Peer, Proxy};
use crate::reconcile::{Endpoint, Watching};
use crate::tls::client::Trust;
use crate::wellformed::Checked;

/// How long a client may be silent within a body.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// The idempotency layer as the configuration says.
pub fn layer<S: Store>(
    config: &Config,
    shares: Shares,
    store: S,
    trust: Arc<Trust>,
    metrics: Arc<Metrics>,
) -> IdempotencyLayer<S> {
    let policy = Policy::default()
        .with_lease(config.lease)
        .with_retention(Retention::new(config.ttl))
        .with_on_lost(config.on_lost)
        .with_key_required(config.require_key)
        .with_wait(config.wait);
    let mut guard = Guard::builder(store)
        .policy(policy)
        .observer(Arc::new(Watching(Arc::clone(&metrics))));
    if let Some(settings) = &config.reconcile {
        guard = guard
            .reconciler(Arc::new(Endpoint::new(
                settings,
                config.max_body,
                trust,
                metrics,
            )))
            .reconcile_options(settings.in_line());
    }
    let layer = IdempotencyLayer::new(guard.build())
        .with_max_request_body(config.max_body)
        .with_max_response_body(config.max_body)
        .with_max_attempts(shares.attempts)
        .with_max_body_memory(config.limits.body_memory)
        .with_principal_required(config.require_principal)
        .with_fingerprint_by(|parts, body| {
            fingerprint::of_request(parts, body, BodyForm::Json, [&headers::FORWARDED_HOST])
        })
        .with_service(config.service.clone().unwrap_or_default());
    let layer = scoped(layer, &config.scope_headers);
    config
        .dispositions
        .each()
        .fold(layer, |layer, (status, disposition)| {
            layer.with_disposition(status, disposition)
        })
}

/// The first field names the principal, the others narrow its scope. A host always does that: it says
/// nothing of who asks. It is the one that the client asked, also behind a proxy that is trusted.
fn scoped<S: Store>(layer: IdempotencyLayer<S>, names: &[HeaderName]) -> IdempotencyLayer<S> {
    let asked = |name: &HeaderName| match *name {
        HOST => headers::FORWARDED_HOST,
        _ => name.clone(),
    };
    let names: Vec<HeaderName> = names.iter().map(asked).collect();
    let principal = names.iter().find(|name| **name != headers::FORWARDED_HOST);
    let layer = match principal {
        Some(name) => layer.with_principal_header(name.clone()),
        None => layer,
    };
    let others = names.iter().filter(|name| Some(*name) != principal);
    others.fold(layer, |layer, name| layer.with_scope_header(name.clone()))
}

/// The whole stack: logged, measured, bounded in time, checked, made to happen once, bounded in number,
/// forwarded.
pub fn stack<S: Store>(
    config: &Config,
    shares: Shares,
    layer: IdempotencyLayer<S>,
    proxy: Proxy,
    metrics: Arc<Metrics>,
) -> impl Service<
    Request<Incoming>,
    Response = Response<semel_tower::Body<Body>>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ use<S> {
    let rules = proxy.rules();
    let (body_time, unkeyed) = (config.limits.body_time, shares.unkeyed);
    let counting = Arc::clone(&metrics);
    ServiceBuilder::new()
        .layer_fn(Logged::new)
        .layer_fn(move |inner| Measured::new(inner, Arc::clone(&metrics)))
        .layer_fn(Checked)
        .map_request(move |request: Request<Incoming>| {
            let (mut parts, body) = request.into_parts();
            let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
            rules.admit(&mut parts.headers, parts.uri.authority(), peer);
            let body = Body::stream_in_time(body, Some(CLIENT_SILENCE), body_time);
            Request::from_parts(parts, body)
        })
        .layer(layer)
        .layer_fn(move |inner| Bounded::new(inner, unkeyed, Arc::clone(&counting)))
        .service(proxy)
}
