//! Keys: the name a caller gives to one intent.

use std::fmt;

/// The key of one intent: `Idempotency-Key`, a request id, an event id.
///
/// A key is between 1 and 255 bytes of UTF-8 without control characters, and is compared byte for
/// byte: case matters, nothing is normalised. Keys are treated as secrets: `Debug` prints a short
/// hint only (protocol rule R12).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<str>);

/// Which keys an operation accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    min: usize,
    max: usize,
    form: Form,
}

/// What a key is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Token,
    UuidV7,
}

impl Form {
    /// Where the first byte is that it does not allow.
    fn refused(self, text: &str) -> Option<usize> {
        match self {
            Self::Text => text
                .char_indices()
                .find(|(_, c)| c.is_control())
                .map(|(at, _)| at),
            Self::Token => text
                .bytes()
                .position(|b| !(b.is_ascii_alphanumeric() || b"_.:-".contains(&b))),
            Self::UuidV7 => text.bytes().enumerate().position(|(at, b)| match at {
                8 | 13 | 18 | 23 => b != b'-',
                14 => b != b'7',
                19 => !b"89abAB".contains(&b),
                _ => !b.is_ascii_hexdigit(),
            }),
        }
    }

    const fn allowed(self) -> &'static str {
        match self {
            Self::Text => "all characters but control characters",
            Self::Token => "A-Z, a-z, 0-9, '_', '.', ':' and '-'",
            Self::UuidV7 => "those of a UUID of version 7",
        }
    }
}

/// Why a key was refused. Never contains the key itself (protocol rule R12).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no characters.
    #[error("the key is empty; it needs at least {min} character(s)")]
    Empty {
        /// The shortest key allowed, in bytes.
        min: usize,
    },
    /// The key is shorter than the rule allows.
    #[error("the key has {len} bytes; at least {min} are needed")]
    TooShort {
        /// Length of the refused key, in bytes.
        len: usize,
        /// The shortest key allowed, in bytes.
        min: usize,
    },
    /// The key is longer than the rule allows. Keys are never truncated.
    #[error("the key has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// Length of the refused key, in bytes.
        len: usize,
        /// The longest key allowed, in bytes.
        max: usize,
    },
    /// A character that the rule does not allow.
    #[error("the key has a character at byte {at} that is not allowed; allowed are {allowed}")]
    Character {
        /// Byte offset of the first character refused.
        at: usize,
        /// What is allowed, in words.
        allowed: &'static str,
    },
}

impl KeyRule {
    /// The general rule: 1 to 255 bytes, no control characters.
    pub const GENERAL: Self = Self {
        min: 1,
        max: 255,
        form: Form::Text,
    };

    /// The strict pattern `^[A-Za-z0-9_.:-]{16,255}$`.
    pub const STRICT: Self = Self {
        min: 16,
        max: 255,
        form: Form::Token,
    };

    /// A UUID of version 7 (RFC 9562), as in `0192f5a0-7c1e-7abc-8def-0123456789ab`.
    pub const UUID_V7: Self = Self {
        min: 36,
        max: 36,
        form: Form::UuidV7,
    };

    /// The same rule for keys of at most so many bytes. A bound above that of the rule changes nothing.
    #[must_use]
    pub const fn with_max(mut self, max: usize) -> Self {
        if max < self.max {
            self.max = max;
        }
        self
    }

    /// Checks `text` and makes it a key.
    ///
    /// # Errors
    /// [`KeyError`] says which part of the rule was broken, and never repeats the key.
    pub fn parse(&self, text: &str) -> Result<Key, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty { min: self.min });
        }
        let len = text.len();
        if len > self.max {
            return Err(KeyError::TooLong { len, max: self.max });
        }
        if let Some(at) = self.form.refused(text) {
            let allowed = self.form.allowed();
            return Err(KeyError::Character { at, allowed });
        }
        if len < self.min {
            return Err(KeyError::TooShort { len, min: self.min });
        }
        Ok(Key(text.into()))
    }
}

