//! What a handle's calls and its watching task share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Info;
use semel::StoreError;
use semel::store::{Fence, Result};
use tokio::time::Instant;

use super::clock::ServerClock;
use super::effort::Effort;
use super::link::{Link, Trouble, timestamp};
use super::options::NatsOptions;
use super::seen::Seen;
use super::sweep::Sweep;
use super::watch::Watch;
use super::{NatsStore, bucket};
use crate::common::{Gate, Waiters};

pub(super) struct Shared {
    pub(super) link: Link,
    pub(super) clock: ServerClock,
    pub(super) seen: Seen,
    pub(super) waiters: Arc<Waiters>,
    pub(super) gate: Gate,
    pub(super) watch: Watch,
    pub(super) sweep: tokio::sync::Mutex<Sweep>,
    pub(super) for_tests: bool,
    /// When the stream was made, in microseconds: fences count from there.
    base: AtomicU64,
    /// The stream may have been made anew since `base` was read.
    old: AtomicBool,
    copies: AtomicUsize,
    /// The largest message that the bucket takes; 0: what the server takes.
    largest: AtomicUsize,
}

impl Shared {
    pub(super) async fn open(options: &NatsOptions) -> Result<Arc<Self>> {
        let link = Link::connect(options).await?;
        let info = bucket::open(&link, options).await?;
        let asked = Instant::now();
        let consumer = consumer(&link, DeliverPolicy::New).await;
        let consumer = consumer.map_err(unclassified)?;
        let created = timestamp(consumer.cached_info().created);
        let this = Self {
            link,
            clock: ServerClock::new(created, asked),
            seen: Seen::default(),
            waiters: Arc::default(),
            gate: Gate::new("nats"),
            watch: Watch::default(),
            sweep: tokio::sync::Mutex::default(),
            for_tests: options.for_tests,
            base: AtomicU64::new(0),
            old: AtomicBool::new(false),
            copies: AtomicUsize::new(1),
            largest: AtomicUsize::new(0),
        };
        this.note(&info);
        this.drop_consumer(&consumer).await;
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
        let largest = usize::try_from(info.config.max_message_size).unwrap_or(0);
        self.largest.store(largest, Ordering::Relaxed);
    }

    /// Looks at the stream again.
    pub(super) async fn refresh(&self, effort: &mut Effort) -> Result<Info> {
        loop {
            let connected = self.link.connected(effort.until).await;
            connected.map_err(|e| effort.failed(e))?;
            // Before the question: what happens meanwhile makes it old again.
            self.old.store(false, Ordering::SeqCst);
            match self.link.info(effort.patience()).await {
                Ok(info) => {
                    self.note(&info);
                    return Ok(info);
                }
                Err(trouble) => {
                    self.old.store(true, Ordering::SeqCst);
                    match trouble {
                        Trouble::Nobody(e) | Trouble::Silence(e) => effort.pause(e).await?,
                        Trouble::Final(e) => return Err(e),
                    }
                }
            }
        }
    }

    /// The stream may have been made anew.
    pub(super) fn base_is_old(&self) {
        self.old.store(true, Ordering::SeqCst);
    }

    /// What is added to a message's sequence to make its fence.
    pub(super) async fn base(&self, effort: &mut Effort) -> Result<u64> {
        if self.old.load(Ordering::SeqCst) {
            self.refresh(effort).await?;
        }
        Ok(self.base.load(Ordering::SeqCst))
    }

    /// Whether a fence was given out by a later message than this, where reads can be late.
    pub(super) fn issued_after(&self, fence: Fence, sequence: u64) -> bool {
        let seen = self.base.load(Ordering::SeqCst).saturating_add(sequence);
        self.copies.load(Ordering::Relaxed) > 1 && fence.0 > seen
    }

    /// The largest message that can be stored.
    pub(super) fn limit(&self) -> usize {
        let server = self.link.client().max_payload();
        match self.largest.load(Ordering::Relaxed) {
            0 => server,
            largest => largest.min(server),
        }
    }

    /// A consumer from here on, for a short while. It tells the server's time.
    pub(super) async fn consumer(&self, from: DeliverPolicy) -> Result<PullConsumer, Trouble> {
        let asked = Instant::now();
        let consumer = consumer(&self.link, from).await?;
        let created = timestamp(consumer.cached_info().created);
        self.clock.sample(created, asked);
        Ok(consumer)
    }

    /// Removes a consumer that is not needed any more. The server does so too, a little later.
    pub(super) async fn drop_consumer(&self, consumer: &PullConsumer) {
        let name = &consumer.cached_info().name;
        let deleted = self.link.stream().delete_consumer(name);
        let _ = self.link.answered(Duration::from_secs(1), deleted).await;
    }

    /// Removes every record.
    pub(super) async fn empty(&self, now: Instant) -> Result<()> {
        let until = now + self.link.timeout();
        self.link.connected(until).await?;
        let purged = self.link.stream().purge();
        let patience = self.link.timeout();
        let asked = async { purged.await };
        match self.link.answered(patience, asked).await {
            Ok(Ok(_)) => {
                self.seen.clear();
                *self.sweep.lock().await = Sweep::default();
                Ok(())
            }
            Ok(Err(e)) => Err(unclassified(self.link.unanswered(&e))),
            Err(trouble) => Err(unclassified(trouble)),
        }
    }

    /// Ends what runs beside the calls, and the connection.
    pub(super) async fn end(&self) {
        self.watch.stop();
        // A server that does not answer does not hold up closing.
        let drained = self.link.client().drain();
        let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
    }
}

async fn consumer(link: &Link, from: DeliverPolicy) -> Result<PullConsumer, Trouble> {
    let config = pull::Config {
        deliver_policy: from,
        ack_policy: AckPolicy::None,
        inactive_threshold: Duration::from_secs(10),
        memory_storage: true,
        num_replicas: 1,
        ..pull::Config::default()
    };
    let created = link.stream().create_consumer(config);
    match link.answered(link.timeout(), created).await? {
        Ok(consumer) => Ok(consumer),
        Err(e) => Err(match e.kind() {
            async_nats::jetstream::stream::ConsumerErrorKind::JetStream(said) => link.refused(said),
            _ => link.unanswered(&e),
        }),
    }
}

/// The error in a trouble of a request that changes no record.
pub(super) fn unclassified(trouble: Trouble) -> StoreError {
    match trouble {
        Trouble::Nobody(e) | Trouble::Final(e) => e,
        Trouble::Silence(e) => {
            StoreError::new(semel::StoreErrorKind::NotApplied, e.to_string()).with_source(e)
        }
    }
}

impl NatsStore {
    /// Finds out whether this user may write and whether a leader takes it: with a write that is
    /// certainly refused.
    pub(super) async fn may_write(&self, effort: &mut Effort) -> Result<()> {
        let nobody = semel::IdentityDigest::from_bytes([0; 32]);
        let nothing = bytes::Bytes::new();
        // No sequence is this high.
        let expected = u64::MAX >> 1;
        let put = self
            .shared
            .link
            .put(&nobody, expected, nothing, effort.patience());
        match put.await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(unclassified(trouble)),
        }
    }
}
