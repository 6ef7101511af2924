//! Stored bytes outlive releases. The files in `tests/golden` were written from the documented byte
//! forms, once, and are never changed: today's code must read them, and write exactly them. A new
//! version of a form gets files of its own beside these.

use bytes::Bytes;
use semel::record::{Record, Resolved, State};
use semel::store::{Entry, Fence, Label, Nonce, Token};
use semel::{
    DecodeError, Fingerprint, FinishedStep, Identity, Key, Note, Outcome, OutcomeKind, Progress,
    Scope, StateKind, Timestamp,
};

macro_rules! golden {
    ($name:literal) => {
        bytes_of(include_str!(concat!("golden/", $name, ".hex")))
    };
}

fn bytes_of(hex: &str) -> Bytes {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    let byte = |pair: &[u32]| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits");
    digits.chunks_exact(2).map(byte).collect()
}

fn full() -> Outcome {
    Outcome::builder(OutcomeKind::Success)
        .code(201)
        .field("content-type", b"application/json")
        .field("link", b"<a>")
        .field("link", b"<b>")
        .field("x-binary", b"\xff\x00")
        .body(br#"{"id":1}"#)
}

#[test]
fn outcomes_of_version_1() {
    let failure = Outcome::builder(OutcomeKind::Failure)
        .code(422)
        .field("content-type", b"text/plain")
        .body("né".as_bytes());
    let omitted = Outcome::builder(OutcomeKind::Omitted)
        .code(200)
        .field("etag", b"\"1\"")
        .void();
    for (stored, outcome) in [
        (golden!("outcome-1-void"), Outcome::void()),
        (golden!("outcome-1-empty"), Outcome::success(b"")),
        (golden!("outcome-1-full"), full()),
        (golden!("outcome-1-failure"), failure),
        (golden!("outcome-1-omitted"), omitted),
    ] {
        assert_eq!(outcome.as_bytes(), &stored, "written: {outcome:?}");
        assert_eq!(Outcome::from_bytes(stored), Ok(outcome));
    }
}

#[test]
fn outcomes_of_version_3() {
    let stored = golden!("outcome-3-stand-in");
    let stands = full().stand_in(b"answers/1");
    assert_eq!(stands.as_bytes(), &stored);
    assert_eq!(Outcome::from_bytes(stored), Ok(stands));
}

const SECOND: u64 = 1_000_000;

/// So many seconds after the beginning of these records.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_763_690_400_000_000 + seconds * SECOND)
}

fn label(scope: &[&str], operation: &str, key: &str) -> Label {
    let key = Key::new(key).expect("a key");
    Label::from(&Identity::new(Scope::new(scope), operation, key))
}

fn token(fence: u64, nonce: u8) -> Token {
    Token {
        fence: Fence(at(0).as_micros() + fence),
        nonce: Nonce::from_bytes([nonce; 16]),
    }
}

fn in_flight() -> Entry {
    let key = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    Entry {
        label: label(&["tenant", "a:b", ""], "POST /orders", key),
        record: Record {
            fingerprint: Fingerprint::of(b"the request"),
            token: token(0, 7),
            attempt: 1,
            state: State::InFlight,
            created_at: at(0),
            claimed_at: at(0),
            lease_until: at(30),
            settled_at: None,
            expires_at: Timestamp::MAX,
            purge_at: Timestamp::MAX,
            resolved: None,
            progress: Progress::EMPTY,
            note: Note::EMPTY,
        },
    }
}

fn unknown() -> Entry {
    let mut unknown = in_flight();
    unknown.record = Record {
        token: token(1, 8),
        attempt: 2,
        state: State::Unknown,
        claimed_at: at(40),
        lease_until: at(70),
        settled_at: Some(at(80)),
        ..unknown.record
    };
    unknown
}

fn completed() -> Entry {
    let mut completed = in_flight();
    completed.record = Record {
        note: Note::new([("größe", "12=½")]),
        state: State::Completed(full()),
        settled_at: Some(at(1)),
        expires_at: at(86_401),
        purge_at: at(90_001),
        ..completed.record
    };
    completed
}

fn released() -> Entry {
    Entry {
        label: label(&[], "op", "ключ"),
        record: Record {
            token: token(2, 9),
            attempt: 3,
            state: State::Released,
            claimed_at: at(40),
            lease_until: at(70),
            settled_at: Some(at(90)),
            expires_at: at(150),
            purge_at: at(150),
            resolved: Some(Box::new(Resolved {
                by: "operator".into(),
                reason: "no such payment — asked".into(),
                at: at(90),
                fence: token(1, 0).fence,
                before: StateKind::Unknown,
                after: StateKind::Released,
            })),
            ..in_flight().record
        },
    }
}

#[test]
fn entries_of_version_3() {
    let steps = [("charge", &b"ch_1"[..]), ("ship é", b"")];
    let mut begun = in_flight();
    for (name, result) in steps {
        let step = FinishedStep::new(name, result).expect("a small step");
        begun.record.progress = begun.record.progress.with(&step).expect("few steps");
    }
    begun.record.note = Note::new([
        ("method", "POST"),
        ("route", "/orders"),
        ("request-id", "r-1"),
    ]);
    for (stored, entry) in [
        (golden!("entry-3-in-flight"), begun),
        (golden!("entry-3-unknown"), unknown()),
        (golden!("entry-3-completed"), completed()),
        (golden!("entry-3-released"), released()),
    ] {
        assert_eq!(entry.to_bytes(), stored, "written: {entry:?}");
        assert_eq!(Entry::from_bytes(&stored), Ok(entry));
    }
}

#[test]
fn versions_that_were_never_released_are_refused() {
    for found in [1, 2, 4] {
        let mut stored = golden!("entry-3-unknown").to_vec();
        stored[0] = found;
        let known = Entry::VERSION;
        let refused = Err(DecodeError::Version { found, known });
        assert_eq!(Entry::from_bytes(&stored.into()), refused);
    }
}
