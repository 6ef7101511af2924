//! The store's directory: made for its owner only, and still the one that was opened.

use std::fs;
use std::path::{Path, PathBuf};

use semel::store::Result;
use semel::{StoreError, StoreErrorKind};

use super::layout;

/// Which directory and files were opened.
///
/// A process keeps files that were deleted, and a path may lead to another directory by now: what is
/// written then is found by nobody, or another store is written to as well.
pub(super) struct Place {
    path: PathBuf,
    opened: Vec<(PathBuf, File)>,
}

/// Device and number of a file, where the system has them.
type File = (u64, u64);

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
            let found = file(&path).map_err(|e| unusable(&path, &e).with_source(e))?;
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
    /// [`NotApplied`](StoreErrorKind::NotApplied) where they do not.
    pub(super) fn check(&self) -> Result<()> {
        let gone = self.opened.iter().find_map(|(path, opened)| {
            let what = match file(path) {
                Ok(Some(found)) if found == *opened => return None,
                Ok(_) => "was replaced".to_owned(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    "was deleted or moved away".to_owned()
                }
                Err(e) => format!("cannot be looked at any more ({})", e.kind()),
            };
            Some((path, what))
        });
        let Some((path, what)) = gone else {
            return Ok(());
        };
        Err(StoreError::new(
            StoreErrorKind::NotApplied,
            format!(
                "{} {what} while the store had {} open. Put it back, or restart the program to go on \
                 with what is there now: without the records that were in it, what they protected \
                 can run again",
                path.display(),
                self.path.display()
            ),
        ))
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

#[cfg(unix)]
fn file(path: &Path) -> std::io::Result<Option<File>> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(path)?;
    Ok(Some((found.dev(), found.ino())))
}

#[cfg(not(unix))]
fn file(path: &Path) -> std::io::Result<Option<File>> {
    fs::metadata(path).map(|_| None)
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
