//! What `semel run` is told: flags, which beat the environment.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use semel::guard::Policy;
use semel::store::{OnLost, Retention};
use semel::{Fingerprint, Identity, Key, Scope};

use super::exits::OnExit;
use crate::config::settings::{Reach, Setting};
use crate::config::{StoreUrl, values};

/// Where records are kept.
pub(super) enum Place {
    Store(StoreUrl),
}

/// What is run, and how.
pub(super) struct Settings {
    pub(super) place: Place,
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

const fn setting(
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting {
        name,
        value: Some(value),
        default,
        help,
        list: false,
        reach: Reach::Start,
    }
}

const fn list(name: &'static str, value: &'static str, help: &'static str) -> Setting {
    Setting {
        list: true,
        ..setting(name, value, None, help)
    }
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

    fn right<T>(&mut self, from: &str, parsed: Result<T, String>) -> Option<T> {
        parsed
            .map_err(|error| self.errors.push(format!("{from}: {error}")))
            .ok()
    }
}

impl Settings {
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
        let Some((from, values)) = self.given("store") else {
            self.errors.push(NOWHERE.to_owned());
            return None;
        };
        let store = values.last().map(|url| match url.split_once(':') {
            Some(("memory", _)) => Err(FORGETS.to_owned()),
            _ => values::store(url),
        })?;
        let store = self.right(&from, store)?;
        Some(Place::Store(StoreUrl(store)))
    }
}

const NOWHERE: &str = "--store is missing: say where records are kept, as in sqlite:/var/lib/semel/jobs.db \
     (or in SEMEL_STORE). There is no default, because a job would run once in each folder it is started in";
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
