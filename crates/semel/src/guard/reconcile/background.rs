//! Without a caller: unknown records resolve by themselves.

use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::super::{Guard, Signal};
use super::ask::{Question, Reply};
use super::{ReconcileOptions, Reconciler};
use crate::backoff::jittered;
use crate::store::{Entry, Fence, ListQuery, Store};
use crate::{IdentityDigest, StateKind, StoreError};

/// How many records it has in mind; the others' turn comes when these are done.
const MOST_PENDING: usize = 10_000;
/// How many questions are asked at the same time.
const AT_ONCE: usize = 8;

/// Resolves lost attempts without a client's retry: lists the records of its operations that are
/// unknown, or in flight past their lease, and asks the guard's [`Reconciler`] about each, with
/// growing pauses, until it knows or was asked as often as the options allow. What is unknown then
/// is left for an operator, and for callers in line.
///
/// What it has asked it knows in memory: a process that starts begins anew, and several processes
/// on one store each ask. The store takes one answer for each attempt.
///
/// ```no_run
/// # async fn start(guard: semel::guard::Guard<semel::memory::MemoryStore>) {
/// use semel::guard::Background;
/// let reconciling = tokio::spawn(Background::new(guard, ["pay", "refund"]).run());
/// // At the end of the program:
/// reconciling.abort();
/// # }
/// ```
pub struct Background<S> {
    guard: Guard<S>,
    operations: Box<[Box<str>]>,
    options: Arc<ReconcileOptions>,
    every: Duration,
    at_once: usize,
    pending: HashMap<IdentityDigest, Pending>,
    next_look: Instant,
}

/// A record that waits for an answer.
struct Pending {
    fence: Fence,
    asked: u32,
    // None: given up.
    due: Option<Instant>,
}

/// What a turn of the [`Background`] did, and what it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Records resolved in this turn.
    pub resolved: usize,
    /// Records that wait for the next question.
    pub pending: usize,
    /// Records that were asked about as often as is allowed, and that nobody has resolved since.
    pub given_up: usize,
}

impl<S: Store> Background<S> {
    /// For the records of these operations, which may share the store with others. Asks as
    /// [`ReconcileOptions::background`] says unless set, and looks for more every 30 s.
    ///
    /// Without a reconciler in the guard it does nothing.
    pub fn new<O: Into<Box<str>>>(
        guard: Guard<S>,
        operations: impl IntoIterator<Item = O>,
    ) -> Self {
        Self {
            guard,
            operations: operations.into_iter().map(Into::into).collect(),
            options: Arc::new(ReconcileOptions::background()),
            every: Duration::from_secs(30),
            at_once: AT_ONCE,
            pending: HashMap::new(),
            next_look: Instant::now(),
        }
    }

    /// How often the reconciler is asked about one record, and how long it has for an answer.
    #[must_use]
    pub fn with_options(mut self, options: ReconcileOptions) -> Self {
        self.options = Arc::new(options);
        self
    }

    /// How often the store is asked for lost attempts. Redis, NATS and DynamoDB read all records
    /// for it.
    #[must_use]
    pub const fn with_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How many questions are asked at the same time, at most. 8 unless set.
    #[must_use]
    pub fn with_at_once(mut self, at_once: usize) -> Self {
        self.at_once = at_once.max(1);
        self
    }

    /// Goes on for ever. A store that fails is asked again when the next turn is due.
    pub async fn run(mut self) {
        loop {
            // Observed where it failed.
            self.turn().await.ok();
            self.rest().await;
        }
    }

    /// Returns when the next turn is due.
    pub async fn rest(&self) {
        let due = self.pending.values().filter_map(|pending| pending.due);
        sleep_until(due.fold(self.next_look, Instant::min)).await;
    }

    /// Looks for lost attempts, if it is time to, and asks about those that are due, each once.
    ///
    /// # Errors
    /// The store's, where it did not list its records. What was found before is asked about.
    pub async fn turn(&mut self) -> Result<Tally, StoreError> {
        let Some(reconciler) = self.guard.shared.plugged.reconciler.clone() else {
            self.next_look = Instant::now() + jittered(self.every);
            return Ok(Tally::default());
        };
        let mut looked = Ok(());
        if Instant::now() >= self.next_look {
            looked = self.look().await;
            self.next_look = Instant::now() + jittered(self.every);
        }
        let resolved = self.ask_due(&reconciler).await;
        looked?;
        let given_up = self.pending.values().filter(|p| p.due.is_none()).count();
        Ok(Tally {
            resolved,
            pending: self.pending.len() - given_up,
            given_up,
        })
    }

    /// Brings what is pending up to what the store shows.
    async fn look(&mut self) -> Result<(), StoreError> {
        // What was given up is not to keep out what is new.
        let counts = |digest: &IdentityDigest, fence| {
            let pending = self.pending.get(digest);
            !pending.is_some_and(|p| p.fence == fence && p.due.is_none())
        };
        let found = match self.guard.stuck(&self.operations, counts).await {
            Ok(found) => found,
            Err(error) => {
                self.guard.signal(Signal::StoreError);
                return Err(error);
            }
        };
        let now = Instant::now();
        self.pending
            .retain(|digest, pending| found.get(digest) == Some(&pending.fence));
        for (digest, fence) in found {
            if let hash_map::Entry::Vacant(new) = self.pending.entry(digest) {
                new.insert(Pending {
                    fence,
                    asked: 0,
                    due: Some(now),
                });
            }
        }
        Ok(())
    }

