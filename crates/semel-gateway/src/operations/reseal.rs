//! Answers that are encrypted anew, with the key in use.

use semel::sealed::{Keys, Sealed};
use semel::store::{
    Entry, Fenced, ListQuery, Nonce, Resolution, Retention, Store as _, StoreExt as _, Verdict,
};
use semel::{AnyStore, State, StateKind, StoreError, StoreErrorKind, Timestamp};
use semel_stores::objects::is_own;
use semel_tower::ProblemCode;
use tokio::time::Instant;

use super::entered::{Actor, insist};
use super::of_store;
use crate::command::with_causes;
use crate::refused::Refused;
use crate::store::is_question;

/// What a store's clock was, and when: what it is now at least (R6).
#[derive(Clone, Copy)]
pub(super) struct StoreClock(pub(super) Timestamp, pub(super) Instant);

impl StoreClock {
    fn now(self) -> Timestamp {
        self.0.after(self.1.elapsed())
    }
}

/// Looks at all records of a store as it has them, and tells how many were sealed anew, and how many need
/// another key than the first still. What is under that already is left alone, so that it goes on where it
/// was broken off, and what cannot be read, which the log names. An answer outside the store may be readable
/// later: then not all is done, which is an error at the end.
pub(super) async fn reseal_all(
    sealed: &Sealed<AnyStore>,
    actor: &Actor,
    reason: &str,
    clock: StoreClock,
    tell: &mut impl FnMut(usize, usize),
) -> Result<(), Refused> {
    let (store, first) = (sealed.inner(), sealed.keys().names().next());
    let mut unread = 0;
    for state in StateKind::ALL {
        let mut query = ListQuery::new(state);
        loop {
            let page = store.list(&query).await.map_err(of_store)?;
            let entries = page.entries.into_iter();
            for mut entry in
                entries.filter(|entry| !is_own(&entry.label) && !is_question(&entry.label))
            {
                let id = entry.label.digest;
                // A list does not read what is kept outside the store.
                if is_elsewhere(&entry) {
                    match store.get(&id).await.map_err(of_store)? {
                        Some(read) => entry = read,
                        None => continue,
                    }
                }
                let is_written = match reseal(sealed, &entry, actor, reason, clock).await {
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => {
                        tracing::warn!(%id, "reencrypt: an answer is left as it is: {}", with_causes(&error));
                        unread += usize::from(is_elsewhere(&entry));
                        tell(0, 1);
                        continue;
                    }
                    written => written.map_err(of_store)?,
                };
                // Of what is completed the note may be under another key, which is no loss.
                let is_open = !matches!(entry.record.state, State::Completed(_));
                let others = |name: &_| Some(*name) != first;
                let needs_another = is_open && Keys::used_by(&entry).iter().any(others);
                tell(is_written.into(), needs_another.into());
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    if unread > 0 {
        let why = format!(
            "{unread} answers outside the store could not be read; the log names them. Once they can be, do it \
             again; erase the records whose answer is lost"
        );
        return Err(Refused::of_layer(ProblemCode::StoreUnavailable, why));
    }
    Ok(())
}

fn is_elsewhere(entry: &Entry) -> bool {
    matches!(&entry.record.state, State::Completed(outcome) if outcome.place().is_some())
}

/// Whether it was written. One that is changed by somebody else meanwhile is sealed by them.
async fn reseal(
    sealed: &Sealed<AnyStore>,
    entry: &Entry,
    actor: &Actor,
    reason: &str,
    clock: StoreClock,
) -> Result<bool, StoreError> {
    let (record, nonce) = (&entry.record, Nonce::random()?);
    let Some(outcome) = sealed.resealed(entry, &nonce)? else {
        return Ok(false);
    };
    let now = clock.now();
    let replay = now.until(record.expires_at);
    let tombstone = now.max(record.expires_at).until(record.purge_at);
    let before = record.resolved.as_deref();
    let resolution = Resolution {
        verdict: Verdict::Amended {
            outcome,
            retention: Retention::new(replay).with_tombstone(tombstone),
        },
        by: before.map_or_else(|| actor.name.as_str().into(), |by| by.by.clone()),
        reason: before.map_or_else(|| reason.into(), |by| by.reason.clone()),
        fence: record.token.fence,
        nonce,
    };
    let store = sealed.inner();
    let done = insist(|| store.resolve(&entry.label.digest, &resolution)).await?;
    Ok(done == Fenced::Applied)
}
