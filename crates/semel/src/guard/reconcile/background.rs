//! Resolves lost attempts in the background, without a caller.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::super::attempt::catch_panic;
use super::super::lease::later;
use super::super::{Guard, Policy, Seen, Signal};
use super::ask::{Asker, Inquiry, Reply};
use super::{ReconcileOptions, Reconciler};
use crate::backoff::jittered;
use crate::store::{Entry, Fence, ListQuery, Store};
use crate::{IdentityDigest, Record, StateKind, StoreError, Timestamp};

/// How many records wait for an answer at the same time; the others' turn comes when these are done.
const MOST_PENDING: usize = 10_000;
/// For how long a job waits for others to be due.
const TOGETHER: Duration = Duration::from_millis(100);
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
/// let policy = *guard.policy();
/// let operations = [("pay", policy), ("refund", policy)];
/// let reconciling = tokio::spawn(Background::new(guard, operations).run());
/// // At the end of the program:
/// reconciling.abort();
/// # }
/// ```
pub struct Background<S> {
    guard: Guard<S>,
    operations: Operations,
    options: ReconcileOptions,
    every: Duration,
    at_once: usize,
    pending: BTreeMap<IdentityDigest, Pending>,
    next_look: Instant,
}

/// What a record's operation goes by: it does not say itself by which policy it was claimed.
type Operations = BTreeMap<Arc<str>, Policy>;

/// A record that waits for an answer.
#[derive(Clone)]
struct Pending {
    operation: Arc<str>,
    policy: Policy,
    fence: Fence,
    lease_until: Timestamp,
    // As long as its lease can be: it was claimed with it, or renewed later.
    lease: Duration,
    // The questions that count.
    asked: u32,
    // Those, and the turns in which nobody could be asked, or the store not be told.
    turns: u32,
    // Since when the store has watched it, where it took the attempt for running.
    watched: Option<Instant>,
    // None: nobody is asked any more.
    due: Option<Instant>,
}

/// What a turn of the [`Background`] did, and what it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Records resolved in this turn.
    pub resolved: usize,
    /// Records that wait for the next question; after a job, those that are for the next one, because
    /// the store failed or a caller in line asks.
    pub pending: usize,
    /// Records that were asked about as often as is allowed, and that nobody had resolved when the
    /// store was last looked at. As long as more than 10,000 wait, those that were resolved since are
    /// counted as well.
    pub given_up: usize,
}

impl<S: Store> Background<S> {
    /// For the records of these operations, which may share the store with others. Asks as
    /// [`ReconcileOptions::background`] says unless set, and looks for more every 30 s.
    ///
    /// A record does not say by which policy it was claimed. Its retention decides how long what
    /// happened is kept: give each operation the policy of its attempts. That is the guard's, an
    /// [`Operation`](crate::operation::Operation::policy)'s, an
    /// [`Inbox`](crate::inbox::Inbox::policy)'s, or a layer's. An operation that is named more than
    /// once goes by the longest of each.
    ///
    /// Without a reconciler in the guard it does nothing.
    pub fn new<O: Into<Arc<str>>>(
        guard: Guard<S>,
        operations: impl IntoIterator<Item = (O, Policy)>,
    ) -> Self {
        Self {
            guard,
            operations: named(operations),
            options: ReconcileOptions::background(),
            every: Duration::from_secs(30),
            at_once: AT_ONCE,
            pending: BTreeMap::new(),
            next_look: Instant::now(),
        }
    }

    /// Takes other operations from now on, as [`new`](Self::new) does. Looks for their lost attempts
    /// in the next turn.
    pub fn set_operations<O: Into<Arc<str>>>(
        &mut self,
        operations: impl IntoIterator<Item = (O, Policy)>,
    ) {
        self.operations = named(operations);
        self.pending.retain(|_, pending| {
            let policy = self.operations.get(&pending.operation);
            policy.is_some_and(|policy| {
                pending.policy = *policy;
                true
            })
        });
        self.next_look = Instant::now();
    }

