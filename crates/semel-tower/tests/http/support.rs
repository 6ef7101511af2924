//! The system under test of the checklist's section 0, and the calls made to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use semel::guard::Policy;
use semel::memory::{Limits, MemoryStore};
use semel::{Identity, Key, ManualClock, Scope, Store, Timestamp};
use semel_tower::{BodyForm, IdempotencyLayer, OperationId, fingerprint};
use tower::ServiceExt as _;

pub(crate) const K: &str = "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"";

pub(crate) type Memory = Arc<MemoryStore>;

/// That of most rows: the key is required.
pub(crate) fn policy() -> Policy {
    Policy::default().with_key_required(true)
}

/// The layer of most rows.
pub(crate) fn layer() -> IdempotencyLayer<Memory> {
    layer_over(&Memory::default())
}

pub(crate) fn layer_over(store: &Memory) -> IdempotencyLayer<Memory> {
    IdempotencyLayer::new(Arc::clone(store)).with_policy(policy())
}

/// A store whose clock stands still until it is advanced, whatever time it is elsewhere.
pub(crate) type Clocked = Arc<MemoryStore<Arc<ManualClock>>>;

pub(crate) fn clocked() -> (Clocked, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let store = MemoryStore::with_clock(Limits::default(), Arc::clone(&clock));
    (Arc::new(store), clock)
}

/// How often a handler ran.
#[derive(Clone, Default)]
pub(crate) struct Execs(Arc<AtomicUsize>);

impl Execs {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) router: Router,
    pub(crate) execs: Execs,
}

impl App {
    /// Places orders, as the checklist's section 0 says.
    pub(crate) fn orders<S: Store>(layer: IdempotencyLayer<S>) -> Self {
        Self::answering(layer, |n| {
            (
                StatusCode::CREATED,
                [
                    ("content-type", "application/json".to_owned()),
                    ("location", format!("/orders/{n}")),
                    ("etag", format!("\"v{n}\"")),
                ],
                format!(r#"{{"id":{n}}}"#),
            )
                .into_response()
        })
    }

    /// Answers the n-th execution with `answer(n)`, whatever is asked.
    pub(crate) fn answering<S: Store>(
        layer: IdempotencyLayer<S>,
        answer: impl Fn(usize) -> Response + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::running(layer, move |n| std::future::ready(answer(n)))
    }

    /// The same with a handler that takes its time.
    pub(crate) fn running<S: Store, F>(
        layer: IdempotencyLayer<S>,
        handler: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        Self::routing(|execs| {
            let execs = execs.clone();
            let handler = move || {
                let n = execs.add();
                handler(n)
            };
            Router::new()
                .route("/{*path}", any(handler.clone()))
                .route("/", any(handler))
                .layer(layer)
        })
    }

    pub(crate) fn routing(router: impl FnOnce(&Execs) -> Router) -> Self {
        let execs = Execs::default();
        Self {
            router: router(&execs),
            execs,
        }
    }

    pub(crate) fn execs(&self) -> usize {
        self.execs.count()
    }

    pub(crate) async fn send(&self, call: Call) -> Answer {
        let response = self.router.clone().oneshot(call.request()).await;
        Answer::of(response.unwrap()).await
    }

    /// The answers to the same call with each of these keys in turn.
    pub(crate) async fn with_keys<const N: usize>(&self, keys: [&str; N]) -> Vec<Answer> {
        let mut answers = Vec::new();
        for key in keys {
            answers.push(self.send(Call::post("/orders").key(key)).await);
        }
        answers
    }
}

/// A request.
#[derive(Clone)]
pub(crate) struct Call {
    method: Method,
    uri: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Call {
    pub(crate) fn new(method: Method, uri: &str) -> Self {
        Self {
            method,
            uri: uri.to_owned(),
            headers: Vec::new(),
            body: Bytes::from_static(br#"{"item":"apple"}"#),
        }
        .header("content-type", "application/json")
    }

    pub(crate) fn post(uri: &str) -> Self {
        Self::new(Method::POST, uri)
    }

    /// `POST /orders` with the usual key.
    pub(crate) fn order() -> Self {
        Self::post("/orders").key(K)
    }

    pub(crate) fn key(self, line: &str) -> Self {
        self.header("idempotency-key", line)
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.headers.push((HeaderName::from_static(name), value));
        self
    }

    pub(crate) fn content_type(mut self, value: &str) -> Self {
        self.headers.retain(|(name, _)| name != "content-type");
        self.header("content-type", value)
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn request(self) -> Request<Body> {
        let body = Body::from(self.body.clone());
        self.request_with(body)
    }

    pub(crate) fn request_with(self, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri.parse().unwrap();
        for (name, value) in self.headers {
            request.headers_mut().append(name, value);
        }
        request
    }
}

/// What the layer looks up, and compares, for [`Call::order`].
pub(crate) fn order_record() -> (Identity, semel::Fingerprint) {
    let (parts, _) = Call::order().request().into_parts();
    let key = Key::new(K.trim_matches('"')).unwrap();
    (
        Identity::new(Scope::anonymous(), "http", key),
        fingerprint::of_request(&parts, &Call::order().body, BodyForm::default(), &[]),
    )
}

/// A body of these pieces, whose length is not known beforehand.
pub(crate) fn pieces(pieces: &[&'static str]) -> Body {
    let (mut sender, body) = Channel::<Bytes>::new(64);
    for piece in pieces {
        sender
            .try_send(Frame::data(Bytes::from_static(piece.as_bytes())))
            .unwrap();
    }
    Body::new(body)
}

/// A response, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) operation: Option<OperationId>,
}

impl Answer {
    pub(crate) async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        Self {
            status: parts.status.as_u16(),
            operation: parts.extensions.get().copied(),
            headers: parts.headers,
            trailers: body.trailers().cloned(),
            body: body.to_bytes(),
        }
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let values = self.headers.get_all(name);
        values.iter().map(|v| v.to_str().unwrap()).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The `code` of a problem of the layer.
    pub(crate) fn code(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        problem["code"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code));
        assert!(!self.is_replay());
    }

    #[track_caller]
    pub(crate) fn assert_first(&self, status: u16) {
        assert_eq!((self.status, self.is_replay()), (status, false), "{self:?}");
    }

    #[track_caller]
    pub(crate) fn assert_replay_of(&self, first: &Self) {
        assert!(self.is_replay(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
    }
}
