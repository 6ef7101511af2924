//! What `semel run` is told: flags, which beat the environment.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use http::HeaderValue;
use http::uri::Scheme;
use semel::guard::Policy;
use semel::secrets::Secrets;
use semel::store::{OnLost, Retention};
use semel::{Fingerprint, Identity, Key, Scope};

use super::exits::OnExit;
use super::gateway::Gateway;
use crate::at_rest::{self, AtRest, Large, Source};
use crate::config::settings::{Setting, list, setting};
use crate::config::{StoreUrl, values};
use crate::tls::PemFile;
use crate::tls::client::Trust;

/// Where records are kept.
pub(super) enum Place {
    Store(StoreUrl, AtRest),
    Gateway(Gateway),
}

/// What is run, and how.
pub(super) struct Settings {
    pub(super) place: Place,
    /// As it is without secrets.
    pub(super) identity: Identity,
    pub(super) fingerprint: Fingerprint,
    pub(super) policy: Policy,
    pub(super) lease: Duration,
    pub(super) on_lost: OnLost,
    pub(super) on_exit: OnExit,
    pub(super) max_output: usize,
    pub(super) report: Option<PathBuf>,
    pub(super) command: Vec<OsString>,
}

/// Every setting of `semel run` that is also a variable.
pub const SETTINGS: &[Setting] = &[
    setting(
        "store",
        "URL",
        None,
        "Where records are kept: sqlite:/PATH, postgres://…, redis://… and others",
    ),
    setting(
        "encryption-keys",
        "SOURCE",
        None,
        "With --store: the keys that answers in it are encrypted with: a file, env:NAME or exec:COMMAND",
    ),
    setting(
        "identity-keys",
        "SOURCE",
        None,
        "With --store: the secrets that keys in it are digested with, likewise",
    ),
    setting(
        "large-answers",
        "URL",
        None,
        "With --store: where output is kept that is too large for it: file:FOLDER, or s3://BUCKET/PREFIX?region=…&endpoint=…",
    ),
    setting(
        "large-answers-above",
        "SIZE",
        Some("256KiB"),
        "The largest output that is kept in the store, with --large-answers",
    ),
    setting(
        "gateway",
        "URL",
        None,
        "The gateway that keeps them, in place of a store: its --admin address, as in http://127.0.0.1:8081",
    ),
    setting(
        "token-file",
        "FILE",
        None,
        "The bearer token for the gateway, in one line; SEMEL_TOKEN holds the token itself",
    ),
    setting(
        "gateway-ca",
        "FILE",
        None,
        "Who signs the gateway's certificate, as PEM; the system's roots unless set",
    ),
    setting(
        "service",
        "NAME",
        Some("default"),
        "Keeps services apart that share a store",
    ),
    setting(
        "operation",
        "NAME",
        Some("run"),
        "What is done: the same key in another operation is other work",
    ),
    list("scope", "TEXT", "Whose key it is; may be given again"),
    setting(
        "fingerprint",
        "TEXT",
        None,
        "What is asked for, in place of the command line",
    ),
    setting(
        "ttl",
        "DUR",
        Some("24h"),
        "How long the outcome is replayed; or payment, order, email, api, webhook",
    ),
    setting(
        "wait",
        "DUR",
        Some("0s"),
        "How long to wait for a run in flight",
    ),
    setting(
        "lease",
        "DUR",
        Some("30s"),
        "How long a run counts as running after its last renewal",
    ),
    setting(
        "on-lost",
        "hold|retry",
        Some("hold"),
        "What becomes of a run that was lost: it is held until somebody resolves it, or runs again",
    ),
    list(
        "on-exit",
        "WHAT=MEANING",
        "What an end of the command means: a status, a range, failure or signal = keep, release or unknown",
    ),
    setting(
        "max-output",
        "SIZE",
        Some("1MiB"),
        "How much output is kept for replays; of more, nothing is",
    ),
    setting(
        "report",
        "FILE",
        None,
        "Where to write what happened, as JSON",
    ),
];

/// The command line of `semel run`.
pub(super) fn command() -> Command {
    Command::new("run")
        .about("Runs a command once per key, and replays its output and exit status")
        .after_help(super::HELP)
        .arg(
            Arg::new("key")
                .long("key")
                .value_name("KEY")
                .help("Which work it is")
                .required(true),
        )
        .args(SETTINGS.iter().map(Setting::arg))
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .help("What is run, with its arguments")
                .value_parser(clap::value_parser!(OsString))
                .num_args(1..)
                .last(true)
                .required(true),
        )
}

