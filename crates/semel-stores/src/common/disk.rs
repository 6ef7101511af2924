//! Room on the disk, and whether a path still leads to the file that was opened.
//!
//! New claims are refused while room is short, so that attempts that run can still be completed: nothing is
//! forgotten to make room. A process keeps files that were deleted, and a path may lead to another one by now:
//! what is written then is found by nobody, or another store is written to as well.

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, SystemTime};

use semel::{StoreError, StoreErrorKind};

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

/// Device, number and time of birth: a number may be given to another file, but not with the same time.
pub(crate) type File = (u64, u64, Option<SystemTime>);

/// Which file the path leads to, where the system can tell.
#[cfg(unix)]
pub(crate) fn file(path: &Path) -> std::io::Result<Option<File>> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path)?;
    Ok(Some((found.dev(), found.ino(), found.created().ok())))
}

#[cfg(not(unix))]
pub(crate) fn file(path: &Path) -> std::io::Result<Option<File>> {
    std::fs::metadata(path).map(|_| None)
}

fn is_same((device, number, born): File, opened: File) -> bool {
    // Not every system tells the time of birth each time.
    let is_born_then = born.zip(opened.2).is_none_or(|(born, then)| born == then);
    (device, number) == (opened.0, opened.1) && is_born_then
}

/// Whether the path still leads to the file that `whole` was opened in; `name` is what an error calls the path.
///
/// # Errors
/// [`NotApplied`](StoreErrorKind::NotApplied) where it does not: in another file what ran before is not known.
pub(crate) fn check(
    path: &Path,
    opened: File,
    name: impl Display,
    whole: impl Display,
) -> Result<(), StoreError> {
    let what = match file(path) {
        Ok(Some(found)) if is_same(found, opened) => return Ok(()),
        Ok(_) => "was replaced".to_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            "was deleted or moved away".to_owned()
        }
        Err(e) => format!("cannot be looked at any more ({})", e.kind()),
    };
    Err(StoreError::new(
        StoreErrorKind::NotApplied,
        format!(
            "{name} {what} while the store had {whole} open. Put it back, or restart the program to go on with \
             what is there now: without the records that were in it, what they protected can run again"
        ),
    ))
}
