//! A worker as a process of its own. The parent says on its standard input what to do next; where
//! that ends, the parent is gone, and so is the worker.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel::{AnyStore, Store as _};
use semel_stores::OpenOptions;
use tokio::time::{Instant, sleep};

use super::{Settings, Worker};
use crate::bugs::Buggy;
use crate::process::obey;

// A server that is being restarted comes back within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs worker `number` in its `life`th life.
pub(crate) async fn run(settings: Settings, number: u32, life: u32) -> Result<()> {
    let store = open(&settings.url).await?;
    let store = match settings.options.bug {
        Some(bug) => AnyStore::new(Buggy::new(store, bug)),
        None => store,
    };
    let worker = Worker::new(settings, store, number, life)?;
    let mut tasks = worker.start(life);
    let obeyed = obey(async |order| match order {
        "stop" => {
            worker.stop();
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task of a worker")?;
            }
            Ok("stopped")
        }
        "settle" => {
            worker.settle().await;
            Ok("settled")
        }
        other => bail!("a worker does not know the order {other:?}"),
    });
    obeyed.await?;
    // What closing says is of no use any more.
    let _ = worker.store.close().await;
    Ok(())
}

/// Opens a store, whose server may be starting again.
pub(crate) async fn open(url: &str) -> Result<AnyStore> {
    let until = Instant::now() + PATIENCE;
    loop {
        match semel_stores::open(url, &OpenOptions::default()).await {
            Err(_) if Instant::now() < until => sleep(Duration::from_millis(50)).await,
            opened => return opened.context("the store cannot be opened"),
        }
    }
}
