//! Large outcomes outside the store: in memory, in a folder, and in a bucket of a server that speaks S3.

mod faults;
mod faulty;
mod sweeps;

use std::path::Path as FilePath;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use semel::memory::{Limits, MemoryStore};
use semel::store::{
    Claim, ClaimRequest, Entry, Fenced, Label, ListQuery, Nonce, OnLost, Refusal, Resolution,
    Retention, Store, StoreExt as _, Token, Verdict,
};
use semel::{
    Fingerprint, Identity, Key, ManualClock, Outcome, OutcomeKind, Scope, State, StateKind,
    Timestamp,
};
use semel_stores::objects::object_store::aws::AmazonS3Builder;
use semel_stores::objects::object_store::memory::InMemory;
use semel_stores::objects::object_store::path::Path;
use semel_stores::objects::object_store::{ObjectStore, ObjectStoreExt as _};
use semel_stores::objects::{Objects, ObjectsUrl, Offloaded, folder_of};
use semel_testkit::servers::{DynamoDb, Server as _};

use faulty::Faulty;

const ABOVE: usize = 100;
const LEASE: Duration = Duration::from_secs(60);

type Clocked = Arc<MemoryStore<Arc<ManualClock>>>;

/// A store in memory whose time stands still, and a place for its objects.
struct Bench {
    clock: Arc<ManualClock>,
    inner: Clocked,
    objects: Arc<Faulty>,
    store: Arc<Offloaded<Clocked>>,
}

impl Bench {
    fn new() -> Self {
        Self::on(Arc::default())
    }

    fn on(objects: Arc<Faulty>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
        let inner = Arc::new(MemoryStore::with_clock(Limits::default(), clock.clone()));
        let place = Objects::new(objects.clone());
        let store = Offloaded::new(inner.clone(), place, ABOVE).with_age(Duration::ZERO);
        Self {
            clock,
            inner,
            objects,
            store: Arc::new(store),
        }
    }

    async fn paths(&self) -> Vec<Path> {
        paths(&*self.objects).await
    }
}

async fn paths(objects: &dyn ObjectStore) -> Vec<Path> {
    let found: Vec<_> = objects.list(None).try_collect().await.unwrap();
    let found = found.into_iter().map(|object| object.location);
    found
        .filter(|path| path.filename() != Some("mark"))
        .collect()
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["acme"]), "pay", Key::new(key).unwrap())
}

fn request() -> ClaimRequest {
    ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"9 EUR"), LEASE)
}

/// With bytes that no other has.
fn large(text: &str) -> Outcome {
    Outcome::builder(OutcomeKind::Success)
        .code(201)
        .field("content-type", b"text/plain")
        .body(format!("{text} ").repeat(100).as_bytes())
}

async fn begun(store: &impl Store, identity: &Identity) -> Token {
    let request = request().with_on_lost(OnLost::Retry);
    match store.claim(identity, &request).await.unwrap() {
        Claim::Acquired(acquired) => acquired.token,
        other => panic!("{other:?}"),
    }
}

async fn complete(
    store: &impl Store,
    identity: &Identity,
    token: &Token,
    outcome: &Outcome,
) -> Fenced {
    let day = Retention::ORDER.with_tombstone(Duration::from_hours(48));
    let done = store.complete(identity.digest(), token, outcome, day).await;
    done.unwrap()
}

async fn completed(store: &impl Store, key: &str, outcome: &Outcome) -> Token {
    let identity = identity(key);
    let token = begun(store, &identity).await;
    assert_eq!(
        complete(store, &identity, &token, outcome).await,
        Fenced::Applied
    );
    token
}

async fn replayed(store: &impl Store, key: &str) -> Outcome {
    match store.claim(&identity(key), &request()).await.unwrap() {
        Claim::Completed { outcome, .. } => outcome,
        other => panic!("{key}: {other:?}"),
    }
}

async fn entry(store: &impl Store, key: &str) -> Entry {
    let found = store.get(identity(key).digest()).await.unwrap();
    found.unwrap()
}

