//! The configuration file: where each thing in it stands, before it is understood.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{RECONCILE, ROUTE, SECTIONS, SETTINGS, Setting, TOKEN};
use super::sources::{Given, Said};

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) top: Said,
    pub(super) routes: Vec<SectionSaid>,
    pub(super) tokens: Vec<SectionSaid>,
    /// What is sent with every question to the reconciler.
    pub(super) headers: HeaderMap,
    pub(super) errors: Vec<String>,
    /// There is more in it than could be read.
    pub(super) is_partial: bool,
}

/// What a route says, or a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SectionSaid {
    /// Which one, and where it begins.
    pub(super) at: String,
    pub(super) said: Said,
}

/// Sections that are not settings' names with a dash.
const OTHERS: [&str; 4] = ["dispositions", "reconcile", "routes", "tokens"];

impl File {
    pub(super) fn read(path: &str, text: &str) -> Self {
        let mut reader = Reader {
            path,
            text,
            within: String::new(),
            file: Self::default(),
            errors: Vec::new(),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            reader.file.is_partial = true;
            let start = error.span().map_or(0, |span| span.start);
            reader.error(start, error.message());
        }
        if !reader.file.is_partial {
            reader.top(table.get_ref());
        }
        reader.errors.sort_by_key(|(start, _)| *start);
        let errors = reader.errors.into_iter().map(|(_, error)| error);
        reader.file.errors.extend(errors);
        reader.file
    }
}

struct Reader<'a> {
    path: &'a str,
    text: &'a str,
    /// `route 3: `, within one.
    within: String,
    file: File,
    /// With the places where they are.
    errors: Vec<(usize, String)>,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;
