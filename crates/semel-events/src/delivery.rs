//! What all brokers have in common: a message is delivered, handled, and then settled.

use std::error::Error as StdError;
use std::future::{Future, pending};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Fuse, join_all};
use semel::StoreErrorKind;
use semel::inbox::{Event, InboxError, Receipt};
use tokio::time::{Instant, sleep};

/// What an inbox answers.
pub type Answer<E> = Result<Receipt, InboxError<E>>;

/// The broker could not be reached. No harm: it delivers the event again, which is then a duplicate.
pub type TellError = Box<dyn StdError + Send + Sync>;

/// What is reported to the broker about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It was handled, now or before: forget it.
    Acknowledge,
    /// The application has it as a dead letter: to the broker's dead letters, or forgotten where there
    /// are none.
    DeadLettered,
    /// It is to be delivered again after this time.
    Again(Duration),
}

impl<E> From<&Answer<E>> for Verdict {
    fn from(answer: &Answer<E>) -> Self {
        match answer {
            Ok(Receipt::Handled | Receipt::Duplicate) => Self::Acknowledge,
            Ok(Receipt::DeadLettered) => Self::DeadLettered,
            Err(error) => Self::Again(error.retry_after()),
        }
    }
}

/// What became of a delivery.
#[derive(Debug)]
#[must_use = "the answer may be an error"]
pub struct Settled<E> {
    /// What the inbox answered.
    pub answer: Answer<E>,
    /// Whether it was reported to the broker.
    pub told: Result<(), TellError>,
}

/// A message of a broker, in the hands of one consumer.
pub trait Delivery: Sync {
    /// The event that it is a delivery of.
    fn event(&self) -> &Event;

    /// Tells the broker.
    fn tell(&self, verdict: Verdict) -> impl Future<Output = Result<(), TellError>> + Send;

    /// Goes on while the event is being handled: tells a broker with little patience that it is.
    fn hold(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    /// Has the event handled, and tells the broker what the inbox answered: the acknowledgement comes
    /// after the commit, never before it.
    ///
    /// Nothing is wrong with an event while the store is away, and a delivery more would count against the limits
    /// that brokers have: `handle` is called again in place, each second until the store is back. For ten minutes
    /// at most, less than any broker's patience, it is called again while the store is there and cannot be read
    /// or used as asked (each minute), or a reconciler cannot say what became of the event (every 10 s); and for
    /// a minute while another delivery of it is being handled. Drop the future to give up, or close the store:
    /// the broker delivers again what it was not told of.
    fn settle<E, H>(
        &self,
        handle: impl FnMut() -> H + Send,
    ) -> impl Future<Output = Settled<E>> + Send
    where
        E: Send + Sync,
        H: Future<Output = Answer<E>> + Send,
    {
        in_place(self, handle, passing)
    }
}

/// [`Delivery::settle`] for a batch: each delivery gets the verdict of its own. `handle` gets the
/// events, and answers each in their order; it is called again for those for which nothing could run.
pub async fn settle_all<D, E, H>(
    deliveries: &[D],
    mut handle: impl FnMut(Vec<Event>) -> H + Send,
) -> Vec<Settled<E>>
where
    D: Delivery,
    E: Send + Sync,
    H: Future<Output = Vec<Answer<E>>> + Send,
{
    let mut settled: Vec<_> = deliveries.iter().map(|_| None).collect();
    let mut left: Vec<_> = deliveries.iter().map(InHand::new).enumerate().collect();
    while !left.is_empty() {
        let events = left.iter().map(|(_, it)| it.delivery.event().clone());
        let work = handle(events.collect());
        let answers = beside(work, left.iter_mut().map(|(_, it)| it)).await;
        let (mut again, mut pause, mut telling) = (Vec::new(), Duration::ZERO, Vec::new());
        for ((place, mut it), answer) in left.into_iter().zip(answers) {
            if let Some(wait) = it.pause_after(&answer, passing) {
                pause = pause.max(wait);
                again.push((place, it));
            } else {
                let delivery = it.delivery;
                telling.push(async move {
                    let told = delivery.tell(Verdict::from(&answer)).await;
                    (place, Settled { answer, told })
                });
            }
        }
        left = again;
        let told = beside(join_all(telling), left.iter_mut().map(|(_, it)| it)).await;
        for (place, one) in told {
            settled[place] = Some(one);
        }
        if !left.is_empty() {
            beside(sleep(pause), left.iter_mut().map(|(_, it)| it)).await;
        }
    }
    settled.into_iter().flatten().collect()
}

/// Has an event handled in place until there is a receipt, and then tells the broker: for brokers that
/// do not deliver a single event again, and where the events after it are to wait. `handle` is called
/// again after each error, when its [`retry_after`](InboxError::retry_after) is over.
///
/// It ends where the inbox has a callback for dead letters
/// ([`Inbox::with_dead_letters`](semel::inbox::Inbox::with_dead_letters)), which is asked about every
/// event that no delivery would ever run. Without one it goes on without end for such an event. So it does,
/// with one too, until somebody mends a store that cannot be read, and until a reconciler, or an operator, has
/// said what became of an event that the policy has it asked about. A store that this process has closed
/// ends it.
pub async fn until_settled<D, E, H>(delivery: &D, handle: impl FnMut() -> H + Send) -> Settled<E>
where
    D: Delivery,
    E: Send + Sync,
    H: Future<Output = Answer<E>> + Send,
{
    let patience = |error: &InboxError<E>| match error {
        InboxError::Store { source, .. } if source.kind() == StoreErrorKind::Closed => None,
        _ => Some(Duration::MAX),
    };
    in_place(delivery, handle, patience).await
}

/// The longest that an event waits in place for another delivery of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest that it waits there for what somebody has to mend, or to say. RabbitMQ takes an event away after
/// half an hour, and then closes the channel.
const PATIENCE_WITH_PEOPLE: Duration = Duration::from_mins(10);

/// How long at most to ask again in place after `error`, which no other delivery would mend.
fn passing<E>(error: &InboxError<E>) -> Option<Duration> {
    match error {
        InboxError::Store { source, .. } => match source.kind() {
            StoreErrorKind::TooLarge | StoreErrorKind::Closed => None,
            StoreErrorKind::Corrupt | StoreErrorKind::Config => Some(PATIENCE_WITH_PEOPLE),
            _ => Some(Duration::MAX),
        },
        InboxError::Unresolved => Some(PATIENCE_WITH_PEOPLE),
        InboxError::InFlight { .. } => Some(PATIENCE),
        _ => None,
    }
}

/// A delivery that its broker was not told of yet.
struct InHand<'a, D: ?Sized> {
    delivery: &'a D,
    /// One for all the time: a sign of life comes seldom.
    hold: Fuse<BoxFuture<'a, ()>>,
    /// Since when there has been the same patience with it.
    waits: Option<(Duration, Instant)>,
}

