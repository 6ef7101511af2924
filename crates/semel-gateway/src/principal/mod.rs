//! Who a key belongs to, verified before the idempotency layer looks at the request: so a caller whose
//! access was revoked does not get a stored answer either.
//!
//! `Verified` makes a `Principal` of what the configuration names, and puts it among the request's
//! extensions, or answers itself. The layer takes it from there (`scope_of`), and narrows it by fields.

mod endpoint;
mod get;
mod jwks;
mod jwt;

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use http::{Request, Response, request};
use semel_tower::{Idempotency, Scope};
use tokio::time::timeout;
use tower_service::Service;

use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::tls::ClientCertificate;
use crate::tls::client::Trust;
use endpoint::Endpoint;
pub use endpoint::Settings as Auth;
pub use jwks::Source;
pub use jwt::Settings as Jwt;
use jwt::Tokens;

/// What says who a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A verified token.
    Jwt,
    /// An endpoint that is asked.
    Auth,
    /// The client's certificate.
    Certificate,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jwt => "jwt",
            Self::Auth => "auth",
            Self::Certificate => "certificate",
        })
    }
}

/// Why the gateway cannot verify anybody.
#[derive(Debug, thiserror::Error)]
#[error("jwt-jwks: {0}")]
pub struct Error(String);

/// How long a request that is only observed waits for its caller to be verified.
const OBSERVED_TIMEOUT: Duration = Duration::from_millis(100);

/// The codes of the answers to callers who are not let through.
pub(crate) const REFUSALS: [&str; 4] = [
    "invalid-token",
    "unauthenticated",
    "forbidden",
    "auth-unavailable",
];

/// Whose the key of a request is: an extension of it.
#[derive(Debug, Clone)]
struct Principal(Scope);

/// Takes the place of a principal where nobody is verified.
pub(crate) fn stand_in(parts: &[Part]) -> impl Clone + Send + Sync + 'static {
    Principal(Scope::new(parts.iter().map(Part::to_string)))
}

/// The scope that [`Verified`] found.
pub(crate) fn scope_of(parts: &request::Parts) -> Option<Scope> {
    let found = parts.extensions.get::<Principal>();
    found.map(|Principal(scope)| scope.clone())
}

/// Why a request is not let through.
#[derive(Debug)]
struct Refusal {
    problem: Problem,
    challenges: Vec<HeaderValue>,
}

impl Refusal {
    /// The presented token is no good (RFC 6750, section 3).
    fn token(why: &'static str) -> Self {
        let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
        Self {
            problem: Problem::InvalidToken(why),
            challenges: vec![challenge],
        }
    }

    /// Nobody can say now who it is.
    const fn unavailable() -> Self {
        Self {
            problem: Problem::AuthUnavailable,
            challenges: Vec::new(),
        }
    }

