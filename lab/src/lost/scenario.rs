//! What happens to the workers, and what must come of it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::ledger::Ledger;
use super::report::Report;
use super::worker::{Order, Point, Said, Settings, identity, paid};
use super::{Bug, Options};
use crate::gateway::OnLost;
use crate::named::Named as _;
use crate::part::Part;
use crate::process::Process;
use crate::torture::Target;

/// How long the background may take for what it does in a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// One round.
pub(super) struct Scene<'a> {
    pub(super) target: &'a Target,
    pub(super) ledger: PathBuf,
    pub(super) options: &'a Options,
    pub(super) run: String,
}

/// Where an attempt was lost, and its fence.
struct Lost {
    key: String,
    after: bool,
    fence: u64,
}

impl Scene<'_> {
    pub(super) async fn all(&self, chance: &mut fastrand::Rng, report: &mut Report) -> Result<()> {
        self.hold(chance, report).await.context("hold")?;
        self.reconcile(chance, report).await.context("reconcile")?;
        // A `file:` store is open in one process at a time: while the first is stopped, no second can
        // take over.
        if !self.target.single {
            self.retry(report).await.context("retry")?;
        }
        Ok(())
    }

    /// Killed under `hold`: every retry is told that nobody knows, and none has an effect.
    async fn hold(&self, chance: &mut fastrand::Rng, report: &mut Report) -> Result<()> {
        let settings = self.settings(OnLost::Hold);
        let lost = self.killed(&settings, chance, report).await?;
        let keys: Vec<_> = lost.iter().map(|lost| lost.key.clone()).collect();
        let mut worker = start(&settings).await?;
        // Twice: what is unknown stays so.
        for _ in 0..2 {
            let answers = run(&mut worker, &keys).await?;
            for key in &keys {
                let (result, _) = &answers[key];
                report.must(OnLost::Hold, "unknown", result == "unknown", || {
                    format!("a retry of {key} was answered {result}, not unknown")
                });
            }
        }
        worker.end().await?;
        for lost in &lost {
            let expected = Vec::from_iter(lost.after.then_some(lost.fence));
            self.effects(&settings, &lost.key, &expected, report)?;
        }
        Ok(())
    }

    /// Killed under `reconcile`: resolved without a client, then replayed, or run if it had not
    /// happened.
    async fn reconcile(&self, chance: &mut fastrand::Rng, report: &mut Report) -> Result<()> {
        let settings = self.settings(OnLost::Reconcile);
        let lost = self.killed(&settings, chance, report).await?;
        let mut worker = start(&settings).await?;
        for Lost { key, after, .. } in &lost {
            let (state, by) = resolved(&mut worker, key).await?;
            let expected = if *after { "completed" } else { "released" };
            let right = state == expected && by == "books";
            report.must(OnLost::Reconcile, "resolved_by_themselves", right, || {
                format!("{key} is {state}, by {by}, and not {expected} by books")
            });
        }
        let keys: Vec<_> = lost.iter().map(|lost| lost.key.clone()).collect();
        let answers = run(&mut worker, &keys).await?;
        worker.end().await?;
        for Lost { key, after, fence } in &lost {
            let (result, body) = &answers[key];
            let wrong = || format!("the retry of {key} was answered {result} {body}");
            if *after {
                let right = result == "replayed" && *body == paid(*fence);
                report.must(OnLost::Reconcile, "replayed", right, wrong);
                self.effects(&settings, key, &[*fence], report)?;
            } else {
                let ran = fence_of(body).unwrap_or_default();
                let right = result == "first" && ran > *fence;
                report.must(OnLost::Reconcile, "ran", right, wrong);
                self.effects(&settings, key, &[ran], report)?;
            }
        }
        Ok(())
    }

    /// Stopped before its effect, under `retry`: another takes over under a higher fence. Then the
    /// first goes on: its effect is refused, and its completion.
    async fn retry(&self, report: &mut Report) -> Result<()> {
        let settings = self.settings(OnLost::Retry);
        let keys = self.keys(OnLost::Retry);
        let mut first = start(&settings).await?;
        for key in &keys {
            first
                .tell(&Order::Run(key.clone(), Some(Point::Before)))
                .await?;
        }
        let mut stale = HashMap::new();
        for _ in &keys {
            let at = waits(&mut first).await?;
            stale.insert(at.key, at.fence);
        }
        first.signal(Signal::STOP)?;
        sleep(self.options.lease + self.options.lease / 2).await;

        let mut second = start(&settings).await?;
        let taken_over = run(&mut second, &keys).await?;
        first.signal(Signal::CONT)?;
        first.tell(&Order::Go).await?;
        let late = heard(&mut first, &keys).await?;
        let again = run(&mut second, &keys).await?;
        first.end().await?;
        second.end().await?;

        for key in &keys {
            let mut must = |what, holds, answer: &(String, String)| {
                let (result, body) = answer;
                report.must(OnLost::Retry, what, holds, || {
                    format!("{key}, {what}: the answer was {result} {body}")
                });
            };
            let (result, body) = &taken_over[key];
            let fence = fence_of(body).unwrap_or_default();
            let won = result == "first" && fence > stale[key];
            must("taken_over", won, &taken_over[key]);
            must("superseded", late[key].0 == "superseded", &late[key]);
            let (result, body) = &again[key];
            let replayed = result == "replayed" && *body == paid(fence);
            must("replayed", replayed, &again[key]);
            report.count(OnLost::Retry, "stopped", 1);
            self.effects(&settings, key, &[fence], report)?;
            let (_, refused) = self.ledger().of(&self.ledger_id(&settings, key)?)?;
            let (stale, what) = (stale[key], "stale_effects_refused");
            report.must(OnLost::Retry, what, refused == [stale], || {
                format!("the ledger refused {refused:?} of {key}, not {stale}")
            });
        }
        Ok(())
    }

    /// Starts attempts in a worker, each up to a point of chance, and kills it there; returns after
    /// their leases.
    async fn killed(
        &self,
        settings: &Settings,
        chance: &mut fastrand::Rng,
        report: &mut Report,
    ) -> Result<Vec<Lost>> {
        let mut worker = start(settings).await?;
        let keys = self.keys(settings.policy);
        for (nth, key) in keys.iter().enumerate() {
            // Both, whatever chance says.
            let point = match nth {
                0 => Point::After,
                1 => Point::Before,
                _ if chance.bool() => Point::After,
                _ => Point::Before,
            };
            worker.tell(&Order::Run(key.clone(), Some(point))).await?;
        }
        let mut lost = Vec::new();
        for _ in &keys {
            let one = waits(&mut worker).await?;
            let what = match one.after {
                true => "killed_after_effect",
                false => "killed_before_effect",
            };
            report.count(settings.policy, what, 1);
            lost.push(one);
        }
        sleep(Duration::from_millis(chance.u64(..50))).await;
        worker.kill::<Said>().await?;
        report.kills += 1;
        sleep(self.options.lease + Duration::from_millis(100)).await;
        Ok(lost)
    }

    /// The ledger holds these effects on the key and no others.
    fn effects(
        &self,
        settings: &Settings,
        key: &str,
        expected: &[u64],
        report: &mut Report,
    ) -> Result<()> {
        let (effects, _) = self.ledger().of(&self.ledger_id(settings, key)?)?;
        report.double_effects += effects.len().saturating_sub(1);
        report.lost_effects += expected.len().saturating_sub(effects.len());
        report.must(
            settings.policy,
            "right_effects",
            effects == expected,
            || format!("the effects on {key} are {effects:?}, not {expected:?}"),
        );
        Ok(())
    }

    fn settings(&self, policy: OnLost) -> Settings {
        Settings {
            options: self.options.clone(),
            url: self.target.url.clone(),
            ledger: self.ledger.clone(),
            policy,
            run: self.run.clone(),
        }
    }

    fn keys(&self, policy: OnLost) -> Vec<String> {
        let policy = policy.name();
        let key = |number| format!("{policy}-{number}");
        (0..self.options.keys).map(key).collect()
    }

    fn ledger(&self) -> Ledger {
        Ledger::new(&self.ledger, self.options.bug != Some(Bug::NoFence))
    }

    fn ledger_id(&self, settings: &Settings, key: &str) -> Result<String> {
        Ok(identity(settings, key)?.digest().to_string())
    }
}

