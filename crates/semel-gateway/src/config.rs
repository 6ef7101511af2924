//! Flags, environment and file, put together into one validated [`Config`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use clap::ArgMatches;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use ipnet::IpNet;
use semel::Service;
use semel::store::OnLost;
use tracing::Level;

use crate::args::{RECONCILE, SETTINGS, Setting};
use crate::dispositions::Dispositions;
use crate::reconcile::Settings;
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
    /// The service that requests go to; `None` where nobody said, and it is `default`.
    pub service: Option<Service>,
    /// Whether unsafe requests without a key are refused.
    pub require_key: bool,
    /// How long a claim is held without renewal.
    pub lease: Duration,
    /// How long answers are replayed.
    pub ttl: Duration,
    /// How long a duplicate waits for the attempt in flight.
    pub wait: Duration,
    /// What becomes of a lost attempt.
    pub on_lost: OnLost,
    /// Whom to ask about lost attempts, under [`OnLost::Reconcile`].
    pub reconcile: Option<Settings>,
    /// The largest body that is read whole, in bytes.
    pub max_body: usize,
    /// The fields that a scope is made of: the first but `Host` names the principal.
    pub scope_headers: Vec<HeaderName>,
    /// Whether requests with a key and without a principal are refused.
    pub require_principal: bool,
    /// What the statuses of the upstream's answers mean, beyond the defaults.
    pub dispositions: Dispositions,
    /// How long the upstream may be silent.
    pub upstream_timeout: Option<Duration>,
    /// The peers who are believed what they say of others.
    pub trust_forwarded: Vec<IpNet>,
    /// Whether the upstream gets the client's `Host`.
    pub preserve_host: bool,
    /// How much may be open, run and be held at once.
    pub limits: Limits,
    /// The names under which operators ask.
    pub admin_hosts: Vec<String>,
    /// How long to wait for what is running, at the end.
    pub drain: Duration,
    /// How long connections are accepted after the signal to stop.
    pub drain_delay: Duration,
    /// Whether log lines are JSON.
    pub log_json: bool,
    /// The least important lines logged.
    pub log_level: Level,
}

/// How much may be open, run and be held at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Attempts: requests with a key that run.
    pub attempts: usize,
    /// Connections of clients.
    pub connections: usize,
    /// Bytes of bodies.
    pub body_memory: usize,
    /// How long a request's body may take, and a second more for each KiB that came.
    pub body_time: Option<Duration>,
}

/// A store's URL. Shown without what may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(pub String);

impl StoreUrl {
    /// Whether another process can use the store at the same time.
    pub fn can_be_shared(&self) -> bool {
        !matches!(self.0.split_once(':'), Some(("memory" | "file", _)))
    }
}

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

/// Where a value comes from that nobody said.
const DEFAULT: &str = "default";

/// Where a value comes from, as an operator would look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    value: String,
    from: String,
}

/// The values of all settings before they are understood: a flag beats the environment, which beats
/// the file, which beats the default.
#[derive(Debug)]
pub struct Sources {
    given: BTreeMap<&'static str, Given>,
    // What is sent with every question to the reconciler.
    headers: HeaderMap,
    dispositions: Dispositions,
    // What is wrong with them before they are understood.
    errors: Vec<String>,
    // A file could not be read: what is missing may be in it.
    is_partial: bool,
}