fn outcome(entry: &Entry) -> &Outcome {
    match &entry.record.state {
        State::Completed(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn resolution(entry: &Entry, verdict: Verdict) -> Resolution {
    Resolution {
        verdict,
        by: "ada".into(),
        reason: "asked".into(),
        fence: entry.record.token.fence,
        nonce: Nonce::random().unwrap(),
    }
}

/// Another outcome in the place of the one that is kept, or the same for longer.
async fn amended(store: &impl Store, key: &str, outcome: Outcome) -> semel::store::Result<Fenced> {
    let entry = entry(store, key).await;
    let retention = Retention::new(Duration::ZERO).with_tombstone(Duration::from_hours(24));
    let resolution = resolution(&entry, Verdict::Amended { outcome, retention });
    store.resolve(&entry.label.digest, &resolution).await
}

fn erased() -> Outcome {
    Outcome::builder(OutcomeKind::Omitted).void()
}

/// A server with a bucket, and that bucket.
fn bucket() -> (DynamoDb, Arc<dyn ObjectStore>) {
    let server = DynamoDb::start().unwrap();
    server.bucket("answers", false).unwrap();
    let bucket = at(&server).build().unwrap();
    (server, Arc::new(bucket))
}

fn at(server: &DynamoDb) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_bucket_name("answers")
        .with_endpoint(format!("http://{}", server.address()))
        .with_allow_http(true)
        .with_access_key_id("unused")
        .with_secret_access_key("unused")
}

#[tokio::test]
async fn large_answers_are_objects_and_small_ones_are_not() {
    let bench = Bench::new();
    let (small, long) = (Outcome::success(b"small"), large("long"));
    completed(&bench.store, "small", &small).await;
    assert_eq!(bench.paths().await, []);
    completed(&bench.store, "large", &long).await;
    assert_eq!(bench.paths().await.len(), 1);
    assert_eq!(replayed(&bench.store, "small").await, small);
    assert_eq!(replayed(&bench.store, "large").await, long);
    assert_eq!(outcome(&entry(&bench.store, "large").await), &long);

    // Whoever looks at the store sees what it is and how it ended, and nothing of what is in it.
    let kept = entry(&bench.inner, "large").await;
    let stands = outcome(&kept);
    assert_eq!((stands.kind(), stands.code()), (OutcomeKind::Success, 201));
    assert!(stands.place().is_some() && stands.as_bytes().len() < 300);
    assert!(!kept.to_bytes().windows(5).any(|bytes| bytes == b"long "));
    // A list does, too; the record that says where objects are is in none.
    let listed = bench
        .store
        .list(&ListQuery::new(StateKind::Completed))
        .await;
    let listed = listed.unwrap().entries;
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&kept));
}

/// As `docs/protocol.md` says: what a stand-in says today is read by later programs.
#[tokio::test]
async fn the_form_of_a_stand_in_lasts() {
    let bench = Bench::new();
    let kept = Outcome::success(b"kept");
    let digest = "f83617676c9bd3de9cbd6d3f4a5ea9ab\
                  5eb42b3a4c2639d30cd40d6d002e2e32";
    let digest = hex::decode(digest).unwrap();
    let place = [&b"\x01\0\0\0\0\0\0\0\x0b"[..], &digest, b"some/where"].concat();
    let path = Path::from("some/where");
    let bytes = kept.as_bytes().clone();
    bench.objects.put(&path, bytes.into()).await.unwrap();
    completed(&bench.inner, "k", &kept.stand_in(&place)).await;
    assert_eq!(replayed(&bench.store, "k").await, kept);
    // And one of a later program is not taken for another.
    let later = [b"\x02", &place[1..]].concat();
    completed(&bench.inner, "later", &kept.stand_in(&later)).await;
    let refused = bench.store.claim(&identity("later"), &request()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("a form that is not known"), "{error}");
}

