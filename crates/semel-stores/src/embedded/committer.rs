//! The thread that decides, writes and syncs: one group after the other.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::Result;
use semel::{StoreError, StoreErrorKind, Timestamp};
use tokio::sync::watch;

use super::engine::{Batch, Engine};
use super::group::{Course, Group, View};
use super::keys;
use super::marks::Marks;
use super::place::Place;
use super::queue::{Queue, Taken};
use super::room::Room;
use super::shared::{Refusal, Shared};
use super::step::{Answer, Step};
use super::watermark::Watermark;

pub(super) struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<Queue>,
    /// Opens the engine again after a commit failed.
    pub(super) open: Box<dyn FnMut() -> Result<Arc<dyn Engine>> + Send>,
    /// What errors call the place where records are kept.
    pub(super) name: Box<str>,
    pub(super) place: Option<Place>,
    pub(super) watermark: Option<Watermark>,
    /// The number of the last acknowledged group.
    pub(super) acknowledged: u64,
    pub(super) room: Room,
    /// When room and place were last looked at.
    pub(super) looked: Option<Instant>,
    /// Dropped last, when the engine is gone: that is how `close` knows.
    pub(super) _finished: watch::Sender<()>,
}

/// An engine, and what was read from it.
pub(super) struct Opened {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) course: Course,
    pub(super) marks: Marks,
}

/// A group ends here even if more steps wait, so that one sync stays short.
const MAX_GROUP_BYTES: usize = 4 << 20;
const MAX_GROUP_STEPS: usize = 1024;

/// How often room and place are looked at between groups, and how often where there are none:
/// replays are answered without a group.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_millis(500);

impl Committer {
    /// Works until the queue is closed and empty. What fails is opened again.
    pub(super) fn run(mut self, mut opened: Opened) {
        loop {
            let Err(cause) = self.serve(&mut opened) else {
                // Keeps the clock's last reading, so that time does not repeat when the wall clock
                // is set back before the next start. Where that fails, no record is lost with it.
                let _ = self.commit(&mut opened, Group::of_nothing());
                drop(opened);
                break;
            };
            match self.reopen(opened, cause) {
                Some(again) => opened = again,
                None => break,
            }
            self.looked = None;
        }
        self.stop();
    }

    fn serve(&mut self, opened: &mut Opened) -> Result<()> {
        let mut steps = Vec::new();
        loop {
            let taken = self.queue.take(&mut steps, Instant::now() + IDLE);
            if let Err(cause) = self.look(opened) {
                return Err(self.fail(cause, steps));
            }
            match taken {
                Taken::Steps => {}
                Taken::Nothing => continue,
                Taken::Closed => return Ok(()),
            }
            let mut rest = std::mem::take(&mut steps).into_iter();
            while !rest.as_slice().is_empty() {
                if let Err(cause) = self.next_group(opened, &mut rest) {
                    return Err(self.fail(cause, rest.collect()));
                }
            }
        }
    }

    /// Refuses what was not begun.
    fn fail(&self, cause: StoreError, steps: Vec<Step>) -> StoreError {
        let refusal = self.outage(&cause);
        self.shared.refuse(refusal.clone());
        for step in steps {
            step.fail(refusal.error());
        }
        cause
    }

