//! Flags, environment and file, put together into one validated [`Config`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use clap::ArgMatches;
use http::header::HeaderName;
use http::uri::Authority;
use semel::store::OnLapse;
use tracing::Level;

use crate::args::{SETTINGS, Setting};
use crate::values;

/// Everything that `semel serve` needs to know, validated.
#[derive(Debug, Clone)]
pub struct Config {
    /// Host and port of the service that requests go to.
    pub upstream: Authority,
    /// Where clients connect, as `HOST:PORT`.
    pub listen: String,
    /// Where operators connect, as `HOST:PORT`.
    pub admin: String,
    /// The store's URL. May hold a password.
    pub store: StoreUrl,
    /// Whether unsafe requests without a key are refused.
    pub require_key: bool,
    /// How long a claim is held without renewal.
    pub lease: Duration,
    /// How long answers are replayed.
    pub ttl: Duration,
    /// How long a duplicate waits for the attempt in flight.
    pub wait: Duration,
    /// What becomes of a lost attempt.
    pub on_lost: OnLapse,
    /// The largest body that is read whole, in bytes.
    pub max_body: usize,
    /// The field that names the principal.
    pub scope_header: Option<HeaderName>,
    /// Whether requests with a key and without a principal are refused.
    pub require_principal: bool,
    /// How long the upstream may be silent.
    pub upstream_timeout: Option<Duration>,
    /// How long to wait for what is running, at the end.
    pub drain: Duration,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// The least important lines logged.
    pub log_level: Level,
}

