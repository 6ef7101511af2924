//! Files of JSON lines, to which several processes may append. Each line is one `write` to a file
//! opened for appending, without a buffer in the process, so that a kill cuts no line but the one
//! that was being written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file of lines, open for appending.
#[derive(Debug)]
pub struct Lines(File);

impl Lines {
    /// Opens the file at `path`, or begins one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(file))
    }

    /// Begins a file that no other process has begun.
    ///
    /// # Errors
    /// Those of the file system, also where there is a file already.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        Ok(Self(options.create_new(true).append(true).open(path)?))
    }

    /// Keeps out everyone else who locks the file, until this is dropped or its process killed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn lock(&self) -> io::Result<()> {
        self.0.lock()
    }

    /// Appends a line.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append(&self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }

    /// Appends a line without which the judge would judge wrongly.
    ///
    /// # Panics
    /// Where it cannot be written: the run would prove nothing.
    pub fn record(&self, line: &impl Serialize) {
        self.append(line)
            .expect("what the judge reads can be written");
    }
}

/// Every line of a file, none where there is no file. A last line that a kill cut is left out.
///
/// # Errors
/// Those of the file system, and `InvalidData` where another line is damaged.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let whole = text.split_inclusive('\n');
    let whole = whole.filter_map(|line| line.strip_suffix('\n'));
    let parse = |(number, line)| {
        serde_json::from_str(line).map_err(|error| {
            let what = format!("{}, line {}: {error}", path.display(), number + 1);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    };
    whole.enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_last_line_may_be_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        assert!(read::<u64>(&path).unwrap().is_empty());
        let lines = Lines::create(&path).unwrap();
        assert!(Lines::create(&path).is_err());
        lines.append(&7).unwrap();
        Lines::open(&path).unwrap().record(&u64::MAX);
        assert_eq!(read::<u64>(&path).unwrap(), [7, u64::MAX]);
        (&lines.0).write_all(b"1").unwrap();
        assert_eq!(read::<u64>(&path).unwrap(), [7, u64::MAX]);
        (&lines.0).write_all(b"x\n").unwrap();
        assert!(read::<u64>(&path).is_err());
    }
}
