//! [`Retry`] as a middleware of `reqwest-middleware`.

use std::error::Error as _;

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next};

use crate::answer::Read;
use crate::call::{Broken, Call};
use crate::decide::{Failure, FailureKind};
use crate::{Error, Intent, Retry};

#[async_trait]
impl Middleware for Retry {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let method = request.method().clone();
        let call = Call::new(self, &method, request.headers_mut(), extensions);
        let call = call.map_err(middleware)?;
        let body = request.body().map_or(Some(&[][..]), Body::as_bytes);
        let refused = match body {
            None => Some("its body is a stream, which cannot be sent twice"),
            Some(body) if body.len() > self.max_body => Some("its body is too long"),
            Some(_) => None,
        };
        if let Some(why) = refused {
            return Err(middleware(call.refuse(why.into())));
        }
        let url = request.url().clone();
        let asked = &url;
        let sent = call.run(|| {
            // Only a body that is a stream has no clone.
            let again = request.try_clone();
            let (next, mut extensions) = (next.clone(), extensions.clone());
            async move {
                let again = again.ok_or_else(|| Broken::unready("its body is a stream".into()))?;
                let answer = next.run(again, &mut extensions).await;
                let answer = answer.map_err(|error| self.broken(error, asked))?;
                let url = answer.url().clone();
                let mut read = Read::read(answer.into(), self.max_answer).await?;
                read.head.extensions.insert(AnswerUrl(url));
                Ok(read)
            }
        });
        let (head, body) = sent.await.map_err(middleware)?.into_parts();
        let url = head
            .extensions
            .get::<AnswerUrl>()
            .map_or(url, |url| url.0.clone());
        let mut answer = http::Response::builder()
            .url(url)
            .body(Body::wrap(body))
            .map_err(middleware)?;
        *answer.status_mut() = head.status;
        *answer.version_mut() = head.version;
        *answer.headers_mut() = head.headers;
        answer.extensions_mut().extend(head.extensions);
        Ok(answer.into())
    }
}

impl Retry {
    fn broken(&self, error: reqwest_middleware::Error, asked: &reqwest::Url) -> Broken {
        match error {
            // A redirect to what cannot be asked: the service had the request.
            reqwest_middleware::Error::Reqwest(error)
                if error.url().is_some_and(|url| url != asked) =>
            {
                Broken::after_sending(error.into())
            }
            // `source` of the error around it skips this one.
            reqwest_middleware::Error::Reqwest(error) => Broken::new(self, error.into()),
            reqwest_middleware::Error::Middleware(error) => Broken::new(self, error.into()),
        }
    }
}

/// Where the answer is from, after redirects.
#[derive(Clone)]
struct AnswerUrl(reqwest::Url);

impl Intent {
    /// Sends it through a client that has [`Retry`] as a middleware.
    ///
    /// # Errors
    /// As [`Error::of`] tells.
    pub async fn send(
        &self,
        client: &ClientWithMiddleware,
    ) -> reqwest_middleware::Result<Response> {
        let (head, _) = self.request().into_parts();
        let mut extensions = head.extensions.clone();
        let body = self.kept.body.clone();
        let request = Request::try_from(http::Request::from_parts(head, body))?;
        client
            .execute_with_extensions(request, &mut extensions)
            .await
    }
}

impl Error {
    /// What [`Retry`] said, if the error of a client with middlewares is from there.
    pub fn of(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }
}

fn middleware(error: impl std::error::Error + Send + Sync + 'static) -> reqwest_middleware::Error {
    reqwest_middleware::Error::middleware(error)
}

/// Errors do not say which request of a chain of redirects failed.
pub(crate) fn failure_of(error: &reqwest::Error, is_redirected: bool) -> Failure {
    let (kind, sent) = if error.is_builder() {
        (FailureKind::InvalidRequest, false)
    } else if error.is_connect() && is_untrusted(error) {
        (FailureKind::InvalidRequest, is_redirected)
    } else if error.is_connect() {
        (FailureKind::Refused, is_redirected)
    } else if error.is_timeout() {
        (FailureKind::Timeout, true)
    } else {
        (FailureKind::Reset, true)
    };
    Failure { kind, sent }
}

/// Whether the service's certificate is not trusted. TLS libraries have types of their own for that, and one
/// word.
fn is_untrusted(error: &reqwest::Error) -> bool {
    std::iter::successors(error.source(), |&cause| cause.source()).any(|cause| {
        cause
            .to_string()
            .to_ascii_lowercase()
            .contains("certificate")
    })
}
