//! [`Retry`] around a tower service.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, Limited};
use tower::ServiceExt as _;
use tower_service::Service;

use crate::answer::{Answer, Read};
use crate::call::{Broken, Call};
use crate::error::Error;
use crate::{BoxError, Retry};

/// Sends requests through the service inside until they are answered.
///
/// It takes requests with any body, reads that whole, and sends it as `Full<Bytes>`. Each try waits for the
/// service inside to be ready. If the call is dropped, so is the try that is on its way.
#[derive(Debug, Clone)]
pub struct RetryService<S> {
    retry: Retry,
    inner: S,
}

impl<S> RetryService<S> {
    pub(crate) const fn new(retry: Retry, inner: S) -> Self {
        Self { retry, inner }
    }
}

impl<S, B, R> Service<Request<B>> for RetryService<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body + Send + Unpin + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Answer<R>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (retry, inner) = (self.retry.clone(), self.inner.clone());
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let call = Call::new(&retry, &head.method, &mut head.headers, &head.extensions)?;
            let body = match Limited::new(body, retry.max_body).collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) => return Err(call.refuse(error)),
            };
            let retry = &retry;
            call.run(move || {
                let request = Request::from_parts(head.clone(), Full::new(body.clone()));
                let mut inner = inner.clone();
                async move {
                    let ready = inner.ready().await;
                    let ready = ready.map_err(|error| Broken::unready(error.into()))?;
                    let answer = ready.call(request).await;
                    let answer = answer.map_err(|error| Broken::new(retry, error.into()))?;
                    Ok(Read::read(answer, retry.max_answer).await?)
                }
            })
            .await
        })
    }
}
