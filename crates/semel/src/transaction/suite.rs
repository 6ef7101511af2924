//! What every store is checked for that commits an effect and its record together. A store of one's own brings
//! [`Effects`], a table beside its records. Each case needs a store of its own: one closes it, and one counts what there
//! is.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Isolation, Lent, Sealing, Transactional};
use crate::conformance::{Failure, ensure, ensure_eq};
use crate::guard::{
    Asked, Attempt, AttemptInfo, Done, Guard, OnError, Policy, Ran, RunError, StepError,
    TransactOptions,
};
use crate::record::Change;
use crate::store::{
    Acquired, Claim, ClaimRequest, Fenced, ListQuery, Nonce, OnLost, Refusal, Retention,
};
pub use crate::versioned::suite::Running;
use crate::{
    Fingerprint, FinishedStep, Identity, IdentityDigest, Key, Outcome, Scope, StateKind,
    StoreErrorKind,
};

/// Effects that the suite has in a store's database, in a place beside the records.
pub trait Effects<S: Transactional>: Send + Sync + 'static {
    /// What the driver fails with.
    type Error: StdError + Send + Sync + 'static;

    /// Adds an effect of this name in the transaction. There may be several of one name.
    fn add(
        &self,
        transaction: &mut S::Transaction,
        name: &str,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Runs a statement that the database refuses.
    fn fail(
        &self,
        transaction: &mut S::Transaction,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// How many effects of this name are committed.
    fn count(&self, name: &str) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// One promise, and the code that checks it on a store.
pub struct Case<S, E> {
    /// As a harness shows it.
    pub name: &'static str,
    /// What is promised, as a sentence.
    pub promise: &'static str,
    /// Checks it.
    pub run: fn(Arc<S>, Arc<E>) -> Running,
}

macro_rules! cases {
    ($($run:ident $promise:literal;)+) => {
        vec![$(Case {
            name: stringify!($run),
            promise: $promise,
            run: |store, effects| Box::pin($run(Bench::new(store, effects))),
        }),+]
    };
}

/// What holds of every store that has transactions.
pub fn cases<S: Transactional, E: Effects<S>>() -> Vec<Case<S, E>> {
    cases! {
        together_and_once "of 16 callers at once one has its effect, and all get its answer";
        another_request_is_a_mismatch "a key that was used for another request has no effect";
        an_error_rolls_back_and_releases "after an error nothing of it is there, and the next call runs";
        a_panic_rolls_back_and_releases "after a panic nothing of it is there, and the next call runs";
        a_failure_is_kept_without_effect "a failure that the policy keeps is replayed, and had no effect";
        a_refused_statement_is_no_success
            "work that ignores a refused statement is committed as a whole, or not at all";
        kept_is_not_committed "a transaction that the work keeps is not committed";
        dropped_is_rolled_back "a transaction that is dropped is rolled back, and in nobody's way";
        longer_than_a_third_of_the_lease
            "work that takes longer than renewals are apart is committed once, however it is isolated";
        past_its_lease_commits_nothing "an attempt whose place another took is refused";
        completed_before_is_refused
            "a completion that is there already is none of this transaction, also where it is the same";
        without_a_key_without_a_record "without a key the effects are committed, and no record";
        sealed_together "two records are completed with one effect";
        sealed_all_or_nothing "where one of two records refuses, nothing of the transaction is there";
        each_step_with_its_effect
            "a step is committed with its effect, and not run again when a later one failed";
        a_step_past_its_lease_commits_nothing "a step of an attempt whose place another took is refused";
        a_step_kept_before_is_refused "a step that is there already is none of this transaction";
        closed_begins_nothing "a store that was closed begins no transaction, and says that it is closed";
    }
}

const LEVELS: [Isolation; 3] = [
    Isolation::ReadCommitted,
    Isolation::RepeatableRead,
    Isolation::Serializable,
];

struct Bench<S, E> {
    store: Arc<S>,
    effects: Arc<E>,
    // Of this case: identities and effects are named by it.
    name: String,
}

/// Why the work of a case ends.
#[derive(Debug)]
enum Stop<E> {
    Driver(E),
    Refused,
}

impl<E> fmt::Display for Stop<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver(_) => "the database refused it",
            Self::Refused => "no such article",
        })
    }
}

impl<E: StdError + 'static> StdError for Stop<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Driver(error) => Some(error),
            Self::Refused => None,
        }
    }
}

type Ended<E> = Result<Done<String>, RunError<Stop<E>>>;

