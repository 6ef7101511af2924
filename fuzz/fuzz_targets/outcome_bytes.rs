//! What reads as an outcome is written the same, and its accessors tell all of it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use semel::{Outcome, OutcomeKind};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let Ok(read) = Outcome::from_bytes(bytes.clone()) else {
        return;
    };
    assert_eq!(read.as_bytes(), &bytes);
    let mut again = Outcome::builder(read.kind()).code(read.code());
    for (name, value) in read.fields() {
        again = again.field(name, value);
    }
    let again = match read.body() {
        Some(body) => again.body(&body),
        None => again.void(),
    };
    assert_eq!(again, read);
    let omitted = read.to_omitted();
    assert_eq!(
        Outcome::from_bytes(omitted.as_bytes().clone()),
        Ok(omitted.clone())
    );
    assert_eq!(
        (omitted.kind(), omitted.body()),
        (OutcomeKind::Omitted, None)
    );
});
