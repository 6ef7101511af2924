//! Lost attempts: asking the operator's endpoint what became of them, in line and in the background.
//! `docs/unknown.md` describes the endpoint for who writes it.

mod answer;
mod question;

use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use semel::guard::{
    Answer, Answered, Background, Case, Guard, Observer, Policy, ReconcileOptions, Reconciled,
    Reconciler, Seen,
};
use semel::store::{Fence, OnLost};
use semel::{IdentityDigest, Store};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::command::with_causes;
use crate::config::Route;
use crate::connector::Connector;
use crate::events::Events;
use crate::headers;
use crate::metrics::Metrics;
use crate::tls::client::{Speaks, Trust};

pub(crate) use answer::outcome;

/// What every request of the gateway is claimed as; the layer's name for it.
pub(crate) const OPERATION: &str = "http";
/// How long making a connection may take; less where a question may take less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a request asks before it is answered `outcome-unknown`.
const IN_LINE: u32 = 3;

/// Whom to ask, and how.
#[derive(Clone)]
pub struct Settings {
    /// The endpoint.
    pub url: Uri,
    /// Sent with every question; may hold a password.
    pub headers: HeaderMap,
    /// How often it is asked about one record in the background.
    pub attempts: u32,
    /// The first pause between two questions in the background.
    pub pause: Duration,
    /// How long a question may take.
    pub timeout: Duration,
    /// How often the store is asked for lost attempts.
    pub every: Duration,
}

impl Settings {
    // Without its query, in which people put passwords.
    fn name(&self) -> String {
        let host = self.url.authority().map_or("", |host| host.as_str());
        let scheme = self.url.scheme_str().unwrap_or_default();
        format!("{scheme}://{host}{}", self.url.path())
    }

    /// For a request, whose client waits.
    pub fn in_line(&self) -> ReconcileOptions {
        ReconcileOptions::in_line()
            .with_attempts(self.attempts.min(IN_LINE))
            .with_timeout(self.timeout)
            .with_by(self.name())
    }

    fn in_background(&self) -> ReconcileOptions {
        ReconcileOptions::background()
            .with_attempts(self.attempts)
            .with_pause(self.pause)
            .with_timeout(self.timeout)
            .with_by(self.name())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.name())
            .field("attempts", &self.attempts)
            .field("pause", &self.pause)
            .field("timeout", &self.timeout)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

/// The operator's endpoint.
pub struct Endpoint {
    client: Client<Connector, Full<Bytes>>,
    url: Uri,
    headers: HeaderMap,
    max_body: usize,
    metrics: Arc<Metrics>,
}

impl Endpoint {
    /// The endpoint that the settings name. Of what it says was answered at most `max_body` bytes
    /// are kept.
    pub fn new(
        settings: &Settings,
        max_body: usize,
        trust: Arc<Trust>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let timeout = settings.timeout.min(CONNECT_TIMEOUT);
        let connector = Connector::new(timeout, trust, Speaks::Http1).for_upstreams();
        let client = Client::builder(TokioExecutor::new())
            // Questions are rare: a connection each cannot be one that is just being closed.
            .pool_max_idle_per_host(0)
            .build(connector);
        let mut headers = settings.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static("semel"));
        Self {
            client,
            url: settings.url.clone(),
            headers,
            max_body,
            metrics,
        }
    }

