//! A store whose answers are compressed and encrypted.
//!
//! [`Sealed`] is put around any store, and is one itself. What others than the protocol are not to
//! read is sealed before the store gets it: the outcome (code, fields, body), the results of steps,
//! the note, and the hint of the key. In the clear stays what stores look up, compare and list by:
//! scope and operation, state, times, fence, fingerprint and identity (see [`secrets`](crate::secrets)),
//! whether an outcome is a success, the reasons of operators; and how long things are.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::guard::{Asked, Done, Guard};
//! use semel::memory::MemoryStore;
//! use semel::sealed::{Keys, Sealed};
//! # use semel::{Fingerprint, Identity, Key, Scope};
//!
//! // `head -c 32 /dev/urandom | base64`
//! let keys = Keys::parse("2026-11 AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")?;
//! let guard = Guard::from(Sealed::new(MemoryStore::default(), keys));
//! # let identity = Identity::new(Scope::new(["acme"]), "pay", Key::new("order-4711")?);
//! let asked = Asked::new(identity, Fingerprint::of(b"9 EUR"));
//! let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
//! assert_eq!(guard.run(asked.clone(), pay).await?, Done::Fresh("paid".into()));
//! assert_eq!(guard.run(asked, pay).await?, Done::Replayed("paid".into()));
//! # Ok(())
//! # }
//! ```
//!
//! # Keys
//!
//! The first key seals; all open. To rotate: give all programs the new key as a second one, then as
//! the first, and remove the old one when nothing is sealed with it: [`Sealed::resealed`] writes an
//! outcome anew. What was kept before there was a key is read as it is. A completion, or a step, that is
//! sent again is known to be the same whichever key is first by then.
//!
//! Where a key is missing, a claim whose answer it sealed fails with
//! [`Corrupt`](crate::StoreErrorKind::Corrupt), and the operation does not run again. [`get`](Store::get)
//! and [`list`](Store::list) show such a record, and what is sealed of it stays so.
//!
//! Steps take 44 bytes more each, up to [`Progress::MAX_STORED`] together.

mod keys;

use std::error::Error as StdError;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;

pub use crate::keyring::{KeyName, KeysError};
use crate::record::{Change, State, Update};
use crate::store::{
    Claim, ClaimRequest, Entry, Fenced, ListQuery, Nonce, Page, Refusal, Result, Store, Token,
    Verdict,
};
use crate::transaction::{Isolation, TransactionError, Transactional};
use crate::{
    FinishedStep, Identity, IdentityDigest, Note, Outcome, Progress, StateKind, StoreError,
    StoreErrorKind,
};
pub use keys::{Keys, OpenError};
use keys::{MORE, Place};

/// A store, and the keys that what it keeps is sealed with.
#[derive(Debug, Clone)]
pub struct Sealed<S> {
    inner: S,
    keys: Arc<Keys>,
}

/// The line of a sealed note.
const NOTE: &str = "sealed";
/// What a step's own form takes besides what it holds.
const STEP: usize = 6;

impl<S> Sealed<S> {
    /// Seals what `inner` is given, and opens what it gives back.
    pub fn new(inner: S, keys: impl Into<Arc<Keys>>) -> Self {
        Self {
            inner,
            keys: keys.into(),
        }
    }

    /// The store itself: what it gives is sealed.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
}

