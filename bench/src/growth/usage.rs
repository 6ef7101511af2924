//! What a process and its children took of the machine: proc_pid_stat(5), proc_pid_io(5).

use std::fs::read_to_string;

use anyhow::{Context as _, Result};

/// What the kernel counts a second in.
const TICKS: f64 = 100.0;

/// Since a process began, or between two moments.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Of a processor.
    pub(super) seconds: f64,
    /// Bytes handed to the kernel. Not what it counts as written: a page cache in large pieces counts a piece for
    /// each change in it.
    pub(super) written: f64,
}

impl Usage {
    /// Of a process and the children that its first thread made, those that are gone included.
    pub(super) fn of(process: u32) -> Result<Self> {
        let children = read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        let mut all = Self::alone(process)?;
        for child in children.split_whitespace() {
            // One that ended meanwhile is its parent's from now on.
            let child = Self::alone(child.parse()?).unwrap_or_default();
            all.seconds += child.seconds;
            all.written += child.written;
        }
        Ok(all)
    }

    fn alone(process: u32) -> Result<Self> {
        let stat = read_to_string(format!("/proc/{process}/stat"))?;
        let (_, behind_name) = stat.rsplit_once(") ").context("a name")?;
        // utime, stime, and the same of children that ended.
        let mut ticks = 0.0;
        for field in behind_name.split_whitespace().skip(11).take(4) {
            ticks += field.parse::<f64>()?;
        }
        let io = read_to_string(format!("/proc/{process}/io"))?;
        let written = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        Ok(Self {
            seconds: ticks / TICKS,
            written: written.context("wchar")?.parse()?,
        })
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            written: self.written - before.written,
        }
    }
}
