//! Brokers and their consumers: Kafka's offsets, RabbitMQ's queues with a limit of deliveries, and
//! JetStream's acknowledgements in time. The consumers use `semel_events` as an application would; the
//! brokers are models.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::Outcome;
use semel::guard::{Answered, Case, Finding, Guard, Policy, Reconciler};
use semel::inbox::{DeadLetter, Event, Inbox, Reason};
use semel::store::{OnLost, Retention};
use semel_events::kafka::{Commit, Message, Offsets};
use semel_events::{Answer, Delivery as _, Settled, TellError, Verdict, until_settled};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::Bug;
use super::fleet::{Fleet, Runs};
use super::wire::{Server, Weather, Wire};
use super::world::{Process, World, millis};

const TOPIC: &str = "orders";
const PARTITIONS: usize = 2;
/// Within this much virtual time after the last fault every event must have come to its end: one that
/// is unknown is kept back for a minute at a time.
const PATIENCE: Duration = Duration::from_mins(20);
/// How long a broker waits for a consumer that it does not hear of.
const SESSION: Duration = Duration::from_millis(500);

/// Of RabbitMQ's quorum queues before 4.3: what is delivered more often is dropped.
const LIMIT: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kafka,
    RabbitMq,
    JetStream,
}

#[derive(Debug, Clone, Copy)]
struct Setup {
    kind: Kind,
    on_lost: OnLost,
    lease: Duration,
    prefetch: usize,
    ack_wait: Duration,
    is_recreated: bool,
    /// One process, which neither dies nor drains nor stands still: it knows what became of each attempt.
    is_alone: bool,
    faults: Duration,
}

impl Setup {
    fn of(world: &World) -> Self {
        let is_alone = world.one_in(4);
        // A claim that is on its way for longer than its lease is known to nobody.
        let lease = match is_alone {
            true => 10_000,
            false => world.pick(&[300, 1000, 3000]),
        };
        Self {
            kind: world.pick(&[Kind::Kafka, Kind::Kafka, Kind::RabbitMq, Kind::JetStream]),
            on_lost: world.pick(&[OnLost::Hold, OnLost::Retry, OnLost::Reconcile]),
            lease: Duration::from_millis(lease),
            prefetch: world.pick(&[1, 2, 5]),
            ack_wait: Duration::from_millis(lease * 2),
            is_recreated: world.one_in(3),
            is_alone,
            faults: match is_alone {
                true => world.millis(10_000..60_000),
                false => world.millis(lease * 6..lease * 20),
            },
        }
    }
}

/// A message in the broker.
#[derive(Debug, Clone)]
struct Stored {
    number: u32,
    /// By the producer; none: it is named by its place.
    id: Option<String>,
    /// Its place in its partition, or the stream.
    offset: usize,
    deliveries: u32,
}

/// Who has a message, and has not said what became of it.
#[derive(Debug)]
struct InHand {
    message: Stored,
    by: u32,
    until: Instant,
}

#[derive(Debug, Default)]
struct Partition {
    log: Vec<Stored>,
    committed: usize,
    owner: Option<u32>,
    wanted: Option<u32>,
}

#[derive(Default)]
struct Inside {
    /// Changes when the topic or stream is deleted and made anew.
    incarnation: u32,
    partitions: Vec<Partition>,
    members: BTreeSet<u32>,
    queue: VecDeque<Stored>,
    in_hand: BTreeMap<u64, InHand>,
    next_tag: u64,
    next_number: u32,
    /// Events that must come to an end.
    published: BTreeSet<u32>,
    done: BTreeSet<u32>,
    effects: BTreeMap<u32, Vec<u64>>,
    /// Which event has this source and this id.
    named: BTreeMap<(String, String), u32>,
    /// Fences up to which no attempt at an event has an effect any more: a reconciler said that none had.
    closed: BTreeMap<u32, u64>,
    poison: BTreeSet<u32>,
}

struct Broker {
    world: World,
    setup: Setup,
    calm_from: Instant,
    bug: Option<Bug>,
    inside: Mutex<Inside>,
    changed: Notify,
}

