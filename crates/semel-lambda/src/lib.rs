//! Event handlers on AWS Lambda that apply each event once.

mod batch;
mod context;
mod dispatch;
mod envelope;
mod error;
mod function;
mod invocation;
mod json;
mod message;

pub use batch::BatchResponse;
pub use context::EventContext;
pub use dispatch::Dispatcher;
pub use envelope::Envelope;
pub use error::{BoxError, EnvelopeError, EventError, FunctionError, HandlerError};
pub use function::{Answer, Failure, Function};
pub use lambda_runtime;
pub use message::PlainMessages;
pub use semel::inbox::{Inbox, Receipt};
