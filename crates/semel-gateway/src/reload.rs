//! The configuration, read again while the gateway runs.
//!
//! The file is read each second, and its text compared. A watcher (`notify`) would be told sooner, and
//! would have to follow what replaces a file: renames, the chain of symbolic links that Kubernetes swaps,
//! file systems that tell nothing. A text is taken once it was the same twice, so that nobody's half of
//! a file is; at SIGHUP at once.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use semel::Store;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

use crate::access::{Access, Gate};
use crate::config::{Contents, Sources};
use crate::metrics::Metrics;
use crate::reconcile::Lost;
use crate::routing::Table;
use crate::stack::Stacks;

/// How often the file is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Replaces the table of routes.
pub(crate) struct Reload<S> {
    /// As they were at the start, which some settings keep.
    start: Sources,
    stacks: Stacks<S>,
    table: Arc<ArcSwap<Table<S>>>,
    lost: watch::Sender<Lost>,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
}

impl<S: Store + Clone> Reload<S> {
    /// With it comes what lost attempts are asked about.
    pub(crate) fn new(
        start: Sources,
        stacks: Stacks<S>,
        table: Arc<ArcSwap<Table<S>>>,
        gate: Arc<Gate>,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Lost>) {
        let (lost, asked) = watch::channel(Lost::of(&table.load().config.routes));
        let reload = Self {
            start,
            stacks,
            table,
            lost,
            gate,
            metrics,
        };
        (reload, asked)
    }

    /// Reads the file again when it changes and at SIGHUP, for ever.
    pub(crate) async fn run(self, mut hangup: Signal) {
        // A change since then counts.
        let mut texts = Texts::new(self.start.file().cloned());
        let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        loop {
            let is_asked = tokio::select! {
                _ = look.tick() => false,
                _ = hangup.recv() => true,
            };
            if let Some(text) = texts.next(self.read().await, is_asked) {
                self.take(text);
            }
        }
    }

    async fn read(&self) -> Option<Contents> {
        let path = self.start.path()?.to_owned();
        let read = tokio::task::spawn_blocking(move || Contents::of(&path)).await;
        read.ok()
    }

    /// Puts a configuration in the place of the one that holds, unless it is wrong.
    fn take(&self, file: Option<Contents>) {
        let mut sources = self.start.with_file(file);
        for kept in sources.keep_from_start(&self.start) {
            tracing::warn!("configuration: {kept}");
        }
        let table = sources
            .config()
            .map_err(|error| error.0)
            .and_then(|config| {
                let access =
                    Access::open(&config.tokens).map_err(|error| vec![error.to_string()])?;
                let table = self.stacks.table(config);
                let table = table.map_err(|error| vec![error.to_string()])?;
                Ok((table, access))
            });
        let is_used = table.is_ok();
        match table {
            Ok((table, access)) => {
                let routes = &table.config.routes;
                self.lost.send_replace(Lost::of(routes));
                let routes: Vec<String> = routes.iter().map(ToString::to_string).collect();
                self.gate.set(access);
                self.table.store(Arc::new(table));
                tracing::info!(?routes, "configuration: what was read is in use");
            }
            Err(errors) => {
                for error in errors {
                    tracing::error!("configuration: {error}");
                }
                tracing::error!("configuration: what was read is wrong; the old one stays in use");
            }
        }
        // Whoever sees it counted finds it in use.
        self.metrics.reloaded(is_used);
    }
}

/// The texts that were read: the one that was taken, and the last.
struct Texts<T> {
    taken: T,
    last: T,
}

impl<T: Clone + PartialEq> Texts<T> {
    fn new(first: T) -> Self {
        let last = first.clone();
        Self { taken: first, last }
    }

    /// What is to be taken, if anything is.
    fn next(&mut self, read: T, is_asked: bool) -> Option<T> {
        let is_whole = read == self.last;
        self.last = read;
        let is_new = is_whole && self.last != self.taken;
        (is_asked || is_new).then(|| {
            self.taken.clone_from(&self.last);
            self.taken.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_once_it_stays_or_is_asked_for() {
        let mut texts = Texts::new("a");
        for (read, is_asked, taken) in [
            ("a", false, None),
            ("half", false, None),
            ("whole", false, None),
            ("whole", false, Some("whole")),
            ("whole", false, None),
            ("new", true, Some("new")),
            ("new", false, None),
            ("new", true, Some("new")),
            ("other", false, None),
            ("new", false, None),
            ("new", false, None),
        ] {
            assert_eq!(texts.next(read, is_asked), taken, "{read}");
        }
    }
}
