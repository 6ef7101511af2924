//! Room for new claims. They are refused while it is short, so that attempts that run can still be
//! completed: nothing is forgotten to make room.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Result};

use super::connect::Place;

pub(super) struct Room {
    looked: Option<Instant>,
    short: Option<Box<str>>,
}

/// How often the disk is asked.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Room {
    pub(super) const fn new() -> Self {
        Self {
            looked: None,
            short: None,
        }
    }

    /// Why new claims are refused now, if they are.
    pub(super) fn short(&mut self, on: &Connection, place: &Place) -> Result<Option<Box<str>>> {
        if let Some(most) = place.max_bytes
            && used_bytes(on)? >= most
        {
            return Ok(Some(
                format!(
                    "the database file is full: new claims are refused beyond {most} bytes \
                     (`max_bytes`)"
                )
                .into(),
            ));
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            self.short = on_disk(place);
        }
        Ok(self.short.clone())
    }
}

/// Whether the disk is short of room.
pub(super) fn on_disk(place: &Place) -> Option<Box<str>> {
    let free = free_bytes(place.path.parent().unwrap_or(&place.path))
        .filter(|free| *free < place.reserve_bytes)?;
    let text = format!(
        "the disk under the database file is nearly full: {} MiB are left, and new claims are \
         refused below {} MiB (`reserve_bytes`)",
        free >> 20,
        place.reserve_bytes >> 20
    );
    Some(text.into())
}

/// What the file's pages take, without those that are free for use.
fn used_bytes(on: &Connection) -> Result<u64> {
    let ask = |pragma: &str| -> Result<u64> {
        let number: u32 = on.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))?;
        Ok(number.into())
    };
    let pages = ask("page_count")?.saturating_sub(ask("freelist_count")?);
    Ok(pages * ask("page_size")?)
}

#[cfg(unix)]
fn free_bytes(directory: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}
