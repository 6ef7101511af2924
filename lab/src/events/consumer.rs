//! The process that is killed: it takes deliveries, and acknowledges what its inbox gives a receipt
//! for.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel::guard::{Policy, TransactOptions};
use semel::inbox::{DeadLetter, Event, Inbox, InboxError, Receipt};
use semel::store::{OnLost, Retention};
use semel::transaction::{Isolation, Lent, Transactional as _};
use semel::versioned::VersionedIn;
use semel_stores::{MysqlStore, PostgresStore, SqliteStore};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::apply::{Tables, apply};
use super::broker::{Delivery, Kind};
use super::bugs::Bug;
use super::options::{Options, Storm};
use super::plan::Happening;
use super::shelf::Line;
use crate::base::{Base, Database};
use crate::crash::failpoints::Failpoints;
use crate::crash::point::Point;
use crate::crash::pointed::Pointed;
use crate::lines::Lines;
use crate::process::{Orders, say};
use crate::versioned;

/// How many deliveries a consumer takes at once that takes them in batches.
const BATCH: usize = 16;
/// So often an event may fail.
pub(super) const MAX_ATTEMPTS: u32 = 5;

/// What a consumer is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(super) options: Options,
    pub(super) url: String,
    /// What tells this run's events and tables from those of others.
    pub(super) run: String,
    pub(super) batches: bool,
    /// How many deliveries, or batches, it handles beside each other.
    pub(super) slots: usize,
    /// Where its dead letters go; some events cannot be handled then.
    pub(super) letters: Option<PathBuf>,
}

/// What the parent tells a consumer: a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// To one of its slots.
    Deliver(usize, Vec<Delivery>),
    /// Come to this point, the so-many-th time that it is passed.
    Arm(Option<(Point, u32)>),
    /// Go on from where it stands.
    Go,
}

/// What a consumer tells the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// A slot takes at most so many deliveries.
    Pull(usize, usize),
    /// Needs no further delivery.
    Acknowledge(u64, Kind),
    /// Is to be delivered again.
    Refuse {
        message: u64,
        after_ms: u64,
        why: String,
    },
    /// It is there.
    At(Point),
}

/// The consumer's process. Its input ends with its parent, and so does it.
pub(crate) async fn run(settings: Settings) -> Result<()> {
    match settings.options.database {
        Database::Postgres => obey::<PostgresStore>(settings).await,
        Database::Sqlite => obey::<SqliteStore>(settings).await,
        Database::Mysql => obey::<MysqlStore>(settings).await,
    }
}

async fn obey<B: Base + VersionedIn>(settings: Settings) -> Result<()> {
    let consumer = Arc::new(Consumer::<B>::open(settings).await?);
    let mut slots: Vec<UnboundedSender<Vec<Delivery>>> = Vec::new();
    for number in 0..consumer.settings.slots {
        let (slot, deliveries) = unbounded_channel();
        slots.push(slot);
        tokio::spawn(work(consumer.clone(), number, deliveries));
    }
    let mut orders = Orders::new();
    while let Some(order) = orders.next().await? {
        match order {
            Order::Arm(point) => consumer.points.arm(point),
            Order::Go => consumer.points.go(),
            Order::Deliver(slot, deliveries) => {
                let slot = slots.get(slot).context("there is no such slot")?;
                slot.send(deliveries).context("a slot ended")?;
            }
        }
    }
    Ok(())
}

async fn work<B: Base + VersionedIn>(
    consumer: Arc<Consumer<B>>,
    slot: usize,
    mut deliveries: UnboundedReceiver<Vec<Delivery>>,
) {
    let most = if consumer.settings.batches { BATCH } else { 1 };
    loop {
        say(&Said::Pull(slot, most));
        let Some(delivered) = deliveries.recv().await else {
            return;
        };
        consumer.handle(&delivered).await;
    }
}

fn policy(settings: &Settings) -> Policy {
    Policy::default()
        .with_retention(Retention::EVENT)
        .with_lease(settings.options.lease)
}

/// A consumer's insides.
#[derive(Debug)]
pub(crate) struct Consumer<B: Base> {
    settings: Settings,
    inbox: Inbox<Pointed<B>>,
    shelf: Option<Arc<Lines>>,
    pub(crate) store: Arc<B>,
    pub(crate) points: Arc<Failpoints>,
    pub(crate) tables: Tables,
}

