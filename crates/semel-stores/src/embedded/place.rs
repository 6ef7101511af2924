//! The store's directory: made for its owner only, and still the one that was opened.

use std::fs;
use std::path::{Path, PathBuf};

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::layout;
use crate::common::disk;

/// Which directory and files were opened.
pub(super) struct Place {
    path: PathBuf,
    opened: Vec<(PathBuf, disk::File)>,
}

impl Place {
    /// Makes the directory where there is none, for its owner only.
    pub(super) fn create(path: &Path) -> Result<()> {
        let created = !path.exists();
        let make = |path: &Path| make(path).map_err(|e| unusable(path, &e).with_source(e));
        make(path)?;
        make(&path.join(layout::RECORDS))?;
        if created && let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent)
        {
            // A directory survives a loss of power once its parent is on disk. Where the parent
            // cannot be opened, the system decides when.
            if let Ok(parent) = fs::File::open(parent) {
                let _ = parent.sync_all();
            }
        }
        Ok(())
    }

    /// Whether the directory could be made, or one in it. What is made for that is removed.
    pub(super) fn try_out(path: &Path) -> Result<()> {
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
        let made = there.join(format!(".semel-check-{}", std::process::id()));
        make(&made)
            .and_then(|()| fs::remove_dir(&made))
            .map_err(|e| unusable(path, &e).with_source(e))
    }

    /// Takes down what is there, once it is opened.
    pub(super) fn of_opened(path: &Path) -> Result<Self> {
        let records = path.join(layout::RECORDS);
        let lock = records.join(layout::LOCK);
        let files = [path.to_owned(), path.join(layout::WATERMARK), records, lock];
        let mut opened = Vec::new();
        for path in files {
            let found = disk::file(&path).map_err(|e| unusable(&path, &e).with_source(e))?;
            opened.extend(found.map(|file| (path, file)));
        }
        let path = path.to_owned();
        Ok(Self { path, opened })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the paths still lead to what was opened.
    ///
    /// # Errors
    /// Those of [`disk::check`].
    pub(super) fn check(&self) -> Result<()> {
        self.opened.iter().try_for_each(|(path, opened)| {
            disk::check(path, *opened, path.display(), self.path.display())
        })
    }
}

/// Whether others than the owner and its group can look into the store's directory.
#[cfg(unix)]
pub(super) fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let opens = |path: &Path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o005 != 0);
    opens(path) && opens(&path.join(layout::RECORDS))
}

#[cfg(not(unix))]
pub(super) fn is_open_to_others(_: &Path) -> bool {
    false
}

#[cfg(unix)]
fn make(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

#[cfg(not(unix))]
fn make(path: &Path) -> std::io::Result<()> {
    fs::create_dir_all(path)
}

pub(super) fn unusable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        format!(
            "{} cannot be used as the store's directory ({})",
            path.display(),
            error.kind()
        ),
    )
}
