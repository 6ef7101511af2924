//! Wall clocks that are wrong, in processes of their own: libfaketime, preloaded, reads from a file
//! how far. Monotonic clocks stay right.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// How wrong a wall clock is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wrong {
    /// So many seconds ahead; behind, where that is negative.
    pub(crate) by: i64,
    /// So fast, from the start of the process on.
    pub(crate) times: f64,
}

impl Wrong {
    pub(crate) const NOT: Self = Self { by: 0, times: 1.0 };
}

/// The clock of one process and its children.
#[derive(Debug, Clone)]
pub(crate) struct Wall {
    library: PathBuf,
    file: PathBuf,
}

impl Wall {
    /// A right one, that is told by a file in `folder`. Every user may have to read it.
    pub(crate) fn new(folder: &Path, name: &str) -> Result<Self> {
        let wall = Self {
            library: library()?,
            file: folder.join(name),
        };
        wall.set(Wrong::NOT)?;
        Ok(wall)
    }

    /// Whoever is started with these has it.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let file = self.file.display().to_string();
        let variables = [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file),
            // It changes while they run.
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ];
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        variables.map(named).into()
    }

    /// From now on it is so wrong. Nobody reads half of it.
    pub(crate) fn set(&self, wrong: Wrong) -> Result<()> {
        let Wrong { by, times } = wrong;
        let whole = self.file.with_extension("new");
        std::fs::write(&whole, format!("{by:+} x{times}"))?;
        std::fs::rename(whole, &self.file).context("a wall clock's file")
    }
}

/// Debian keeps it in a folder named after the architecture.
fn library() -> Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    let file = |folder: std::fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    match folders.map(file).find(|file| file.exists()) {
        Some(found) => Ok(found),
        None => bail!("libfaketime is not installed: run scripts/setup"),
    }
}
