//! A store whose large outcomes are kept outside it, as objects: in a folder, or in a bucket.
//!
//! Stores bound what a record holds. [`Offloaded`] is put around any store, and is one itself: an outcome
//! above a size is written as an object, and then recorded by a [stand-in](Outcome::stand_in) that has its
//! kind and code, and says where it is. Replays read it from there.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::guard::Guard;
//! use semel_stores::objects::{ObjectsUrl, Offloaded};
//! # use semel_stores::{OpenOptions, open};
//!
//! let store = open("dynamodb://semel", &OpenOptions::default()).await?;
//! let objects = ObjectsUrl::parse("s3://answers/shop")?.open().await?;
//! let guard = Guard::from(Offloaded::new(store, objects, 256 << 10));
//! guard.spawn_purger(); // removes objects, too
//! # Ok(())
//! # }
//! ```
//!
//! Where answers are to be [sealed](https://docs.rs/semel/latest/semel/sealed/), seal outside:
//! `Sealed::new(Offloaded::new(store, …), keys)`. Then objects are sealed, too.
//!
//! # What holds
//! 1. *The object is there before the record names it.* Written first, in full, and durable where the
//!    place is; the completion is sent afterwards. A crash in between leaves an object that no record names.
//! 2. *No object is written over with other bytes.* Its name is made of the record's identity, the fence
//!    and nonce of the attempt (or resolution), and a digest of the bytes: sent again it is the same
//!    object, and two attempts never share one.
//! 3. *What cannot be read never runs again.* An object that is missing, cut or altered, or a place that
//!    cannot be reached, is [`Corrupt`](StoreErrorKind::Corrupt) to a claim: it is known that the operation
//!    is done. [`get`](Store::get) shows such a record with its stand-in. [`list`](Store::list) reads no
//!    objects: it shows all stand-ins.
//! 4. *What is not needed is removed.* At once where a record is amended: an erasure that could not remove
//!    an object is [`Unknown`](StoreErrorKind::Unknown), and can be sent again. Everything else (of purged
//!    records, refused and lost completions, transactions that were rolled back) by [`sweep`], of
//!    which each [`purge`](Store::purge) does a part.
//!
//! [`sweep`]: Offloaded::sweep
//!
//! # Why the sweep never removes what is needed
//! An object's name has the fence that its record had when it was written: `f`. Only a change that was
//! made for fence `f` can make the record name it, and a store takes such a change only while the record has
//! fence `f`. Fences of an identity only grow, also across its expiry. So an object is not
//! needed once a record that is read *after* the object was listed has a higher fence and does not name
//! it, and where there is no record: it will not be named any more. What an amendment passes on it has
//! read under the current fence, so it names it now. No clock is part of this. That only what is a day old
//! is looked at saves work, and covers a store that lost its latest writes: the age is the difference
//! of two times of the place itself.

mod place;

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt as _;
use object_store::path::Path;
use semel::record::{Change, Update};
use semel::store::{
    Claim, ClaimRequest, Entry, Fence, Fenced, Label, ListQuery, Nonce, OnLost, Page, Probe,
    Purged, Result, Retention, Store, StoreExt as _, Verdict, Waited,
};
use semel::transaction::{Isolation, TransactionError, Transactional};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, Outcome, Scope, State, StoreError, StoreErrorKind,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

pub use object_store;
pub use place::{Objects, ObjectsUrl};

/// A store, and the objects that hold its large outcomes.
#[derive(Debug)]
pub struct Offloaded<S> {
    inner: S,
    objects: Objects,
    above: usize,
    age: Duration,
    /// Where no other store's objects are, found when it is first needed.
    folder: OnceCell<String>,
    /// Which part is swept next.
    part: AtomicU8,
}

/// How old an object has to be to be looked at by a sweep, unless said otherwise.
const AGE: Duration = Duration::from_hours(24);
/// The record of the store that says in which folder its objects are.
const OWN: (&str, &str, &str) = ("semel", "large-answers", "folder");
const LEASE: Duration = Duration::from_secs(10);
const FOR_EVER: Duration = Duration::from_hours(100 * 365 * 24);
/// The form of what a stand-in says: this, the length (8 bytes, big-endian), the SHA-256, and the path.
const VERSION: u8 = 1;
const HEAD: usize = 1 + 8 + 32;