impl<S: Transactional, E: Effects<S>> Bench<S, E> {
    fn new(store: Arc<S>, effects: Arc<E>) -> Self {
        let nonce = Nonce::random().expect("the system has random numbers");
        Self {
            store,
            effects,
            name: hex::encode(nonce.as_bytes()),
        }
    }

    fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    fn identity(&self, what: &str) -> Identity {
        let key = Key::new(&self.named(what)).expect("hexadecimal digits make a key");
        Identity::new(Scope::new(["suite"]), "transact", key)
    }

    fn asked(&self, what: &str) -> Asked {
        Asked::new(self.identity(what), Fingerprint::of(b"request"))
    }

    async fn effects(&self, what: &str) -> Result<u64, Failure> {
        self.effects.count(&self.named(what)).await
    }

    async fn state(&self, what: &str) -> Result<Option<StateKind>, Failure> {
        let entry = self.store.get(self.identity(what).digest()).await?;
        Ok(entry.map(|entry| entry.record.state.kind()))
    }

    async fn is(&self, what: &str, state: StateKind, effects: u64) -> Result<(), Failure> {
        ensure_eq!(self.state(what).await?, Some(state), "the record of {what}");
        ensure_eq!(self.effects(what).await?, effects, "effects of {what}");
        Ok(())
    }

    async fn claim(&self, what: &str, lease: Duration) -> Result<Acquired, Failure> {
        let request = ClaimRequest {
            on_lost: OnLost::Retry,
            ..ClaimRequest::new(Nonce::random()?, Fingerprint::of(b"request"), lease)
        };
        match self.store.claim(&self.identity(what), &request).await? {
            Claim::Acquired(acquired) => Ok(acquired),
            other => Err(Failure::new(format!("{what} was not acquired: {other:?}"))),
        }
    }

    /// Completions of claims that hold.
    async fn completions<const N: usize>(
        &self,
        whats: [&str; N],
    ) -> Result<Vec<(IdentityDigest, Change)>, Failure> {
        let mut changes = Vec::new();
        for what in whats {
            let held = self.claim(what, Duration::from_secs(60)).await?;
            let outcome = Outcome::success(what.as_bytes());
            let change = Change::complete(&held.token, &outcome, Retention::ORDER);
            changes.push((*self.identity(what).digest(), change));
        }
        Ok(changes)
    }

    /// The change is committed with an effect.
    async fn applied(&self, what: &str, change: &Change) -> Result<(), Failure> {
        let id = self.identity(what);
        let mut transaction = self.with_effect(what).await?;
        let changed = self
            .store
            .change_in(&mut transaction, id.digest(), change)
            .await?;
        ensure_eq!(changed, Fenced::Applied, "the first change of {what}");
        Ok(self.store.commit(transaction).await?)
    }

    /// A transaction with an effect refuses the change, and is rolled back.
    async fn refused(&self, what: &str, change: Change, why: Refusal) -> Result<(), Failure> {
        let (id, wanted) = (self.identity(what), Fenced::Refused(why));
        let mut transaction = self.with_effect(what).await?;
        let changed = self
            .store
            .change_in(&mut transaction, id.digest(), &change)
            .await?;
        self.store.rollback(transaction).await;
        ensure_eq!(changed, wanted, "the change of {what}");
        let sealed = self
            .store
            .seal(self.with_effect(what).await?, &[(*id.digest(), change)])
            .await?;
        ensure_eq!(sealed, Sealing::Refused(0), "the sealing of {what}");
        Ok(())
    }

    async fn is_in_steps(&self, what: &str, effects: [u64; 2]) -> Result<(), Failure> {
        let first = self.effects(&format!("{what}-1")).await?;
        let second = self.effects(&format!("{what}-2")).await?;
        ensure_eq!([first, second], effects, "effects of the steps");
        Ok(())
    }

    /// A transaction in which an effect was had.
    async fn with_effect(&self, what: &str) -> Result<S::Transaction, Failure> {
        let mut transaction = self.store.begin(Isolation::default()).await?;
        let name = self.named(what);
        let added = self.effects.add(&mut transaction, &name).await;
        added.map_err(|error| Failure::new(format!("no effect: {error}")))?;
        Ok(transaction)
    }

    /// Work that has its effect, and then ends so.
    async fn run(&self, what: &str, policy: Policy, end: End<S>) -> Ended<E::Error> {
        self.run_at(what, policy, Isolation::default(), end).await
    }

