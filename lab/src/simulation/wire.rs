//! A store behind a network that the seed scripts: what is sent is late, lost, sent twice; answers do
//! not come; what was given up arrives for all that. The store itself is right.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::memory::{Limits, MemoryStore};
use semel::record::{Change, Update};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Nonce, OnLost, Page, Probe, Purged,
    Result, Token, Waited,
};
use semel::{Identity, IdentityDigest, Outcome, Store, StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep};

use super::Bug;
use super::world::{EPOCH, Process, VirtualClock, World, millis};

/// What all processes share: the store, and what the network does.
pub(super) struct Server {
    world: World,
    memory: MemoryStore<VirtualClock>,
    weather: Weather,
    /// From then on everything arrives.
    calm_from: Instant,
    /// Nothing arrives meanwhile.
    outage: Mutex<Option<Range<Instant>>>,
    bug: Option<Bug>,
    seen: Mutex<Observed>,
}

/// What the server has seen, and what a planted bug remembers.
#[derive(Default)]
struct Observed {
    fences: Vec<(IdentityDigest, Fence, Nonce)>,
    untold: Vec<IdentityDigest>,
}

/// By how much a planted bug puts fences back.
const BACK: u64 = 3_600_000_000_000;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Refused,
    Lost,
    AnswerLost,
    Late,
    Doubled,
    Slow,
    Arrives,
}

const FAULTS: [Fate; 6] = [
    Fate::Refused,
    Fate::Lost,
    Fate::AnswerLost,
    Fate::Late,
    Fate::Doubled,
    Fate::Slow,
];

/// How many of a thousand calls meet which fault.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Weather {
    odds: [u32; FAULTS.len()],
    /// The latest that anything arrives.
    latest: Duration,
}

impl Weather {
    /// Of a seed: some faults often, some never.
    pub(super) fn of(world: &World, latest: Duration) -> Self {
        Self {
            odds: FAULTS.map(|_| world.pick(&[0, 0, 20, 60, 150])),
            latest,
        }
    }

    pub(super) fn without_copies(mut self) -> Self {
        for (odds, fate) in self.odds.iter_mut().zip(FAULTS) {
            if fate == Fate::Doubled {
                *odds = 0;
            }
        }
        self
    }
}

impl Server {
    pub(super) fn new(
        world: &World,
        weather: Weather,
        calm_from: Instant,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let limits = Limits {
            records: 1000,
            bytes: 1 << 24,
        };
        Arc::new(Self {
            world: world.clone(),
            memory: MemoryStore::with_clock(limits, VirtualClock(world.begun())),
            weather,
            calm_from,
            outage: Mutex::default(),
            bug,
            seen: Mutex::default(),
        })
    }

    /// One that nothing happens to; or its answers are late and lost, and one server in four is away for a while.
    pub(super) fn of(
        world: &World,
        is_calm: bool,
        lease: Duration,
        faults: Duration,
        bug: Option<Bug>,
    ) -> Arc<Self> {
        let calm_from = Instant::now() + faults;
        if is_calm {
            return Self::new(world, Weather::default(), calm_from, bug);
        }
        let server = Self::new(world, Weather::of(world, lease * 3), calm_from, bug);
        if world.one_in(4) {
            world.saw("outage");
            server.goes_away(world.millis(0..3000), faults / 3);
        }
        server
    }

    /// What is kept, read without a network.
    pub(super) async fn record(&self, digest: &IdentityDigest) -> Option<semel::Record> {
        let entry = self.memory.get(digest).await.ok().flatten();
        entry.map(|entry| entry.record)
    }

    /// For so long, and after so long, nothing reaches it.
    pub(super) fn goes_away(&self, after: Duration, length: Duration) {
        let from = Instant::now() + after;
        *self.outage.lock() = Some(from..from + length);
    }

    fn fate(&self) -> Fate {
        let now = Instant::now();
        let outage = self.outage.lock().clone();
        if outage.is_some_and(|outage| outage.contains(&now)) {
            return Fate::Refused;
        }
        if now >= self.calm_from {
            return Fate::Arrives;
        }
        let mut roll = self.world.draw(|chance| chance.u32(..1000));
        for (odds, fate) in self.weather.odds.into_iter().zip(FAULTS) {
            if roll < odds {
                return fate;
            }
            roll -= odds;
        }
        Fate::Arrives
    }

