//! How a store is opened: a builder, and the same as a URL's parameters.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::tls::Verify;
use super::{PostgresStore, migrate};
use crate::common::Location;
use crate::{Migrated, OpenError, Schema};

/// The records table's name: `name` or `schema.name`, of letters, digits and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    schema: Option<String>,
    name: String,
}

impl FromStr for Table {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // Room for `_versions` within PostgreSQL's 63 bytes.
        let plain = |part: &str| {
            part.len() <= 50
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        if !plain(name) || !schema.is_none_or(plain) {
            return Err(());
        }
        Ok(Self {
            schema: schema.map(Into::into),
            name: name.into(),
        })
    }
}

impl Table {
    fn named(&self, suffix: &str) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{}{suffix}\"", self.name),
            None => format!("\"{}{suffix}\"", self.name),
        }
    }

    /// The table of records, quoted.
    pub(super) fn quoted(&self) -> String {
        self.named("")
    }

    /// The table that holds the schema's version, quoted.
    pub(super) fn versions(&self) -> String {
        self.named("_versions")
    }

    /// The name of an index, quoted. It lies in its table's schema.
    pub(super) fn index(&self, what: &str) -> String {
        format!("\"{}_{what}\"", self.name)
    }

    /// The channel on which changes are told, unquoted.
    pub(super) fn channel(&self) -> String {
        format!("semel_{}", self.name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Where pushes come from.
#[derive(Debug, Clone)]
pub(super) enum Listen {
    /// The same server and settings as for all else.
    Same,
    /// Another way to the same database: around a pooler.
    At(Box<Config>),
    /// Nowhere: who waits looks again and again.
    Off,
}

/// How a [`PostgresStore`] is opened.
///
/// `Debug` never shows a password.
#[derive(Debug, Clone)]
#[must_use = "options open nothing by themselves"]
pub struct PostgresOptions {
    pub(super) config: Config,
    pub(super) verify: Verify,
    pub(super) table: Table,
    pub(super) schema: Option<Schema>,
    pub(super) connections: usize,
    pub(super) group: usize,
    pub(super) timeout: Duration,
    pub(super) prepared: bool,
    pub(super) listen: Listen,
    pub(super) tests: bool,
}

/// Parameters of ours.
const OURS: &str = "table, schema, timeout, connections, group, prepared, listen, sslmode, \
     sslrootcert";

/// Parameters that go to the driver.
const DRIVERS: [&str; 17] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "host",
    "hostaddr",
    "port",
    "sslnegotiation",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];

impl PostgresOptions {
    /// Reads a URL: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE&…`. Ours are
    /// `table`, `schema`, `timeout`, `connections`, `group`, `prepared`, `listen`, `sslmode` and
    /// `sslrootcert`; what libpq calls `host`, `user`, `options`, `application_name` and so on is
    /// understood too.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] names the parameter and what is allowed, never the URL.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let mut location = Location::parse("postgres", url)?;
        let words = "`on` or `off`";
        let table = location.take("table", "a name, or schema.name, of letters, digits and _")?;
        let schema = location.take::<String>("schema", "")?;
        let timeout = location.take::<Millis>("timeout", "a duration such as `500ms` or `5s`")?;
        let connections = location.take("connections", "a number from 1 to 1000")?;
        let group = location.take("group", "a number from 1 to 1000")?;
        let prepared = location.take::<Switch>("prepared", words)?;
        let listen = location.take::<String>("listen", "")?;
        let mode = location.take::<String>("sslmode", "")?;
        let roots = location.take::<String>("sslrootcert", "")?;
        let schema = match schema.as_deref() {
            None => None,
            Some("expect") => Some(Schema::Expect),
            Some("create") => Some(Schema::Create),
            Some("migrate") => Some(Schema::Migrate),
            Some(_) => {
                return Err(
                    location.invalid("parameter `schema` must be `expect`, `create` or `migrate`")
                );
            }
        };
        let (ssl, verify) =
            ssl(mode.as_deref(), roots).map_err(|reason| location.invalid(reason))?;
        let mut config = driver(location)?;
        config.ssl_mode(ssl);
        let listen = match listen.as_deref() {
            None | Some("on") => Listen::Same,
            Some("off") => Listen::Off,
            Some(other) => {
                let mut there = driver(Location::parse("postgres", other).map_err(|_| {
                    OpenError::invalid(
                        "postgres",
                        "parameter `listen` must be `on`, `off` or the URL of the same database",
                    )
                })?)?;
                there.ssl_mode(ssl);
                Listen::At(Box::new(there))
            }
        };
        let mut options = Self {
            verify,
            listen,
            schema,
            ..Self::from_config(config)
        };
        options.table = table.unwrap_or(options.table);
        options.prepared = prepared.map_or(options.prepared, |switch| switch.0);
        options.timeout = timeout.map_or(options.timeout, |millis| millis.0);
        options.connections = connections.unwrap_or(options.connections);
        options.group = group.unwrap_or(options.group);
        let fine = 1..=1000;
        if !fine.contains(&options.connections) || !fine.contains(&options.group) {
            return Err(OpenError::invalid(
                "postgres",
                "parameters `connections` and `group` must be numbers from 1 to 1000",
            ));
        }
        Ok(options)
    }

    fn from_config(mut config: Config) -> Self {
        if config.get_application_name().is_none() {
            config.application_name("semel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        // A standby would answer reads from the past.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Self {
            config,
            verify: Verify::Nothing,
            table: Table {
                schema: None,
                name: "semel_records".into(),
            },
            schema: None,
            connections: 8,
            group: 64,
            timeout: Duration::from_secs(5),
            prepared: true,
            listen: Listen::Same,
            tests: false,
        }
    }

    /// What to do where the tables are missing or old. [`Schema::Expect`] unless set.
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// At most this many connections, not counting the one that listens. 8 unless set.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, 1000);
        self
    }

    /// At most this many steps that wait for a connection are sent as one transaction, so that
    /// they share a commit. 64 unless set; 1 turns it off.
    pub fn group(mut self, group: usize) -> Self {
        self.group = group.clamp(1, 1000);
        self
    }

    /// How long a call may take. 5 s unless set.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether statements are prepared once per connection, and the session is set up when it
    /// begins. On unless set; off behind a pooler that hands out connections by transaction.
    pub const fn prepared(mut self, prepared: bool) -> Self {
        self.prepared = prepared;
        self
    }

    /// Whether changes are pushed to who waits, over one more connection. On unless set. A pooler
    /// that hands out connections by transaction cannot push: give it another URL in `listen`.
    pub fn listen(mut self, listen: bool) -> Self {
        self.listen = if listen { Listen::Same } else { Listen::Off };
        self
    }

    /// Allows [`Clear`](semel::store::Clear).
    pub const fn for_tests(mut self) -> Self {
        self.tests = true;
        self
    }

    /// Connects and looks after the schema.
    ///
    /// # Errors
    /// [`Config`](semel::StoreErrorKind::Config) where the server refuses the user or the tables
    /// are not there, [`NotApplied`](semel::StoreErrorKind::NotApplied) where it is not reached.
    pub async fn open(self) -> Result<PostgresStore, OpenError> {
        Ok(PostgresStore::open(self).await?)
    }

    /// Makes the tables, or brings them to this version. Safe to run again, and by several at once.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn migrate(self) -> Result<Migrated, OpenError> {
        Ok(migrate::migrate(&self).await?)
    }
}

