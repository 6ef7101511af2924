//! The number of the last acknowledged group, in a file beside the engine's.
//!
//! An engine that meets damage at the end of its log may cut it off and say nothing: a torn tail
//! looks the same. This file tells them apart. It is written after a group's sync and before its
//! answers, and is not synced itself unless a commit failed before, so it costs one small write: after a crash of the process it
//! is exact, after a loss of power it may be behind (and then proves less), and never ahead.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::layout;

/// Two slots, written in turn: whatever tears one leaves the other.
pub(super) struct Watermark {
    file: File,
    is_synced: bool,
}

const SLOT: usize = 24;
const MAGIC: [u8; 8] = *b"semelack";

impl Watermark {
    /// Opens or creates the file, and reads the number in it: 0 where nothing was acknowledged,
    /// `None` where the file is damaged.
    pub(super) fn open(directory: &Path) -> io::Result<(Self, Option<u64>)> {
        let path = directory.join(layout::WATERMARK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let mut bytes = Vec::new();
        (&mut file).take(4096).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            file.write_all(&[slot(0), slot(0)].concat())?;
            file.sync_all()?;
            return Ok((Self::of(file), Some(0)));
        }
        let acknowledged = bytes.chunks(SLOT).filter_map(number).max();
        Ok((Self::of(file), acknowledged))
    }

    const fn of(file: File) -> Self {
        Self {
            file,
            is_synced: false,
        }
    }

    /// After a failed commit the log may have a hole that shows at the next loss of power only: from
    /// now on this file is not behind then.
    pub(super) const fn sync_from_now_on(&mut self) {
        self.is_synced = true;
    }

    pub(super) fn note(&mut self, group: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start((group % 2) * SLOT as u64))?;
        self.file.write_all(&slot(group))?;
        match self.is_synced {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }
}

fn slot(group: u64) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8..16].copy_from_slice(&group.to_be_bytes());
    slot[16..].copy_from_slice(&(!group).to_be_bytes());
    slot
}

fn number(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
    (bytes == slot(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_slots_counts_and_damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let read = || Watermark::open(directory.path()).unwrap().1;
        let (mut watermark, fresh) = Watermark::open(directory.path()).unwrap();
        assert_eq!(fresh, Some(0));
        for group in 1..=5 {
            watermark.note(group).unwrap();
            assert_eq!(read(), Some(group));
        }
        let path = directory.path().join(layout::WATERMARK);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[SLOT + 9] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read(), Some(4), "group 5 lay in the second slot");
        bytes[3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read(), None);
    }
}
