//! What every store of versioned records is checked for. Each case uses keys that nobody else has.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::{
    Expected, NaturalKey, Retries, UpdateError, Version, Versioned, VersionedIn, VersionedStore,
    WriteError, update,
};
use crate::conformance::{Failure, ensure, ensure_eq};
use crate::store::Nonce;
use crate::transaction::Isolation;
use crate::{Scope, StoreErrorKind};

/// One promise, and the code that checks it on a store.
pub struct Case<S> {
    /// As a harness shows it.
    pub name: &'static str,
    /// What is promised, as a sentence.
    pub promise: &'static str,
    /// Checks it.
    pub run: fn(Arc<S>) -> Running,
}

/// A case on its way.
pub type Running = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

macro_rules! cases {
    ($($run:ident $promise:literal;)+) => {
        vec![$(Case {
            name: stringify!($run),
            promise: $promise,
            run: |store| Box::pin($run(store)),
        }),+]
    };
}

/// What holds of every store.
pub fn cases<S: VersionedStore>() -> Vec<Case<S>> {
    cases! {
        first_write_is_version_one
            "the first write of a key is version 1, and each further one is one more";
        any_writes_over "an upsert writes over whatever is there, and may be repeated";
        absent_only_where_there_is_none "of a record that is there none is made";
        version_only_where_it_is_that "with another version than expected nothing is written";
        a_conflict_is_typed "the error says what was expected and what was found, and no key";
        deleted_is_absent "a deleted record is not read, and not deleted again by its version";
        versions_never_repeat
            "a version from before a deletion is not met by the record that was made anew";
        sent_again_is_one_change
            "the same change under the same nonce is done once, and answers as the first time";
        keys_are_any_text "keys of any text are kept apart, and so are scopes";
        values_are_any_bytes "empty and large values come back as they were";
        too_large_changes_nothing "a value or a key beyond the bound is refused, and nothing is changed";
        one_creator_of_32 "of 32 that expect no record exactly one makes it, and the others find it";
        one_writer_of_32 "of 32 that expect one version exactly one writes";
        no_lost_update "32 writers of one record lose no update, within the bound of retries";
        the_bound_is_kept "an update that is always too late ends after as many tries as it may have";
        no_update_between_deletions "writers and deleters of one record never undo a change unseen";
    }
}

/// What holds of stores that write in a transaction as well.
pub fn cases_in<S: VersionedIn>() -> Vec<Case<S>> {
    cases! {
        committed_or_not "what is written in a transaction is there after its commit, and not before";
        rolled_back_leaves_nothing "what is rolled back was never there, and takes no version";
        its_own_writes_are_seen "a transaction reads what it has written";
        a_conflict_in_a_transaction_is_typed
            "a conflict with what was committed before is told, and the transaction goes on";
        what_is_read_is_locked "what a transaction read nobody changes until it ends";
    }
}

/// Enough for stores that take milliseconds for a write.
const PATIENT: Retries = Retries {
    tries: 40,
    pause: Duration::from_millis(5),
    longest: Duration::from_secs(1),
};

fn key() -> Result<NaturalKey, Failure> {
    let nonce = Nonce::random()?;
    let name = hex::encode(nonce.as_bytes());
    Ok(NaturalKey::new(Scope::new(["suite"]), &name))
}

impl From<WriteError> for Failure {
    #[track_caller]
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Store(error) => error.into(),
            conflict => Self::new(conflict.to_string()),
        }
    }
}

impl From<crate::transaction::TransactionError> for Failure {
    #[track_caller]
    fn from(error: crate::transaction::TransactionError) -> Self {
        let told = error.to_string();
        Self::new(format!("{told}: {}", error.into_source()))
    }
}

