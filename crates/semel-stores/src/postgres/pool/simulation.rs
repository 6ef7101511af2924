//! The pool before a simulated server, in virtual time. A seed decides who asks for what and when, what
//! the network loses or delays, and where the server rolls back, stands still or goes away.
//!
//! `SEMEL_POOL_SEEDS=100000` runs more seeds, `SEMEL_POOL_SEEDS=7..8` one again.

mod single;

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use semel::store::Result;
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_postgres::types::{FromSql, Type};

use super::{Pool, Wire};
use crate::common::pool::{Failed, Open, PATIENCE, Sent, late};
use crate::postgres::PostgresOptions;
use crate::postgres::row::{Columns, Param};
use crate::postgres::sql::Kind;
use crate::postgres::step::Step;

const TIMEOUT: Duration = Duration::from_secs(1);

/// What a seed's tasks share: the server, chance, and what was found.
struct World {
    chance: Mutex<Rng>,
    connections: usize,
    group: usize,
    /// How many of a thousand messages meet which fault. None from `calm_from` on.
    weather: Weather,
    calm_from: Instant,
    /// Meanwhile the server processes nothing.
    still: Range<Instant>,
    /// Meanwhile nobody can connect.
    away: Range<Instant>,
    table: Mutex<Table>,
    /// A transaction has ended.
    ended: Notify,
    links: Mutex<usize>,
    found: Mutex<Found>,
}

#[derive(Clone, Copy)]
struct Weather {
    late: u32,
    /// The connection ends, before the message or its answer.
    lost: u32,
    answer_lost: u32,
    /// Nothing passes any more, and nobody says so.
    silent: u32,
    rolled_back: u32,
    refused: u32,
    unconnected: u32,
}

#[derive(Default)]
struct Found {
    wrong: Vec<String>,
    groups: u64,
    answered: u64,
    not_applied: u64,
    unknown: u64,
    given_up: u64,
}

/// What is committed, and what transactions have not committed yet.
#[derive(Default)]
struct Table {
    /// How often the step with this number was applied.
    applied: HashMap<u64, u32>,
    rows: HashSet<IdentityDigest>,
    inserting: HashMap<IdentityDigest, usize>,
    locked: HashMap<IdentityDigest, usize>,
    /// Which backend waits for which.
    waits: HashMap<usize, usize>,
    backends: usize,
}

impl Table {
    /// Whether a backend waits for itself, by way of others.
    fn deadlocked(&self, from: usize) -> bool {
        let chain = std::iter::successors(Some(from), |at| self.waits.get(at).copied());
        chain.skip(1).take(self.waits.len()).any(|at| at == from)
    }

    fn end(&mut self, backend: usize) {
        self.inserting.retain(|_, of| *of != backend);
        self.locked.retain(|_, of| *of != backend);
        self.waits.remove(&backend);
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Rng::with_seed(seed);
        let mut odds = || chance.choice([0, 0, 10, 50]).unwrap_or(0);
        let weather = Weather {
            late: odds(),
            lost: odds(),
            answer_lost: odds(),
            silent: odds() / 5,
            rolled_back: odds(),
            refused: odds(),
            unconnected: odds() * 4,
        };
        let begun = Instant::now();
        let mut spell = || {
            let from = begun + Duration::from_millis(chance.u64(..1500));
            let longest = chance.choice([0, 0, 300, 2500]).unwrap_or(0);
            from..from + Duration::from_millis(chance.u64(..=longest))
        };
        let (still, away) = (spell(), spell());
        Self {
            connections: chance.usize(1..=5),
            group: chance.choice([1, 2, 5, 64]).unwrap_or(1),
            weather,
            calm_from: begun + Duration::from_secs(4),
            still,
            away,
            table: Mutex::default(),
            ended: Notify::new(),
            links: Mutex::new(0),
            found: Mutex::default(),
            chance: Mutex::new(chance),
        }
    }

    fn meets(&self, of_a_thousand: u32) -> bool {
        Instant::now() < self.calm_from && self.chance.lock().u32(..1000) < of_a_thousand
    }