    /// How long something is on its way.
    fn way(&self) -> Duration {
        self.world.millis(0..4)
    }

    fn long_way(&self) -> Duration {
        self.world.millis(4..millis(self.weather.latest).max(5))
    }

    /// How long a client waits for an answer that does not come.
    fn patience(&self) -> Duration {
        self.world.millis(20..3000)
    }

    /// A claim that was made: its fence is above all that went before it.
    fn claimed(&self, digest: &IdentityDigest, claim: &Claim) {
        let Claim::Acquired(acquired) = claim else {
            return;
        };
        let Token { fence, nonce } = acquired.token;
        let mut seen = self.seen.lock();
        match seen.fences.iter_mut().find(|(known, ..)| known == digest) {
            None => seen.fences.push((*digest, fence, nonce)),
            // Its own claim, sent again.
            Some((_, last, by)) if *by == nonce && *last == fence => {}
            Some((_, last, by)) => {
                if fence <= *last {
                    self.world
                        .wrong(format!("a fence went back: {fence} after {last}"));
                }
                (*last, *by) = (fence, nonce);
            }
        }
    }

    async fn claim(&self, identity: &Identity, mut request: ClaimRequest) -> Result<Claim> {
        if self.bug == Some(Bug::HoldReruns) {
            request.on_lost = OnLost::Retry;
        }
        let mut claim = self.memory.claim(identity, &request).await;
        if self.bug == Some(Bug::FenceRepeats)
            && let Ok(Claim::Acquired(acquired)) = &mut claim
            && acquired.attempt > 1
        {
            acquired.token.fence.0 -= BACK;
        }
        if self.bug == Some(Bug::ReplayCut)
            && let Ok(Claim::Completed { outcome, .. }) = &mut claim
        {
            let body = outcome.body().unwrap_or_default();
            let rest = body.get(1..).unwrap_or_default();
            let mut builder = Outcome::builder(outcome.kind()).code(outcome.code());
            for (name, value) in outcome.fields() {
                builder = builder.field(name, value);
            }
            *outcome = builder.body(rest);
        }
        if let Ok(claim) = &claim {
            self.claimed(identity.digest(), claim);
        }
        claim
    }

    /// The token that the store gave.
    fn token(&self, token: &Token) -> Token {
        let mut token = *token;
        if self.bug == Some(Bug::FenceRepeats) && token.fence.0 < EPOCH {
            token.fence.0 += BACK;
        }
        token
    }

    async fn change(&self, digest: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let change = match change {
            Change::Held(_, completion @ Update::Complete(..))
                if self.bug == Some(Bug::CompletesUnfenced)
                    && let Some(record) = self.record(digest).await =>
            {
                Change::Held(record.token, completion.clone())
            }
            change => change.clone(),
        };
        self.memory.change(digest, &change).await
    }
}

/// The store as one process sees it.
#[derive(Clone)]
pub(super) struct Wire {
    server: Arc<Server>,
    process: Arc<Process>,
}

impl Wire {
    pub(super) fn new(server: &Arc<Server>, process: &Arc<Process>) -> Self {
        Self {
            server: Arc::clone(server),
            process: Arc::clone(process),
        }
    }

