//! Flags, environment and file, before they are understood.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::ArgMatches;
use http::header::{HeaderMap, HeaderName};
use semel::store::Retention;
use semel_tower::Preset;

use super::file::{File, SectionSaid};
use super::settings::{RECONCILE, ROUTE, Reach, SETTINGS};
use super::values;
use crate::telemetry::IS_DISABLED;

/// Where a value comes from that nobody said.
const DEFAULT: &str = "default";
/// Where it comes from if a preset says it; the preset's name follows.
const PRESET: &str = "preset ";

/// Where a value comes from, as an operator would look for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) value: String,
    pub(super) from: String,
}

/// What a file holds, or why it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents(Result<String, String>);

impl Contents {
    pub(crate) fn of(path: &str) -> Self {
        Self(std::fs::read_to_string(path).map_err(|error| error.to_string()))
    }
}

/// What is said in one place: for everything, or for a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) given: BTreeMap<&'static str, Given>,
    /// Statuses and what they mean.
    pub(super) dispositions: Vec<(String, Given)>,
}

impl Said {
    /// This where it says something, and else what is said at the top.
    pub(super) fn over(&self, top: &Self) -> Self {
        let mut all = top.clone();
        settle_place(&mut all.given, &self.given);
        all.given.extend(self.given.clone());
        // A class here says more than a status at the top.
        let is_said = |statuses: &str| {
            let mut ours = self.dispositions.iter().map(|(ours, _)| ours.as_str());
            ours.any(|ours| match ours.strip_suffix("xx") {
                Some(class) => statuses.starts_with(class),
                None => ours == statuses,
            })
        };
        all.dispositions.retain(|(statuses, _)| !is_said(statuses));
        all.dispositions.extend(self.dispositions.iter().cloned());
        all.follow_preset();
        all
    }

    /// What the preset says holds where nobody said otherwise.
    fn follow_preset(&mut self) {
        let name = self.given.get("preset").map(|set| set.value.as_str());
        // One that there is not has its message.
        let preset: Preset = name
            .and_then(|name| name.parse().ok())
            .unwrap_or(Preset::Ietf);
        let from = match preset {
            Preset::Ietf => DEFAULT.to_owned(),
            preset => format!("{PRESET}{preset}"),
        };
        let has_place = PLACES.iter().any(|name| self.is_said(name));
        for (name, value) in of_preset(preset) {
            if self.is_said(name) {
                continue;
            }
            let value = value.filter(|_| !(has_place && PLACES.contains(&name)));
            let from = from.clone();
            match value {
                Some(value) => self.given.insert(name, Given { value, from }),
                None => self.given.remove(name),
            };
        }
    }

    pub(super) fn is_said(&self, name: &str) -> bool {
        let given = self.given.get(name);
        given.is_some_and(|given| given.from != DEFAULT && !given.from.starts_with(PRESET))
    }
}

/// Where a key can be. Who says one of them says that it is not the other one.
const PLACES: [&str; 2] = ["key-header", "key-member"];