impl<B: Base + VersionedIn> Consumer<B> {
    async fn open(settings: Settings) -> Result<Self> {
        let points = Arc::new(Failpoints::new(|point, _| say(&Said::At(point))));
        let store = B::open(&settings.url).await.context("a consumer's store")?;
        let store = Arc::new(store);
        let again = settings.options.bug == Some(Bug::RunsAgain);
        let store_bug = again.then_some(crate::crash::Bug::RunsAgain);
        let pointed = Pointed::new(store.clone(), points.clone(), store_bug, None);
        let inbox = Inbox::new(pointed, "lab");
        let mut inbox = inbox
            .with_policy(policy(&settings))
            .with_max_attempts(MAX_ATTEMPTS);
        let shelf = settings.letters.as_deref().map(Lines::open).transpose()?;
        let shelf = shelf.map(Arc::new);
        if let Some(shelf) = &shelf {
            let later = settings.options.bug == Some(Bug::KeepsLater);
            inbox = inbox.with_dead_letters(shelve(shelf.clone(), points.clone(), later));
        }
        Ok(Self {
            inbox,
            shelf,
            tables: Tables::of(&settings.run),
            settings,
            store,
            points,
        })
    }

    pub(crate) fn run(&self) -> &str {
        &self.settings.run
    }

    pub(crate) fn overwrites(&self) -> bool {
        self.settings.options.bug == Some(Bug::Overwrites)
    }

    fn happening(&self, delivery: &Delivery) -> Happening {
        self.happens(delivery.event)
    }

    fn happens(&self, event: u64) -> Happening {
        let poison = self.settings.letters.is_some();
        Happening::of(self.settings.options.seed, event).with_poison(poison)
    }

    fn event(&self, delivery: &Delivery) -> Event {
        let number = delivery.event.to_string();
        let body = format!("event {number}");
        Event::new(format!("lab-{}", self.run()), number, body).with_delivery(delivery.times)
    }

    async fn handle(&self, delivered: &[Delivery]) {
        let (inside, outside): (Vec<Delivery>, Vec<Delivery>) = delivered
            .iter()
            .partition(|delivery| self.is_inside(&self.happening(delivery)));
        match inside.as_slice() {
            _ if self.settings.options.bug == Some(Bug::NoInbox) => self.plainly(&inside).await,
            _ if self.settings.options.bug == Some(Bug::CommitsApart) => self.apart(&inside).await,
            [] => {}
            [one] if !self.settings.batches => self.one(one).await,
            several => self.batch(several).await,
        }
        for delivery in &outside {
            let told = versioned::update(self, &self.happening(delivery)).await;
            match told {
                Ok(kind) => say(&Said::Acknowledge(delivery.message, kind)),
                Err(why) => refuse(delivery, Duration::from_millis(20), why),
            }
        }
    }

    /// Whether the inbox's transaction has the effect: not where a record's version alone is to see
    /// to it, as it does for every other asset.
    fn is_inside(&self, event: &Happening) -> bool {
        self.settings.options.storm == Storm::Events || event.asset.is_multiple_of(2)
    }

    async fn one(&self, delivery: &Delivery) {
        let work = self.work();
        let happening = self.happening(delivery);
        let receipt = self
            .inbox
            .transact(&self.event(delivery), options(delivery), move |_, tx| {
                work(tx, vec![happening])
            })
            .await;
        self.tell(delivery, receipt);
    }

    async fn batch(&self, delivered: &[Delivery]) {
        let events: Vec<Event> = delivered.iter().map(|one| self.event(one)).collect();
        let (work, seed) = (self.work(), self.settings.options.seed);
        let poison = self.settings.letters.is_some();
        let receipts = self
            .inbox
            .transact_batch(&events, TransactOptions::default(), move |new, tx| {
                let number = |event: &Event| event.id().parse().unwrap_or(u64::MAX);
                let new = new.events.iter();
                let events = new.map(|(event, _)| Happening::of(seed, number(event)));
                work(tx, events.map(|event| event.with_poison(poison)).collect())
            })
            .await;
        for (delivery, receipt) in delivered.iter().zip(receipts) {
            self.tell(delivery, receipt);
        }
    }

    /// Of a planted bug.
    async fn plainly(&self, delivered: &[Delivery]) {
        for delivery in delivered {
            match alone(self.store.clone(), self.work(), self.happening(delivery)).await {
                Ok(()) => say(&Said::Acknowledge(delivery.message, Kind::Duplicate)),
                Err(why) => refuse(delivery, Duration::ZERO, why),
            }
        }
    }