    async fn run_at(
        &self,
        what: &str,
        policy: Policy,
        isolation: Isolation,
        end: End<S>,
    ) -> Ended<E::Error> {
        self.ask(self.asked(what), what, policy, isolation, end)
            .await
    }

    async fn ask(
        &self,
        asked: Asked,
        what: &str,
        policy: Policy,
        isolation: Isolation,
        end: End<S>,
    ) -> Ended<E::Error> {
        let (effects, name) = (Arc::clone(&self.effects), self.named(what));
        let work = move |_: AttemptInfo, mut lent: Lent<S::Transaction>| {
            let (effects, name, end) = (Arc::clone(&effects), name.clone(), end.clone());
            async move {
                effects.add(&mut lent, &name).await.map_err(Stop::Driver)?;
                match end {
                    End::Return => {}
                    End::After(time) => sleep(time).await,
                    End::Refused => return Err(Stop::Refused),
                    End::Panics => panic!("in the middle"),
                    End::Ignores if effects.fail(&mut lent).await.is_ok() => {
                        panic!("the statement that is to be refused was not")
                    }
                    End::Ignores => {}
                    End::Keeps(place) => *place.lock() = Some(lent),
                }
                Ok(name)
            }
        };
        let options = TransactOptions::default().with_isolation(isolation);
        let guard = Guard::new(Arc::clone(&self.store), policy);
        guard.transact(asked, options, work).await
    }

    /// An attempt of two steps, each with an effect; the second fails where it is to.
    async fn in_steps(
        &self,
        what: &str,
        fails: bool,
    ) -> Result<Done<String>, RunError<StepError<Stop<E::Error>>>> {
        let (effects, name) = (Arc::clone(&self.effects), self.named(what));
        let work = move |mut attempt: Attempt<Arc<S>>| async move {
            for step in ["1", "2"] {
                let effect = |_, mut lent: Lent<S::Transaction>| {
                    let (effects, name) = (Arc::clone(&effects), format!("{name}-{step}"));
                    async move {
                        effects.add(&mut lent, &name).await.map_err(Stop::Driver)?;
                        match fails && step == "2" {
                            true => Err(Stop::Refused),
                            false => Ok(()),
                        }
                    }
                };
                attempt
                    .transact(step, TransactOptions::default(), effect)
                    .await?;
            }
            Ok::<_, StepError<_>>("done".to_owned())
        };
        let guard = Guard::from(Arc::clone(&self.store));
        guard.run(self.asked(what).in_steps(), work).await
    }
}

/// How work ends that had its effect.
enum End<S: Transactional> {
    Return,
    After(Duration),
    Refused,
    Panics,
    /// Has the database refuse a statement, and takes no notice.
    Ignores,
    Keeps(Kept<S>),
}

type Kept<S> = Arc<Mutex<Option<Lent<<S as Transactional>::Transaction>>>>;

impl<S: Transactional> Clone for End<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Return => Self::Return,
            Self::After(time) => Self::After(*time),
            Self::Refused => Self::Refused,
            Self::Panics => Self::Panics,
            Self::Ignores => Self::Ignores,
            Self::Keeps(place) => Self::Keeps(Arc::clone(place)),
        }
    }
}

fn fresh<T, E: fmt::Debug>(ended: Result<Done<T>, E>) -> Result<T, Failure> {
    match ended {
        Ok(Done::Fresh(value)) => Ok(value),
        Ok(_) => Err(Failure::new("it did not run")),
        Err(error) => Err(Failure::new(format!("it was not committed: {error:?}"))),
    }
}

type Checked = Result<(), Failure>;

async fn together_and_once<S, E>(bench: Bench<S, E>) -> Checked
where
    S: Transactional,
    E: Effects<S>,
{
    let bench = Arc::new(bench);
    let policy = Policy::default().with_wait(Duration::from_secs(20));
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.run("k", policy, End::Return).await })
        })
        .collect();
    let mut ran = 0;
    for caller in callers {
        let done = caller.await.map_err(|e| Failure::new(e.to_string()))?;
        let done = done.map_err(|e| Failure::new(format!("a caller got no answer: {e:?}")))?;
        ran += u32::from(matches!(done, Done::Fresh(_)));
        ensure_eq!(done.into_inner(), bench.named("k"), "the answer");
    }
    ensure_eq!(ran, 1, "how many ran");
    bench.is("k", StateKind::Completed, 1).await
}