impl Inside {
    /// Whether an event must come to an end, and has not.
    fn is_open(&self, number: u32) -> bool {
        self.published.contains(&number) && !self.done.contains(&number)
    }
}

impl Broker {
    /// Changes something inside, and wakes those who look out for it.
    fn change<T>(&self, change: impl FnOnce(&mut Inside) -> T) -> T {
        let changed = change(&mut self.inside.lock());
        self.changed.notify_waiters();
        changed
    }

    fn is_calm(&self) -> bool {
        Instant::now() >= self.calm_from
    }

    fn name(&self, incarnation: u32) -> String {
        match self.bug {
            Some(Bug::NamedByPlace) => "0".into(),
            _ => incarnation.to_string(),
        }
    }

    fn publish(&self) {
        // A queue, and a stream, are one.
        let partition = match self.setup.kind {
            Kind::Kafka => self.world.draw(|chance| chance.usize(..PARTITIONS)),
            Kind::RabbitMq | Kind::JetStream => 0,
        };
        self.change(|inside| {
            let number = inside.next_number;
            inside.next_number += 1;
            inside.published.insert(number);
            let has_id = self.setup.kind == Kind::RabbitMq || self.world.one_in(2);
            let id = has_id.then(|| format!("event-{number}"));
            if self.world.one_in(8) {
                inside.poison.insert(number);
            }
            let log = &mut inside.partitions[partition].log;
            let message = Stored {
                number,
                id,
                offset: log.len(),
                deliveries: 0,
            };
            log.push(message.clone());
            if self.setup.kind != Kind::Kafka {
                inside.queue.push_back(message);
            }
        });
    }

    /// The topic or stream is deleted, and made anew under its name.
    fn recreate(&self) {
        self.world.saw("recreated");
        self.world.say(|| "the topic is made anew".into());
        self.change(|inside| {
            inside.incarnation += 1;
            inside.published.clear();
            inside.queue.clear();
            inside.in_hand.clear();
            for partition in &mut inside.partitions {
                *partition = Partition {
                    wanted: partition.wanted,
                    ..Partition::default()
                };
            }
        });
    }

    fn join(&self, member: u32) {
        self.inside.lock().members.insert(member);
        self.assign();
    }

    fn has(&self, member: u32) -> bool {
        self.inside.lock().members.contains(&member)
    }

    /// The broker hears of a consumer no more, or its connection is gone.
    fn leave(&self, member: u32) {
        self.world
            .say(|| format!("the broker takes {member} for gone"));
        let mut inside = self.inside.lock();
        inside.members.remove(&member);
        for partition in &mut inside.partitions {
            partition.owner = partition.owner.filter(|owner| *owner != member);
        }
        let own = inside.in_hand.iter().filter(|(_, held)| held.by == member);
        for tag in own.map(|(tag, _)| *tag).collect::<Vec<_>>() {
            self.back(&mut inside, tag);
        }
        drop(inside);
        self.assign();
    }

    /// Wants each partition at one of the members.
    fn assign(&self) {
        self.world.saw("rebalance");
        self.change(|inside| {
            let members: Vec<u32> = inside.members.iter().copied().collect();
            for partition in &mut inside.partitions {
                partition.wanted = (!members.is_empty()).then(|| self.world.pick(&members));
            }
        });
    }

    /// Kafka asks whether who commits is a member, not whether the partition is its own.
    fn commit(&self, member: u32, incarnation: u32, commit: &Commit) -> bool {
        let mut inside = self.inside.lock();
        if !inside.members.contains(&member) || inside.incarnation != incarnation {
            return false;
        }
        let (Ok(place), Ok(offset)) = (
            usize::try_from(commit.partition),
            usize::try_from(commit.offset),
        ) else {
            return false;
        };
        self.world.say(|| format!("{member} commits {commit:?}"));
        for Stored { number, .. } in inside.partitions[place].log.iter().take(offset) {
            if !inside.done.contains(number) {
                self.world.wrong(format!(
                    "{offset} of partition {place} is committed over event {number}, which was not handled"
                ));
            }
        }
        inside.partitions[place].committed = offset;
        drop(inside);
        self.world.saw("commit");
        true
    }

