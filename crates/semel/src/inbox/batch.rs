//! Events whose effects and records are one transaction.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error as StdError;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::Outcome;
use crate::guard::{
    Attempt, AttemptInfo, InFlight, Together, TransactInfo, TransactOptions, Tried, joined,
};
use crate::store::OnLost;
use crate::transaction::{Lent, Transactional};
use crate::{StoreError, StoreErrorKind};

use super::claim::Claimed;
use super::failure::message;
use super::{Event, Inbox, InboxError, Receipt};

/// The events of a batch that are to be handled now, in the order in which they were delivered.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Fresh {
    /// The events, with what there is to know of the attempt on each.
    pub events: Arc<[(Event, AttemptInfo)]>,
    /// How often the work was run for these events and rolled back because of a conflict.
    pub again: u32,
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
        F: FnMut(TransactInfo, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (inbox, event) = (self.clone(), event.clone());
        let task = self.guard.spawn(async move {
            let in_flight = inbox.guard.policy().in_flight;
            let claimed = inbox.claim(&event, inbox.retry_unless(), in_flight).await?;
            let attempt = match inbox.unless_fresh(&event, claimed).await {
                Ok(attempt) => attempt,
                Err(answer) => return answer,
            };
            let AttemptInfo { fence, number } = attempt.info();
            let mut work = |fresh: Fresh, transaction| {
                let info = TransactInfo {
                    fence,
                    number,
                    again: fresh.again,
                };
                work(info, transaction)
            };
            let mut batch = Batch::new(&inbox, vec![event], vec![(0, attempt)]);
            batch.run(vec![0], options, &mut work).await;
            batch.answers.swap_remove(0).unwrap_or_else(|| Err(never()))
        });
        joined(task).await
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
        mut work: F,
    ) -> Vec<Answer<E>>
    where
        E: StdError + Send + 'static,
        F: FnMut(Fresh, Lent<S::Transaction>) -> W + Send + 'static,
        W: Future<Output = Result<(), E>> + Send + 'static,
    {
        let (inbox, events) = (self.clone(), events.to_vec());
        let task = self
            .guard
            .spawn(async move { inbox.all(events, options, &mut work).await });
        joined(task).await
    }

    async fn all<E, F, W>(
        &self,
        events: Vec<Event>,
        options: TransactOptions,
        work: &mut F,
    ) -> Vec<Answer<E>>
    where
        E: StdError + 'static,
        F: FnMut(Fresh, Lent<S::Transaction>) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let repeats = self.repeats(&events);
        let once = (0..events.len()).filter(|place| !repeats.contains_key(place));
        // Together, so that a store that groups its steps makes them one.
        let claims = join_all(once.map(|place| {
            let claim = self.claim(&events[place], self.retry_unless(), InFlight::Reject);
            async move { (place, claim.await) }
        }))
        .await;

        let (mut attempts, mut fresh, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        let mut exhausted = BTreeMap::new();
        for (place, claimed) in claims {
            match claimed {
                Ok(Claimed::Fresh(attempt)) => {
                    attempts.push((place, attempt));
                    fresh.push(place);
                }
                Ok(Claimed::Exhausted(attempt, spent)) => {
                    attempts.push((place, attempt));
                    exhausted.insert(place, spent);
                }
                other => rest.push((place, other)),
            }
        }
        let mut batch = Batch::new(self, events, attempts);
        batch.run(fresh, options, work).await;
        for (place, spent) in exhausted {
            batch.held.renew().await;
            if let Some(attempt) = batch.held.take(place) {
                let after = self.exhausted(&batch.events[place], attempt, spent).await;
                batch.answers[place] = Some(after.told());
            }
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

    /// Nothing of an attempt that did not commit has happened.
    fn retry_unless(&self) -> OnLost {
        self.on_lost.unwrap_or(OnLost::Retry)
    }
}

/// Events under way, and what was answered of each so far.
struct Batch<'a, S, E> {
    inbox: &'a Inbox<S>,
    events: Vec<Event>,
    held: Together<S>,
    answers: Vec<Option<Answer<E>>>,
}

