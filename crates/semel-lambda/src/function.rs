//! The function: an invocation in, an answer out.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lambda_runtime::LambdaEvent;
use semel::Store;
use semel::inbox::{Inbox, Receipt};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use crate::batch::{BatchResponse, Lane, lanes};
use crate::context::Deadline;
use crate::dispatch::{Dispatcher, Received};
use crate::envelope::Envelope;
use crate::error::{EnvelopeError, EventError, FunctionError};
use crate::invocation::{Invocation, Record};
use crate::message::PlainMessages;

/// How often it is looked whether the store knows by now.
const TURN: Duration = Duration::from_millis(20);
/// Before the deadline the answer has to arrive.
const TO_ANSWER: Duration = Duration::from_secs(1);

/// A function that handles each event once.
///
/// Clones share the dispatcher. A setting holds for the value that it is made on, and for clones of it
/// from then on.
///
/// It is a service: [`lambda_runtime::run`] runs it, also inside other layers.
pub struct Function<S>(Arc<Inner<S>>);

struct Inner<S> {
    inbox: Inbox<S>,
    dispatcher: Arc<Dispatcher<S>>,
    plain: PlainMessages,
    margin: Duration,
    concurrency: NonZeroUsize,
    whole_batches: bool,
    on_failure: Arc<OnFailure>,
}

type OnFailure = dyn Fn(&Failure<'_>) + Send + Sync;

/// An event that was not handled, for those who watch the function.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure<'a> {
    /// The message of SQS that brought it; none in a direct invocation.
    pub message_id: Option<&'a str>,
    /// Why.
    pub error: &'a EventError,
}

/// What a function answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Answer {
    /// To a batch of SQS: which messages are to be delivered again.
    Batch(BatchResponse),
    /// To one event: `{"receipt":"handled"}`, `duplicate` or `dead-lettered`.
    Event {
        /// What became of it.
        #[serde(serialize_with = "name_of")]
        receipt: Receipt,
    },
}

fn name_of<S: serde::Serializer>(receipt: &Receipt, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match receipt {
        Receipt::Handled => "handled",
        Receipt::Duplicate => "duplicate",
        Receipt::DeadLettered => "dead-lettered",
    })
}

const MARGIN: Duration = Duration::from_secs(2);
// As many as SQS puts into a batch unless it is told otherwise.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(10).expect("10 is not 0");

impl<S: Store> Function<S> {
    /// A function that looks events up in `inbox`, and gives new ones to `dispatcher`.
    pub fn new(inbox: Inbox<S>, dispatcher: Dispatcher<S>) -> Self {
        Self(Arc::new(Inner {
            inbox,
            dispatcher: Arc::new(dispatcher),
            plain: PlainMessages::default(),
            margin: MARGIN,
            concurrency: CONCURRENCY,
            whole_batches: false,
            on_failure: Arc::new(log),
        }))
    }

    /// How much time one event may take: with less left before the invocation's deadline no other
    /// event of a batch is begun, and what was not begun is reported as failed. 2 s unless set, and
    /// never more than half of the invocation's time.
    ///
    /// What was begun is always waited for: the function never answers while work goes on.
    #[must_use]
    pub fn with_margin(self, margin: Duration) -> Self {
        self.rebuild(|inner| inner.margin = margin)
    }

    /// How many messages of a standard queue, or message groups of a FIFO queue, are handled at the
    /// same time. 10 unless set.
    #[must_use]
    pub fn with_concurrency(self, concurrency: NonZeroUsize) -> Self {
        self.rebuild(|inner| inner.concurrency = concurrency)
    }

    /// How messages are read that are neither events of EventBridge nor notifications of SNS.
    #[must_use]
    pub fn with_plain_messages(self, plain: PlainMessages) -> Self {
        self.rebuild(|inner| inner.plain = plain)
    }

    /// For a queue whose event source mapping does *not* have `ReportBatchItemFailures`: one failure
    /// fails the whole batch, and its other messages come again, as duplicates. **Without this, and
    /// without that setting, failed messages are lost**: Lambda deletes a batch whose answer it
    /// does not read.
    #[must_use]
    pub fn with_whole_batches(self) -> Self {
        self.rebuild(|inner| inner.whole_batches = true)
    }

