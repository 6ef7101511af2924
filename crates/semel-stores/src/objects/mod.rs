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
//! 4. *No answer is lost because the place fails.* Where it does not take one, the store keeps the answer
//!    itself; one that is too large for the store is [`NotApplied`](StoreErrorKind::NotApplied), and a guard
//!    sends it again. The cause makes no difference: services answer "forbidden" both where a permission is
//!    missing and while credentials are replaced. [`with_report`](Offloaded::with_report) hears of it.
//! 5. *Nothing is uploaded within a transaction*, because others wait for its locks, and the outcome is not
//!    known before. What is completed in one is in its record, however large it is.
//! 6. *What is not needed is removed.* At once by an [erasure](Change::erases): one that could not remove
//!    an object is [`Unknown`](StoreErrorKind::Unknown), and can be sent again. Everything else (of purged
//!    and amended records, refused and lost completions) by [`sweep`], of which each [`purge`](Store::purge)
//!    does a part.
//!
//! [`sweep`]: Offloaded::sweep
//!
//! # Why the sweep never removes what is needed
//! An object's name has the fence that its record had when it was written: `f`. Only a change that was
//! made for fence `f` can make the record name it, and a store takes such a change only while the record has
//! fence `f`, and is not released. Fences of an identity only grow, also across its expiry. So an object is
//! not needed once a record that is read *after* the object was listed has a higher fence, or is released, and
//! does not name it, and where there is no record: it will not be named any more. What an amendment passes on
//! it has read under the current fence, so it names it now. No clock is part of this.
//!
//! A store may lose its latest writes, for instance in a failover of Redis, and have a record again as it was
//! before. Therefore an object also has to be a day old, by two times of the place itself, and its record has
//! to have been without it for a day, by the store's time and the place's.
//!
//! [`sweep_erased`](Offloaded::sweep_erased) waits for neither. It also takes what an attempt wrote that is in
//! flight or unknown, and may be completed yet, if that was a minute ago: no completion takes so long between
//! its upload and its record, and one that is sent again uploads it again.

mod place;

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use futures_util::{TryStreamExt as _, future};
use object_store::ObjectMeta;
use object_store::path::Path;
use semel::record::{Change, Update};
use semel::store::{
    Acquired, Claim, ClaimRequest, Entry, Fence, Fenced, Label, ListQuery, Nonce, OnLost, Page,
    Purged, Result, Retention, Store, StoreExt as _, Verdict,
};
use semel::transaction::{Isolation, Transactional};
use semel::{
    Fingerprint, Identity, IdentityDigest, Key, Outcome, OutcomeKind, Scope, State, StoreError,
    StoreErrorKind,
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
    report: fn(&StoreError),
    /// Where no other store's objects are, found when it is first needed.
    folder: OnceCell<String>,
    /// Which part is swept next.
    part: AtomicU8,
}

