//! Asking an endpoint whether a caller may, and who it is, before anything is run or replayed: as the
//! `auth_request` of nginx.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use http::{StatusCode, Uri, request};
use quick_cache::sync::Cache;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::get::Get;
use super::{Named, Refusal};
use crate::command::with_causes;
use crate::headers::FORWARDED_HOST;
use crate::problem::Problem;
use crate::tls::client::Trust;

/// What was asked for.
const METHOD: HeaderName = HeaderName::from_static("x-original-method");
const URI: HeaderName = HeaderName::from_static("x-original-uri");
/// How many answers are remembered, how many questions asked at once, and how much of an answer's body
/// is read, to use the connection again.
const REMEMBERED: usize = 10_000;
const AT_ONCE: usize = 128;
const MAX_BODY: usize = 64 << 10;
/// The longest name of a principal, in bytes.
const MAX_NAME: usize = 1 << 10;

/// Whom to ask, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The endpoint.
    pub url: Uri,
    /// How long it may take.
    pub timeout: Duration,
    /// How long it is not asked the same again after it let a caller pass.
    pub cache: Duration,
    /// The field of its answer that names the principal. Unless set it names nobody, and only lets pass.
    pub principal_header: Option<HeaderName>,
    /// The fields of a request that are its credentials.
    pub fields: Vec<HeaderName>,
}

type Fields = Vec<(HeaderName, HeaderValue)>;

/// The endpoint.
pub(super) struct Endpoint {
    settings: Settings,
    client: Get,
    room: Semaphore,
    passed: Cache<[u8; 32], (Instant, Option<Arc<str>>)>,
}

impl Endpoint {
    pub(super) fn new(settings: &Settings, trust: &Arc<Trust>) -> Self {
        Self {
            client: Get::new(&settings.url, settings.timeout, trust),
            room: Semaphore::new(AT_ONCE),
            passed: Cache::new(REMEMBERED),
            settings: settings.clone(),
        }
    }

    pub(super) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it names whom it lets pass.
    pub(super) const fn names(&self) -> bool {
        self.settings.principal_header.is_some()
    }

    /// Who a caller is, if it may pass.
    pub(super) async fn ask(&self, request: &request::Parts) -> Result<Named, Refusal> {
        let name = self.name(request).await?;
        Ok(name.map(|name| vec![name.to_string()]))
    }

    async fn name(&self, request: &request::Parts) -> Result<Option<Arc<str>>, Refusal> {
        let question = self.question(request);
        let digest = digest(&question);
        if let Some((until, name)) = self.passed.get(&digest)
            && Instant::now() < until
        {
            return Ok(name);
        }
        // Counted from before it is asked: what is revoked from then on holds after `cache` at most.
        let until = Instant::now() + self.settings.cache;
        let answer = self.get(question).await.map_err(|error| {
            tracing::warn!("auth-url: no answer: {}", with_causes(&*error));
            Refusal::unavailable()
        })?;
        let (status, headers) = answer;
        let name = match status {
            status if status.is_success() => self.named(&headers)?,
            StatusCode::UNAUTHORIZED => return Err(refusal(Problem::Unauthenticated, &headers)),
            StatusCode::FORBIDDEN => return Err(refusal(Problem::Forbidden, &headers)),
            status => {
                tracing::warn!("auth-url: answered {status}; 2xx, 401 and 403 are understood");
                return Err(Refusal::unavailable());
            }
        };
        if !self.settings.cache.is_zero() {
            self.passed.insert(digest, (until, name.clone()));
        }
        Ok(name)
    }

    /// All that the endpoint is told: its answer can depend on nothing else.
    fn question(&self, request: &request::Parts) -> Fields {
        let mut question = self.credentials(request);
        let target = request.uri.path_and_query();
        let target = target.and_then(|target| HeaderValue::from_str(target.as_str()).ok());
        question.push((URI, target.unwrap_or(HeaderValue::from_static("/"))));
        if let Ok(method) = HeaderValue::from_str(request.method.as_str()) {
            question.push((METHOD, method));
        }
        if let Some(host) = request.headers.get(FORWARDED_HOST) {
            question.push((FORWARDED_HOST, host.clone()));
        }
        question
    }

    fn credentials(&self, request: &request::Parts) -> Fields {
        let of = |name: &HeaderName| {
            let values = request.headers.get_all(name).into_iter();
            let fields = values.map(|value| (name.clone(), value.clone()));
            fields.collect::<Vec<_>>()
        };
        self.settings.fields.iter().flat_map(of).collect()
    }

    async fn get(
        &self,
        question: Fields,
    ) -> Result<(StatusCode, HeaderMap), Box<dyn StdError + Send + Sync>> {
        let room = timeout(self.settings.timeout, self.room.acquire()).await;
        let _room = room.map_err(|_| "as many questions are asked as may be")??;
        let (head, _) = self
            .client
            .get(question.into_iter().collect(), MAX_BODY)
            .await?
            .into_parts();
        Ok((head.status, head.headers))
    }

    /// Whom a caller that may pass is said to be.
    fn named(&self, answer: &HeaderMap) -> Result<Option<Arc<str>>, Refusal> {
        let Some(field) = &self.settings.principal_header else {
            return Ok(None);
        };
        let mut names = answer.get_all(field).iter();
        let name = names.next().and_then(|name| name.to_str().ok());
        match (name.map(str::trim), names.next()) {
            (Some(name), None) if (1..=MAX_NAME).contains(&name.len()) => Ok(Some(name.into())),
            _ => {
                tracing::warn!(
                    "auth-principal-header: the answer does not have one `{field}` that names \
                     somebody in 1 to {MAX_NAME} visible characters"
                );
                Err(Refusal::unavailable())
            }
        }
    }
}

/// What the endpoint says to one whom it does not let pass.
fn refusal(problem: Problem, answer: &HeaderMap) -> Refusal {
    let challenges = answer.get_all(WWW_AUTHENTICATE).iter().cloned().collect();
    Refusal {
        problem,
        challenges,
    }
}

/// SHA-256 over fields, each with its lengths.
fn digest(fields: &Fields) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    hash.finalize().into()
}
