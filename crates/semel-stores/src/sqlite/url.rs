//! A store's URL: `sqlite:PATH?…`.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::options::{SqliteOptions, TABLE};
use super::sql::Table;
use crate::common::{Location, Schema};
use crate::{OpenError, OpenOptions};

impl SqliteOptions {
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
