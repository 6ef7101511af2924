//! Functions on AWS Lambda that apply each event once, however often it is delivered.
//!
//! Whatever invokes a function delivers at least once: EventBridge, SQS and SNS do, and so does
//! Lambda's own retry. A [`Function`] reads the event out of what was delivered, looks it up in an
//! [`Inbox`], gives it to the handler of its type where it is new, records that it was handled, and
//! only then answers.
//!
//! ```no_run
//! use semel::memory::MemoryStore;
//! use semel_lambda::{BoxError, Dispatcher, EventContext, Function, Inbox, lambda_runtime};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced {
//!     order: String,
//! }
//!
//! async fn placed(event: OrderPlaced, context: EventContext) -> Result<(), BoxError> {
//!     // An effect elsewhere; `context.fence()` lets it refuse an attempt that was overtaken.
//!     Ok(())
//! }
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), BoxError> {
//!     // On Lambda: a store on a server, opened once per sandbox.
//!     let inbox = Inbox::new(MemoryStore::default(), "warehouse");
//!     let dispatcher = Dispatcher::new().on("order.placed", placed);
//!     lambda_runtime::run(Function::new(inbox, dispatcher)).await
//! }
//! ```
//!
//! It is a service, and can be called without Lambda:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::memory::MemoryStore;
//! use semel_lambda::lambda_runtime::{Context, LambdaEvent};
//! use semel_lambda::{Answer, Dispatcher, EventContext, Function, Inbox, Receipt};
//! use serde_json::{json, value::to_raw_value};
//!
//! let dispatcher = Dispatcher::new().on("greeting", |name: String, _: EventContext| async move {
//!     if name.is_empty() { Err("whom?") } else { Ok(()) }
//! });
//! let function = Function::new(Inbox::new(MemoryStore::default(), "greeter"), dispatcher);
//! let invoke = async |event: &serde_json::Value| {
//!     let mut context = Context::default();
//!     context.deadline = 4_102_444_800_000; // in the year 2100
//!     function.invoke(LambdaEvent::new(to_raw_value(event)?, context)).await.map_err(Box::<dyn std::error::Error>::from)
//! };
//!
//! // An event of EventBridge, delivered twice.
//! let event = json!({
//!     "id": "6a7e8feb", "source": "com.example", "detail-type": "greeting", "detail": "Ada"
//! });
//! assert_eq!(invoke(&event).await?, Answer::Event { receipt: Receipt::Handled });
//! assert_eq!(invoke(&event).await?, Answer::Event { receipt: Receipt::Duplicate });
//!
//! // A batch of SQS: the same event, and one that fails.
//! let message = |id: &str, body: &serde_json::Value| json!({
//!     "messageId": id, "body": body.to_string(),
//!     "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-central-1:000000000000:greetings",
//! });
//! let plain = json!({"type": "greeting"});
//! let batch = json!({"Records": [message("m-1", &event), message("m-2", &plain)]});
//! let Answer::Batch(answer) = invoke(&batch).await? else { panic!() };
//! assert_eq!(answer.failures().collect::<Vec<_>>(), ["m-2"]);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! 1. An event is known by its source and the id that its source gave it. In a
//!    [transaction](Dispatcher::on_in_transaction) of the store's database it is applied once,
//!    wherever the sandbox dies; with effects elsewhere it is handled at most once, or again
//!    with a higher fence, as [`Inbox::with_policy`] says.
//! 2. Handled, a duplicate, set aside: it is done with. Anything else is a failure: of the message, in
//!    a batch, and of the invocation, where the event came alone. So it is delivered again, or goes
//!    where the queue puts what cannot be delivered. Unknown types and shapes are failures too.
//! 3. In a FIFO queue nothing of a group is begun after a failure in it.
//! 4. With too little time left ([`Function::with_margin`]) nothing is begun.
//! 5. It answers only when nothing that it began is running and the store knows how it ended, or a second is left
//!    before the deadline: after its answer Lambda freezes the sandbox, and no lease is renewed there.
//! 6. No error of this crate, and nothing that it logs, has an event's id in it (R12).
//!
//! # Links
//!
//! [Serverless](https://github.com/semel-rs/semel/blob/main/docs/serverless.md): what to set where ·
//! [partial batch responses](https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html) ·
//! [the runtime API](https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html)

#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod context;
mod dispatch;
mod envelope;
mod error;
mod function;
#[cfg(feature = "http")]
pub mod http;
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
