//! What all brokers have in common: a message is delivered, handled, and then settled.

use std::error::Error as StdError;
use std::future::{Future, pending};
use std::time::Duration;

use futures_util::future::join_all;
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
    /// While the store is away `handle` is called again in place, each second until it is back; each minute
    /// while it is there and cannot be read or used as asked; for an hour at most while a reconciler cannot
    /// say what became of the event, and for a minute while another delivery of it is being handled: nothing
    /// is wrong with the event then, and a delivery more would count against the limits that brokers have. Drop the
    /// future to give up, or close the store: the broker delivers again what it was not told of.
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
    let begun = Instant::now();
    let mut settled: Vec<_> = deliveries.iter().map(|_| None).collect();
    let mut left: Vec<(usize, &D)> = deliveries.iter().enumerate().collect();
    while !left.is_empty() {
        let events = left.iter().map(|(_, d)| d.event().clone()).collect();
        let answers = beside(handle(events), left.iter().map(|(_, d)| *d)).await;
        let (mut again, mut pause, mut telling) = (Vec::new(), Duration::ZERO, Vec::new());
        for ((place, delivery), answer) in left.into_iter().zip(answers) {
            if let Some(wait) = pause_after(&answer, begun, passing) {
                pause = pause.max(wait);
                again.push((place, delivery));
            } else {
                telling.push(async move {
                    let told = delivery.tell(Verdict::from(&answer)).await;
                    (place, Settled { answer, told })
                });
            }
        }
        for (place, one) in join_all(telling).await {
            settled[place] = Some(one);
        }
        left = again;
        if !left.is_empty() {
            beside(sleep(pause), left.iter().map(|(_, d)| *d)).await;
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
/// said what became of an event that the policy has it asked about.
pub async fn until_settled<D, E, H>(delivery: &D, handle: impl FnMut() -> H + Send) -> Settled<E>
where
    D: Delivery,
    E: Send + Sync,
    H: Future<Output = Answer<E>> + Send,
{
    in_place(delivery, handle, |error, _| Some(error.retry_after())).await
}

/// The longest that an event waits in place for another delivery of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest that it waits there for a reconciler.
const PATIENCE_WITH_RECONCILERS: Duration = Duration::from_hours(1);

/// How long to wait in place after `error`, which no other delivery would mend; asked for so long.
fn passing<E>(error: &InboxError<E>, waited: Duration) -> Option<Duration> {
    let passes = match error {
        InboxError::Store { source, .. } => !matches!(
            source.kind(),
            StoreErrorKind::TooLarge | StoreErrorKind::Closed
        ),
        InboxError::Unresolved => waited < PATIENCE_WITH_RECONCILERS,
        InboxError::InFlight { .. } => waited < PATIENCE,
        _ => false,
    };
    passes.then(|| error.retry_after())
}

fn pause_after<E>(
    answer: &Answer<E>,
    begun: Instant,
    pauses: impl Fn(&InboxError<E>, Duration) -> Option<Duration>,
) -> Option<Duration> {
    let error = answer.as_ref().err()?;
    pauses(error, begun.elapsed())
}

async fn in_place<D, E, H>(
    delivery: &D,
    mut handle: impl FnMut() -> H,
    pauses: impl Fn(&InboxError<E>, Duration) -> Option<Duration>,
) -> Settled<E>
where
    D: Delivery + ?Sized,
    H: Future<Output = Answer<E>>,
{
    let begun = Instant::now();
    let handling = async {
        loop {
            let answer = handle().await;
            match pause_after(&answer, begun, &pauses) {
                Some(pause) => sleep(pause).await,
                None => return answer,
            }
        }
    };
    let answer = beside(handling, [delivery]).await;
    let told = delivery.tell(Verdict::from(&answer)).await;
    Settled { answer, told }
}

/// Work, and deliveries that are held meanwhile.
async fn beside<'a, T, D: Delivery + ?Sized + 'a>(
    work: impl Future<Output = T>,
    deliveries: impl IntoIterator<Item = &'a D>,
) -> T {
    let hold = async {
        join_all(deliveries.into_iter().map(Delivery::hold)).await;
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

    /// For hours, held all the while; a closed store is not waited for.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_away_costs_no_delivery() {
        let (fake, mut asked) = (fake("a"), 0);
        let handle = || {
            asked += 1;
            let answer = match asked {
                ..=7200 => away(StoreErrorKind::Unknown),
                _ => Ok(Receipt::Handled),
            };
            async { answer }
        };
        assert_eq!(fake.settle(handle).await.answer.unwrap(), Receipt::Handled);
        let closed = fake.settle(|| async { away(StoreErrorKind::Closed) });
        closed.await.answer.unwrap_err();
        let again = Verdict::Again(Duration::from_secs(1));
        let told = (719, vec![Verdict::Acknowledge, again]);
        assert_eq!(*fake.1.lock().unwrap(), told);
    }

    /// Where somebody has to mend it, it is asked once a minute.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_cannot_be_read_costs_no_delivery() {
        for kind in [StoreErrorKind::Corrupt, StoreErrorKind::Config] {
            let (fake, begun, mut asked) = (fake("a"), Instant::now(), 0);
            let handle = || {
                asked += 1;
                let answer = match asked {
                    ..=30 => away(kind),
                    _ => Ok(Receipt::Handled),
                };
                async { answer }
            };
            assert_eq!(fake.settle(handle).await.answer.unwrap(), Receipt::Handled);
            assert_eq!(begun.elapsed(), Duration::from_mins(30));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconciler_is_waited_for_an_hour() {
        let (fake, begun) = (fake("a"), Instant::now());
        let unresolved = || async { Err::<Receipt, _>(InboxError::<String>::Unresolved) };
        let settled = fake.settle(unresolved).await;
        settled.answer.unwrap_err();
        assert_eq!(begun.elapsed(), Duration::from_hours(1));
    }

    #[tokio::test(start_paused = true)]
    async fn another_delivery_is_waited_for_a_minute() {
        let (fake, begun) = (fake("a"), Instant::now());
        let settled = fake.settle(|| async { in_flight() }).await;
        settled.answer.unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), 60);
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