    fn logged(&self, partition: i32, offset: usize) -> Option<Stored> {
        let place = usize::try_from(partition).ok()?;
        let inside = self.inside.lock();
        inside.partitions[place].log.get(offset).cloned()
    }

    /// A message as its consumer has it.
    fn message(&self, stored: &Stored, partition: i32, incarnation: u32) -> Message {
        let offset = i64::try_from(stored.offset).unwrap_or(i64::MAX);
        let message = Message::new(TOPIC, partition, offset, stored.number.to_string());
        let message = message.named_by_place(&self.name(incarnation));
        match &stored.id {
            Some(id) => message.with_id(id),
            None => message,
        }
    }

    /// A message for a consumer that has room.
    fn deliver(&self, member: u32) -> Option<(u64, Stored, u32)> {
        let mut inside = self.inside.lock();
        let own = inside.in_hand.values().filter(|held| held.by == member);
        if own.count() >= self.setup.prefetch || !inside.members.contains(&member) {
            return None;
        }
        let mut message = inside.queue.pop_front()?;
        message.deliveries += 1;
        let tag = inside.next_tag;
        inside.next_tag += 1;
        let held = InHand {
            message: message.clone(),
            by: member,
            until: Instant::now() + self.setup.ack_wait,
        };
        inside.in_hand.insert(tag, held);
        Some((tag, message, inside.incarnation))
    }

    fn back(&self, inside: &mut Inside, tag: u64) {
        let Some(held) = inside.in_hand.remove(&tag) else {
            return;
        };
        let message = held.message;
        self.world.saw("delivered again");
        if message.deliveries > LIMIT {
            self.world.saw("limit of deliveries");
            if inside.is_open(message.number) {
                self.world.wrong(format!(
                    "event {} is dropped after {} deliveries",
                    message.number, message.deliveries
                ));
            }
            return;
        }
        inside.queue.push_front(message);
    }

    fn give_back(&self, tag: u64) {
        self.change(|inside| self.back(inside, tag));
    }

    fn forget(&self, tag: u64) {
        let held = self.change(|inside| inside.in_hand.remove(&tag));
        if let Some(InHand { message, .. }) = held
            && self.inside.lock().is_open(message.number)
        {
            let number = message.number;
            self.world.wrong(format!(
                "event {number} is acknowledged, and was not handled"
            ));
        }
    }

    /// JetStream delivers again what is not acknowledged in time.
    async fn watch(self: Arc<Self>, tag: u64) {
        loop {
            let until = self.inside.lock().in_hand.get(&tag).map(|held| held.until);
            match until {
                None => return,
                Some(until) if until <= Instant::now() => return self.give_back(tag),
                Some(until) => tokio::time::sleep_until(until).await,
            }
        }
    }

    fn done(&self, number: u32) {
        self.inside.lock().done.insert(number);
    }

    fn is_over(&self) -> bool {
        let inside = self.inside.lock();
        match self.setup.kind {
            Kind::Kafka => {
                let mut all = inside.partitions.iter();
                all.all(|partition| partition.committed == partition.log.len())
            }
            Kind::RabbitMq | Kind::JetStream => {
                inside.queue.is_empty() && inside.in_hand.is_empty()
            }
        }
    }
}

/// A message of a queue or a stream, in the hands of a consumer.
struct Delivery {
    broker: Arc<Broker>,
    process: Arc<Process>,
    tag: u64,
    event: Event,
}

impl semel_events::Delivery for Delivery {
    fn event(&self) -> &Event {
        &self.event
    }

