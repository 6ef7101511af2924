//! What a request passes through, from the outside in.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use http::header::{HOST, HeaderName, InvalidHeaderValue};
use semel::Store;
use semel::guard::Guard;
use semel::secrets::Secrets;
use semel_tower::{IdempotencyLayer, Mode};
use tokio::sync::{Semaphore, mpsc};
use tower::Layer as _;

use crate::bounded::Bounded;
use crate::config::{Config, KeyPlace, Route};
use crate::descriptors::Shares;
use crate::events::Events;
use crate::headers::{self, Rules};
use crate::logged::Logged;
use crate::metrics::{Measured, Metrics};
use crate::observe::Observing;
use crate::peer::Peer;
use crate::pool::Pools;
use crate::principal::{self, Principals, Verified, Verifiers};
use crate::proxy::Proxy;
use crate::reconcile::{Decided, Endpoint, Watching};
use crate::routing::{Handler, Router, Table};
use crate::tls::{self, client::Trust};
use crate::wellformed::Checked;

/// What all requests share, whatever their route and however often the configuration changes: the
/// store with the attempts under way, limits, and connections to upstreams.
#[derive(Debug)]
pub struct Stacks<S> {
    layer: IdempotencyLayer<S>,
    /// The same for routes that are only observed.
    observing: IdempotencyLayer<S>,
    kept: Mutex<Kept<S>>,
    unkeyed: Arc<Semaphore>,
    pools: Arc<Pools>,
    trust: Arc<Trust>,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    has_spans: bool,
    decisions: Mutex<Option<mpsc::UnboundedReceiver<Decided>>>,
}

/// What the table that holds now hands on to the next one.
#[derive(Debug)]
struct Kept<S> {
    /// For each route the layer that counts what its scopes use. Those of routes that stay go on
    /// counting.
    counting: Vec<(Route, IdempotencyLayer<S>)>,
    /// What verifies callers: with the keys and answers that it knows.
    verifiers: Verifiers,
}

