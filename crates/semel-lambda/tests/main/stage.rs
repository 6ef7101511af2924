//! What the tests share: a folder with a store, sandboxes on it, and events.

#[path = "../../examples/local/runtime_api.rs"]
mod runtime_api;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use semel_lambda::lambda_runtime::{Context, LambdaEvent};
use semel_stores::postgres::tokio_postgres::{self, NoTls};
use semel_stores::sqlite::rusqlite::Connection;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::time::sleep;

pub(crate) use runtime_api::{Answered, Sandbox};

pub(crate) const QUEUE: &str = "arn:aws:sqs:eu-central-1:000000000000:tasks";
pub(crate) const FIFO: &str = "arn:aws:sqs:eu-central-1:000000000000:tasks.fifo";

/// A folder with what several sandboxes share.
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    store: String,
    variables: Vec<(&'static str, String)>,
}

impl Stage {
    /// With a store in an SQLite file.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("store.db").display());
        Self {
            folder,
            store,
            variables: Vec::new(),
        }
    }

    pub(crate) fn on(store: String) -> Self {
        Self {
            store,
            ..Self::new()
        }
    }

    pub(crate) fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.variables.push((variable, value.to_owned()));
        self
    }

    /// A new sandbox with the rehearsal in it.
    pub(crate) async fn sandbox(&self) -> Sandbox {
        let mut variables = self.variables.clone();
        variables.push(("STORE", self.store.clone()));
        variables.push(("FOLDER", self.path().display().to_string()));
        start("rehearsal", &variables).await
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A name that no other stage has: servers outlive a run.
    pub(crate) fn name(&self) -> String {
        self.path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned()
    }

    /// How often a `task` had its effect.
    pub(crate) fn entries(&self, name: &str) -> i64 {
        count(&self.path().join("ledger.db"), "entries", name)
    }

    /// How often a `write` had its effect.
    pub(crate) fn effects(&self, name: &str) -> i64 {
        count(&self.path().join("store.db"), "effects", name)
    }

    /// Waits until the handler has begun with this task.
    pub(crate) async fn begun(&self, name: &str) {
        let file = self.path().join(name);
        for _ in 0..1000 {
            if file.exists() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} was not begun within 10 s");
    }

    /// What the handlers of a process are at work on; of a process that was killed: were, when it was.
    pub(crate) fn in_hand(&self, process: u32) -> Vec<String> {
        let prefix = format!("{process}-");
        let files = std::fs::read_dir(self.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let in_hand = names.filter_map(|name| {
            let name = name.strip_prefix(&prefix)?.strip_suffix(".in-hand")?;
            Some(name.to_owned())
        });
        in_hand.collect()
    }

    /// Whether the handler has begun with this task.
    pub(crate) fn has_begun(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }
}

fn count(file: &Path, table: &str, name: &str) -> i64 {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    let sql = format!("SELECT count(*) FROM {table} WHERE name = ?1");
    // No table: nothing had an effect yet.
    connection
        .query_row(&sql, (name,), |row| row.get(0))
        .unwrap_or(0)
}

/// Starts one of the examples.
pub(crate) async fn start(name: &str, variables: &[(&str, String)]) -> Sandbox {
    Sandbox::start(&example(name), variables).await.unwrap()
}

/// Where an example is: beside the folder of the test's own program.
pub(crate) fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not there: cargo build -p semel-lambda --examples --all-features",
        program.display()
    );
    program
}

/// Freezes a sandbox, as Lambda does between invocations.
pub(crate) fn freeze(sandbox: &Sandbox) {
    signal(sandbox, Signal::STOP);
}

/// Lets it go on.
pub(crate) fn thaw(sandbox: &Sandbox) {
    signal(sandbox, Signal::CONT);
}

fn signal(sandbox: &Sandbox, signal: Signal) {
    let id = sandbox.process.id().unwrap().cast_signed();
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

/// A database with a table for effects, and a client of it.
pub(crate) async fn database(application: &str) -> (String, tokio_postgres::Client) {
    let url = semel_testkit::servers::shared(semel_testkit::servers::Kind::Postgres).unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    // An error is that of a test that makes it at the same time, and has made it when it comes.
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS lambda_effects (place BIGSERIAL, name TEXT NOT NULL)",
        )
        .await
        .ok();
    (
        format!("{url}?application_name={application}&listen=off"),
        client,
    )
}

/// How long the function has, and how long a test waits for it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Invokes the function, which is to answer.
pub(crate) async fn invoke(sandbox: &Sandbox, payload: &Value) -> Answered {
    tokio::time::timeout(TIMEOUT, sandbox.invoke(payload, TIMEOUT))
        .await
        .expect("an answer in time")
        .unwrap()
}

/// Invokes the function with a batch; which messages it reports as failed.
pub(crate) async fn failures(sandbox: &Sandbox, batch: &Value) -> Vec<String> {
    failures_of(invoke(sandbox, batch).await)
}

pub(crate) fn failures_of(answered: Answered) -> Vec<String> {
    let Answered::Response(answer) = answered else {
        panic!("{answered:?}");
    };
    assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    let failures = answer["batchItemFailures"].as_array().unwrap();
    failures
        .iter()
        .map(|failure| failure["itemIdentifier"].as_str().unwrap().to_owned())
        .collect()
}

/// An event of EventBridge.
pub(crate) fn event(id: &str, event_type: &str, detail: &Value) -> Value {
    json!({
        "version": "0", "id": id, "detail-type": event_type, "source": "com.example.tests",
        "account": "000000000000", "time": "2026-11-21T12:00:00Z", "region": "eu-central-1",
        "resources": [], "detail": detail,
    })
}

/// A message of a standard queue whose body is this text.
pub(crate) fn message(id: &str, body: &str) -> Value {
    json!({
        "messageId": id, "receiptHandle": "AQEB", "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183"},
        "messageAttributes": {}, "md5OfBody": "", "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE, "awsRegion": "eu-central-1",
    })
}

/// A message with a plain body: `{"type": …, "name": …, …}`.
pub(crate) fn task(id: &str, event_type: &str, name: &str, more: &Value) -> Value {
    let mut body = more.clone();
    body["type"] = event_type.into();
    body["name"] = name.into();
    message(id, &body.to_string())
}

/// The same in a group of a FIFO queue.
pub(crate) fn in_group(group: &str, mut message: Value) -> Value {
    message["eventSourceARN"] = FIFO.into();
    message["attributes"]["MessageGroupId"] = group.into();
    message
}

pub(crate) fn batch(messages: impl IntoIterator<Item = Value>) -> Value {
    json!({"Records": messages.into_iter().collect::<Vec<_>>()})
}

/// An invocation of a function that runs in the test itself, with time enough.
pub(crate) fn invocation(payload: &Value) -> LambdaEvent<Box<RawValue>> {
    let mut context = Context::default();
    context.deadline = u64::MAX;
    LambdaEvent::new(to_raw_value(payload).unwrap(), context)
}
