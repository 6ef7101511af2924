//! What reads as an entry is written the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use semel::store::Entry;

fuzz_target!(|data: &[u8]| {
    if let Ok(read) = Entry::from_bytes(&Bytes::copy_from_slice(data)) {
        assert_eq!(read.to_bytes(), data);
    }
});
