//! Sending what is queued, as groups.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use semel::StoreError;
use tokio::time::{Instant, timeout_at};

use super::{Failed, Fate, Job, Queued as _, Shared, Slot, Wire, late, silent};

/// Sends what is queued, group by group, until nothing is.
pub(super) async fn drain<W: Wire>(mut slot: Slot<W>) {
    slot.arrived();
    loop {
        let group = take(&slot.shared);
        if group.is_empty() {
            // Dropping the slot looks once more under the lock.
            return;
        }
        let deadline = Instant::now() + slot.shared.timeout;
        let linked = timeout_at(deadline, slot.link()).await;
        let link = match linked.map(|linked| linked.map(drop)) {
            Ok(Ok(())) => slot.link.as_mut(),
            Ok(Err(error)) => {
                for job in group {
                    let error = StoreError::new(error.kind(), error.to_string());
                    let _gone = job.answer.send(Err(Failed::Unsent(error)));
                }
                continue;
            }
            Err(_) => None,
        };
        let Some(link) = link else {
            for job in group {
                let _gone = job.answer.send(Err(Failed::Unsent(silent::<W>())));
            }
            continue;
        };
        let sound = timeout_at(deadline, send(&slot.shared, link, group)).await;
        if !matches!(sound, Ok(true)) {
            slot.discard();
        }
    }
}

/// The next group, no digest twice: new claims, then the others, both in the order of digests. What a
/// crash may forget is not with what it may not.
fn take<W: Wire>(shared: &Shared<W>) -> Vec<Job<W>> {
    let mut state = shared.state.lock();
    let mut group: Vec<Job<W>> = Vec::new();
    let mut digests = HashSet::new();
    let mut later = VecDeque::new();
    let mut is_forgettable = None;
    let (room, mut taken) = (shared.wire.room(), 0_usize);
    while group.len() < shared.limits.group {
        let Some(job) = state.queue.pop_front() else {
            break;
        };
        let twice = job
            .step
            .digest()
            .is_some_and(|digest| digests.contains(&digest));
        let alone = job.alone || job.step.alone();
        let other = is_forgettable.is_some_and(|is| is != job.step.is_forgettable());
        let size = taken.saturating_add(job.step.size());
        if twice || other || ((alone || size > room) && !group.is_empty()) {
            later.push_back(job);
            continue;
        }
        if !job.fate.settle(Fate::SENT) {
            continue;
        }
        taken = size;
        digests.extend(job.step.digest());
        is_forgettable = Some(job.step.is_forgettable());
        group.push(job);
        if alone {
            break;
        }
    }
    // In front of those not looked at: the oldest first.
    later.append(&mut state.queue);
    state.queue = later;
    drop(state);
    group.sort_by_key(|job| (!job.step.inserts(), job.step.digest()));
    group
}

/// Sends a group and answers its callers. Whether the connection is still good.
async fn send<W: Wire>(shared: &Shared<W>, link: &mut W::Link, group: Vec<Job<W>>) -> bool {
    let sent = match &*group {
        [job] => shared
            .wire
            .run(link, &job.step)
            .await
            .map(|answer| vec![answer]),
        group => {
            let steps: Vec<_> = group.iter().map(|job| Arc::clone(&job.step)).collect();
            shared.wire.run_together(link, &steps, shared.timeout).await
        }
    };
    let failed = match sent {
        Ok(answers) => {
            for (job, answer) in group.into_iter().zip(answers) {
                let _gone = job.answer.send(Ok(answer));
            }
            return true;
        }
        Err(failed) => failed,
    };
    let group = match <[Job<W>; 1]>::try_from(group) {
        Ok([job]) => {
            let sound = !matches!(failed, Failed::Lost(_));
            let _gone = job.answer.send(Err(failed));
            return sound;
        }
        Err(group) => group,
    };
    for job in group {
        let copy = match &failed {
            Failed::Lost(error) | Failed::Late(error) | Failed::Unreadable(error) => {
                Failed::Lost(late(error.to_string()))
            }
            // The server took none of the group.
            Failed::Unsent(error) | Failed::RolledBack(error) | Failed::Refused(error) => {
                Failed::RolledBack(StoreError::new(error.kind(), error.to_string()))
            }
        };
        let _gone = job.answer.send(Err(copy));
    }
    matches!(failed, Failed::RolledBack(_) | Failed::Refused(_))
}