type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        let mut top = Said::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.name == name && name != "config");
            match (name, setting) {
                (_, Some(setting)) => self.set(&mut top.given, setting, name, key, value),
                ("dispositions", _) => self.dispositions(&mut top, key, value),
                ("reconcile", _) => self.reconcile(&mut top.given, key, value),
                ("routes", _) => {
                    self.file.routes = self.sections("route", key, value, Self::route);
                }
                ("tokens", _) => {
                    self.file.tokens = self.sections("token", key, value, Self::token);
                }
                (section, _) if SECTIONS.contains(&section) => {
                    self.section(&mut top.given, &SETTINGS.iter(), key, value);
                }
                _ => {
                    let settings = SETTINGS.iter().map(|setting| setting.name);
                    let known = settings.filter(|name| *name != "config");
                    let known = known.chain(SECTIONS).chain(OTHERS);
                    self.unknown(key, name, known);
                }
            }
        }
        self.file.top = top;
    }

    /// The sections of an array, each as it is read by `read`.
    fn sections(
        &mut self,
        what: &str,
        key: &Key<'_>,
        value: &Value<'_>,
        read: impl Fn(&mut Self, &DeTable<'_>) -> Said,
    ) -> Vec<SectionSaid> {
        let mut all = Vec::new();
        let Some(sections) = value.get_ref().as_array() else {
            let message = format!("`{what}s` must be sections: [[{what}s]]");
            self.error(key.span().start, &message);
            return all;
        };
        for (nth, section) in sections.iter().enumerate() {
            let (start, nth) = (section.span().start, nth + 1);
            self.within = format!("{what} {nth}: ");
            match section.get_ref().as_table() {
                Some(table) => {
                    let at = format!("{}:{}: {what} {nth}", self.path, self.line(start));
                    let said = read(self, table);
                    all.push(SectionSaid { at, said });
                }
                None => {
                    let message = format!("a {what} must be a section: [[{what}s]]");
                    self.error(start, &message);
                }
            }
        }
        self.within.clear();
        all
    }

    fn token(&mut self, table: &DeTable<'_>) -> Said {
        let mut said = Said::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            match TOKEN.iter().find(|setting| setting.name == name) {
                Some(setting) => self.set(&mut said.given, setting, name, key, value),
                None => self.unknown(key, name, TOKEN.iter().map(|setting| setting.name)),
            }
        }
        said
    }

    fn route(&mut self, table: &DeTable<'_>) -> Said {
        let mut said = Said::default();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let mut settings = route_settings();
            match settings.find(|setting| setting.route_key() == name) {
                Some(setting) => self.set(&mut said.given, setting, name, key, value),
                None if name == "dispositions" => self.dispositions(&mut said, key, value),
                None if name == "limits" => {
                    self.section(&mut said.given, &route_settings(), key, value);
                }
                None => {
                    let known = route_settings().map(Setting::route_key);
                    self.unknown(key, name, known.chain(["dispositions", "limits"]));
                }
            }
        }
        said
    }

    /// A section whose keys are settings: their names begin with its own.
    fn section(
        &mut self,
        given: &mut BTreeMap<&'static str, Given>,
        settings: &(impl Iterator<Item = &'static Setting> + Clone),
        section: &Key<'_>,
        value: &Value<'_>,
    ) {
        let (start, section) = (section.span().start, section.get_ref());
        let Some(table) = value.get_ref().as_table() else {
            return self.error(start, &format!("`{section}` must be a section"));
        };
        for (key, value) in table {
            let name = format!("{section}.{}", key.get_ref());
            let prefix = format!("{section}-");
            let short = |setting: &'static Setting| setting.name.strip_prefix(prefix.as_str());
            let is_meant = |s: &&'static Setting| short(s) == Some(key.get_ref().as_ref());
            match settings.clone().find(is_meant) {
                Some(setting) => self.set(given, setting, &name, key, value),
                None => {
                    let known = settings.clone().filter_map(short);
                    let known: Vec<_> = known.map(|key| format!("{section}.{key}")).collect();
                    self.unknown(key, &name, known.iter().map(String::as_str));
                }
            }
        }
    }

    fn dispositions(&mut self, said: &mut Said, key: &Key<'_>, value: &Value<'_>) {
        let Some(section) = value.get_ref().as_table() else {
            return self.error(key.span().start, "`dispositions` must be a section");
        };
        for (statuses, meaning) in section {
            let start = statuses.span().start;
            match meaning.get_ref().as_str() {
                Some(meaning) => said.dispositions.push((
                    statuses.get_ref().clone().into_owned(),
                    Given {
                        value: meaning.to_owned(),
                        from: self.place(start, "dispositions"),
                    },
                )),
                None => {
                    let statuses = statuses.get_ref();
                    let message = format!("dispositions: what {statuses} means must be a text");
                    self.error(start, &message);
                }
            }
        }
    }

    fn reconcile(
        &mut self,
        given: &mut BTreeMap<&'static str, Given>,
        key: &Key<'_>,
        value: &Value<'_>,
    ) {
        let Some(section) = value.get_ref().as_table() else {
            return self.error(key.span().start, "`reconcile` must be a section");
        };
        for (key, value) in section {
            let name = format!("reconcile.{}", key.get_ref());
            let reconciler = SETTINGS.iter().find(|s| s.name == "reconciler");
            let setting = RECONCILE.iter().find(|s| s.name == name);
            let setting = setting.or(reconciler.filter(|_| key.get_ref() == "url"));
            match setting {
                Some(setting) => self.set(given, setting, &name, key, value),
                None if key.get_ref() == "headers" => self.headers(key, value),
                None => {
                    let known = RECONCILE.iter().map(|setting| setting.name);
                    self.unknown(
                        key,
                        &name,
                        known.chain(["reconcile.url", "reconcile.headers"]),
                    );
                }
            }
        }
    }

    fn headers(&mut self, key: &Key<'_>, value: &Value<'_>) {
        let Some(fields) = value.get_ref().as_table() else {
            return self.error(key.span().start, "`reconcile.headers` must be a section");
        };
        for (field, value) in fields {
            let start = field.span().start;
            let name = HeaderName::from_bytes(field.get_ref().as_bytes());
            let value = value.get_ref().as_str().map(HeaderValue::from_str);
            match (name, value) {
                (Ok(name), Some(Ok(mut value))) => {
                    value.set_sensitive(true);
                    self.file.headers.append(name, value);
                }
                (Err(_), _) => {
                    let field = field.get_ref();
                    let message = format!("reconcile.headers: `{field}` cannot be a field");
                    self.error(start, &message);
                }
                (Ok(_), _) => {
                    let message = "reconcile.headers: a field's value must be a text on one line";
                    self.error(start, message);
                }
            }
        }
    }

    fn set(
        &mut self,
        given: &mut BTreeMap<&'static str, Given>,
        setting: &Setting,
        name: &str,
        key: &Key<'_>,
        value: &Value<'_>,
    ) {
        let start = key.span().start;
        let text = match value.get_ref() {
            DeValue::Array(values) if setting.list => {
                let texts = values.iter().map(|value| value.get_ref().as_str());
                texts
                    .collect::<Option<Vec<_>>>()
                    .map(|texts| texts.join(","))
            }
            DeValue::String(value) => Some(value.clone().into_owned()),
            DeValue::Integer(value) if value.radix() == 10 => Some(value.as_str().to_owned()),
            DeValue::Boolean(value) => Some(value.to_string()),
            _ => None,
        };
        match text {
            Some(value) => {
                let from = self.place(start, name);
                given.insert(setting.name, Given { value, from });
            }
            None => {
                let list = if setting.list {
                    ", or a list of texts"
                } else {
                    ""
                };
                let message = format!("`{name}` must be a text, a number or true or false{list}");
                self.error(start, &message);
            }
        }
    }

    fn unknown<'k>(
        &mut self,
        key: &Key<'_>,
        name: &str,
        known: impl Iterator<Item = &'k str> + Clone,
    ) {
        let hint = match suggestion(name, known.clone()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known are {}", known.collect::<Vec<_>>().join(", ")),
        };
        let message = format!("there is no setting `{name}`; {hint}");
        self.error(key.span().start, &message);
    }

    /// Where something stands, as an operator would look for it.
    fn place(&self, start: usize, name: &str) -> String {
        let (line, within) = (self.line(start), &self.within);
        format!("{}:{line}: {within}{name}", self.path)
    }

    fn error(&mut self, start: usize, message: &str) {
        let error = self.place(start, message);
        self.errors.push((start, error));
    }

    fn line(&self, start: usize) -> usize {
        let before = self.text.get(..start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }
}

/// What a route can say.
pub(super) fn route_settings() -> impl Iterator<Item = &'static Setting> + Clone {
    let shared = SETTINGS.iter().filter(|setting| setting.is_for_routes());
    ROUTE.iter().chain(shared)
}

/// What somebody meant, perhaps, who wrote this.
fn suggestion<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    // What is right elsewhere.
    let meant = match name {
        "scope" => Some("scope-header"),
        "scope-header" => Some("scope"),
        "method" => Some("methods"),
        "route" => Some("routes"),
        _ => None,
    };
    let mut known = known.map(|known| {
        let likeness = match meant == Some(known) {
            true => 1.0,
            false => strsim::jaro_winkler(&name.replace('_', "-"), known),
        };
        (known, likeness)
    });
    let first = known.next()?;
    let best = known.fold(
        first,
        |best, next| if next.1 > best.1 { next } else { best },
    );
    (best.1 > LIKE).then_some(best.0)
}

/// From here on two names look like the same one.
const LIKE: f64 = 0.8;