impl<S: Store> Offloaded<S> {
    /// Keeps outcomes that take more bytes than `above` among `objects`, the others in `inner`.
    pub fn new(inner: S, objects: Objects, above: usize) -> Self {
        // Several programs on one store begin at different parts.
        let part = Nonce::random().map_or(0, |nonce| nonce.as_bytes()[0]);
        Self {
            inner,
            objects,
            above,
            age: AGE,
            folder: OnceCell::new(),
            part: part.into(),
        }
    }

    /// How old an object has to be to be looked at by a [sweep](Self::sweep). A day unless set.
    #[must_use]
    pub const fn with_age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// The store itself: it has stand-ins.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Removes all objects that no record needs any more, and says how many.
    ///
    /// # Errors
    /// The store's, and of the place of the objects. What was removed before stays removed.
    pub async fn sweep(&self) -> Result<usize> {
        self.sweep_below(&Path::from(self.folder().await?)).await
    }

    async fn sweep_below(&self, below: &Path) -> Result<usize> {
        let now = self.objects.probe().await?;
        let before = now.checked_sub(self.age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.objects.remove_partial(below, Some(before)).await?;
        let (mut found, mut removed) = (self.objects.list(below), 0);
        while let Some(object) = found.try_next().await? {
            if SystemTime::from(object.last_modified) <= before
                && let Some((identity, fence)) = parse(&object.location)
                && is_dead(&object.location, fence, self.inner.get(&identity).await?)
            {
                self.objects.remove(&object.location).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Removes the objects of one record that it does not need any more, however old they are.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep).
    pub async fn tidy(&self, identity: &IdentityDigest) -> Result<()> {
        let below = self.of(identity).await?;
        self.objects.remove_partial(&below, None).await?;
        let found: Vec<_> = self.objects.list(&below).try_collect().await?;
        if found.is_empty() {
            return Ok(());
        }
        let entry = self.inner.get(identity).await?;
        for object in found {
            if let Some((_, fence)) = parse(&object.location)
                && is_dead(&object.location, fence, entry.clone())
            {
                self.objects.remove(&object.location).await?;
            }
        }
        Ok(())
    }

    /// Where the objects of one record are: the first two digits are the part that is swept at once.
    async fn of(&self, identity: &IdentityDigest) -> Result<Path> {
        let (folder, digits) = (self.folder().await?, identity.to_string());
        Ok(Path::from_iter([folder, &digits[..2], &digits]))
    }

    async fn folder(&self) -> Result<&str> {
        let found = self.folder.get_or_try_init(|| self.find_folder()).await?;
        Ok(found)
    }

    /// Made by whoever needs it first, and kept in the store: two stores that are given one place do not
    /// take the other's objects for those of purged records.
    async fn find_folder(&self) -> Result<String> {
        let key = Key::new(OWN.2).map_err(|error| {
            StoreError::new(StoreErrorKind::Config, "the key of its own record").with_source(error)
        })?;
        let identity = Identity::new(Scope::new([OWN.0]), OWN.1, key);
        let request = ClaimRequest::new(Nonce::random()?, Fingerprint::of(b""), LEASE);
        let request = request.with_on_lost(OnLost::Retry);
        loop {
            match self.inner.claim(&identity, &request).await? {
                Claim::Completed { outcome, .. } => {
                    let name = outcome
                        .body()
                        .and_then(|body| String::from_utf8(body.into()).ok());
                    return name.ok_or_else(|| corrupt("the name of the folder of its objects"));
                }
                Claim::Acquired(acquired) => {
                    let name = hex(Nonce::random()?.as_bytes());
                    let outcome = Outcome::success(name.as_bytes());
                    let ever = Retention::new(FOR_EVER);
                    let digest = identity.digest();
                    // What the store has counts.
                    let _: Fenced = self
                        .inner
                        .complete(digest, &acquired.token, &outcome, ever)
                        .await?;
                }
                Claim::InFlight { fence, remaining } => {
                    self.inner.wait(identity.digest(), fence, remaining).await?;
                }
                _ => return Err(corrupt("the record of the folder of its objects")),
            }
        }
    }

    /// The change as the store gets it, where its outcome is large: the object is written.
    async fn offloaded(
        &self,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Option<Change>> {
        let is_large = |outcome: &Outcome| outcome.as_bytes().len() > self.above;
        // One that could not be read, and is given back, stays where it is.
        let is_here = |outcome: &&Outcome| is_large(outcome) && outcome.place().is_none();
        let Some(outcome) = change.outcome().filter(is_here) else {
            return Ok(None);
        };
        let bytes = outcome.as_bytes();
        let digest = Sha256::digest(bytes);
        let (fence, mut change) = (change.fence(), change.clone());
        let (nonce, outcome) = match &mut change {
            Change::Held(token, Update::Complete(outcome, _)) => (token.nonce, outcome),
            Change::Resolve(resolution) => match &mut resolution.verdict {
                Verdict::Happened { outcome, .. } | Verdict::Amended { outcome, .. } => {
                    (resolution.nonce, outcome)
                }
                Verdict::DidNotHappen => return Ok(None),
            },
            Change::Held(..) => return Ok(None),
        };
        // Nonces are not shown.
        let last = Sha256::new_with_prefix(nonce.as_bytes()).chain_update(digest);
        let last = hex(&last.finalize()[..16]);
        let path = self.of(identity).await?;
        let path = path.join(format!("{:016x}-{last}", fence.0));
        self.objects.put(&path, bytes.clone()).await?;
        let len = (bytes.len() as u64).to_be_bytes();
        let place = [&[VERSION], &len[..], &digest, path.as_ref().as_bytes()].concat();
        *outcome = outcome.stand_in(&place);
        Ok(Some(change))
    }

    /// The outcome that a stand-in stands for; another is given back.
    async fn read(&self, outcome: &Outcome) -> Result<Outcome> {
        let Some(place) = outcome.place() else {
            return Ok(outcome.clone());
        };
        let (len, digest, path) = read_place(place).ok_or_else(|| {
            corrupt("the record says in a form that is not known where its answer is")
        })?;
        let failed = |error: object_store::Error| {
            corrupt(format!(
                "the answer is the object `{path}`, which cannot be read"
            ))
            .with_source(error)
        };
        let altered = || {
            corrupt(format!(
                "the object `{path}` is not the answer that was written"
            ))
        };
        let found = self.objects.get(&path).await.map_err(failed)?;
        if found.meta.size != len {
            return Err(altered());
        }
        let bytes = found.bytes().await.map_err(failed)?;
        if *Sha256::digest(&bytes) != *digest {
            return Err(altered());
        }
        Outcome::from_bytes(bytes).map_err(|error| altered().with_source(error))
    }

    /// Whether objects of the record may have to go once the change is made.
    async fn leaves(&self, identity: &IdentityDigest, change: &Change) -> Result<bool> {
        let Change::Resolve(resolution) = change else {
            return Ok(false);
        };
        if !resolution.verdict.amends() || change.erases() {
            return Ok(change.erases());
        }
        let entry = self.inner.get(identity).await?;
        Ok(entry.is_some_and(|entry| named(&entry).is_some()))
    }
}

/// Whether no record needs the object, nor will: see the module.
fn is_dead(path: &Path, fence: Fence, entry: Option<Entry>) -> bool {
    entry.is_none_or(|entry| {
        let named = named(&entry).and_then(read_place);
        fence < entry.record.token.fence && named.is_none_or(|(_, _, named)| named != *path)
    })
}

/// What the record's stand-in says, if it has one.
fn named(entry: &Entry) -> Option<&[u8]> {
    match &entry.record.state {
        State::Completed(outcome) => outcome.place(),
        _ => None,
    }
}

fn read_place(place: &[u8]) -> Option<(u64, &[u8], Path)> {
    let (head, path) = place.split_at_checked(HEAD)?;
    let (len, digest) = head.strip_prefix(&[VERSION])?.split_first_chunk()?;
    let path = Path::parse(str::from_utf8(path).ok()?).ok()?;
    Some((u64::from_be_bytes(*len), digest, path))
}

/// Whose the object is, and the fence in its name.
fn parse(path: &Path) -> Option<(IdentityDigest, Fence)> {
    let parts: Vec<_> = path.parts().collect();
    let [_, _, identity, name] = &parts[..] else {
        return None;
    };
    let (fence, _) = name.as_ref().split_once('-')?;
    let fence = u64::from_str_radix(fence, 16).ok()?;
    Some((IdentityDigest::from_hex(identity.as_ref())?, Fence(fence)))
}

fn is_own(label: &Label) -> bool {
    *label.operation == *OWN.1 && label.scope.segments().eq([OWN.0])
}

fn corrupt(what: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, what)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").ok();
        hex
    })
}

impl<S: Store> Store for Offloaded<S> {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let mut unreadable = None;
        loop {
            let claim = self.inner.claim(identity, request).await?;
            let Claim::Completed { outcome, remaining } = claim else {
                return Ok(claim);
            };
            match self.read(&outcome).await {
                Ok(outcome) => return Ok(Claim::Completed { outcome, remaining }),
                Err(error) if unreadable.as_ref() == Some(&outcome) => return Err(error),
                // It may have been amended meanwhile, and its object removed.
                Err(_) => unreadable = Some(outcome),
            }
        }
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let leaves = self.leaves(identity, change).await?;
        let offloaded = self.offloaded(identity, change).await?;
        let sent = offloaded.as_ref().unwrap_or(change);
        let answer = self.inner.change(identity, sent).await?;
        let is_applied = answer == Fenced::Applied;
        if is_applied && leaves || !is_applied && offloaded.is_some() {
            let tidied = self.tidy(identity).await;
            if let Err(error) = tidied
                && is_applied
                && change.erases()
            {
                let what = "the answer is erased from the record, and an object with it may still be there";
                return Err(StoreError::new(StoreErrorKind::Unknown, what).with_source(error));
            }
        }
        Ok(answer)
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let entry = self.inner.get(identity).await?;
        let Some(mut entry) = entry.filter(|entry| !is_own(&entry.label)) else {
            return Ok(None);
        };
        if let State::Completed(outcome) = &mut entry.record.state
            && let Ok(read) = self.read(outcome).await
        {
            *outcome = read;
        }
        Ok(Some(entry))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page> {
        let mut page = self.inner.list(query).await?;
        page.entries.retain(|entry| !is_own(&entry.label));
        Ok(page)
    }