    /// Whether the directory is still there, and how much room is.
    fn look(&mut self, opened: &mut Opened) -> Result<()> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        if let Some(place) = &self.place {
            place.check()?;
        }
        self.room.look(&*opened.engine, &mut opened.course);
        Ok(())
    }

    fn next_group(
        &mut self,
        opened: &mut Opened,
        rest: &mut std::vec::IntoIter<Step>,
    ) -> Result<()> {
        self.look(opened)?;
        let mut group = Group::default();
        let mut clear = None;
        {
            let shared = self.shared.clone();
            let state = shared.state();
            let view = View {
                engine: &*opened.engine,
                state: &state,
            };
            let course = &mut opened.course;
            while group.bytes < MAX_GROUP_BYTES && group.answers.len() < MAX_GROUP_STEPS {
                match rest.next() {
                    Some(Step::Clear { done }) => {
                        clear = Some(done);
                        break;
                    }
                    Some(step) => {
                        course.now = shared.now();
                        group.decide(step, &view, course);
                    }
                    None => break,
                }
            }
        }
        self.commit(opened, group)?;
        if let Some(done) = clear {
            let cleared = self.clear(opened);
            let told = cleared.as_ref().map_err(|cause| self.doubt(cause)).copied();
            let _ = done.send(told);
            return cleared;
        }
        Ok(())
    }

    /// Puts a group on disk, shows it to readers, and answers. After a failure nothing is known
    /// about the group, so that nothing may be built on it: the caller opens the store again.
    fn commit(&mut self, opened: &mut Opened, group: Group) -> Result<()> {
        if group.writes() {
            let batch = group.batch(&mut opened.course);
            self.shared.begin(group.digests());
            if let Err(cause) = self.write(opened, batch) {
                // First of all, so that nobody sees the group by way of the engine.
                self.shared.refuse(self.outage(&cause));
                for answer in group.answers {
                    answer.fail(self.doubt(&cause));
                }
                return Err(cause);
            }
            self.shared.finish(&group.changes());
            let (latest, answers) = group.into_looked();
            opened.course.latest = latest;
            answers.into_iter().for_each(Answer::send);
        } else {
            group.answers.into_iter().for_each(Answer::send);
        }
        Ok(())
    }

    /// Puts a batch on disk, with its mark.
    pub(super) fn write(&mut self, opened: &mut Opened, mut batch: Batch) -> Result<()> {
        let Opened {
            engine,
            course,
            marks,
        } = opened;
        let group = marks.add(&mut batch, &**engine, course);
        catch_unwind(AssertUnwindSafe(|| engine.apply(batch))).unwrap_or_else(|_| {
            let what = "the storage engine gave up";
            Err(StoreError::new(StoreErrorKind::Unknown, what))
        })?;
        if let Some(watermark) = &mut self.watermark {
            watermark.note(group).map_err(|e| {
                let what = "how far it has come could not be written down";
                StoreError::new(StoreErrorKind::Unknown, what).with_source(e)
            })?;
        }
        self.acknowledged = group;
        Ok(())
    }

    // In slices, so that one batch stays small. Not atomic: for tests.
    fn clear(&mut self, opened: &mut Opened) -> Result<()> {
        for (from, to) in [keys::OPEN, keys::SETTLED, keys::EXPIRY] {
            loop {
                let mut batch = Batch::default();
                opened.engine.scan(from, to, &mut |key, _| {
                    batch.delete(key);
                    if batch.operations.len() < MAX_GROUP_STEPS {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })?;
                if batch.is_empty() {
                    break;
                }
                self.write(opened, batch)?;
            }
        }
        opened.course.purge_from = keys::expiry_at(Timestamp::default());
        let open: Vec<_> = self.shared.state().open.keys().copied().collect();
        opened.course.latest.clear();
        let gone: Vec<_> = open.into_iter().map(|digest| (digest, None)).collect();
        self.shared.finish(&gone);
        Ok(())
    }

    /// What those are told whose steps were in the commit that failed.
    fn doubt(&self, cause: &StoreError) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unknown,
            format!(
                "a commit to {} failed, and its steps may have happened: {}",
                self.name,
                with_causes(cause)
            ),
        )
    }

    fn stop(self) {
        self.queue.close();
        let refusal = Refusal::closed();
        self.shared.refuse(refusal.clone());
        let mut steps = Vec::new();
        while self.queue.take(&mut steps, Instant::now()) == Taken::Steps {
            for step in steps.drain(..) {
                step.fail(refusal.error());
            }
        }
    }
}

impl Drop for Committer {
    // However the thread ends, nobody is left waiting for it.
    fn drop(&mut self) {
        self.queue.close();
        self.shared.refuse(Refusal::closed());
        self.queue.abandon();
    }
}

/// An error with its causes, each said once.
pub(super) fn with_causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