    /// Of a planted bug.
    async fn apart(&self, delivered: &[Delivery]) {
        let inbox = self.inbox.clone();
        let inbox = inbox.with_policy(policy(&self.settings).with_on_lost(OnLost::Retry));
        for delivery in delivered {
            let (store, work, points) = (self.store.clone(), self.work(), self.points.clone());
            let (event, happening) = (self.event(delivery), self.happening(delivery));
            let receipt = inbox.receive(&event, async move |_| {
                alone(store, work, happening).await?;
                for point in [Point::Completing, Point::BeforeCommit, Point::Committed] {
                    points.pass(point).await;
                }
                anyhow::Ok(())
            });
            self.tell(delivery, receipt.await);
        }
    }

    /// The broker is told only once there is a receipt.
    fn tell<E: Display>(&self, delivery: &Delivery, receipt: Result<Receipt, InboxError<E>>) {
        let error = match receipt {
            Ok(receipt) => {
                let kind = match receipt {
                    Receipt::Handled => Kind::Handled,
                    Receipt::Duplicate => Kind::Duplicate,
                    Receipt::DeadLettered => Kind::SetAside,
                };
                return say(&Said::Acknowledge(delivery.message, kind));
            }
            Err(error) => error,
        };
        if let (Some(Bug::ShelvesRefused), Some(shelf)) = (self.settings.options.bug, &self.shelf) {
            // Of a planted bug: what cannot be written fails the run.
            let _ = shelf.append(&Line::Kept(delivery.event, MAX_ATTEMPTS));
        }
        refuse(delivery, error.retry_after(), error);
    }

    /// What happens to an event's asset.
    fn work(&self) -> impl Fn(Lent<B::Transaction>, Vec<Happening>) -> Working<B> + Send + use<B> {
        let (tables, points) = (self.tables.clone(), self.points.clone());
        let (store, run) = (self.store.clone(), self.run().to_owned());
        let (storm, overwrites) = (self.settings.options.storm, self.overwrites());
        move |tx, events| {
            let (tables, points) = (tables.clone(), points.clone());
            let (store, run) = (store.clone(), run.clone());
            Box::pin(async move {
                match storm {
                    Storm::Events => apply::<B>(tx, tables, events, &points).await,
                    Storm::Versioned => {
                        let change = versioned::Change {
                            store,
                            run,
                            tables,
                            overwrites,
                        };
                        change.all(tx, events, &points).await
                    }
                }
            })
        }
    }
}

type Shelving = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// The callback for dead letters. `later` is a planted bug.
fn shelve(
    shelf: Arc<Lines>,
    points: Arc<Failpoints>,
    later: bool,
) -> impl Fn(DeadLetter) -> Shelving + Send + Sync {
    move |letter| {
        let (shelf, points) = (shelf.clone(), points.clone());
        Box::pin(async move {
            let event = letter.event.id().parse().map_err(io::Error::other)?;
            shelf.append(&Line::Asked(event))?;
            points.pass(Point::HandingOver).await;
            if later {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    shelf.append(&Line::Kept(event, letter.attempts))
                });
                return Ok(());
            }
            shelf.append(&Line::Kept(event, letter.attempts))?;
            points.pass(Point::HandedOver).await;
            Ok(())
        })
    }
}

type Working<B> = Pin<Box<dyn Future<Output = Result<(), Failed<<B as Base>::Error>>> + Send>>;

/// In a transaction that nobody completes anything in.
async fn alone<B: Base>(
    store: Arc<B>,
    work: impl Fn(Lent<B::Transaction>, Vec<Happening>) -> Working<B>,
    event: Happening,
) -> Result<(), anyhow::Error> {
    let tx = store.begin(Isolation::ReadCommitted).await?;
    let (lent, loan) = Lent::new(tx);
    work(lent, vec![event]).await?;
    let tx = loan.take_back().context("the transaction is gone")?;
    store.commit(tx).await?;
    Ok(())
}

/// Why an event's work failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed<E: std::error::Error + 'static> {
    #[error("a statement failed")]
    Driver(#[source] E),
    #[error("this event cannot be handled")]
    Poisonous,
    #[error("a versioned record was not written")]
    Write(#[from] semel::versioned::WriteError),
    #[error("a versioned record was not read")]
    Read(#[from] semel::StoreError),
}

/// Every isolation level gets its share.
fn options(delivery: &Delivery) -> TransactOptions {
    TransactOptions::default().with_isolation(match delivery.event % 4 {
        0 | 1 => Isolation::ReadCommitted,
        2 => Isolation::RepeatableRead,
        _ => Isolation::Serializable,
    })
}

fn refuse(delivery: &Delivery, after: Duration, why: impl Display) {
    say(&Said::Refuse {
        message: delivery.message,
        after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
        why: why.to_string(),
    });
}
