//! A function whose events say how they go: how long they take, whether they fail, whether they
//! panic. The tests start it, and kill, freeze and thaw it.
//!
//! | type | handled |
//! |---|---|
//! | `task` | plainly: the effect is elsewhere, in a ledger that refuses stale fences |
//! | `write` | in a transaction: the effect is a row beside the records |
//! | any other | by the handler for unknown types, where `OTHERWISE` is set |
//!
//! `STORE`: a URL, `sqlite:PATH` or `postgres://…`. `FOLDER`: where the ledger is, a file for each
//! event that was begun, and `PROCESS-NAME.in-hand` while one is being handled. `LEASE_MS`, `MARGIN_MS`, `WHOLE_BATCHES`, `RETRY`: as their names say.

#![expect(clippy::print_stderr, reason = "Lambda logs what is printed")]

use std::path::PathBuf;
use std::time::Duration;

use semel::guard::{Policy, TransactOptions};
use semel::store::OnLost;
use semel::transaction::{Lent, Transactional};
use semel_lambda::{BoxError, Dispatcher, Envelope, EventContext, Function, Inbox};
use semel_stores::sqlite::rusqlite::{self, Connection};
use semel_stores::{
    PostgresOptions, PostgresTransaction, Schema, SqliteOptions, SqliteTransaction,
};
use serde::Deserialize;
use tokio::time::sleep;

#[derive(Deserialize)]
struct Task {
    name: String,
    #[serde(default)]
    takes_ms: u64,
    /// Until there is a file of the name `mended`.
    #[serde(default)]
    fails: bool,
    #[serde(default)]
    panics: bool,
    /// Attempts before this one fail.
    #[serde(default)]
    fails_before: u32,
}

impl Task {
    /// Says that it has begun, takes its time, and fails if it is to fail.
    async fn play(&self, context: &EventContext) -> Result<(), BoxError> {
        std::fs::write(folder().join(&self.name), "begun")?;
        let in_hand = format!("{}-{}.in-hand", std::process::id(), self.name);
        let in_hand = folder().join(in_hand);
        std::fs::write(&in_hand, "")?;
        sleep(Duration::from_millis(self.takes_ms)).await;
        std::fs::remove_file(in_hand)?;
        let mended = folder().join("mended").exists();
        assert!(mended || !self.panics, "as it was told");
        if (self.fails && !mended) || context.attempt() < self.fails_before {
            return Err("as it was told".into());
        }
        Ok(())
    }
}

fn folder() -> PathBuf {
    std::env::var_os("FOLDER").unwrap_or_default().into()
}

fn millis(variable: &str, otherwise: u64) -> Duration {
    let set = std::env::var(variable)
        .ok()
        .and_then(|set| set.parse().ok());
    Duration::from_millis(set.unwrap_or(otherwise))
}

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

/// A service elsewhere, which refuses an effect under a fence that is not the latest it has seen.
fn enter(name: &str, context: &EventContext) -> rusqlite::Result<()> {
    let ledger = Connection::open(folder().join("ledger.db"))?;
    ledger.busy_timeout(Duration::from_secs(5))?;
    ledger.execute_batch("CREATE TABLE IF NOT EXISTS entries (name TEXT, fence INTEGER)")?;
    ledger.execute(
        "INSERT INTO entries SELECT ?1, ?2 WHERE NOT EXISTS
         (SELECT 1 FROM entries WHERE name = ?1 AND fence >= ?2)",
        (name, i64::try_from(context.fence().0).unwrap_or(i64::MAX)),
    )?;
    Ok(())
}

async fn task(task: Task, context: EventContext) -> Result<(), BoxError> {
    task.play(&context).await?;
    Ok(enter(&task.name, &context)?)
}

async fn other(envelope: Envelope, context: EventContext) -> Result<(), BoxError> {
    Ok(enter(envelope.event_type(), &context)?)
}

async fn write_sqlite(
    task: Task,
    context: EventContext,
    mut transaction: Lent<SqliteTransaction>,
) -> Result<(), BoxError> {
    let name = task.name.clone();
    transaction
        .call(move |c| c.execute("INSERT INTO effects VALUES (?1)", (name,)))
        .await?;
    task.play(&context).await
}

async fn write_postgres(
    task: Task,
    context: EventContext,
    transaction: Lent<PostgresTransaction>,
) -> Result<(), BoxError> {
    transaction
        .execute(
            "INSERT INTO lambda_effects (name) VALUES ($1)",
            &[&task.name],
        )
        .await?;
    task.play(&context).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("STORE")?;
    let options = TransactOptions::default();
    if let Some(path) = url.strip_prefix("sqlite:") {
        let store = SqliteOptions::new().schema(Schema::Create).open(path)?;
        Connection::open(path)?
            .execute_batch("CREATE TABLE IF NOT EXISTS effects (name TEXT NOT NULL)")?;
        run(
            store,
            Dispatcher::new().on_in_transaction("write", options, write_sqlite),
        )
        .await
    } else {
        let store = PostgresOptions::from_url(&url)?
            .schema(Schema::Create)
            .open()
            .await?;
        run(
            store,
            Dispatcher::new().on_in_transaction("write", options, write_postgres),
        )
        .await
    }
}

async fn run<S: Transactional>(store: S, dispatcher: Dispatcher<S>) -> Result<(), BoxError> {
    let mut policy = Policy::default().with_lease(millis("LEASE_MS", 30_000));
    if set("RETRY") {
        // Right for tasks as well: the ledger refuses stale fences.
        policy = policy.with_on_lost(OnLost::Retry);
    }
    let inbox = Inbox::new(store, "rehearsal").with_policy(policy);
    let mut dispatcher = dispatcher.on("task", task);
    if set("OTHERWISE") {
        dispatcher = dispatcher.otherwise(other);
    }
    let mut function = Function::new(inbox, dispatcher)
        .with_margin(millis("MARGIN_MS", 1_000))
        .with_on_failure(|failure| eprintln!("{}", failure.error));
    if set("WHOLE_BATCHES") {
        function = function.with_whole_batches();
    }
    semel_lambda::lambda_runtime::run(function).await
}
