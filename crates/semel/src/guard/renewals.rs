//! Attempts whose lease is not to be renewed yet. Most end before it is: they share a task that waits for the first of
//! them, one for each thread that begins attempts, and wake nobody. Each that lasts gets a task of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::lease::later;
use crate::sync::Mutex;

/// A task looks at least so often: a thread can end without its attempts' task, and leases can be long.
const PAUSE: Duration = Duration::from_mins(1);

thread_local! {
    // A thread can serve several runtimes. What is kept of a list that nobody watches any more is dropped with the next
    // one.
    static HERE: RefCell<Vec<(Id, Weak<List>)>> = const { RefCell::new(Vec::new()) };
}

/// An attempt that may last.
pub(super) trait Lasting: Send + Sync {
    /// Has its lease renewed from now on, unless it was told not to.
    fn lasts(self: Arc<Self>);
}

/// Those that were begun by one thread in one runtime.
#[derive(Default)]
struct List {
    listed: Mutex<Listed>,
    is_sooner: Notify,
}

#[derive(Default)]
struct Listed {
    /// By when they are due, and in the order in which they came.
    attempts: BTreeMap<(Instant, u64), Arc<dyn Lasting>>,
    /// The number of the next one: no two get the same.
    next: u64,
    /// When its task looks next; `None` where it has none.
    looks: Option<Instant>,
    /// How long the last one was to wait, if one came since the task looked.
    wait: Option<Duration>,
}

/// Where an attempt is listed.
pub(super) struct Place {
    list: Arc<List>,
    key: (Instant, u64),
}

impl Place {
    /// It is not to be renewed.
    pub(super) fn leave(self) {
        // Dropped without the lock.
        let _left = self.list.listed.lock().attempts.remove(&self.key);
    }
}

/// Lists an attempt until it is `due`.
///
/// # Panics
/// Outside a tokio runtime.
pub(super) fn list(due: Instant, attempt: Arc<dyn Lasting>) -> Place {
    let list = here();
    let mut listed = list.listed.lock();
    let key = (due, listed.next);
    listed.next += 1;
    listed.attempts.insert(key, attempt);
    listed.wait = Some(due.saturating_duration_since(Instant::now()));
    let looked = listed.looks;
    if looked.is_none_or(|looks| due < looks) {
        listed.looks = Some(due);
    }
    drop(listed);
    match looked {
        Some(looks) if due < looks => list.is_sooner.notify_one(),
        Some(_) => {}
        // Without the lock: a runtime that ends drops it at once.
        None => drop(tokio::spawn(watch(Watched::of(&list)))),
    }
    Place { list, key }
}

fn here() -> Arc<List> {
    let runtime = Handle::current().id();
    HERE.with_borrow_mut(|lists| {
        let known = lists.iter().find(|(id, _)| *id == runtime);
        if let Some(list) = known.and_then(|(_, list)| list.upgrade()) {
            return list;
        }
        lists.retain(|(id, list)| *id != runtime && list.strong_count() > 0);
        let list = Arc::default();
        lists.push((runtime, Arc::downgrade(&list)));
        list
    })
}

/// A list and its task, which can end with its runtime.
struct Watched {
    list: Arc<List>,
    /// It has ended by itself: what was listed since is another's.
    has_ended: bool,
}

impl Watched {
    fn of(list: &Arc<List>) -> Self {
        Self {
            list: Arc::clone(list),
            has_ended: false,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut listed = self.list.listed.lock();
        listed.looks = None;
        let left = std::mem::take(&mut listed.attempts);
        drop(listed);
        // Without the lock.
        drop(left);
    }
}

/// Until none was listed for as long as one waits, or for [`PAUSE`].
async fn watch(mut watched: Watched) {
    let Watched { list, has_ended } = &mut watched;
    loop {
        let (due, next) = list.listed.lock().look(Instant::now());
        *has_ended = next.is_none();
        for attempt in due {
            attempt.lasts();
        }
        let Some(next) = next else {
            return;
        };
        tokio::select! {
            biased;
            () = list.is_sooner.notified() => {}
            () = sleep_until(next) => {}
        }
    }
}

impl Listed {
    /// Takes out those that are due; and when the next one is.
    fn look(&mut self, now: Instant) -> (Vec<Arc<dyn Lasting>>, Option<Instant>) {
        let mut due = Vec::new();
        while let Some(first) = self.attempts.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        let first = self.attempts.keys().next().map(|(due, _)| *due);
        let wait = self.wait.take().map(|wait| later(now, wait));
        self.looks = first.or(wait).map(|next| next.min(now + PAUSE));
        (due, self.looks)
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tokio::time::sleep;

    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    #[derive(Default)]
    struct Attempt(Mutex<Option<Instant>>);

    impl Lasting for Attempt {
        fn lasts(self: Arc<Self>) {
            assert_eq!(self.0.lock().replace(Instant::now()), None, "told twice");
        }
    }

    impl Attempt {
        fn listed(due: Instant) -> (Arc<Self>, Place) {
            let attempt = Arc::<Self>::default();
            let place = list(due, Arc::clone(&attempt) as _);
            (attempt, place)
        }

        fn told(&self) -> Option<Instant> {
            *self.0.lock()
        }
    }

    fn runtime() -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    }

    #[test]
    fn each_is_told_when_it_is_due_unless_it_left() {
        runtime().block_on(async {
            let start = Instant::now();
            let (late, _) = Attempt::listed(start + 2 * WAIT);
            let (left, place) = Attempt::listed(start + WAIT);
            let (soon, _) = Attempt::listed(start + WAIT / 2);
            let (same, _) = Attempt::listed(start + WAIT / 2);
            place.leave();
            assert_eq!(Arc::strong_count(&left), 1);
            sleep(3 * WAIT).await;
            let told = [&late, &left, &soon, &same].map(|attempt| attempt.told());
            let [in_half, in_two] = [WAIT / 2, 2 * WAIT].map(|wait| Some(start + wait));
            assert_eq!(told, [in_two, None, in_half, in_half]);
        });
    }

    /// As long as attempts come; and where none come, there is no task, however long they might have lasted.
    #[test]
    fn the_task_stays_while_it_is_needed() {
        let runtime = runtime();
        runtime.block_on(async {
            for wait in [WAIT, 1000 * WAIT] {
                for _ in 0..10 {
                    let (_, place) = Attempt::listed(Instant::now() + wait);
                    place.leave();
                    sleep(WAIT / 3).await;
                    assert_eq!(runtime.metrics().num_alive_tasks(), 1);
                }
                sleep(3 * PAUSE).await;
                assert_eq!(runtime.metrics().num_alive_tasks(), 0);
            }
        });
    }

    #[test]
    fn a_runtime_that_ended_holds_nothing_and_keeps_nobody_from_being_told() {
        let first = runtime();
        let (attempt, place) = first.block_on(async { Attempt::listed(Instant::now() + WAIT) });
        drop(first);
        assert_eq!(Arc::strong_count(&attempt), 1);
        place.leave();
        runtime().block_on(async {
            let due = Instant::now() + WAIT;
            let (attempt, _) = Attempt::listed(due);
            sleep(2 * WAIT).await;
            assert_eq!(attempt.told(), Some(due));
        });
    }
}
