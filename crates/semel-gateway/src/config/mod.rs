//! What `semel serve` is told, validated: `Config`.
//!
//! `settings` is the one list of what can be set. `sources` collects flags, environment and file
//! (`file`), the first the strongest; `read` makes the `Config` of them, each value by a
//! function of `values`.

mod callers;
mod dispositions;
mod file;
mod read;
mod schema;
pub mod settings;
mod show;
mod sources;
mod tokens;
pub(crate) mod values;

use std::fmt;
use std::time::Duration;

use http::header::HeaderName;
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Uri};
use ipnet::IpNet;
use semel::guard::Policy;
use semel::store::{OnLost, Retention};
use semel::{KeyRule, Service};
use semel_tower::{BodyForm, Dialect, Mode, NoteField, Preset, ScopeLimits, Syntax};
use tracing::Level;

use crate::access::Token;
use crate::at_rest::AtRest;
use crate::principal::{Auth, Jwt, Part, Source};
use crate::reconcile::{self, Settings};
use crate::routing::Matches;
use crate::tls::client::Trust;
use crate::tls::server::Files;
use crate::tls::{PemFile, Shown};
use crate::upstream::{Address, Protocol};
pub use dispositions::Dispositions;
pub(crate) use schema::schema;
pub(crate) use sources::Contents;
pub use sources::Sources;

/// Everything that `semel serve` needs to know, validated.
#[derive(Debug, Clone)]
pub struct Config {
    /// What becomes of requests: the first that takes one holds. There is one at least, and all others
    /// are refused.
    pub routes: Vec<Route>,
    /// Who signs the certificates of upstreams and of the reconciler, where it is not whom the system
    /// trusts.
    pub upstream_ca: Option<PemFile>,
    /// What those of them are shown that ask for a certificate.
    pub upstream_shown: Option<Shown>,
    /// Where clients connect, as `HOST:PORT`.
    pub listen: String,
    /// The files for TLS towards clients, unless they speak without.
    pub tls: Option<Files>,
    /// The same for operators.
    pub admin_tls: Option<Files>,
    /// Where operators connect, as `HOST:PORT`.
    pub admin: String,
    /// The store's URL. May hold a password.
    pub store: StoreUrl,
    /// What keeps others from reading records in it.
    pub at_rest: AtRest,
    /// Whom to ask about lost attempts, under [`OnLost::Reconcile`].
    pub reconcile: Option<Settings>,
    /// The peers who are believed what they say of others.
    pub trust_forwarded: Vec<IpNet>,
    /// Whether their connections begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// How much may be open, run and be held at once.
    pub limits: Limits,
    /// How tokens are verified, where they say who callers are.
    pub jwt: Option<Jwt>,
    /// Whom to ask about callers.
    pub auth: Option<Auth>,
    /// The names under which operators ask.
    pub admin_hosts: Vec<String>,
    /// Who may use the operators' interfaces, and for what.
    pub tokens: Vec<Token>,
    /// How long entries of the audit log are kept.
    pub audit_retention: Duration,
    /// What operators do in twos.
    pub four_eyes: Vec<String>,
    /// How long to wait for what is running, at the end.
    pub drain: Duration,
    /// How long connections are accepted after the signal to stop.
    pub drain_delay: Duration,
    /// Where traces go, if anywhere.
    pub collector: Option<Uri>,
    /// Whether there is a log line for each request.
    pub access_log: bool,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// The least important lines logged.
    pub log_level: Level,
}

impl Config {
    /// Whom it trusts, and what it shows. Nothing is read yet.
    pub fn trust(&self) -> Trust {
        Trust::new(self.upstream_ca.clone()).showing(self.upstream_shown.clone())
    }

    /// Whether an upstream or the reconciler is asked over TLS.
    pub(crate) fn asks_upstreams_over_tls(&self) -> bool {
        let mut upstreams = self.routes.iter().flat_map(|route| &route.upstreams);
        upstreams.any(|upstream| upstream.protocol == Protocol::Https)
            || self
                .reconcile
                .as_ref()
                .is_some_and(|settings| is_https(&settings.url))
    }

    /// Whether something is asked over TLS.
    pub fn asks_over_tls(&self) -> bool {
        let keys = self.jwt.as_ref().and_then(|jwt| match &jwt.jwks {
            Source::Url(url) => Some(url),
            Source::File(_) => None,
        });
        let auth = self.auth.as_ref().map(|auth| &auth.url);
        self.asks_upstreams_over_tls()
            || [auth, keys, self.collector.as_ref()]
                .into_iter()
                .flatten()
                .any(is_https)
    }
}

fn is_https(url: &Uri) -> bool {
    url.scheme() == Some(&Scheme::HTTPS)
}