    fn millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.chance.lock().u64(range))
    }

    fn wrong(&self, what: impl Into<String>) {
        self.found.lock().wrong.push(what.into());
    }

    /// How long a message is on its way.
    fn journey(&self) -> Duration {
        match self.meets(self.weather.late) {
            true => self.millis(0..1500),
            false => self.millis(0..3),
        }
    }
}

/// A client's end of a connection.
struct SimulatedLink {
    world: Arc<World>,
    requests: mpsc::UnboundedSender<Request>,
    made: Instant,
}

struct Request {
    arrives: Instant,
    what: What,
    answer: oneshot::Sender<Result<Vec<SimulatedRow>, Failed>>,
}

enum What {
    Begin,
    Run(Step),
    Commit,
}

#[derive(Clone)]
struct SimulatedRow {
    digest: IdentityDigest,
    number: u64,
    wrote: bool,
}

impl Columns for SimulatedRow {
    fn column<'a, T: FromSql<'a>>(
        &'a self,
        column: usize,
    ) -> Result<T, Box<dyn StdError + Sync + Send>> {
        assert_eq!(column, 0, "the pool looks at the digest only");
        T::from_sql(&Type::BYTEA, self.digest.as_bytes())
    }
}

impl Open for SimulatedLink {
    fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    fn made(&self) -> Instant {
        self.made
    }
}

impl Drop for SimulatedLink {
    fn drop(&mut self) {
        *self.world.links.lock() -= 1;
    }
}

impl SimulatedLink {
    async fn send(&self, what: What) -> Result<Vec<SimulatedRow>, Failed> {
        let (answer, answered) = oneshot::channel();
        let sent = self.requests.send(Request {
            arrives: Instant::now() + self.world.journey(),
            what,
            answer,
        });
        // A request that is dropped unanswered, by a connection that broke.
        drop(sent);
        let lost = |_| Err(Failed::Lost(late("the connection broke")));
        answered.await.unwrap_or_else(lost)
    }
}

struct Simulated(Arc<World>);

impl Wire for Simulated {
    type Link = SimulatedLink;
    type Row = SimulatedRow;

    async fn connect(&self) -> Result<SimulatedLink> {
        let world = &self.0;
        sleep(world.journey()).await;
        if world.away.contains(&Instant::now()) || world.meets(world.weather.unconnected) {
            return Err(StoreError::new(StoreErrorKind::NotApplied, "not reached"));
        }
        let links = {
            let mut links = world.links.lock();
            *links += 1;
            *links
        };
        if links > world.connections {
            world.wrong(format!("{links} connections of {}", world.connections));
        }
        let (requests, received) = mpsc::unbounded_channel();
        tokio::spawn(Backend::of(world.clone()).serve(received));
        Ok(SimulatedLink {
            world: world.clone(),
            requests,
            made: Instant::now(),
        })
    }

    async fn run(&self, link: &SimulatedLink, step: &Step) -> Result<Vec<SimulatedRow>, Failed> {
        link.send(What::Run(step.clone())).await
    }

    async fn simple(&self, link: &SimulatedLink, text: &str) -> Result<(), Failed> {
        let what = if text == "COMMIT" {
            What::Commit
        } else {
            What::Begin
        };
        link.send(what).await.map(drop)
    }
}

/// The server's end of a connection.
struct Backend {
    world: Arc<World>,
    number: usize,
    transaction: Option<Transaction>,
}

#[derive(Default)]
struct Transaction {
    steps: usize,
    digests: HashSet<IdentityDigest>,
    /// The numbers of steps that wrote, and the rows they inserted.
    wrote: Vec<u64>,
    inserted: Vec<IdentityDigest>,
    failed: bool,
}

impl Backend {
    fn of(world: Arc<World>) -> Self {
        let number = {
            let mut table = world.table.lock();
            table.backends += 1;
            table.backends
        };
        Self {
            world,
            number,
            transaction: None,
        }
    }