#[track_caller]
fn conflict<T: std::fmt::Debug>(
    answer: Result<T, WriteError>,
    wanted: Option<Version>,
) -> Result<(), Failure> {
    match answer {
        Err(WriteError::ConcurrentModification { found, .. }) if found == wanted => Ok(()),
        other => Err(Failure::new(format!(
            "wanted a conflict with {wanted:?}, found {other:?}"
        ))),
    }
}

#[track_caller]
fn is(found: Option<Versioned>, version: u64, value: &str) -> Result<(), Failure> {
    match found {
        Some(found) if found.version == Version(version) && found.value == value => Ok(()),
        other => Err(Failure::new(format!(
            "wanted {value:?} in version {version}, found {other:?}"
        ))),
    }
}

const fn at(version: u64) -> Expected {
    Expected::Version(Version(version))
}

async fn first_write_is_version_one<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    ensure_eq!(
        store.read(&key).await?,
        None,
        "a key that was never written"
    );
    for (n, expected) in [
        (1, Expected::Absent),
        (2, at(1)),
        (3, Expected::Any),
        (4, at(3)),
    ] {
        let version = store.write(&key, expected, format!("v{n}").into()).await?;
        ensure_eq!(version, Version(n), "write {n}");
        is(store.read(&key).await?, n, &format!("v{n}"))?;
    }
    Ok(())
}

async fn any_writes_over<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    for n in 1..=3 {
        let version = store.write(&key, Expected::Any, "same".into()).await?;
        ensure_eq!(version, Version(n), "upsert {n}");
    }
    is(store.read(&key).await?, 3, "same")
}

async fn absent_only_where_there_is_none<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    store.write(&key, Expected::Absent, "first".into()).await?;
    let second = store.write(&key, Expected::Absent, "second".into()).await;
    conflict(second, Some(Version(1)))?;
    conflict(store.delete(&key, Expected::Absent).await, Some(Version(1)))?;
    is(store.read(&key).await?, 1, "first")
}

async fn version_only_where_it_is_that<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    conflict(store.write(&key, at(1), "none".into()).await, None)?;
    ensure_eq!(
        store.read(&key).await?,
        None,
        "after a conflict with nothing"
    );
    for n in 0..3 {
        store
            .write(&key, Expected::Any, format!("v{n}").into())
            .await?;
    }
    for wrong in [0, 1, 2, 4, u64::MAX, u64::MAX >> 1, (u64::MAX >> 1) + 1] {
        let written = store.write(&key, at(wrong), "wrong".into()).await;
        conflict(written, Some(Version(3)))?;
        conflict(store.delete(&key, at(wrong)).await, Some(Version(3)))?;
    }
    is(store.read(&key).await?, 3, "v2")
}

async fn a_conflict_is_typed<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    store.write(&key, Expected::Any, "a".into()).await?;
    let Err(error) = store.write(&key, at(7), "b".into()).await else {
        return Err(Failure::new("it was written"));
    };
    let told = error.to_string();
    ensure_eq!(
        told,
        "concurrent modification: expected version 7, found version 1",
        "the message"
    );
    ensure!(!format!("{error:?}").contains(key.name()), "{error:?}");
    Ok(())
}

async fn deleted_is_absent<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    // What is not there needs no deleting, unless it was expected.
    store.delete(&key, Expected::Any).await?;
    store.delete(&key, Expected::Absent).await?;
    conflict(store.delete(&key, at(1)).await, None)?;
    store.write(&key, Expected::Any, "a".into()).await?;
    store.delete(&key, at(1)).await?;
    ensure_eq!(store.read(&key).await?, None, "a deleted record");
    conflict(store.delete(&key, at(1)).await, None)?;
    conflict(store.write(&key, at(1), "b".into()).await, None)?;
    // Nor is the number of the deletion one to write by.
    conflict(store.write(&key, at(2), "b".into()).await, None)?;
    store.delete(&key, Expected::Any).await?;
    store.delete(&key, Expected::Absent).await?;
    ensure_eq!(store.read(&key).await?, None, "a record deleted twice");
    Ok(())
}

