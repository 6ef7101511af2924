//! The future of a response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body as HttpBody;
use semel::guard::Attended;

use crate::body::Body;
use crate::config::Config;

pin_project_lite::pin_project! {
    /// The future that [`Idempotency`](crate::Idempotency) answers with.
    ///
    /// Around a request that goes past the layer it is the inner service's future and nothing
    /// more: no allocation, no store call (protocol rule R13).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, R, E>
    where
        R: HttpBody,
    {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProj]
    enum Kind<F, R, E>
    where
        R: HttpBody,
    {
        Direct {
            #[pin]
            inner: F,
            // Set for a preflight that asks whether the key may be sent.
            preflight: Option<Arc<Config>>,
        },
        Attended { attended: Attended<Result<Response<Body<R>>, E>> },
    }
}

impl<F, R: HttpBody, E> ResponseFuture<F, R, E> {
    pub(crate) const fn direct(inner: F, preflight: Option<Arc<Config>>) -> Self {
        Self {
            kind: Kind::Direct { inner, preflight },
        }
    }

    pub(crate) const fn attended(attended: Attended<Result<Response<Body<R>>, E>>) -> Self {
        Self {
            kind: Kind::Attended { attended },
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: HttpBody,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProj::Direct { inner, preflight } => {
                let mut response = ready!(inner.poll(cx))?.map(Body::inner);
                if let Some(config) = preflight {
                    config.allow(response.headers_mut());
                }
                Poll::Ready(Ok(response))
            }
            KindProj::Attended { attended } => Pin::new(attended).poll(cx),
        }
    }
}

impl<F, R: HttpBody, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