/// `on` or `off`.
struct Switch(bool);

impl FromStr for Switch {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "on" => Ok(Self(true)),
            "off" => Ok(Self(false)),
            _ => Err(()),
        }
    }
}

/// A duration of milliseconds or seconds, above zero.
struct Millis(Duration);

impl FromStr for Millis {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let millis = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(number), _) => number.parse::<u32>().map_err(drop)?.into(),
            (None, Some(number)) => number.parse::<u32>().map_err(drop).map(u64::from)? * 1000,
            (None, None) => return Err(()),
        };
        if millis == 0 {
            return Err(());
        }
        Ok(Self(Duration::from_millis(millis)))
    }
}

/// `sslmode` as libpq understands it: below `verify-ca` nobody is authenticated.
fn ssl(mode: Option<&str>, roots: Option<String>) -> Result<(SslMode, Verify), &'static str> {
    let ssl = match mode {
        Some("disable") => SslMode::Disable,
        None | Some("prefer") => SslMode::Prefer,
        Some("require" | "verify-ca" | "verify-full") => SslMode::Require,
        Some(_) => {
            return Err(
                "parameter `sslmode` must be `disable`, `prefer`, `require`, `verify-ca` or \
                 `verify-full`",
            );
        }
    };
    let verify = match (mode, &roots) {
        (Some("verify-full"), _) => Verify::Name(roots),
        (Some("verify-ca"), _) | (Some("require"), Some(_)) => Verify::Chain(roots),
        (_, Some(_)) => {
            return Err(
                "parameter `sslrootcert` needs `sslmode` to be `require`, `verify-ca` or \
                 `verify-full`",
            );
        }
        (_, None) => Verify::Nothing,
    };
    Ok((ssl, verify))
}

/// What the driver makes of the rest of the URL.
fn driver(location: Location) -> Result<Config, OpenError> {
    let url = location.rest();
    if let Some((name, _)) = url
        .query_pairs()
        .find(|(name, _)| !DRIVERS.contains(&&**name))
    {
        let name: String = name.chars().take(30).collect();
        let drivers = DRIVERS.join(", ");
        return Err(OpenError::invalid(
            "postgres",
            format!("has no parameter `{name}`; there are {OURS}, and of the driver's {drivers}"),
        ));
    }
    // The driver reads `+` as itself; where one is meant, it is `%2B` here.
    let url = match url.as_str().split_once('?') {
        Some((before, query)) => format!("{before}?{}", query.replace('+', "%20")),
        None => url.into(),
    };
    url.parse().map_err(|error: tokio_postgres::Error| {
        // The cause names a parameter, never a value.
        let cause = error.into_source();
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        OpenError::invalid("postgres", format!("cannot be read{cause}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_names_and_nothing_else() {
        for (text, quoted) in [
            ("a", "\"a\""),
            ("Orders_2", "\"Orders_2\""),
            ("s.t", "\"s\".\"t\""),
        ] {
            assert_eq!(text.parse::<Table>().unwrap().quoted(), quoted);
        }
        for text in [
            "", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "ä", "a;b",
        ] {
            assert!(text.parse::<Table>().is_err(), "{text}");
        }
        assert!("a".repeat(51).parse::<Table>().is_err());
    }

    #[test]
    fn spaces_in_the_drivers_parameters_stay_spaces() {
        let options = PostgresOptions::from_url(
            "postgres://u@h/d?options=-c%20work_mem%3D1MB&application_name=a%2Bb%20c",
        );
        let config = options.unwrap().config;
        assert_eq!(config.get_options(), Some("-c work_mem=1MB"));
        assert_eq!(config.get_application_name(), Some("a+b c"));
    }
}
