//! What reads as an entry is written the same; an earlier version as the present one.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use semel::store::Entry;

fuzz_target!(|data: &[u8]| {
    if let Ok(read) = Entry::from_bytes(&Bytes::copy_from_slice(data)) {
        let written = Bytes::from(read.to_bytes());
        if data[0] == Entry::VERSION {
            assert_eq!(written, data);
        }
        assert_eq!(Entry::from_bytes(&written), Ok(read));
    }
});