    /// Processes what arrives, also what nobody waits for any more.
    async fn serve(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        while let Some(request) = requests.recv().await {
            sleep_until(request.arrives).await;
            if self.world.still.contains(&Instant::now()) {
                sleep_until(self.world.still.end).await;
            }
            let weather = self.world.weather;
            if self.world.away.contains(&Instant::now()) || self.world.meets(weather.lost) {
                self.end();
                return self.ended(requests).await;
            }
            let silent = self.world.meets(weather.silent);
            let answer = self.process(request.what).await;
            if self.world.meets(weather.answer_lost) {
                self.end();
                return self.ended(requests).await;
            }
            if silent {
                let mut kept = vec![request.answer];
                while let Some(request) = requests.recv().await {
                    kept.push(request.answer);
                }
                break;
            }
            sleep(self.world.journey()).await;
            let _gone = request.answer.send(answer);
        }
        self.end();
    }

    /// Half of the clients learn at once that the connection has ended, the others when they use it.
    async fn ended(&self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let known = self.world.chance.lock().bool();
        while !known && requests.recv().await.is_some() {}
    }

    /// Ends the transaction's locks, and with them the transaction where it is not committed.
    fn end(&self) {
        self.world.table.lock().end(self.number);
        self.world.ended.notify_waiters();
    }

    async fn process(&mut self, what: What) -> Result<Vec<SimulatedRow>, Failed> {
        match what {
            What::Begin => {
                self.transaction = Some(Transaction::default());
                Ok(Vec::new())
            }
            What::Run(step) => {
                let alone = self.transaction.is_none();
                let mut transaction = self.transaction.take().unwrap_or_default();
                let done = self.run(&step, alone, &mut transaction).await;
                transaction.failed |= done.is_err();
                if alone {
                    self.commit(transaction).await;
                } else {
                    self.transaction = Some(transaction);
                }
                done
            }
            What::Commit => {
                if let Some(transaction) = self.transaction.take() {
                    self.world.found.lock().groups += 1;
                    self.commit(transaction).await;
                }
                // Of one that failed too: PostgreSQL answers ROLLBACK, and no error.
                Ok(Vec::new())
            }
        }
    }

    async fn commit(&self, transaction: Transaction) {
        sleep(self.world.millis(0..5)).await;
        if !transaction.failed {
            let mut table = self.world.table.lock();
            table.rows.extend(transaction.inserted);
            for number in transaction.wrote {
                *table.applied.entry(number).or_default() += 1;
            }
        }
        self.end();
    }

    async fn run(
        &self,
        step: &Step,
        alone: bool,
        transaction: &mut Transaction,
    ) -> Result<Vec<SimulatedRow>, Failed> {
        let failed = |message| StoreError::new(StoreErrorKind::NotApplied, message);
        if transaction.failed {
            return Err(Failed::Refused(failed("the transaction is aborted")));
        }
        let world = &self.world;
        if world.meets(world.weather.rolled_back) {
            return Err(Failed::RolledBack(failed("a deadlock, or so it was taken")));
        }
        if world.meets(world.weather.refused) {
            return Err(Failed::Refused(failed("the disk is full")));
        }
        let each = match step.params.first() {
            Some(Param::Each(steps, _)) => steps.clone(),
            _ => vec![Arc::new(step.clone())],
        };
        if step.kind.alone() && !alone {
            world.wrong("a step that is to be alone shares a transaction");
        }
        let mut rows = Vec::new();
        for step in each {
            let (digest, number) = asked(&step);
            transaction.steps += 1;
            if transaction.steps > world.group {
                world.wrong("a group is larger than allowed");
            }
            if !transaction.digests.insert(digest) {
                world.wrong("two steps of a group have one digest");
            }
            let wait = if alone { TIMEOUT / 2 } else { TIMEOUT / 10 };
            let wrote = match self.write(&step, digest, wait).await {
                Some(wrote) => wrote,
                None => return Err(Failed::Refused(failed("the row is locked"))),
            };
            if wrote {
                transaction.wrote.push(number);
                if step.kind != Kind::Complete {
                    transaction.inserted.push(digest);
                }
            }
            rows.push(SimulatedRow {
                digest,
                number,
                wrote,
            });
        }
        if step.kind == Kind::ClaimMany || step.kind == Kind::CompleteMany {
            // The server promises no order.
            world.chance.lock().shuffle(&mut rows);
        }
        Ok(rows)
    }