    fn respond<B: From<Bytes>>(self) -> Response<B> {
        let mut response = self.problem.respond();
        for challenge in self.challenges {
            response.headers_mut().append(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// What a part says of a caller; `None` where the caller did not bring it.
type Named = Option<Vec<String>>;

/// What verifies callers, for all routes.
#[derive(Clone, Default)]
pub struct Verifiers {
    tokens: Option<Arc<Tokens>>,
    endpoint: Option<Arc<Endpoint>>,
}

impl Verifiers {
    /// Those for other settings. What these leave as it is goes on, with the keys and answers that it knows.
    /// The keys of tokens are read here if they are in a file; from a URL they are fetched in the background.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no key of use.
    pub fn with(
        &self,
        jwt: Option<&Jwt>,
        auth: Option<&Auth>,
        trust: &Arc<Trust>,
    ) -> Result<Self, Error> {
        let tokens = jwt.map(|jwt| match &self.tokens {
            Some(tokens) => tokens.with(jwt, trust),
            None => Tokens::open(jwt, trust),
        });
        let endpoint = auth.map(|auth| match &self.endpoint {
            Some(endpoint) if endpoint.settings() == auth => Arc::clone(endpoint),
            _ => Arc::new(Endpoint::new(auth, trust)),
        });
        Ok(Self {
            tokens: tokens.transpose()?.map(Arc::new),
            endpoint,
        })
    }
}

impl fmt::Debug for Verifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifiers")
            .field("jwt", &self.tokens.as_ref().map(|tokens| tokens.settings()))
            .field("auth", &self.endpoint.as_ref().map(|it| it.settings()))
            .finish()
    }
}

/// Finds whose the keys of a route are.
#[derive(Debug)]
pub(crate) struct Principals {
    /// What is verified, in this order; at least one.
    pub(crate) parts: Vec<Part>,
    /// Whether all of it has to be there.
    pub(crate) is_required: bool,
    /// Whether nobody is refused.
    pub(crate) only_observes: bool,
    pub(crate) verifiers: Verifiers,
    pub(crate) metrics: Arc<Metrics>,
}

impl Principals {
    /// Whose the key is. `None` where that is not known and it has to be.
    async fn find(&self, request: &request::Parts) -> Result<Option<Principal>, Refusal> {
        let mut segments = Vec::new();
        let (mut found, mut missing) = (0, 0);
        for part in &self.parts {
            let named = match part {
                Part::Jwt => match &self.verifiers.tokens {
                    Some(tokens) => tokens.claims_of(&request.headers).await?,
                    None => None,
                },
                Part::Auth => match &self.verifiers.endpoint {
                    Some(endpoint) if endpoint.names() => endpoint.ask(request).await?,
                    Some(endpoint) => {
                        endpoint.ask(request).await?;
                        continue;
                    }
                    None => None,
                },
                Part::Certificate => certificate(request),
            };
            segments.push(part.to_string());
            match named {
                Some(named) => {
                    found += 1;
                    segments.push(named.len().to_string());
                    segments.extend(named);
                }
                None => {
                    missing += 1;
                    segments.push("0".to_owned());
                }
            }
        }
        Ok(match (found, missing) {
            // The layer's to find: nobody here names anybody.
            (0, 0) => None,
            (_, 1..) if self.is_required => None,
            // Who brings credentials that name nobody here is not one of those who bring none.
            (0, _)
                if self.parts.contains(&Part::Jwt)
                    && request.headers.contains_key(AUTHORIZATION) =>
            {
                return Err(Refusal::token("The scheme of Authorization is not Bearer."));
            }
            (0, _) => Some(Principal(Scope::anonymous())),
            // Who brought something keeps to themselves, also without the rest.
            _ => Some(Principal(Scope::new(segments))),
        })
    }
}

/// Whom a verified certificate names: a URI (SPIFFE), else host names, else addresses of e-mail, else the
/// subject. A renewed certificate names the same.
fn certificate(parts: &request::Parts) -> Named {
    let certificate = parts.extensions.get::<ClientCertificate>()?;
    let kinds = [
        ("uri", &certificate.uris),
        ("dns", &certificate.dns_names),
        ("email", &certificate.emails),
    ];
    let of_kind = kinds.into_iter().find(|(_, names)| !names.is_empty());
    let (kind, names) = match of_kind {
        Some((kind, names)) => (kind, names.clone()),
        None if certificate.subject.is_empty() => return None,
        None => ("subject", vec![certificate.subject.clone()]),
    };
    Some([vec![kind.to_owned()], names].concat())
}

/// A service whose requests with a key have a verified principal, where there is something to verify.
#[derive(Debug, Clone)]
pub(crate) struct Verified<S> {
    pub(crate) inner: S,
    pub(crate) principals: Option<Arc<Principals>>,
}

impl<Inner, S, B, R> Service<Request<B>> for Verified<Idempotency<Inner, S>>
where
    Idempotency<Inner, S>: Service<Request<B>, Response = Response<R>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Answering<<Idempotency<Inner, S> as Service<Request<B>>>::Future, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (method, headers) = (request.method(), request.headers());
        let principals = self.principals.as_ref();
        let asked = principals.filter(|_| self.inner.may_have_key(method, headers));
        let Some(principals) = asked.cloned() else {
            let inner = self.inner.call(request);
            return Answering::Direct { inner };
        };
        // The one that was polled takes the call.
        let inner = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, inner);
        let verified = Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let found = match principals.only_observes {
                false => principals.find(&parts).await,
                // Who cannot be verified, or not in time, counts as a request without a principal.
                true => match timeout(OBSERVED_TIMEOUT, principals.find(&parts)).await {
                    Ok(Ok(found)) => Ok(found),
                    Ok(Err(_)) | Err(_) => Ok(None),
                },
            };
            let principal = match found {
                Ok(principal) => principal,
                Err(refusal) => {
                    principals.metrics.refused(refusal.problem.code());
                    return Ok(refusal.respond());
                }
            };
            if let Some(principal) = principal {
                parts.extensions.insert(principal);
            }
            inner.call(Request::from_parts(parts, body)).await
        });
        Answering::Verified { verified }
    }
}

pin_project_lite::pin_project! {
    /// An answer under way.
    #[project = Projected]
    pub(crate) enum Answering<F, R> {
        Direct { #[pin] inner: F },
        Verified { verified: Pin<Box<dyn Future<Output = Result<Response<R>, Infallible>> + Send>> },
    }
}

impl<F, R> Future for Answering<F, R>
where
    F: Future<Output = Result<Response<R>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projected::Direct { inner } => inner.poll(cx),
            Projected::Verified { verified } => verified.as_mut().poll(cx),
        }
    }
}
