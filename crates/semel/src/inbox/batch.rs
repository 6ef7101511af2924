//! Events whose effects and records are one transaction.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::guard::{
    AttemptInfo, Effects, Failed, Held, Opening, Ran, Records, TransactOptions, Transacted,
    Transaction, join,
};
use crate::sync::Mutex;
use crate::transaction::{Lent, Transactional, comes_from_conflict};
use crate::{Outcome, StoreError, StoreErrorKind};

use super::claim::Old;
use super::failure::{message, released};
use super::receipt::Answer;
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
        let work = move |new: NewEvents, tx| work(new.events[0].1.again(new.retry), tx);
        let (inbox, event) = (self.clone(), event.clone());
        let task = self.guard.spawn(async move {
            let work = Mutex::new(work);
            let mut answers = inbox.all(vec![event], true, options, &work).await;
            answers.swap_remove(0)
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
            .spawn(async move { inbox.all(events, false, options, &Mutex::new(work)).await });
        join(task).await
    }

    async fn all<E, F, W>(
        &self,
        events: Vec<Event>,
        may_wait: bool,
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
            let claim = self.claim(&events[place], Effects::InTransaction, may_wait);
            async move { (place, claim.await) }
        }))
        .await;

        let mut batch = Batch::new(self, events);
        let (mut new, mut rest) = (Vec::new(), Vec::new());
        for (place, claimed) in claims {
            match claimed {
                Ok(held) => {
                    batch.held.insert(place, held);
                    new.push(place);
                }
                Err(old) => rest.push((place, old)),
            }
        }
        batch.run(new, options, work).await;
        for (place, old) in rest {
            batch.answers[place] = self.answer(&batch.events[place], old).await;
        }
        for (place, first) in repeats {
            let answer = Old::Answered(batch.repeated(place, first));
            batch.answers[place] = self.answer(&batch.events[place], answer).await;
        }
        batch.answers
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

/// Events under way, and what is answered of each.
struct Batch<'a, S: Transactional, E> {
    inbox: &'a Inbox<S>,
    events: Vec<Event>,
    held: BTreeMap<usize, Held<S>>,
    answers: Vec<Answer<E>>,
}

impl<'a, S: Transactional, E: StdError + 'static> Batch<'a, S, E> {
    fn new(inbox: &'a Inbox<S>, events: Vec<Event>) -> Self {
        Self {
            answers: events.iter().map(|_| Err(unreached())).collect(),
            held: BTreeMap::new(),
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
                    done.map_err(Err)?.map_err(Ok)
                },
                |error| matches!(error, Ok(error) if comes_from_conflict::<S>(error)),
                |()| Some(Records::Outcome(Outcome::void(), None)),
            );
            match transacted.await {
                Transacted::Committed(()) => self.settled(&part, || Ok(Receipt::Handled)),
                Transacted::Superseded(lost) => {
                    let (lost, ran) = (part[lost], Ran::No);
                    self.settled(&[lost], || Err(InboxError::Superseded { ran }));
                    parts.push_front(part.into_iter().filter(|other| *other != lost).collect());
                }
                Transacted::Unknown(source) => {
                    // No fault of the events'. Not so where it was committed for all that: the release is
                    // refused then.
                    for held in part.iter().filter_map(|place| self.held.remove(place)) {
                        held.release_later_leaving(released(""));
                    }
                    self.answer(&part, || Err(store(Ran::Unknown, &source)));
                }
                Transacted::Failed {
                    error: Err(source), ..
                } => {
                    // There was no transaction to be had, nor would those that wait get one.
                    let all: Vec<_> = part.into_iter().chain(parts.drain(..).flatten()).collect();
                    let held: Vec<_> = all.iter().filter_map(|p| self.held.remove(p)).collect();
                    join_all(held.into_iter().map(|held| self.inbox.release(held))).await;
                    self.answer(&all, || Err(store(Ran::No, &source)));
                }
                // Not once more in parts, beside a transaction that somebody has still.
                Transacted::Kept => {
                    for place in part {
                        self.alone(place, Transacted::Kept).await;
                    }
                }
                _ if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.push_front(second.to_vec());
                    parts.push_front(first.to_vec());
                }
                failed => self.alone(part[0], failed).await,
            }
        }
    }

    /// What the first delivery of an event in the batch means for another one.
    fn repeated(&self, place: usize, first: usize) -> Answer<E> {
        if self.events[place].fingerprint() != self.events[first].fingerprint() {
            return Err(InboxError::Mismatch);
        }
        match &self.answers[first] {
            Ok(Receipt::DeadLettered) => Ok(Receipt::DeadLettered),
            Ok(_) => Ok(Receipt::Duplicate),
            Err(error) => Err(InboxError::InFlight {
                retry_after: error.retry_after(),
            }),
        }
    }

    /// The work failed for this one event.
    async fn alone(&mut self, place: usize, failed: Transacted<(), Result<E, StoreError>>) {
        let Some(held) = self.held.remove(&place) else {
            return;
        };
        let ran = Ran::No;
        let (text, error, conflict) = match failed {
            Transacted::Failed {
                error: Ok(error),
                conflict,
            } => {
                let text = text(&error);
                let failed = Failed::now(error, ran);
                (text, InboxError::failed(failed), conflict)
            }
            // A constraint that is checked at the end is the event's fault.
            Transacted::NotCommitted { source, conflict } => {
                let (text, attempt) = (text(&source), 0);
                (text, InboxError::NotCommitted { attempt, source }, conflict)
            }
            Transacted::Panicked(panic) => {
                let text = message(&*panic);
                let failed = Failed::panicked(&text, ran);
                (text, InboxError::failed(failed), false)
            }
            // It was kept.
            _ => {
                let kept = InboxError::TransactionKept;
                (kept.to_string(), kept, false)
            }
        };
        self.answers[place] = if conflict {
            // Others were in the way, too often in a row; the event is none the worse for it.
            let attempt = held.number();
            self.inbox.release(held).await;
            Err(error.after(attempt))
        } else {
            let event = &self.events[place];
            self.inbox.failed(event, held, &text, error).await
        };
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
            self.answers[*place] = answer();
        }
    }
}

/// The same error for each of several events.
fn store<E>(ran: Ran, source: &StoreError) -> InboxError<E> {
    InboxError::store(ran, StoreError::new(source.kind(), source.to_string()))
}

/// An error's text with those of what it comes from: drivers keep what matters in a source.
fn text(error: &(dyn StdError + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

/// Every event is answered; should one not be, it is not acknowledged.
fn unreached<E>() -> InboxError<E> {
    let source = StoreError::new(StoreErrorKind::NotApplied, "the event was not reached");
    InboxError::store(Ran::No, source)
}
