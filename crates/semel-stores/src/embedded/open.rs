//! Opening: what is on disk must be what was acknowledged, or the store does not open.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use semel::store::Result;
use semel::{Clock, StoreError, StoreErrorKind, SystemClock, Timestamp};
use tokio::sync::watch;

use super::committer::{Committer, Marks, Room};
use super::engine::{Batch, Engine};
use super::fjall::Fjall;
use super::group::Course;
use super::keys::{self, Mark};
use super::queue::Queue;
use super::shared::{Shared, read_open};
use super::watermark::Watermark;
use super::{FileStore, layout};

/// How a [`FileStore`] is opened.
///
/// ```no_run
/// # fn main() -> Result<(), semel::StoreError> {
/// let store = semel_stores::FileOptions::new().cache_bytes(64 << 20).open("./semel-data")?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct FileOptions {
    cache_bytes: u64,
    reserve_bytes: u64,
    clock: Option<Box<dyn Clock>>,
    for_tests: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOptions {
    /// A cache of 32 MiB, a reserve of 256 MiB, the machine's clock.
    pub const fn new() -> Self {
        Self {
            cache_bytes: 32 << 20,
            reserve_bytes: 256 << 20,
            clock: None,
            for_tests: false,
        }
    }

    /// How much memory may hold blocks read from disk.
    pub const fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// New claims are refused while the disk has less room than this, so that attempts that run
    /// can still be completed.
    pub const fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// Another clock, for tests. It is never taken to show less than what is on disk.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    /// Allows [`Clear::clear`](semel::store::Clear::clear) without force.
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Opens the store in this directory, and creates it where there is none. Reads from disk, and
    /// so blocks for a while.
    ///
    /// # Errors
    /// [`Config`](StoreErrorKind::Config) where the path is in use, not a directory or not
    /// writable; [`Corrupt`](StoreErrorKind::Corrupt) where something that was acknowledged is not
    /// there any more, or cannot be read.
    pub fn open(self, path: impl AsRef<Path>) -> Result<FileStore> {
        let path = path.as_ref();
        create(path)?;
        let records = path.join(layout::RECORDS);
        let engine = Arc::new(Fjall::open(path, &records, self.cache_bytes)?);
        let (watermark, acknowledged) =
            Watermark::open(path).map_err(|e| unusable(path, &e).with_source(e))?;
        let acknowledged = acknowledged.ok_or_else(|| {
            corrupt(format!(
                "{} is damaged; without it a loss of acknowledged records could go unseen. \
                 Restore the directory from a backup, or delete that file to go without the check",
                path.join(layout::WATERMARK).display()
            ))
        })?;
        self.start(
            engine,
            Some(watermark),
            acknowledged,
            &path.display().to_string(),
        )
    }

    /// Opens the store on another engine, which nothing else uses.
    ///
    /// # Errors
    /// [`Corrupt`](StoreErrorKind::Corrupt) where the engine holds something else than a store's
    /// records without gaps.
    pub fn open_engine(self, engine: Arc<dyn Engine>) -> Result<FileStore> {
        self.start(engine, None, 0, "the storage engine")
    }

    fn start(
        self,
        engine: Arc<dyn Engine>,
        watermark: Option<Watermark>,
        acknowledged: u64,
        place: &str,
    ) -> Result<FileStore> {
        check_format(&*engine, acknowledged, place)?;
        let (marks, last) = check_marks(&*engine, acknowledged, place)?;
        let open = read_open(&*engine)?;
        let clock = self
            .clock
            .unwrap_or_else(|| Box::new(SystemClock::not_before(last.now)));
        let shared = Arc::new(Shared::new(engine.clone(), open, clock, last.now));
        let queue = Arc::new(Queue::default());
        let (finished, watch) = watch::channel(());
        let committer = Committer {
            engine,
            shared: shared.clone(),
            queue: queue.clone(),
            watermark,
            course: Course {
                fence: last.fence,
                now: last.now,
                purge_from: keys::expiry_at(Timestamp::default()),
                full: None,
                latest: HashMap::new(),
            },
            marks,
            room: Room {
                reserve: self.reserve_bytes,
                looked: None,
            },
            _finished: finished,
        };
        let thread = std::thread::Builder::new()
            .name("semel-commit".into())
            .spawn(move || committer.run())
            .map_err(|e| {
                StoreError::new(
                    StoreErrorKind::Config,
                    "the store's thread could not be started",
                )
                .with_source(e)
            })?;
        Ok(FileStore {
            shared,
            queue,
            finished: watch,
            thread: Mutex::new(Some(thread)),
            for_tests: self.for_tests,
        })
    }
}