    async fn send<T, F>(
        &self,
        what: &'static str,
        step: impl Fn(Arc<Server>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Debug + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (server, process) = (&self.server, &self.process);
        let (world, number) = (&server.world, process.number);
        process.gate().await;
        world.step().await;
        // What was sent arrives whatever becomes of who sent it.
        let arrives = |way: Duration, step: F| {
            let world = world.clone();
            tokio::spawn(async move {
                sleep(way).await;
                let answer = step.await;
                world.say(|| format!("  {what} of {number}: {answer:?}"));
                answer
            })
        };
        let first = step(Arc::clone(server));
        let fate = server.fate();
        let answer = match fate {
            Fate::Refused => {
                world.saw("refused");
                sleep(server.way()).await;
                Err(StoreError::new(StoreErrorKind::NotApplied, "refused"))
            }
            Fate::Arrives | Fate::Slow => {
                let way = match fate {
                    Fate::Slow => server.long_way(),
                    _ => server.way(),
                };
                let answer = arrives(way, first).await;
                sleep(server.way()).await;
                answer.unwrap_or_else(|_| Err(unanswered()))
            }
            Fate::Doubled => {
                world.saw("sent twice");
                let answer = arrives(server.way(), first).await;
                arrives(server.long_way(), step(Arc::clone(server)));
                sleep(server.way()).await;
                answer.unwrap_or_else(|_| Err(unanswered()))
            }
            Fate::Lost => {
                world.saw("lost");
                sleep(server.patience()).await;
                Err(unanswered())
            }
            Fate::AnswerLost => {
                world.saw("answer lost");
                arrives(server.way(), first);
                sleep(server.patience()).await;
                Err(unanswered())
            }
            Fate::Late => {
                world.saw("late");
                let patience = server.patience();
                arrives(patience + server.long_way(), first);
                sleep(patience).await;
                Err(unanswered())
            }
        };
        process.gate().await;
        world.say(|| format!("{what} by {number} -> {answer:?}"));
        answer
    }
}

fn unanswered() -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, "no answer")
}

const fn name(change: &Change) -> &'static str {
    match change {
        Change::Held(_, Update::Renew(_)) => "renew",
        Change::Held(_, Update::Complete(..)) => "complete",
        Change::Held(_, Update::KeepStep { .. }) => "keep_step",
        Change::Held(_, Update::Abandon) => "abandon",
        Change::Held(_, Update::MarkUnknown) => "mark_unknown",
        Change::Resolve(_) => "resolve",
    }
}

impl Store for Wire {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let (identity, request) = (identity.clone(), request.clone());
        self.send("claim", move |server| {
            let (identity, request) = (identity.clone(), request.clone());
            async move { server.claim(&identity, request).await }
        })
        .await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let (digest, bug) = (*identity, self.server.bug);
        let own = match change {
            Change::Held(_, Update::Renew(_)) if bug == Some(Bug::RenewalsStop) => {
                return Ok(Fenced::Applied);
            }
            Change::Held(token, Update::MarkUnknown) if bug == Some(Bug::ReleasesUnknown) => {
                Change::abandon(&self.server.token(token))
            }
            Change::Held(token, update) => Change::Held(self.server.token(token), update.clone()),
            resolve => resolve.clone(),
        };
        let completes = matches!(own, Change::Held(_, Update::Complete(..)));
        let forgets = completes && bug == Some(Bug::ForgetsSettlement);
        if forgets && self.server.seen.lock().untold.contains(&digest) {
            return Ok(Fenced::Applied);
        }
        let sent = self.send(name(change), move |server| {
            let own = own.clone();
            async move { server.change(&digest, &own).await }
        });
        if completes && bug == Some(Bug::EarlyAcknowledgement) {
            // It goes on its way, and nobody waits for what becomes of it.
            let _ = tokio::time::timeout(Duration::ZERO, sent).await;
            return Ok(Fenced::Applied);
        }
        let answer = sent.await;
        if completes && answer.is_err() {
            self.server.seen.lock().untold.push(digest);
        }
        answer
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let digest = *identity;
        self.send("get", move |server| async move {
            server.memory.get(&digest).await
        })
        .await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let query = query.clone();
        self.send("list", move |server| {
            let query = query.clone();
            async move { server.memory.list(&query).await }
        })
        .await
    }

    async fn purge(&self, limit: usize) -> Result<Purged> {
        self.send("purge", move |server| async move {
            server.memory.purge(limit).await
        })
        .await
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        self.process.gate().await;
        self.server.world.step().await;
        let waited = match self.server.fate() {
            Fate::Refused => Err(StoreError::new(StoreErrorKind::NotApplied, "refused")),
            Fate::Lost | Fate::AnswerLost => {
                sleep(self.server.patience()).await;
                Err(unanswered())
            }
            _ => self.server.memory.wait(identity, fence, timeout).await,
        };
        self.process.gate().await;
        waited
    }

    async fn probe(&self) -> Result<Probe> {
        self.server.memory.probe().await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
