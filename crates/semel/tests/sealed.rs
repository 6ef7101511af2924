//! What a store around which `Sealed` stands gets to see, and what it takes to read it.
#![cfg(feature = "sealed")]
#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;
use std::time::Duration;

use semel::guard::{Asked, Attempt, Done, Guard, Ran, RunError, StepError};
use semel::inbox::{Event, Inbox, InboxError};
use semel::memory::MemoryStore;
use semel::record::Change;
use semel::sealed::{Keys, Sealed};
use semel::store::{
    Claim, ClaimRequest, Entry, Fenced, ListQuery, Nonce, Refusal, Resolution, Retention, Store,
    Verdict,
};
use semel::{
    AnyStore, Fingerprint, FinishedStep, Identity, IdentityDigest, Key, Note, Outcome, OutcomeKind,
    Progress, Scope, State, StateKind, StoreErrorKind, StoreExt as _,
};

const OLD: &str = "old AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
const SECRET: &str = "4111-1111-1111-1111";

fn keys(lines: &[&str]) -> Keys {
    Keys::parse(&lines.join("\n")).unwrap()
}

fn identity(key: &str) -> Identity {
    Identity::new(Scope::new(["acme"]), "pay", Key::new(key).unwrap())
}

fn request() -> ClaimRequest {
    ClaimRequest::new(
        Nonce::random().unwrap(),
        Fingerprint::of(b"9 EUR"),
        Duration::from_secs(60),
    )
    .with_note(Note::new([("card", SECRET)]))
}

fn answer(body: &[u8]) -> Outcome {
    Outcome::builder(OutcomeKind::Success)
        .code(201)
        .field("x-card", SECRET.as_bytes())
        .body(body)
}

async fn begun(store: &impl Store, identity: &Identity) -> semel::store::Token {
    match store.claim(identity, &request()).await.unwrap() {
        Claim::Acquired(acquired) => acquired.token,
        other => panic!("{other:?}"),
    }
}

async fn completed(store: &impl Store, identity: &Identity, outcome: &Outcome) {
    let token = begun(store, identity).await;
    let day = Retention::ORDER;
    let done = store
        .complete(identity.digest(), &token, outcome, day)
        .await;
    assert_eq!(done.unwrap(), Fenced::Applied);
}

async fn raw(store: &impl Store, identity: &IdentityDigest) -> Entry {
    store.get(identity).await.unwrap().unwrap()
}

fn shows(entry: &Entry, text: &str) -> bool {
    let bytes = entry.to_bytes();
    bytes
        .windows(text.len())
        .any(|bytes| bytes == text.as_bytes())
}

#[tokio::test]
async fn the_store_sees_no_answer_no_note_no_step_and_no_key() {
    let memory = Arc::new(MemoryStore::default());
    let store = Sealed::new(memory.clone(), keys(&[OLD]));
    let long = format!("{SECRET} ").repeat(1000);
    for (nth, body) in [SECRET.as_bytes(), long.as_bytes(), b""]
        .into_iter()
        .enumerate()
    {
        let identity = identity(&format!("secret-key-{nth}-of-a-client"));
        let digest = identity.digest();
        let token = begun(&store, &identity).await;
        let step = FinishedStep::new("charge", SECRET.as_bytes()).unwrap();
        let _: Fenced = store.keep_step(digest, &token, &step, 0).await.unwrap();
        for is_done in [false, true] {
            let entry = raw(&memory, digest).await;
            for text in [SECRET, "secret-k", "charge", "x-card", "card"] {
                assert!(!shows(&entry, text), "{text} {is_done}");
            }
            let opened = raw(&store, digest).await;
            assert_eq!(opened.record.note.get("card"), Some(SECRET));
            assert_eq!(&*opened.label.key_hint, "secret-k");
            let kept = Progress::EMPTY.with(&step).unwrap();
            if !is_done {
                assert_eq!(opened.record.progress, kept);
                let day = Retention::ORDER;
                let done = store.complete(digest, &token, &answer(body), day).await;
                assert_eq!(done.unwrap(), Fenced::Applied);
            } else {
                assert_eq!(opened.record.state, State::Completed(answer(body)));
            }
        }
        let replayed = store.claim(&identity, &request()).await.unwrap();
        assert!(matches!(replayed, Claim::Completed { outcome, .. } if outcome == answer(body)));
    }
    let compressed = raw(&memory, identity("secret-key-1-of-a-client").digest()).await;
    assert!(
        compressed.to_bytes().len() < 2_000,
        "{}",
        compressed.to_bytes().len()
    );
}