/// What a preset says of settings.
fn of_preset(preset: Preset) -> [(&'static str, Option<String>); 11] {
    let Retention { tombstone, replay } = preset.retention();
    let is_set = |set: bool| set.then(|| "true".to_owned());
    let mark = preset.replay_header();
    let mark = mark.as_ref().map_or(values::NONE, HeaderName::as_str);
    let methods = preset.methods().join(",");
    let rule = preset.key_rule();
    [
        ("ttl", Some(values::hours(replay))),
        ("tombstone", Some(values::hours(tombstone))),
        ("require-key", is_set(preset.key_required())),
        (
            "key-header",
            preset.key_header().map(|name| name.to_string()),
        ),
        ("key-member", preset.key_member().map(str::to_owned)),
        (
            "key-syntax",
            values::name_in(&values::SYNTAXES, |one| *one == preset.syntax()),
        ),
        (
            "key-rule",
            values::name_in(&values::KEY_RULES, |(one, _)| *one == rule),
        ),
        (
            "key-methods",
            Some(methods).filter(|methods| !methods.is_empty()),
        ),
        ("scope-target", is_set(preset.scope_target())),
        ("dialect", Some(preset.dialect().as_str().to_owned())),
        ("replay-header", Some(mark.to_owned())),
    ]
}

/// Of two places of a key the one that is said by whom counts more.
fn settle_place(given: &mut BTreeMap<&'static str, Given>, over: &BTreeMap<&'static str, Given>) {
    if PLACES.iter().any(|name| over.contains_key(name)) {
        given.retain(|name, _| !PLACES.contains(name));
    }
}

/// The values of all settings before they are understood: a flag beats the environment, which beats
/// the file, which beats the default. What a route says holds there.
#[derive(Debug)]
pub struct Sources {
    // Flags and environment, and what is wrong with them: they do not change.
    outside: BTreeMap<&'static str, Given>,
    outside_errors: Vec<String>,
    file: Option<Contents>,
    pub(super) top: Said,
    pub(super) routes: Vec<SectionSaid>,
    pub(super) tokens: Vec<SectionSaid>,
    // What is sent with every question to the reconciler.
    pub(super) headers: HeaderMap,
    // What is wrong with them before they are understood.
    pub(super) errors: Vec<String>,
    // A file could not be read: what is missing may be in it.
    pub(super) is_partial: bool,
    // Settings of the start are in it, which nothing may need any more.
    pub(super) has_kept: bool,
}

impl Sources {
    /// Collects what is said. `variable` looks into the environment, where an empty value counts as
    /// none. A file that cannot be read, or that sets what there is not, and a variable that is no
    /// text are told with the values that are not right.
    pub fn collect(flags: &ArgMatches, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut given = BTreeMap::new();
        let mut errors = Vec::new();
        let is_disabled = variable(IS_DISABLED).is_some_and(|said| said == "true");
        for setting in &SETTINGS {
            let name = setting.variable();
            // Some subcommands have some of the flags only.
            let values = flags.try_get_many::<String>(setting.name).ok().flatten();
            let flag = values.map(|values| Given {
                value: values.map(String::as_str).collect::<Vec<_>>().join(","),
                from: format!("--{}", setting.name),
            });
            let set = flag.or_else(|| {
                let others = setting.other_variables().iter();
                let others = others
                    .filter(|_| !is_disabled)
                    .map(|name| (*name).to_owned());
                let mut names = std::iter::once(name).chain(others);
                let (name, value) = names.find_map(|name| {
                    let value = variable(&name).filter(|value| !value.is_empty())?;
                    Some((name, value))
                })?;
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
        let path = given.get("config").map(|given| given.value.clone());
        let file = path.map(|path| Contents::of(&path));
        Self::put_together(given, errors, file)
    }

    /// The same flags and environment, with a file that changed.
    pub(crate) fn with_file(&self, file: Option<Contents>) -> Self {
        Self::put_together(self.outside.clone(), self.outside_errors.clone(), file)
    }

    fn put_together(
        outside: BTreeMap<&'static str, Given>,
        outside_errors: Vec<String>,
        contents: Option<Contents>,
    ) -> Self {
        let mut errors = outside_errors.clone();
        let mut said = File::default();
        if let (Some(Given { value: path, from }), Some(Contents(read))) =
            (outside.get("config"), &contents)
        {
            match read {
                Ok(text) => said = File::read(path, text),
                Err(error) => {
                    said.is_partial = true;
                    errors.push(format!("{from}: cannot read `{path}`: {error}"));
                }
            }
        }
        errors.append(&mut said.errors);
        let mut top = said.top;
        settle_place(&mut top.given, &outside);
        top.given.extend(outside.clone());
        for setting in SETTINGS.iter().chain(&ROUTE).chain(&RECONCILE) {
            if let Some(default) = setting.default {
                top.given.entry(setting.name).or_insert_with(|| Given {
                    value: default.to_owned(),
                    from: DEFAULT.to_owned(),
                });
            }
        }
        top.follow_preset();
        Self {
            outside,
            outside_errors,
            file: contents,
            top,
            routes: said.routes,
            tokens: said.tokens,
            headers: said.headers,
            errors,
            is_partial: said.is_partial,
            has_kept: false,
        }
    }

    /// What the file held.
    pub(crate) fn file(&self) -> Option<&Contents> {
        self.file.as_ref()
    }

    /// The file, if there is one.
    pub(crate) fn path(&self) -> Option<&str> {
        Some(&self.outside.get("config")?.value)
    }

    /// Takes back what can be said at the start only, and says so of each.
    pub(crate) fn keep_from_start(&mut self, start: &Self) -> Vec<String> {
        let mut kept = Vec::new();
        let settings = SETTINGS.iter().chain(&RECONCILE);
        for setting in settings.filter(|setting| setting.reach == Reach::Start) {
            let given = &mut self.top.given;
            let (now, then) = (given.get(setting.name), start.top.given.get(setting.name));
            if now.map(|given| &given.value) == then.map(|given| &given.value) {
                continue;
            }
            let said = now.filter(|given| given.from != DEFAULT).or(then);
            let place = said.map_or(setting.name, |given| &given.from);
            kept.push(format!(
                "{place}: `{}` changes with a restart only",
                setting.name
            ));
            match then {
                Some(then) => drop(given.insert(setting.name, then.clone())),
                None => drop(given.remove(setting.name)),
            }
        }
        if self.headers != start.headers {
            kept.push("`reconcile.headers` change with a restart only".to_owned());
            self.headers = start.headers.clone();
        }
        self.has_kept = !kept.is_empty();
        kept
    }

    /// Whether log lines are to be JSON, as far as it can be told where something is not right.
    pub fn log_json(&self) -> bool {
        let format = self.top.given.get("log-format");
        format.is_some_and(|set| values::log_format(&set.value) == Ok(true))
    }
}
