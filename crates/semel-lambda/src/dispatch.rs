//! From an event's type to its handler.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use semel::Store;
use semel::guard::TransactOptions;
use semel::inbox::{Event, Inbox, Receipt};
use semel::transaction::{Lent, Transactional};
use serde::de::DeserializeOwned;

use crate::context::{Deadline, EventContext};
use crate::envelope::Envelope;
use crate::error::{BoxError, EventError, HandlerError};

/// An event that is to be handled.
pub(crate) struct Received {
    pub(crate) envelope: Envelope,
    pub(crate) deadline: Deadline,
}

impl Received {
    fn event(&self) -> Event {
        let envelope = &self.envelope;
        let event = Event::new(envelope.source(), envelope.id(), envelope.detail().clone());
        match envelope.delivery() {
            Some(delivery) => event.with_delivery(delivery),
            None => event,
        }
    }
}

type Handling = Pin<Box<dyn Future<Output = Result<Receipt, EventError>> + Send>>;
type Handler<S> = Box<dyn Fn(Inbox<S>, Received) -> Handling + Send + Sync>;

/// The handlers of a function, by the type of the events that they handle.
///
/// A handler gets what its event brings as a value that serde makes. Where none can be made, or the
/// type has no handler, the event fails before anything is claimed in the store: once the code is
/// mended, it can be delivered again from the dead-letter queue.
///
/// ```
/// use semel::memory::MemoryStore;
/// use semel_lambda::{Dispatcher, EventContext};
///
/// #[derive(serde::Deserialize)]
/// struct OrderPlaced {
///     order: String,
/// }
///
/// let dispatcher: Dispatcher<MemoryStore> = Dispatcher::new()
///     .on("order.placed", |event: OrderPlaced, context: EventContext| async move {
///         // `context.fence()` goes to services that can refuse a stale attempt.
///         if event.order.is_empty() { Err("an order without a number") } else { Ok(()) }
///     });
/// assert_eq!(dispatcher.types().collect::<Vec<_>>(), ["order.placed"]);
/// ```
pub struct Dispatcher<S> {
    handlers: BTreeMap<Box<str>, Handler<S>>,
    otherwise: Option<Handler<S>>,
}

impl<S: Store> Dispatcher<S> {
    /// Without handlers.
    pub const fn new() -> Self {
        Self {
            handlers: BTreeMap::new(),
            otherwise: None,
        }
    }

    /// Events of this type go to `handler`, once each, under a claim that is renewed while it runs.
    /// A handler that was there for the type is replaced.
    ///
    /// An error releases the event: the next delivery runs the handler again.
    #[must_use]
    pub fn on<T, E, F, W>(mut self, event_type: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        E: Into<BoxError>,
        F: Fn(T, EventContext) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        self.handlers.insert(
            event_type.into(),
            plain(handler, |envelope| envelope.decode()),
        );
        self
    }

    /// Events of all other types go to `handler`, once each. Without it they fail with
    /// [`UnknownType`](EventError::UnknownType).
    #[must_use]
    pub fn otherwise<E, F, W>(mut self, handler: F) -> Self
    where
        E: Into<BoxError>,
        F: Fn(Envelope, EventContext) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        self.otherwise = Some(plain(handler, |envelope| Ok(envelope.clone())));
        self
    }

    /// The types that have a handler, in alphabetical order.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(|known| &**known)
    }

    /// Handles an event once.
    pub(crate) async fn handle(
        &self,
        inbox: &Inbox<S>,
        received: Received,
    ) -> Result<Receipt, EventError> {
        let given = received.envelope.event_type();
        let Some(handler) = self.handlers.get(given).or(self.otherwise.as_ref()) else {
            return Err(EventError::UnknownType {
                given: given.into(),
                known: self.handlers.keys().cloned().collect(),
            });
        };
        handler(inbox.clone(), received).await
    }
}

impl<S: Transactional> Dispatcher<S> {
    /// Events of this type go to `handler` with a transaction of the store's database: what it
    /// writes there and the record that the event was handled are committed together, or neither is
    /// ([`Guard::transact`](semel::guard::Guard::transact)). A handler that was there for the type is
    /// replaced.
    ///
    /// After a conflict with other transactions the handler runs again:
    /// [`EventContext::retry`] counts. Pass the driver's error on, or an error whose source it is.
    #[must_use]
    pub fn on_in_transaction<T, E, F, W>(
        mut self,
        event_type: &str,
        options: TransactOptions,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        E: Into<BoxError>,
        F: Fn(T, EventContext, Lent<S::Transaction>) -> W + Send + Sync + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let handler: Handler<S> = Box::new(move |inbox, received| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                // Before the claim; and again for each run, as a value may not be copied.
                received.envelope.decode::<T>()?;
                let event = received.event();
                let work = move |info, transaction| {
                    let Received { envelope, deadline } = &received;
                    let context = EventContext::new(envelope.clone(), *deadline, info);
                    let decoded = envelope.decode::<T>();
                    let handler = Arc::clone(&handler);
                    async move {
                        let detail = decoded.map_err(HandlerError::of)?;
                        let handled = handler(detail, context, transaction).await;
                        handled.map_err(HandlerError::of)
                    }
                };
                Ok(inbox.transact(&event, options, work).await?)
            })
        });
        self.handlers.insert(event_type.into(), handler);
        self
    }
}

impl<S: Store> Default for Dispatcher<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> fmt::Debug for Dispatcher<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("types", &self.handlers.keys())
            .field("otherwise", &self.otherwise.is_some())
            .finish()
    }
}

fn plain<S, T, E, F, W>(
    handler: F,
    decode: impl Fn(&Envelope) -> Result<T, EventError> + Copy + Send + Sync + 'static,
) -> Handler<S>
where
    S: Store,
    T: Send + 'static,
    E: Into<BoxError>,
    F: Fn(T, EventContext) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), E>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Box::new(move |inbox, received| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let detail = decode(&received.envelope)?;
            let event = received.event();
            let work = move |info| {
                let Received { envelope, deadline } = received;
                let handling = handler(detail, EventContext::new(envelope, deadline, info));
                async move { handling.await.map_err(HandlerError::of) }
            };
            Ok(inbox.receive(&event, work).await?)
        })
    })
}
