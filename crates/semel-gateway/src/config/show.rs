//! What holds, and where it comes from, for people.

use super::StoreUrl;
use super::file::{RouteSaid, route_settings};
use super::settings::{RECONCILE, SETTINGS, Setting};
use super::sources::{Given, Said, Sources};

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
        let top = lines.chain(dispositions(&self.top)).chain(names);
        top.chain(self.routes.iter().flat_map(|route| self.route(route)))
    }

    /// What holds in a route.
    fn route(&self, route: &RouteSaid) -> Vec<String> {
        let all = route.said.over(&self.top);
        let is_plain = all
            .given
            .get("protect")
            .is_some_and(|set| set.value == "false");
        let settings = route_settings().filter(|setting| !(is_plain && setting.needs_key()));
        let settings = settings.filter_map(|setting| line(setting, setting.route_key(), &all));
        let dispositions = dispositions(&all).filter(|_| !is_plain);
        let lines = settings.chain(dispositions).map(|line| format!("  {line}"));
        [String::new(), route.at.clone()]
            .into_iter()
            .chain(lines)
            .collect()
    }
}

fn line(setting: &Setting, name: &str, said: &Said) -> Option<String> {
    let Given { value, from } = said.given.get(setting.name)?;
    let value = match setting.name {
        "store" => StoreUrl(value.clone()).to_string(),
        "reconciler" => without_query(value),
        _ => value.clone(),
    };
    Some(format!("{name:<18} {value}  ({from})"))
}

fn dispositions(said: &Said) -> impl Iterator<Item = String> {
    let lines = said.dispositions.iter();
    lines.map(|(statuses, Given { value, from })| {
        format!("{:<18} {statuses}: {value}  ({from})", "dispositions")
    })
}

fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((url, _)) => format!("{url}?…"),
        None => url.to_owned(),
    }
}
