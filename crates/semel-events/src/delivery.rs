//! What all brokers have in common: a message is delivered, handled, and then settled.

use std::error::Error as StdError;
use std::future::{Future, pending};
use std::time::Duration;

use futures_util::future::join_all;
use semel::inbox::{Event, InboxError, Receipt};

/// What an inbox answers.
pub type Answer<E> = Result<Receipt, InboxError<E>>;

/// The broker could not be told. No harm: it delivers the event again, which is then a duplicate.
pub type TellError = Box<dyn StdError + Send + Sync>;

/// What a broker is told of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It was handled, now or before: forget it.
    Acknowledge,
    /// It will never be handled: to the dead letters, or forgotten where there are none.
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
#[must_use = "the answer may be an error that somebody should see"]
pub struct Settled<E> {
    /// What the inbox answered.
    pub answer: Answer<E>,
    /// Whether the broker could be told.
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

    /// Waits for what the inbox answers, and tells the broker: the acknowledgement comes after the
    /// commit, never before it.
    fn settle<E: Send + Sync>(
        &self,
        handling: impl Future<Output = Answer<E>> + Send,
    ) -> impl Future<Output = Settled<E>> + Send {
        async move {
            let answer = beside(handling, [self]).await;
            let told = self.tell(Verdict::from(&answer)).await;
            Settled { answer, told }
        }
    }
}

/// The events of some deliveries, for
/// [`Inbox::transact_batch`](semel::inbox::Inbox::transact_batch).
pub fn events<D: Delivery>(deliveries: &[D]) -> Vec<Event> {
    deliveries.iter().map(|d| d.event().clone()).collect()
}

/// [`Delivery::settle`] for a batch: each delivery gets the verdict of its own.
pub async fn settle_all<D: Delivery, E: Send + Sync>(
    deliveries: &[D],
    handling: impl Future<Output = Vec<Answer<E>>> + Send,
) -> Vec<Settled<E>> {
    let answers = beside(handling, deliveries).await;
    let telling = deliveries
        .iter()
        .zip(answers)
        .map(|(delivery, answer)| async {
            let told = delivery.tell(Verdict::from(&answer)).await;
            Settled { answer, told }
        });
    join_all(telling).await
}

/// Handles an event in place until there is a receipt, and then tells the broker: for brokers that do
/// not deliver a single event again, and where the events after it are to wait. `handle` is called
/// again after each error, when its [`retry_after`](InboxError::retry_after) is over.
///
/// Without end where the event fails without end: set a callback for events that cannot be handled
/// ([`Inbox::with_dead_letters`](semel::inbox::Inbox::with_dead_letters)).
pub async fn until_settled<D, E, H>(delivery: &D, mut handle: impl FnMut() -> H) -> Settled<E>
where
    D: Delivery,
    H: Future<Output = Answer<E>> + Send,
{
    let handling = async {
        loop {
            let answer = handle().await;
            match Verdict::from(&answer) {
                Verdict::Again(wait) => tokio::time::sleep(wait).await,
                _ => return answer,
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
    use semel::inbox::Inbox;
    use semel::memory::MemoryStore;
    use tokio::time::Instant;

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
        let settled = fake.settle(inbox.receive(fake.event(), work)).await;
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
            let settled = fake.settle(inbox.receive(fake.event(), fails)).await;
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

    #[tokio::test(start_paused = true)]
    async fn each_of_a_batch_has_its_own_verdict() {
        let (one, other) = (fake("a"), fake("b"));
        let answers = async {
            let late = InboxError::<String>::InFlight {
                retry_after: Duration::from_secs(1),
            };
            vec![Ok(Receipt::Duplicate), Err(late)]
        };
        let both = [one, other];
        assert_eq!(events(&both)[1].id(), "b");
        let settled = settle_all(&both, answers).await;
        assert_eq!(settled.len(), 2);
        let told = both.map(|fake| fake.1.into_inner().unwrap().1[0]);
        let again = Verdict::Again(Duration::from_secs(1));
        assert_eq!(told, [Verdict::Acknowledge, again]);
    }
}