    /// Is called for each event that was not handled. Unless set, it is an error event of `tracing`
    /// (without the message's id).
    #[must_use]
    pub fn with_on_failure(
        self,
        on_failure: impl Fn(&Failure<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.rebuild(|inner| inner.on_failure = Arc::new(on_failure))
    }

    fn rebuild(mut self, set: impl FnOnce(&mut Inner<S>)) -> Self {
        set(Arc::make_mut(&mut self.0));
        self
    }

    /// Answers one invocation.
    ///
    /// # Errors
    /// The invocation cannot be read, its one event was not handled, or messages were not handled
    /// and the function is to fail [whole batches](Self::with_whole_batches).
    pub async fn invoke(&self, event: LambdaEvent<Box<RawValue>>) -> Result<Answer, FunctionError> {
        let LambdaEvent { payload, context } = event;
        let deadline = Deadline::from_millis(context.deadline);
        let begun = Instant::now();
        let answer = self.answer(payload.get(), deadline).await;
        self.settled(begun, deadline).await;
        answer
    }

    /// Once the store knows what became known since then (R14): frozen, this process would tell it no more.
    async fn settled(&self, since: Instant, deadline: Deadline) {
        let guard = self.0.inbox.guard();
        let settled = async {
            while guard.unsettled_since(since) > 0 {
                sleep(TURN).await;
            }
        };
        timeout(deadline.left().saturating_sub(TO_ANSWER), settled)
            .await
            .ok();
    }

    async fn answer(&self, payload: &str, deadline: Deadline) -> Result<Answer, FunctionError> {
        let read = Invocation::read(payload).map_err(EventError::from);
        match read {
            Ok(Invocation::Event(envelope)) => {
                let handled = self.event(envelope, deadline).await;
                let receipt = handled.inspect_err(|error| self.report(None, error))?;
                Ok(Answer::Event { receipt })
            }
            Ok(Invocation::Batch(records)) => self.batch(records, deadline).await,
            Err(error) => {
                self.report(None, &error);
                Err(error.into())
            }
        }
    }

    /// Handles one event, in a task of its own, so that its panic is its own.
    async fn event(&self, envelope: Envelope, deadline: Deadline) -> Result<Receipt, EventError> {
        let inner = Arc::clone(&self.0);
        let received = Received { envelope, deadline };
        let task = tokio::spawn(async move {
            let Inner {
                inbox, dispatcher, ..
            } = &*inner;
            dispatcher.handle(inbox, received).await
        });
        task.await.unwrap_or(Err(EventError::Panicked))
    }

    /// Handles the messages of a batch, some at a time, and returns when none is being handled.
    async fn batch(
        &self,
        records: Vec<Record>,
        deadline: Deadline,
    ) -> Result<Answer, FunctionError> {
        let of = records.len();
        // With a margin as long as the function's timeout no message would ever be begun.
        let margin = self.0.margin.min(deadline.left() / 2);
        let mut failed = Vec::new();
        let mut lanes = lanes(records).into_iter();
        let mut running = JoinSet::new();
        let mut panicked = false;
        loop {
            while running.len() < self.0.concurrency.get()
                && let Some(lane) = lanes.next()
            {
                let function = self.clone();
                running.spawn(async move { function.lane(lane, deadline, margin).await });
            }
            match running.join_next().await {
                None => break,
                Some(Ok(of_lane)) => failed.extend(of_lane),
                // Only `on_failure` can panic here. Which messages it was about is not known any more;
                // the others are waited for all the same.
                Some(Err(_)) => panicked = true,
            }
        }
        if panicked {
            return Err(EventError::Panicked.into());
        }
        if self.0.whole_batches && !failed.is_empty() {
            let failed = failed.len();
            return Err(FunctionError::Batch { failed, of });
        }
        failed.sort_unstable();
        let ids = failed.into_iter().map(|(_, id)| id);
        Ok(Answer::Batch(BatchResponse::new(ids)))
    }

    /// Handles messages one after the other. After the first failure none is begun: those after it
    /// would overtake it.
    async fn lane(
        &self,
        lane: Lane,
        deadline: Deadline,
        margin: Duration,
    ) -> Vec<(usize, Box<str>)> {
        let mut failed = Vec::new();
        for (place, record) in lane {
            let left = deadline.left();
            let handled = if !failed.is_empty() {
                Err(EventError::AfterFailure)
            } else if left < margin {
                Err(EventError::OutOfTime { left })
            } else {
                self.record(&record, deadline).await
            };
            if let Err(error) = handled {
                self.report(Some(record.message_id()), &error);
                failed.push((place, record.message_id().into()));
            }
        }
        failed
    }

    async fn record(&self, record: &Record, deadline: Deadline) -> Result<Receipt, EventError> {
        let envelope: Result<Envelope, EnvelopeError> = record.read(&self.0.plain);
        self.event(envelope?, deadline).await
    }

    fn report(&self, message_id: Option<&str>, error: &EventError) {
        (self.0.on_failure)(&Failure { message_id, error });
    }
}

fn log(failure: &Failure<'_>) {
    let Failure { error, .. } = failure;
    tracing::error!(kind = error.name(), "an event was not handled: {error}");
}

impl<S: Store> Service<LambdaEvent<Box<RawValue>>> for Function<S> {
    type Response = Answer;
    type Error = FunctionError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, FunctionError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), FunctionError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let function = self.clone();
        Box::pin(async move { function.invoke(event).await })
    }
}

impl<S> Clone for Inner<S> {
    fn clone(&self) -> Self {
        Self {
            inbox: self.inbox.clone(),
            dispatcher: Arc::clone(&self.dispatcher),
            plain: self.plain.clone(),
            margin: self.margin,
            concurrency: self.concurrency,
            whole_batches: self.whole_batches,
            on_failure: Arc::clone(&self.on_failure),
        }
    }
}

impl<S> Clone for Function<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Function<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("dispatcher", &self.0.dispatcher)
            .field("margin", &self.0.margin)
            .field("concurrency", &self.0.concurrency)
            .field("whole_batches", &self.0.whole_batches)
            .finish_non_exhaustive()
    }
}
