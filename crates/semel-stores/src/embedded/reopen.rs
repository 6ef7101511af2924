//! From a commit that failed to the store opened again.
//!
//! A failed commit leaves nothing to build on: whether the group is on disk is not known, and an
//! engine that failed may refuse everything from then on. So the engine is closed, and opened again
//! as at the start: what is on disk is read anew and checked against what was acknowledged. That is
//! tried again, at growing intervals, until it succeeds; callers are told meanwhile that nothing was
//! done, and why.
//!
//! # Why nobody sees what is not on disk
//! Readers hold the engine while they look and until they asked whether what they saw is
//! uncommitted. The old engine is closed only once nobody holds it, and the uncommitted are forgotten
//! only after that. What the failed group left in the log may be known to the system only, not to the
//! disk, and then a loss of power takes it, with all that stands behind it in that log. So the first
//! thing written is a mark, and the watermark is synced with every group from then on: a log that loses
//! the group does not open without being told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::committer::{Committer, Opened, with_causes};
use super::engine::{Batch, Engine};
use super::group::Course;
use super::open::recover;
use super::shared::{OpenRecords, Refusal};
use crate::common::queue::Woken;

/// The first pause before opening is tried, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

impl Committer {
    /// Opens the store again. `None` once it is closed.
    pub(super) fn reopen(&mut self, failed: Opened, mut cause: StoreError) -> Option<Opened> {
        let Opened { engine, course, .. } = failed;
        let mut engine = Some(engine);
        let mut pause = FIRST_PAUSE;
        loop {
            let refusal = self.outage(&cause);
            self.shared.refuse(refusal.clone());
            // Before the pause: threads of an engine that was dropped may still end, and flush a log.
            let is_closed = close_unshared(&mut engine);
            if !self.refuse_for(pause, &refusal) {
                return None;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            if !is_closed {
                continue;
            }
            match self.open_again(&course) {
                Ok((opened, open)) => {
                    self.shared.resume(opened.engine.clone(), open);
                    return Some(opened);
                }
                Err(error) => cause = error,
            }
        }
    }

    /// What callers are told until the store is opened again.
    pub(super) fn outage(&self, cause: &StoreError) -> Refusal {
        let kind = match cause.kind() {
            // A store that lost something can be reached: nothing runs without it (R9).
            kind @ (StoreErrorKind::Capacity | StoreErrorKind::Corrupt) => kind,
            _ => StoreErrorKind::NotApplied,
        };
        let reason = format!(
            "the store in {} keeps nothing for now, and is opened again by itself once it can be: {}",
            self.name,
            with_causes(cause)
        );
        Refusal::new(kind, reason)
    }

    /// Refuses all steps for so long; `false` where the store is closed meanwhile.
    fn refuse_for(&self, pause: Duration, refusal: &Refusal) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.queue.wait(Some(until)) {
                Woken::Work => {
                    for step in self.queue.take_all() {
                        step.answer(Err(refusal.error()));
                    }
                }
                Woken::Time => return true,
                Woken::Closed => return false,
            }
        }
    }

    fn open_again(&mut self, before: &Course) -> Result<(Opened, OpenRecords)> {
        if let Some(place) = &self.place {
            place.check()?;
        }
        let engine = (self.open)()?;
        let (mut opened, open) = recover(engine, self.acknowledged, &self.name)?;
        opened.course.fence = opened.course.fence.max(before.fence);
        opened.course.now = opened.course.now.max(before.now);
        if let Some(watermark) = &mut self.watermark {
            watermark.sync_from_now_on();
        }
        self.write(&mut opened, Batch::default())?;
        Ok((opened, open))
    }
}

/// Closes the engine where nobody else holds it; says whether it is closed.
fn close_unshared(engine: &mut Option<Arc<dyn Engine>>) -> bool {
    if engine
        .as_mut()
        .is_some_and(|engine| Arc::get_mut(engine).is_none())
    {
        return false;
    }
    let engine = engine.take();
    // It failed before: what it does now decides nothing.
    catch_unwind(AssertUnwindSafe(|| drop(engine))).ok();
    true
}
