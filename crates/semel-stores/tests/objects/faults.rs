//! What is lost, altered or cannot be reached.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use semel::guard::{Asked, Done, Guard, OnStoreError, Policy};
use semel::sealed::{Keys, Sealed};
use semel::{StoreError, StoreErrorKind};
use semel_stores::SqliteStore;

use super::*;

async fn refused(store: &impl Store, key: &str) -> StoreError {
    store.claim(&identity(key), &request()).await.unwrap_err()
}

/// Missing, cut, altered, or out of reach: an error that says which object, nothing runs again, not even
/// where a store that is down is no reason to refuse; and operators see the record.
#[tokio::test]
async fn what_cannot_be_read_never_runs_again() {
    let bench = Bench::new();
    let (place, store) = (&bench.objects, &bench.store);
    completed(store, "k", &large("kept")).await;
    let path = bench.paths().await.remove(0);
    let whole = place
        .objects
        .get(&path)
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    let mut other = whole.to_vec();
    *other.last_mut().unwrap() ^= 1;
    let policy = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let guard = Guard::new(store.clone(), policy);
    let is_refused = async |why: &str| {
        let error = refused(store, "k").await;
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.to_string().contains(path.as_ref()), "{error}");
        let asked = Asked::new(identity("k"), Fingerprint::of(b"9 EUR"));
        let ran = guard.run(asked, |_| async {
            panic!("it runs again") as Result<String, String>
        });
        ran.await.unwrap_err();
        let shown = entry(store, "k").await;
        assert_eq!(outcome(&shown).code(), 201);
        assert!(outcome(&shown).place().is_some());
    };
    for altered in [
        whole.slice(..whole.len() - 1),
        other.into(),
        whole.slice(..0),
    ] {
        place.objects.put(&path, altered.into()).await.unwrap();
        is_refused("is not the answer").await;
    }
    place.objects.delete(&path).await.unwrap();
    is_refused("cannot be read").await;
    place.objects.put(&path, whole.into()).await.unwrap();
    place.no_get.store(true, SeqCst);
    is_refused("cannot be read").await;
    place.no_get.store(false, SeqCst);
    assert_eq!(replayed(store, "k").await, large("kept"));
}

/// Without the wrapper, a guard says so, and runs nothing.
#[tokio::test]
async fn a_program_that_does_not_know_where_objects_are_runs_nothing_again() {
    let bench = Bench::new();
    completed(&bench.store, "k", &large("kept")).await;
    let guard = Guard::new(bench.inner.clone(), Policy::default());
    let asked = Asked::new(identity("k"), Fingerprint::of(b"9 EUR"));
    let ran = guard.run(asked, |_| async {
        panic!("it runs again") as Result<String, String>
    });
    let error = ran.await.unwrap_err();
    assert!(
        format!("{error:?}").contains("outside the store"),
        "{error:?}"
    );
}

/// For whatever reason: credentials that are being replaced look like a permission that is missing.
#[tokio::test]
async fn what_the_place_does_not_take_the_store_keeps() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let bench = Bench::new();
    let place = Objects::new(bench.objects.clone());
    let store = Offloaded::new(bench.inner.clone(), place, ABOVE).with_report(|error| {
        assert!(
            error.to_string().contains("is kept in the store"),
            "{error}"
        );
        TOLD.fetch_add(1, SeqCst);
    });
    completed(&store, "before", &large("before")).await;
    let place = &bench.objects;
    for (key, fault) in [("outage", &place.no_put), ("denied", &place.denied)] {
        fault.store(true, SeqCst);
        completed(&store, key, &large(key)).await;
        fault.store(false, SeqCst);
        assert_eq!(replayed(&store, key).await, large(key));
        assert_eq!(outcome(&entry(&bench.inner, key).await), &large(key));
    }
    assert_eq!(TOLD.load(SeqCst), 2);
    assert_eq!(bench.paths().await.len(), 1);
}