    async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
        let (broker, process) = (Arc::clone(&self.broker), Arc::clone(&self.process));
        let tag = self.tag;
        process.gate().await;
        sleep(broker.world.millis(0..4)).await;
        let is_rabbit = broker.setup.kind == Kind::RabbitMq;
        if !broker.is_calm() && broker.world.one_in(10) {
            broker.world.saw("acknowledgement lost");
            // A channel that closes gives back what it had.
            if is_rabbit {
                broker.give_back(tag);
            }
            return Err("the broker could not be told".into());
        }
        match verdict {
            Verdict::Acknowledge | Verdict::DeadLettered => broker.forget(tag),
            Verdict::Again(after) => {
                if let Some(held) = broker.inside.lock().in_hand.get_mut(&tag) {
                    held.until = Instant::now() + after + Duration::from_secs(3600);
                }
                tokio::spawn(async move {
                    sleep(after).await;
                    // RabbitMQ's consumer keeps it so long, JetStream itself does.
                    if is_rabbit {
                        process.gate().await;
                    }
                    broker.give_back(tag);
                });
            }
        }
        Ok(())
    }

    async fn hold(&self) {
        loop {
            sleep(self.broker.setup.ack_wait / 3).await;
            self.process.gate().await;
            if let Some(held) = self.broker.inside.lock().in_hand.get_mut(&self.tag) {
                held.until = Instant::now() + self.broker.setup.ack_wait;
            }
        }
    }
}

/// What runs in a process.
#[derive(Clone)]
struct Consumer {
    broker: Arc<Broker>,
    process: Arc<Process>,
    inbox: Inbox<Wire>,
    stops: Arc<AtomicBool>,
}

impl Runs for Consumer {
    fn guard(&self) -> &Guard<Wire> {
        self.inbox.guard()
    }

    /// Leaves its group, and ends what it has begun.
    async fn drain(&self) {
        self.stops.store(true, Ordering::Relaxed);
        self.inbox.guard().drain().await;
        self.broker.leave(self.process.number);
    }
}

impl Consumer {
    async fn consume(self) {
        let (broker, number) = (Arc::clone(&self.broker), self.process.number);
        broker.join(number);
        tokio::spawn(self.clone().missed());
        match broker.setup.kind {
            Kind::Kafka => self.poll().await,
            Kind::RabbitMq | Kind::JetStream => self.take().await,
        }
    }

    /// The broker notices that it is gone.
    async fn missed(self) {
        self.process.died().await;
        sleep(SESSION).await;
        self.broker.leave(self.process.number);
    }

    /// As a consumer of a queue or a stream.
    async fn take(self) {
        loop {
            let changed = self.broker.changed.notified();
            self.process.gate().await;
            if self.stops.load(Ordering::Relaxed) {
                return;
            }
            if !self.broker.has(self.process.number) {
                self.broker.join(self.process.number);
            }
            while let Some((tag, message, incarnation)) = self.broker.deliver(self.process.number) {
                if self.broker.setup.kind == Kind::JetStream {
                    tokio::spawn(Arc::clone(&self.broker).watch(tag));
                }
                let body = message.number.to_string();
                let event = match &message.id {
                    Some(id) => Event::new(TOPIC, id.as_str(), body),
                    None => {
                        let place = format!("{}@{}", message.offset, self.broker.name(incarnation));
                        Event::new(format!("{TOPIC}/sequence"), place, body)
                    }
                };
                let delivery = Delivery {
                    broker: Arc::clone(&self.broker),
                    process: Arc::clone(&self.process),
                    tag,
                    event: event.with_delivery(message.deliveries),
                };
                let (consumer, number) = (self.clone(), message.number);
                tokio::spawn(async move {
                    let properly = delivery.settle(|| consumer.handle(delivery.event(), number));
                    consumer.settle(&delivery, number, properly).await;
                });
            }
            changed.await;
        }
    }