/// Reads values, and notes what is wrong with them.
struct Reader<'a, V> {
    flags: &'a ArgMatches,
    variable: V,
    errors: Vec<String>,
}

impl<V: Fn(&str) -> Option<OsString>> Reader<'_, V> {
    /// The values of a setting, and where they come from.
    fn given(&mut self, name: &str) -> Option<(String, Vec<String>)> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name)?;
        if let Some(flags) = self.flags.get_many::<String>(name) {
            return Some((format!("--{name}"), flags.cloned().collect()));
        }
        let from = setting.variable();
        if let Some(value) = (self.variable)(&from).filter(|value| !value.is_empty()) {
            let Ok(value) = value.into_string() else {
                self.errors
                    .push(format!("{from}: the value is not valid UTF-8"));
                return None;
            };
            let values = match setting.list {
                true => value.split(',').map(|one| one.trim().to_owned()).collect(),
                false => vec![value],
            };
            return Some((from, values));
        }
        Some((String::new(), vec![setting.default?.to_owned()]))
    }

    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let (from, values) = self.given(name)?;
        let parsed = parse(values.last()?);
        self.right(&from, parsed)
    }

    fn large(&mut self) -> Option<Large> {
        let url = self.read(at_rest::LARGE, values::objects);
        let above = self.read(at_rest::ABOVE, values::memory)?;
        url.map(|url| Large { url, above })
    }

    fn right<T>(&mut self, from: &str, parsed: Result<T, String>) -> Option<T> {
        parsed
            .map_err(|error| self.errors.push(format!("{from}: {error}")))
            .ok()
    }
}

impl Settings {
    /// Names the work as the store's secrets say.
    pub(super) fn name_under(&mut self, secrets: Option<&Secrets>) {
        let identity = &self.identity;
        let (scope, key) = (identity.scope().clone(), identity.key().clone());
        self.identity = Identity::keyed(scope, identity.operation(), key, secrets);
    }

    /// Reads flags and environment; or says all that is wrong.
    pub(super) fn read(
        flags: &ArgMatches,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Vec<String>> {
        let mut reader = Reader {
            flags,
            variable,
            errors: Vec::new(),
        };
        let key = flags.get_one::<String>("key").map_or("", String::as_str);
        let key = Key::new(key).map_err(|error| error.to_string());
        let key = reader.right("--key", key);
        let place = reader.place();
        let service = reader.read("service", values::service);
        let operation = reader.read("operation", operation);
        let scope = reader.given("scope").map_or(Vec::new(), |(_, all)| all);
        let command: Vec<OsString> = flags
            .get_many::<OsString>("command")
            .map_or(Vec::new(), |words| words.cloned().collect());
        let fingerprint = reader
            .read("fingerprint", |text| Ok(Fingerprint::of(text.as_bytes())))
            .unwrap_or_else(|| fingerprint(&command));
        let ttl = reader.read("ttl", values::retention);
        let wait = reader.read("wait", values::duration);
        let lease = reader.read("lease", values::lease);
        let on_lost = reader.read("on-lost", |value| match values::on_lost(value) {
            Ok(OnLost::Reconcile) | Err(_) => Err(format!("`{value}` is neither hold nor retry")),
            Ok(on_lost) => Ok(on_lost),
        });
        let on_exit = reader.given("on-exit").unwrap_or_default();
        let rules = OnExit::read(on_exit.1.iter().flat_map(|rules| rules.split(',')));
        let on_exit = reader.right(&on_exit.0, rules);
        let max_output = reader.read("max-output", values::size);
        let report = reader.read("report", |path| Ok(PathBuf::from(path)));
        let all = || {
            let (lease, on_lost) = (lease?, on_lost?);
            let operation = service?.operation(&operation?).into_owned();
            Some(Self {
                place: place?,
                identity: Identity::new(Scope::new(scope), &operation, key?),
                fingerprint,
                policy: Policy::default()
                    .with_key_required(true)
                    .with_retention(Retention::new(ttl?))
                    .with_wait(wait?)
                    .with_lease(lease)
                    .with_on_lost(on_lost),
                lease,
                on_lost,
                on_exit: on_exit?,
                max_output: max_output?,
                report,
                command,
            })
        };
        match all() {
            Some(settings) if reader.errors.is_empty() => Ok(settings),
            _ => Err(reader.errors),
        }
    }
}

impl<V: Fn(&str) -> Option<OsString>> Reader<'_, V> {
    fn place(&mut self) -> Option<Place> {
        let is_flag = |said: &Option<(String, Vec<String>)>| {
            said.as_ref()
                .is_some_and(|(from, _)| from.starts_with("--"))
        };
        let (mut store, mut gateway) = (self.given("store"), self.given("gateway"));
        // A flag beats the environment.
        if is_flag(&store) != is_flag(&gateway) {
            let loser = if is_flag(&store) {
                &mut gateway
            } else {
                &mut store
            };
            *loser = None;
        }
        let (from, values, is_store) = match (store, gateway) {
            (Some((from, values)), None) => (from, values, true),
            (None, Some((from, values))) => (from, values, false),
            (None, None) => return self.wrong(NOWHERE),
            (Some(_), Some(_)) => return self.wrong("--store and --gateway: only one of them"),
        };
        let value = values.last().map_or("", String::as_str);
        if is_store {
            let url = match value.split_once(':') {
                Some(("memory", _)) => Err(FORGETS.to_owned()),
                _ => values::store(value),
            };
            let at_rest = AtRest {
                keys: self.read(at_rest::KEYS, Source::parse),
                secrets: self.read(at_rest::SECRETS, Source::parse),
                large: self.large(),
            };
            return Some(Place::Store(StoreUrl(self.right(&from, url)?), at_rest));
        }
        let url = self.right(&from, values::gateway(value));
        let token = self.token();
        let ca = self.read("gateway-ca", |path| Ok(PemFile::new("--gateway-ca", path)));
        let url = url?;
        let trust = Trust::new(ca);
        if url.scheme() == Some(&Scheme::HTTPS)
            && let Err(error) = trust.read()
        {
            return self.wrong(&error.to_string());
        }
        Some(Place::Gateway(Gateway {
            url,
            token: token?,
            trust: Arc::new(trust),
        }))
    }