impl Keys {
    /// Under which keys the parts of a record are sealed. `entry` is as the store itself has it:
    /// [`Sealed::inner`].
    pub fn used_by(entry: &Entry) -> Vec<KeyName> {
        let record = &entry.record;
        let outcome = match &record.state {
            State::Completed(outcome) => outcome.as_sealed().and_then(Self::name_of),
            _ => None,
        };
        let note = as_sealed(&record.note).and_then(|note| Self::name_of(&note));
        let steps = record.progress.kept();
        let steps = steps.filter_map(|step| Self::name_of(as_sealed_step(step)?));
        let mut names = Vec::new();
        for name in outcome.into_iter().chain(note).chain(steps) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn seal_outcome(
        &self,
        outcome: &Outcome,
        identity: &IdentityDigest,
        nonce: &Nonce,
    ) -> Result<Outcome> {
        // One that could not be opened, or fetched, and is given back.
        if outcome.is_sealed() || outcome.place().is_some() {
            return Ok(outcome.clone());
        }
        let sealed = self.seal(outcome.as_bytes(), identity, Place::Outcome, nonce)?;
        Ok(outcome.sealed(&sealed))
    }

    fn open_outcome(
        &self,
        outcome: Outcome,
        identity: &IdentityDigest,
    ) -> Result<Outcome, OpenError> {
        let Some(sealed) = outcome.as_sealed() else {
            return Ok(outcome);
        };
        let opened = self.open(sealed, identity, Place::Outcome)?;
        Outcome::from_bytes(opened.into()).map_err(|_| OpenError::Damaged)
    }

    /// The hint of the key, and the note.
    fn seal_note(&self, identity: &Identity, note: &Note, nonce: &Nonce) -> Result<Note> {
        // All that has room behind `sealed=`, once it is text.
        const MOST: usize = (Note::MAX_BYTES - NOTE.len() - 1) / 4 * 3;
        let mut text = note.as_text();
        loop {
            let all = [identity.hint(), "\n", text].concat();
            let sealed = self.seal(all.as_bytes(), identity.digest(), Place::Note, nonce)?;
            if sealed.len() <= MOST {
                let sealed = BASE64_STANDARD_NO_PAD.encode(sealed);
                return Ok(Note::line(NOTE, &sealed));
            }
            // The last ones are left out.
            text = text.rsplit_once('\n').map_or("", |(before, _)| before);
        }
    }

    fn open_note(&self, note: &Note, identity: &IdentityDigest) -> Option<(Box<str>, Note)> {
        let sealed = as_sealed(note)?;
        let name = Self::name_of(&sealed)?;
        let opened = self.open(&sealed, identity, Place::Note);
        let read = opened.map(|opened| {
            let text = str::from_utf8(&opened).ok()?;
            let (hint, note) = text.split_once('\n')?;
            Some((hint.into(), Note::from_text(note).ok()?))
        });
        Some(match read {
            Ok(Some(read)) => read,
            Ok(None) | Err(_) => {
                let what = format!("with the key `{name}`, which cannot open it");
                ("".into(), Note::new([("encrypted", what)]))
            }
        })
    }

    fn seal_step(
        &self,
        step: &FinishedStep,
        identity: &IdentityDigest,
        nonce: &Nonce,
        kept: usize,
    ) -> Result<FinishedStep> {
        if step.is_mark() {
            return Ok(step.clone());
        }
        let sealed = self.seal(step.as_bytes(), identity, Place::step(kept), nonce)?;
        Ok(FinishedStep::sealed(&sealed))
    }

    /// The steps, and behind how many bytes each of them is, as they were before they were sealed and as
    /// the store has them.
    fn open_steps(
        &self,
        kept: &Progress,
        identity: &IdentityDigest,
    ) -> Result<(Progress, Vec<(usize, usize)>), OpenError> {
        let (mut opened, mut kept_at) = (Vec::new(), 0);
        let (mut places, mut sealed_steps) = (Vec::new(), 0);
        for step in kept.kept() {
            places.push((opened.len(), kept_at));
            let (name, result) = step;
            let next = kept_at + STEP + name.len() + result.len();
            match as_sealed_step(step) {
                Some(sealed) => {
                    opened.extend(self.open(sealed, identity, Place::step(kept_at))?);
                    sealed_steps += 1;
                }
                None => {
                    let step = kept.as_bytes().get(kept_at..next);
                    opened.extend_from_slice(step.ok_or(OpenError::Damaged)?);
                }
            }
            kept_at = next;
        }
        places.push((opened.len(), kept_at));
        let opened = Progress::from_bytes(&opened).map_err(|_| OpenError::Damaged)?;
        let unsealed = opened.steps().count() - sealed_steps;
        Ok((opened.with_unsealed(unsealed), places))
    }

    fn open_entry(&self, mut entry: Entry) -> Entry {
        let identity = &entry.label.digest;
        let record = &mut entry.record;
        if let State::Completed(outcome) = &mut record.state
            && let Ok(opened) = self.open_outcome(outcome.clone(), identity)
        {
            *outcome = opened;
        }
        if let Ok((steps, _)) = self.open_steps(&record.progress, identity) {
            record.progress = steps;
        }
        if let Some((hint, note)) = self.open_note(&record.note, identity) {
            (entry.label.key_hint, record.note) = (hint, note);
        }
        entry
    }

    fn seal_change(&self, identity: &IdentityDigest, change: &Change) -> Result<Change> {
        Ok(match change {
            Change::Held(token, Update::Complete(outcome, retention)) => {
                let outcome = self.seal_outcome(outcome, identity, &token.nonce)?;
                Change::Held(*token, Update::Complete(outcome, *retention))
            }
            Change::Held(token, Update::KeepStep { step, kept }) => {
                // As far as is known; where it is another, the store refuses it.
                let kept = kept + (STEP + MORE) * step.place();
                self.seal_kept(identity, token, step, kept)?
            }
            Change::Held(..) => change.clone(),
            Change::Resolve(resolution) => {
                let mut resolution = resolution.clone();
                if let Verdict::Happened { outcome, .. } | Verdict::Amended { outcome, .. } =
                    &mut resolution.verdict
                {
                    *outcome = self.seal_outcome(outcome, identity, &resolution.nonce)?;
                }
                Change::Resolve(resolution)
            }
        })
    }

    /// A step behind so many bytes, as the store has them.
    fn seal_kept(
        &self,
        identity: &IdentityDigest,
        token: &Token,
        step: &FinishedStep,
        kept: usize,
    ) -> Result<Change> {
        let step = self.seal_step(step, identity, &token.nonce, kept)?;
        if kept.saturating_add(step.as_bytes().len()) > Progress::MAX_STORED && !step.is_mark() {
            let what =
                "the results of the steps take too many bytes, with what sealing adds to each";
            return Err(StoreError::new(StoreErrorKind::TooLarge, what));
        }
        Ok(Change::Held(*token, Update::KeepStep { step, kept }))
    }
}

fn as_sealed(note: &Note) -> Option<Vec<u8>> {
    let text = note.as_text().strip_prefix(NOTE)?.strip_prefix('=')?;
    BASE64_STANDARD_NO_PAD.decode(text).ok()
}

fn as_sealed_step<'a>((name, result): (&str, &'a [u8])) -> Option<&'a [u8]> {
    (name.is_empty() && Keys::name_of(result).is_some()).then_some(result)
}