async fn another_request_is_a_mismatch<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    fresh(bench.run("k", Policy::default(), End::Return).await)?;
    let other = Asked::new(bench.identity("k"), Fingerprint::of(b"another"));
    let (policy, level) = (Policy::default(), Isolation::default());
    let ended = bench.ask(other, "k", policy, level, End::Return).await;
    ensure!(matches!(ended, Err(RunError::Mismatch)), "{ended:?}");
    bench.is("k", StateKind::Completed, 1).await
}

async fn an_error_rolls_back_and_releases<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let ended = bench.run("k", Policy::default(), End::Refused).await;
    ensure!(matches!(ended, Err(RunError::Failed(_))), "{ended:?}");
    bench.is("k", StateKind::Released, 0).await?;
    fresh(bench.run("k", Policy::default(), End::Return).await)?;
    bench.is("k", StateKind::Completed, 1).await
}

async fn a_panic_rolls_back_and_releases<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let bench = Arc::new(bench);
    let here = Arc::clone(&bench);
    let ended = tokio::spawn(async move { here.run("k", Policy::default(), End::Panics).await });
    let ended = ended.await;
    let panicked = ended.as_ref().is_err_and(|error| error.is_panic());
    ensure!(panicked, "the panic did not go on: {ended:?}");
    bench.is("k", StateKind::Released, 0).await?;
    fresh(bench.run("k", Policy::default(), End::Return).await)?;
    bench.is("k", StateKind::Completed, 1).await
}

async fn a_failure_is_kept_without_effect<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let keeping = Policy::default().with_on_error(OnError::Keep);
    for is_replay in [false, true] {
        let ended = bench.run("k", keeping, End::Refused).await;
        let Err(RunError::Failed(failed)) = ended else {
            return Err(Failure::new(format!("it did not fail: {ended:?}")));
        };
        ensure_eq!(
            failed.error().is_none(),
            is_replay,
            "whether it is a replay"
        );
        ensure_eq!(
            failed.to_string(),
            Stop::<E::Error>::Refused.to_string(),
            "what it says"
        );
    }
    bench.is("k", StateKind::Completed, 0).await
}

async fn a_refused_statement_is_no_success<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    match bench.run("k", Policy::default(), End::Ignores).await {
        // A database that takes back the statement alone.
        Ok(Done::Fresh(_)) => bench.is("k", StateKind::Completed, 1).await,
        // One that takes back the transaction.
        Err(RunError::Store { ran: Ran::No, .. }) => bench.is("k", StateKind::Released, 0).await,
        ended => Err(Failure::new(format!(
            "neither whole nor nothing: {ended:?}"
        ))),
    }
}

async fn kept_is_not_committed<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    let place = Arc::default();
    let end = End::Keeps(Arc::clone(&place));
    let ended = bench.run("k", Policy::default(), end).await;
    ensure!(matches!(ended, Err(RunError::TransactionKept)), "{ended:?}");
    drop(place.lock().take());
    // Where it was in the way of the release, that goes on in the background.
    for _ in 0..200 {
        if bench.state("k").await? == Some(StateKind::Released) {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    bench.is("k", StateKind::Released, 0).await
}

async fn dropped_is_rolled_back<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    let held = bench.claim("k", Duration::from_secs(60)).await?;
    let (id, outcome) = (bench.identity("k"), Outcome::success(b"done"));
    let change = Change::complete(&held.token, &outcome, Retention::ORDER);
    // More than a store has connections, and each with the record locked.
    for _ in 0..40 {
        let mut transaction = bench.with_effect("k").await?;
        let changed = bench
            .store
            .change_in(&mut transaction, id.digest(), &change)
            .await?;
        ensure_eq!(changed, Fenced::Applied, "the change");
        drop(transaction);
    }
    let done = bench.store.change(id.digest(), &change).await?;
    ensure_eq!(done, Fenced::Applied, "the completion after them");
    bench.is("k", StateKind::Completed, 0).await
}

async fn longer_than_a_third_of_the_lease<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let brief = Policy::default().with_lease(Duration::from_secs(1));
    for level in LEVELS {
        let what = format!("{level:?}");
        let end = End::After(Duration::from_millis(700));
        fresh(bench.run_at(&what, brief, level, end).await)?;
        bench.is(&what, StateKind::Completed, 1).await?;
    }
    Ok(())
}

async fn past_its_lease_commits_nothing<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let late = bench.claim("k", Duration::ZERO).await?;
    // It runs still: the token alone tells the two apart.
    bench.claim("k", Duration::from_secs(60)).await?;
    let outcome = Outcome::success(b"the late one's");
    let change = Change::complete(&late.token, &outcome, Retention::ORDER);
    bench.refused("k", change, Refusal::Superseded).await?;
    bench.is("k", StateKind::InFlight, 0).await
}

