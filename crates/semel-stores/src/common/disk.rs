//! Room on the disk. New claims are refused while it is short, so that attempts that run can still be completed:
//! nothing is forgotten to make room.

use std::path::Path;
use std::time::Duration;

/// How often the disk is asked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How much room is left, where that can be known.
#[cfg(unix)]
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Why new claims are refused where so much is left under `what`, if they are.
pub(crate) fn short(free: Option<u64>, reserve: u64, what: &str) -> Option<String> {
    let free = free.filter(|free| *free < reserve)?;
    Some(format!(
        "the disk under the {what} is nearly full: {} MiB are left, and new claims are refused below {} MiB",
        free >> 20,
        reserve >> 20
    ))
}
