//! The databases whose transactions the lab breaks: one interface to what an application's own
//! statements need in each of them, so that all three get the same work.

mod mysql;
mod place;
mod postgres;
mod sqlite;

use std::error::Error as StdError;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel::transaction::{Isolation, TransactionError, Transactional};
use tokio::time::{Instant, sleep};

pub use place::{Database, Place};
pub(crate) use place::{mariadb, start};

/// A store, and the database that it is in.
///
/// Statements are SQL that all three understand, with numbers of the lab's own in it, and every
/// column that is read is a `BIGINT`.
pub trait Base: Transactional + Sized {
    /// The driver's.
    type Error: StdError + Send + Sync + 'static;

    /// How a transaction is ended and another one begun behind the store's back: what work must
    /// not do, and planted bugs do.
    const COMMIT_AND_BEGIN: [&'static str; 2];

    /// Whether completion and commit are one packet: then nothing comes between them.
    const SEALS_AT_ONCE: bool;

    /// Opens it by its URL.
    fn open(url: &str) -> impl Future<Output = Result<Self>> + Send;

    /// Runs one statement, and says how many rows it changed.
    fn execute(
        tx: &mut Self::Transaction,
        sql: String,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;

    /// Reads rows of numbers.
    fn numbers(
        tx: &mut Self::Transaction,
        sql: String,
    ) -> impl Future<Output = Result<Vec<Vec<i64>>, Self::Error>> + Send;
}

/// How long the lab itself waits for a server that it had restarted.
const PATIENCE: Duration = Duration::from_secs(60);

async fn begin<B: Base>(store: &B) -> Result<B::Transaction> {
    let end = Instant::now() + PATIENCE;
    loop {
        match store.begin(Isolation::ReadCommitted).await {
            Err(TransactionError::NotCommitted(_)) if Instant::now() < end => {
                sleep(Duration::from_millis(100)).await;
            }
            begun => return Ok(begun?),
        }
    }
}

/// Runs statements in a transaction of their own.
///
/// # Errors
/// What the database says.
pub async fn execute<B: Base>(store: &B, statements: &[String]) -> Result<()> {
    let mut tx = begin(store).await?;
    for sql in statements {
        B::execute(&mut tx, sql.clone())
            .await
            .with_context(|| sql.clone())?;
    }
    store.commit(tx).await?;
    Ok(())
}

/// Reads rows of numbers.
///
/// # Errors
/// What the database says.
pub async fn numbers<B: Base>(store: &B, sql: &str) -> Result<Vec<Vec<i64>>> {
    let mut tx = begin(store).await?;
    let rows = B::numbers(&mut tx, sql.into())
        .await
        .with_context(|| sql.to_owned())?;
    store.rollback(tx).await;
    Ok(rows)
}
