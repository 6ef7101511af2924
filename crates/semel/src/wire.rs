//! Reading length-prefixed bytes without ever reading past their end.

/// What is left to read. Every method answers `None` where too little is left.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes with a 32-bit length in front.
    pub(crate) fn long(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }

    /// Text with a 32-bit length in front.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.long()?).ok()
    }
}

/// Appends bytes with a 32-bit length in front.
///
/// # Panics
/// If there are 4 GiB or more: callers bound what they write.
pub(crate) fn put_long(to: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("parts of a record are below 4 GiB");
    to.extend_from_slice(&len.to_be_bytes());
    to.extend_from_slice(bytes);
}
