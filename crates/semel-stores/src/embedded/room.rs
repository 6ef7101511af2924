//! Room on the disk. Claims are refused while it is short, so that the attempts that run can still
//! be completed: a full disk in the middle of a commit would close the store for a while.

use super::engine::Engine;
use super::group::Course;

#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) reserve: u64,
}

impl Room {
    pub(super) fn look(&self, engine: &dyn Engine, course: &mut Course) {
        course.full = self.short(engine).map(Into::into);
    }

    /// Why new claims are refused now, if they are.
    pub(super) fn short(&self, engine: &dyn Engine) -> Option<String> {
        let free = engine.free_bytes().filter(|free| *free < self.reserve)?;
        Some(format!(
            "the disk under the store is nearly full: {} are left, and new claims are refused below \
             {}",
            in_mib(free),
            in_mib(self.reserve)
        ))
    }
}

fn in_mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
