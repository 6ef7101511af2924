//! Where data goes, and what it takes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// A directory beside the program, so that it is on a disk and not in memory. Goes with the value.
pub(crate) fn directory() -> Result<TempDir> {
    let program = std::env::current_exe()?;
    let beside = program.parent().context("a directory")?;
    Ok(tempfile::tempdir_in(beside)?)
}

/// What a directory takes of the disk, in bytes.
pub(crate) fn size(directory: &Path) -> Result<f64> {
    let mut bytes = 0.0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() {
            size(&entry.path())?
        } else {
            metadata.blocks() as f64 * 512.0
        };
    }
    Ok(bytes)
}