/// A store's URL. Shown without what may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(pub String);

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_once(':') {
            Some(("file" | "memory" | "sqlite", _)) => f.write_str(&self.0),
            Some((scheme, _)) => write!(f, "{scheme}:…"),
            None => f.write_str("…"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Everything that is wrong with a configuration, one message each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, message) in self.0.iter().enumerate() {
            if nth > 0 {
                f.write_str("\n")?;
            }
            write!(f, "error: {message}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Where a value comes from, as an operator would look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    value: String,
    from: String,
}

/// The values of all settings before they are understood: a flag beats the environment, which beats
/// the file, which beats the default.
#[derive(Debug)]
pub struct Sources(BTreeMap<&'static str, Given>);

impl Sources {
    /// Collects what is said. `variable` looks into the environment, where an empty value counts as
    /// none.
    ///
    /// # Errors
    /// A file that cannot be read, or that sets what there is not; a variable that is no text.
    pub fn collect(
        flags: &ArgMatches,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let mut given = BTreeMap::new();
        let mut errors = Vec::new();
        for setting in &SETTINGS {
            let name = setting.variable();
            // Some subcommands have some of the flags only.
            let flag = flags.try_get_one::<String>(setting.name).ok().flatten();
            let flag = flag.map(|value| Given {
                value: value.clone(),
                from: format!("--{}", setting.name),
            });
            let set = flag.or_else(|| {
                let value = variable(&name).filter(|value| !value.is_empty())?;
                match value.into_string() {
                    Ok(value) => Some(Given { value, from: name }),
                    Err(_) => {
                        errors.push(format!("{name}: the value is not valid UTF-8"));
                        None
                    }
                }
            });
            if let Some(set) = set {
                given.insert(setting.name, set);
            }
        }
        if let Some(Given { value: path, from }) = given.get("config").cloned() {
            match std::fs::read_to_string(&path) {
                Ok(text) => read_file(&path, &text, &mut given, &mut errors),
                Err(error) => errors.push(format!("{from}: cannot read `{path}`: {error}")),
            }
        }
        for setting in &SETTINGS {
            if let Some(default) = setting.default {
                given.entry(setting.name).or_insert_with(|| Given {
                    value: default.to_owned(),
                    from: "default".to_owned(),
                });
            }
        }
        if errors.is_empty() {
            Ok(Self(given))
        } else {
            Err(ConfigError(errors))
        }
    }

    /// Understands the values.
    ///
    /// # Errors
    /// Every value that is not right, not only the first.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: Vec::new(),
        };
        let upstream = reader.read("upstream", values::upstream);
        if !self.0.contains_key("upstream") {
            reader.errors.push(
                "--upstream is required: where do requests go? For instance http://127.0.0.1:9000"
                    .to_owned(),
            );
        }
        let listen = reader.read("listen", values::address).unwrap_or_default();
        let admin = reader.read("admin", values::address).unwrap_or_default();
        if !listen.is_empty() && listen == admin && !listen.ends_with(":0") {
            let message = format!("--listen and --admin are the same address, {listen}");
            reader.errors.push(message);
        }
        let timeout = reader.read("upstream-timeout", values::duration);
        let config = Config {
            // Whatever is missing here has its message among the errors.
            upstream: upstream.unwrap_or_else(|| Authority::from_static("missing")),
            listen,
            admin,
            store: StoreUrl(reader.read("store", values::store).unwrap_or_default()),
            require_key: reader
                .read("require-key", values::boolean)
                .unwrap_or_default(),
            lease: reader.read("lease", values::lease).unwrap_or_default(),
            ttl: reader.read("ttl", values::positive).unwrap_or_default(),
            wait: reader.read("wait", values::duration).unwrap_or_default(),
            on_lost: reader.read("on-lost", values::on_lost).unwrap_or_default(),
            max_body: reader.read("max-body", values::size).unwrap_or_default(),
            scope_header: reader.read("scope-header", values::principal_field),
            require_principal: reader
                .read("require-principal", values::boolean)
                .unwrap_or_default(),
            upstream_timeout: timeout.filter(|limit| !limit.is_zero()),
            drain: reader.read("drain", values::duration).unwrap_or_default(),
            log_json: reader
                .read("log-format", values::log_format)
                .unwrap_or_default(),
            log_level: reader
                .read("log-level", values::log_level)
                .unwrap_or(Level::INFO),
        };
        if reader.errors.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(reader.errors))
        }
    }

    /// Understands the store's URL alone.
    ///
    /// # Errors
    /// A URL that is not right.
    pub fn store(&self) -> Result<StoreUrl, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: Vec::new(),
        };
        let url = reader.read("store", values::store);
        url.map(StoreUrl).ok_or(ConfigError(reader.errors))
    }

    /// Every setting with its value and where it comes from, for people.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        SETTINGS.iter().filter_map(|setting| {
            let Given { value, from } = self.0.get(setting.name)?;
            let value = match setting.name {
                "store" => StoreUrl(value.clone()).to_string(),
                _ => value.clone(),
            };
            Some(format!("{:<17} {value}  ({from})", setting.name))
        })
    }
}

fn read_file(
    path: &str,
    text: &str,
    given: &mut BTreeMap<&'static str, Given>,
    errors: &mut Vec<String>,
) {
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => {
            errors.push(format!("{path}: {}", error.to_string().trim_end()));
            return;
        }
    };
    for (key, value) in table {
        let setting = SETTINGS
            .iter()
            .find(|s| s.name == key && s.name != "config");
        let Some(Setting { name, .. }) = setting else {
            errors.push(format!("{path}: there is no setting `{key}`"));
            continue;
        };
        let value = match value {
            toml::Value::String(value) => value,
            toml::Value::Integer(value) => value.to_string(),
            toml::Value::Boolean(value) => value.to_string(),
            _ => {
                errors.push(format!(
                    "{path}: `{key}` must be a text, a number or true or false"
                ));
                continue;
            }
        };
        let from = format!("{path}: {key}");
        given.entry(name).or_insert(Given { value, from });
    }
}

struct Reader<'a> {
    sources: &'a Sources,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn read<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Given { value, from } = self.sources.0.get(name)?;
        match parse(value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.errors.push(format!("{from}: {reason}"));
                None
            }
        }
    }
}