/// What a store's refusal comes to, once what it keeps is opened.
enum Refused {
    /// A refusal.
    Rightly,
    /// It was made before, with other bytes: under another key, or by another release.
    Repeated,
    /// It has its place elsewhere than it was taken for. As it is to be sent.
    Misplaced(Change),
}

impl<S: Store> Sealed<S> {
    /// A store compares bytes, and only what is under one key has the same ones. And it knows a step's
    /// place by what it keeps before it, which may be more or less than was taken for it.
    async fn refused(
        &self,
        identity: &IdentityDigest,
        (change, sent): (&Change, &Change),
        answer: Fenced,
    ) -> Result<Refused> {
        let (Change::Held(token, update), Change::Held(_, sent), Fenced::Refused(refusal)) =
            (change, sent, answer)
        else {
            return Ok(Refused::Rightly);
        };
        let is_of_bytes = match update {
            Update::Complete(..) => refusal == Refusal::Settled(StateKind::Completed),
            Update::KeepStep { .. } => refusal == Refusal::OtherSteps,
            _ => false,
        };
        if !is_of_bytes {
            return Ok(Refused::Rightly);
        }
        let entry = self.inner.get(identity).await?;
        let Some(record) = entry
            .map(|entry| entry.record)
            .filter(|r| r.token == *token)
        else {
            return Ok(Refused::Rightly);
        };
        match (update, sent, record.state) {
            (Update::Complete(outcome, _), _, State::Completed(kept)) => {
                let kept = self.keys.open_outcome(kept, identity)?;
                if kept.readable()? == outcome {
                    return Ok(Refused::Repeated);
                }
            }
            (Update::KeepStep { step, kept }, Update::KeepStep { kept: taken, .. }, _) => {
                let (steps, places) = self.keys.open_steps(&record.progress, identity)?;
                let later = steps.as_bytes().get(*kept..);
                if later.is_some_and(|later| later.starts_with(step.as_bytes())) {
                    return Ok(Refused::Repeated);
                }
                let place = places.iter().find(|(plain, _)| plain == kept);
                if let Some((_, place)) = place.filter(|(_, place)| place != taken) {
                    let placed = self.keys.seal_kept(identity, token, step, *place)?;
                    return Ok(Refused::Misplaced(placed));
                }
            }
            _ => {}
        }
        Ok(Refused::Rightly)
    }

    /// What the outcome of a record would be under the key in use; `None` where it is. `entry` is as
    /// the store itself has it: [`inner`](Self::inner).
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn resealed(&self, entry: &Entry, nonce: &Nonce) -> Result<Option<Outcome>> {
        let State::Completed(outcome) = &entry.record.state else {
            return Ok(None);
        };
        if outcome.place().is_some() {
            outcome.readable()?;
        }
        let name = outcome.as_sealed().and_then(Keys::name_of);
        if name.is_some() && name == self.keys.names().next() {
            return Ok(None);
        }
        let identity = &entry.label.digest;
        let opened = self.keys.open_outcome(outcome.clone(), identity)?;
        self.keys.seal_outcome(&opened, identity, nonce).map(Some)
    }
}

