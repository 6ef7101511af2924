//! A client that retries without doing things twice.
//!
//! For services that honour idempotency keys: those behind semel, and others
//! (`docs/clients.md` of the repository says how to call them).
//!
//! 1. A request that is not safe gets an `Idempotency-Key`, if it has none, and keeps it in all its tries.
//! 2. [`Retry`] sends it again when the connection breaks and when the answer says so, by the rules of
//!    [`decide`]: after `Retry-After` and a random pause, within a deadline and within a budget that all
//!    calls share. A mismatch is never sent again, and without a key only what is idempotent by its method, or
//!    was never sent.
//! 3. What comes out is the operation's answer, with an [`AnswerInfo`] among its extensions, or an [`Error`]
//!    that says whether the operation may have had its effect.
//! 4. An [`Outbox`] keeps the key and the request before they are first sent, so that another process can
//!    finish what a killed one has begun.
//!
//! [`Retry`] is a [`tower::Layer`](tower_layer::Layer), and with the feature `reqwest` a middleware of `reqwest-middleware`. One
//! `Retry` and its clones share a budget: make one for each service that is called.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt as _, Full};
//! use semel_client::{AnswerInfo, Outbox, Retry};
//! use tower::{ServiceBuilder, ServiceExt as _, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any HTTP client that is a tower service, for instance hyper-util's.
//! let service = service_fn(async |request: Request<Full<Bytes>>| {
//!     let key = request.headers()["idempotency-key"].clone();
//!     let body = Full::new(Bytes::copy_from_slice(key.as_bytes()));
//!     Ok::<_, std::io::Error>(Response::new(body))
//! });
//! let client = ServiceBuilder::new().layer(Retry::new()).service(service);
//!
//! // `Outbox::open("outbox").await?` keeps intents on disk.
//! let outbox = Outbox::in_memory();
//! let charge = |_: &_| Request::post("http://bank.example/charges").body(r#"{"cents": 300}"#);
//! let intent = outbox.begin("invoice-4711/charge", charge).await?;
//! let answer = client.oneshot(intent.request()).await?;
//! assert_eq!(answer.extensions().get::<AnswerInfo>().map(|info| info.tries), Some(1));
//! let body = answer.into_body().collect().await?.to_bytes();
//! assert_eq!(body, intent.key().as_str());
//! // Once the answer is put to use: the intent is over.
//! intent.finish().await?;
//! # Ok(())
//! # }
//! ```

mod answer;
mod budget;
mod call;
pub mod decide;
mod error;
#[cfg(feature = "reqwest")]
mod middleware;
mod outbox;
mod retry;
mod service;

pub use answer::{Answer, AnswerInfo};
pub use error::{Error, ErrorKind};
pub use outbox::{Intent, Outbox, OutboxError};
pub use retry::Retry;
pub use service::RetryService;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
