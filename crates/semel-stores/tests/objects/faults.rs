//! What is lost, altered or cannot be reached.

use std::sync::atomic::Ordering::SeqCst;

use semel::guard::{Asked, Guard, OnStoreError, Policy};
use semel::sealed::{Keys, Sealed};
use semel::{StoreError, StoreErrorKind};

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

/// An outage is waited out, and what the place refuses for good is recorded as omitted.
#[tokio::test]
async fn what_cannot_be_written_is_kept_later_or_omitted() {
    let bench = Bench::new();
    let (place, store) = (&bench.objects, &bench.store);
    let mine = identity("outage");
    let token = begun(store, &mine).await;
    place.no_put.store(true, SeqCst);
    let day = Retention::ORDER;
    let done = store
        .complete(mine.digest(), &token, &large("later"), day)
        .await;
    assert_eq!(done.unwrap_err().kind(), StoreErrorKind::NotApplied);
    place.no_put.store(false, SeqCst);
    assert_eq!(
        complete(store, &mine, &token, &large("later")).await,
        Fenced::Applied
    );
    assert_eq!(replayed(store, "outage").await, large("later"));

    place.denied.store(true, SeqCst);
    let guard = Guard::new(store.clone(), Policy::default());
    let asked = || Asked::new(identity("denied"), Fingerprint::of(b"9 EUR"));
    let long = "a long answer ".repeat(100);
    let ran = guard.run(asked(), move |_| async { Ok::<_, String>(long) });
    ran.await.unwrap();
    let again = guard.run(asked(), |_| async {
        panic!("it runs again") as Result<String, String>
    });
    let error = again.await.unwrap_err();
    assert!(format!("{error:?}").contains("Omitted"), "{error:?}");
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
    let digest = *identity("k").digest();
    assert!(store.tidy(&digest).await.is_err());
    place.no_removal.store(false, SeqCst);
    assert_eq!(bench.paths().await.len(), 1);
    store.tidy(&digest).await.unwrap();
    assert_eq!(bench.paths().await, []);
    assert_eq!(outcome(&entry(store, "k").await), &erased());
}

/// Objects are sealed, too; sealed anew, they are others, and of the old ones none is left.
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
    assert_eq!(bench.paths().await.len(), 1);
    assert_ne!(bytes().await, before);
    let new = Sealed::new(bench.store.clone(), keys(&[NEW]));
    assert_eq!(outcome(&entry(&new, "k").await), &long);
    // What a list shows is not taken for what is kept.
    let stands = entry(&bench.inner, "k").await;
    let error = both.resealed(&stands, &nonce).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}