    async fn ask_due(&mut self, reconciler: &Arc<dyn Reconciler>) -> usize {
        let now = Instant::now();
        let due = |p: &Pending| p.due.is_some_and(|due| due <= now);
        let questions: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, pending)| due(pending))
            .map(|(digest, pending)| (*digest, pending.fence, pending.asked + 1))
            .collect();
        let questions = questions.into_iter().map(|(digest, fence, asked)| {
            let (guard, reconciler) = (self.guard.clone(), Arc::clone(reconciler));
            let options = Arc::clone(&self.options);
            async move {
                // Who asks in line has the whole key.
                if guard.is_asking(&digest, fence) {
                    return (digest, Reply::NotAsked);
                }
                let question = Question::in_background(&digest, fence, asked);
                let reply = guard.ask(&reconciler, question, &options).await;
                (digest, reply)
            }
        });
        let replies = at_once(self.at_once, questions).await;
        for (digest, reply) in &replies {
            self.note(*digest, *reply);
        }
        let resolved = |(_, reply): &&(_, Reply)| *reply == Reply::Resolved;
        replies.iter().filter(resolved).count()
    }

    fn note(&mut self, digest: IdentityDigest, reply: Reply) {
        let hash_map::Entry::Occupied(mut entry) = self.pending.entry(digest) else {
            return;
        };
        if reply.changed() {
            entry.remove();
            return;
        }
        let pending = entry.get_mut();
        pending.asked += u32::from(reply == Reply::Unknown);
        let pause = self.options.pause_after(pending.asked.max(1));
        let more = pending.asked < self.options.attempts;
        pending.due = more.then(|| Instant::now() + jittered(pause));
    }
}

impl<S: Store> Guard<S> {
    /// Asks the reconciler now about every lost attempt at these operations, as often as the
    /// guard's [`ReconcileOptions`] allow for each: for a job that runs now and then, where there is
    /// no [`Background`].
    ///
    /// # Errors
    /// The store's, where it did not list its records. Nobody was asked then.
    pub async fn reconcile_all<O: Into<Box<str>>>(
        &self,
        operations: impl IntoIterator<Item = O>,
    ) -> Result<Tally, StoreError> {
        let operations: Box<[Box<str>]> = operations.into_iter().map(Into::into).collect();
        let Some(reconciler) = &self.shared.plugged.reconciler else {
            return Ok(Tally::default());
        };
        let found = self.stuck(&operations, |_, _| true).await?;
        let questions = found.into_iter().map(|(digest, fence)| {
            let (guard, reconciler) = (self.clone(), Arc::clone(reconciler));
            async move {
                let question = Question::in_background(&digest, fence, 1);
                let options = &guard.shared.plugged.reconcile_options;
                guard.ask_until(&reconciler, question, options).await
            }
        });
        let mut tally = Tally::default();
        for reply in at_once(AT_ONCE, questions).await {
            match reply {
                Reply::Resolved => tally.resolved += 1,
                Reply::Moved => {}
                Reply::Unknown | Reply::NotAsked => tally.given_up += 1,
            }
        }
        Ok(tally)
    }

    /// The records of these operations that are unknown, or in flight past their lease, with the
    /// fences of their attempts: at least [`MOST_PENDING`] of those that count, if there are.
    async fn stuck(
        &self,
        operations: &[Box<str>],
        counts: impl Fn(&IdentityDigest, Fence) -> bool,
    ) -> Result<HashMap<IdentityDigest, Fence>, StoreError> {
        let mut found = HashMap::new();
        let mut counted = 0;
        for state in [StateKind::Unknown, StateKind::InFlight] {
            let mut query = ListQuery::new(state);
            query.lapsed = state == StateKind::InFlight;
            while counted < MOST_PENDING {
                let page = self.store().list(&query).await?;
                for Entry { label, record } in page.entries {
                    if operations.contains(&label.operation) {
                        counted += usize::from(counts(&label.digest, record.token.fence));
                        found.insert(label.digest, record.token.fence);
                    }
                }
                query.after = match page.next {
                    None => break,
                    next => next,
                };
            }
        }
        Ok(found)
    }
}

/// Runs these at the same time, no more than `most` of them. All end with this future: nobody is
/// asked whose answer nobody takes. An observer's panic counts as no answer.
async fn at_once<T: Send + 'static>(
    most: usize,
    mut all: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    loop {
        while running.len() < most
            && let Some(next) = all.next()
        {
            running.spawn(next);
        }
        match running.join_next().await {
            Some(one) => done.extend(one),
            None => return done,
        }
    }
}

impl<S> fmt::Debug for Background<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background")
            .field("operations", &self.operations)
            .field("options", &self.options)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