/// A guard sends it again until the place takes it: nothing is recorded as omitted.
#[tokio::test]
async fn what_is_too_large_for_the_store_waits_for_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.db");
    let url = format!("sqlite:{}?schema=create", records.display());
    let inner = SqliteStore::open(&url).await.unwrap();
    let place = Arc::new(Faulty::default());
    let store = Arc::new(Offloaded::new(inner, Objects::new(place.clone()), ABOVE));
    // SQLite keeps 32 MiB.
    let long = Outcome::success(&vec![7; 33 << 20]);
    let mine = identity("k");
    let token = begun(&store, &mine).await;
    place.denied.store(true, SeqCst);
    let day = Retention::ORDER;
    let sent = store.complete(mine.digest(), &token, &long, day).await;
    let error = sent.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotApplied);
    assert!(error.to_string().contains("as an object"), "{error}");

    place.refused.notified().await;
    place.denied.store(false, SeqCst);
    assert_eq!(
        complete(&store, &mine, &token, &long).await,
        Fenced::Applied
    );
    assert_eq!(replayed(&store, "k").await, long);

    let guard = Guard::new(store.clone(), Policy::default());
    let asked = || Asked::new(identity("guarded"), Fingerprint::of(b"9 EUR"));
    let text = "a long answer ".repeat(2_500_000);
    let (denied, kept) = (place.clone(), text.clone());
    let ran = guard.run(asked(), move |_| async move {
        denied.denied.store(true, SeqCst);
        tokio::spawn(async move {
            denied.refused.notified().await;
            denied.denied.store(false, SeqCst);
        });
        Ok::<_, String>(kept)
    });
    ran.await.unwrap();
    let again = guard.run(asked(), |_| async {
        panic!("it runs again") as Result<String, String>
    });
    assert_eq!(again.await.unwrap(), Done::Replayed(text));
}

/// What is sent again because the answer was lost is the same, though the place takes it now, or no more.
#[tokio::test]
async fn a_completion_that_is_sent_again_is_the_same_in_either_form() {
    for (key, first) in [("whole", true), ("object", false)] {
        let bench = Bench::new();
        let mine = identity(key);
        completed(&bench.store, "other", &large("other")).await;
        let token = begun(&bench.store, &mine).await;
        for denied in [first, !first] {
            bench.objects.denied.store(denied, SeqCst);
            let sent = complete(&bench.store, &mine, &token, &large(key)).await;
            assert_eq!(sent, Fenced::Applied, "{key}");
            let other = complete(&bench.store, &mine, &token, &large("other")).await;
            let settled = Refusal::Settled(StateKind::Completed);
            assert_eq!(other, Fenced::Refused(settled));
        }
        assert_eq!(replayed(&bench.store, key).await, large(key));
    }
}

/// What an amendment writes after the erasure has looked goes with it.
#[tokio::test]
async fn what_comes_after_an_erasure_leaves_nothing() {
    let bench = Bench::new();
    completed(&bench.store, "k", &large("body")).await;
    let before = entry(&bench.store, "k").await;
    let _: Fenced = amended(&bench.store, "k", erased()).await.unwrap();
    let (outcome, retention) = (large("body"), Retention::ORDER);
    let late = resolution(&before, Verdict::Amended { outcome, retention });
    let refused = bench.store.resolve(&before.label.digest, &late).await;
    assert_eq!(refused.unwrap(), Fenced::Refused(Refusal::Superseded));
    assert_eq!(bench.paths().await, []);
}