/// Why requests could not be served as a configuration says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An upstream's name cannot stand in a header field.
    #[error("--upstream: {0}")]
    Upstream(#[from] InvalidHeaderValue),
    /// TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// Callers cannot be verified.
    #[error(transparent)]
    Principal(#[from] principal::Error),
}

impl<S: Store + Clone> Stacks<S> {
    /// As the configuration says at start.
    pub fn new(
        config: &Config,
        shares: Shares,
        store: S,
        secrets: Option<&Secrets>,
        trust: Arc<Trust>,
        metrics: Arc<Metrics>,
        events: Arc<Events>,
    ) -> Self {
        let observing = Guard::builder(store.clone()).build();
        let (decided, decisions) = mpsc::unbounded_channel();
        let watching = Watching {
            decided: Some(decided),
            ..Watching::new(Arc::clone(&metrics), Arc::clone(&events))
        };
        let mut guard = Guard::builder(store).observer(Arc::new(watching));
        if let Some(settings) = &config.reconcile {
            let sizes = config.routes.iter().map(|route| route.max_body);
            let max_body = sizes.max().unwrap_or_default();
            let endpoint =
                Endpoint::new(settings, max_body, Arc::clone(&trust), Arc::clone(&metrics));
            guard = guard
                .reconciler(Arc::new(endpoint))
                .reconcile_options(settings.in_line());
        }
        let layer = |guard| {
            IdempotencyLayer::new(guard)
                .with_max_attempts(shares.attempts)
                .with_max_body_memory(config.limits.body_memory)
                .with_host_header(headers::FORWARDED_HOST)
                .with_secrets(secrets.cloned())
        };
        Self {
            layer: layer(guard.build()),
            observing: layer(observing),
            kept: Mutex::new(Kept {
                counting: Vec::new(),
                verifiers: Verifiers::default(),
            }),
            unkeyed: Arc::new(Semaphore::new(shares.unkeyed.min(Semaphore::MAX_PERMITS))),
            pools: Arc::new(Pools::new(Arc::clone(&trust), Arc::clone(&metrics))),
            trust,
            metrics,
            events,
            has_spans: config.collector.is_some(),
            decisions: Mutex::new(Some(decisions)),
        }
    }

    /// What the reconciler decides from now on: for the audit log. There is one who gets it.
    pub(crate) fn decisions(&self) -> Option<mpsc::UnboundedReceiver<Decided>> {
        let decisions = self.decisions.lock();
        decisions.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The layer that those of all routes are made from that enforce: it drains them all.
    pub const fn layer(&self) -> &IdempotencyLayer<S> {
        &self.layer
    }

    /// The same for routes that only observe.
    pub(crate) const fn observing(&self) -> &IdempotencyLayer<S> {
        &self.observing
    }

    /// The connections to upstreams.
    pub fn pools(&self) -> Arc<Pools> {
        Arc::clone(&self.pools)
    }

    /// A configuration, made to serve.
    ///
    /// # Errors
    /// What cannot be known before.
    pub fn table(&self, config: Config) -> Result<Table<S>, Error> {
        if config.asks_over_tls() {
            self.trust.read()?;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (jwt, auth) = (config.jwt.as_ref(), config.auth.as_ref());
        let verifiers = kept.verifiers.with(jwt, auth, &self.trust)?;
        let counting = config
            .routes
            .iter()
            .map(|route| self.counting(&kept, route));
        let counting: Vec<_> = config.routes.iter().cloned().zip(counting).collect();
        let handlers = counting.iter().map(|(route, layer)| {
            let rules = Arc::new(Rules::new(&config, route));
            let operation = operation_of(route);
            let counted = self.metrics.of_route(&route.label, &operation);
            let proxy = Proxy::new(
                route,
                &self.pools,
                Arc::clone(&rules),
                Arc::clone(&self.metrics),
                Arc::clone(&counted),
                self.has_spans,
            )?;
            let bounded = Bounded::new(proxy, Arc::clone(&self.unkeyed), Arc::clone(&self.metrics));
            let principals = Principals {
                parts: route.principal.clone(),
                is_required: route.require_principal,
                only_observes: route.mode == Mode::Observe,
                verifiers: verifiers.clone(),
                metrics: Arc::clone(&self.metrics),
            };
            let service = Verified {
                inner: layer_of(route, &self.told(route, layer)).layer(bounded),
                principals: route.verifies().then(|| Arc::new(principals)),
            };
            Ok(Handler {
                name: route.label.as_str().into(),
                metrics: counted,
                rules,
                service,
            })
        });
        let handlers = handlers.collect::<Result<_, Error>>()?;
        let before = std::mem::replace(
            &mut *kept,
            Kept {
                counting,
                verifiers,
            },
        );
        self.forget(&before, &kept);
        drop(kept);
        let unrouted = self.metrics.of_route("", "");
        Ok(Table::new(config, unrouted, handlers))
    }

    /// Forgets what was counted of routes that are no more.
    fn forget(&self, before: &Kept<S>, now: &Kept<S>) {
        let labels = |route: &Route| [route.label.clone(), operation_of(route)];
        let are: BTreeSet<[String; 2]> = now.counting.iter().map(|(it, _)| labels(it)).collect();
        self.metrics
            .keep(|labels| labels[0].is_empty() || are.contains(labels));
        let observes = |route: &Route| route.protect && route.mode == Mode::Observe;
        let observed = |kept: &Kept<S>| -> BTreeSet<String> {
            let routes = kept.counting.iter().filter(|(route, _)| observes(route));
            routes.map(|(route, _)| route.label.clone()).collect()
        };
        for route in observed(before).difference(&observed(now)) {
            self.metrics.forget_observed(route);
        }
    }

    /// The layer of a route with what it tells, where that is by route.
    fn told(&self, route: &Route, layer: &IdempotencyLayer<S>) -> IdempotencyLayer<S> {
        let layer = layer.clone();
        match route.mode {
            Mode::Observe if route.protect => layer.with_observer(Arc::new(Observing {
                route: route.label.clone(),
                dialect: route.dialect,
                counted: self.metrics.observed(&route.label),
                events: Arc::clone(&self.events),
            })),
            _ => layer,
        }
    }

    /// The layer that counts what the scopes of a route use: the one that there is, if its limits are the
    /// same.
    fn counting(&self, kept: &Kept<S>, route: &Route) -> IdempotencyLayer<S> {
        let is_same = |other: &Route| {
            other.matches == route.matches
                && other.mode == route.mode
                && other.service == route.service
                && other.scope_limits == route.scope_limits
        };
        let known = kept.counting.iter().find(|(other, _)| is_same(other));
        let layer = match route.mode {
            Mode::Observe => &self.observing,
            _ => &self.layer,
        };
        let new = || layer.clone().with_scope_limits(route.scope_limits);
        known.map_or_else(new, |(_, layer)| layer.clone())
    }
}

/// What a route's requests are claimed as; nothing where they are not.
fn operation_of(route: &Route) -> String {
    match route.protect {
        true => route.operation(),
        false => String::new(),
    }
}

/// The idempotency layer of a route, from one that shares store and limits.
pub(crate) fn layer_of<S: Store>(
    route: &Route,
    layer: &IdempotencyLayer<S>,
) -> IdempotencyLayer<S> {
    let layer = layer
        .clone()
        .with_preset(route.preset)
        .with_policy(route.policy())
        .with_syntax(route.key_syntax)
        .with_key_rule(route.key_rule)
        .with_scope_target(route.scope_target)
        .with_body_form(route.body_form)
        .with_fingerprint_headers(route.fingerprint_headers.iter().cloned())
        .with_dialect(route.dialect)
        .with_allowed_replay_headers(route.kept_headers.iter().cloned())
        .with_mode(if route.protect { route.mode } else { Mode::Off })
        .with_max_request_body(route.max_body)
        .with_max_response_body(route.max_body)
        // Who is let in without is said by what verifies.
        .with_principal_required(route.require_principal || route.names_caller())
        .with_service(route.service())
        .with_note(route.note.iter().cloned());
    let layer = match &route.key {
        KeyPlace::Header(name) => layer.with_key_header(name.clone()),
        KeyPlace::Member(name) => layer.with_key_member(name.as_str()),
    };
    let layer = match &route.replay_header {
        Some(name) => layer.with_replay_header(name.clone()),
        None => layer.without_replay_header(),
    };
    let layer = match &route.key_methods[..] {
        [] => layer,
        methods => layer.with_methods(methods.iter().cloned()),
    };
    let layer = scoped(layer, route);
    route
        .dispositions
        .each()
        .fold(layer, |layer, (status, disposition)| {
            layer.with_disposition(status, disposition)
        })
}

/// What is verified names the principal, or else the first field; other fields narrow its scope. A host
/// always does that: it says nothing of who asks. It is the one that the client asked, also behind a
/// proxy that is trusted.
fn scoped<S: Store>(layer: IdempotencyLayer<S>, route: &Route) -> IdempotencyLayer<S> {
    let asked = |name: &HeaderName| match *name {
        HOST => headers::FORWARDED_HOST,
        _ => name.clone(),
    };
    let names: Vec<HeaderName> = route.scope_headers.iter().map(asked).collect();
    let names_caller =
        |name: &&HeaderName| !route.names_caller() && **name != headers::FORWARDED_HOST;
    let principal = names.iter().find(names_caller);
    let layer = match principal {
        _ if route.names_caller() => layer.with_principal_by(principal::scope_of),
        Some(name) => layer.with_principal_header(name.clone()),
        None => layer,
    };
    let others = names.iter().filter(|name| Some(*name) != principal);
    others.fold(layer, |layer, name| layer.with_scope_header(name.clone()))
}

/// All that a request passes through, for the clients of one connection.
pub(crate) type Stack<S> = Logged<Measured<Checked<Router<S>>>>;

/// The whole stack: logged, measured, checked, and then as its route says: bounded in time, made to
/// happen once, bounded in number, forwarded.
pub(crate) fn stack<S: Store>(
    table: Arc<ArcSwap<Table<S>>>,
    metrics: Arc<Metrics>,
    peer: Peer,
    has_spans: bool,
) -> Stack<S> {
    let measured = Measured::new(Checked(Router::new(table, peer)), metrics);
    Logged::new(measured, has_spans)
}
