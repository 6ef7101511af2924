//! Steps, and how to make them from bytes.

use super::IDENTITIES;
use crate::record::StateKind;
use crate::store::OnLost;

/// A token that a step is tried with: that of an earlier claim, as it was or with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneToken {
    /// How many claims back; 0 is the latest.
    pub back: usize,
    /// Another nonce takes the place of the right one.
    pub other_nonce: bool,
    /// Another fence takes the place of the right one.
    pub other_fence: bool,
}

impl OneToken {
    pub(super) const fn genuine(back: usize) -> Self {
        Self {
            back,
            other_nonce: false,
            other_fence: false,
        }
    }

    pub(super) const fn is_genuine(self) -> bool {
        !self.other_nonce && !self.other_fence
    }
}

/// One step of a run. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the arguments of the store's methods"
)]
pub enum Step {
    /// Claims, under a new nonce or that of an earlier claim.
    Claim {
        identity: usize,
        again: Option<usize>,
        fingerprint: u8,
        lease: u64,
        on_lost: OnLost,
    },
    /// Renews.
    Renew {
        identity: usize,
        token: OneToken,
        lease: u64,
    },
    /// Completes.
    Complete {
        identity: usize,
        token: OneToken,
        outcome: u8,
        replay: u64,
        tombstone: u64,
    },
    /// Keeps a finished step, or the mark (2), behind those there are, or so many before the end.
    KeepStep {
        identity: usize,
        token: OneToken,
        behind: usize,
        name: u8,
    },
    /// Abandons.
    Abandon { identity: usize, token: OneToken },
    /// Marks as unknown.
    MarkUnknown { identity: usize, token: OneToken },
    /// Resolves the claim that is so many back: with this outcome, or as not happened.
    Resolve {
        identity: usize,
        back: usize,
        happened: Option<u8>,
        replay: u64,
        tombstone: u64,
    },
    /// Purges.
    Purge { limit: usize },
    /// Lists.
    List { state: StateKind, lapsed: bool },
    /// Waits for no time at all.
    Wait { identity: usize, back: usize },
    /// Lets time pass.
    Advance { by: u64 },
}

// Few values, so that ends of leases and of retention are met to the microsecond.
const LEASES: [u64; 4] = [1_000_000, 5_000_000, 2_000_000, 0];
const RETENTIONS: [u64; 4] = [3_000_000, 90_000_000, 1_000_000, 0];
const TOMBSTONES: [u64; 4] = [0, 0, 2_000_000, 120_000_000];
const ADVANCES: [u64; 8] = [
    1_000_000, 1, 999_999, 2_000_000, 3_000_000, 5_000_000, 60_000_000, 59_999_999,
];

impl Step {
    /// The step that these bytes stand for. All bytes stand for one, so that any source of bytes
    /// will do: a property test, a fuzzer.
    pub fn of(bytes: [u8; 6]) -> Self {
        let [kind, a, b, c, d, e] = bytes;
        let identity = usize::from(a) % IDENTITIES;
        // Mostly the latest token, and mostly as it is.
        let token = OneToken {
            back: usize::from(b % 8).saturating_sub(5),
            other_nonce: b / 8 % 16 == 15,
            other_fence: b / 8 % 16 == 14,
        };
        let (replay, tombstone) = (pick(&RETENTIONS, d), pick(&TOMBSTONES, e));
        match kind % 20 {
            0..=5 => Self::Claim {
                identity,
                again: (b % 4 == 3).then_some(usize::from(b / 4 % 3)),
                fingerprint: u8::from(c % 8 == 7),
                lease: pick(&LEASES, d),
                on_lost: pick(&[OnLost::Hold, OnLost::Retry, OnLost::Reconcile], e),
            },
            6 => Self::Renew {
                identity,
                token,
                lease: pick(&LEASES, d),
            },
            7..=9 => Self::Complete {
                identity,
                token,
                outcome: c % 3,
                replay,
                tombstone,
            },
            10 | 11 => Self::Abandon { identity, token },
            12 => Self::MarkUnknown { identity, token },
            13 => Self::Resolve {
                identity,
                back: token.back,
                happened: (c % 4 != 3).then_some(c % 4),
                // The driver has to see the token that the resolution took.
                replay: replay.max(1),
                tombstone,
            },
            14 => Self::Purge {
                limit: usize::from(b % 5) + 1,
            },
            15 => Self::List {
                state: pick(&StateKind::ALL, b),
                lapsed: c % 4 == 3,
            },
            16 => Self::Wait {
                identity,
                back: token.back,
            },
            17 => Self::KeepStep {
                identity,
                token,
                behind: usize::from(c % 4 == 3),
                name: d % 3,
            },
            _ => Self::Advance {
                by: pick(&ADVANCES, b),
            },
        }
    }
}

fn pick<T: Copy>(from: &[T], byte: u8) -> T {
    from[usize::from(byte) % from.len()]
}