async fn completed_before_is_refused<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let held = bench.claim("k", Duration::from_secs(60)).await?;
    let outcome = Outcome::success(b"done");
    let change = Change::complete(&held.token, &outcome, Retention::ORDER);
    bench.applied("k", &change).await?;
    let settled = Refusal::Settled(StateKind::Completed);
    bench.refused("k", change, settled).await?;
    bench.is("k", StateKind::Completed, 1).await
}

async fn without_a_key_without_a_record<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let asked = || Asked::unkeyed(Fingerprint::of(b"request"));
    let (policy, level) = (Policy::default(), Isolation::default());
    let ended = bench.ask(asked(), "k", policy, level, End::Return).await;
    ensure!(matches!(ended, Ok(Done::Unprotected(_))), "{ended:?}");
    let ended = bench.ask(asked(), "k", policy, level, End::Refused).await;
    ensure!(matches!(ended, Err(RunError::Failed(_))), "{ended:?}");
    ensure_eq!(bench.effects("k").await?, 1, "effects");
    for state in StateKind::ALL {
        let page = bench.store.list(&ListQuery::new(state)).await?;
        ensure_eq!(page.entries.len(), 0, "records, {state:?}");
    }
    Ok(())
}

async fn sealed_together<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    let changes = bench.completions(["a", "b"]).await?;
    let transaction = bench.with_effect("a").await?;
    let sealed = bench.store.seal(transaction, &changes).await?;
    let committed = Sealing::Committed {
        omitted: Vec::new(),
    };
    ensure_eq!(sealed, committed, "how it ended");
    bench.is("a", StateKind::Completed, 1).await?;
    bench.is("b", StateKind::Completed, 0).await
}

async fn sealed_all_or_nothing<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    let changes = bench.completions(["a", "b"]).await?;
    // b is completed already.
    let (digest, change) = &changes[1];
    let done = bench.store.change(digest, change).await?;
    ensure_eq!(done, Fenced::Applied, "the first completion of b");
    let transaction = bench.with_effect("a").await?;
    let sealed = bench.store.seal(transaction, &changes).await?;
    ensure_eq!(sealed, Sealing::Refused(1), "how it ended");
    bench.is("b", StateKind::Completed, 0).await?;
    bench.is("a", StateKind::InFlight, 0).await
}

async fn each_step_with_its_effect<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    let ended = bench.in_steps("k", true).await;
    let failed = match &ended {
        Err(RunError::Failed(failed)) => failed.error(),
        _ => None,
    };
    ensure!(matches!(failed, Some(StepError::Failed(_))), "{ended:?}");
    bench.is_in_steps("k", [1, 0]).await?;
    ensure_eq!(
        bench.state("k").await?,
        Some(StateKind::Released),
        "the record"
    );
    fresh(bench.in_steps("k", false).await)?;
    let again = bench.in_steps("k", false).await;
    ensure!(matches!(again, Ok(Done::Replayed(_))), "{again:?}");
    bench.is_in_steps("k", [1, 1]).await
}

async fn a_step_past_its_lease_commits_nothing<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let late = bench.claim("k", Duration::ZERO).await?;
    fresh(bench.in_steps("k", false).await)?;
    let step =
        FinishedStep::new("1", b"the late one's").map_err(|e| Failure::new(e.to_string()))?;
    let change = Change::keep_step(&late.token, &step, 0);
    bench.refused("k", change, Refusal::Superseded).await?;
    bench.is_in_steps("k", [1, 1]).await
}

async fn a_step_kept_before_is_refused<S: Transactional, E: Effects<S>>(
    bench: Bench<S, E>,
) -> Checked {
    let held = bench.claim("k", Duration::from_secs(60)).await?;
    let step = FinishedStep::new("1", b"result").map_err(|e| Failure::new(e.to_string()))?;
    let change = Change::keep_step(&held.token, &step, 0);
    bench.applied("k", &change).await?;
    bench.refused("k", change, Refusal::OtherSteps).await?;
    bench.is("k", StateKind::InFlight, 1).await
}

async fn closed_begins_nothing<S: Transactional, E: Effects<S>>(bench: Bench<S, E>) -> Checked {
    bench.store.close().await?;
    match bench.store.begin(Isolation::default()).await {
        Ok(_) => Err(Failure::new("it began")),
        Err(error) => {
            let kind = error.into_source().kind();
            ensure_eq!(kind, StoreErrorKind::Closed, "what it says");
            Ok(())
        }
    }
}
