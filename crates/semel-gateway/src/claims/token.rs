//! Tokens of claims: what a client has to show, and what it said when it claimed.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use semel::store::{Fence, Nonce, Retention, Token};

use super::asked;
use crate::refused::Refused;

/// The version of the form.
const VERSION: u8 = 1;
const LEN: usize = 1 + 8 + 16 + 3 * 8;

/// A claim in its client's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) token: Token,
    /// What holds where later calls say nothing else. The client could say it then, too, within the same
    /// bounds: nothing is gained by forging it.
    pub(super) lease: Duration,
    pub(super) retention: Retention,
}

/// In the unit of the wire.
pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl Held {
    /// As the client gets it.
    pub(super) fn to_text(self) -> String {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.token.fence.0.to_be_bytes());
        bytes.extend_from_slice(self.token.nonce.as_bytes());
        for duration in [self.lease, self.retention.replay, self.retention.tombstone] {
            bytes.extend_from_slice(&millis(duration).to_be_bytes());
        }
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(super) fn parse(text: &str) -> Result<Self, Refused> {
        let held = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
        let held = held.and_then(|bytes| Self::from_bytes(bytes.try_into().ok()?));
        held.ok_or_else(|| Refused::invalid("token: is not one that a claim was answered with"))
    }

    fn from_bytes(bytes: [u8; LEN]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (fence, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let (durations, _) = rest.as_chunks::<8>();
        let duration = |nth: usize| {
            let bytes = durations.get(nth)?;
            Some(Duration::from_millis(u64::from_be_bytes(*bytes)))
        };
        Some(Self {
            token: Token {
                fence: Fence(u64::from_be_bytes(*fence)),
                nonce: Nonce::from_bytes(*nonce),
            },
            lease: duration(0)?,
            retention: Retention::new(duration(1)?).with_tombstone(duration(2)?),
        })
        .filter(|held| *version == VERSION && asked::is_allowed(held.lease, held.retention))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_and_nothing_else_does() {
        let held = Held {
            token: Token {
                fence: Fence(1_795_277_936_842_817),
                nonce: Nonce::from_bytes([7; 16]),
            },
            lease: Duration::from_secs(30),
            retention: Retention::PAYMENT.with_tombstone(Duration::from_millis(1)),
        };
        let text = held.to_text();
        assert_eq!(Held::parse(&text).ok(), Some(held));
        let another_version = format!("B{}", &text[1..]);
        let endless = Held {
            lease: Duration::MAX,
            ..held
        };
        let wrong = [
            "",
            "a",
            &text[1..],
            &format!("{text}AA"),
            &another_version,
            &endless.to_text(),
        ];
        for wrong in wrong {
            assert!(Held::parse(wrong).is_err(), "{wrong}");
        }
    }
}
