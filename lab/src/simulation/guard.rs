//! Guards, inboxes, reconcilers and purgers in several processes over one store. Processes die, stand
//! still past their leases and drain; their clients ask again, or go away in the middle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use semel::guard::{
    Answered, Asked, AttemptInfo, Background, Begin, Case, Done, Finding, Guard, OnError, Policy,
    Reconciler, RunError, Settlement, catch_panic,
};
use semel::inbox::{DeadLetter, Event, Inbox, InboxError, Reason, Receipt};
use semel::purge::Purger;
use semel::store::{OnLost, Retention};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, Outcome, OutcomeKind, Scope, State, Value as _,
};
use tokio::time::{Instant, sleep, timeout};

use super::Bug;
use super::fleet::{self, Fleet, PATIENCE, Runs};
use super::wire::{Server, Wire};
use super::world::{EPOCH, Process, World, millis};

const OPERATION: &str = "pay";

/// What is done once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Intent {
    Call(u32),
    Event(u32),
}

/// How the work of an attempt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    Works,
    /// No effect, and it may run again.
    Busy,
    /// No effect, for good.
    Declined,
    /// The effect is sent, and no answer comes.
    TimesOut,
    PanicsBefore,
    PanicsAfter,
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("busy")]
    Busy,
    #[error("declined")]
    Declined,
    #[error("timed out")]
    TimedOut,
}

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    /// The answer, or the failure that is kept.
    Kept(String),
    Unknown,
    /// It may be unknown, and not kept.
    SetAside,
    /// Ask again.
    Later(Duration),
}

/// What a seed is about.
#[derive(Debug, Clone, Copy)]
struct Setup {
    on_lost: OnLost,
    lease: Duration,
    retention: Duration,
    wait: Duration,
    /// No faults at all: then every call succeeds.
    is_calm: bool,
    sets_aside: bool,
    faults: Duration,
}

/// No run lasts so long: what is kept for it is kept.
const LONG: Duration = Duration::from_hours(48);

impl Setup {
    fn of(world: &World) -> Self {
        let lease = world.pick(&[300, 1000, 3000]);
        let is_calm = world.one_in(8);
        let is_short = !is_calm && world.one_in(5);
        Self {
            on_lost: world.pick(&[OnLost::Hold, OnLost::Retry, OnLost::Reconcile]),
            lease: Duration::from_millis(lease),
            retention: match is_short {
                true => Duration::from_millis(lease) * 3,
                false => LONG,
            },
            wait: match world.one_in(2) {
                true => Duration::ZERO,
                false => world.millis(0..3 * lease),
            },
            is_calm,
            sets_aside: world.one_in(2),
            faults: world.millis(lease * 4..lease * 16),
        }
    }

    fn policy(&self) -> Policy {
        Policy::default()
            .with_lease(self.lease)
            .with_retention(Retention::new(self.retention))
            .with_on_lost(self.on_lost)
            .with_wait(self.wait)
    }

    /// Whether attempts of one intent have one effect between them, until its retention ends.
    fn is_once(&self) -> bool {
        self.on_lost != OnLost::Retry
    }

    fn is_short(&self) -> bool {
        self.retention != LONG
    }
}

/// The service downstream. It has taken effects, and refuses what a later attempt or a reconciler
/// closed.
struct Shop {
    world: World,
    setup: Setup,
    bug: Option<Bug>,
    books: Mutex<BTreeMap<Intent, Book>>,
}

#[derive(Default)]
struct Book {
    digest: Option<IdentityDigest>,
    /// Fences up to this one are refused.
    closed: u64,
    /// The fence of each effect, and when it arrived by the store's clock.
    effects: Vec<(u64, u64)>,
    /// What the work of an attempt came to: in a process that must tell the store.
    ends: Vec<(u64, Arc<Process>, String)>,
    told: Vec<String>,
}

