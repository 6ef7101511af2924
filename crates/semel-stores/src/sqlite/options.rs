//! How a store is opened: in Rust, or by URL.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use semel::store::Result;
use semel::{Clock, SystemClock};

use super::clock::Time;
use super::connect::{Place, Role, config};
use super::error::{Phase, told};
use super::sql::Table;
use super::statements::Statements;
use super::{SqliteStore, schema};
use crate::common::{Location, Migrated, Schema};
use crate::{OpenError, OpenOptions};

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
    table: Box<str>,
    schema: Schema,
    timeout: Duration,
    full: bool,
    convert: bool,
    max_bytes: Option<u64>,
    reserve_bytes: u64,
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
    /// [`NotApplied`](semel::StoreErrorKind::NotApplied) where it stays locked.
    pub fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore> {
        let place = self.place(path.as_ref())?;
        self.prepare(&place)?;
        let connection = place.connect(Role::Write)?;
        let (latest, _) = Statements::prepare(&connection, &place.table)
            .and_then(|mut statements| statements.clock())
            .map_err(|e| place.about(&told(&e, Phase::Before)))?;
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

    /// What a URL and the options beside it say, and the file's path.
    ///
    /// The path is taken as it stands, up to the first `?`; nothing in it is decoded.
    pub(super) fn from_url(
        url: &str,
        options: &OpenOptions,
    ) -> Result<(Self, Box<Path>), OpenError> {
        let rest = url.strip_prefix("sqlite:").unwrap_or(url);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = match path.strip_prefix("//") {
            // As other programs write it: no host, and an absolute path.
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => return Err(OpenError::invalid("sqlite", PATH)),
            None => path,
        };
        if path.is_empty() || path == ":memory:" {
            return Err(OpenError::invalid("sqlite", PATH));
        }
        let mut location = Location::parse("sqlite", &format!("sqlite:?{query}"))?;
        let mut this = Self::new().schema(options.schema);
        if let Some(table) = location.take::<String>("table", TABLE_RULE)? {
            if Table::new(&table).is_none() {
                return Err(location.invalid(TABLE));
            }
            this.table = table.into();
        }
        if let Some(Choice(schema)) = location.take("schema", "expect, create or migrate")? {
            this.schema = schema;
        }
        if let Some(Timeout(timeout)) = location.take("timeout", "a time like 500ms or 5s")? {
            this.timeout = timeout;
        }
        if let Some(Synchronous(full)) = location.take("synchronous", "full or normal")? {
            this.full = full;
        }
        if let Some(Wal) = location.take("journal", "wal")? {
            this.convert = true;
        }
        this.max_bytes = location.take("max_bytes", "a number of bytes")?;
        let reserve = location.take("reserve_bytes", "a number of bytes")?;
        this.reserve_bytes = reserve.unwrap_or(options.reserve_bytes);
        location.whole("table, schema, timeout, synchronous, journal, max_bytes, reserve_bytes")?;
        Ok((this, Path::new(path).into()))
    }
}

const PATH: &str = "needs the path of a file right after the colon, as in `sqlite:./semel.db` or \
                    `sqlite:/var/lib/app/semel.db`";
const TABLE: &str = "the table's name may have ASCII letters, digits and `_`, 60 at most, no digit \
                     first and not `sqlite_`";
const TABLE_RULE: &str = "a name of ASCII letters, digits and `_`";

/// A value of the parameter `schema`.
struct Choice(Schema);

impl FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "expect" => Ok(Self(Schema::Expect)),
            "create" => Ok(Self(Schema::Create)),
            "migrate" => Ok(Self(Schema::Migrate)),
            _ => Err(()),
        }
    }
}

/// A value of the parameter `timeout`.
struct Timeout(Duration);

impl FromStr for Timeout {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let number: u32 = digits.parse().map_err(drop)?;
        let unit = match &text[digits.len()..] {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_mins(1),
            _ => return Err(()),
        };
        Some(unit * number)
            .filter(|t| !t.is_zero())
            .map(Self)
            .ok_or(())
    }
}

/// A value of the parameter `synchronous`.
struct Synchronous(bool);

impl FromStr for Synchronous {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "full" => Ok(Self(true)),
            "normal" => Ok(Self(false)),
            _ => Err(()),
        }
    }
}

/// The value of the parameter `journal`.
struct Wal;

impl FromStr for Wal {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "wal" { Ok(Self) } else { Err(()) }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("table", &self.table)
            .field("schema", &self.schema)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
