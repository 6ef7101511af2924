//! Events whose effects and records are one transaction.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::guard::{
    AttemptInfo, Effects, Held, Opening, Ran, Records, TransactOptions, Transacted, Transaction,
    join,
};
use crate::sync::Mutex;
use crate::transaction::{Lent, Transactional, comes_from_conflict};
use crate::{Outcome, StoreError, StoreErrorKind};

use super::claim::Claimed;
use super::failure::message;
use super::{Event, Inbox, InboxError, Receipt};

/// The events of a batch that are to be handled now, in the order in which they were delivered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewEvents {
    /// The events, with what there is to know of the attempt on each.
    pub events: Arc<[(Event, AttemptInfo)]>,
    /// How often the work was run for these events and rolled back because of a conflict.
    pub retry: u32,
}

type Answer<E> = Result<Receipt, InboxError<E>>;

impl<S: Transactional> Inbox<S> {
    /// Handles `event` once, its effects and its record in one transaction of the store's database:
    /// a crash at any point leaves both or neither. Of deliveries at the same time one runs.
    ///
    /// `work` gets the driver's transaction, and drops it when it is done with it; it is called again
    /// after a conflict with other transactions. All of that is as for
    /// [`Guard::transact`](crate::guard::Guard::transact). An error or a panic rolls back.
    ///
    /// # Errors
    /// See [`InboxError`]: do not acknowledge. With [`Store`](InboxError::Store) nothing was
    /// committed, unless the work ran and the source is of kind
    /// [`Unknown`](StoreErrorKind::Unknown).
    pub async fn transact<E, F, W>(
        &self,
        event: &Event,
        options: TransactOptions,
        mut work: F,
    ) -> Answer<E>
    where
        E: StdError + Send + 'static,
        F: FnMut(AttemptInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (inbox, event) = (self.clone(), event.clone());
        let task = self.guard.spawn(async move {
            let claimed = inbox.claim(&event, Effects::InTransaction, true).await?;
            let mut held = match inbox.unless_new(&event, claimed).await {
                Ok(held) => held,
                Err(answer) => return answer,
            };
            let info = held.info();
            let work = Mutex::new(|new: NewEvents, tx| work(info.again(new.retry), tx));
            let mut batch = Batch::new(&inbox, vec![event], [(0, held)]);
            batch.run(vec![0], options, &work).await;
            batch.answers.swap_remove(0).unwrap_or_else(|| Err(never()))
        });
        join(task).await
    }

    /// Handles many events, those that were not handled before in one transaction; a receipt or an
    /// error for each, in their order. `work` gets the fresh ones, and is not called where there are
    /// none.
    ///
    /// Where it fails for several, the transaction is rolled back and each half of them gets one of
    /// its own, and so on: an event that cannot be handled is alone in the end, fails alone, and the
    /// others are handled. So `work` may be called for any of them, in their order, and an event may
    /// be handled although one before it failed. An event that another consumer took over is left
    /// out, and the others run again.
    ///
    /// A batch does not wait for other deliveries: those events are
    /// [`InFlight`](InboxError::InFlight). The lease is that of each event, held for the whole
    /// batch.
    pub async fn transact_batch<E, F, W>(
        &self,
        events: &[Event],
        options: TransactOptions,
        work: F,
    ) -> Vec<Answer<E>>
    where
        E: StdError + Send + 'static,
        F: FnMut(NewEvents, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (inbox, events) = (self.clone(), events.to_vec());
        let task = self
            .guard
            .spawn(async move { inbox.all(events, options, &Mutex::new(work)).await });
        join(task).await
    }

    async fn all<E, F, W>(
        &self,
        events: Vec<Event>,
        options: TransactOptions,
        work: &Mutex<F>,
    ) -> Vec<Answer<E>>
    where
        E: StdError + 'static,
        F: FnMut(NewEvents, Lent<S::Transaction>) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let repeats = self.repeats(&events);
        let once = (0..events.len()).filter(|place| !repeats.contains_key(place));
        // Together, so that a store that groups its steps makes them one.
        let claims = join_all(once.map(|place| {
            let claim = self.claim(&events[place], Effects::InTransaction, false);
            async move { (place, claim.await) }
        }))
        .await;