impl<'a, S: Transactional, E: StdError + 'static> Batch<'a, S, E> {
    fn new(inbox: &'a Inbox<S>, events: Vec<Event>, attempts: Vec<(usize, Attempt<S>)>) -> Self {
        Self {
            held: Together::new(inbox.guard.clone(), attempts),
            answers: events.iter().map(|_| None).collect(),
            inbox,
            events,
        }
    }

    /// Runs the work for the events at `places`, and for ever smaller parts of them where it fails.
    async fn run<F, W>(&mut self, places: Vec<usize>, options: TransactOptions, work: &mut F)
    where
        F: FnMut(Fresh, Lent<S::Transaction>) -> W,
        W: Future<Output = Result<(), E>>,
    {
        let mut parts = VecDeque::from([places]);
        while let Some(part) = parts.pop_front() {
            if part.is_empty() {
                continue;
            }
            // Those that wait too: the parts before may have taken long.
            self.held.renew().await;
            let mut run = {
                let (events, work) = (self.fresh(&part), &mut *work);
                move |again, transaction| {
                    let events = events.clone();
                    work(Fresh { events, again }, transaction)
                }
            };
            let tried = self
                .held
                .transact(&part, options, |()| Outcome::void(), &mut run)
                .await;
            match tried {
                Tried::Done(()) => self.answer(&part, || Ok(Receipt::Handled)),
                Tried::Superseded(place) => {
                    self.answer(&[place], || Err(InboxError::Superseded));
                    parts.push_front(part.into_iter().filter(|other| *other != place).collect());
                }
                Tried::Unknown(source) => {
                    self.answer(&part, || Err(store(true, &source)));
                }
                Tried::NotBegun { ran, source } => {
                    // Nor would those that wait get one.
                    let all: Vec<_> = part.into_iter().chain(parts.drain(..).flatten()).collect();
                    self.release(&all).await;
                    self.answer(&all, || Err(store(ran, &source)));
                }
                Tried::Kept => {
                    self.release(&part).await;
                    self.answer(&part, || Err(InboxError::TransactionKept));
                }
                Tried::Failed { .. } | Tried::Panicked(_) | Tried::NotCommitted { .. }
                    if part.len() > 1 =>
                {
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
            Some(Ok(Receipt::SetAside)) => Ok(Receipt::SetAside),
            Some(Ok(_)) => Ok(Receipt::Duplicate),
            Some(Err(error)) => Err(InboxError::InFlight {
                retry_after: error.retry_after(),
            }),
            None => Err(never()),
        })
    }

    /// The work failed for this one event.
    async fn alone(&mut self, place: usize, failed: Tried<(), E>) -> Answer<E> {
        let Some(attempt) = self.held.take(place) else {
            return Err(never());
        };
        let (inbox, event) = (self.inbox, &self.events[place]);
        match failed {
            Tried::Failed {
                error,
                conflict: false,
            } => {
                let failed = inbox.failed(event, attempt, &text(&error)).await;
                failed.told(|attempt| InboxError::Failed { error, attempt })
            }
            Tried::Panicked(panic) => {
                let message = message(&*panic);
                let failed = inbox.failed(event, attempt, &message).await;
                failed.told(|attempt| InboxError::Panicked { message, attempt })
            }
            // Others were in the way, too often in a row; the event is none the worse for it.
            Tried::Failed { error, .. } => {
                let attempt_number = attempt.info().number;
                inbox.release(attempt).await;
                Err(InboxError::Failed {
                    error,
                    attempt: attempt_number,
                })
            }
            // The commit was refused: a constraint that is checked at the end is the event's fault.
            Tried::NotCommitted {
                source,
                conflict: false,
            } => {
                let failed = inbox.failed(event, attempt, &text(&source)).await;
                failed.told(|_| store(true, &source))
            }
            Tried::NotCommitted { source, .. } => {
                inbox.release(attempt).await;
                Err(store(true, &source))
            }
            _ => Err(never()),
        }
    }

    fn fresh(&self, places: &[usize]) -> Arc<[(Event, AttemptInfo)]> {
        let held = places.iter().filter_map(|&place| {
            let attempt = self.held.get(place)?;
            Some((self.events[place].clone(), attempt.info()))
        });
        held.collect()
    }

    fn answer(&mut self, places: &[usize], answer: impl Fn() -> Answer<E>) {
        for place in places {
            self.answers[*place] = Some(answer());
        }
    }

    async fn release(&mut self, places: &[usize]) {
        let attempts: Vec<_> = places.iter().filter_map(|p| self.held.take(*p)).collect();
        join_all(attempts.into_iter().map(|a| self.inbox.release(a))).await;
    }
}

/// The same error for each of several events.
fn store<E>(ran: bool, source: &StoreError) -> InboxError<E> {
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
        ran: false,
        source: StoreError::new(StoreErrorKind::NotApplied, "the event was not reached"),
    }
}