/// In memory, in a folder and in a bucket: what was written is read, by whoever opens it again.
#[tokio::test]
async fn every_place_gives_back_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, bucket) = bucket();
    let url = format!("file:{}/new/answers", folder.path().display());
    let url = ObjectsUrl::parse(&url).unwrap();
    assert!(url.is_missing());
    let places = [
        Objects::new(Arc::new(InMemory::new())),
        Objects::new(bucket),
        url.open().await.unwrap(),
    ];
    assert!(!url.is_missing());
    for place in places {
        let inner = Arc::new(MemoryStore::default());
        let store = Offloaded::new(inner.clone(), place.clone(), ABOVE);
        let body: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
        let outcome = Outcome::success(&body);
        completed(&store, "large", &outcome).await;
        let other = Offloaded::new(inner, place, ABOVE);
        assert_eq!(replayed(&other, "large").await, outcome);
        assert_eq!(
            amended(&other, "large", erased()).await.unwrap(),
            Fenced::Applied
        );
        let left = store.sweep().await.unwrap();
        assert_eq!(left, 0, "the erasure removed it");
    }
}

/// Two attempts that both think that they are the last: one is refused, and what it wrote is swept. The same
/// completion sent several times is one object; another one by the same attempt harms none.
#[tokio::test]
async fn attempts_that_race_have_objects_of_their_own() {
    let bench = Bench::new();
    let mine = identity("raced");
    let stale = begun(&bench.store, &mine).await;
    bench.clock.advance(LEASE * 2);
    let current = begun(&bench.store, &mine).await;
    let (late, last) = (large("stale"), large("current"));
    let again = || complete(&bench.store, &mine, &current, &last);
    let (refused, ..) = tokio::join!(
        complete(&bench.store, &mine, &stale, &late),
        async { assert_eq!(again().await, Fenced::Applied) },
        async { assert_eq!(again().await, Fenced::Applied) },
        async { assert_eq!(again().await, Fenced::Applied) },
    );
    assert_eq!(refused, Fenced::Refused(Refusal::Superseded));
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
    assert_eq!(bench.paths().await.len(), 1);
    assert_eq!(replayed(&bench.store, "raced").await, last);

    let other = complete(&bench.store, &mine, &current, &large("other")).await;
    assert_eq!(
        other,
        Fenced::Refused(Refusal::Settled(StateKind::Completed))
    );
    assert_eq!(replayed(&bench.store, "raced").await, last);
    assert_eq!(again().await, Fenced::Applied);
    assert_eq!(replayed(&bench.store, "raced").await, last);
}

/// Whoever extends a record writes its object anew, and the one before is swept. Where the answer could not be
/// read, it stays where it is.
#[tokio::test]
async fn an_amendment_takes_the_object_along() {
    let bench = Bench::new();
    let long = large("long");
    completed(&bench.store, "k", &long).await;
    let before = bench.paths().await;
    let read = outcome(&entry(&bench.store, "k").await).clone();
    assert_eq!(
        amended(&bench.store, "k", read).await.unwrap(),
        Fenced::Applied
    );
    assert_eq!(bench.paths().await.len(), 2);
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
    let after = bench.paths().await;
    assert!(after.len() == 1 && after != before);
    let stands = outcome(&entry(&bench.inner, "k").await).clone();
    assert_eq!(
        amended(&bench.store, "k", stands).await.unwrap(),
        Fenced::Applied
    );
    assert_eq!(bench.paths().await, after);
    assert_eq!(outcome(&entry(&bench.store, "k").await), &long);
    // Something small in its place.
    let short = Outcome::success(b"short");
    assert_eq!(
        amended(&bench.store, "k", short).await.unwrap(),
        Fenced::Applied
    );
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
    assert_eq!(bench.paths().await, []);
}

#[tokio::test]
async fn what_an_attempt_is_resolved_with_can_be_large() {
    let bench = Bench::new();
    let (mine, long) = (identity("k"), large("found out"));
    begun(&bench.store, &mine).await;
    bench.clock.advance(LEASE * 2);
    let verdict = Verdict::Happened {
        outcome: long.clone(),
        retention: Retention::ORDER,
    };
    let resolution = resolution(&entry(&bench.store, "k").await, verdict);
    for _ in 0..2 {
        let done = bench.store.resolve(mine.digest(), &resolution).await;
        assert_eq!(done.unwrap(), Fenced::Applied);
    }
    assert_eq!(replayed(&bench.store, "k").await, long);
    assert_eq!(bench.paths().await.len(), 1);
}

