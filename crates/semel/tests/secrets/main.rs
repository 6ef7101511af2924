//! Records under secrets: what they show, and what holds while a secret is replaced.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod claims;
mod rotation;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel::guard::{Asked, Begin, Done, Guard, OnStoreError, Policy, RunError};
use semel::memory::MemoryStore;
use semel::secrets::Secrets;
use semel::store::{ListQuery, Store as _};
use semel::{Fingerprint, Identity, Key, KeysError, Scope, StateKind};

const A: &str = "a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const B: &str = "b //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
const PLAIN: &str = "plain";

fn secrets(lines: &[&str]) -> Option<Secrets> {
    (!lines.is_empty()).then(|| Secrets::parse(&lines.join("\n")).unwrap())
}

fn identity(key: &str, secrets: Option<&Secrets>) -> Identity {
    let key = Key::new(key).unwrap();
    Identity::keyed(Scope::new(["acme"]), "pay", key, secrets)
}

fn asked(key: &str, lines: &[&str], body: &str) -> Asked {
    let fingerprint = Fingerprint::of(body.as_bytes());
    Asked::new(identity(key, secrets(lines).as_ref()), fingerprint)
}

#[test]
fn names_and_fingerprints_are_others_under_each_secret() {
    let under = |lines: &[&str]| identity("4111111111111111", secrets(lines).as_ref());
    let (plain, a, b) = (under(&[]), under(&[A]), under(&[B]));
    assert_eq!((plain.other(), a.other()), (None, None));
    assert!(a.digest() != plain.digest() && a.digest() != b.digest());
    let fingerprint = Fingerprint::of(b"4111111111111111");
    assert_eq!(plain.fingerprint(fingerprint), fingerprint);
    assert_ne!(a.fingerprint(fingerprint), fingerprint);
    assert_ne!(a.fingerprint(fingerprint), b.fingerprint(fingerprint));
    // Of two, each is as it is alone.
    for (two, first, second) in [([A, B], &a, &b), ([B, A], &b, &a), ([PLAIN, A], &plain, &a)] {
        let two = under(&two);
        let other = two.other().unwrap();
        assert_eq!(two.digest(), first.digest());
        assert_eq!(other.digest(), second.digest());
        assert_eq!(
            other.fingerprint(fingerprint),
            second.fingerprint(fingerprint)
        );
        assert_eq!(other.other().unwrap(), two);
    }
    let three = Secrets::parse(&[A, B, PLAIN].join("\n")).unwrap_err();
    assert_eq!(three, KeysError::TooMany(3, 2));
}

#[tokio::test]
async fn nothing_of_it_is_kept_that_can_be_guessed() {
    let guard = Guard::from(MemoryStore::default());
    let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
    let done = guard.run(asked("4111", &[A], "9 EUR"), pay).await.unwrap();
    assert_eq!(done, Done::Fresh("paid".to_owned()));
    let again = guard.run(asked("4111", &[A], "9 EUR"), pay).await.unwrap();
    assert_eq!(again, Done::Replayed("paid".to_owned()));
    let other = guard.run(asked("4111", &[A], "8 EUR"), pay).await;
    assert!(matches!(other, Err(RunError::Mismatch)), "{other:?}");
    let completed = ListQuery::new(StateKind::Completed);
    let page = guard.store().list(&completed).await.unwrap();
    let bytes = page.entries[0].to_bytes();
    let plain = identity("4111", None);
    let fingerprint = Fingerprint::of(b"9 EUR").to_bytes();
    for guessed in [&plain.digest().as_bytes()[..], &fingerprint[1..]] {
        assert!(!bytes.windows(32).any(|bytes| bytes == guessed));
    }
}

/// What was answered in a step, and in the one before, is replayed, and refused to other payloads.
#[tokio::test]
async fn answers_outlive_a_rotation_step_by_step() {
    let guard = Guard::from(Arc::new(MemoryStore::default()));
    let steps: [&[&str]; 6] = [&[], &[PLAIN, A], &[A, PLAIN], &[A, B], &[B, A], &[B]];
    for (nth, lines) in steps.iter().enumerate() {
        let pay = move |_| async move { Ok::<_, std::io::Error>(format!("paid {nth}")) };
        let key = format!("key-{nth}");
        let done = guard.run(asked(&key, lines, "9 EUR"), pay).await.unwrap();
        assert_eq!(done, Done::Fresh(format!("paid {nth}")));
        for before in nth.saturating_sub(1)..=nth {
            let key = format!("key-{before}");
            let again = guard.run(asked(&key, lines, "9 EUR"), pay).await.unwrap();
            assert_eq!(again, Done::Replayed(format!("paid {before}")), "{lines:?}");
            let other = guard.run(asked(&key, lines, "8 EUR"), pay).await;
            assert!(matches!(other, Err(RunError::Mismatch)), "{other:?}");
            let (name, _) = guard
                .look_up(asked(&key, lines, "").identity().unwrap())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(
                name.digest(),
                identity(
                    &key,
                    secrets(&steps[before][..steps[before].len().min(1)]).as_ref()
                )
                .digest()
            );
        }
    }
    let in_flight = guard
        .store()
        .list(&ListQuery::new(StateKind::InFlight))
        .await;
    assert!(in_flight.unwrap().entries.is_empty());
}

/// What the two names cost while there are two; without, a claim is one call.
#[tokio::test]
async fn with_one_secret_a_claim_is_one_call() {
    for (lines, first, replay) in [(&[A][..], 2, 1), (&[A, B], 5, 3)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let link = world::Link::counting(Arc::clone(&calls));
        let guard = Guard::from(link);
        let pay = |_| async { Ok::<_, std::io::Error>(()) };
        guard.run(asked("k", lines, ""), pay).await.unwrap();
        assert_eq!(calls.swap(0, Ordering::SeqCst), first);
        guard.run(asked("k", lines, ""), pay).await.unwrap();
        assert_eq!(calls.swap(0, Ordering::SeqCst), replay);
        let name = asked("k", lines, "").identity().unwrap().clone();
        assert!(guard.look_up(&name).await.unwrap().is_some());
        assert_eq!(calls.load(Ordering::SeqCst), lines.len());
    }
}

/// R9: to run without the store is for what nobody knows of. What was found under the other name is known.
#[tokio::test(start_paused = true)]
async fn what_is_found_under_the_other_name_does_not_run_unprotected() {
    let link = world::Link::counting(Arc::default());
    let guard = Guard::from(link.clone());
    let pay = |_| async { Ok::<_, std::io::Error>(()) };
    guard.run(asked("done", &[A], ""), pay).await.unwrap();
    let in_flight = guard.begin(&asked("in-flight", &[A], "")).await.unwrap();
    let open = Policy::default().with_on_store_error(OnStoreError::FailOpen);
    let guard = Guard::new(link.with_fault(world::Fault::NoClaims), open);
    for (key, is_known) in [("done", true), ("in-flight", true), ("new", false)] {
        let begin = guard.begin(&asked(key, &[B, A], "")).await;
        match begin {
            Err(_) if is_known => {}
            Ok(Begin::Unprotected(_)) if !is_known => {}
            other => panic!("{key}: {other:?}"),
        }
    }
    drop(in_flight);
}
