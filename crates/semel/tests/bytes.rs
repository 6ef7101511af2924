//! The byte forms of outcomes and entries, with any bytes: what is read is written the same, and
//! nothing panics. `fuzz/` asks the same of many more bytes.

use bytes::Bytes;
use proptest::prelude::*;
use semel::store::Entry;
use semel::{DecodeError, Outcome, OutcomeKind};

/// Reads bytes as an outcome, and wants the accessors to agree with them.
fn outcome(bytes: &Bytes) {
    let Ok(read) = Outcome::from_bytes(bytes.clone()) else {
        return;
    };
    assert_eq!(read.as_bytes(), bytes);
    let mut again = Outcome::builder(read.kind()).code(read.code());
    for (name, value) in read.fields() {
        again = again.field(name, value);
    }
    let again = match read.body() {
        Some(body) => again.body(&body),
        None => again.void(),
    };
    assert_eq!(again.as_bytes(), bytes);
    let omitted = read.to_omitted();
    let from_bytes = Outcome::from_bytes(omitted.as_bytes().clone());
    assert_eq!(from_bytes, Ok(omitted.clone()));
    assert_eq!(
        (omitted.kind(), omitted.body()),
        (OutcomeKind::Omitted, None)
    );
    assert!(omitted.fields().eq(read.fields()));
}

fn entry(bytes: &Bytes) {
    if let Ok(read) = Entry::from_bytes(bytes) {
        assert_eq!(read.to_bytes(), *bytes);
    }
}

/// Bytes that were right before something happened to a few of them.
fn damaged(right: Vec<u8>) -> impl Strategy<Value = Bytes> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..4);
    (changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(move |(changes, end, cut)| {
        let mut bytes = right.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes.into()
    })
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(char::is_ascii_hexdigit).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).expect("digits");
    digits.chunks_exact(2).map(byte).collect()
}

proptest! {
    #[test]
    fn any_bytes_as_an_outcome(bytes: Vec<u8>) {
        let mut versioned = vec![1, 1];
        versioned.extend(&bytes);
        outcome(&bytes.into());
        outcome(&versioned.into());
    }

    #[test]
    fn a_damaged_outcome(bytes in damaged(hex(include_str!("golden/outcome-1-full.hex")))) {
        outcome(&bytes);
    }

    #[test]
    fn any_bytes_as_an_entry(bytes: Vec<u8>) {
        entry(&bytes.into());
    }

    #[test]
    fn a_damaged_entry(
        completed in damaged(hex(include_str!("golden/entry-3-completed.hex"))),
        released in damaged(hex(include_str!("golden/entry-3-released.hex"))),
        begun in damaged(hex(include_str!("golden/entry-3-in-flight.hex"))),
    ) {
        entry(&completed);
        entry(&released);
        entry(&begun);
    }

    #[test]
    fn what_is_built_is_read(
        code: u16,
        fields in prop::collection::vec((".{0,20}", prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        body: Option<Vec<u8>>,
        failure: bool,
    ) {
        let kind = if failure { OutcomeKind::Failure } else { OutcomeKind::Success };
        let mut building = Outcome::builder(kind).code(code);
        for (name, value) in &fields {
            building = building.field(name, value);
        }
        let built = match &body {
            Some(body) => building.body(body),
            None => building.void(),
        };
        prop_assert_eq!(built.kind(), kind);
        prop_assert_eq!(built.code(), code);
        prop_assert_eq!(built.body(), body.map(Bytes::from));
        let read: Vec<_> = built.fields().map(|(n, v)| (n.to_owned(), v.to_vec())).collect();
        prop_assert_eq!(read, fields);
        outcome(built.as_bytes());
    }
}

#[test]
fn every_cut_of_an_entry_is_damaged() {
    let whole = hex(include_str!("golden/entry-3-released.hex"));
    for end in 0..whole.len() {
        let cut = Bytes::copy_from_slice(&whole[..end]);
        assert_eq!(
            Entry::from_bytes(&cut),
            Err(DecodeError::Damaged),
            "cut at {end}"
        );
    }
}
