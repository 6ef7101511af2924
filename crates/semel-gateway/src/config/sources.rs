//! Flags, environment and file, before they are understood.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::ArgMatches;
use http::header::HeaderMap;

use super::file::File;
use super::settings::{RECONCILE, SETTINGS};
use super::{Dispositions, StoreUrl, values};

/// Where a value comes from that nobody said.
const DEFAULT: &str = "default";

/// Where a value comes from, as an operator would look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) value: String,
    pub(super) from: String,
}

/// The values of all settings before they are understood: a flag beats the environment, which beats
/// the file, which beats the default.
#[derive(Debug)]
pub struct Sources {
    pub(super) given: BTreeMap<&'static str, Given>,
    // What is sent with every question to the reconciler.
    pub(super) headers: HeaderMap,
    pub(super) dispositions: Dispositions,
    // What is wrong with them before they are understood.
    pub(super) errors: Vec<String>,
    // A file could not be read: what is missing may be in it.
    pub(super) is_partial: bool,
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

    /// Whether somebody said it, be it what holds anyway.
    pub(super) fn is_said(&self, name: &str) -> bool {
        let given = self.given.get(name);
        given.is_some_and(|given| given.from != DEFAULT)
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