    /// How often the reconciler is asked about one record, and how long it has for an answer.
    #[must_use]
    pub fn with_options(mut self, options: ReconcileOptions) -> Self {
        self.options = options;
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

    /// Runs for ever. A store that fails is asked again when the next turn is due.
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

    /// Looks for lost attempts, if it is time to, and asks about those that are due, each once at most:
    /// a few at least, then until it is time to look again. The others are first in the next turn.
    ///
    /// # Errors
    /// The store's, where it did not list its records. What was found before is asked about.
    pub async fn turn(&mut self) -> Result<Tally, StoreError> {
        let Some(reconciler) = self.guard.shared.reconciler.clone() else {
            self.next_look = Instant::now() + jittered(self.every);
            return Ok(Tally::default());
        };
        let mut looked = Ok(());
        if Instant::now() >= self.next_look {
            looked = self.look().await;
            self.next_look = Instant::now() + jittered(self.every);
        }
        let resolved = self.ask_due(&reconciler, Some(self.next_look)).await;
        looked?;
        Ok(self.tally(resolved))
    }

    fn tally(&self, resolved: usize) -> Tally {
        let asked_enough = |pending: &&Pending| pending.asked >= self.options.attempts;
        let given_up = self.pending.values().filter(asked_enough).count();
        Tally {
            resolved,
            pending: self.pending.len() - given_up,
            given_up,
        }
    }

    /// Brings what is pending up to what the store shows.
    async fn look(&mut self) -> Result<(), StoreError> {
        let (mut found, next) = self.find(lapsed()).await?;
        if next.is_none() {
            self.pending.clear();
        }
        // What is known and lies beyond is not asked about anew.
        self.pending.append(&mut found);
        Ok(())
    }

    /// What the store shows from there on, by the page until as much waits as may, and where to go
    /// on, unless that is all.
    async fn find(
        &self,
        from: ListQuery,
    ) -> Result<(BTreeMap<IdentityDigest, Pending>, Option<ListQuery>), StoreError> {
        let mut found = BTreeMap::new();
        let mut next = Some(from);
        let mut waiting = self.pending.values().filter(|p| p.due.is_some()).count();
        while let Some(query) = next.take() {
            let page = match self.guard.store().list(&query).await {
                Ok(page) => page,
                Err(error) => {
                    self.guard.tell(&Seen::new(Signal::StoreError));
                    return Err(error);
                }
            };
            for Entry { label, record } in page.entries {
                if let Some(operation) = self.operations.get_key_value(&*label.operation) {
                    let new = Pending::new(operation, &record);
                    let known = self.pending.get(&label.digest);
                    waiting += usize::from(known.is_none());
                    let known = known.filter(|known| known.is_of(&new)).cloned();
                    found.insert(label.digest, known.unwrap_or(new));
                }
            }
            next = match (page.next, query.state) {
                (None, StateKind::InFlight) => Some(ListQuery::new(StateKind::Unknown)),
                (None, _) => None,
                (after, _) => Some(ListQuery { after, ..query }),
            };
            if waiting >= MOST_PENDING {
                break;
            }
        }
        Ok((found, next))
    }

    /// Asks about those that are due; about some at least, then until it is time for something else.
    /// How many were resolved.
    async fn ask_due(&mut self, reconciler: &Arc<dyn Reconciler>, until: Option<Instant>) -> usize {
        let now = Instant::now();
        let due = self.pending.iter();
        let due = due.filter(|(_, pending)| pending.due.is_some_and(|due| due <= now));
        let mut due: Vec<_> = due
            .map(|(digest, pending)| (*digest, pending.clone()))
            .collect();
        // Who waited longest is first: a turn may end before all were asked about.
        due.sort_by_key(|(_, pending)| pending.due);
        let mut due = due.into_iter();
        // All end with this future: nobody is asked whose answer nobody takes.
        let mut asking = JoinSet::new();
        let (mut begun, mut resolved) = (0, 0);
        loop {
            while asking.len() < self.at_once
                && (begun < self.at_once || until.is_none_or(|until| Instant::now() < until))
                && let Some((digest, pending)) = due.next()
            {
                begun += 1;
                let inquiry = self.inquiry(reconciler, digest, &pending);
                asking.spawn(async move {
                    // Who asks in line has the whole key.
                    let reply = match inquiry.guard.is_asking(&digest, inquiry.fence) {
                        true => Ok(Reply::NotAsked),
                        false => catch_panic(inquiry.ask()).await,
                    };
                    (digest, reply.unwrap_or(Reply::NotAsked))
                });
            }
            match asking.join_next().await {
                Some(Ok((digest, reply))) => {
                    resolved += usize::from(reply == Reply::Resolved);
                    self.note(&digest, reply);
                }
                // They catch what panics, and nobody aborts them.
                Some(Err(_)) => {}
                None => return resolved,
            }
        }
    }

    fn inquiry(
        &self,
        reconciler: &Arc<dyn Reconciler>,
        digest: IdentityDigest,
        pending: &Pending,
    ) -> Inquiry<S> {
        Inquiry {
            guard: self.guard.with_policy(pending.policy),
            reconciler: Arc::clone(reconciler),
            options: self.options.clone(),
            digest,
            fence: pending.fence,
            asker: Asker::Background {
                lease_until: pending.lease_until,
                watched: pending.watched,
            },
            asked: pending.asked + 1,
        }
    }

    /// Asks about all that are pending until each is resolved or given up. How many were resolved.
    async fn ask_until_done(&mut self, reconciler: &Arc<dyn Reconciler>) -> usize {
        let mut resolved = 0;
        loop {
            let due = self.pending.values().filter_map(|pending| pending.due);
            let Some(first_due) = due.min() else {
                return resolved;
            };
            // Those that are due soon after are asked about with it.
            sleep_until(first_due + TOGETHER).await;
            resolved += self.ask_due(reconciler, None).await;
            let turns = self.options.attempts;
            let had_its_turns = |pending: &&mut Pending| pending.turns >= turns;
            let left = self.pending.values_mut().filter(had_its_turns);
            left.for_each(|pending| pending.due = None);
        }
    }

    fn note(&mut self, digest: &IdentityDigest, reply: Reply) {
        if matches!(reply, Reply::Resolved | Reply::Moved) {
            self.pending.remove(digest);
        } else if let Some(pending) = self.pending.get_mut(digest) {
            let now = Instant::now();
            pending.asked += u32::from(reply.counts());
            // What is known is not given up because the store cannot be told of it (R14).
            pending.turns += u32::from(reply != Reply::Running { for_long: false });
            let mut pause = jittered(self.options.pause_after(pending.turns));
            if let Reply::Running { for_long } = reply {
                pause = pause.max(pending.lease);
                let watched = now.duration_since(*pending.watched.get_or_insert(now));
                if !for_long {
                    // Its clock may have stepped, so that this was not its lease.
                    pause = pause.max(watched);
                }
            }
            let more = pending.asked < self.options.attempts;
            pending.due = more.then(|| later(now, pause));
        }
    }
}

fn named<O: Into<Arc<str>>>(operations: impl IntoIterator<Item = (O, Policy)>) -> Operations {
    let mut named = Operations::new();
    for (name, policy) in operations {
        let longest = named.entry(name.into()).or_insert(policy);
        *longest = longest.or_longer(policy);
    }
    named
}

/// The records in flight past their lease. Those that are unknown are next: one may become so meanwhile.
fn lapsed() -> ListQuery {
    let mut query = ListQuery::new(StateKind::InFlight);
    query.lapsed = true;
    query
}

impl Pending {
    /// Whether nobody has renewed it, or taken over, since.
    fn is_of(&self, now: &Self) -> bool {
        (self.fence, self.lease_until) == (now.fence, now.lease_until)
    }