async fn versions_never_repeat<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        let made = store.write(&key, Expected::Absent, "a".into()).await?;
        ensure!(seen.insert(made), "round {round} has {made} again");
        let next = store
            .write(&key, Expected::Version(made), "b".into())
            .await?;
        ensure!(seen.insert(next), "round {round} has {next} again");
        for old in seen.iter().filter(|old| **old != next) {
            let stale = Expected::Version(*old);
            conflict(store.write(&key, stale, "stale".into()).await, Some(next))?;
            conflict(store.delete(&key, stale).await, Some(next))?;
        }
        let deletes = if round % 2 == 0 {
            Expected::Any
        } else {
            Expected::Version(next)
        };
        store.delete(&key, deletes).await?;
    }
    Ok(())
}

async fn sent_again_is_one_change<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let mut version = Version(0);
    for expected in [Expected::Absent, at(1), Expected::Any] {
        let writer = Nonce::random()?;
        version = version.next();
        for sent in 1..=3 {
            let answer = store
                .write_as(&key, expected, "same".into(), writer)
                .await?;
            ensure_eq!(answer, version, "{expected}, sent {sent} times");
        }
    }
    let (writer, rival) = (Nonce::random()?, Nonce::random()?);
    store.write_as(&key, at(3), "rival".into(), rival).await?;
    let answer = store.write_as(&key, at(3), "mine".into(), writer).await;
    conflict(answer, Some(Version(4)))?;
    for _ in 0..3 {
        store.delete_as(&key, at(4), writer).await?;
    }
    store.write(&key, Expected::Absent, "new".into()).await?;
    conflict(store.delete_as(&key, at(4), writer).await, Some(Version(6)))?;
    is(store.read(&key).await?, 6, "new")
}

async fn keys_are_any_text<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let unique = key()?;
    let long = "n".repeat(NaturalKey::MAX_BYTES - unique.name().len() - 3);
    let parts: [(&[&str], &str); 10] = [
        (&[], ""),
        (&[], "a"),
        (&["a"], ""),
        (&["a", "b"], "c"),
        (&["a"], "b:c"),
        (&["a\0", "\\", "\"{},"], "nul \0, backslash \\, quote \" '"),
        (&["𝄞", "\u{7f}\u{1}"], "ü\n\t"),
        (&["A"], "C"),
        (&["a"], "c"),
        (&["x"], &long),
    ];
    let keys: Vec<NaturalKey> = parts
        .into_iter()
        .map(|(scope, name)| {
            let scope = std::iter::once(unique.name()).chain(scope.iter().copied());
            NaturalKey::new(Scope::new(scope), name)
        })
        .collect();
    for (n, key) in keys.iter().enumerate() {
        store
            .write(key, Expected::Absent, n.to_string().into())
            .await?;
    }
    for (n, key) in keys.iter().enumerate() {
        is(store.read(key).await?, 1, &n.to_string())?;
    }
    Ok(())
}

async fn values_are_any_bytes<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let every: Vec<u8> = (0..=255).collect();
    // What every store has room for.
    let large = every.repeat(1200);
    let mut version = Version(0);
    for value in [&b""[..], b"\0", &every, &large, b""] {
        let expected = match version {
            Version(0) => Expected::Absent,
            version => Expected::Version(version),
        };
        version = store
            .write(&key, expected, Bytes::copy_from_slice(value))
            .await?;
        let found = store.read(&key).await?;
        let same = found.is_some_and(|found| found.version == version && found.value == value);
        ensure!(same, "a value of {} bytes came back otherwise", value.len());
    }
    Ok(())
}

