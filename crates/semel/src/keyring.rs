//! Keys in a text: a line each, a name and 32 random bytes as base64. The first is the one in use.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::{StoreError, StoreErrorKind};

/// What a key is called: in stored bytes, in messages. 1 to 8 ASCII letters, digits, `.`, `_`, `-`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyName([u8; Self::LEN]);

impl KeyName {
    pub(crate) const LEN: usize = 8;

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Option<Self> {
        let text = str::from_utf8(&bytes).ok()?.trim_end_matches('\0');
        text.parse().ok()
    }

    #[cfg(feature = "sealed")]
    pub(crate) const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl FromStr for KeyName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let mut name = [0; Self::LEN];
        match name.get_mut(..text.len()) {
            Some(to) if !text.is_empty() && text.bytes().all(is_allowed) => {
                to.copy_from_slice(text.as_bytes());
            }
            _ => return Err(()),
        }
        Ok(Self(name))
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .take_while(|b| **b != 0)
            .try_for_each(|b| fmt::Write::write_char(f, char::from(*b)))
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no list of keys. Never contains a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// No line has a key.
    #[error("there is no key in it: expected a line as `2026-11 BASE64`, with 32 random bytes")]
    Empty,
    /// A line is not a name and a key.
    #[error(
        "line {0}: expected a name of 1 to 8 letters, digits, `.`, `_` or `-`, a space, and 32 random \
         bytes as base64"
    )]
    Line(usize),
    /// A name or a key is there twice.
    #[error("line {0}: its name or its key is there before; each is used once")]
    Twice(usize),
    /// There are more than can be told apart.
    #[error("{0} keys; of these, only {1} can be used at once")]
    TooMany(usize, usize),
}

/// Of what is encrypted and could not be opened here. Its first byte is a version, its key's name follows.
pub(crate) fn unopened(sealed: &[u8]) -> StoreError {
    let name = sealed.get(1..).and_then(<[u8]>::first_chunk);
    let key = match name.and_then(|name| KeyName::from_bytes(*name)) {
        Some(name) => format!("the key `{name}`"),
        None => "a key".to_owned(),
    };
    let what = format!(
        "what is kept of the operation is encrypted with {key}, which is not among the keys given, or is not \
         the one it had"
    );
    StoreError::new(StoreErrorKind::Corrupt, what)
}

/// A key with its name, or the word that stands for none.
pub(crate) type Named = (KeyName, Option<[u8; 32]>);

/// Reads a key of each line; empty ones, and those that begin with `#`, are left out. `word` is a
/// line that stands for no key.
pub(crate) fn read(text: &str, word: Option<&str>) -> Result<Vec<Named>, KeysError> {
    let mut all: Vec<Named> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let (at, line) = (at + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let one = || {
            if word == Some(line) {
                return Some((line.parse().ok()?, None));
            }
            let (name, key) = line.split_once(char::is_whitespace)?;
            let key = BASE64_STANDARD.decode(key.trim()).ok()?.try_into().ok()?;
            Some((name.parse().ok()?, Some(key)))
        };
        let one: Named = one().ok_or(KeysError::Line(at))?;
        if all.iter().any(|other| other.0 == one.0 || other.1 == one.1) {
            return Err(KeysError::Twice(at));
        }
        all.push(one);
    }
    match all.is_empty() {
        true => Err(KeysError::Empty),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_name_and_a_key() {
        let (a, b) = (
            BASE64_STANDARD.encode([1; 32]),
            BASE64_STANDARD.encode([2; 32]),
        );
        let all = read(
            &format!("# keys\n\n 2026-11  {a}\nold {b}\nplain\n"),
            Some("plain"),
        );
        let names: Vec<_> = all.iter().flatten().map(|key| key.0.to_string()).collect();
        assert_eq!(names, ["2026-11", "old", "plain"]);
        for (text, error) in [
            ("", KeysError::Empty),
            ("# none", KeysError::Empty),
            ("a", KeysError::Line(1)),
            ("plain", KeysError::Line(1)),
            (&*format!("a {a}\nb {}", &a[1..]), KeysError::Line(2)),
            (&*format!("123456789 {a}"), KeysError::Line(1)),
            (&*format!("a {a}\nb {a}"), KeysError::Twice(2)),
            (&*format!("a {a}\n\na {b}"), KeysError::Twice(3)),
        ] {
            let refused = read(text, None).unwrap_err();
            assert_eq!(refused, error);
            assert!(!refused.to_string().contains(&a[..8]));
        }
    }
}