impl Sources {
    /// Collects what is said. `variable` looks into the environment, where an empty value counts as
    /// none. A file that cannot be read, or that sets what there is not, and a variable that is no
    /// text are told with the values that are not right.
    pub fn collect(flags: &ArgMatches, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut is_partial = false;
        let mut given = BTreeMap::new();
        let mut headers = HeaderMap::new();
        let mut dispositions = Dispositions::default();
        let mut errors = Vec::new();
        for setting in &SETTINGS {
            let name = setting.variable();
            // Some subcommands have some of the flags only.
            let values = flags.try_get_many::<String>(setting.name).ok().flatten();
            let flag = values.map(|values| Given {
                value: values.map(String::as_str).collect::<Vec<_>>().join(","),
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
                Ok(text) => File {
                    path: &path,
                    given: &mut given,
                    headers: &mut headers,
                    dispositions: &mut dispositions,
                    errors: &mut errors,
                }
                .read(&text),
                Err(error) => {
                    is_partial = true;
                    errors.push(format!("{from}: cannot read `{path}`: {error}"));
                }
            }
        }
        for setting in SETTINGS.iter().chain(&RECONCILE) {
            if let Some(default) = setting.default {
                given.entry(setting.name).or_insert_with(|| Given {
                    value: default.to_owned(),
                    from: DEFAULT.to_owned(),
                });
            }
        }
        Self {
            given,
            headers,
            dispositions,
            errors,
            is_partial,
        }
    }

    /// Whether log lines are to be JSON, as far as it can be told where something is not right.
    pub fn log_json(&self) -> bool {
        let format = self.given.get("log-format");
        format.is_some_and(|set| values::log_format(&set.value) == Ok(true))
    }

    /// Understands the values.
    ///
    /// # Errors
    /// Every value that is not right, not only the first.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: self.errors.clone(),
        };
        let upstream = reader.read("upstream", values::upstream);
        if !self.given.contains_key("upstream") && !self.is_partial {
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
        for (flag, address) in [("--listen", &listen), ("--admin", &admin)] {
            if upstream
                .as_ref()
                .is_some_and(|upstream| values::is_same_socket(upstream, address))
            {
                let message = format!(
                    "--upstream is {flag} itself, {address}: requests would come back to the gateway"
                );
                reader.errors.push(message);
            }
        }
        let mut admin_hosts = reader
            .read("admin-host", values::host_names)
            .unwrap_or_default();
        admin_hosts.extend(admin.rsplit_once(':').map(|(host, _)| host.to_owned()));
        let max_body = reader.read("max-body", values::size).unwrap_or_default();
        let timeout = reader.read("upstream-timeout", values::limit);
        let on_lost = reader.read("on-lost", values::on_lost);
        let reconcile = reader.reconcile(on_lost);
        let config = Config {
            // Whatever is missing here has its message among the errors.
            upstream: upstream.unwrap_or_else(|| Authority::from_static("missing")),
            listen,
            admin,
            store: StoreUrl(reader.read("store", values::store).unwrap_or_default()),
            service: reader
                .read("service", values::service)
                .filter(|_| self.is_said("service")),
            require_key: reader
                .read("require-key", values::boolean)
                .unwrap_or_default(),
            lease: reader.read("lease", values::lease).unwrap_or_default(),
            ttl: reader.read("ttl", values::positive).unwrap_or_default(),
            wait: reader.read("wait", values::duration).unwrap_or_default(),
            on_lost: on_lost.unwrap_or_default(),
            reconcile,
            max_body,
            scope_headers: reader
                .read("scope-header", values::fields)
                .unwrap_or_default(),
            require_principal: reader
                .read("require-principal", values::boolean)
                .unwrap_or_default(),
            dispositions: self.dispositions.clone(),
            upstream_timeout: timeout.flatten(),
            trust_forwarded: reader
                .read("trust-forwarded", values::networks)
                .unwrap_or_default(),
            preserve_host: reader
                .read("preserve-host", values::boolean)
                .unwrap_or_default(),
            limits: reader.limits(max_body),
            admin_hosts,
            drain: reader.read("drain", values::duration).unwrap_or_default(),
            drain_delay: reader
                .read("drain-delay", values::duration)
                .unwrap_or_default(),
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

    /// Whether somebody said it, be it what holds anyway.
    fn is_said(&self, name: &str) -> bool {
        let given = self.given.get(name);
        given.is_some_and(|given| given.from != DEFAULT)
    }

    /// Understands the store's URL alone.
    ///
    /// # Errors
    /// A URL that is not right.
    pub fn store(&self) -> Result<StoreUrl, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: self.errors.clone(),
        };
        let url = reader.read("store", values::store);
        match url {
            Some(url) if reader.errors.is_empty() => Ok(StoreUrl(url)),
            _ => Err(ConfigError(reader.errors)),
        }
    }

    /// Every setting with its value and where it comes from, for people.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let asked = self
            .given
            .get("on-lost")
            .is_some_and(|set| set.value == "reconcile");
        let settings = SETTINGS
            .iter()
            .chain(RECONCILE.iter().filter(move |_| asked));
        let lines = settings.filter_map(|setting| {
            let Given { value, from } = self.given.get(setting.name)?;
            let value = match setting.name {
                "store" => StoreUrl(value.clone()).to_string(),
                "reconciler" => without_query(value),
                _ => value.clone(),
            };
            Some(format!("{:<18} {value}  ({from})", setting.name))
        });
        // Values may be passwords.
        let names = self.headers.keys();
        let names = names.map(|name| format!("{:<18} {name}: …", "reconcile.headers"));
        let dispositions = self.dispositions.lines();
        let dispositions = dispositions.map(|line| format!("{:<18} {line}", "dispositions"));
        lines.chain(dispositions).chain(names)
    }
}

fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((url, _)) => format!("{url}?…"),
        None => url.to_owned(),
    }
}

/// The configuration file, and where what it says goes.
struct File<'a> {
    path: &'a str,
    given: &'a mut BTreeMap<&'static str, Given>,
    headers: &'a mut HeaderMap,
    dispositions: &'a mut Dispositions,
    errors: &'a mut Vec<String>,
}