/// Which requests are treated alike, and how.
#[derive(Debug, Clone)]
pub struct Route {
    /// What people call it: `route 3`, or `default`.
    pub name: String,
    /// What it is called in metrics, log and traces.
    pub label: String,
    /// The requests that it takes.
    pub matches: Matches,
    /// The addresses of the service that they go to, at least one.
    pub upstreams: Vec<Address>,
    /// The published convention that they follow.
    pub preset: Preset,
    /// Where their keys are.
    pub key: KeyPlace,
    /// Which forms of a key's field are accepted.
    pub key_syntax: Syntax,
    /// Which keys are accepted.
    pub key_rule: KeyRule,
    /// The methods whose keys count; all but safe ones where none are named.
    pub key_methods: Vec<Method>,
    /// Whether method and path belong to the scope.
    pub scope_target: bool,
    /// How JSON bodies are compared.
    pub body_form: BodyForm,
    /// The fields that are compared, besides those that always are.
    pub fingerprint_headers: Vec<HeaderName>,
    /// In which words requests are refused.
    pub dialect: Dialect,
    /// The field that marks replays.
    pub replay_header: Option<HeaderName>,
    /// The fields of answers that are kept though they belong to one transmission.
    pub kept_headers: Vec<HeaderName>,
    /// Whether their keys are looked at. If not, most of the rest has no meaning.
    pub protect: bool,
    /// Whether operations are made to happen once, or only observed.
    pub mode: Mode,
    /// The service that they go to; `None` where nobody said, and it is `default`.
    pub service: Option<Service>,
    /// Whether unsafe requests without a key are refused.
    pub require_key: bool,
    /// How long a claim is held without renewal.
    pub lease: Duration,
    /// How long answers are replayed.
    pub ttl: Duration,
    /// How long after that retries are refused.
    pub tombstone: Duration,
    /// How long a duplicate waits for the attempt in flight.
    pub wait: Duration,
    /// What becomes of a lost attempt.
    pub on_lost: OnLost,
    /// The largest body that is read whole, in bytes.
    pub max_body: usize,
    /// The fields that a scope is made of: the first but `Host` names the principal, unless it is verified.
    pub scope_headers: Vec<HeaderName>,
    /// What of a request is kept with its record.
    pub note: Vec<NoteField>,
    /// What says who callers are, and is verified.
    pub principal: Vec<Part>,
    /// Whether [`Part::Auth`] names those whom it lets pass.
    pub auth_names: bool,
    /// Whether the fields of a scope count from trusted peers only.
    pub trusted_scope: bool,
    /// Whether requests with a key and without a principal are refused.
    pub require_principal: bool,
    /// What each scope may use.
    pub scope_limits: ScopeLimits,
    /// What the statuses of the upstream's answers mean, beyond the defaults.
    pub dispositions: Dispositions,
    /// The path that says whether an upstream can be used.
    pub upstream_health: Option<PathAndQuery>,
    /// How long the upstream may be silent.
    pub upstream_timeout: Option<Duration>,
    /// Whether the upstream gets the client's `Host`.
    pub preserve_host: bool,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, matches, .. } = self;
        let upstreams = self.upstreams.iter().map(Address::to_string);
        let upstreams = upstreams.collect::<Vec<_>>().join(", ");
        write!(f, "{name}: {matches} to {upstreams}")
    }
}

impl Route {
    /// Whether something is verified of callers before the layer sees their requests.
    pub fn verifies(&self) -> bool {
        self.protect && !self.principal.is_empty()
    }

    /// How long an answer is replayed, and remembered after that.
    pub fn retention(&self) -> Retention {
        Retention::new(self.ttl).with_tombstone(self.tombstone)
    }

    /// The service whose records it makes.
    pub fn service(&self) -> Service {
        self.service.clone().unwrap_or_default()
    }

    /// What its requests are claimed as in the store, unless it only observes.
    pub fn operation(&self) -> String {
        self.service().operation(reconcile::OPERATION).into_owned()
    }

    /// How its requests are attempted.
    pub fn policy(&self) -> Policy {
        Policy::default()
            .with_lease(self.lease)
            .with_retention(self.retention())
            .with_on_lost(self.on_lost)
            .with_key_required(self.require_key)
            .with_wait(self.wait)
    }

    /// By what a record of this operation goes, where a route claims under it: a record need not say
    /// which one did, so it is the longest lease and retention of all.
    pub fn longest(routes: &[Self], operation: &str) -> Option<Policy> {
        let routes = routes.iter();
        let routes = routes.filter(|route| route.protect && route.operation() == operation);
        let policies = routes.map(|route| {
            let kept = route.preset.kept_for(route.retention());
            route.policy().with_retention(kept)
        });
        policies.reduce(Policy::or_longer)
    }

    /// Whether the principal comes from what is verified.
    pub fn names_caller(&self) -> bool {
        let names = |part: &Part| *part != Part::Auth || self.auth_names;
        self.protect && self.principal.iter().any(names)
    }
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// In this field.
    Header(HeaderName),
    /// In this member of a body that is a JSON object.
    Member(String),
}

/// How much may be open, run and be held at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Attempts: requests with a key that run.
    pub attempts: usize,
    /// Connections of clients.
    pub connections: usize,
    /// Calls of the claim API that wait.
    pub waiting: usize,
    /// Bytes of bodies.
    pub body_memory: usize,
    /// How long a request's body may take, and a second more for each KiB that came.
    pub body_time: Option<Duration>,
}

/// A store's URL. Shown without what may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(pub String);

impl StoreUrl {
    /// Whether another process can use the store at the same time.
    pub fn can_be_shared(&self) -> bool {
        !matches!(self.0.split_once(':'), Some(("memory" | "file", _)))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once(':') {
            Some(("file" | "memory" | "sqlite", _)) => f.write_str(&self.0),
            Some((scheme, _)) => write!(f, "{scheme}:…"),
            None => f.write_str("…"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Everything that is wrong with a configuration, one message each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, message) in self.0.iter().enumerate() {
            if nth > 0 {
                f.write_str("\n")?;
            }
            write!(f, "error: {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