/// Whether the text is in a file below the folder.
fn is_in(folder: &FilePath, text: &str) -> bool {
    let mut search = Command::new("grep");
    let found = search.args(["-rlaF", "-e", text]).arg(folder);
    !found.output().unwrap().stdout.is_empty()
}

#[tokio::test]
async fn erased_bytes_are_in_no_file_and_in_no_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    let place = ObjectsUrl::parse(&url).unwrap().open().await.unwrap();
    let store = Offloaded::new(MemoryStore::default(), place, ABOVE);
    for key in ["ada", "bob"] {
        completed(&store, key, &large(&format!("body-of-{key}"))).await;
    }
    // What an upload left that was killed in the middle.
    let mut search = Command::new("find");
    let found = search
        .arg(folder.path())
        .args(["-name", "*-*", "-type", "f"]);
    let found = String::from_utf8(found.output().unwrap().stdout).unwrap();
    for path in found.lines() {
        std::fs::copy(path, format!("{path}#1")).unwrap();
    }
    assert_eq!(
        amended(&store, "ada", erased()).await.unwrap(),
        Fenced::Applied
    );
    assert!(!is_in(folder.path(), "body-of-ada"));
    assert!(is_in(folder.path(), "body-of-bob"));
    assert_eq!(replayed(&store, "bob").await, large("body-of-bob"));

    let (_server, bucket) = bucket();
    let store = Offloaded::new(MemoryStore::default(), Objects::new(bucket.clone()), ABOVE);
    for key in ["ada", "bob"] {
        completed(&store, key, &large(&format!("body-of-{key}"))).await;
    }
    assert_eq!(
        amended(&store, "ada", erased()).await.unwrap(),
        Fenced::Applied
    );
    let left = paths(&*bucket).await;
    assert_eq!(left.len(), 1);
    let kept = bucket.get(&left[0]).await.unwrap().bytes().await.unwrap();
    assert!(kept.windows(11).any(|bytes| bytes == b"body-of-bob"));
}

#[tokio::test]
async fn a_bucket_that_keeps_old_versions_is_refused() {
    let server = DynamoDb::start().unwrap();
    server.bucket("answers", true).unwrap();
    let place = Objects::new(Arc::new(at(&server).build().unwrap()));
    let error = place.probe().await.unwrap_err();
    assert!(error.to_string().contains("without versioning"), "{error}");
}

#[test]
fn a_url_is_a_folder_or_a_bucket() {
    for (url, shown) in [
        ("file:./answers", "file:./answers"),
        ("file:/var/lib/answers", "file:/var/lib/answers"),
        ("s3://answers", "s3://answers/"),
        (
            "s3://answers/shop/eu?region=eu-west-1&endpoint=http://127.0.0.1:9000",
            "s3://answers/shop/eu",
        ),
    ] {
        assert_eq!(ObjectsUrl::parse(url).unwrap().to_string(), shown);
    }
    for (url, why) in [
        ("", "it has to be `file:FOLDER`, or `s3://"),
        ("gs://answers", "it has to be `file:FOLDER`, or `s3://"),
        ("file:", "says no folder"),
        ("s3:", "`s3:`"),
        ("s3:///answers", "names no bucket"),
        (
            "s3://key:hunter2@answers",
            "credentials come from the environment",
        ),
        ("s3://answers?secret=hunter2", "has no parameter `secret`"),
        ("s3://answers?endpoint=hunter2", "`endpoint` must be a URL"),
        (
            "s3://answers?endpoint=http://key:hunter2@minio",
            "`endpoint` must be a URL without credentials",
        ),
    ] {
        let error = ObjectsUrl::parse(url).unwrap_err().to_string();
        assert!(error.contains(why), "{url}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