    /// Settles a delivery as a planted bug does, or `properly`.
    async fn settle<D: semel_events::Delivery, A: Debug>(
        &self,
        delivery: &D,
        number: u32,
        properly: impl Future<Output = Settled<A>>,
    ) {
        let event = delivery.event();
        match self.broker.bug {
            Some(Bug::AcknowledgesFirst) => {
                delivery.tell(Verdict::Acknowledge).await.ok();
                self.handle(event, number).await.ok();
            }
            Some(Bug::AcknowledgesFailed) => {
                self.handle(event, number).await.ok();
                delivery.tell(Verdict::Acknowledge).await.ok();
            }
            Some(Bug::GivesBack) if self.broker.setup.kind != Kind::Kafka => {
                let verdict = match self.handle(event, number).await {
                    Err(_) => Verdict::Again(Duration::from_secs(1)),
                    answer => Verdict::from(&answer),
                };
                delivery.tell(verdict).await.ok();
            }
            _ => {
                let Settled { answer, .. } = properly.await;
                let at = self.process.number;
                let world = &self.broker.world;
                world.say(|| format!("event {number} at {at}: {answer:?}"));
            }
        }
    }

    /// As a member of a group.
    async fn poll(self) {
        let (broker, process) = (&self.broker, &self.process);
        let mut offsets = Offsets::new();
        let mut positions: [Option<usize>; PARTITIONS] = [None; PARTITIONS];
        let mut incarnation = 0;
        // Polled, and not yet in the hands of a task.
        let mut buffer: VecDeque<(Message, u32)> = VecDeque::new();
        loop {
            let changed = broker.changed.notified();
            process.gate().await;
            if self.stops.load(Ordering::Relaxed) {
                return;
            }
            let (me, number) = (Some(process.number), process.number);
            let now = broker.inside.lock().incarnation;
            let is_member = broker.has(number);
            for (place, partition) in (0..PARTITIONS).zip(0..) {
                let (wanted, owner, committed) = {
                    let known = &broker.inside.lock().partitions[place];
                    (known.wanted, known.owner, known.committed)
                };
                let has_lost = owner != me || now != incarnation || !is_member;
                if positions[place].is_some() && (has_lost || wanted != me) {
                    positions[place] = None;
                    let last = match broker.bug {
                        // It remembers nothing, and takes what comes as assigned.
                        Some(Bug::CommitsRevoked) => {
                            offsets = Offsets::new();
                            None
                        }
                        _ => offsets.revoked(TOPIC, partition),
                    };
                    let world = &broker.world;
                    world.say(|| format!("{number} gives up partition {partition}"));
                    if let Some(last) = last.filter(|_| !has_lost) {
                        broker.commit(number, incarnation, &last);
                    }
                    broker.change(|inside| {
                        let owner = &mut inside.partitions[place].owner;
                        *owner = owner.filter(|owner| *owner != number);
                    });
                } else if wanted == me && owner.is_none() && is_member {
                    broker.inside.lock().partitions[place].owner = me;
                    let world = &broker.world;
                    world.say(|| format!("{number} has partition {partition} from {committed}"));
                    if broker.bug != Some(Bug::CommitsRevoked) {
                        offsets.assigned(TOPIC, partition);
                    }
                    positions[place] = Some(committed);
                }
            }
            incarnation = now;
            if !is_member {
                broker.join(number);
            }
            for (partition, position) in (0..).zip(&mut positions) {
                let Some(position) = position else {
                    continue;
                };
                let next = broker.logged(partition, *position);
                if let Some(next) = next.filter(|_| buffer.len() < broker.setup.prefetch) {
                    *position = next.offset + 1;
                    buffer.push_back((broker.message(&next, partition, now), next.number));
                }
            }
            // Some wait for a while.
            let own = (0..)
                .zip(&positions)
                .filter(|(_, position)| position.is_some());
            let in_hand: usize = own
                .map(|(partition, _)| offsets.unfinished(TOPIC, partition))
                .sum();
            if in_hand < broker.setup.prefetch
                && !broker.world.one_in(3)
                && let Some((message, number)) = buffer.pop_front()
            {
                let delivery = offsets.delivery(message);
                let (consumer, offsets) = (self.clone(), offsets.clone());
                tokio::spawn(async move {
                    let handle = || consumer.handle(delivery.event(), number);
                    let properly = until_settled(&delivery, handle);
                    consumer.settle(&delivery, number, properly).await;
                    drop(offsets);
                    consumer.broker.changed.notify_waiters();
                });
            }
            for commit in offsets.to_commit() {
                let is_lost = !broker.is_calm() && broker.world.one_in(4);
                if !is_lost && broker.commit(number, incarnation, &commit) {
                    offsets.committed(&commit);
                }
            }
            let pause = match buffer.is_empty() {
                true => Duration::from_secs(1),
                false => broker.world.millis(1..40),
            };
            timeout(pause, changed).await.ok();
        }
    }

