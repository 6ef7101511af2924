//! A runtime for each processor. A connection, its requests and the connections that these take to the
//! upstream stay on one thread: nothing of a request wakes another one.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::runtime::{Builder, Handle};

/// The runtimes, each with a thread of its own. They last as long as the process: what a request began,
/// a store's connection for instance, may outlive it.
#[derive(Debug)]
pub struct Cores(Vec<Core>);

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    pub(crate) runtime: Handle,
    // Each connection has a clone.
    pub(crate) load: Arc<()>,
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// How many there are to be: one for each processor that this process may use.
fn wanted() -> usize {
    // The same as long as the process lasts: places are counted by it.
    static WANTED: OnceLock<usize> = OnceLock::new();
    *WANTED.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// How many places something needs that is kept once for each thread of requests, and once for all others.
pub(crate) fn places() -> usize {
    wanted() + 1
}

/// Which of these places is the current thread's.
pub(crate) fn place() -> usize {
    NUMBER.get()
}

impl Cores {
    /// Starts them.
    ///
    /// # Errors
    /// Where the system has no thread or no descriptor for one.
    pub fn start() -> io::Result<Self> {
        (1..=wanted())
            .map(Core::start)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The runtime of whoever calls, in place of threads.
    pub fn current() -> Self {
        let (runtime, load) = (Handle::current(), Arc::new(()));
        Self(vec![Core { runtime, load }])
    }

    /// The one with the fewest connections.
    pub(crate) fn least_loaded(&self) -> &Core {
        let cores = self.0.iter();
        let least = cores.min_by_key(|core| Arc::strong_count(&core.load));
        least.unwrap_or(&self.0[0])
    }
}

impl Core {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name(format!("core-{number}"))
            .spawn(move || {
                NUMBER.set(number);
                runtime.block_on(std::future::pending::<()>());
            })?;
        Ok(Self {
            runtime: handle,
            load: Arc::new(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_go_where_the_fewest_are() {
        let cores = Cores::start().unwrap();
        let mut open = Vec::new();
        let mut next = async || {
            let core = cores.least_loaded();
            open.push(Arc::clone(&core.load));
            core.runtime.spawn(async { place() }).await.unwrap()
        };
        let mut used = Vec::new();
        for _ in 0..2 * wanted() {
            used.push(next().await);
        }
        used.sort_unstable();
        let each_twice: Vec<usize> = (1..places()).flat_map(|place| [place, place]).collect();
        assert_eq!(used, each_twice);
        assert_eq!(place(), 0);
    }
}