fn create(path: &Path) -> Result<()> {
    let created = !path.exists();
    fs::create_dir_all(path).map_err(|e| unusable(path, &e).with_source(e))?;
    if created && let Some(parent) = path.canonicalize().ok().as_deref().and_then(Path::parent) {
        // A directory survives a loss of power once its parent is on disk. Where the parent cannot
        // be opened, the system decides when.
        if let Ok(parent) = fs::File::open(parent) {
            let _ = parent.sync_all();
        }
    }
    Ok(())
}

fn unusable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        format!(
            "{} cannot be used as the store's directory ({})",
            path.display(),
            error.kind()
        ),
    )
}

fn corrupt(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message)
}

fn check_format(engine: &dyn Engine, acknowledged: u64, place: &str) -> Result<()> {
    match engine.get(keys::FORMAT)?.as_deref() {
        Some([keys::VERSION]) => return Ok(()),
        Some(found) => {
            return Err(corrupt(format!(
                "{place} has layout version {found:?}; this program reads {}",
                keys::VERSION
            )));
        }
        None => {}
    }
    let mut any = acknowledged > 0;
    engine.scan(&[], &[0xff], &mut |_, _| {
        any = true;
        ControlFlow::Break(())
    })?;
    if any {
        return Err(corrupt(format!(
            "{place} lost acknowledged records, the version of its layout among them; restore it \
             from a backup"
        )));
    }
    let mut batch = Batch::default();
    batch.put(keys::FORMAT, Bytes::from_static(&[keys::VERSION]));
    engine.apply(batch)
}

// The last mark must not be behind the watermark (the log's end is missing), and none in between
// may be missing (the end of an earlier log is).
fn check_marks(engine: &dyn Engine, acknowledged: u64, place: &str) -> Result<(Marks, Mark)> {
    let mut kept: VecDeque<Mark> = VecDeque::new();
    let mut unreadable = false;
    let mut gap = None;
    engine.scan(keys::MARKS.0, keys::MARKS.1, &mut |key, value| {
        let Some(mark) = Mark::from_bytes(key, &value) else {
            unreadable = true;
            return ControlFlow::Break(());
        };
        if let Some(before) = kept.back()
            && before.group + 1 != mark.group
        {
            gap = gap.or(Some((before.group, mark.group)));
        }
        kept.push_back(mark);
        ControlFlow::Continue(())
    })?;
    if unreadable {
        return Err(corrupt(format!(
            "{place}: a mark cannot be read; restore it from a backup"
        )));
    }
    let last = kept.back().copied().unwrap_or_default();
    if last.group < acknowledged {
        return Err(corrupt(format!(
            "{place} lost acknowledged records: group {acknowledged} was acknowledged, and the \
             last one found is {}. Restore the directory from a backup, or delete the file `{}` \
             in it to go on without them",
            last.group,
            layout::WATERMARK
        )));
    }
    let first = kept.front().map_or(0, |m| m.group);
    if let Some((before, after)) = gap.or((first > last.oldest).then_some((last.oldest, first))) {
        return Err(corrupt(format!(
            "{place} lost acknowledged records: after group {before} comes group {after}. \
             Restore the directory from a backup"
        )));
    }
    let marks = Marks {
        next: last.group + 1,
        kept_bytes: kept.iter().map(|m| m.bytes).sum(),
        kept: kept.iter().map(|m| (m.group, m.bytes)).collect(),
        log_bytes: engine.log_bytes(),
    };
    Ok((marks, last))
}