    fn new((operation, policy): (&Arc<str>, &Policy), record: &Record) -> Self {
        Self {
            operation: Arc::clone(operation),
            policy: *policy,
            fence: record.token.fence,
            lease_until: record.lease_until,
            lease: policy
                .lease
                .min(record.claimed_at.until(record.lease_until)),
            asked: 0,
            turns: 0,
            watched: None,
            due: Some(Instant::now()),
        }
    }
}

impl<S: Store> Guard<S> {
    /// Asks the reconciler now about every lost attempt at these operations, as often as the
    /// guard's [`ReconcileOptions`] allow for each: for a job that runs now and then, where there is
    /// no [`Background`]. Operations and policies are as [there](Background::new).
    ///
    /// # Errors
    /// The store's, where it did not list its records. Nobody was asked about those; what was found
    /// before may be resolved.
    pub async fn reconcile_all<O: Into<Arc<str>>>(
        &self,
        operations: impl IntoIterator<Item = (O, Policy)>,
    ) -> Result<Tally, StoreError> {
        let Some(reconciler) = &self.shared.reconciler else {
            return Ok(Tally::default());
        };
        let options = self.shared.reconcile_options.clone();
        let mut job = Background::new(self.clone(), operations).with_options(options);
        let mut resolved = 0;
        let mut next = Some(lapsed());
        while let Some(from) = next {
            let found;
            (found, next) = job.find(from).await?;
            job.pending.extend(found);
            resolved += job.ask_until_done(reconciler).await;
        }
        Ok(job.tally(resolved))
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
