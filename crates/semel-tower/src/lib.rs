//! Idempotency keys for tower and axum: a request with a key runs once, and its retries get the
//! same answer.
//!
//! What is needed beside the layer ([`Policy`], [`Retention`], [`Guard`], [`MemoryStore`] …) is
//! exported here too. Stores on disk and on servers are in `semel-stores`.
//!
//! A client that got no answer retries, and cannot know whether the first request was lost or its
//! answer. With [`IdempotencyLayer`] around a service it sends the same `Idempotency-Key` again.
//! The layer claims the key in a store, runs the service, whether the client stays or not, records
//! the answer, and replays it from then on.
//!
//! 1. Safe methods, and requests without a key, go straight through: no store call, no allocation.
//!    A [policy](semel::guard::Policy::with_key_required) refuses the latter with 400.
//! 2. A malformed key is refused with 400, never ignored, before the body is read.
//! 3. Of requests with one key and one content one runs; the others are answered 409 `in-flight`
//!    with `Retry-After`, or [wait](semel::guard::Policy::with_wait).
//! 4. Another content (method, path, query, media type, body) under the same key is answered 422
//!    `mismatch` at once, and changes nothing.
//! 5. A client that goes away does not stop an attempt; its lease is renewed as long as it runs.
//! 6. Successes, redirects and lasting failures are recorded before they are answered, and replayed
//!    with `Idempotency-Replayed: true`; rejections and 5xx are not recorded, and the next request
//!    runs ([`Disposition::of_status`]).
//! 7. An attempt that was lost is never run again silently: 409 `outcome-unknown`, until somebody
//!    resolves it or the [policy](semel::guard::Policy::with_on_lost) says otherwise.
//! 8. Without the store nothing runs: 503 `store-unavailable`, unless the
//!    [policy](semel::guard::Policy::with_on_store_error) says otherwise, and then the answer says so.
//! 9. Answers too large to keep, and streams, reach the first client whole; retries get status and
//!    fields with `Idempotency-Body-Omitted: true`. They never run again.
//! 10. Answers of the layer itself are problem details (RFC 9457) with a stable `code`, and show
//!     neither key nor content. They stand among the response's extensions as [`Problem`].
//!
//! Services whose clients follow a published convention (Stripe's, AdCP, ACP, Iceberg's, OASIS) begin
//! with a [`Preset`], which says what of this is different.
//!
//! # Deployment
//!
//! Put authentication and rate limits *outside* this layer, so that a revoked caller gets no
//! replay, and compression and CORS outside it too. Keys belong to a principal: unless you set
//! [`with_principal_by`](IdempotencyLayer::with_principal_by) it is the digest of a Basic or Bearer credential
//! (other schemes, which may sign each request anew, are refused), and **callers without one share
//! the scope `anonymous`**, in which one of them can be given the answer of another that used the
//! same key for the same request. Sessions in cookies count as anonymous. If answers are private, set `with_principal_by`, or
//! [`with_principal_required`](IdempotencyLayer::with_principal_required).
//!
//! Put it outside `Router::nest` too, or name what is nested with
//! [`with_operation`](IdempotencyLayer::with_operation): a nested service sees a path without its
//! prefix, and `/v1/orders` and `/v2/orders` would look the same. Where several services share one
//! store, give each a name: [`with_service`](IdempotencyLayer::with_service).
//!
//! What the service does is done at most once for a recorded answer; across a crash it is
//! at-most-once under [`OnLost::Hold`] (the default) and at-least-once under [`OnLost::Retry`].
//! Records live as long as the store keeps them: [`MemoryStore`] forgets on restart.
//!
//! # Example
//!
//! ```
//! use axum::{Router, body::Body, routing::post};
//! use http::{Request, StatusCode};
//! use semel_tower::{IdempotencyLayer, MemoryStore};
//! use tower::ServiceExt as _;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app: Router = Router::new()
//!     .route("/orders", post(|| async { (StatusCode::CREATED, "order 1") }))
//!     .layer(IdempotencyLayer::new(MemoryStore::default()));
//!
//! for replayed in [false, true] {
//!     let request = Request::post("/orders")
//!         .header("Idempotency-Key", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"")
//!         .body(Body::from("3 apples"))?;
//!     let response = app.clone().oneshot(request).await?;
//!     assert_eq!(response.status(), StatusCode::CREATED);
//!     assert_eq!(response.headers().contains_key("idempotency-replayed"), replayed);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Links
//!
//! [What the layer does, row by row](https://github.com/semel-rs/semel/blob/main/docs/http.md) ·
//! [draft-ietf-httpapi-idempotency-key-header](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/) ·
//! [RFC 9110](https://www.rfc-editor.org/rfc/rfc9110) ·
//! [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) ·
//! [RFC 9651](https://www.rfc-editor.org/rfc/rfc9651) ·
//! [RFC 8785](https://www.rfc-editor.org/rfc/rfc8785)

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod body;
mod config;
mod conflict;
#[cfg(feature = "axum")]
mod extract;
pub mod fingerprint;
mod future;
pub mod header;
mod host;
pub mod json;
mod layer;
mod limits;
mod note;
mod observe;
mod operation;
mod policy;
pub mod precondition;
mod preset;
mod problem;
mod quota;
mod replay;
mod scope;
mod service;
mod transact;

pub use attempt::OperationId;
pub use body::{Body, is_event_stream};
#[cfg(feature = "axum")]
pub use extract::{InTransaction, TransactionRejection};
pub use fingerprint::BodyForm;
pub use future::ResponseFuture;
pub use header::Syntax;
pub use layer::IdempotencyLayer;
pub use note::{BadNoteField, NoteField};
pub use observe::Mode;
pub use policy::{Disposition, Reply};
pub use preset::{Dialect, Preset, RetentionError, UnknownPreset, adcp_payload_hash};
pub use problem::{Problem, ProblemCode};
pub use quota::{Rate, ScopeLimits};
pub use replay::{BODY_OMITTED, PROTECTED, REPLAYED, Replayed, TraceParent, outcome_of_response};
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub use semel::guard::observers;
#[doc(no_inline)]
pub use semel::{
    IdentityDigest, KeyRule, Scope, Service, Store, StoreError,
    guard::{AttemptInfo, Guard, OnPanic, OnStoreError, Policy, TransactOptions},
    memory::MemoryStore,
    store::{OnLost, Retention},
    transaction::Lent,
};
pub use service::Idempotency;
pub use transact::{CommitFailure, RunAgain, TransactionHandle};