    /// Whether a step writes, once it has what it must wait for; `None` where it waited too long.
    async fn write(&self, step: &Step, digest: IdentityDigest, wait: Duration) -> Option<bool> {
        if step.kind.reads() {
            return Some(false);
        }
        let until = Instant::now() + wait;
        loop {
            let ended = self.world.ended.notified();
            {
                let mut table = self.world.table.lock();
                let exists = table.rows.contains(&digest);
                let table = &mut *table;
                // An insert waits for inserts only, a change for changes only.
                let (among, writes) = match step.kind {
                    Kind::ClaimNew => (&mut table.inserting, !exists),
                    _ => (&mut table.locked, exists),
                };
                if !writes {
                    return Some(false);
                }
                match among.get(&digest) {
                    Some(holder) if *holder != self.number => {
                        let holder = *holder;
                        table.waits.insert(self.number, holder);
                        if table.deadlocked(self.number) {
                            self.world.wrong("two transactions wait for each other");
                        }
                    }
                    _ => {
                        among.insert(digest, self.number);
                        table.waits.remove(&self.number);
                        return Some(true);
                    }
                }
            }
            if timeout_at(until, ended).await.is_err() {
                self.world.table.lock().waits.remove(&self.number);
                return None;
            }
        }
    }
}

/// The step's digest, and the number that makes it this step and no other.
fn asked(step: &Step) -> (IdentityDigest, u64) {
    let Some(Param::Int(Some(number))) = step.params.get(1) else {
        panic!("every simulated step has a number");
    };
    (step.digest.expect("a digest"), number.cast_unsigned())
}

/// Some digests are asked for by everybody; most of those have a record.
const DIGESTS: u8 = 24;

fn digest(number: u8) -> IdentityDigest {
    IdentityDigest::from_bytes([number; 32])
}

fn step(world: &World, number: u64) -> Step {
    let mut chance = world.chance.lock();
    let kinds = [
        Kind::ClaimNew,
        Kind::ClaimNew,
        Kind::Replace,
        Kind::Complete,
        Kind::Complete,
        Kind::Renew,
        Kind::Get,
    ];
    let digest = digest(chance.u8(..DIGESTS));
    let mut params = vec![
        Param::bytes(digest.as_bytes()),
        Param::int(number.cast_signed()),
    ];
    if chance.u8(..10) == 0 {
        params.push(Param::bytes(&[0; 65 << 10]));
    }
    Step {
        kind: chance.choice(kinds).unwrap_or(Kind::Get),
        digest: Some(digest),
        params,
    }
}

/// Calls of one caller. Returns the numbers of those said not to have happened.
async fn caller(world: Arc<World>, pool: Arc<Pool<Simulated>>, first: u64) -> Vec<u64> {
    let mut undone = Vec::new();
    let (calls, pace) = {
        let mut chance = world.chance.lock();
        (chance.u64(1..6), chance.choice([1, 20, 400]).unwrap_or(1))
    };
    for number in first..first + calls {
        sleep(world.millis(0..pace)).await;
        let step = step(&world, number);
        let mut sent = Sent::default();
        let begun = Instant::now();
        let run = pool.run(step.clone(), &mut sent);
        let patience = match world.chance.lock().u8(..12) {
            0 => Duration::from_millis(number % 40),
            _ => 10 * TIMEOUT,
        };
        let Ok(answer) = timeout(patience, run).await else {
            if patience > TIMEOUT {
                world.wrong("a call without an end");
            }
            world.found.lock().given_up += 1;
            continue;
        };
        if begun.elapsed() > TIMEOUT + Duration::from_millis(5) {
            world.wrong(format!("a call took {:?}", begun.elapsed()));
        }
        check(&world, &step, answer, &sent, &mut undone);
    }
    undone
}