    async fn ask(&self, case: &Case<'_>) -> Result<Answer, Box<dyn StdError + Send + Sync>> {
        let mut request = Request::new(Full::from(question::of(case)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let id = headers::id(case.id);
        request.headers_mut().insert(headers::ID, id);
        let response = self.client.request(request).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(format!("the reconciler answered {status}, not 200").into());
        }
        // Base64 takes a third more than what it holds, and escapes in JSON up to five times more.
        let most = self.max_body.saturating_mul(6).saturating_add(64 << 10);
        let body = Limited::new(response.into_body(), most).collect().await?;
        answer::read(&body.to_bytes(), self.max_body)
            .map_err(|why| format!("the reconciler's answer is not understood: {why}").into())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl Reconciler for Endpoint {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async {
            let asked = Instant::now();
            let answer = self.ask(case).await;
            self.metrics.reconcile_answered(asked.elapsed());
            answer
        })
    }
}

/// Which operations' lost attempts are asked about without a client's retry, and by what they go.
#[derive(Debug)]
pub(crate) struct Lost(Vec<(String, Policy)>);

impl Lost {
    pub(crate) fn of(routes: &[Route]) -> Self {
        let asking = |route: &&Route| route.protect && route.on_lost == OnLost::Reconcile;
        let operations = routes.iter().filter(asking).map(Route::operation);
        let operations: HashSet<_> = operations.collect();
        let policies = operations.into_iter().filter_map(|operation| {
            // Also routes that do not ask claim under this name, or did.
            let policy = Route::longest(routes, &operation)?;
            Some((operation, policy))
        });
        Self(policies.collect())
    }
}

/// Resolves lost attempts without a client's retry, for ever.
pub(crate) async fn run<S: Store>(
    guard: Guard<S>,
    mut lost: watch::Receiver<Lost>,
    settings: Settings,
    metrics: Arc<Metrics>,
) {
    let mut background = Background::new(guard, lost.borrow_and_update().0.clone())
        .with_options(settings.in_background())
        .with_every(settings.every);
    loop {
        match background.turn().await {
            Ok(tally) => metrics.reconcile_left(tally),
            Err(error) => tracing::warn!("reconcile: the lost attempts cannot be listed: {error}"),
        }
        tokio::select! {
            biased;
            Ok(()) = lost.changed() => background.set_operations(lost.borrow_and_update().0.clone()),
            () = background.rest() => {}
        }
    }
}

/// Counts and tells what happens, and logs what a question led to: by the record's digest, never by its key.
#[derive(Debug)]
pub struct Watching {
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
    /// Where it is told.
    pub events: Arc<Events>,
    /// Who enters in the audit log what was decided, where there is a reconciler.
    pub decided: Option<mpsc::UnboundedSender<Decided>>,
}

impl Watching {
    /// Of a guard that has no reconciler.
    pub const fn new(metrics: Arc<Metrics>, events: Arc<Events>) -> Self {
        Self {
            metrics,
            events,
            decided: None,
        }
    }
}

/// An attempt that a reconciler decided about; the record says the rest.
#[derive(Debug, Clone, Copy)]
pub struct Decided {
    pub(crate) id: IdentityDigest,
    pub(crate) fence: Fence,
}

impl Observer for Watching {
    fn on_event(&self, seen: &Seen<'_>) {
        self.metrics.event(seen.signal);
        self.events.happened(seen, false);
    }

    fn on_reconcile(&self, case: &Case<'_>, news: &Reconciled<'_>) {
        let (identity, fence, question) = (case.id, case.fence, case.asked);
        if let Reconciled::GaveUp = news {
            tracing::error!(%identity, %fence, question, "reconcile: given up; left to an operator");
            return;
        }
        let answer = news.as_str();
        self.metrics.reconcile_question(answer);
        match news {
            Reconciled::Happened | Reconciled::DidNotHappen => {
                let id = *identity;
                tracing::info!(%identity, %fence, question, answer, "reconcile");
                if let Some(decided) = &self.decided {
                    // Nobody enters it where there is no gateway around.
                    decided.send(Decided { id, fence }).ok();
                }
            }
            Reconciled::Failed(error) => {
                let why = with_causes(*error);
                tracing::warn!(%identity, %fence, question, answer, "reconcile: {why}");
            }
            Reconciled::Refused(refusal) => {
                tracing::info!(%identity, %fence, question, answer, "reconcile: {refusal}");
            }
            Reconciled::Store(error) => {
                let why = with_causes(*error);
                tracing::warn!(%identity, %fence, question, answer, "reconcile: store: {why}");
            }
            _ => tracing::info!(%identity, %fence, question, answer, "reconcile"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ArgMatches;
    use semel::store::Retention;

    use super::*;
    use crate::config::Sources;

    fn lost(settings: &str) -> Vec<(String, Policy)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), settings).unwrap();
        let path = |name: &str| (name == "SEMEL_CONFIG").then(|| file.path().into());
        let sources = Sources::collect(&ArgMatches::default(), path);
        Lost::of(&sources.config().unwrap().routes).0
    }

    /// Of its service's protecting routes, also of those that hold: each may have claimed a record.
    #[test]
    fn what_is_lost_goes_by_the_longest_of_each() {
        let asks = r#"
            upstream = "http://127.0.0.1:9"
            reconciler = "http://127.0.0.1:9/ask"
            on-lost = "reconcile"
            ttl = "1h"
            "#;
        let hour = Policy::default().with_on_lost(OnLost::Reconcile);
        let hour = hour.with_retention(Retention::new(Duration::from_hours(1)));
        assert_eq!(lost(asks), [("http".to_owned(), hour)]);
        let more = r#"
            [[routes]]
            path = "/signed"
            preset = "oasis"
            ttl = "25h"
            on-lost = "hold"
            [[routes]]
            path = "/agents"
            preset = "adcp"
            ttl = "2h"
            lease = "2m"
            [[routes]]
            path = "/others"
            service = "others"
            ttl = "payment"
            on-lost = "hold"
            [[routes]]
            path = "/open"
            protect = false
            "#;
        let lost = lost(&format!("{asks}{more}"));
        let [(name, policy)] = &*lost else {
            panic!("{lost:?}")
        };
        // `oasis` keeps its answers for as long as a clock may be ahead.
        let replay = Duration::from_hours(25) + Duration::from_mins(5);
        let kept = Retention::new(replay).with_tombstone(Duration::from_hours(24 * 7));
        assert_eq!((&**name, policy.retention()), ("http", kept));
        assert_eq!(policy.with_lease(Duration::from_mins(2)), *policy);
    }
}
