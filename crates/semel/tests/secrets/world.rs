//! A simulated deployment: programs with lists of their own, on one store in virtual time, that are slow,
//! lose calls and answers, and die; and what may never be seen of the operations that they run.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::guard::{Asked, Attempt, Begin, Guard, Held, Policy, StepError};
use semel::memory::{Limits, MemoryStore};
use semel::record::{Change, Update};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, ListQuery, Nonce, OnLost, Resolution, Result,
    Retention, Store, Verdict, Waited,
};
use semel::{
    Clock as _, FinishedStep, Identity, IdentityDigest, Outcome, Record, State, StateKind,
    StoreError, StoreErrorKind, StoreExt as _, SystemClock, Timestamp,
};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const LEASE: Duration = Duration::from_secs(1);
const OPERATIONS: usize = 2;

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn millis(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.below(most * 1000))
    }
}

/// What is wrong with the programs, so that the checks can be seen to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The other name is not read after the claim.
    NoLook,
    /// The other name is read before the claim.
    LooksBefore,
    /// A claim takes lost attempts over at once, also where it then steps back.
    TakesOverAtOnce,
    /// A claim that stepped back leaves a mark as if it had given out keys of steps.
    CountsAsRun,
    /// All calls have the same nonce.
    SharesNonces,
    /// No claim reaches the store.
    NoClaims,
}

/// What there was to see.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) runs: AtomicUsize,
    pub(crate) answers: AtomicUsize,
    pub(crate) given_back: AtomicUsize,
    /// Waits for an attempt in flight.
    pub(crate) waits: AtomicUsize,
    /// Callers that went away before they were answered.
    pub(crate) gone: AtomicUsize,
    /// Claims that were made before under their nonce.
    pub(crate) repeated: AtomicUsize,
}

fn count(of: &AtomicUsize) {
    of.fetch_add(1, Ordering::SeqCst);
}

type Memory = MemoryStore<Arc<SystemClock>>;

/// A program's way to the store. It may be slow, lose calls and answers, and end for good.
#[derive(Clone)]
pub(crate) struct Link {
    memory: Arc<Memory>,
    dice: Option<Arc<Mutex<Dice>>>,
    is_dead: Arc<Mutex<bool>>,
    fault: Fault,
    // What the next look finds, for those that do not look when they should.
    looks: Arc<Mutex<HashMap<IdentityDigest, Option<Entry>>>>,
    begun: Arc<Mutex<Vec<Fence>>>,
    calls: Arc<AtomicUsize>,
    counts: Arc<Counts>,
}

impl Link {
    pub(crate) fn counting(calls: Arc<AtomicUsize>) -> Self {
        let clock = Arc::new(SystemClock::new());
        let memory = Arc::new(MemoryStore::with_clock(Limits::default(), clock));
        Self {
            calls,
            ..Self::to(&memory, None, Fault::None)
        }
    }

