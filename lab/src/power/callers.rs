//! Those who complete identities, in a process of their own, and what they say on its output: each
//! completion before it is sent, and how it was answered.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use semel::store::{Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _};
use semel::{
    AnyStore, Fingerprint, Identity, Key, Outcome, Scope, Store as _, StoreError, StoreErrorKind,
};
use semel_stores::OpenOptions;

/// The hidden subcommand.
pub const COMMAND: &str = "power-loss-callers";

const TASKS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

/// What callers were answered.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Completions that were acknowledged.
    pub(super) acknowledged: BTreeSet<u64>,
    /// Completions that were sent, and not answered or answered "unknown".
    pub(super) unknown: BTreeSet<u64>,
}

impl Heard {
    fn take(&mut self, line: &str) -> Result<()> {
        let (what, key) = line.split_once(' ').context("a caller's line")?;
        let key = key.parse()?;
        match what {
            "sent" => {
                self.unknown.insert(key);
            }
            "done" => {
                self.unknown.remove(&key);
                self.acknowledged.insert(key);
            }
            "not" => {
                self.unknown.remove(&key);
            }
            _ => bail!("callers do not say {what:?}"),
        }
        Ok(())
    }
}

/// The callers' process, seen by who started it.
#[derive(Debug)]
pub(super) struct Callers {
    child: Child,
    reader: Option<JoinHandle<Result<Heard>>>,
}

impl Callers {
    /// Starts them, and waits until the first completion was acknowledged.
    pub(super) fn start(program: &Path, url: &str) -> Result<Self> {
        let mut child = Command::new(program)
            .args([COMMAND, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("callers cannot be started")?;
        let out = child.stdout.take().context("callers without an output")?;
        let (first, begun) = channel();
        let reader = std::thread::spawn(move || {
            let mut heard = Heard::default();
            let mut first = Some(first);
            let mut lines = BufReader::new(out);
            let mut line = String::new();
            // A line without its end was not said: they were killed while they wrote it.
            while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
                heard.take(line.trim_end())?;
                line.clear();
                if !heard.acknowledged.is_empty() {
                    // The other side waits for it once.
                    first.take().map(|first| first.send(()).ok());
                }
            }
            Ok(heard)
        });
        let callers = Self {
            child,
            reader: Some(reader),
        };
        wait(&begun)?;
        Ok(callers)
    }

    /// Fails where they are not at it any more.
    pub(super) fn work(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("callers ended by themselves ({status})"),
            None => Ok(()),
        }
    }

    /// Stops them where they are.
    pub(super) fn pause(&self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("no process")?;
        kill_process(pid, Signal::STOP)?;
        Ok(())
    }

    /// Ends them, and tells what they were answered until then.
    pub(super) fn kill(mut self) -> Result<Heard> {
        self.child.kill()?;
        self.child.wait()?;
        let reader = self.reader.take().context("callers are killed once")?;
        reader.join().map_err(|_| anyhow!("the reader panicked"))?
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        // Gone already, where all went well.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn wait(begun: &Receiver<()>) -> Result<()> {
    begun
        .recv_timeout(PATIENCE)
        .context("callers had no completion acknowledged")
}

/// The callers' process: completes identities until its input ends.
///
/// # Errors
/// Where the store cannot be opened, or refuses what it should take.
pub fn run(url: &str) -> Result<()> {
    std::thread::spawn(|| {
        // The parent is gone: nobody listens.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let store = semel_stores::open(url, &OpenOptions::default()).await?;
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (store, next) = (store.clone(), next.clone());
            tasks.spawn(async move {
                loop {
                    complete(&store, next.fetch_add(1, Ordering::Relaxed)).await?;
                }
            });
        }
        match tasks.join_next().await {
            Some(ended) => ended?,
            None => Ok(()),
        }
    })
}

async fn complete(store: &AnyStore, key: u64) -> Result<()> {
    let digest = *identity(key)?.digest();
    let acquired = match claim(store, key).await {
        Ok(Claim::Acquired(acquired)) => acquired,
        Ok(other) => bail!("a new identity is not acquired: {other:?}"),
        // The server is gone or busy; the next identity is as good.
        Err(_) => return Ok(()),
    };
    say("sent", key)?;
    let outcome = outcome(key);
    let answer = store
        .complete(&digest, &acquired.token, &outcome, Retention::ORDER)
        .await;
    match answer {
        Ok(Fenced::Applied) => say("done", key),
        Ok(Fenced::Refused(refusal)) => bail!("a completion is refused: {refusal}"),
        Err(error) if error.kind() == StoreErrorKind::Unknown => Ok(()),
        Err(_) => say("not", key),
    }
}

fn say(what: &str, key: u64) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what} {key}")?;
    out.flush()?;
    Ok(())
}

/// Claims as all callers do.
pub(super) async fn claim(store: &AnyStore, key: u64) -> Result<Claim, StoreError> {
    let request = ClaimRequest::new(
        Nonce::random()?,
        Fingerprint::of(&key.to_le_bytes()),
        Duration::from_mins(10),
    );
    store.claim(&identity(key)?, &request).await
}

/// What this key's completion keeps.
pub(super) fn outcome(key: u64) -> Outcome {
    let body = format!("{key:016x}").repeat(8);
    Outcome::success(body.as_bytes())
}

fn identity(key: u64) -> Result<Identity, StoreError> {
    let key = Key::new(&format!("{key:016x}"))
        .map_err(|error| StoreError::new(StoreErrorKind::Config, error.to_string()))?;
    Ok(Identity::new(Scope::new(["power"]), "complete", key))
}

#[cfg(test)]
mod tests {
    use super::Heard;

    #[test]
    fn only_what_was_acknowledged_counts_as_such() {
        let mut heard = Heard::default();
        for line in ["sent 1", "sent 2", "sent 3", "done 2", "not 3"] {
            heard.take(line).unwrap();
        }
        assert_eq!(heard.acknowledged.into_iter().collect::<Vec<_>>(), [2]);
        assert_eq!(heard.unknown.into_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn other_lines_are_errors() {
        for line in ["", "done", "done x", "perhaps 1"] {
            assert!(Heard::default().take(line).is_err(), "{line:?}");
        }
    }
}
