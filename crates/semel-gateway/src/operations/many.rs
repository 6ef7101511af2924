//! What is done with many records at once: a scope erased, what is past its retention purged, answers
//! encrypted anew.

use semel::sealed::Sealed;
use semel::store::{Entry, Fenced, Store, StoreExt as _};
use semel::{AnyStore, State};
use semel_tower::ProblemCode;
use serde_json::json;
use tokio::time::Instant;

use super::act::{Action, erased};
use super::entered::{Actor, insist};
use super::four_eyes::digest;
use super::order::Many;
use super::reseal::{StoreClock, reseal_all};
use super::view::DoneMany;
use super::{Filter, MOST, Operations, Position, of_store};
use crate::audit::Came;
use crate::command::with_causes;
use crate::refused::Refused;

/// How many records a purge removes in one step.
const PURGE: usize = 1_000;

/// What is done with them.
enum Task<'a> {
    /// The answers of those that are let through are removed, and that they were there is kept.
    Erase(Filter),
    /// What is past its retention, and its tombstone, is removed.
    Purge,
    /// Answers that are not under the key in use are sealed anew.
    Reencrypt(&'a Sealed<AnyStore>),
}

impl<S: Store + Clone> Operations<S> {
    /// Does what is done with many records: `erase`, `purge` or `reencrypt`; or proposes it, where somebody
    /// else has to confirm it.
    ///
    /// # Errors
    /// Why nothing was done, or no more.
    pub async fn many(
        &self,
        actor: &Actor,
        action: &str,
        order: &Many,
        mut progress: impl FnMut(usize),
    ) -> Result<DoneMany, Refused> {
        let task = self.task(action, order)?;
        let Many { scope, service, .. } = order;
        let about = json!({ "scope": scope, "service": service });
        let (name, before) = match &task {
            Task::Erase(_) => ("erase-scope", Some(about.clone())),
            Task::Purge | Task::Reencrypt(_) => (action, None),
        };
        let mut intent = actor.intends(name, &order.reason)?;
        intent.before = before;
        let reason = intent.reason.clone();
        let proposal = order.proposal.as_deref();
        let cleared = self.cleared(action, &mut intent, digest(&about)?, proposal);
        let mut all = DoneMany::default();
        if let Some(number) = cleared.await? {
            (all.audit, all.proposed) = (number, true);
            return Ok(all);
        }
        let begun = self.enter(intent).await?;
        all.audit = begun.number().to_string();
        let clock = StoreClock(begun.at(), Instant::now());
        let mut tell = |records: usize, left: usize| {
            all.records += records;
            all.left += left;
            progress(all.records);
        };
        let done = match task {
            Task::Erase(filter) => self.erase_all(&filter, actor, &reason, &mut tell).await,
            Task::Purge => self.purge_all(&mut tell).await,
            Task::Reencrypt(sealed) => reseal_all(sealed, actor, &reason, clock, &mut tell).await,
        };
        // Some of it may have been done.
        let (came, detail) = match &done {
            Ok(()) => (Came::Done, None),
            Err(refused) => (Came::Unknown, Some(refused.to_string())),
        };
        let after = match all.left {
            0 => json!({ "records": all.records }),
            left => json!({ "records": all.records, "left": left }),
        };
        self.leave(begun, came, detail, Some(after)).await;
        done.map(|()| all)
    }

    fn task(&self, action: &str, order: &Many) -> Result<Task<'_>, Refused> {
        if action == "erase" {
            if order.scope.is_empty() {
                let why = "scope: say whose answers: the segments that the scope begins with";
                return Err(Refused::invalid(why));
            }
            let scope = order.scope.iter().map(|segment| ("scope", &**segment));
            let service = order.service.iter().map(|service| ("service", &**service));
            let pairs = scope.chain(service).chain([("state", "completed")]);
            return Filter::of(pairs).map(Task::Erase);
        }
        if !order.scope.is_empty() || order.service.is_some() {
            let why = format!("{action}: it is about all records, and takes a reason only");
            return Err(Refused::invalid(why));
        }
        match (action, &self.sealed) {
            ("purge", _) => Ok(Task::Purge),
            ("reencrypt", Some(sealed)) => Ok(Task::Reencrypt(sealed)),
            ("reencrypt", None) => Err(Refused::invalid("--encryption-keys: there are none here")),
            _ => Err(Refused::invalid("there are erase, purge and reencrypt")),
        }
    }

    /// In steps of a bounded number.
    async fn purge_all(&self, tell: &mut impl FnMut(usize, usize)) -> Result<(), Refused> {
        let mut removed = 0;
        loop {
            let purged = insist(|| self.store.purge(PURGE)).await.map_err(of_store)?;
            removed += purged.removed;
            tell(purged.removed, 0);
            if !purged.more {
                break;
            }
        }
        // One round sweeps a part of what is kept elsewhere: this is all of it.
        let Some(offloaded) = &self.offloaded else {
            return Ok(());
        };
        let swept = offloaded.sweep().await.map(drop);
        swept.map_err(|error| {
            let why = format!(
                "{removed} records were removed, and not all of what no record needs any more outside the store: {}",
                with_causes(&error)
            );
            Refused::of_layer(ProblemCode::StoreUnavailable, why)
        })
    }

    async fn erase_all(
        &self,
        filter: &Filter,
        actor: &Actor,
        reason: &str,
        tell: &mut impl FnMut(usize, usize),
    ) -> Result<(), Refused> {
        let mut from = Position::default();
        loop {
            let found = self.list(filter, &from, MOST).await?;
            for entry in &found.entries {
                let is_erased = self.erase_one(entry, actor, reason).await?;
                tell(is_erased.into(), 0);
            }
            match found.next {
                Some(next) => from = next,
                None => break,
            }
        }
        // What of their answers is in no record, and what an earlier erasure did not get to.
        if let Some(offloaded) = &self.offloaded {
            let swept = offloaded.sweep_erased(|label| filter.names(label)).await;
            swept.map_err(of_store)?;
        }
        self.clean_files().await
    }

    /// Whether there was something to erase. A record that changes meanwhile is looked at again.
    async fn erase_one(&self, entry: &Entry, actor: &Actor, reason: &str) -> Result<bool, Refused> {
        let id = &entry.label.digest;
        let mut record = entry.record.clone();
        loop {
            self.reaches(&record)?;
            match &record.state {
                State::Completed(outcome) if *outcome != erased() => {}
                _ => return Ok(false),
            }
            let verdict = Action::Erase.verdict(&record)?;
            let resolution = actor.decides(verdict, reason, record.token.fence)?;
            let done = insist(|| self.store.resolve(id, &resolution)).await;
            if done.map_err(of_store)? == Fenced::Applied {
                return Ok(true);
            }
            match self.store.get(id).await.map_err(of_store)? {
                Some(entry) => record = entry.record,
                None => return Ok(false),
            }
        }
    }

    /// What was erased leaves the store's own files, if it has some, with the next purge.
    pub(super) async fn clean_files(&self) -> Result<(), Refused> {
        let purged = insist(|| self.store.purge(1)).await;
        purged.map(drop).map_err(of_store)
    }
}
