//! Idempotency keys for [tower](https://docs.rs/tower) services.
mod attempt;
mod body;
mod config;
pub mod fingerprint;
mod future;
pub mod header;
pub mod json;
mod layer;
mod policy;
mod problem;
mod replay;
mod scope;
mod service;

pub use body::Body;
pub use fingerprint::BodyForm;
pub use future::ResponseFuture;
pub use header::Syntax;
pub use layer::IdempotencyLayer;
pub use policy::Disposition;
pub use problem::{Problem, ProblemCode};
pub use replay::{BODY_OMITTED, PROTECTED};
pub use semel::guard::AttemptInfo;
pub use service::Idempotency;