#[tokio::test]
async fn what_was_moved_to_another_record_is_not_opened() {
    let memory = Arc::new(MemoryStore::default());
    let store = Sealed::new(memory.clone(), keys(&[OLD]));
    let (mine, theirs) = (identity("mine"), identity("theirs"));
    completed(&store, &theirs, &answer(b"theirs")).await;
    let State::Completed(stolen) = raw(&memory, theirs.digest()).await.record.state else {
        panic!("it is completed");
    };
    completed(&*memory, &mine, &stolen).await;
    let error = store.claim(&mine, &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(error.to_string().contains("cannot be decrypted"), "{error}");
}

#[tokio::test]
async fn a_lost_key_is_an_error_that_names_it_and_nothing_runs() {
    let memory = Arc::new(MemoryStore::default());
    let done = identity("done");
    completed(
        &Sealed::new(memory.clone(), keys(&[OLD])),
        &done,
        &answer(b"paid"),
    )
    .await;
    let run = async |guard: Guard<_>| {
        let asked = Asked::new(done.clone(), Fingerprint::of(b"9 EUR"));
        let ran = guard.run(asked, |_| async {
            panic!("it runs again") as Result<String, String>
        });
        ran.await.unwrap_err()
    };
    let lost = Sealed::new(memory.clone(), keys(&[NEW]));
    let RunError::Store { source, .. } = run(Guard::from(AnyStore::new(lost.clone()))).await else {
        panic!("the store's");
    };
    assert_eq!(source.kind(), StoreErrorKind::Corrupt);
    assert!(
        source.to_string().contains("the key `old`, which is not"),
        "{source}"
    );
    // Nor without any key.
    let none = run(Guard::from(AnyStore::new(memory.clone()))).await;
    assert!(matches!(none, RunError::Store { .. }), "{none:?}");
    // Operators find it all the same.
    let shown = raw(&lost, done.digest()).await;
    assert!(matches!(&shown.record.state, State::Completed(outcome) if outcome.is_sealed()));
    assert!(
        shown
            .record
            .note
            .get("encrypted")
            .unwrap()
            .contains("`old`")
    );
}

#[tokio::test]
async fn a_lost_key_of_steps_stops_the_next_attempt_before_it_runs() {
    let memory = Arc::new(MemoryStore::default());
    let asked = || Asked::new(identity("steps"), Fingerprint::of(b"9 EUR")).in_steps();
    let guard = Guard::from(Sealed::new(memory.clone(), keys(&[OLD])));
    let fails = |mut attempt: Attempt<_>| async move {
        let _: String = attempt
            .step("charge", |_| async { Ok("ch_1".to_owned()) })
            .await?;
        Err::<String, StepError<&str>>(StepError::Failed("the carrier is away"))
    };
    assert!(guard.run(asked(), fails).await.is_err());
    for keys in [Some(keys(&[NEW])), None] {
        let store = match keys {
            Some(keys) => AnyStore::new(Sealed::new(memory.clone(), keys)),
            None => AnyStore::new(memory.clone()),
        };
        let charged_again = |mut attempt: Attempt<_>| async move {
            let charge = |_| async { panic!("it charges again") as Result<String, &str> };
            let refused = attempt.step("charge", charge).await;
            let StepError::Store { ran, source } = refused.as_ref().unwrap_err() else {
                panic!("{refused:?}");
            };
            assert_eq!(*ran, Ran::No);
            assert!(source.to_string().contains("encrypted"), "{source}");
            refused
        };
        assert!(
            Guard::from(store)
                .run(asked(), charged_again)
                .await
                .is_err()
        );
    }
    let guard = Guard::from(Sealed::new(memory, keys(&[NEW, OLD])));
    let works = |mut attempt: Attempt<_>| async move {
        let charge = |_| async { panic!("it charges again") as Result<String, &str> };
        attempt.step("charge", charge).await
    };
    assert_eq!(
        guard.run(asked(), works).await.unwrap(),
        Done::Fresh("ch_1".into())
    );
}

#[tokio::test]
async fn steps_of_before_there_was_a_key_and_of_several_keys_stand_together() {
    let memory = Arc::new(MemoryStore::default());
    let identity = identity("mixed");
    let digest = identity.digest();
    let token = begun(&*memory, &identity).await;
    let mut kept = Progress::EMPTY;
    let step = |name: &str| FinishedStep::new(name, name.as_bytes()).unwrap();
    let steps = [
        step("plain"),
        FinishedStep::in_transaction(),
        step("old"),
        step("older"),
        step("new"),
    ];
    let old = AnyStore::new(Sealed::new(memory.clone(), keys(&[OLD])));
    let new = AnyStore::new(Sealed::new(memory.clone(), keys(&[NEW, OLD])));
    let plain = AnyStore::new(memory.clone());
    for (step, store) in steps.iter().zip([&plain, &old, &old, &old, &new]) {
        let change = Change::keep_step(&token, step, kept.as_bytes().len());
        // The second time it is there.
        for _ in 0..2 {
            assert_eq!(
                store.change(digest, &change).await.unwrap(),
                Fenced::Applied,
                "{step:?}"
            );
        }
        kept = kept.with(step).unwrap();
        assert_eq!(raw(&new, digest).await.record.progress, kept);
    }
    let names = Keys::used_by(&raw(&memory, digest).await);
    let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
    names.sort();
    assert_eq!(names, ["new", "old"]);
}

/// R4: what is sent again, because its answer was lost, was made before, whichever key it is sealed with now.
#[tokio::test]
async fn what_is_sent_again_is_known_whatever_key_is_first() {
    let memory = Arc::new(MemoryStore::default());
    let sealed = |lines: &[&str]| AnyStore::new(Sealed::new(memory.clone(), keys(lines)));
    let plain = AnyStore::new(memory.clone());
    let (old, new) = (sealed(&[OLD, NEW]), sealed(&[NEW, OLD]));
    let day = Retention::ORDER;
    let step = |result: &[u8]| FinishedStep::new("charge", result).unwrap();
    for (nth, (first, second)) in [(&old, &new), (&new, &old), (&plain, &new)]
        .into_iter()
        .enumerate()
    {
        let identity = identity(&format!("again-{nth}"));
        let (digest, token) = (identity.digest(), begun(first, &identity).await);
        for store in [first, second] {
            let kept = store.keep_step(digest, &token, &step(b"ch_1"), 0).await;
            assert_eq!(kept.unwrap(), Fenced::Applied, "{nth}");
        }
        let other = second.keep_step(digest, &token, &step(b"ch_2"), 0).await;
        assert_eq!(other.unwrap(), Fenced::Refused(Refusal::OtherSteps));
        for store in [first, second] {
            let done = store.complete(digest, &token, &answer(b"paid"), day).await;
            assert_eq!(done.unwrap(), Fenced::Applied, "{nth}");
        }
        let other = second
            .complete(digest, &token, &answer(b"other"), day)
            .await;
        let settled = Refusal::Settled(StateKind::Completed);
        assert_eq!(other.unwrap(), Fenced::Refused(settled));
    }
    // Whether it is the same nobody can tell who cannot read it.
    let identity = identity("lost");
    let (digest, token) = (identity.digest(), begun(&old, &identity).await);
    for (store, is_known) in [(&old, true), (&sealed(&[NEW]), false)] {
        match store.complete(digest, &token, &answer(b"paid"), day).await {
            Ok(Fenced::Applied) if is_known => {}
            Err(error) if !is_known => assert!(error.to_string().contains("`old`"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Whoever cannot read the steps before it knows its place by the bytes that the store has.
#[tokio::test]
async fn a_step_kept_without_the_key_of_those_before_it_can_be_read() {
    let memory = Arc::new(MemoryStore::default());
    let sealed = |lines: &[&str]| Sealed::new(memory.clone(), keys(lines));
    let identity = identity("without");
    let digest = identity.digest();
    let token = begun(&sealed(&[OLD]), &identity).await;
    let mut kept = Progress::EMPTY;
    for (name, key) in [("charge", OLD), ("ship", NEW)] {
        let (store, step) = (sealed(&[key]), FinishedStep::new(name, b"done").unwrap());
        let seen = raw(&store, digest).await.record.progress;
        let done = store.keep_step(digest, &token, &step, seen.as_bytes().len());
        assert_eq!(done.await.unwrap(), Fenced::Applied);
        kept = kept.with(&step).unwrap();
    }
    assert_eq!(
        raw(&sealed(&[NEW, OLD]), digest).await.record.progress,
        kept
    );
}

#[tokio::test]
async fn an_outcome_is_sealed_anew_with_the_key_in_use() {
    let memory = Arc::new(MemoryStore::default());
    let (plain, sealed) = (identity("plain"), identity("sealed"));
    completed(&*memory, &plain, &answer(b"before")).await;
    completed(
        &Sealed::new(memory.clone(), keys(&[OLD])),
        &sealed,
        &answer(b"old"),
    )
    .await;
    let both = Sealed::new(memory.clone(), keys(&[NEW, OLD]));
    for identity in [&plain, &sealed] {
        let entry = raw(&memory, identity.digest()).await;
        let nonce = Nonce::random().unwrap();
        let outcome = both.resealed(&entry, &nonce).unwrap().unwrap();
        let verdict = Verdict::Amended {
            outcome,
            retention: Retention::ORDER,
        };
        let resolution = Resolution {
            verdict,
            by: "test".into(),
            reason: "rotation".into(),
            fence: entry.record.token.fence,
            nonce,
        };
        let done = memory
            .resolve(identity.digest(), &resolution)
            .await
            .unwrap();
        assert_eq!(done, Fenced::Applied);
        let entry = raw(&memory, identity.digest()).await;
        assert_eq!(
            both.resealed(&entry, &nonce).unwrap(),
            None,
            "it is under the new key"
        );
    }
    let only_new = Sealed::new(memory, keys(&[NEW]));
    for (identity, body) in [(plain, &b"before"[..]), (sealed, b"old")] {
        let claim = only_new.claim(&identity, &request()).await.unwrap();
        assert!(matches!(claim, Claim::Completed { outcome, .. } if outcome == answer(body)));
    }
}

#[tokio::test]
async fn a_note_too_long_to_seal_whole_keeps_its_first_lines() {
    // Nothing that gets smaller.
    let text = |nth: u8| -> String {
        let digest = Identity::new(Scope::new([nth.to_string()]), "x", Key::new("k").unwrap());
        digest.digest().to_string().repeat(3)
    };
    let store = Sealed::new(MemoryStore::default(), keys(&[OLD]));
    let note = Note::new((0..5).map(|nth| (nth.to_string(), text(nth))));
    let identity = identity("long");
    let request = request().with_note(note.clone());
    store.claim(&identity, &request).await.unwrap();
    let kept = raw(&store, identity.digest()).await.record.note;
    assert_eq!(kept.get("0"), note.get("0"));
    assert_eq!(kept.get("1"), note.get("1"));
    assert!(note.as_text().starts_with(kept.as_text()));
}

/// What is known is told, with or without room for what it leaves.
#[tokio::test(start_paused = true)]
async fn a_failure_is_released_though_there_is_no_room_to_keep_it() {
    let memory = Arc::new(MemoryStore::default());
    let inbox = Inbox::new(Sealed::new(memory.clone(), keys(&[OLD])), "billing");
    let event = Event::new("orders", "event-1", "body");
    for _ in 0..200 {
        let work = |_| async { Err::<(), _>("x".repeat(2000)) };
        let failed = inbox.receive(&event, work).await;
        assert!(
            matches!(failed, Err(InboxError::Failed { .. })),
            "{failed:?}"
        );
        let released = memory.list(&ListQuery::new(StateKind::Released)).await;
        assert_eq!(released.unwrap().entries.len(), 1);
        tokio::time::advance(Duration::from_secs(60)).await;
    }
}
