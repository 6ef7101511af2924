//! A store's URL: `sqlite:PATH?…`.

use std::path::Path;

use super::options::{SqliteOptions, TABLE};
use super::sql::Table;
use crate::common::Location;
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
        if let Some(schema) = location.schema()? {
            this.schema = schema;
        }
        if let Some(timeout) = location.duration("timeout")? {
            this.timeout = timeout;
        }
        if let Some(full) = location.choice("synchronous", &[("full", true), ("normal", false)])? {
            this.full = full;
        }
        this.convert = location
            .choice("journal", &[("wal", true)])?
            .unwrap_or_default();
        this.max_bytes = location.take("max_bytes", "a number of bytes")?;
        let reserve = location.take("reserve_bytes", "a number of bytes")?;
        this.reserve_bytes = reserve.unwrap_or(options.reserve_bytes);
        location.whole("table, schema, timeout, synchronous, journal, max_bytes, reserve_bytes")?;
        Ok((this, Path::new(path).into()))
    }
}

pub(super) const PATH: &str = "needs the path of a file right after the colon, as in `sqlite:./semel.db` or \
                    `sqlite:/var/lib/app/semel.db`";
const TABLE_RULE: &str = "a name of ASCII letters, digits and `_`";