    /// Has an event handled once.
    async fn handle(&self, event: &Event, number: u32) -> Answer<&'static str> {
        self.process.gate().await;
        let (broker, process) = (Arc::clone(&self.broker), Arc::clone(&self.process));
        let name = (event.source().to_owned(), event.id().to_owned());
        broker.inside.lock().named.insert(name, number);
        let received = self.inbox.receive(event, move |attempt| async move {
            let world = &broker.world;
            process.gate().await;
            world.saw("attempt");
            let lease = millis(broker.setup.lease);
            let long = || world.work(4, lease * 2, lease / 8);
            process.rest(long()).await;
            let is_poison = broker.inside.lock().poison.contains(&number);
            if is_poison || !broker.is_calm() && world.one_in(6) {
                return Err("busy");
            }
            let fence = attempt.fence.0;
            if broker.inside.lock().closed.get(&number) >= Some(&fence) {
                world.saw("fence closed");
                return Err("a reconciler said that this attempt had no effect");
            }
            world.saw("effect");
            world.say(|| {
                format!(
                    "effect of event {number} under {fence} in {}",
                    process.number
                )
            });
            {
                let mut inside = broker.inside.lock();
                let effects = inside.effects.entry(number).or_default();
                let is_second = !effects.is_empty() && broker.setup.on_lost != OnLost::Retry;
                if is_second || effects.contains(&fence) {
                    world.wrong(format!(
                        "two effects of event {number}: under {effects:?} and {fence}"
                    ));
                }
                effects.push(fence);
            }
            process.rest(long()).await;
            Ok(())
        });
        let answer = received.await;
        if answer.is_ok() {
            self.broker.done(number);
        }
        answer
    }
}

impl Broker {
    /// An event that no delivery would run, or that failed too often.
    fn set_aside(&self, letter: &DeadLetter) {
        self.world.saw("dead letter");
        let number = std::str::from_utf8(letter.event.body()).ok();
        let number: u32 = number
            .and_then(|number| number.parse().ok())
            .unwrap_or(u32::MAX);
        match letter.reason {
            Reason::Failed => {
                let inside = self.inside.lock();
                let has_effect = inside.effects.contains_key(&number);
                if has_effect && self.setup.on_lost != OnLost::Retry {
                    self.world.wrong(format!(
                        "event {number} was set aside as failed, and it had its effect"
                    ));
                }
            }
            // A reconciler will know, or the process itself.
            Reason::Unknown if self.setup.on_lost == OnLost::Hold && !self.setup.is_alone => {}
            reason => self
                .world
                .wrong(format!("event {number} was set aside: {reason:?}")),
        }
    }
}

/// Knows which events had their effect, when it can be asked.
struct Books {
    broker: Arc<Broker>,
    process: Arc<Process>,
}

impl Reconciler for Books {
    fn reconcile<'a>(&'a self, case: &'a Case<'_>) -> Answered<'a> {
        Box::pin(async move {
            let Broker { world, inside, .. } = &*self.broker;
            self.process.gate().await;
            self.process.rest(world.millis(0..20)).await;
            if !self.broker.is_calm() && world.one_in(2) {
                world.saw("reconciler away");
                return Err("the books are away".into());
            }
            world.saw("reconciled");
            let mut inside = inside.lock();
            let source = case.scope.segments().last().unwrap_or_default();
            let name = (
                source.to_owned(),
                case.key
                    .map_or_else(String::new, |key| key.as_str().to_owned()),
            );
            let Some(&number) = inside.named.get(&name) else {
                world.wrong(format!("a reconciler is asked about {name:?}"));
                return Ok(Finding::StillUnknown.into());
            };
            if inside.effects.contains_key(&number) {
                return Ok(Finding::Happened(Outcome::void()).into());
            }
            let closed = inside.closed.entry(number).or_default();
            *closed = case.fence.0.max(*closed);
            Ok(Finding::DidNotHappen.into())
        })
    }
}