impl Shop {
    /// Whether the effect is taken.
    fn take(&self, intent: Intent, fence: u64) -> bool {
        let mut books = self.books.lock();
        let book = books.entry(intent).or_default();
        // Who holds passes no fence on: the protocol alone keeps a second attempt from running.
        let is_fenced = self.setup.on_lost != OnLost::Hold;
        let highest = book.effects.iter().map(|(fence, _)| *fence).max();
        if is_fenced && (fence <= book.closed || highest > Some(fence)) {
            self.world.saw("stale effect refused");
            self.world
                .say(|| format!("effect of {intent:?} under {fence} refused"));
            return false;
        }
        let now = EPOCH + micros(self.world.now());
        let retention = u64::try_from(self.setup.retention.as_micros()).unwrap_or(u64::MAX);
        self.world.saw("effect");
        self.world
            .say(|| format!("effect of {intent:?} under {fence}"));
        for (before, at) in &book.effects {
            // A fence is not below the instant of its claim.
            let may_be = self.setup.is_once() && fence < at.saturating_add(retention);
            if may_be || *before == fence {
                let what = format!("two effects of {intent:?}: under {before} and {fence}");
                self.world.wrong(what);
            }
        }
        book.effects.push((fence, now));
        true
    }

    /// An event that failed too often.
    fn set_aside(&self, letter: &DeadLetter) {
        self.world.saw("dead letter");
        let number = letter.event.source().parse().unwrap_or_default();
        let books = self.books.lock();
        let book = books.get(&Intent::Event(number));
        let has_effect = book.is_some_and(|book| !book.effects.is_empty());
        let is_once = self.setup.is_once() && !self.setup.is_short();
        if letter.reason == Reason::Failed && is_once && has_effect {
            self.world
                .wrong("an event was set aside as failed, and it had its effect");
        }
    }

    /// What became of an attempt. It has no effect from now on.
    fn look_up(&self, intent: Intent, fence: u64) -> Option<u64> {
        let mut books = self.books.lock();
        let book = books.entry(intent).or_default();
        if self.bug != Some(Bug::LeavesOpen) {
            book.closed = book.closed.max(fence);
        }
        let since = |(_, at): &&(u64, u64)| {
            !self.setup.is_short() || at + 2 * micros(self.setup.retention) > fence
        };
        book.effects
            .iter()
            .filter(since)
            .map(|(fence, _)| *fence)
            .next_back()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn paid(fence: u64) -> String {
    format!("paid under {fence}")
}

struct Books {
    shop: Arc<Shop>,
    process: Arc<Process>,
}

impl Reconciler for Books {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async move {
            let world = &self.shop.world;
            self.process.gate().await;
            let rest = world.millis(0..20);
            self.process.rest(rest).await;
            world.saw("reconciled");
            let Some(intent) = intent_of(case) else {
                world.wrong("a reconciler is asked about what nobody asked for");
                return Ok(Finding::StillUnknown.into());
            };
            let found = self.shop.look_up(intent, case.fence.0);
            world.say(|| format!("books on {intent:?} under {}: {found:?}", case.fence));
            Ok(match (found, intent) {
                (Some(fence), Intent::Call(_)) => {
                    Finding::Happened(paid(fence).to_outcome()).into()
                }
                (Some(_), Intent::Event(_)) => Finding::Happened(Outcome::void()).into(),
                (None, _) => Finding::DidNotHappen.into(),
            })
        })
    }
}

/// The scope says which one it is, also where the work did not begin.
fn intent_of(case: &Case<'_>) -> Option<Intent> {
    let number = case.scope.segments().last()?.parse().ok()?;
    Some(match case.operation {
        OPERATION => Intent::Call(number),
        _ => Intent::Event(number),
    })
}

fn identity(number: u32) -> Option<Identity> {
    let key = Key::new("a-key-of-some-length").ok()?;
    Some(Identity::new(
        Scope::new(["account", &number.to_string()]),
        OPERATION,
        key,
    ))
}

/// What runs in a process.
#[derive(Clone)]
struct Running {
    guard: Guard<Wire>,
    inbox: Inbox<Wire>,
}

impl Runs for Running {
    fn guard(&self) -> &Guard<Wire> {
        &self.guard
    }
}

type Node = fleet::Node<Running>;

struct Simulation {
    world: World,
    setup: Setup,
    server: Arc<Server>,
    shop: Arc<Shop>,
    fleet: Fleet<Running>,
    calm_from: Instant,
}

/// Runs a seed.
pub(super) async fn run(world: &World, bug: Option<Bug>) {
    let setup = Setup::of(world);
    world.say(|| format!("{setup:?}"));
    let calm_from = Instant::now() + setup.faults;
    let server = Server::of(world, setup.is_calm, setup.lease, setup.faults, bug);
    let shop = Arc::new(Shop {
        world: world.clone(),
        setup,
        bug,
        books: Mutex::default(),
    });
    let (at, to) = (Arc::clone(&server), Arc::clone(&shop));
    let fleet = Fleet::new(world, setup.lease, calm_from, move |process| {
        start(&at, &to, process)
    });
    let simulation = Arc::new(Simulation {
        world: world.clone(),
        setup,
        server,
        shop,
        fleet,
        calm_from,
    });
    simulation.run().await;
}