impl<S: Store> Store for Sealed<S> {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let note = self
            .keys
            .seal_note(identity, &request.note, &request.nonce)?;
        let request = ClaimRequest {
            note,
            ..request.clone()
        };
        let claim = self.inner.claim(&identity.without_hint(), &request).await?;
        Ok(match claim {
            Claim::Completed { outcome, remaining } => Claim::Completed {
                outcome: self.keys.open_outcome(outcome, identity.digest())?,
                remaining,
            },
            other => other,
        })
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let sealed = self.keys.seal_change(identity, change)?;
        let answer = self.inner.change(identity, &sealed).await?;
        let refused = self.refused(identity, (change, &sealed), answer);
        match refused.await? {
            Refused::Rightly => Ok(answer),
            Refused::Repeated => Ok(Fenced::Applied),
            Refused::Misplaced(placed) => self.inner.change(identity, &placed).await,
        }
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let entry = self.inner.get(identity).await?;
        Ok(entry.map(|entry| self.keys.open_entry(entry)))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let Page { entries, next } = self.inner.list(query).await?;
        let opened = entries.into_iter().map(|entry| self.keys.open_entry(entry));
        Ok(Page {
            entries: opened.collect(),
            next,
        })
    }

    crate::delegate!(inner: purge, wait, probe, close);
}

impl<S: Transactional> Transactional for Sealed<S> {
    type Transaction = S::Transaction;

    crate::delegate!(inner: begin, commit, rollback);

    async fn change_in(
        &self,
        transaction: &mut Self::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let sealed = self.keys.seal_change(identity, change);
        let sealed = sealed.map_err(TransactionError::NotCommitted)?;
        let answer = self.inner.change_in(transaction, identity, &sealed).await?;
        let Change::Held(_, Update::KeepStep { .. }) = change else {
            return Ok(answer);
        };
        let refused = self.refused(identity, (change, &sealed), answer).await;
        match refused.map_err(TransactionError::NotCommitted)? {
            Refused::Misplaced(placed) => {
                self.inner.change_in(transaction, identity, &placed).await
            }
            // What was made before is refused in a transaction.
            Refused::Rightly | Refused::Repeated => Ok(answer),
        }
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        S::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        S::renews_beside(isolation)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::MemoryStore;
    use crate::store::StoreExt as _;
    use crate::{Fingerprint, Key, Scope};

    /// Two steps were kept before there was a key, and one that its caller does not know of takes as many
    /// bytes as sealing the two would have.
    #[tokio::test]
    async fn a_step_is_not_kept_behind_one_that_its_caller_does_not_know() {
        let keys = Keys::parse("a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
        let store = Sealed::new(MemoryStore::default(), keys);
        let identity = Identity::new(Scope::new(["acme"]), "pay", Key::new("k").unwrap());
        let lease = Duration::from_secs(60);
        let request = ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b""), lease);
        let Claim::Acquired(acquired) = store.claim(&identity, &request).await.unwrap() else {
            panic!("it is taken");
        };
        let (digest, token) = (identity.digest(), acquired.token);
        let step = |name: &str, len| FinishedStep::new(name, &vec![0; len]).unwrap();
        let progress = async || store.get(digest).await.unwrap().unwrap().record.progress;
        for name in ["one", "two"] {
            let (kept, step) = (progress().await.as_bytes().len(), step(name, 9));
            let done = store.inner().keep_step(digest, &token, &step, kept);
            assert_eq!(done.await.unwrap(), Fenced::Applied);
        }
        let seen = progress().await;
        let keep = async |step: FinishedStep| {
            let step = step.behind(&seen);
            let done = store.keep_step(digest, &token, &step, seen.as_bytes().len());
            done.await.unwrap()
        };
        // Sealed it takes twice what sealing adds to a step.
        let unknown = step("three", MORE - "three".len());
        assert_eq!(keep(unknown).await, Fenced::Applied);
        let refused = Fenced::Refused(Refusal::OtherSteps);
        assert_eq!(keep(step("three again", 9)).await, refused);
        let names: Vec<_> = progress()
            .await
            .steps()
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(names, ["one", "two", "three"]);
    }
}