/// Starts a worker and waits until it has its store.
async fn start(settings: &Settings) -> Result<Process> {
    let mut worker = Process::start(&Part::LostWorker(settings.clone()))?;
    match worker.hear().await? {
        Said::Ready => Ok(worker),
        other => bail!("a new worker says {other:?}"),
    }
}

/// The next attempt that waits at its point.
async fn waits(worker: &mut Process) -> Result<Lost> {
    match worker.hear().await? {
        Said::At { key, point, fence } => Ok(Lost {
            key,
            after: point == Point::After,
            fence,
        }),
        other => bail!("a worker that is to wait says {other:?}"),
    }
}

/// How runs of these keys end in a worker: result and body by key. What is in flight is asked for
/// again, as clients do: a store without a clock takes an attempt to be alive until this process has
/// seen no renewal for a lease.
async fn run(worker: &mut Process, keys: &[String]) -> Result<HashMap<String, (String, String)>> {
    let until = Instant::now() + PATIENCE;
    let mut answers = HashMap::new();
    let mut open = keys.to_vec();
    loop {
        for key in &open {
            worker.tell(&Order::Run(key.clone(), None)).await?;
        }
        answers.extend(heard(worker, &open).await?);
        open.retain(|key| answers[key].0 == "in-flight");
        if open.is_empty() || Instant::now() > until {
            return Ok(answers);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn heard(worker: &mut Process, keys: &[String]) -> Result<HashMap<String, (String, String)>> {
    let mut answers = HashMap::new();
    for _ in keys {
        match worker.hear().await? {
            Said::Done { key, result, body } => answers.insert(key, (result, body)),
            other => bail!("a worker that runs says {other:?}"),
        };
    }
    Ok(answers)
}

/// The state of a key, and who resolved it, as soon as somebody has.
async fn resolved(worker: &mut Process, key: &str) -> Result<(String, String)> {
    let until = Instant::now() + PATIENCE;
    loop {
        worker.tell(&Order::State(key.to_owned())).await?;
        let (state, by) = match worker.hear().await? {
            Said::State { state, by } => (state, by),
            other => bail!("a worker that was asked for a state says {other:?}"),
        };
        let open = ["in-flight", "unknown"].contains(&state.as_str());
        if !open || Instant::now() > until {
            return Ok((state, by));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn fence_of(body: &str) -> Option<u64> {
    body.strip_prefix("paid-")?.parse().ok()
}