impl Simulation {
    async fn run(self: Arc<Self>) {
        let world = &self.world;
        let processes = world.draw(|chance| chance.u32(1..=3));
        for _ in 0..processes {
            self.fleet.start();
        }
        let intents: Vec<Intent> = (0..world.draw(|chance| chance.u32(1..=3)))
            .map(|number| match world.one_in(3) {
                true => Intent::Event(number),
                false => Intent::Call(number),
            })
            .collect();
        let clients = world.draw(|chance| chance.u32(2..=7));
        let clients = (0..clients).map(|_| {
            let client = Arc::clone(&self).client(world.pick(&intents));
            tokio::spawn(client)
        });
        let (clients, in_trouble) = (clients.collect(), !self.setup.is_calm);
        self.fleet
            .until_calm(self.calm_from, in_trouble, clients)
            .await;
        self.settle(&intents).await;
        self.judge(&intents).await;
    }

    fn script(&self, intent: Intent) -> Script {
        use Script::{Busy, Declined, PanicsAfter, PanicsBefore, TimesOut, Works};
        match intent {
            _ if self.setup.is_calm || Instant::now() >= self.calm_from => Works,
            // An event whose work fails is given back: it fails only where it did nothing.
            Intent::Event(_) => self.world.pick(&[Works, Works, Busy, PanicsBefore]),
            Intent::Call(_) => self.world.pick(&[
                Works,
                Works,
                Works,
                Works,
                Works,
                Busy,
                Declined,
                TimesOut,
                PanicsBefore,
                PanicsAfter,
            ]),
        }
    }

    async fn client(self: Arc<Self>, intent: Intent) {
        let (world, lease) = (&self.world, millis(self.setup.lease));
        sleep(world.millis(0..lease * 4)).await;
        for _ in 0..world.draw(|chance| chance.u32(1..=5)) {
            let Some(node) = self.fleet.any() else {
                sleep(self.setup.lease).await;
                continue;
            };
            let asked = self.ask(&node, intent);
            let told = self.fleet.told(&node, !self.setup.is_calm, asked).await;
            world.say(|| format!("client of {intent:?} at {}: {told:?}", node.process.number));
            match told {
                Some(Told::Kept(_) | Told::Unknown | Told::SetAside) if world.one_in(2) => return,
                Some(Told::Later(pause)) => sleep(pause).await,
                _ => sleep(world.millis(0..lease)).await,
            }
        }
    }

    /// Asks a process once.
    async fn ask(&self, node: &Node, intent: Intent) -> Told {
        let told = match intent {
            Intent::Call(number) if self.world.one_in(3) => self.begin(node, number).await,
            Intent::Call(number) => self.call(node, number).await,
            Intent::Event(number) => self.event(node, number).await,
        };
        if self.setup.is_calm && told == Told::Unknown {
            self.world
                .wrong("an outcome is unknown, and nothing went wrong");
        }
        if let Told::Kept(value) = &told {
            self.world.saw("answer");
            let mut books = self.shop.books.lock();
            let told = &mut books.entry(intent).or_default().told;
            if !told.contains(value) {
                told.push(value.clone());
            }
        }
        told
    }

    fn asked(&self, number: u32) -> Option<Asked> {
        let asked = Asked::new(identity(number)?, Fingerprint::of(b"7 EUR"));
        Some(asked.classify(|error: &WorkError| match error {
            WorkError::Busy => OnError::Release,
            WorkError::Declined => OnError::Keep,
            WorkError::TimedOut => OnError::Unknown,
        }))
    }

    /// By [`Guard::run`].
    async fn call(&self, node: &Node, number: u32) -> Told {
        let later = Told::Later(self.setup.lease / 2);
        let Some(asked) = self.asked(number) else {
            return later;
        };
        let work = self.work(node, Intent::Call(number));
        let running = node
            .runs
            .guard
            .run(asked, |attempt| work.run((*attempt).clone()));
        match catch_panic(running).await {
            Ok(Ok(Done::Fresh(value) | Done::Replayed(value))) => Told::Kept(value),
            Ok(Err(RunError::Failed(failed))) if failed.error().is_none() => {
                Told::Kept(failed.to_string())
            }
            Ok(Err(RunError::Unknown)) => Told::Unknown,
            Ok(Err(RunError::InFlight { retry_after })) => Told::Later(retry_after),
            Ok(_) | Err(_) => later,
        }
    }