impl<'a, D: Delivery + ?Sized> InHand<'a, D> {
    fn new(delivery: &'a D) -> Self {
        Self {
            delivery,
            hold: delivery.hold().boxed().fuse(),
            waits: None,
        }
    }

    /// How long to wait before it is handled again in place, if it is.
    fn pause_after<E>(
        &mut self,
        answer: &Answer<E>,
        patience: impl Fn(&InboxError<E>) -> Option<Duration>,
    ) -> Option<Duration> {
        let error = answer.as_ref().err()?;
        let longest = patience(error)?;
        let since = match self.waits {
            Some((same, since)) if same == longest => since,
            _ => Instant::now(),
        };
        self.waits = Some((longest, since));
        (since.elapsed() < longest).then(|| error.retry_after())
    }
}

async fn in_place<D, E, H>(
    delivery: &D,
    mut handle: impl FnMut() -> H,
    patience: impl Fn(&InboxError<E>) -> Option<Duration>,
) -> Settled<E>
where
    D: Delivery + ?Sized,
    H: Future<Output = Answer<E>>,
{
    let mut it = InHand::new(delivery);
    loop {
        let answer = beside(handle(), [&mut it]).await;
        match it.pause_after(&answer, &patience) {
            Some(pause) => beside(sleep(pause), [&mut it]).await,
            None => {
                drop(it);
                let told = delivery.tell(Verdict::from(&answer)).await;
                return Settled { answer, told };
            }
        }
    }
}

/// Work, and signs of life meanwhile.
async fn beside<'a, 'b: 'a, T, D: ?Sized + 'b>(
    work: impl Future<Output = T>,
    in_hand: impl IntoIterator<Item = &'a mut InHand<'b, D>>,
) -> T {
    let hold = async {
        join_all(in_hand.into_iter().map(|it| &mut it.hold)).await;
        pending().await
    };
    tokio::select! {
        biased;
        done = work => done,
        never = hold => never,
    }
}

#[cfg(test)]
mod tests {
    use semel::StoreError;
    use semel::guard::Ran;
    use semel::inbox::Inbox;
    use semel::memory::MemoryStore;

    use super::*;

