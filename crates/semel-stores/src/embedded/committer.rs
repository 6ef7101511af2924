//! The thread that decides, writes and syncs: one group after the other.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::{StoreError, StoreErrorKind, Timestamp};
use tokio::sync::watch;

use super::engine::{Batch, Engine};
use super::group::{Course, Group, View};
use super::keys::{self, Mark};
use super::queue::Queue;
use super::shared::Shared;
use super::step::{Answer, Step};
use super::watermark::Watermark;

pub(super) struct Committer {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<Queue>,
    pub(super) watermark: Option<Watermark>,
    pub(super) course: Course,
    pub(super) marks: Marks,
    pub(super) room: Room,
    /// Dropped last, when the engine is gone: that is how `close` knows.
    pub(super) _finished: watch::Sender<()>,
}

/// A group ends here even if more steps wait, so that one sync stays short.
const MAX_GROUP_BYTES: usize = 4 << 20;
const MAX_GROUP_STEPS: usize = 1024;

impl Committer {
    /// Works until the queue is closed and empty, or a commit fails.
    pub(super) fn run(mut self) {
        let mut steps = Vec::new();
        while self.queue.take(&mut steps) {
            let mut rest = std::mem::take(&mut steps).into_iter();
            while !rest.as_slice().is_empty() {
                if let Err(reason) = self.next_group(&mut rest) {
                    self.stop(&reason, rest.collect());
                    return;
                }
            }
        }
        // Keeps the clock's last reading, so that time does not repeat when the wall clock is set
        // back before the next start. Where that fails, no record is lost with it.
        let _ = self.commit(Group::of_nothing());
        self.stop("the store was closed", Vec::new());
    }

