//! A service that answers by a script, in paused time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneService;
use tower::{BoxError, service_fn};

pub(crate) type Client =
    BoxCloneService<Request<Full<Bytes>>, Response<Bytes>, semel_client::Error>;

/// What the service does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Answers with this status, these fields and this body.
    Answer(u16, Vec<(&'static str, &'static str)>, &'static str),
    /// Breaks the connection after the request came.
    Reset,
    /// Takes no connection.
    Refuse,
    /// Never answers.
    Hang,
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn key(&self) -> &str {
        self.headers["idempotency-key"].to_str().unwrap()
    }
}

/// Does what the script says, and the last of it for ever.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    script: Arc<Mutex<VecDeque<Does>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

pub(crate) const fn status(status: u16) -> Does {
    Does::Answer(status, Vec::new(), "")
}

pub(crate) fn problem(status: u16, body: &'static str) -> Does {
    Does::Answer(
        status,
        vec![("content-type", "application/problem+json")],
        body,
    )
}

impl Service {
    pub(crate) fn new(script: impl IntoIterator<Item = Does>) -> Self {
        Self {
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            seen: Arc::default(),
        }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn next(&self) -> Does {
        let mut script = self.script.lock().unwrap();
        match script.len() {
            1 => script[0].clone(),
            _ => script.pop_front().unwrap(),
        }
    }

    async fn answer(
        self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, BoxError> {
        let does = self.next();
        if let Does::Refuse = does {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        self.seen.lock().unwrap().push(Seen {
            at: Instant::now(),
            method: head.method,
            headers: head.headers,
            body,
        });
        match does {
            Does::Answer(status, fields, body) => {
                let mut answer = Response::builder().status(status);
                for (name, value) in fields {
                    answer = answer.header(name, value);
                }
                Ok(answer.body(Full::from(body))?)
            }
            Does::Hang => {
                sleep(Duration::from_hours(24)).await;
                Err("late".into())
            }
            Does::Reset | Does::Refuse => Err("the connection broke".into()),
        }
    }

    /// The service behind a client. Bodies of answers are read.
    pub(crate) fn behind(&self, retry: &semel_client::Retry) -> Client {
        use tower::{Layer as _, ServiceExt as _};
        let service = self.clone();
        let inner = service_fn(move |request| service.clone().answer(request));
        let client = retry.layer(inner);
        let whole = service_fn(move |request: Request<Full<Bytes>>| {
            let client = client.clone();
            async move {
                let (head, body) = client.oneshot(request).await?.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                Ok(Response::from_parts(head, body))
            }
        });
        BoxCloneService::new(whole)
    }
}

pub(crate) fn request(method: Method) -> Request<Full<Bytes>> {
    let request = Request::builder()
        .method(method)
        .uri("http://shop.example/orders");
    request.body(Full::from("{\"item\":\"apple\"}")).unwrap()
}

pub(crate) fn order() -> Request<Full<Bytes>> {
    request(Method::POST)
}