    /// The bearer token, as a field's value. The outer none: it is wrong.
    fn token(&mut self) -> Option<Option<HeaderValue>> {
        let file = self.given("token-file");
        let (from, token) = match file {
            Some((from, paths)) => {
                let path = paths.last().map_or("", String::as_str);
                let read = std::fs::read_to_string(path);
                let read = read.map_err(|error| format!("cannot read `{path}`: {error}"));
                let token = self.right(&from, read)?;
                (from, token)
            }
            None => match (self.variable)(TOKEN).filter(|token| !token.is_empty()) {
                Some(token) => (TOKEN.to_owned(), token.into_string().unwrap_or_default()),
                None => return Some(None),
            },
        };
        let token = token.trim();
        let value = match token.is_empty() || token.contains(char::is_whitespace) {
            true => None,
            false => HeaderValue::try_from(format!("Bearer {token}")).ok(),
        };
        let value = value.ok_or_else(|| "must be one word of visible ASCII characters".to_owned());
        let mut value = self.right(&from, value)?;
        value.set_sensitive(true);
        Some(Some(value))
    }

    fn wrong<T>(&mut self, error: &str) -> Option<T> {
        self.errors.push(error.to_owned());
        None
    }
}

/// Holds the token itself.
const TOKEN: &str = "SEMEL_TOKEN";
const NOWHERE: &str = "--store is missing: say where records are kept, as in sqlite:/var/lib/semel/jobs.db (or in \
     SEMEL_STORE), or name a gateway with --gateway. There is no default, because a job would run once in each \
     folder it is started in";
const FORGETS: &str =
    "`memory:` forgets when this program ends; write it like sqlite:/var/lib/semel/jobs.db";

fn operation(name: &str) -> Result<String, String> {
    match (1..=255).contains(&name.len()) && !name.contains(char::is_control) {
        true => Ok(name.to_owned()),
        false => Err("must be 1 to 255 bytes without control characters".to_owned()),
    }
}

/// That of a command with its arguments.
fn fingerprint(command: &[OsString]) -> Fingerprint {
    let words = command.iter().map(|word| bytes(word));
    words
        .fold(Fingerprint::builder(), |all, word| all.part("word", word))
        .finish()
}

fn bytes(word: &OsStr) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(word)
}