    /// By [`Guard::begin`]: dropped wherever the client goes away.
    async fn begin(&self, node: &Node, number: u32) -> Told {
        let later = Told::Later(self.setup.lease / 2);
        let Some(asked) = self.asked(number) else {
            return later;
        };
        let mut held = match node.runs.guard.begin(&asked).await {
            Ok(Begin::Acquired(held)) => held,
            Ok(Begin::Completed(outcome)) => return Told::Kept(text(&outcome)),
            Ok(Begin::Unknown) => return Told::Unknown,
            Ok(Begin::InFlight { retry_after }) => return Told::Later(retry_after),
            Ok(_) | Err(_) => return later,
        };
        let attempt = held.info();
        let work = self.work(node, Intent::Call(number));
        let (settlement, told) = match held.run(work.run(attempt)).await {
            Ok(Ok(value)) => (
                Settlement::Complete(value.to_outcome(), None),
                Told::Kept(value),
            ),
            Ok(Err(WorkError::Declined)) => {
                let outcome = Outcome::failure(WorkError::Declined.to_string().as_bytes());
                (Settlement::Complete(outcome, None), later.clone())
            }
            Ok(Err(WorkError::Busy)) => (Settlement::Release, later.clone()),
            Ok(Err(WorkError::TimedOut)) | Err(_) => (Settlement::Unknown, later.clone()),
        };
        match held.settle(settlement).await {
            Ok(semel::guard::Settled::Applied) => told,
            Ok(_) | Err(_) => later,
        }
    }

    async fn event(&self, node: &Node, number: u32) -> Told {
        let event = Event::new(number.to_string(), "placed", "7 EUR");
        let work = self.work(node, Intent::Event(number));
        let received = node.runs.inbox.receive(&event, |attempt| async move {
            work.run(attempt).await.map(drop)
        });
        match received.await {
            Ok(Receipt::Handled | Receipt::Duplicate) => Told::Kept("handled".into()),
            Ok(Receipt::DeadLettered) => Told::SetAside,
            Err(InboxError::Unknown) => Told::Unknown,
            Err(error) => Told::Later(error.retry_after()),
        }
    }

    fn work(&self, node: &Node, intent: Intent) -> Work {
        let lease = millis(self.setup.lease);
        let long = || self.world.work(3, lease * 3, lease / 4);
        Work {
            shop: Arc::clone(&self.shop),
            process: Arc::clone(&node.process),
            intent,
            script: self.script(intent),
            before: long(),
            after: long(),
        }
    }

    /// Every intent is asked for until it has an end, in a process without faults.
    async fn settle(&self, intents: &[Intent]) {
        let node = &self.fleet.start();
        for intent in intents {
            let ending = async {
                loop {
                    match self.ask(node, *intent).await {
                        Told::Later(pause) => sleep(pause).await,
                        // Nobody says what became of it.
                        Told::Unknown if self.setup.on_lost == OnLost::Hold => return,
                        Told::Unknown => sleep(self.setup.lease).await,
                        Told::Kept(_) | Told::SetAside => return,
                    }
                }
            };
            if timeout(PATIENCE, ending).await.is_err() {
                self.world.wrong(format!(
                    "{intent:?} has no end five minutes after the last fault"
                ));
            }
        }
        self.fleet.settled().await;
    }