async fn too_large_changes_nothing<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    store.write(&key, Expected::Any, "small".into()).await?;
    let large = Bytes::from(vec![0; super::MAX_VALUE + 1]);
    let long = NaturalKey::new(Scope::new([key.name()]), &"n".repeat(NaturalKey::MAX_BYTES));
    for refused in [
        store.write(&key, Expected::Any, large.clone()).await,
        store.write(&key, at(1), large).await,
        store.write(&long, Expected::Any, "a".into()).await,
    ] {
        match refused {
            Err(WriteError::Store(e)) if e.kind() == StoreErrorKind::TooLarge => {}
            other => return Err(Failure::new(format!("wanted TooLarge, found {other:?}"))),
        }
    }
    ensure_eq!(store.read(&long).await?, None, "a key that is too long");
    is(store.read(&key).await?, 1, "small")
}

const CROWD: usize = 32;

/// Runs one task for each of a crowd, all from the same moment.
async fn crowd<T, F>(each: impl Fn(usize) -> F) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(tokio::sync::Barrier::new(CROWD));
    let tasks: Vec<_> = (0..CROWD)
        .map(|n| {
            let (start, work) = (start.clone(), each(n));
            tokio::spawn(async move {
                start.wait().await;
                work.await
            })
        })
        .collect();
    let mut all = Vec::with_capacity(CROWD);
    for task in tasks {
        all.push(task.await.map_err(|e| Failure::new(e.to_string()))?);
    }
    Ok(all)
}

/// Of a crowd that expects the same one is to get through, and the others are to find what it wrote.
async fn one_of_a_crowd<S: VersionedStore>(
    store: &Arc<S>,
    key: &NaturalKey,
    expected: Expected,
    makes: Version,
) -> Result<(), Failure> {
    let answers = crowd(|n| {
        let (store, key) = (store.clone(), key.clone());
        async move { store.write(&key, expected, n.to_string().into()).await }
    })
    .await?;
    let mut winner = None;
    for (n, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(version) => {
                ensure_eq!(version, makes, "the winner's version");
                ensure!(winner.is_none(), "{winner:?} wrote, and {n} too");
                winner = Some(n);
            }
            lost => conflict(lost, Some(makes))?,
        }
    }
    let winner = winner.map(|n| n.to_string());
    is(store.read(key).await?, makes.0, &winner.unwrap_or_default())
}

async fn one_creator_of_32<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    for _ in 0..10 {
        let key = key()?;
        one_of_a_crowd(&store, &key, Expected::Absent, Version(1)).await?;
        // Again where one was.
        store.delete(&key, Expected::Any).await?;
        one_of_a_crowd(&store, &key, Expected::Absent, Version(3)).await?;
    }
    Ok(())
}

async fn one_writer_of_32<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let mut version = store.write(&key, Expected::Absent, "start".into()).await?;
    for _ in 0..10 {
        let next = version.next();
        one_of_a_crowd(&store, &key, Expected::Version(version), next).await?;
        version = next;
    }
    Ok(())
}

fn number(found: Option<&Versioned>) -> u64 {
    let text = found.map(|found| String::from_utf8_lossy(&found.value));
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

async fn no_lost_update<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    const EACH: u64 = 3;
    let key = key()?;
    let asked = Arc::new(AtomicU32::new(0));
    let answers = crowd(|_| {
        let (store, key, asked) = (store.clone(), key.clone(), asked.clone());
        async move {
            let mut versions = Vec::new();
            for _ in 0..EACH {
                let add = |found: Option<&Versioned>| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, Failure>((number(found) + 1).to_string().into())
                };
                match update(&*store, &key, PATIENT, add).await {
                    Ok(written) => versions.push(written.version),
                    Err(e) => return Err(Failure::new(e.to_string())),
                }
            }
            Ok(versions)
        }
    })
    .await?;
    let mut versions = BTreeSet::new();
    for answer in answers {
        versions.extend(answer?);
    }
    let wanted = CROWD as u64 * EACH;
    let all: BTreeSet<Version> = (1..=wanted).map(Version).collect();
    ensure_eq!(versions, all, "the versions that were given");
    let most = u64::from(PATIENT.tries) * wanted;
    let asked = u64::from(asked.load(Ordering::Relaxed));
    ensure!(asked <= most, "{asked} tries, {most} allowed");
    is(store.read(&key).await?, wanted, &wanted.to_string())
}