/// Runs a seed.
pub(super) async fn run(world: &World, bug: Option<Bug>) {
    let setup = Setup::of(world);
    world.say(|| format!("{setup:?}"));
    let outage = world.one_in(3).then(|| world.millis(5_000..60_000));
    let calm_from = Instant::now() + setup.faults + outage.unwrap_or_default();
    let weather = match setup.is_alone {
        // A copy that the network makes, or that arrives after other attempts in between, is begun for nobody.
        true => Weather::of(world, Duration::from_millis(500)).without_copies(),
        false => Weather::of(world, setup.lease * 3),
    };
    let server = Server::new(world, weather, calm_from, bug);
    if let Some(outage) = outage {
        world.saw("outage");
        server.goes_away(setup.faults / 2, outage);
    }
    let broker = Arc::new(Broker {
        world: world.clone(),
        setup,
        calm_from,
        bug,
        inside: Mutex::default(),
        changed: Notify::new(),
    });
    {
        let mut inside = broker.inside.lock();
        inside
            .partitions
            .resize_with(PARTITIONS, Partition::default);
    }
    let at = Arc::clone(&broker);
    // A delivery limit is there for consumers that die: not so many of them in one outage.
    let until = Instant::now() + setup.faults;
    let fleet = Fleet::new(world, setup.lease, until, move |process| {
        let policy = Policy::event()
            .with_lease(setup.lease)
            .with_retention(Retention::EVENT)
            .with_on_lost(setup.on_lost);
        let aside = Arc::clone(&at);
        let books = Books {
            broker: Arc::clone(&at),
            process: Arc::clone(process),
        };
        let guard = Guard::builder(Wire::new(&server, process)).reconciler(Arc::new(books));
        let inbox = Inbox::new(guard.build(), "billing")
            .with_policy(policy)
            .with_max_attempts(4)
            .with_dead_letters(move |letter| {
                aside.set_aside(&letter);
                async { Ok::<_, std::io::Error>(()) }
            });
        let consumer = Consumer {
            broker: Arc::clone(&at),
            process: Arc::clone(process),
            inbox,
            stops: Arc::default(),
        };
        tokio::spawn(consumer.clone().consume());
        consumer
    });
    let most = if setup.is_alone { 1 } else { 3 };
    for _ in 0..world.draw(|chance| chance.u32(1..=most)) {
        fleet.start();
    }
    let publishing = vec![tokio::spawn(publish(Arc::clone(&broker)))];
    fleet
        .until_calm(calm_from, !setup.is_alone, publishing)
        .await;
    if !setup.is_alone {
        fleet.start();
    }
    let ending = async {
        while !broker.is_over() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    if timeout(PATIENCE, ending).await.is_err() {
        world.wrong("the broker still has events twenty minutes after the last fault");
    }
    let inside = broker.inside.lock();
    for lost in inside.published.difference(&inside.done) {
        world.wrong(format!("event {lost} was never handled"));
    }
    drop(inside);
    fleet.end();
}

/// Events come, partitions move, and the topic may be made anew, until it is calm.
async fn publish(broker: Arc<Broker>) {
    let world = &broker.world;
    let lease = millis(broker.setup.lease);
    let mut may_be_recreated = broker.setup.is_recreated;
    for _ in 0..world.draw(|chance| chance.u32(4..=12)) {
        broker.publish();
        sleep(world.millis(0..lease)).await;
        if world.one_in(4) {
            broker.assign();
        }
        if world.one_in(8) {
            let members: Vec<u32> = broker.inside.lock().members.iter().copied().collect();
            if !members.is_empty() {
                broker.leave(world.pick(&members));
            }
        }
        if may_be_recreated && world.one_in(6) {
            may_be_recreated = false;
            broker.recreate();
        }
    }
}
