//! P10 and double effects: what the ledger says, against what the store said.
//!
//! # What a double effect is
//! Two effects that the service downstream took, of two attempts on one identity, where nothing
//! that the store did says that the earlier attempt may be followed by another. What may:
//! the attempt was abandoned, or resolved as "did not happen" (the resolver answers for that); its
//! outcome was completed and its retention and tombstone are over; and, only where the policy is
//! to retry, its lease lapsed or it was marked unknown. Under `OnLost::Hold` a second effect
//! before a resolution is always one too many. Under `OnLost::Retry` a takeover after a genuine
//! lapse is legal; effects are then passed with their fence, and what the older attempt does later
//! is refused, and so is not among these.
//!
//! Several effects of one attempt are that attempt's own doing and not counted.

use std::collections::{BTreeMap, HashMap};

use super::attempts::KeyHistory;
use super::ownership::succession;
use super::{Findings, Options};
use crate::history::{Held, KeyIndex};
use crate::ledger::Effect;

pub(super) fn check(
    keys: &BTreeMap<KeyIndex, KeyHistory<'_>>,
    accepted: &[Effect],
    options: &Options,
    findings: &mut Findings,
) {
    let mut latest: HashMap<KeyIndex, usize> = HashMap::new();
    for effect in accepted {
        let found = keys.get(&effect.key).and_then(|history| {
            let (at, attempt) = match effect.nonce {
                Some(nonce) => history.attempt(Held {
                    fence: effect.fence,
                    nonce,
                })?,
                None => history.attempt_of(effect.fence)?,
            };
            (attempt.known <= effect.at).then_some((history, at))
        });
        let mut wrong = |property, what| findings.report(property, effect.key, effect.at, what);
        let fence = effect.fence;
        let Some((history, at)) = found else {
            let what = format!("an effect under fence {fence} that no acquired claim allows");
            wrong("P10", what);
            continue;
        };
        let before = match latest.get(&effect.key) {
            Some(&before) if before == at => continue,
            before => before.copied(),
        };
        latest.insert(effect.key, at.max(before.unwrap_or(0)));
        let Some(before) = before else {
            continue;
        };
        let (older, newer) = (before.min(at), before.max(at));
        let (older, newer) = (&history.attempts[older], &history.attempts[newer]);
        match succession(older, newer, options) {
            Ok(_) => findings.explained_effects += 1,
            Err(why) => {
                let (one, other) = (older.held.fence, newer.held.fence);
                let of = format!("a double effect, of attempts {one} and {other}");
                wrong("P1", format!("{of}: the first {why}"));
                findings.double_effects += 1;
            }
        }
    }
}