async fn the_bound_is_kept<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    store.write(&key, Expected::Any, "0".into()).await?;
    let retries = Retries {
        tries: 4,
        pause: Duration::from_millis(1),
        longest: Duration::from_millis(2),
    };
    // A rival that writes between each reading and its writing.
    let asked = AtomicU32::new(0);
    let handle = tokio::runtime::Handle::current();
    let (rival, its_key) = (store.clone(), key.clone());
    let too_late = |_: Option<&Versioned>| {
        asked.fetch_add(1, Ordering::Relaxed);
        let (rival, key) = (rival.clone(), its_key.clone());
        let (done, written) = std::sync::mpsc::channel();
        handle.spawn(async move {
            let _ = done.send(
                rival
                    .write(&key, Expected::Any, "rival".into())
                    .await
                    .is_ok(),
            );
        });
        match tokio::task::block_in_place(|| written.recv()) {
            Ok(true) => Ok::<Bytes, &str>("mine".into()),
            _ => Err("the rival did not write"),
        }
    };
    let answer = update(&*store, &key, retries, too_late).await;
    let Err(UpdateError::Contended { tries: 4, found }) = answer else {
        return Err(Failure::new(format!("wanted Contended, found {answer:?}")));
    };
    ensure_eq!(asked.load(Ordering::Relaxed), 4, "how often it was asked");
    ensure_eq!(found, Some(Version(5)), "what the last try found");
    is(store.read(&key).await?, 5, "rival")
}

