//! The marks that are kept, and the number of the next.
//!
//! An engine may lose the end of a log that is not its last one, and go on with the next log: the
//! last mark would be there and earlier ones missing. So every mark stays as long as the records
//! of its group may lie in a log only; at opening they must be without gaps.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use semel::store::Result;

use super::engine::{Batch, Engine};
use super::group::Course;
use super::keys::{self, Mark};
use super::layout;
use super::open::corrupt;

pub(super) struct Marks {
    next: u64,
    kept: VecDeque<(u64, u64)>,
    kept_bytes: u64,
    log_bytes: u64,
}

/// What a mark itself adds to its group.
const MARK_BYTES: u64 = 41;
/// How often the engine is asked how long its log is, and how many marks go at most with a group.
const ASK_EVERY: u64 = 32;
const DROP_AT_MOST: usize = 64;

impl Marks {
    /// Reads the marks, and the last of them. It must not be behind `acknowledged` (the log's end is
    /// missing), and none in between may be missing (the end of an earlier log is).
    pub(super) fn read(
        engine: &dyn Engine,
        acknowledged: u64,
        place: &str,
    ) -> Result<(Self, Mark)> {
        let mut kept: VecDeque<Mark> = VecDeque::new();
        let mut unreadable = false;
        let mut gap = None;
        engine.scan(keys::MARKS.0, keys::MARKS.1, &mut |key, value| {
            let Some(mark) = Mark::from_bytes(key, &value) else {
                unreadable = true;
                return ControlFlow::Break(());
            };
            if let Some(before) = kept.back()
                && before.group + 1 != mark.group
            {
                gap = gap.or(Some((before.group, mark.group)));
            }
            kept.push_back(mark);
            ControlFlow::Continue(())
        })?;
        if unreadable {
            return Err(corrupt(format!(
                "{place}: a mark cannot be read; restore it from a backup"
            )));
        }
        let last = kept.back().copied().unwrap_or_default();
        if last.group < acknowledged {
            return Err(corrupt(format!(
                "{place} lost acknowledged records: group {acknowledged} was acknowledged, and the \
                 last one found is {}. Restore the directory from a backup, or delete the file `{}` \
                 in it to go on without them",
                last.group,
                layout::WATERMARK
            )));
        }
        let first = kept.front().map_or(0, |m| m.group);
        if let Some((before, after)) = gap.or((first > last.oldest).then_some((last.oldest, first)))
        {
            return Err(corrupt(format!(
                "{place} lost acknowledged records: after group {before} comes group {after}. \
                 Restore the directory from a backup"
            )));
        }
        let marks = Self {
            next: last.group + 1,
            kept_bytes: kept.iter().map(|m| m.bytes).sum(),
            kept: kept.iter().map(|m| (m.group, m.bytes)).collect(),
            log_bytes: engine.log_bytes(),
        };
        Ok((marks, last))
    }

    /// Adds the next mark to `batch`, and says its number.
    pub(super) fn add(&mut self, batch: &mut Batch, engine: &dyn Engine, course: &Course) -> u64 {
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