    pub(crate) fn with_fault(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    fn to(memory: &Arc<Memory>, dice: Option<Dice>, fault: Fault) -> Self {
        Self {
            memory: Arc::clone(memory),
            dice: dice.map(|dice| Arc::new(Mutex::new(dice))),
            is_dead: Arc::default(),
            fault,
            looks: Arc::default(),
            begun: Arc::default(),
            calls: Arc::default(),
            counts: Arc::default(),
        }
    }

    fn die(&self) {
        *self.is_dead.lock().unwrap() = true;
    }

    fn below(&self, sides: u64) -> u64 {
        let dice = self.dice.as_ref();
        dice.map_or(1, |dice| dice.lock().unwrap().below(sides))
    }

    async fn pass(&self) {
        if let Some(dice) = &self.dice {
            let pause = {
                let mut dice = dice.lock().unwrap();
                match dice.below(60) {
                    0 => dice.millis(2_500),
                    1 => {
                        *self.is_dead.lock().unwrap() |= dice.below(6) == 0;
                        Duration::ZERO
                    }
                    _ => dice.millis(4),
                }
            };
            sleep(pause).await;
        }
        if *self.is_dead.lock().unwrap() {
            pending::<()>().await;
        }
    }

    /// One call; a write may be lost, arrive late, arrive once more, or lose its answer.
    async fn call<T: Send + 'static, F>(
        &self,
        is_write: bool,
        call: impl Fn(Arc<Memory>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        count(&self.calls);
        self.pass().await;
        let lost = |kind| Err(StoreError::new(kind, "the network"));
        let call = || call(Arc::clone(&self.memory));
        let arrives_late = || {
            let (late, call) = (Duration::from_millis(self.below(2_000)), call());
            tokio::spawn(async move {
                sleep(late).await;
                call.await.ok();
            });
        };
        match self.below(50) {
            0 => return lost(StoreErrorKind::NotApplied),
            10 if is_write => {
                arrives_late();
                return lost(StoreErrorKind::Unknown);
            }
            20 => {
                call().await.ok();
                return lost(StoreErrorKind::Unknown);
            }
            30 if is_write => arrives_late(),
            _ => {}
        }
        let answer = call().await;
        self.pass().await;
        answer
    }
}

impl Store for Link {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let mut request = request.clone();
        match self.fault {
            Fault::SharesNonces => request.nonce = Nonce::from_bytes([7; 16]),
            Fault::NoClaims => {
                return Err(StoreError::new(StoreErrorKind::NotApplied, "the network"));
            }
            _ => {}
        }
        let other = identity.other().map(|other| *other.digest());
        if let Some(other) = other {
            let seen = match self.fault {
                Fault::NoLook => Some(None),
                Fault::LooksBefore => Some(self.memory.get(&other).await?),
                _ => None,
            };
            if let Some(seen) = seen {
                self.looks.lock().unwrap().insert(other, seen);
            }
            if self.fault == Fault::TakesOverAtOnce {
                request.on_lost = OnLost::Retry;
            }
        }
        let answer = self.call(true, |memory| {
            let (identity, request) = (identity.clone(), request.clone());
            async move { memory.claim(&identity, &request).await }
        });
        let answer = answer.await;
        if matches!(&answer, Ok(Claim::Acquired(acquired)) if acquired.is_repeated) {
            count(&self.counts.repeated);
        }
        if let (Some(other), false) = (other, matches!(answer, Ok(Claim::Acquired(_)))) {
            self.looks.lock().unwrap().remove(&other);
        }
        answer
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let identity = *identity;
        if let Change::Held(token, Update::Abandon) = change
            && !self.begun.lock().unwrap().contains(&token.fence)
        {
            count(&self.counts.given_back);
            if self.fault == Fault::CountsAsRun {
                let mark = FinishedStep::keys_given();
                let _: Fenced = self.memory.keep_step(&identity, token, &mark, 0).await?;
            }
        }
        self.call(true, |memory| {
            let change = change.clone();
            async move { memory.change(&identity, &change).await }
        })
        .await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let identity = *identity;
        let seen = self.looks.lock().unwrap().remove(&identity);
        let found = self.call(false, |memory| async move { memory.get(&identity).await });
        let found = found.await?;
        Ok(seen.unwrap_or(found))
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        count(&self.counts.waits);
        let identity = *identity;
        self.call(false, |memory| async move {
            memory.wait(&identity, fence, timeout).await
        })
        .await
    }

    semel::delegate!(memory: list, purge, probe);

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// What is true of an operation, whatever its records say.
#[derive(Debug, Default)]
struct Seen {
    /// The name that an attempt runs, ran, or was lost under, and when that record was begun.
    taken: Option<(IdentityDigest, Timestamp)>,
    running: Vec<(IdentityDigest, Fence)>,
    /// Until when nothing may run.
    done_until: Option<Instant>,
    lost: bool,
    step_keys: Vec<String>,
}

/// How an operation is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) on_lost: OnLost,
    pub(crate) in_steps: bool,
    pub(crate) retention: Retention,
}