/// Each writes or deletes what it has read, and adds what it has seen to a sum: were a change undone
/// unseen, some number would be missing.
async fn no_update_between_deletions<S: VersionedStore>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let answers = crowd(|n| {
        let (store, key) = (store.clone(), key.clone());
        async move {
            let mut taken = 0;
            let mut tries = 0;
            loop {
                tries += 1;
                if tries > 200 {
                    return Err(Failure::new("200 conflicts one after the other"));
                }
                let found = store.read(&key).await?;
                let expected = found.as_ref().map(|found| Expected::Version(found.version));
                let done = if n % 4 == 0 {
                    let Some(expected) = expected else {
                        return Ok(taken);
                    };
                    store.delete(&key, expected).await
                } else {
                    let value = (number(found.as_ref()) + 1).to_string();
                    let expected = expected.unwrap_or(Expected::Absent);
                    store.write(&key, expected, value.into()).await.map(drop)
                };
                match done {
                    Ok(()) => {
                        if n % 4 == 0 {
                            taken = number(found.as_ref());
                        }
                        return Ok(taken);
                    }
                    Err(WriteError::ConcurrentModification { .. }) => {
                        tokio::time::sleep(Duration::from_millis(n as u64 % 7)).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    })
    .await?;
    let mut sum = number(store.read(&key).await?.as_ref());
    for answer in answers {
        sum += answer?;
    }
    let added = (0..CROWD).filter(|n| n % 4 != 0).count() as u64;
    ensure_eq!(sum, added, "what was added, counted where it went");
    Ok(())
}

async fn committed_or_not<S: VersionedIn>(store: Arc<S>) -> Result<(), Failure> {
    let (a, b) = (key()?, key()?);
    store.write(&b, Expected::Any, "old".into()).await?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    let made = store
        .write_in(&mut tx, &a, Expected::Absent, "new".into())
        .await?;
    ensure_eq!(made, Version(1), "a record made in a transaction");
    let next = store.write_in(&mut tx, &b, at(1), "new".into()).await?;
    ensure_eq!(next, Version(2), "a record changed in a transaction");
    ensure_eq!(store.read(&a).await?, None, "what is not committed");
    is(store.read(&b).await?, 1, "old")?;
    store.commit(tx).await?;
    is(store.read(&a).await?, 1, "new")?;
    is(store.read(&b).await?, 2, "new")?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    store.delete_in(&mut tx, &a, at(1)).await?;
    store.commit(tx).await?;
    ensure_eq!(store.read(&a).await?, None, "what a transaction deleted");
    Ok(())
}

async fn rolled_back_leaves_nothing<S: VersionedIn>(store: Arc<S>) -> Result<(), Failure> {
    let (a, b) = (key()?, key()?);
    store.write(&b, Expected::Any, "old".into()).await?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    store
        .write_in(&mut tx, &a, Expected::Any, "new".into())
        .await?;
    store.delete_in(&mut tx, &b, Expected::Any).await?;
    store.rollback(tx).await;
    ensure_eq!(store.read(&a).await?, None, "what was rolled back");
    is(store.read(&b).await?, 1, "old")?;
    let version = store.write(&a, Expected::Absent, "again".into()).await?;
    ensure_eq!(version, Version(1), "after a rollback");
    Ok(())
}

async fn its_own_writes_are_seen<S: VersionedIn>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    ensure_eq!(
        store.read_in(&mut tx, &key).await?,
        None,
        "before its write"
    );
    store
        .write_in(&mut tx, &key, Expected::Absent, "a".into())
        .await?;
    is(store.read_in(&mut tx, &key).await?, 1, "a")?;
    store.write_in(&mut tx, &key, at(1), "b".into()).await?;
    let stale = store.write_in(&mut tx, &key, at(1), "c".into()).await;
    conflict(stale, Some(Version(2)))?;
    store.delete_in(&mut tx, &key, at(2)).await?;
    ensure_eq!(
        store.read_in(&mut tx, &key).await?,
        None,
        "after its deletion"
    );
    store
        .write_in(&mut tx, &key, Expected::Absent, "d".into())
        .await?;
    store.commit(tx).await?;
    is(store.read(&key).await?, 4, "d")
}

async fn a_conflict_in_a_transaction_is_typed<S: VersionedIn>(
    store: Arc<S>,
) -> Result<(), Failure> {
    let (a, b) = (key()?, key()?);
    store.write(&a, Expected::Any, "1".into()).await?;
    store.write(&a, Expected::Any, "2".into()).await?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    conflict(
        store.write_in(&mut tx, &a, at(1), "stale".into()).await,
        Some(Version(2)),
    )?;
    conflict(
        store
            .write_in(&mut tx, &a, Expected::Absent, "stale".into())
            .await,
        Some(Version(2)),
    )?;
    conflict(store.delete_in(&mut tx, &a, at(7)).await, Some(Version(2)))?;
    conflict(
        store.write_in(&mut tx, &b, at(7), "stale".into()).await,
        None,
    )?;
    store
        .write_in(&mut tx, &b, Expected::Absent, "b".into())
        .await?;
    store.commit(tx).await?;
    is(store.read(&a).await?, 2, "2")?;
    is(store.read(&b).await?, 1, "b")
}

async fn what_is_read_is_locked<S: VersionedIn>(store: Arc<S>) -> Result<(), Failure> {
    let key = key()?;
    store.write(&key, Expected::Any, "1".into()).await?;
    let mut tx = store.begin(Isolation::ReadCommitted).await?;
    is(store.read_in(&mut tx, &key).await?, 1, "1")?;
    let (rival, its_key) = (store.clone(), key.clone());
    let rival = tokio::spawn(async move { rival.write(&its_key, at(1), "rival".into()).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    ensure!(
        !rival.is_finished(),
        "it was changed beside the transaction"
    );
    store.write_in(&mut tx, &key, at(1), "2".into()).await?;
    store.commit(tx).await?;
    let late = rival.await.map_err(|e| Failure::new(e.to_string()))?;
    conflict(late, Some(Version(2)))?;
    is(store.read(&key).await?, 2, "2")
}
