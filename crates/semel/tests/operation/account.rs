//! Row 25: operations that replace the account while they run.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::KeyRule;
use semel::guard::{Begin, Done, Policy, RunError, Settled};
use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
use semel::store::OnLost;
use semel::{Outcome, State, Store as _};

use super::Bench;

const PORTFOLIO: Part = Part::new("portfolio");

fn reset() -> Operation {
    let scope = [Part::TENANT, Part::USER, PORTFOLIO];
    Operation::new("reset", scope, KeyFrom::Client(KeyRule::GENERAL))
}

/// The account that a portfolio has at present: `a-1`, `a-2`, …
#[derive(Clone)]
struct Accounts(Arc<Mutex<u32>>);

impl Accounts {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(1)))
    }

    fn present(&self) -> String {
        format!("a-{}", self.0.lock().unwrap())
    }

    fn replace(&self) -> String {
        *self.0.lock().unwrap() += 1;
        self.present()
    }
}

fn asks(account: &str) -> Caller {
    Caller::new()
        .with(Part::TENANT, "acme")
        .with(Part::USER, "u-7")
        .with(Part::ACCOUNT, account)
        .with(PORTFOLIO, "p-1")
}

async fn run(
    bench: &Bench,
    accounts: &Accounts,
    caller: &Caller,
) -> Result<Done<String>, RunError<Infallible>> {
    let accounts = accounts.clone();
    let call = Call::by(caller).key(Some("reset-1"));
    let work = move |_| async move { Ok(accounts.replace()) };
    bench.guard.run(reset().asked(&call).unwrap(), work).await
}

#[tokio::test(start_paused = true)]
async fn a_retry_under_the_old_account_and_under_the_new_one_replays() {
    let bench = Bench::new();
    let accounts = Accounts::new();
    let old = asks(&accounts.present());
    let ran = run(&bench, &accounts, &old).await.unwrap();
    assert_eq!(ran, Done::Fresh("a-2".into()));
    let new = asks(&accounts.present());
    for caller in [&old, &new] {
        let retry = run(&bench, &accounts, caller).await.unwrap();
        assert_eq!(retry, Done::Replayed("a-2".into()));
    }
    assert_eq!(accounts.present(), "a-2");
}

#[tokio::test(start_paused = true)]
async fn no_other_tenant_user_or_portfolio_meets_the_record() {
    let bench = Bench::new();
    let accounts = Accounts::new();
    run(&bench, &accounts, &asks("a-1")).await.unwrap();
    for (n, (part, value)) in [
        (Part::TENANT, "zenith"),
        (Part::USER, "u-8"),
        (PORTFOLIO, "p-2"),
    ]
    .into_iter()
    .enumerate()
    {
        let other = asks("a-1").with(part, value);
        let ran = run(&bench, &accounts, &other).await.unwrap();
        assert_eq!(ran, Done::Fresh(format!("a-{}", n + 3)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_completion_goes_by_the_claim_whatever_became_of_the_account() {
    let lease = Duration::from_secs(1);
    let policy = Policy::default()
        .with_lease(lease)
        .with_on_lost(OnLost::Retry);
    let bench = Bench::with(policy);
    let accounts = Accounts::new();
    let call = Call::by(&asks("a-1")).key(Some("reset-1"));
    let asked = reset().asked(&call).unwrap();

    // The first attempt replaces the account and stands still past its lease.
    let Ok(Begin::Acquired(stale)) = bench.guard.begin(&asked).await else {
        panic!("not acquired")
    };
    stale.stop_renewing();
    let first = accounts.replace();
    bench.clock.advance(lease);
    // The second comes under the account as it is now, and is the same.
    let second = run(&bench, &accounts, &asks(&first)).await.unwrap();
    assert_eq!(second, Done::Fresh("a-3".into()));
    let late = stale.complete(&Outcome::success(first.as_bytes())).await;
    assert!(matches!(late, Ok(Settled::Refused(_))));
    let record = bench
        .store
        .get(asked.identity().unwrap().digest())
        .await
        .unwrap()
        .unwrap()
        .record;
    assert_eq!(record.state, State::Completed(Outcome::success(b"a-3")));
}
