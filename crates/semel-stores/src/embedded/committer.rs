//! The thread that decides, writes and syncs: one group after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio::sync::watch;

use super::engine::{Batch, Engine, short};
use super::group::{Course, Deciding, Group};
use super::marks::Marks;
use super::place::Place;
use super::shared::{Refusal, Shared};
use super::step::Step;
use super::watermark::Watermark;
use crate::common::disk;
use crate::common::queue::{Queue, Woken};

pub(super) struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<Queue<Box<dyn Step>>>,
    /// Opens the engine again after a commit failed.
    pub(super) open: Box<dyn FnMut() -> Result<Arc<dyn Engine>> + Send>,
    /// What errors call the place where records are kept.
    pub(super) name: Box<str>,
    pub(super) place: Option<Place>,
    pub(super) watermark: Option<Watermark>,
    /// The number of the last acknowledged group.
    pub(super) acknowledged: u64,
    /// New claims are refused while the disk has less room than this.
    pub(super) reserve_bytes: u64,
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
/// What a step writes beside an outcome.
const RECORD_BYTES: usize = 512;

/// How often room and place are looked at where there are no groups: replays are answered without one.
const IDLE: Duration = Duration::from_millis(500);

impl Committer {
    /// Works until the queue is closed and empty. What fails is opened again.
    pub(super) fn run(mut self, mut opened: Opened) {
        while let Err(cause) = self.serve(&mut opened) {
            match self.reopen(opened, cause) {
                Some(again) => opened = again,
                None => return,
            }
            self.looked = None;
        }
        // Keeps the clock's last reading, so that time does not repeat when the wall clock is set back
        // before the next start. Where that fails, no record is lost with it.
        let _ = self.commit(&mut opened, Group::of_nothing(), Vec::new());
        drop(opened);
    }

    /// Decides and commits what comes, one group after the other. What was not begun when it fails is
    /// still in the queue.
    fn serve(&mut self, opened: &mut Opened) -> Result<()> {
        loop {
            let woken = self.queue.wait(Some(Instant::now() + IDLE));
            self.look(opened)?;
            match woken {
                Woken::Work => {}
                Woken::Time => continue,
                Woken::Closed => return Ok(()),
            }
            let (mut many, mut bytes) = (0, 0);
            let mut steps = self.queue.take(|step| {
                let fits = many < MAX_GROUP_STEPS && (many == 0 || bytes < MAX_GROUP_BYTES);
                many += 1;
                bytes += RECORD_BYTES + step.bytes();
                fits
            });
            let group = self.decide(opened, &mut steps);
            self.commit(opened, group, steps)?;
        }
    }

    /// Whether the directory is still there, and how much room is.
    fn look(&mut self, opened: &mut Opened) -> Result<()> {
        if self
            .looked
            .is_some_and(|at| at.elapsed() < disk::LOOK_EVERY)
        {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        if let Some(place) = &self.place {
            place.check()?;
        }
        let full = short(&*opened.engine, self.reserve_bytes);
        opened.course.full = full.map(Into::into);
        Ok(())
    }

    fn decide(&self, opened: &mut Opened, steps: &mut [Box<dyn Step>]) -> Group {
        let state = self.shared.state();
        let mut deciding = Deciding {
            engine: &*opened.engine,
            state: &state,
            course: &mut opened.course,
            group: Group::default(),
        };
        for step in steps {
            deciding.course.now = self.shared.now();
            step.decide(&mut deciding);
        }
        deciding.group
    }

    /// Puts a group on disk, shows it to readers, and answers. After a failure nothing is known
    /// about the group, so that nothing may be built on it: the caller opens the store again.
    fn commit(
        &mut self,
        opened: &mut Opened,
        group: Group,
        steps: Vec<Box<dyn Step>>,
    ) -> Result<()> {
        if group.writes() {
            let batch = group.batch(&mut opened.course);
            self.shared.begin(group.digests());
            if let Err(cause) = self.write(opened, batch) {
                // First of all, so that nobody sees the group by way of the engine.
                self.shared.refuse(self.outage(&cause));
                for step in steps {
                    step.answer(Err(self.doubt(&cause)));
                }
                return Err(cause);
            }
            self.shared.finish(&group.changes());
            opened.course.latest = group.touched;
        }
        for step in steps {
            step.answer(Ok(()));
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
}

impl Drop for Committer {
    // However the thread ends, nobody is left waiting for it.
    fn drop(&mut self) {
        self.queue.close();
        self.shared.refuse(Refusal::closed());
        // Whoever waits for what is still in is told that its answer is lost.
        drop(self.queue.take_all());
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
