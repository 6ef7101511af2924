//! Each event once: the inbox before the ledger, wherever the events come from.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use semel::guard::{Policy, TransactOptions};
use semel::inbox::{self, DeadLetter, Inbox, Receipt};
use semel_events::Answer;
use semel_stores::{Schema, SqliteOptions, SqliteStore};

use crate::ledger::{self, Error};

/// The name under which events are handled. Another consumer has its own inbox.
pub(crate) const NAME: &str = "assets";

#[derive(Clone)]
pub(crate) struct Consumer {
    store: Arc<SqliteStore>,
    inbox: Inbox<Arc<SqliteStore>>,
    counts: Arc<[AtomicUsize; 3]>,
}

/// Opens the database, and makes its tables.
pub(crate) fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    let store = SqliteOptions::new().schema(Schema::Create).open(path);
    let store = store.context("--database")?;
    ledger::create(path).context("--database")?;
    Ok(store)
}

impl Consumer {
    /// On this database; an event that failed so often is set aside.
    pub(crate) fn open(path: &Path, attempts: u32, lease: Duration) -> anyhow::Result<Self> {
        let store = Arc::new(open(path)?);
        let path: Arc<Path> = path.into();
        let set_aside = move |letter: DeadLetter| {
            let path = Arc::clone(&path);
            async move { tokio::task::spawn_blocking(move || ledger::set_aside(&path, &letter)).await? }
        };
        let policy = Policy::event().with_lease(lease).with_wait(lease * 2);
        let inbox = Inbox::new(Arc::clone(&store), NAME)
            .with_policy(policy)
            .with_max_attempts(attempts)
            .with_dead_letters(set_aside);
        Ok(Self {
            store,
            inbox,
            counts: Arc::default(),
        })
    }

    /// Applies an event: the change of the asset and the record that it was handled are committed
    /// together.
    pub(crate) async fn handle(&self, event: &inbox::Event) -> Answer<Error> {
        let (store, body) = (Arc::clone(&self.store), event.body().clone());
        let work = move |_, mut tx: semel::transaction::Lent<_>| {
            let (store, body) = (Arc::clone(&store), body.clone());
            async move {
                let event = serde_json::from_slice(&body)?;
                ledger::apply(&store, &mut tx, event).await
            }
        };
        let options = TransactOptions::default();
        let answer = self.inbox.transact(event, options, work).await;
        if let Ok(receipt) = &answer {
            let count = match receipt {
                Receipt::Handled => 0,
                Receipt::Duplicate => 1,
                Receipt::DeadLettered => 2,
            };
            self.counts[count].fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// Waits for what is being handled, and closes the database. In words, what there was.
    pub(crate) async fn close(self) -> anyhow::Result<String> {
        self.inbox.guard().close().await?;
        let [handled, duplicates, aside] = &*self.counts;
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Ok(format!(
            "{} handled, {} duplicates, {} set aside",
            count(handled),
            count(duplicates),
            count(aside)
        ))
    }
}