/// How old an object has to be, and for how long not needed, to be removed by a sweep, unless said otherwise.
const AGE: Duration = Duration::from_hours(24);
/// Longer than a completion takes from its upload to the answer of the store.
const COMPLETION: Duration = Duration::from_mins(1);
/// How many objects a sweep looks at together.
const AT_ONCE: usize = 16;
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
            report: |_| {},
            folder: OnceCell::new(),
            part: part.into(),
        }
    }

    /// How old an object has to be, and for how long not needed, to be removed by a [sweep](Self::sweep). A
    /// day unless set.
    #[must_use]
    pub const fn with_age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Hears of what the place did not do where the caller gets no error: an answer that the store keeps
    /// itself, and a sweep that did not get to its end.
    #[must_use]
    pub const fn with_report(mut self, report: fn(&StoreError)) -> Self {
        self.report = report;
        self
    }

    /// The store itself: it has stand-ins.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Whether the objects of this store, if it has some, are in this place. Makes nothing.
    ///
    /// # Errors
    /// [`Config`](StoreErrorKind::Config) where they are not: a file system that is not mounted, or another
    /// bucket. Or the store's, and the place's.
    pub async fn check(&self) -> Result<()> {
        match folder_of(&self.inner).await? {
            Some(folder) => self.objects.check_mark(&folder).await,
            None => Ok(()),
        }
    }

    /// Removes all objects that no record needs any more, and says how many.
    ///
    /// # Errors
    /// The store's, and of the place of the objects. What was removed before stays removed.
    pub async fn sweep(&self) -> Result<usize> {
        let all = Path::from(self.folder().await?);
        self.sweep_below(&all, None).await
    }

    /// Removes at once what records leave that were erased, and says how many objects that were: those of
    /// their attempts that did not complete them, and those of records that are gone and might have been
    /// among them. An attempt that runs keeps what it wrote within the last minute.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep).
    pub async fn sweep_erased(&self, is_erased: impl Fn(&Label) -> bool + Sync) -> Result<usize> {
        let all = Path::from(self.folder().await?);
        self.sweep_below(&all, Some(&is_erased)).await
    }

    async fn sweep_below(
        &self,
        below: &Path,
        erased: Option<&(dyn Fn(&Label) -> bool + Sync)>,
    ) -> Result<usize> {
        self.objects.check_mark(self.folder().await?).await?;
        let now = self.objects.probe().await?;
        let ago = |age| now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let (old, idle) = (ago(self.age), ago(COMPLETION));
        let partial = erased.map_or(old, |_| idle);
        self.objects.remove_partial(below, Some(partial)).await?;
        let look_at = |object: ObjectMeta| async move {
            let written = SystemTime::from(object.last_modified);
            let (path, is_old) = (&object.location, written <= old);
            if !is_old && erased.is_none() {
                return Ok(false);
            }
            let Some((identity, fence)) = parse(path) else {
                return Ok(false);
            };
            let goes = match self.inner.get(&identity).await? {
                None => true,
                Some(entry) if erased.is_some_and(|erased| erased(&entry.label)) => {
                    let state = &entry.record.state;
                    let is_open = matches!(state, State::InFlight | State::Unknown);
                    // The list may be older than that.
                    let is_idle =
                        is_open && written <= idle && self.objects.is_from(path, idle).await?;
                    is_dead(path, fence, &entry) || is_idle
                }
                Some(entry) => is_old && is_dead(path, fence, &entry) && !is_recent(&entry, old),
            };
            if goes {
                self.objects.remove(path).await?;
            }
            Ok::<_, StoreError>(goes)
        };
        let found = self.objects.list(below).map_ok(look_at);
        found
            .try_buffer_unordered(AT_ONCE)
            .try_fold(0, |removed, goes| future::ok(removed + usize::from(goes)))
            .await
    }

    async fn sweep_part(&self) -> Result<usize> {
        let part = hex::encode([self.part.fetch_add(1, Relaxed)]);
        let part = Path::from_iter([self.folder().await?, &part]);
        self.sweep_below(&part, None).await
    }

    /// Removes the objects of one record that it does not need any more, however old they are.
    async fn tidy(&self, identity: &IdentityDigest) -> Result<()> {
        let below = self.of(identity).await?;
        self.objects.remove_partial(&below, None).await?;
        let found: Vec<_> = self.objects.list(&below).try_collect().await?;
        if found.is_empty() {
            return Ok(());
        }
        let entry = self.inner.get(identity).await?;
        for ObjectMeta { location, .. } in found {
            let Some((_, fence)) = parse(&location) else {
                continue;
            };
            if entry
                .as_ref()
                .is_none_or(|entry| is_dead(&location, fence, entry))
            {
                self.objects.remove(&location).await?;
            }
        }
        Ok(())
    }

    /// Where the objects of one record are: the first two digits are the part that is swept at once.
    async fn of(&self, identity: &IdentityDigest) -> Result<Path> {
        let (folder, digits) = (self.folder().await?, identity.to_string());
        // A bucket that is not there says so itself.
        if self.objects.is_folder() {
            self.objects.check_mark(folder).await?;
        }
        Ok(Path::from_iter([folder, &digits[..2], &digits]))
    }

    async fn folder(&self) -> Result<&str> {
        let found = self.folder.get_or_try_init(|| self.find_folder()).await?;
        Ok(found)
    }

    /// Made by whoever needs it first, and kept in the store: two stores that are given one place do not
    /// take the other's objects for those of purged records.
    async fn find_folder(&self) -> Result<String> {
        let identity = own()?;
        let digest = identity.digest();
        let request = ClaimRequest::new(Nonce::random()?, Fingerprint::of(b""), LEASE);
        let request = request.with_on_lost(OnLost::Retry);
        loop {
            match self.inner.claim(&identity, &request).await? {
                Claim::Completed { outcome, .. } => {
                    let folder = folder_in(&outcome)?;
                    self.objects.check_mark(&folder).await?;
                    return Ok(folder);
                }
                Claim::Acquired(Acquired { token, .. }) => {
                    let name = hex::encode(Nonce::random()?.as_bytes());
                    if let Err(error) = self.objects.mark(&name).await {
                        // Others need not wait for the lease.
                        let _: Result<Fenced> = self.inner.abandon(digest, &token).await;
                        return Err(error);
                    }
                    let outcome = Outcome::success(name.as_bytes());
                    let ever = Retention::new(FOR_EVER);
                    // What the store has counts.
                    let _: Fenced = self.inner.complete(digest, &token, &outcome, ever).await?;
                }
                Claim::InFlight { fence, remaining } => {
                    self.inner.wait(digest, fence, remaining).await?;
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
        let last = hex::encode(&last.finalize()[..16]);
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

    /// What a refusal means of a change whose outcome is large.
    async fn refused(
        &self,
        identity: &IdentityDigest,
        change: &Change,
        refused: Fenced,
    ) -> Result<Fenced> {
        let Some(entry) = self.inner.get(identity).await? else {
            return Ok(refused);
        };
        let State::Completed(kept) = &entry.record.state else {
            return Ok(refused);
        };
        // Sent before, it was an object and is none now, or the other way round.
        if let Change::Held(token, Update::Complete(outcome, _)) = change
            && entry.record.token == *token
            && is_same(kept, outcome)
        {
            return Ok(Fenced::Applied);
        }
        // Whoever erased it may have looked before the object was there.
        if kept.kind() == OutcomeKind::Omitted
            && let Err(error) = self.tidy(identity).await
        {
            (self.report)(&error);
        }
        Ok(refused)
    }
}

/// Whether a record of an object's identity does not need it, nor will: see the module.
fn is_dead(path: &Path, fence: Fence, entry: &Entry) -> bool {
    let (current, state) = (entry.record.token.fence, &entry.record.state);
    let named = named(entry).and_then(read_place);
    let is_past = fence < current || fence == current && *state == State::Released;
    is_past && named.is_none_or(|(_, _, named)| named != *path)
}

/// Whether the record was as it is for so short a time that the store may lose it again. What is erased is
/// to go nevertheless.
fn is_recent(entry: &Entry, before: SystemTime) -> bool {
    let record = &entry.record;
    let since = record.settled_at.unwrap_or(record.claimed_at);
    let since = SystemTime::UNIX_EPOCH + Duration::from_micros(since.as_micros());
    let is_omitted =
        matches!(&record.state, State::Completed(kept) if kept.kind() == OutcomeKind::Omitted);
    since > before && !is_omitted
}

/// Whether it is this outcome that is kept, in the record or outside it.
fn is_same(kept: &Outcome, outcome: &Outcome) -> bool {
    let bytes = outcome.as_bytes();
    let is_outside = |(len, digest, _): (u64, &[u8], Path)| {
        len == bytes.len() as u64 && *digest == *Sha256::digest(bytes)
    };
    kept == outcome || kept.place().and_then(read_place).is_some_and(is_outside)
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

/// Whether it is the record that says in which folder the objects of a store are. It is nobody's operation:
/// whoever shows or changes records leaves it alone, also without an [`Offloaded`].
pub fn is_own(label: &Label) -> bool {
    *label.operation == *OWN.1 && label.scope.segments().eq([OWN.0])
}

/// In which folder of their place the objects of a store are; `None` where it never had any.
///
/// # Errors
/// The store's.
pub async fn folder_of(store: &impl Store) -> Result<Option<String>> {
    let entry = store.get(own()?.digest()).await?;
    match entry.map(|entry| entry.record.state) {
        Some(State::Completed(outcome)) => folder_in(&outcome).map(Some),
        _ => Ok(None),
    }
}

/// Of the record of that folder.
fn own() -> Result<Identity> {
    let key = Key::new(OWN.2).map_err(|error| {
        StoreError::new(StoreErrorKind::Config, "the key of its own record").with_source(error)
    })?;
    Ok(Identity::new(Scope::new([OWN.0]), OWN.1, key))
}

fn folder_in(outcome: &Outcome) -> Result<String> {
    let body = outcome.body();
    let name = body.and_then(|body| String::from_utf8(body.into()).ok());
    name.ok_or_else(|| corrupt("the name of the folder of its objects"))
}

fn corrupt(what: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, what)
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
        let (offloaded, failed) = match self.offloaded(identity, change).await {
            Ok(offloaded) => (offloaded, None),
            Err(error) => (None, Some(error)),
        };
        let not_written =
            |what: &str, why| StoreError::new(StoreErrorKind::NotApplied, what).with_source(why);
        let is_large = offloaded.is_some() || failed.is_some();
        let sent = offloaded.as_ref().unwrap_or(change);
        let answer = match (self.inner.change(identity, sent).await, failed) {
            (Err(error), Some(why)) if error.kind() == StoreErrorKind::TooLarge => {
                let what = "a large answer cannot be written as an object";
                return Err(not_written(what, why));
            }
            (Ok(answer), Some(why)) => {
                let what =
                    "a large answer cannot be written as an object, and is kept in the store";
                (self.report)(&not_written(what, why));
                answer
            }
            (answer, _) => answer?,
        };
        match answer {
            Fenced::Applied if change.erases() => {
                self.tidy(identity).await.map_err(|error| {
                    let what =
                        "the answer is erased from the record, and an object with it may still be there";
                    StoreError::new(StoreErrorKind::Unknown, what).with_source(error)
                })?;
                Ok(answer)
            }
            Fenced::Refused(_) if is_large => self.refused(identity, change, answer).await,
            _ => Ok(answer),
        }
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
        if !purged.more
            && let Err(error) = self.sweep_part().await
        {
            // What was purged is purged.
            (self.report)(&error);
        }
        Ok(purged)
    }

    semel::delegate!(inner: wait, probe, close);
}

impl<S: Transactional> Transactional for Offloaded<S> {
    type Transaction = S::Transaction;

    semel::delegate!(inner: begin, change_in, commit, seal, rollback);

    fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
        S::is_conflict(error)
    }

    fn renews_beside(isolation: Isolation) -> bool {
        S::renews_beside(isolation)
    }
}