        let (mut held, mut new, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        let mut exhausted = Vec::new();
        for (place, claimed) in claims {
            match claimed {
                Ok(Claimed::New(attempt)) => {
                    held.push((place, attempt));
                    new.push(place);
                }
                Ok(Claimed::Exhausted(attempt, spent)) => exhausted.push((place, attempt, spent)),
                other => rest.push((place, other)),
            }
        }
        let mut batch = Batch::new(self, events, held);
        batch.run(new, options, work).await;
        for (place, held, spent) in exhausted {
            let answer = self.exhausted(&batch.events[place], held, spent).await;
            batch.answers[place] = Some(answer);
        }
        for (place, claimed) in rest {
            batch.answers[place] = Some(match claimed {
                Ok(Claimed::Before(receipt)) => Ok(receipt),
                Ok(_) => self.mismatch(&batch.events[place]).await,
                Err(error) => Err(error),
            });
        }
        for (place, first) in repeats {
            batch.answers[place] = Some(match batch.repeated(place, first) {
                Some(answer) => answer,
                None => self.mismatch(&batch.events[place]).await,
            });
        }
        let answers = batch.answers.into_iter();
        answers
            .map(|answer| answer.unwrap_or_else(|| Err(never())))
            .collect()
    }

    /// Places of events that are in the batch already, and where.
    fn repeats(&self, events: &[Event]) -> BTreeMap<usize, usize> {
        let mut seen = HashMap::new();
        let mut repeats = BTreeMap::new();
        for (place, event) in events.iter().enumerate() {
            if let Some(identity) = event.identity(&self.consumer) {
                let first = *seen.entry(*identity.digest()).or_insert(place);
                if first != place {
                    repeats.insert(place, first);
                }
            }
        }
        repeats
    }
}

/// Events under way, and what was answered of each so far.
struct Batch<'a, S: Transactional, E> {
    inbox: &'a Inbox<S>,
    events: Vec<Event>,
    held: BTreeMap<usize, Held<S>>,
    answers: Vec<Option<Answer<E>>>,
}