    /// A broker that counts signs of life, and remembers what it was told.
    struct Fake(Event, Told);

    type Told = std::sync::Mutex<(u32, Vec<Verdict>)>;

    impl Delivery for Fake {
        fn event(&self) -> &Event {
            &self.0
        }

        async fn tell(&self, verdict: Verdict) -> Result<(), TellError> {
            self.1.lock().unwrap().1.push(verdict);
            Ok(())
        }

        async fn hold(&self) {
            loop {
                tokio::time::sleep(Duration::from_secs(10)).await;
                self.1.lock().unwrap().0 += 1;
            }
        }
    }

    fn fake(id: &str) -> Fake {
        Fake(Event::new("orders", id, "body"), Default::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_delivery_is_held_while_the_work_runs_and_told_after_it() {
        let inbox = Inbox::new(MemoryStore::default(), "billing");
        let fake = fake("a");
        let work = |_| async {
            tokio::time::sleep(Duration::from_secs(45)).await;
            Ok::<_, String>(())
        };
        let settled = fake.settle(|| inbox.receive(fake.event(), work)).await;
        assert_eq!(settled.answer.unwrap(), Receipt::Handled);
        assert_eq!(*fake.1.lock().unwrap(), (4, vec![Verdict::Acknowledge]));
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_has_its_verdict() {
        let aside = |_| async { Ok::<_, std::io::Error>(()) };
        let inbox = Inbox::new(MemoryStore::default(), "billing")
            .with_max_attempts(2)
            .with_dead_letters(aside);
        let fake = fake("a");
        let fails = |_| async { Err::<(), _>("no".to_owned()) };
        for _ in 0..3 {
            let settled = fake.settle(|| inbox.receive(fake.event(), fails)).await;
            settled.told.unwrap();
        }
        let again = Verdict::Again(Duration::from_secs(1));
        let told = fake.1.into_inner().unwrap().1;
        assert_eq!(told, [again, Verdict::DeadLettered, Verdict::DeadLettered]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_tried_in_place_until_there_is_a_receipt() {
        let inbox = Inbox::new(MemoryStore::default(), "billing");
        let (fake, begun, mut runs) = (fake("a"), Instant::now(), 0);
        let settled = until_settled(&fake, || {
            runs += 1;
            let good = runs > 3;
            let work = move |_| async move { if good { Ok(()) } else { Err("no".to_owned()) } };
            let (inbox, event) = (inbox.clone(), fake.event().clone());
            async move { inbox.receive(&event, work).await }
        });
        assert_eq!(settled.await.answer.unwrap(), Receipt::Handled);
        assert_eq!(begun.elapsed().as_secs(), 1 + 2 + 4);
        assert_eq!(fake.1.into_inner().unwrap().1, [Verdict::Acknowledge]);
    }

    fn away(kind: StoreErrorKind) -> Answer<String> {
        let (ran, source) = (Ran::No, StoreError::new(kind, "away"));
        Err(InboxError::Store { ran, source })
    }

    fn in_flight() -> Answer<String> {
        let retry_after = Duration::from_secs(1);
        Err(InboxError::InFlight { retry_after })
    }

    #[tokio::test(start_paused = true)]
    async fn each_of_a_batch_has_its_own_verdict_and_waits_for_the_store() {
        let both = [fake("a"), fake("b"), fake("c")];
        let (begun, mut asked) = (Instant::now(), Vec::new());
        let settled = settle_all(&both, |events| {
            asked.push(events.iter().map(Event::id).collect::<String>());
            let answers = match asked.len() {
                1 => vec![
                    Ok(Receipt::Duplicate),
                    away(StoreErrorKind::NotApplied),
                    Err(InboxError::Mismatch),
                ],
                2 => vec![in_flight()],
                _ => vec![Ok(Receipt::Handled)],
            };
            async { answers }
        })
        .await;
        assert_eq!(asked, ["abc", "b", "b"]);
        // A second each time, and none once all are settled.
        assert_eq!(begun.elapsed(), Duration::from_secs(2));
        assert_eq!(settled[1].answer.as_ref().unwrap(), &Receipt::Handled);
        let told = both.map(|fake| fake.1.into_inner().unwrap().1);
        let again = Verdict::Again(Duration::from_secs(60));
        let acknowledged = [Verdict::Acknowledge];
        assert_eq!(told, [&acknowledged[..], &acknowledged, &[again]]);
    }

    /// For hours, held all the while.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_costs_no_delivery() {
        let (one, mut asked) = (fake("a"), 0);
        let handle = || {
            asked += 1;
            let answer = match asked {
                ..=7200 => away(StoreErrorKind::Unknown),
                _ => Ok(Receipt::Handled),
            };
            async { answer }
        };
        assert_eq!(one.settle(handle).await.answer.unwrap(), Receipt::Handled);
        let told = (719, vec![Verdict::Acknowledge]);
        assert_eq!(*one.1.lock().unwrap(), told);

        // One of them is told at once, and held no more.
        let (batch, mut asked) = ([fake("a"), fake("b"), fake("c")], 0);
        let settled = settle_all(&batch, |events| {
            asked += 1;
            let left = events.iter().map(|event| match (asked, event.id()) {
                (1, "a") => Ok(Receipt::Handled),
                (..=7200, _) => away(StoreErrorKind::Unknown),
                _ => Ok(Receipt::Handled),
            });
            let answers = left.collect();
            async { answers }
        });
        assert_eq!(settled.await.len(), 3);
        let signs = batch.map(|fake| fake.1.into_inner().unwrap());
        assert_eq!(signs, [(0, told.1.clone()), told.clone(), told]);
    }

    #[tokio::test(start_paused = true)]
    async fn in_place_a_store_that_cannot_be_read_is_waited_for_without_an_end() {
        let (fake, mut asked) = (fake("a"), 0);
        let settled = until_settled(&fake, || {
            asked += 1;
            let answer = match asked {
                ..=1000 => away(StoreErrorKind::Corrupt),
                _ => Ok(Receipt::Handled),
            };
            async { answer }
        });
        assert_eq!(settled.await.answer.unwrap(), Receipt::Handled);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_store_is_not_waited_for() {
        let (fake, closed) = (fake("a"), || async { away(StoreErrorKind::Closed) });
        fake.settle(closed).await.answer.unwrap_err();
        until_settled(&fake, closed).await.answer.unwrap_err();
        let again = Verdict::Again(Duration::from_secs(1));
        assert_eq!(fake.1.into_inner().unwrap().1, [again; 2]);
    }

    /// Where somebody has to mend it, it is asked once a minute.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_cannot_be_read_costs_no_delivery() {
        for kind in [StoreErrorKind::Corrupt, StoreErrorKind::Config] {
            let (fake, begun, mut asked) = (fake("a"), Instant::now(), 0);
            let handle = || {
                asked += 1;
                let answer = match asked {
                    ..=9 => away(kind),
                    _ => Ok(Receipt::Handled),
                };
                async { answer }
            };
            assert_eq!(fake.settle(handle).await.answer.unwrap(), Receipt::Handled);
            assert_eq!(begun.elapsed(), Duration::from_mins(9));
        }
    }

    /// What nobody can say, or mend, is given back before RabbitMQ would take it away.
    #[tokio::test(start_paused = true)]
    async fn patience_ends_before_the_brokers() {
        async fn settled_after(answer: fn() -> Answer<String>) -> u64 {
            let (fake, begun) = (fake("a"), Instant::now());
            let settled = fake.settle(|| async { answer() }).await;
            settled.answer.unwrap_err();
            begun.elapsed().as_secs()
        }
        assert_eq!(settled_after(|| Err(InboxError::Unresolved)).await, 600);
        assert_eq!(settled_after(|| away(StoreErrorKind::Corrupt)).await, 600);
        assert_eq!(settled_after(in_flight).await, 60);
    }

    /// Patience with one thing is not used up by another.
    #[tokio::test(start_paused = true)]
    async fn patience_begins_with_what_it_is_for() {
        let (fake, mut asked) = (fake("a"), 0);
        let settled = fake.settle(|| {
            asked += 1;
            let answer = match asked {
                ..=90 => away(StoreErrorKind::NotApplied),
                91..=93 => in_flight(),
                _ => Ok(Receipt::Handled),
            };
            async { answer }
        });
        assert_eq!(settled.await.answer.unwrap(), Receipt::Handled);
    }

    #[tokio::test(start_paused = true)]
    async fn in_place_it_ends_where_somebody_takes_it() {
        let taken = |_| async { Ok::<_, std::io::Error>(()) };
        let inbox = Inbox::new(MemoryStore::default(), "billing").with_dead_letters(taken);
        let (fake, work) = (fake(""), |_| async { Ok::<_, String>(()) });
        let settled = until_settled(&fake, || inbox.receive(fake.event(), work));
        let settled = tokio::time::timeout(Duration::from_hours(24), settled).await;
        assert_eq!(settled.unwrap().answer.unwrap(), Receipt::DeadLettered);
    }
}
