//! Frames of HTTP/2, byte by byte.

/// A frame: RFC 9113, section 4.1.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Fields as literals without indexing: RFC 7541, section 6.2.2.
pub(super) fn fields(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend(text);
        }
    }
    block
}

/// With a prefix of seven bits: RFC 7541, section 5.1.
fn integer(block: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        block.push(u8::try_from(value).unwrap());
        return;
    }
    block.push(127);
    value -= 127;
    while value >= 128 {
        block.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    block.push(u8::try_from(value).unwrap());
}

/// The status at the begin of a block of fields, from a server that was told to keep no table.
pub(super) fn status(block: &[u8]) -> Option<u16> {
    let mut block = block;
    while let [32..=63, rest @ ..] = block {
        block = rest;
    }
    const STATIC: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [indexed @ 0x88..=0x8e, ..] => Some(STATIC[usize::from(indexed - 0x88)]),
        // Literal, with the static name 8; in Huffman's code or not.
        [0x08 | 0x18 | 0x48, length, text @ ..] if length & 128 == 0 => {
            std::str::from_utf8(&text[..usize::from(*length)])
                .ok()?
                .parse()
                .ok()
        }
        [0x08 | 0x18 | 0x48, length, text @ ..] => {
            digits(&text[..usize::from(length & 127)])?.parse().ok()
        }
        _ => None,
    }
}

/// Three digits in Huffman's code: 0 to 2 have five bits, 3 to 9 six (RFC 7541, appendix B).
fn digits(code: &[u8]) -> Option<String> {
    let bits = code
        .iter()
        .fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let mut left = code.len() * 8;
    let mut text = String::new();
    while text.len() < 3 {
        let five = bits >> left.checked_sub(5)? & 31;
        let (digit, length) = match five {
            0..=2 => (five, 5),
            _ => ((bits >> left.checked_sub(6)? & 63).checked_sub(22)?, 6),
        };
        text.push(char::from_digit(u32::try_from(digit).ok()?, 10)?);
        left -= length;
    }
    Some(text)
}