    fn next_group(&mut self, rest: &mut std::vec::IntoIter<Step>) -> Result<(), String> {
        self.room.look(&*self.engine, &mut self.course);
        let mut group = Group::default();
        let mut clear = None;
        {
            let shared = self.shared.clone();
            let state = shared.state();
            let view = View {
                engine: &*self.engine,
                state: &state,
            };
            while group.bytes < MAX_GROUP_BYTES && group.answers.len() < MAX_GROUP_STEPS {
                match rest.next() {
                    Some(Step::Clear { done }) => {
                        clear = Some(done);
                        break;
                    }
                    Some(step) => {
                        self.course.now = shared.now();
                        group.decide(step, &view, &mut self.course);
                    }
                    None => break,
                }
            }
        }
        self.commit(group)?;
        if let Some(done) = clear {
            let cleared = self.clear();
            let failed = cleared.as_ref().err().cloned();
            let _ = done.send(cleared.map_err(|reason| unknown(&reason)));
            return failed.map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// Puts a group on disk, shows it to readers, and answers. After a failure nothing is known
    /// about the group, so that nothing may be built on it: the caller stops the store.
    fn commit(&mut self, group: Group) -> Result<(), String> {
        if group.writes() {
            let batch = group.batch(&mut self.course);
            self.shared.begin(group.digests());
            if let Err(reason) = self.write(batch) {
                // First of all, so that nobody sees the group by way of the engine.
                self.shared.refuse(&reason);
                for answer in group.answers {
                    answer.fail(unknown(&reason));
                }
                return Err(reason);
            }
            self.shared.finish(&group.changes());
            let (latest, answers) = group.into_looked();
            self.course.latest = latest;
            answers.into_iter().for_each(Answer::send);
        } else {
            group.answers.into_iter().for_each(Answer::send);
        }
        Ok(())
    }

    fn write(&mut self, mut batch: Batch) -> Result<(), String> {
        let group = self.marks.add(&mut batch, &*self.engine, &self.course);
        let engine = &self.engine;
        let applied = catch_unwind(AssertUnwindSafe(|| engine.apply(batch)));
        let reason = match applied {
            Ok(Ok(())) => match self.watermark.as_mut().map_or(Ok(()), |w| w.note(group)) {
                Ok(()) => return Ok(()),
                Err(e) => format!("its watermark could not be written: {e}"),
            },
            Ok(Err(e)) => causes(&e),
            Err(_) => "the storage engine panicked".to_owned(),
        };
        Err(format!(
            "a commit failed, and the store refuses everything until it is opened again: {reason}"
        ))
    }

    // In slices, so that one batch stays small. Not atomic: for tests.
    fn clear(&mut self) -> Result<(), String> {
        for (from, to) in [keys::OPEN, keys::SETTLED, keys::EXPIRY] {
            loop {
                let mut batch = Batch::default();
                let scanned = self.engine.scan(from, to, &mut |key, _| {
                    batch.delete(key);
                    if batch.operations.len() < MAX_GROUP_STEPS {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                });
                scanned.map_err(|e| causes(&e))?;
                if batch.is_empty() {
                    break;
                }
                self.write(batch)?;
            }
        }
        self.course.purge_from = keys::expiry_at(Timestamp::default());
        let open: Vec<_> = self.shared.state().open.keys().copied().collect();
        self.course.latest.clear();
        let gone: Vec<_> = open.into_iter().map(|digest| (digest, None)).collect();
        self.shared.finish(&gone);
        Ok(())
    }

    fn stop(self, reason: &str, mut steps: Vec<Step>) {
        self.queue.close();
        self.shared.refuse(reason);
        loop {
            for step in steps.drain(..) {
                step.fail(StoreError::new(StoreErrorKind::Closed, reason));
            }
            if !self.queue.take(&mut steps) {
                return;
            }
        }
    }
}

impl Drop for Committer {
    // However the thread ends, nobody is left waiting for it.
    fn drop(&mut self) {
        self.queue.close();
        self.shared.refuse("the store stopped");
        self.queue.abandon();
    }
}

fn unknown(reason: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, reason)
}

fn causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The marks that are kept, and the number of the next.
///
/// An engine may lose the end of a log that is not its last one, and go on with the next log: the
/// last mark would be there and earlier ones missing. So every mark stays as long as the records
/// of its group may lie in a log only; at opening they must be without gaps.
pub(super) struct Marks {
    pub(super) next: u64,
    pub(super) kept: VecDeque<(u64, u64)>,
    pub(super) kept_bytes: u64,
    pub(super) log_bytes: u64,
}

/// What a mark itself adds to its group.
const MARK_BYTES: u64 = 41;
/// How often the engine is asked how long its log is, and how many marks go at most with a group.
const ASK_EVERY: u64 = 32;
const DROP_AT_MOST: usize = 64;

impl Marks {
    fn add(&mut self, batch: &mut Batch, engine: &dyn Engine, course: &Course) -> u64 {
        let group = self.next;
        self.next += 1;
        if group.is_multiple_of(ASK_EVERY) {
            self.log_bytes = engine.log_bytes();
        }
        for _ in 0..DROP_AT_MOST {
            match self.kept.front() {
                // Twice: sizes on disk are counted otherwise than here.
                Some(&(old, bytes))
                    if self.kept_bytes - bytes > self.log_bytes.saturating_mul(2) =>
                {
                    batch.delete(keys::mark(old));
                    self.kept_bytes -= bytes;
                    self.kept.pop_front();
                }
                _ => break,
            }
        }
        let bytes = batch.bytes + MARK_BYTES;
        self.kept.push_back((group, bytes));
        self.kept_bytes += bytes;
        let mark = Mark {
            group,
            now: course.now,
            fence: course.fence,
            oldest: self.kept.front().map_or(group, |(oldest, _)| *oldest),
            bytes,
        };
        batch.put(keys::mark(group), mark.to_bytes());
        group
    }
}

/// Room on the disk. Claims are refused while it is short, so that the attempts that run can still
/// be completed: a full disk in the middle of a commit would stop the store.
pub(super) struct Room {
    pub(super) reserve: u64,
    pub(super) looked: Option<Instant>,
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Room {
    fn look(&mut self, engine: &dyn Engine, course: &mut Course) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let free = engine.free_bytes();
        course.full = free.filter(|free| *free < self.reserve).map(|free| {
            format!(
                "the disk under the store is nearly full: {free} bytes are left, and new claims                  are refused below {}",
                self.reserve
            )
            .into()
        });
    }
}
