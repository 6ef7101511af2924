//! Room for new claims, in the file and on the disk.

use std::time::Instant;

use rusqlite::{Connection, Result};

use super::connect::Place;
use crate::common::disk;

pub(super) struct Room {
    looked: Option<Instant>,
    short: Option<Box<str>>,
}

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
            let full = format!(
                "the database file is full: new claims are refused beyond {most} bytes (`max_bytes`)"
            );
            return Ok(Some(full.into()));
        }
        if self
            .looked
            .is_none_or(|at| at.elapsed() >= disk::LOOK_EVERY)
        {
            self.looked = Some(Instant::now());
            self.short = on_disk(place).map(Into::into);
        }
        Ok(self.short.clone())
    }
}

/// Whether the disk is short of room.
pub(super) fn on_disk(place: &Place) -> Option<String> {
    let free = disk::free_bytes(place.path.parent().unwrap_or(&place.path));
    let short = disk::short(free, place.reserve_bytes, "database file")?;
    Some(short + " (`reserve_bytes`)")
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
