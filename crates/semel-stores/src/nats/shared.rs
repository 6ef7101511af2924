//! What a handle's calls and its listening task share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{ConsumerErrorKind, Info, PurgeErrorKind};
use bytes::Bytes;
use semel::store::{Fence, Probe, Result};
use semel::{IdentityDigest, State, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::bucket;
use super::clock::{Mark, ServerClock};
use super::effort::Effort;
use super::frame::Row;
use super::link::{Link, timestamp};
use super::options::NatsOptions;
use super::seen::Seen;
use super::sweep::Sweep;
use super::watch::Listener;
use crate::common::subscription::Subscription;
use crate::common::{Gate, Running, Waiters};

pub(super) struct Shared {
    pub(super) link: Link,
    pub(super) clock: ServerClock,
    pub(super) seen: Seen,
    pub(super) waiters: Arc<Waiters>,
    pub(super) gate: Gate,
    subscription: Subscription,
    /// Told by each look of a waiter.
    looks: Arc<Notify>,
    pub(super) sweep: tokio::sync::Mutex<Sweep>,
    pub(super) for_tests: bool,
    /// When the stream was made, in microseconds: fences count from there.
    base: AtomicU64,
    /// How often the stream may have been made anew, and as of which time `base` was read.
    made: AtomicU64,
    read: AtomicU64,
    copies: AtomicUsize,
}

impl Shared {
    pub(super) async fn open(options: &NatsOptions) -> Result<Arc<Self>> {
        let link = Link::connect(options).await?;
        let info = bucket::open(&link, options).await?;
        let waiters = Arc::<Waiters>::default();
        let this = Self {
            link,
            clock: ServerClock::default(),
            seen: Seen::default(),
            subscription: Subscription::new(waiters.clone()),
            looks: Arc::default(),
            waiters,
            gate: Gate::new("nats"),
            sweep: tokio::sync::Mutex::default(),
            for_tests: options.for_tests,
            base: AtomicU64::new(0),
            made: AtomicU64::new(0),
            read: AtomicU64::new(0),
            copies: AtomicUsize::new(1),
        };
        this.note(&info);
        this.time(&mut this.effort()).await?;
        Ok(Arc::new(this))
    }

    fn note(&self, info: &Info) {
        let base = timestamp(info.created).as_micros();
        if self.base.swap(base, Ordering::SeqCst) != base {
            // Another stream than before: its sequences mean something else.
            self.seen.clear();
        }
        self.copies
            .store(info.config.num_replicas, Ordering::Relaxed);
    }

    /// Looks at the stream again.
    pub(super) async fn refresh(&self, effort: &mut Effort) -> Result<Info> {
        let asked = self.link.ask(effort, async |patience| {
            // Before the question: what happens meanwhile makes it old again.
            let made = self.made.load(Ordering::SeqCst);
            self.link.info(patience).await.map(|info| (info, made))
        });
        let (info, made) = asked.await?;
        self.note(&info);
        self.read.fetch_max(made, Ordering::SeqCst);
        Ok(info)
    }

    /// The stream may have been made anew.
    pub(super) fn base_is_old(&self) {
        self.made.fetch_add(1, Ordering::SeqCst);
    }

    /// What is added to a message's sequence to make its fence.
    pub(super) async fn base(&self, effort: &mut Effort) -> Result<u64> {
        if self.read.load(Ordering::SeqCst) < self.made.load(Ordering::SeqCst) {
            self.refresh(effort).await?;
        }
        Ok(self.base.load(Ordering::SeqCst))
    }

    /// Whether a fence was given out by a later message than this, where reads can be late.
    pub(super) fn issued_after(&self, fence: Fence, sequence: u64) -> bool {
        let seen = self.base.load(Ordering::SeqCst).saturating_add(sequence);
        self.copies.load(Ordering::Relaxed) > 1 && fence.0 > seen
    }

    /// A consumer from here on, for a short while. It tells the server's time.
    pub(super) async fn consumer(
        &self,
        effort: &mut Effort,
        from: DeliverPolicy,
    ) -> Result<PullConsumer> {
        let config = pull::Config {
            deliver_policy: from,
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(10),
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let link = &self.link;
        let created = async |patience| {
            let asked = Instant::now();
            let created = link.stream.create_consumer(config.clone());
            match link.answered(patience, created).await? {
                Ok(consumer) => Ok((consumer, asked)),
                Err(e) => Err(match e.kind() {
                    ConsumerErrorKind::JetStream(said) => link.refused(said),
                    _ => link.unanswered(&e),
                }),
            }
        };
        let (consumer, asked) = link.ask(effort, created).await?;
        self.clock.sample(created_at(&consumer), asked);
        Ok(consumer)
    }

    /// What time the server has, asked now.
    pub(super) async fn time(&self, effort: &mut Effort) -> Result<Mark> {
        let consumer = self.consumer(effort, DeliverPolicy::New).await?;
        let time = Mark::new(created_at(&consumer));
        self.drop_consumer(&consumer).await;
        Ok(time)
    }

    /// The server's time, as far as it is known. Beside the step that uses it the server is asked now and then.
    pub(super) fn now(self: &Arc<Self>) -> Timestamp {
        if self.clock.is_due() {
            let this = Arc::clone(self);
            // No step: closing does not wait for it.
            tokio::spawn(async move {
                let mut effort = Effort::new(this.link.timeout);
                let _ = this.time(&mut effort).await;
            });
        }
        self.clock.now()
    }

    /// Removes a consumer that is not needed any more. The server does so too, a little later.
    pub(super) async fn drop_consumer(&self, consumer: &PullConsumer) {
        let name = &consumer.cached_info().name;
        let deleted = self.link.stream.delete_consumer(name);
        let _ = self.link.answered(Duration::from_secs(1), deleted).await;
    }

    /// A look of one who waits.
    pub(super) async fn is_running(
        self: &Arc<Self>,
        identity: &IdentityDigest,
        fence: Fence,
    ) -> Result<Running> {
        let _step = self.gate.enter()?;
        self.subscription.start(|| Listener {
            shared: Arc::downgrade(self),
            waiters: self.waiters.clone(),
            looks: self.looks.clone(),
        });
        self.looks.notify_one();
        let hears = self.subscription.is_up();
        let row = self.row(identity).await?;
        let runs = |row: &Row| {
            let record = &row.entry.record;
            record.state == State::InFlight && record.token.fence == fence
        };
        Ok(match row {
            Some(row) if runs(&row) && hears => Running::Yes,
            Some(row) if runs(&row) => Running::Unheard,
            _ => Running::No,
        })
    }

    /// What the bucket promises, if this user may write and a leader takes it: found out with a write that is
    /// certainly refused.
    pub(super) async fn probe(&self) -> Result<Probe> {
        let mut effort = self.effort();
        let info = self.refresh(&mut effort).await?;
        bucket::check(&self.link, &info)?;
        let nobody = IdentityDigest::from_bytes([0; 32]);
        // No sequence is this high.
        let expected = u64::MAX >> 1;
        let link = &self.link;
        let put = |patience| link.put(&nobody, expected, Bytes::new(), patience);
        link.ask(&mut effort, put).await?;
        let (durability, warnings) = bucket::promise(&info);
        Ok(Probe {
            store: "nats",
            durability,
            warnings,
        })
    }

    /// Removes every record.
    pub(super) async fn empty(&self) -> Result<()> {
        let purged = async |patience| {
            let purged = self.link.stream.purge().into_future();
            let purged = self.link.answered(patience, purged).await?;
            purged.map_err(|e| match e.kind() {
                PurgeErrorKind::JetStream(said) => self.link.refused(said),
                _ => self.link.unanswered(&e),
            })
        };
        self.link.ask(&mut self.effort(), purged).await?;
        self.seen.clear();
        *self.sweep.lock().await = Sweep::default();
        Ok(())
    }

    /// Ends what runs beside the calls, and the connection.
    pub(super) async fn end(&self) {
        self.subscription.stop();
        // A server that does not answer does not hold up closing.
        let drained = self.link.client.drain();
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
    }
}

fn created_at(consumer: &PullConsumer) -> Timestamp {
    timestamp(consumer.cached_info().created)
}
