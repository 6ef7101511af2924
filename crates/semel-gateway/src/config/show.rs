//! What holds, and where it comes from, for people.

use semel::store::Retention;
use semel_tower::Mode;

use super::file::route_settings;
use super::settings::{RECONCILE, SETTINGS, Setting};
use super::sources::{Given, Said, Sources};
use super::{StoreUrl, values};
use crate::at_rest::{self, Source};

impl Sources {
    /// Every setting with its value and where it comes from, then every route likewise.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let said = |name: &str| self.top.given.get(name).map(|set| set.value.as_str());
        let asks = said("reconciler").is_some();
        let settings = SETTINGS
            .iter()
            .chain(RECONCILE.iter().filter(move |_| asks));
        let lines = settings.filter_map(|setting| line(setting, setting.name, &self.top));
        // Values may be passwords.
        let names = self.headers.keys();
        let names = names.map(|name| format!("{:<18} {name}: …", "reconcile.headers"));
        let declared = declaration(&self.top);
        let top = lines
            .chain(declared)
            .chain(dispositions(&self.top))
            .chain(names);
        let tokens = self.tokens.iter().filter_map(|token| {
            let said = |name| token.said.given.get(name).map(|set| set.value.as_str());
            let role = said("role").into_iter().map(str::to_owned);
            let claims = said("claims").map(|claims| format!("claims {claims}"));
            let rights = role.chain(claims).collect::<Vec<_>>().join(", ");
            let (name, at) = (said("name")?, &token.at);
            Some(format!("{:<18} {name}: {rights}  ({at})", "tokens"))
        });
        let routes = self.routes.iter().enumerate().flat_map(|(nth, route)| {
            let title = [String::new(), format!("{}:", route.at)];
            title.into_iter().chain(self.route(nth))
        });
        let rest = match self.top.given.get("upstream") {
            Some(_) => "all others: as at the top",
            None => "all others: 404 no-route",
        };
        let rest = (!self.routes.is_empty()).then(|| [String::new(), rest.to_owned()]);
        top.chain(tokens)
            .chain(routes)
            .chain(rest.into_iter().flatten())
    }

    /// Where the route of this number is said.
    pub fn place(&self, nth: usize) -> &str {
        self.routes.get(nth).map_or("all others", |route| &route.at)
    }

    /// What holds in the route of this number, and where it comes from; behind the last, for all others.
    pub fn route(&self, nth: usize) -> Vec<String> {
        let all = match self.routes.get(nth) {
            Some(route) => route.said.over(&self.top),
            None => self.top.clone(),
        };
        let is_plain = all
            .given
            .get("protect")
            .is_some_and(|set| set.value == "false");
        let settings = route_settings().filter(|setting| !(is_plain && setting.needs_key()));
        let settings = settings.filter_map(|setting| line(setting, setting.route_key(), &all));
        let declared = declaration(&all);
        let more = declared.into_iter().chain(dispositions(&all));
        let lines = settings.chain(more.filter(|_| !is_plain));
        lines.map(|line| format!("  {line}")).collect()
    }
}

fn line(setting: &Setting, name: &str, said: &Said) -> Option<String> {
    let Given { value, from } = said.given.get(setting.name)?;
    let value = match setting.name {
        "store" => StoreUrl(value.clone()).to_string(),
        "large-answers" => {
            values::objects(value).map_or_else(|_| "…".to_owned(), |url| url.to_string())
        }
        "reconciler" | "jwt-jwks" | "auth-url" | "otlp-endpoint" => without_query(value),
        at_rest::KEYS | at_rest::SECRETS => without_arguments(value),
        _ => value.clone(),
    };
    Some(format!("{name:<18} {value}  ({from})"))
}

/// What the service has to declare to its clients of what holds.
fn declaration(said: &Said) -> Option<String> {
    let preset = values::preset(&said.given.get("preset")?.value).ok()?;
    // What is only observed is not promised.
    if values::mode(&said.given.get("mode")?.value).ok()? == Mode::Observe {
        return None;
    }
    let replay = values::retention(&said.given.get("ttl")?.value).ok()?;
    let declared = preset.declaration(Retention::new(replay)).ok()??;
    Some(format!(
        "{:<18} {declared}  (preset {preset})",
        "to declare"
    ))
}

fn dispositions(said: &Said) -> impl Iterator<Item = String> {
    let lines = said.dispositions.iter();
    lines.map(|(statuses, Given { value, from })| {
        format!("{:<18} {statuses}: {value}  ({from})", "dispositions")
    })
}

/// A program's arguments may be secrets.
fn without_arguments(source: &str) -> String {
    match Source::parse(source) {
        Ok(Source::Command(words)) if words.len() > 1 => format!("exec:{} …", words[0]),
        _ => source.to_owned(),
    }
}

fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((url, _)) => format!("{url}?…"),
        None => url.to_owned(),
    }
}
