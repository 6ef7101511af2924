//! `docs/jobs.md`.

use std::time::Duration;

use semel::guard::{
    Asked, Attempt, AttemptInfo, Done, Guard, OnError, Policy, RunError, StepError, StepKey,
};
use semel::store::{OnLost, Retention, Store};
use semel::{Fingerprint, Identity, Json, Key, KeyError, Scope, StoreError};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Report {
    day: String,
    orders: u32,
}

#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("the ledger does not know this day")]
    NoSuchDay,
    #[error("the ledger is busy")]
    Busy,
    #[error("the ledger did not answer")]
    TimedOut,
}

async fn close_in_the_ledger(day: &str) -> Result<Report, JobError> {
    let day = day.to_owned();
    Ok(Report { day, orders: 7 })
}

fn close_day(day: &str) -> Result<Asked, KeyError> {
    let identity = Identity::new(Scope::new(["books"]), "close_day", Key::new(day)?);
    let asked = Asked::new(identity, Fingerprint::of(day.as_bytes()));
    Ok(asked.classify(|error: &JobError| match error {
        JobError::NoSuchDay => OnError::Keep,
        JobError::Busy => OnError::Release,
        JobError::TimedOut => OnError::Unknown,
    }))
}

fn nightly() -> Policy {
    Policy::default()
        .with_retention(Retention::new(Duration::from_hours(24 * 90)))
        .with_wait(Duration::from_mins(10))
}

async fn close<S: Store>(guard: &Guard<S>, day: &str) -> Result<Report, String> {
    let asked = close_day(day)
        .map_err(|error| error.to_string())?
        .with_policy(nightly());
    let day = day.to_owned();
    let work = |_attempt| async move { close_in_the_ledger(&day).await.map(Json) };
    match guard.run(asked, work).await {
        Ok(done) => Ok(done.into_inner().0),
        Err(error) if error.is_retryable() => Err(format!("ask again: {error}")),
        Err(RunError::Unknown) => Err("a person has to look: see docs/unknown.md".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Serialize)]
struct Invoice {
    id: String,
    to: String,
    cents: u32,
}

#[derive(Clone)]
struct Services;

impl Services {
    async fn charge(&self, key: StepKey, cents: u32) -> Result<String, JobError> {
        Ok(format!("{cents}:{key}"))
    }

    async fn send(&self, _: StepKey, to: &str, charge: &str) -> Result<(), JobError> {
        println!("{to}: {charge}");
        Ok(())
    }
}

async fn work_off<S: Store>(
    guard: &Guard<S>,
    job: Invoice,
    services: Services,
) -> Result<Done<String>, RunError<StepError<JobError>>> {
    let key = Key::new(&job.id).expect("job ids are short and printable");
    let identity = Identity::new(Scope::new(["billing"]), "invoice", key);
    let print = Fingerprint::of_json(&job).expect("it has text and numbers");
    let work = move |mut attempt: Attempt<S>| async move {
        let charge: String = attempt
            .step("charge", |key| services.charge(key, job.cents))
            .await?;
        attempt
            .step("mail", |key| services.send(key, &job.to, &charge))
            .await?;
        Ok::<_, StepError<JobError>>(charge)
    };
    guard
        .run(Asked::new(identity, print).in_steps(), work)
        .await
}

async fn copy_files(attempt: &AttemptInfo, files: Vec<String>) -> Result<u32, JobError> {
    let mut copied = 0;
    for file in files {
        if !attempt.still_held() {
            // Another attempt may be at work: stop before the next effect.
            return Err(JobError::Busy);
        }
        println!("copying {file}");
        copied += 1;
    }
    Ok(copied)
}

fn rebuild_index() -> Policy {
    // Harmless to do twice, so a killed job simply runs again.
    Policy::default().with_on_lost(OnLost::Retry)
}

async fn stop<S: Store>(guard: Guard<S>) -> Result<(), StoreError> {
    guard.close().await // jobs under way finish and are recorded
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use semel::memory::MemoryStore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_day_is_closed_once_by_three_replicas() {
        let guard = Guard::from(MemoryStore::default());
        let replicas = [0; 3].map(|_| {
            let guard = guard.clone();
            tokio::spawn(async move { close(&guard, "2026-11-22").await })
        });
        for replica in replicas {
            assert_eq!(replica.await.unwrap().unwrap().orders, 7);
        }
        let day = close_day("2026-11-22").unwrap();
        let work = |_| async { Ok::<_, Infallible>(String::new()) };
        assert!(matches!(guard.run(day, work).await, Ok(Done::Replayed(_))));
    }

    #[tokio::test]
    async fn an_invoice_is_charged_once() {
        let guard = Guard::from(MemoryStore::default());
        guard.spawn_purger();
        let job = || Invoice {
            id: "job-1".into(),
            to: "ada@example.com".into(),
            cents: 300,
        };
        let first = work_off(&guard, job(), Services).await.unwrap();
        let again = work_off(&guard, job(), Services).await.unwrap();
        assert_eq!(again, Done::Replayed(first.into_inner()));
        stop(guard).await.unwrap();
    }
}