/// The store, the programs on it, and what was seen.
pub(crate) struct World {
    clock: Arc<SystemClock>,
    memory: Arc<Memory>,
    work: Work,
    fault: Fault,
    seed: u64,
    programs: AtomicUsize,
    seen: Mutex<HashMap<usize, Seen>>,
    wrong: Mutex<Vec<String>>,
    pub(crate) counts: Arc<Counts>,
}

impl World {
    pub(crate) fn new(seed: u64, work: Work, fault: Fault) -> Arc<Self> {
        let clock = Arc::new(SystemClock::new());
        Arc::new(Self {
            memory: Arc::new(MemoryStore::with_clock(Limits::default(), clock.clone())),
            clock,
            work,
            fault,
            seed,
            programs: AtomicUsize::new(0),
            seen: Mutex::default(),
            wrong: Mutex::default(),
            counts: Arc::default(),
        })
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    pub(crate) fn found_wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }

    /// Runs programs with these lists until all their callers are done, or dead.
    pub(crate) async fn run(self: &Arc<Self>, lists: &[&[&'static str]]) {
        let (mut callers, mut links) = (Vec::new(), Vec::new());
        for lines in lists {
            let nth = self.programs.fetch_add(1, Ordering::SeqCst) as u64;
            let dice = Dice::new(self.seed.wrapping_mul(1_000).wrapping_add(nth));
            let mut link = Link::to(&self.memory, Some(dice), self.fault);
            link.counts = Arc::clone(&self.counts);
            links.push(link.clone());
            for _ in 0..2 {
                let (world, link) = (Arc::clone(self), link.clone());
                let lines: Vec<_> = lines.to_vec();
                callers.push(tokio::spawn(async move {
                    for _ in 0..4 {
                        world.call(&link, &lines).await;
                    }
                }));
            }
        }
        let ended = async {
            for caller in callers {
                caller.await.unwrap();
            }
        };
        // Who is dead does not end; who takes too long is killed.
        timeout(Duration::from_secs(40), ended).await.ok();
        links.iter().for_each(Link::die);
    }

    /// Ends what is open, as an operator does; then all operations can be done by programs with this list.
    pub(crate) async fn ends(self: &Arc<Self>, lines: &[&'static str]) {
        self.resolve().await;
        for nth in 0..OPERATIONS {
            let link = Link::to(&self.memory, None, Fault::None);
            let guard = self.guard(link, Duration::ZERO);
            let begin = guard.begin(&self.asked(nth, lines, "9 EUR")).await;
            match begin.unwrap() {
                Begin::Acquired(held) => drop(held.release().await),
                Begin::Completed(_) | Begin::Mismatch | Begin::Expired => {}
                stuck => self.wrong(format!("operation {nth} stays {stuck:?}")),
            }
        }
    }

    /// Waits until no record is left from before now, while programs with these lists go on, and resolves
    /// what is left open.
    pub(crate) async fn until_nothing_is_left(self: &Arc<Self>, lists: &[&[&'static str]]) {
        // What programs with the lists before had sent has arrived.
        sleep(3 * LEASE).await;
        let since = self.clock.now();
        loop {
            self.run(lists).await;
            self.resolve().await;
            sleep(Duration::from_secs(1)).await;
            let records = self.records().await;
            let mut created = records.iter().map(|entry| entry.record.created_at);
            if created.all(|created| created > since) {
                return;
            }
        }
    }

    async fn records(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for state in StateKind::ALL {
            let page = self.memory.list(&ListQuery::new(state)).await.unwrap();
            let now = self.clock.now();
            all.extend(
                page.entries
                    .into_iter()
                    .filter(|entry| !entry.record.is_purgeable(now)),
            );
        }
        all
    }

    /// Nothing lasts: leases lapse, and an operator finds out of what is open whether it ran.
    async fn resolve(&self) {
        sleep(3 * LEASE).await;
        for Entry { label, record } in self.records().await {
            if !matches!(record.state, State::InFlight | State::Unknown) {
                continue;
            }
            let taken = Some((label.digest, record.created_at));
            let mut did_run = false;
            for seen in self.seen.lock().unwrap().values_mut() {
                if seen.taken == taken {
                    (did_run, seen.lost) = (true, false);
                }
            }
            let verdict = match did_run {
                true => Verdict::Happened {
                    outcome: Outcome::success(b"resolved"),
                    retention: self.work.retention,
                },
                false => Verdict::DidNotHappen,
            };
            let resolution = Resolution {
                verdict,
                by: "an operator".into(),
                reason: "it is so".into(),
                fence: record.token.fence,
                nonce: Nonce::random().unwrap(),
            };
            let done = self.memory.resolve(&label.digest, &resolution).await;
            assert_eq!(done.unwrap(), Fenced::Applied);
        }
    }

    fn guard(&self, link: Link, wait: Duration) -> Guard<Link> {
        let policy = Policy::default()
            .with_lease(LEASE)
            .with_wait(wait)
            .with_on_lost(self.work.on_lost)
            .with_retention(self.work.retention);
        Guard::new(link, policy)
    }

    fn asked(&self, nth: usize, lines: &[&str], body: &str) -> Asked {
        let asked = super::asked(&format!("operation-{nth}"), lines, body);
        match self.work.in_steps {
            true => asked.in_steps(),
            false => asked,
        }
    }

    async fn call(self: &Arc<Self>, link: &Link, lines: &[&str]) {
        let nth = usize::try_from(link.below(OPERATIONS as u64)).unwrap();
        let body = if link.below(8) == 0 { "8 EUR" } else { "9 EUR" };
        sleep(Duration::from_millis(link.below(30) * link.below(30))).await;
        let wait = match link.below(3) {
            0 => Duration::from_millis(link.below(3_000)),
            _ => Duration::ZERO,
        };
        let guard = self.guard(link.clone(), wait);
        let asked = self.asked(nth, lines, body);
        // A caller may go away at any moment.
        let patience = match link.below(8) {
            0 => Duration::from_micros(link.below(30_000)),
            _ => Duration::MAX,
        };
        match timeout(patience, guard.begin(&asked)).await {
            Ok(Ok(Begin::Acquired(held))) => self.attempt(link, nth, body, held).await,
            Ok(Ok(Begin::Completed(outcome))) => {
                let told = outcome.body().unwrap();
                if !told.starts_with(body.as_bytes()) && &told[..] != b"resolved" {
                    self.wrong(format!("{body} was answered {told:?}"));
                }
                count(&self.counts.answers);
            }
            Ok(_) => {}
            Err(_) => count(&self.counts.gone),
        }
    }

    /// An attempt begins: nothing may stand in its way that is known to have run.
    async fn begins(&self, nth: usize, id: IdentityDigest, fence: Fence) {
        count(&self.counts.runs);
        let record = async |id| {
            self.memory
                .get(&id)
                .await
                .unwrap()
                .map(|entry| entry.record)
        };
        let taken = self
            .seen
            .lock()
            .unwrap()
            .get(&nth)
            .and_then(|seen| seen.taken);
        let beside = match taken {
            Some((name, since)) if name != id => record(name)
                .await
                .filter(|record| record.created_at == since),
            _ => None,
        };
        // A claim under the second secret found it released, and runs nothing but further steps.
        let is_nothing = |record: &Record| match record.state {
            State::Released => record.progress.is_bare(),
            State::InFlight | State::Unknown => {
                record.progress.is_bare() && record.note.get("semel.second-secret").is_some()
            }
            State::Completed(_) => false,
        };
        let stands = beside.filter(|record| !is_nothing(record));
        let since = record(id)
            .await
            .map_or(Timestamp::MAX, |record| record.created_at);
        let mut all = self.seen.lock().unwrap();
        let seen = all.entry(nth).or_default();
        let mut wrong = Vec::new();
        if let Some(record) = stands {
            wrong.push(format!("beside a name that is {:?}", record.state));
        }
        if seen.done_until.is_some_and(|until| Instant::now() < until) {
            wrong.push("after it was done".to_owned());
        }
        if seen.lost && self.work.on_lost == OnLost::Hold {
            wrong.push("after it was lost".to_owned());
        }
        seen.taken = Some((id, since));
        seen.running.push((id, fence));
        drop(all);
        for what in wrong {
            self.wrong(format!("operation {nth} runs {what}"));
        }
    }

    /// No other attempt runs that holds its lease.
    async fn runs_alone(&self, nth: usize, id: IdentityDigest, fence: Fence) {
        let running = self.seen.lock().unwrap()[&nth].running.clone();
        let mut holding = 0;
        for (id, fence) in running {
            let entry = self.memory.get(&id).await.unwrap();
            let now = self.clock.now();
            holding += usize::from(entry.is_some_and(|Entry { record, .. }| {
                let is_held = matches!(record.state, State::InFlight) && !record.is_lapsed(now);
                is_held && record.token.fence == fence
            }));
        }
        if holding > 1 {
            self.wrong(format!(
                "operation {nth} runs {holding} times at once: {id} {fence}"
            ));
        }
    }

    async fn attempt(self: &Arc<Self>, link: &Link, nth: usize, body: &str, mut held: Held<Link>) {
        let info = held.info();
        // A claim that took as long to be answered as it lasts.
        if !info.still_held() {
            return held.let_lapse();
        }
        link.begun.lock().unwrap().push(info.fence);
        self.begins(nth, info.id, info.fence).await;
        self.runs_alone(nth, info.id, info.fence).await;
        if self.work.in_steps {
            let mut attempt = held.attempt();
            self.step(link, nth, &mut attempt).await.ok();
        }
        let pause = match link.below(6) {
            0 => link.below(3_000),
            _ => link.below(12),
        };
        sleep(Duration::from_millis(pause)).await;
        self.runs_alone(nth, info.id, info.fence).await;
        let seen =
            |change: &dyn Fn(&mut Seen)| change(self.seen.lock().unwrap().get_mut(&nth).unwrap());
        let ended = || seen(&|seen| seen.running.retain(|running| running.1 != info.fence));
        match link.below(8) {
            0 => {
                // Its process ends.
                seen(&|seen| seen.lost = true);
                ended();
                link.die();
                pending::<()>().await;
            }
            1 => {
                seen(&|seen| seen.lost = true);
                held.mark_unknown().await.ok();
            }
            2..=4 => drop(held.release().await),
            _ => {
                let until =
                    Instant::now() + self.work.retention.replay + self.work.retention.tombstone;
                let answer = Outcome::success(format!("{body} by {}", info.fence).as_bytes());
                if let Ok(semel::guard::Settled::Applied) = held.complete(&answer).await {
                    seen(&|seen| (seen.done_until, seen.lost) = (Some(until), false));
                }
            }
        }
        ended();
    }

    /// Its effect is at a service that knows keys: however often it is asked for, it happens once.
    async fn step(
        self: &Arc<Self>,
        link: &Link,
        nth: usize,
        attempt: &mut Attempt<Link>,
    ) -> Result<String, StepError<&'static str>> {
        let (world, fails) = (Arc::clone(self), link.below(3) == 0);
        let charge = async move |key: semel::guard::StepKey| {
            let key = key.to_string();
            {
                let mut all = world.seen.lock().unwrap();
                let keys = &mut all.entry(nth).or_default().step_keys;
                if !keys.contains(&key) {
                    keys.push(key);
                }
                if keys.len() > 1 {
                    let what = format!("operation {nth} charges under {keys:?}");
                    world.wrong.lock().unwrap().push(what);
                }
            }
            match fails {
                true => Err("the bank is away"),
                false => Ok("ch_1".to_owned()),
            }
        };
        attempt.step("charge", charge).await
    }
}
