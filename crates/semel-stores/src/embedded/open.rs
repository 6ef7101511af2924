//! Opening: what is on disk must be what was acknowledged, or the store does not open.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use parking_lot::Mutex;
use semel::store::Result;
use semel::{Clock, StoreError, StoreErrorKind, SystemClock, Timestamp};
use tokio::sync::watch;

use super::committer::{Committer, Opened};
use super::engine::{Batch, Engine};
use super::fjall::Fjall;
use super::group::Course;
use super::keys;
use super::marks::Marks;
use super::place::{Place, unusable};
use super::shared::{OpenRecords, Shared, read_open};
use super::watermark::Watermark;
use super::{FileStore, layout};
use crate::common::Obstacle;
use crate::common::queue::Queue;
use crate::common::thread::spawn;

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
    existing: bool,
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
            existing: false,
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

    /// Whether only a store that is there is opened, and none is made. Not, unless set.
    pub const fn existing(mut self, existing: bool) -> Self {
        self.existing = existing;
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
        let path = std::path::absolute(path).map_err(|e| unusable(path, &e).with_source(e))?;
        if self.existing && !path.join(layout::RECORDS).exists() {
            Place::try_out(&path)?;
            let what = format!("there is no store in {}", path.display());
            return Err(
                StoreError::new(StoreErrorKind::Config, what).with_source(Obstacle::Missing)
            );
        }
        Place::create(&path)?;
        let cache = self.cache_bytes;
        let open = {
            let (path, records) = (path.clone(), path.join(layout::RECORDS));
            move || -> Result<Arc<dyn Engine>> {
                Ok(Arc::new(Fjall::open(&path, &records, cache)?))
            }
        };
        let engine = open()?;
        let (watermark, acknowledged) =
            Watermark::open(&path).map_err(|e| unusable(&path, &e).with_source(e))?;
        let acknowledged = acknowledged.ok_or_else(|| {
            corrupt(format!(
                "{} is damaged; without it a loss of acknowledged records could go unseen. \
                 Restore the directory from a backup, or delete that file to go without the check",
                path.join(layout::WATERMARK).display()
            ))
        })?;
        let kept = Kept {
            place: Some(Place::of_opened(&path)?),
            watermark: Some(watermark),
            acknowledged,
        };
        self.start(engine, Box::new(open), kept, &path.display().to_string())
    }

    /// Opens the store on another engine. `open` is called now, and again after a commit failed,
    /// once nobody holds the engine that it returned before.
    ///
    /// # Errors
    /// Those of `open`; [`Corrupt`](StoreErrorKind::Corrupt) where the engine holds something else
    /// than a store's records without gaps.
    pub fn open_engine(
        self,
        mut open: impl FnMut() -> Result<Arc<dyn Engine>> + Send + 'static,
    ) -> Result<FileStore> {
        let engine = open()?;
        self.start(
            engine,
            Box::new(open),
            Kept::default(),
            "the storage engine",
        )
    }

    fn start(
        self,
        engine: Arc<dyn Engine>,
        open: Box<dyn FnMut() -> Result<Arc<dyn Engine>> + Send>,
        kept: Kept,
        name: &str,
    ) -> Result<FileStore> {
        let (opened, open_records) = recover(engine, kept.acknowledged, name)?;
        let from = opened.course.now;
        let clock = self
            .clock
            .unwrap_or_else(|| Box::new(SystemClock::not_before(from)));
        let engine = opened.engine.clone();
        let shared = Arc::new(Shared::new(engine, open_records, clock, from));
        let queue = Arc::new(Queue::new());
        let directory = kept.place.as_ref().map(|place| place.path().to_owned());
        let (finished, watch) = watch::channel(());
        let committer = Committer {
            shared: shared.clone(),
            queue: queue.clone(),
            open,
            name: name.into(),
            place: kept.place,
            watermark: kept.watermark,
            acknowledged: kept.acknowledged,
            reserve_bytes: self.reserve_bytes,
            looked: None,
            _finished: finished,
        };
        let thread = spawn("semel-commit", move || committer.run(opened))?;
        Ok(FileStore {
            shared,
            queue,
            finished: watch,
            thread: Mutex::new(Some(thread)),
            reserve_bytes: self.reserve_bytes,
            directory,
            for_tests: self.for_tests,
            erased: AtomicBool::new(false),
        })
    }
}

/// What a store keeps beside its engine.
#[derive(Default)]
struct Kept {
    place: Option<Place>,
    watermark: Option<Watermark>,
    acknowledged: u64,
}

/// Reads what is in an engine that was just opened, and the open records.
pub(super) fn recover(
    engine: Arc<dyn Engine>,
    acknowledged: u64,
    name: &str,
) -> Result<(Opened, OpenRecords)> {
    check_format(&*engine, acknowledged, name)?;
    let (marks, last) = Marks::read(&*engine, acknowledged, name)?;
    let open = read_open(&*engine)?;
    let course = Course {
        fence: last.fence,
        now: last.now,
        purge_from: keys::expiry_at(Timestamp::default()),
        full: None,
        latest: HashMap::new(),
    };
    let opened = Opened {
        engine,
        course,
        marks,
    };
    Ok((opened, open))
}

pub(super) fn corrupt(message: String) -> StoreError {
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