    async fn judge(&self, intents: &[Intent]) {
        let setup = &self.setup;
        for intent in intents {
            let books = std::mem::take(self.shop.books.lock().entry(*intent).or_default());
            let Some(digest) = books.digest else {
                continue;
            };
            let wrong = |what: String| self.world.wrong(format!("{intent:?}: {what}"));
            if setup.is_calm && books.effects.len() != 1 {
                wrong(format!(
                    "{} effects, and nothing went wrong",
                    books.effects.len()
                ));
            }
            if setup.is_short() {
                continue;
            }
            if books.told.len() > 1 {
                wrong(format!(
                    "clients were told different things: {:?}",
                    books.told
                ));
            }
            let state = self.server.record(&digest).await.map(|record| record.state);
            let kept = match &state {
                Some(State::Completed(outcome)) => Some(match (intent, outcome.kind()) {
                    (Intent::Event(_), OutcomeKind::Success) => "handled".to_owned(),
                    (Intent::Event(_), _) => "set aside".to_owned(),
                    (Intent::Call(_), _) => text(outcome),
                }),
                _ => None,
            };
            if let Some(told) = books.told.iter().find(|told| kept.as_ref() != Some(told)) {
                wrong(format!("told {told:?}, and kept is {kept:?} ({state:?})"));
            }
            let last = books.effects.iter().map(|(fence, _)| *fence).max();
            if let (Some(kept), Intent::Call(_)) = (&kept, intent)
                && kept != "declined"
                && last.map(paid).as_ref() != Some(kept)
            {
                wrong(format!(
                    "kept is {kept:?}, and the last effect is under {last:?}"
                ));
            }
            if kept.as_deref() == Some("handled") && last.is_none() {
                wrong("handled without an effect".into());
            }
            for (fence, process, end) in &books.ends {
                let must_land = setup.on_lost == OnLost::Hold && !process.is_dead();
                if must_land && kept.as_ref() != Some(end) {
                    wrong(format!(
                        "the attempt under {fence} ended with {end:?}, kept is {state:?} (R14)"
                    ));
                }
            }
        }
        self.fleet.end();
    }
}

fn start(server: &Arc<Server>, shop: &Arc<Shop>, process: &Arc<Process>) -> Running {
    let setup = shop.setup;
    let wire = Wire::new(server, process);
    let books = Books {
        shop: Arc::clone(shop),
        process: Arc::clone(process),
    };
    let policy = setup.policy();
    let guard = Guard::builder(wire.clone())
        .policy(policy)
        .reconciler(Arc::new(books))
        .build();
    let mut inbox = Inbox::new(guard.clone(), "billing")
        .with_policy(policy)
        .with_max_attempts(3);
    if setup.sets_aside {
        let shop = Arc::clone(shop);
        inbox = inbox.with_dead_letters(move |letter| {
            shop.set_aside(&letter);
            async { Ok::<_, std::io::Error>(()) }
        });
    }
    if setup.is_short() {
        let purger = Purger::new(wire).with_interval(setup.lease);
        tokio::spawn(purger.run(|_| ()));
    }
    if setup.on_lost == OnLost::Reconcile {
        let background = Background::new(
            guard.clone(),
            [OPERATION, "event"].map(|name| (name, policy)),
        );
        tokio::spawn(background.with_every(setup.lease * 3).run());
    }
    Running { guard, inbox }
}

fn text(outcome: &Outcome) -> String {
    String::from_utf8_lossy(&outcome.body().unwrap_or_default()).into_owned()
}

/// The work of one attempt.
struct Work {
    shop: Arc<Shop>,
    process: Arc<Process>,
    intent: Intent,
    script: Script,
    before: Duration,
    after: Duration,
}

impl Work {
    async fn run(self, attempt: AttemptInfo) -> Result<String, WorkError> {
        let Self {
            shop,
            process,
            intent,
            script,
            ..
        } = self;
        let (world, fence) = (shop.world.clone(), attempt.fence.0);
        process.gate().await;
        world.saw("attempt");
        world.say(|| {
            format!(
                "attempt at {intent:?} under {fence} in {}: {script:?}",
                process.number
            )
        });
        shop.books.lock().entry(intent).or_default().digest = Some(attempt.id);
        process.rest(self.before).await;
        let ended = |end: String| {
            let mut books = shop.books.lock();
            let ends = &mut books.entry(intent).or_default().ends;
            ends.push((fence, Arc::clone(&process), end));
        };
        match script {
            Script::Busy => return Err(WorkError::Busy),
            Script::Declined => {
                ended("declined".into());
                return Err(WorkError::Declined);
            }
            Script::PanicsBefore => std::panic::resume_unwind(Box::new("planted")),
            Script::TimesOut => {
                let (late, shop) = (world.millis(0..3000), Arc::clone(&shop));
                tokio::spawn(async move {
                    sleep(late).await;
                    shop.take(intent, fence);
                });
                process.rest(self.after).await;
                return Err(WorkError::TimedOut);
            }
            Script::Works | Script::PanicsAfter => {}
        }
        if !shop.take(intent, fence) {
            return Err(WorkError::Busy);
        }
        process.rest(self.after).await;
        if script == Script::PanicsAfter {
            std::panic::resume_unwind(Box::new("planted"));
        }
        ended(match intent {
            Intent::Call(_) => paid(fence),
            Intent::Event(_) => "handled".into(),
        });
        Ok(paid(fence))
    }
}