/// A folder whose file system is not mounted is empty, and another bucket is too: nothing is looked for there,
/// nothing written, and nobody is told that something was erased.
#[tokio::test]
async fn an_empty_place_is_not_taken_for_that_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (mounted, away) = (
        directory.path().join("answers"),
        directory.path().join("away"),
    );
    let url = ObjectsUrl::parse(&format!("file:{}", mounted.display())).unwrap();
    let inner = Arc::new(MemoryStore::default());
    let open = async || Offloaded::new(inner.clone(), url.open().await.unwrap(), ABOVE);
    let store = open().await;
    store.check().await.unwrap();
    completed(&store, "k", &large("k")).await;
    store.check().await.unwrap();
    let folder = folder_of(&inner).await.unwrap().unwrap();

    std::fs::rename(&mounted, &away).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    for store in [&store, &open().await] {
        for error in [
            store.check().await.unwrap_err(),
            store.sweep().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Config);
            let named = format!("`file:{}`", mounted.display());
            assert!(error.to_string().contains(&named), "{error}");
            assert!(
                error.to_string().contains(&format!("{folder}/mark")),
                "{error}"
            );
        }
    }
    completed(&store, "meanwhile", &large("meanwhile")).await;
    assert_eq!(
        outcome(&entry(&inner, "meanwhile").await),
        &large("meanwhile")
    );
    let erasure = amended(&store, "k", erased()).await.unwrap_err();
    assert_eq!(erasure.kind(), StoreErrorKind::Unknown);
    std::fs::remove_dir(&mounted).unwrap();
    std::fs::rename(&away, &mounted).unwrap();
    store.check().await.unwrap();
    completed(&store, "after", &large("after")).await;
    let _: Fenced = amended(&store, "k", erased()).await.unwrap();
    for key in ["meanwhile", "after"] {
        assert_eq!(replayed(&open().await, key).await, large(key));
    }

    // They are lost for good.
    std::fs::remove_dir_all(&mounted).unwrap();
    open().await.check().await.unwrap_err();
    std::fs::create_dir_all(mounted.join(&folder)).unwrap();
    std::fs::write(mounted.join(&folder).join("mark"), "").unwrap();
    open().await.check().await.unwrap();
    assert_eq!(
        refused(&open().await, "after").await.kind(),
        StoreErrorKind::Corrupt
    );
}

/// An erasure that left bytes says so, and can be sent again.
#[tokio::test]
async fn an_erasure_does_not_claim_what_did_not_happen() {
    let bench = Bench::new();
    let (place, store) = (&bench.objects, &bench.store);
    completed(store, "k", &large("body")).await;
    place.no_removal.store(true, SeqCst);
    let error = amended(store, "k", erased()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unknown);
    assert!(error.to_string().contains("may still be there"), "{error}");
    assert!(amended(store, "k", erased()).await.is_err());
    place.no_removal.store(false, SeqCst);
    assert_eq!(bench.paths().await.len(), 1);
    let _: Fenced = amended(store, "k", erased()).await.unwrap();
    assert_eq!(bench.paths().await, []);
    assert_eq!(outcome(&entry(store, "k").await), &erased());
}

/// Objects are sealed, too; sealed anew, they are others, and the old ones are swept.
#[tokio::test]
async fn objects_of_a_sealed_store_are_sealed() {
    const OLD: &str = "old AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "new //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
    let bench = Bench::new();
    let keys = |lines: &[&str]| Keys::parse(&lines.join("\n")).unwrap();
    let sealed = Sealed::new(bench.store.clone(), keys(&[OLD]));
    // It does not get small.
    let body: Vec<u8> = (0..100)
        .flat_map(|_| *Nonce::random().unwrap().as_bytes())
        .collect();
    let mut long = b"secret-of-4711".to_vec();
    long.extend(body);
    let long = Outcome::success(&long);
    completed(&sealed, "k", &long).await;
    assert_eq!(replayed(&sealed, "k").await, long);
    let bytes = async || {
        let path = bench.paths().await.remove(0);
        bench
            .objects
            .objects
            .get(&path)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
    };
    let before = bytes().await;
    assert!(before.len() > long.as_bytes().len());
    assert!(!before.windows(6).any(|bytes| bytes == b"secret"));

    let both = Sealed::new(bench.store.clone(), keys(&[NEW, OLD]));
    let nonce = Nonce::random().unwrap();
    let kept = entry(both.inner(), "k").await;
    let resealed = both.resealed(&kept, &nonce).unwrap().unwrap();
    assert_eq!(
        amended(both.inner(), "k", resealed).await.unwrap(),
        Fenced::Applied
    );
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
    assert_ne!(bytes().await, before);
    let new = Sealed::new(bench.store.clone(), keys(&[NEW]));
    assert_eq!(outcome(&entry(&new, "k").await), &long);
    // What a list shows is not taken for what is kept.
    let stands = entry(&bench.inner, "k").await;
    let error = both.resealed(&stands, &nonce).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}