impl File<'_> {
    fn read(mut self, text: &str) {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => return self.error(error.to_string().trim_end()),
        };
        for (key, value) in table {
            let setting = SETTINGS
                .iter()
                .find(|s| s.name == key && s.name != "config");
            match (setting, value) {
                (Some(setting), toml::Value::Array(values)) if setting.list => {
                    self.set_list(setting.name, &key, &values);
                }
                (Some(Setting { name, .. }), value) => self.set(name, &key, value),
                (None, toml::Value::Table(section)) if key == "reconcile" => {
                    self.reconcile(section);
                }
                (None, toml::Value::Table(section)) if key == "dispositions" => {
                    for (statuses, meaning) in section {
                        if let Err(message) = self.dispositions.set(&statuses, &meaning) {
                            self.error(&format!("dispositions: {message}"));
                        }
                    }
                }
                (None, _) if key == "reconcile" || key == "dispositions" => {
                    self.error(&format!("`{key}` must be a section"));
                }
                (None, _) => self.error(&format!("there is no setting `{key}`")),
            }
        }
    }

    /// The section `reconcile`.
    fn reconcile(&mut self, section: toml::Table) {
        for (key, value) in section {
            let name = format!("reconcile.{key}");
            let setting = RECONCILE.iter().find(|s| s.name == name);
            match (setting, value) {
                (Some(setting), value) => self.set(setting.name, &name, value),
                (None, value) if key == "url" => self.set("reconciler", &name, value),
                (None, toml::Value::Table(fields)) if key == "headers" => {
                    for (field, value) in fields {
                        self.header(&field, &value);
                    }
                }
                (None, _) if key == "headers" => {
                    self.error("`reconcile.headers` must be a section");
                }
                (None, _) => self.error(&format!("there is no setting `{name}`")),
            }
        }
    }

    fn header(&mut self, field: &str, value: &toml::Value) {
        let name = HeaderName::from_bytes(field.as_bytes());
        let value = value.as_str().map(HeaderValue::from_str);
        match (name, value) {
            (Ok(name), Some(Ok(mut value))) => {
                value.set_sensitive(true);
                self.headers.append(name, value);
            }
            (Err(_), _) => self.error(&format!("reconcile.headers: `{field}` cannot be a field")),
            (Ok(_), _) => {
                let message = "reconcile.headers: a field's value must be a text on one line";
                self.error(message);
            }
        }
    }

    fn set(&mut self, name: &'static str, key: &str, value: toml::Value) {
        let value = match value {
            toml::Value::String(value) => value,
            toml::Value::Integer(value) => value.to_string(),
            toml::Value::Boolean(value) => value.to_string(),
            _ => {
                let message = format!("`{key}` must be a text, a number or true or false");
                return self.error(&message);
            }
        };
        let from = format!("{}: {key}", self.path);
        self.given.entry(name).or_insert(Given { value, from });
    }

    fn set_list(&mut self, name: &'static str, key: &str, values: &[toml::Value]) {
        let texts = values.iter().map(toml::Value::as_str);
        match texts.collect::<Option<Vec<_>>>() {
            Some(texts) => self.set(name, key, texts.join(",").into()),
            None => self.error(&format!("`{key}` must be a list of texts")),
        }
    }

    fn error(&mut self, message: &str) {
        self.errors.push(format!("{}: {message}", self.path));
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
        let Given { value, from } = self.sources.given.get(name)?;
        match parse(value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.errors.push(format!("{from}: {reason}"));
                None
            }
        }
    }

    fn limits(&mut self, max_body: usize) -> Limits {
        let body_memory = self.read("max-body-memory", values::memory);
        if body_memory.is_some_and(|bytes| bytes < max_body) {
            let message = "--max-body is more than --max-body-memory: it would never be taken";
            self.errors.push(message.to_owned());
        }
        let count =
            |count: Option<u32>| count.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Limits {
            attempts: count(self.read("max-attempts", values::count)),
            connections: count(self.read("max-connections", values::count)),
            body_memory: body_memory.unwrap_or_default(),
            body_time: self.read("body-timeout", values::limit).flatten(),
        }
    }

    /// Whom to ask about lost attempts; nobody, unless that is the policy.
    fn reconcile(&mut self, on_lost: Option<OnLost>) -> Option<Settings> {
        let url = self.read("reconciler", values::endpoint);
        let attempts = self.read("reconcile.attempts", values::count);
        let pause = self.read("reconcile.pause", values::positive);
        let timeout = self.read("reconcile.timeout", values::positive);
        let every = self.read("reconcile.every", values::positive);
        let given = self.sources.given.contains_key("reconciler");
        match (on_lost, given) {
            (Some(OnLost::Reconcile), false) => self.errors.push(
                "--on-lost reconcile needs --reconciler: who is asked what happened? For instance \
                 http://127.0.0.1:9100/reconcile"
                    .to_owned(),
            ),
            (Some(OnLost::Hold | OnLost::Retry), true) => {
                let message = "--reconciler is asked with --on-lost reconcile only";
                self.errors.push(message.to_owned());
            }
            _ => {}
        }
        Some(Settings {
            url: url?,
            headers: self.sources.headers.clone(),
            attempts: attempts?,
            pause: pause?,
            timeout: timeout?,
            every: every?,
        })
    }
}
