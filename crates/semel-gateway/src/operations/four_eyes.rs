//! Actions that need two people: one proposes, and another confirms.
//!
//! A proposal is an entry of the audit log that says who asks for what, with the digest of the whole order.
//! Whoever confirms sends the same order again, with the entry's number: nothing that may be secret has to
//! be kept for it. A proposal is about the record as its proposer saw it (the fence), and is confirmed once at
//! most: what confirms it is a record, too.

use std::collections::HashSet;
use std::time::Duration;

use semel::store::Store;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::filter::about_now;
use super::view::time;
use super::{Operations, of_store};
use crate::audit::{Came, Entry, Intent};
use crate::refused::{Code, Refused};

/// The actions that can need two.
pub(crate) const ACTIONS: [&str; 6] = ["resolve", "release", "extend", "erase", "purge", "reveal"];
/// How long a proposal can be confirmed.
const CONFIRMED_WITHIN: Duration = Duration::from_hours(24);
/// How long the log is looked through for proposals, in pages that are read to their end.
const LOOK: usize = 100;
const LOOK_FOR: Duration = Duration::from_millis(250);

/// The digest of an order: who confirms has to ask for the same.
pub(super) fn digest(order: &impl serde::Serialize) -> Result<String, Refused> {
    let bytes = serde_json::to_vec(order).map_err(|error| Refused::invalid(error.to_string()))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}

/// When the oldest proposal was made that holds. RFC 3339 in one zone: as text it is in the order of time.
fn earliest() -> Option<String> {
    time(about_now().before(CONFIRMED_WITHIN))
}

impl<S: Store + Clone> Operations<S> {
    /// What was proposed of this and can be confirmed still, and whether the log was read as far back as
    /// proposals hold.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn proposals(
        &self,
        is_it: impl Fn(&Intent) -> bool,
    ) -> Result<(Vec<Entry>, bool), Refused> {
        let (mut open, mut confirmed) = (Vec::new(), HashSet::new());
        if self.four_eyes.is_empty() {
            return Ok((open, true));
        }
        let (earliest, begun, mut from) = (earliest(), Instant::now(), None);
        loop {
            let page = self.log.page(from, LOOK).await.map_err(of_store)?;
            for entry in page.entries {
                if entry.at.is_some() && entry.at < earliest {
                    return Ok((open, true));
                }
                let Some(intent) = &entry.intent else {
                    continue;
                };
                // What confirms a proposal is newer than it, and was read before.
                confirmed.extend(intent.confirms.clone());
                let is_open = entry.result == Came::Proposed && is_it(intent);
                if is_open && !confirmed.contains(&entry.number) {
                    open.push(entry);
                }
            }
            from = page.next.and_then(|next| next.parse().ok());
            if from.is_none() || begun.elapsed() >= LOOK_FOR {
                return Ok((open, from.is_none()));
            }
        }
    }

    /// Whether it can be done now: it needs one, or this confirms a proposal. Otherwise it was proposed; the
    /// number of its entry.
    pub(super) async fn cleared(
        &self,
        family: &str,
        intent: &mut Intent,
        digest: String,
        proposal: Option<&str>,
    ) -> Result<Option<String>, Refused> {
        if !self.needs_two(family) {
            return match proposal {
                None => Ok(None),
                Some(_) => Err(Refused::invalid(
                    "proposal: this needs no confirmation; ask without it",
                )),
            };
        }
        intent.digest = Some(digest);
        let Some(number) = proposal else {
            let begun = self.enter(intent.clone()).await?;
            let number = begun.number();
            let kept = self.log.end(begun, Came::Proposed, None, None).await;
            kept.map_err(of_store)?;
            self.told(number, intent, Came::Proposed);
            return Ok(Some(number.to_string()));
        };
        let wrong = |why: &str| Refused::new(Code::NotConfirmed, format!("proposal: {why}"));
        let place = number.parse().map_err(|why: String| wrong(&why))?;
        let entry = self.log.entry(place).await.map_err(of_store)?;
        let found = entry.ok_or_else(|| wrong("there is no such entry"))?;
        let Some(proposed) = found.intent.filter(|_| found.result == Came::Proposed) else {
            return Err(wrong("that entry proposes nothing"));
        };
        if found.at < earliest() {
            return Err(wrong(
                "it was made more than 24 hours ago; propose it again",
            ));
        }
        if proposed.by == intent.by {
            return Err(wrong("somebody else has to confirm it"));
        }
        if (&proposed.action, &proposed.id, &proposed.digest)
            != (&intent.action, &intent.id, &intent.digest)
        {
            return Err(wrong(
                "it asks for something else; confirm it with the same order",
            ));
        }
        if !self.log.confirm(place).await.map_err(of_store)? {
            return Err(wrong("it was confirmed before; propose it again"));
        }
        intent.confirms = Some(found.number);
        Ok(None)
    }
}
