//! How a store is opened: in Rust, or by URL.

use std::path::Path;
use std::time::Duration;

use semel::store::Result;
use semel::{Clock, SystemClock};

use super::clock::Time;
use super::connect::{Place, Role, config};
use super::sql::Table;
use super::statements::Statements;
use super::{SqliteStore, schema};
use crate::common::{Migrated, Schema, disk};

/// How a [`SqliteStore`] is opened.
///
/// ```no_run
/// # fn main() -> Result<(), semel::StoreError> {
/// use semel_stores::{Schema, SqliteOptions};
/// let store = SqliteOptions::new().schema(Schema::Create).open("./orders.db")?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct SqliteOptions {
    pub(super) table: Box<str>,
    pub(super) schema: Schema,
    pub(super) timeout: Duration,
    pub(super) full: bool,
    pub(super) convert: bool,
    pub(super) max_bytes: Option<u64>,
    pub(super) reserve_bytes: u64,
    clock: Option<Box<dyn Clock>>,
    for_tests: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SqliteOptions {
    /// Tables named `semel` that are there already, a time-out of 5 seconds, synced commits, a
    /// reserve of 256 MiB, the machine's clock.
    pub fn new() -> Self {
        Self {
            table: "semel".into(),
            schema: Schema::default(),
            timeout: Duration::from_secs(5),
            full: true,
            convert: false,
            max_bytes: None,
            reserve_bytes: 256 << 20,
            clock: None,
            for_tests: false,
        }
    }

    /// The name of the table of records; the store's other tables and its indexes begin with it.
    /// ASCII letters, digits and `_`, at most 60. Stores of different names in one file do not
    /// meet.
    pub fn table(mut self, name: impl Into<Box<str>>) -> Self {
        self.table = name.into();
        self
    }

    /// What opening does where the tables are missing or old.
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = schema;
        self
    }

    /// How long a step may take, and a lock of the file is waited for.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Commits without a sync (`synchronous=NORMAL`): acknowledged steps survive a crash of the
    /// process, but a loss of power takes the latest of them.
    pub const fn without_sync(mut self) -> Self {
        self.full = false;
        self
    }

    /// Changes the journal mode to WAL where the file has tables and another mode. That is for all
    /// who use the file, and needs it alone for a moment. Files without tables are changed anyway.
    pub const fn convert_to_wal(mut self) -> Self {
        self.convert = true;
        self
    }

    /// New claims are refused while the file's pages in use take this much or more. Attempts that
    /// run can still be completed, a little beyond it. The write-ahead log beside the file is not
    /// counted.
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// New claims are refused while the disk has less room than this, so that attempts that run
    /// can still be completed. 256 MiB unless set; not known on systems other than Unix.
    pub const fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// Another clock, for tests. It is never taken to show less than what is in the file.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    /// Allows [`Clear::clear`](semel::store::Clear::clear) without force.
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Opens the store in this file. Blocks for a while; longer where others hold the file's lock.
    ///
    /// # Errors
    /// [`Config`](semel::StoreErrorKind::Config) where the file cannot be used as asked (no
    /// directory, no permission, no tables or other ones, not in WAL mode), and says what to do;
    /// [`Corrupt`](semel::StoreErrorKind::Corrupt) where it is damaged or no database;
    /// [`Contended`](semel::StoreErrorKind::Contended) where it stays locked.
    pub fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore> {
        let mut place = self.place(path.as_ref())?;
        self.prepare(&place)?;
        place.opened = disk::file(&place.path).ok().flatten();
        let connection = place.connect(Role::Write)?;
        let mut statements = Statements::new(&connection, &place.table);
        let clock = statements.check().and_then(|()| statements.clock());
        let (latest, _) = clock.map_err(|e| place.failed(&e))?;
        drop(statements);
        let clock = self
            .clock
            .unwrap_or_else(|| Box::new(SystemClock::not_before(latest)));
        SqliteStore::start(place, connection, Time::new(clock), self.for_tests)
    }

    /// Makes the store's tables in this file, or brings them to this version. The file is made
    /// where there is none. Safe to run again, and by several at once.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn migrate(mut self, path: impl AsRef<Path>) -> Result<Migrated> {
        self.schema = Schema::Migrate;
        let place = self.place(path.as_ref())?;
        self.prepare(&place)
    }

    fn place(&self, path: &Path) -> Result<Place> {
        let table = Table::new(&self.table).ok_or_else(|| config(TABLE))?;
        if path.as_os_str().is_empty() || path == Path::new(":memory:") {
            return Err(config(
                "a store needs the path of a file; in memory there is `memory:`",
            ));
        }
        let path = std::path::absolute(path)
            .map_err(|e| config("the present directory cannot be read").with_source(e))?;
        let place = Place {
            path,
            table,
            timeout: self.timeout,
            full: self.full,
            max_bytes: self.max_bytes,
            reserve_bytes: self.reserve_bytes,
            opened: None,
        };
        place.check_path()?;
        Ok(place)
    }

    fn prepare(&self, place: &Place) -> Result<Migrated> {
        if self.schema == Schema::Expect && !place.path.exists() {
            return Err(place.about(&schema::missing(&place.table)));
        }
        let mut connection = place.connect(Role::Make)?;
        schema::prepare(&mut connection, place, self.schema, self.convert)
    }
}

pub(super) const TABLE: &str = "the table's name may have ASCII letters, digits and `_`, 60 at most, no digit \
                     first and not `sqlite_`";
impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("table", &self.table)
            .field("schema", &self.schema)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