impl<'a, S: Transactional, E: StdError + 'static> Batch<'a, S, E> {
    fn new(
        inbox: &'a Inbox<S>,
        events: Vec<Event>,
        held: impl IntoIterator<Item = (usize, Held<S>)>,
    ) -> Self {
        Self {
            held: held.into_iter().collect(),
            answers: events.iter().map(|_| None).collect(),
            inbox,
            events,
        }
    }

    /// Runs the work for the events at `places`, and for ever smaller parts of them where it fails.
    async fn run<F, W>(&mut self, places: Vec<usize>, options: TransactOptions, work: &Mutex<F>)
    where
        F: FnMut(NewEvents, Lent<S::Transaction>) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let mut parts = VecDeque::from([places]);
        while let Some(part) = parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            let events = self.new_events(&part);
            let attempts = part.iter().filter_map(|place| self.held.get(place));
            let transaction = Transaction {
                guard: self.inbox.guard.clone(),
                attempts: attempts.map(|held| Arc::clone(held.claimed())).collect(),
                options,
            };
            let events = &events;
            let transacted = transaction.run(
                |retry, opening: Opening<S>| async move {
                    let events = Arc::clone(events);
                    let done = opening.lend(work, NewEvents { events, retry }).await;
                    let done = done.map_err(|error| store(Ran::No, &error))?;
                    done.map_err(|error| InboxError::Failed { error, attempt: 0, ran: Ran::No })
                },
                |error| matches!(error, InboxError::Failed { error, .. } if comes_from_conflict::<S>(error)),
                |()| Some(Records::Outcome(Outcome::void())),
            );
            match transacted.await {
                Transacted::Committed(()) => self.settled(&part, || Ok(Receipt::Handled)),
                Transacted::Superseded(lost) => {
                    let (lost, ran) = (part[lost], Ran::No);
                    self.settled(&[lost], || Err(InboxError::Superseded { ran }));
                    parts.push_front(part.into_iter().filter(|other| *other != lost).collect());
                }
                Transacted::Unknown(source) => {
                    // Not so where it was committed for all that: the release waits for its lock.
                    for held in part.iter().filter_map(|place| self.held.remove(place)) {
                        held.release_later();
                    }
                    self.answer(&part, || Err(store(Ran::Unknown, &source)));
                }
                Transacted::Failed {
                    error: InboxError::Store { source, .. },
                    ..
                } => {
                    // There was no transaction to be had, nor would those that wait get one.
                    let all: Vec<_> = part.into_iter().chain(parts.drain(..).flatten()).collect();
                    self.release(&all).await;
                    self.answer(&all, || Err(store(Ran::No, &source)));
                }
                Transacted::Kept => {
                    self.release(&part).await;
                    self.answer(&part, || Err(InboxError::TransactionKept));
                }
                _ if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.push_front(second.to_vec());
                    parts.push_front(first.to_vec());
                }
                failed => {
                    let answer = self.alone(part[0], failed).await;
                    self.answers[part[0]] = Some(answer);
                }
            }
        }
    }

    /// What the first delivery of an event in the batch means for a second one; `None` where they
    /// are not the same.
    fn repeated(&self, place: usize, first: usize) -> Option<Answer<E>> {
        if self.events[place].fingerprint() != self.events[first].fingerprint() {
            return None;
        }
        Some(match &self.answers[first] {
            Some(Ok(Receipt::DeadLettered)) => Ok(Receipt::DeadLettered),
            Some(Ok(_)) => Ok(Receipt::Duplicate),
            Some(Err(error)) => Err(InboxError::InFlight {
                retry_after: error.retry_after(),
            }),
            None => Err(never()),
        })
    }

    /// The work failed for this one event.
    async fn alone(&mut self, place: usize, failed: Transacted<(), InboxError<E>>) -> Answer<E> {
        let Some(held) = self.held.remove(&place) else {
            return Err(never());
        };
        let (inbox, event) = (self.inbox, &self.events[place]);
        let (text, error, conflict) = match failed {
            Transacted::Failed {
                error: InboxError::Failed { error, .. },
                conflict,
            } => (text(&error), Ok(Some(error)), conflict),
            // A constraint that is checked at the end is the event's fault.
            Transacted::NotCommitted { source, conflict } => (text(&source), Err(source), conflict),
            Transacted::Panicked(panic) => (message(&*panic), Ok(None), false),
            _ => return Err(never()),
        };
        let (message, ran) = (text.clone(), Ran::No);
        let again = |attempt| match error {
            Ok(Some(error)) => InboxError::Failed {
                error,
                attempt,
                ran,
            },
            Ok(None) => InboxError::Panicked {
                message,
                attempt,
                ran,
            },
            Err(source) => store(Ran::No, &source),
        };
        if conflict {
            // Others were in the way, too often in a row; the event is none the worse for it.
            let attempt = held.number();
            inbox.release(held).await;
            return Err(again(attempt));
        }
        inbox.failed(event, held, &text, again).await
    }

    fn new_events(&mut self, places: &[usize]) -> Arc<[(Event, AttemptInfo)]> {
        let held = places.iter().filter_map(|place| {
            let held = self.held.get_mut(place)?;
            Some((self.events[*place].clone(), held.info()))
        });
        held.collect()
    }

    fn settled(&mut self, places: &[usize], answer: impl Fn() -> Answer<E>) {
        for held in places.iter().filter_map(|place| self.held.remove(place)) {
            held.let_lapse();
        }
        self.answer(places, answer);
    }

    fn answer(&mut self, places: &[usize], answer: impl Fn() -> Answer<E>) {
        for place in places {
            self.answers[*place] = Some(answer());
        }
    }

    async fn release(&mut self, places: &[usize]) {
        let held: Vec<_> = places.iter().filter_map(|p| self.held.remove(p)).collect();
        join_all(held.into_iter().map(|held| self.inbox.release(held))).await;
    }
}

/// The same error for each of several events.
fn store<E>(ran: Ran, source: &StoreError) -> InboxError<E> {
    let source = StoreError::new(source.kind(), source.to_string());
    InboxError::Store { ran, source }
}

/// An error's text with those of what it comes from: drivers keep what matters in a source.
fn text(error: &(dyn StdError + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Every event of a batch is answered; should one not be, it is not acknowledged.
fn never<E>() -> InboxError<E> {
    InboxError::Store {
        ran: Ran::No,
        source: StoreError::new(StoreErrorKind::NotApplied, "the event was not reached"),
    }
}