    /// At the end of each round a part of the objects is swept, too: after 256 rounds, all.
    async fn purge(&self, limit: usize) -> Result<Purged> {
        let purged = self.inner.purge(limit).await?;
        if !purged.more {
            let part = hex(&[self.part.fetch_add(1, Relaxed)]);
            let part = Path::from_iter([self.folder().await?, &part]);
            self.sweep_below(&part).await?;
        }
        Ok(purged)
    }

    async fn wait(
        &self,
        identity: &IdentityDigest,
        fence: Fence,
        timeout: Duration,
    ) -> Result<Waited> {
        self.inner.wait(identity, fence, timeout).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.inner.probe().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

impl<S: Transactional> Transactional for Offloaded<S> {
    type Transaction = S::Transaction;

    async fn begin(&self, isolation: Isolation) -> Result<Self::Transaction, TransactionError> {
        // Its record is not written while the transaction may keep others from writing.
        let found = self.folder().await;
        found.map_err(TransactionError::NotCommitted)?;
        self.inner.begin(isolation).await
    }

    async fn change_in(
        &self,
        transaction: &mut Self::Transaction,
        identity: &IdentityDigest,
        change: &Change,
    ) -> Result<Fenced, TransactionError> {
        let offloaded = self.offloaded(identity, change).await;
        let offloaded = offloaded.map_err(TransactionError::NotCommitted)?;
        let sent = offloaded.as_ref().unwrap_or(change);
        self.inner.change_in(transaction, identity, sent).await
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<(), TransactionError> {
        self.inner.commit(transaction).await
    }

    async fn rollback(&self, transaction: Self::Transaction) {
        self.inner.rollback(transaction).await;
    }

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        S::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        S::renews_beside(isolation)
    }
}
