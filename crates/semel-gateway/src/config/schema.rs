//! A JSON Schema of the configuration file, made from the lists that it is read by.

use semel_tower::Preset;
use serde_json::{Map, Value, json};

use super::file::route_settings;
use super::settings::{RECONCILE, SECTIONS, SETTINGS, Setting, TOKEN};

/// The schema, in draft 2020-12.
pub(crate) fn schema() -> Value {
    let top = SETTINGS.iter().filter(|setting| setting.name != "config");
    let mut top: Map<String, Value> = top.map(|s| property(s, s.name)).collect();
    let reconcile = RECONCILE.iter().map(|setting| {
        let (_, name) = setting.name.split_once('.').unwrap_or_default();
        property(setting, name)
    });
    let mut reconcile: Map<String, Value> = reconcile.collect();
    reconcile.insert("url".to_owned(), json!({"type": "string"}));
    let fields = json!({"type": "object", "additionalProperties": {"type": "string"}});
    reconcile.insert("headers".to_owned(), fields);
    let mut route: Map<String, Value> = route_settings()
        .map(|setting| property(setting, setting.route_key()))
        .collect();
    for place in [&mut top, &mut route] {
        place.insert("dispositions".to_owned(), dispositions());
    }
    top.extend(sections(SETTINGS.iter()));
    route.extend(sections(route_settings()));
    top.insert("reconcile".to_owned(), section(&reconcile));
    let routes = json!({"type": "array", "items": section(&route)});
    top.insert("routes".to_owned(), routes);
    let token = TOKEN.iter().map(|setting| property(setting, setting.name));
    let tokens = json!({"type": "array", "items": section(&token.collect())});
    top.insert("tokens".to_owned(), tokens);
    let mut schema = section(&top);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "The configuration file of `semel serve`".into();
    schema
}

/// The sections whose keys are settings.
fn sections(
    settings: impl Iterator<Item = &'static Setting> + Clone,
) -> impl Iterator<Item = (String, Value)> {
    SECTIONS.iter().filter_map(move |name| {
        let short = |setting: &'static Setting| {
            let key = setting.name.strip_prefix(name)?.strip_prefix('-')?;
            Some(property(setting, key))
        };
        let keys: Map<String, Value> = settings.clone().filter_map(short).collect();
        (!keys.is_empty()).then(|| ((*name).to_owned(), section(&keys)))
    })
}

fn section(properties: &Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn property(setting: &Setting, name: &str) -> (String, Value) {
    let mut property = match setting.value {
        None => json!({"type": "boolean"}),
        Some("N") => json!({"type": "integer", "minimum": 1}),
        Some("NAME") if setting.name == "preset" => {
            json!({"enum": Preset::ALL.map(Preset::as_str)})
        }
        Some("SIZE") => json!({"type": ["string", "integer"]}),
        Some(choice) if choice.contains('|') => {
            let choice = json!({"enum": choice.split('|').collect::<Vec<_>>()});
            match setting.list {
                true => json!({"type": ["string", "array"], "items": choice}),
                false => choice,
            }
        }
        Some(_) if setting.list => {
            json!({"type": ["string", "array"], "items": {"type": "string"}})
        }
        Some(_) => json!({"type": "string"}),
    };
    property["description"] = setting.help.into();
    // What a route leaves open comes from the top.
    if let Some(default) = setting.default.filter(|_| !setting.is_for_routes()) {
        property["default"] = match setting.value {
            Some("N") | None => serde_json::from_str(default).unwrap_or(default.into()),
            Some(_) => default.into(),
        };
    }
    (name.to_owned(), property)
}

fn dispositions() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "patternProperties": {
            "^([2-5]xx|[2-5][0-9][0-9])$": {"enum": ["keep", "release", "unknown"]},
        },
        "description": "What the statuses of the upstream's answers mean",
    })
}
