//! What would become of a request: its route, what holds there, and the name of its operation. It goes
//! through what requests go through, but for the store and the upstream.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri, Version};
use semel::memory::MemoryStore;
use semel::secrets::Secrets;
use semel::{Identity, Scope};
use semel_tower::Mode;
use tower::{Layer as _, ServiceExt as _};

use crate::at_rest;
use crate::body::Body;
use crate::config::{Config, Route, Sources};
use crate::descriptors::Shares;
use crate::headers::Rules;
use crate::metrics::Metrics;
use crate::principal::{self, Part};
use crate::problem::Problem;
use crate::routing::{self, Found};
use crate::stack::{self, Stacks};
use crate::tls::client::Trust;
use crate::wellformed;

/// A request as the command line has it.
pub(super) fn request<'a>(
    line: &str,
    fields: impl Iterator<Item = &'a String>,
    body: Option<String>,
    config: &Config,
) -> Result<Request<Bytes>, String> {
    let example = "write it like --request 'POST /v1/orders'";
    let (method, target) = line
        .trim()
        .split_once(' ')
        .ok_or_else(|| format!("--request: `{line}` is not a method and a path; {example}"))?;
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| format!("--request: `{method}` is not a method; {example}"))?;
    let target: Uri = target.trim().parse().map_err(|error| {
        format!("--request: `{target}` is not a path or a URL ({error}); {example}")
    })?;
    let mut headers = HeaderMap::new();
    for field in fields {
        // Shows nothing of a value.
        let wrong = || "--header: write it like 'Idempotency-Key: 7f3a'".to_owned();
        let (name, value) = field.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        headers.append(name, value);
    }
    if !headers.contains_key(HOST) {
        let own = target
            .authority()
            .map_or(&*config.listen, |host| host.as_str());
        headers.extend(HeaderValue::from_str(own).ok().map(|own| (HOST, own)));
    }
    let mut request = Request::new(Bytes::from(body.unwrap_or_default()));
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    Ok(request)
}

/// What becomes of a request, for people.
pub(super) async fn lines(
    sources: &Sources,
    config: Config,
    request: Request<Bytes>,
) -> Result<Vec<String>, at_rest::Error> {
    let secrets = config.at_rest.read().await?.secrets;
    let mut told = Told::default();
    let (parts, body) = request.into_parts();
    let (method, uri, headers) = (&parts.method, &parts.uri, &parts.headers);
    let host = routing::host(uri, headers);
    let shown = host.as_deref().unwrap_or("no host");
    told.add("request", format!("{method} {} for {shown}", uri.path()));
    if let Err(problem) = wellformed::check(method, uri, Version::HTTP_11, headers) {
        told.problem(problem);
        return Ok(told.0);
    }
    let found = routing::find(&config.routes, method, uri, headers);
    let nth = match found {
        Found::Route(nth) => nth,
        Found::None => config.routes.len(),
        Found::Ambiguous => {
            told.problem(Problem::AmbiguousPath);
            return Ok(told.0);
        }
    };
    // All its readings fall to the same route.
    let path = routing::decoded(uri.path());
    for route in config.routes.iter().take(nth) {
        if let Some(why) = route.matches.misses(host.as_deref(), &path, method) {
            told.add(
                &format!("not {}", route.name),
                format!("another {why}: {}", route.matches),
            );
        }
    }
    let Some(route) = config.routes.get(nth).cloned() else {
        told.problem(Problem::NoRoute);
        return Ok(told.0);
    };
    told.add("route", format!("{route}  ({})", sources.place(nth)));
    told.0.extend(sources.route(nth));
    let request = Request::from_parts(parts, body);
    told.through(&config, &route, secrets.as_ref(), request)
        .await;
    Ok(told.0)
}

/// What was said so far.
#[derive(Default)]
struct Told(Vec<String>);

impl Told {
    fn add(&mut self, name: &str, what: impl AsRef<str>) {
        self.0.push(format!("{name:<18} {}", what.as_ref()));
    }

    fn problem(&mut self, problem: Problem) {
        let (status, code, _) = problem.parts();
        let answer = format!("{} {code}: {}", status.as_u16(), problem.detail());
        self.add("answer", answer);
    }

    /// Through the layer of its route, on a store that is empty.
    async fn through(
        &mut self,
        config: &Config,
        route: &Route,
        secrets: Option<&Secrets>,
        request: Request<Bytes>,
    ) {
        let (mut parts, body) = request.into_parts();
        let rules = Rules::new(config, route);
        rules.admit(&mut parts.headers, parts.uri.authority(), None);
        if route.names_caller() {
            parts
                .extensions
                .insert(principal::stand_in(&route.principal));
        }
        let shares = Shares {
            connections: 1,
            attempts: 1,
            unkeyed: 1,
        };
        let (trust, metrics) = (Arc::new(Trust::default()), Arc::new(Metrics::new()));
        let stacks = Stacks::new(
            config,
            shares,
            Arc::new(MemoryStore::default()),
            secrets,
            trust,
            metrics,
            Arc::default(),
        );
        let arrived: Arc<Mutex<Option<Option<Identity>>>> = Arc::default();
        let arrival = Arc::clone(&arrived);
        let upstream = tower::service_fn(move |request: Request<Body>| {
            let identity = request.extensions().get::<Identity>().cloned();
            *arrival.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(Bytes::new()))))
        });
        // What is observed is what would be enforced.
        let enforced = Route {
            mode: Mode::Enforce,
            ..route.clone()
        };
        let layer = stack::layer_of(&enforced, stacks.layer());
        let request = Request::from_parts(parts, Body::from(body));
        let Ok(answer) = layer.layer(upstream).oneshot(request).await;
        layer.drain().await;
        let arrived = arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (arrived, answer.extensions().get::<semel_tower::Problem>()) {
            (Some(Some(identity)), _) => self.identity(&identity, route),
            (Some(None), _) if !route.protect => {
                self.add("answer", "the upstream's: keys are not looked at (protect)");
            }
            (Some(None), _) => self.add("answer", "the upstream's: there is no key to look at"),
            (None, Some(problem)) => {
                let (status, code) = (answer.status().as_u16(), problem.code.as_str());
                self.add("answer", format!("{status} {code}"));
            }
            (None, None) => self.add("answer", answer.status().to_string()),
        }
    }

    fn identity(&mut self, identity: &Identity, route: &Route) {
        self.add("answer", "the upstream's, and its replay from then on");
        self.add("key", format!("{}…", identity.key().hint()));
        self.add("scope", scope(identity.scope(), route));
        self.add("operation", identity.operation());
        if !route.names_caller() {
            self.add("identity", identity.digest().to_string());
        }
        if route.verifies() {
            self.add(
                "principal",
                "verified when the request comes, or it is refused",
            );
        }
    }
}

/// A scope without its values: they may be secrets.
fn scope(scope: &Scope, route: &Route) -> String {
    if *scope == Scope::anonymous() {
        return "anonymous: no principal".to_owned();
    }
    let of_preset: Vec<HeaderName> = route.preset.fields().collect();
    let fields = route.scope_headers.iter().chain(&of_preset);
    let mut names: Vec<&str> = fields.map(HeaderName::as_str).collect();
    names.extend(["authorization", "x-forwarded-host", "target"]);
    let verified: Vec<String> = route.principal.iter().map(Part::to_string).collect();
    names.extend(verified.iter().map(String::as_str));
    let segments = scope.segments();
    let segments = segments.map(|text| names.iter().find(|name| **name == text).unwrap_or(&"…"));
    let mut shown: Vec<&str> = segments.copied().collect();
    shown.dedup();
    shown.join(" ")
}