impl Default for KeyRule {
    fn default() -> Self {
        Self::GENERAL
    }
}

impl Key {
    /// Checks `text` against [`KeyRule::GENERAL`].
    ///
    /// # Errors
    /// See [`KeyRule::parse`].
    pub fn new(text: &str) -> Result<Self, KeyError> {
        KeyRule::GENERAL.parse(text)
    }

    /// The whole key. Do not log it (protocol rule R12).
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// At most 8 characters, and at most half of the key: enough for an operator to recognise one
    /// that they hold, useless to anybody else.
    pub fn hint(&self) -> &str {
        let shown = self.0.chars().count().div_euclid(2).min(8);
        let end = self
            .0
            .char_indices()
            .nth(shown)
            .map_or(self.0.len(), |(at, _)| at);
        &self.0[..end]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}…)", self.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_general_rule_takes_1_to_255_bytes_without_controls() {
        assert!(Key::new("k").is_ok());
        assert!(Key::new(&"a".repeat(255)).is_ok());
        assert_eq!(
            Key::new(&"a".repeat(256)),
            Err(KeyError::TooLong { len: 256, max: 255 })
        );
        assert_eq!(Key::new(""), Err(KeyError::Empty { min: 1 }));
        for bad in ["a\0b", "a\rb", "a\nb", "a\u{7f}b", "a\tb", "a\u{85}b"] {
            assert!(matches!(
                Key::new(bad),
                Err(KeyError::Character { at: 1, .. })
            ));
        }
    }

    #[test]
    fn the_strict_pattern_is_as_published() {
        assert!(KeyRule::STRICT.parse("order_2026-11-20:0001").is_ok());
        assert!(KeyRule::STRICT.parse("0123456789abcdef").is_ok());
        assert_eq!(
            KeyRule::STRICT.parse("0123456789abcde"),
            Err(KeyError::TooShort { len: 15, min: 16 })
        );
        assert!(KeyRule::STRICT.parse("0123456789abcde/").is_err());
        assert!(KeyRule::STRICT.parse("0123456789abcdeé").is_err());
    }

    #[test]
    fn a_uuid_is_of_version_7() {
        let rule = KeyRule::UUID_V7;
        assert!(rule.parse("0192f5a0-7c1e-7abc-8def-0123456789ab").is_ok());
        for (bad, error) in [
            (
                "8e03978e-40d5-43dd-bc93-6894a57f9324",
                KeyError::Character {
                    at: 14,
                    allowed: Form::UuidV7.allowed(),
                },
            ),
            (
                "0192f5a0-7c1e-7abc-8def",
                KeyError::TooShort { len: 23, min: 36 },
            ),
            (
                "0192f5a0-7c1e-7abc-8def-0123456789abc",
                KeyError::TooLong { len: 37, max: 36 },
            ),
        ] {
            assert_eq!(rule.parse(bad), Err(error), "{bad}");
        }
        assert!(rule.parse("0192f5a0-7c1e-7abc-7def-0123456789ab").is_err());
        assert!(rule.parse("0192f5a07c1e-7abc-8def--0123456789ab").is_err());
    }

    #[test]
    fn a_bound_is_only_lowered() {
        let longer = "0192f5a0-7c1e-7abc-8def-0123456789abc";
        let refused = KeyRule::UUID_V7.with_max(255).parse(longer);
        assert_eq!(refused, Err(KeyError::TooLong { len: 37, max: 36 }));
        let refused = KeyRule::GENERAL.with_max(3).with_max(4).parse("k-12");
        assert_eq!(refused, Err(KeyError::TooLong { len: 4, max: 3 }));
    }

    #[test]
    fn debug_never_shows_a_whole_key() {
        for text in ["k", "ab", "8e03978e-40d5-43dd-bc93-6894a57f9324"] {
            let shown = format!("{:?}", Key::new(text).unwrap());
            assert!(!shown.contains(text), "{shown}");
        }
    }
}