fn check(
    world: &World,
    step: &Step,
    answer: Result<Vec<SimulatedRow>>,
    sent: &Sent,
    undone: &mut Vec<u64>,
) {
    let (digest, number) = asked(step);
    let applied = world
        .table
        .lock()
        .applied
        .get(&number)
        .copied()
        .unwrap_or(0);
    let mut found = world.found.lock();
    match answer {
        Ok(rows) => {
            found.answered += 1;
            match &rows[..] {
                [row] if row.digest == digest && row.number == number => {
                    if row.wrote && applied == 0 {
                        found
                            .wrong
                            .push(format!("{number} was answered before it was committed"));
                    }
                    if applied > 1 && !sent.in_doubt() {
                        found
                            .wrong
                            .push(format!("{number} happened twice, and nobody says so"));
                    }
                }
                _ => found
                    .wrong
                    .push(format!("{number} got {} rows, not its own", rows.len())),
            }
        }
        Err(error) if error.kind() == StoreErrorKind::Unknown => {
            found.unknown += 1;
            if step.kind.reads() {
                found.wrong.push("a read that may have been applied".into());
            }
        }
        Err(_) => {
            found.not_applied += 1;
            undone.push(number);
        }
    }
}

/// One seed; its number of calls never repeats a step's number.
async fn seed(seed: u64) -> Found {
    let world = Arc::new(World::new(seed));
    {
        let mut chance = world.chance.lock();
        let rows = (0..DIGESTS).filter(|_| chance.bool()).map(digest);
        world.table.lock().rows.extend(rows);
    }
    let options = PostgresOptions::from_url("postgres://simulated/records")
        .expect("a URL")
        .connections(world.connections)
        .group(world.group)
        .timeout(TIMEOUT);
    let pool = Arc::new(Pool::new(Arc::new(Simulated(world.clone())), &options));
    let callers = world.chance.lock().u64(1..40);
    let calls = |first| tokio::spawn(caller(world.clone(), pool.clone(), first * 100));
    let running: Vec<_> = (1..=callers).map(calls).collect();
    let mut undone = Vec::new();
    for caller in running {
        undone.extend(caller.await.expect("no caller panics"));
    }
    // Everything that is on its way arrives, and the weather is calm.
    sleep_until(world.calm_from.max(Instant::now()) + 5 * TIMEOUT).await;
    for number in undone {
        if world.table.lock().applied.contains_key(&number) {
            world.wrong(format!(
                "{number} happened, and its caller was told that it did not"
            ));
        }
    }
    at_rest(&world, &pool);
    let again = (0..20).map(|_| {
        let (world, pool) = (world.clone(), pool.clone());
        async move {
            let step = Step {
                kind: Kind::Get,
                ..step(&world, 1)
            };
            pool.run(step, &mut Sent::default()).await
        }
    });
    for answer in futures_util::future::join_all(again).await {
        if let Err(error) = answer {
            world.wrong(format!("in calm weather: {error}"));
        }
    }
    sleep(TIMEOUT).await;
    at_rest(&world, &pool);
    std::mem::take(&mut *world.found.lock())
}

/// Nobody asks: no connection is in use, no step waits.
fn at_rest(world: &World, pool: &Pool<Simulated>) {
    let state = pool.0.state.lock();
    if state.busy != 0 || !state.queue.is_empty() {
        let waiting = state.queue.len();
        world.wrong(format!(
            "{} busy, {waiting} waiting, and nobody asks",
            state.busy
        ));
    }
}

#[test]
fn whatever_breaks_callers_are_told_the_truth_in_time() {
    let seeds = std::env::var("SEMEL_POOL_SEEDS").unwrap_or("500".into());
    let (from, to) = seeds.split_once("..").unwrap_or(("1", &seeds));
    let number = |text: &str| {
        text.parse::<u64>()
            .expect("SEMEL_POOL_SEEDS is N or FROM..TO")
    };
    let mut all = Found::default();
    for number in number(from)..=number(to) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let found = runtime.block_on(seed(number));
        assert!(found.wrong.is_empty(), "seed {number}: {:#?}", found.wrong);
        all.groups += found.groups;
        all.answered += found.answered;
        all.not_applied += found.not_applied;
        all.unknown += found.unknown;
        all.given_up += found.given_up;
    }
    if number(to) - number(from) >= 100 {
        let met = [
            all.groups,
            all.answered,
            all.not_applied,
            all.unknown,
            all.given_up,
        ];
        assert!(
            met.iter().all(|times| *times > 100),
            "too little happened: {met:?}"
        );
    }
}
