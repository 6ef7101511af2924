//! The configuration file.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::Dispositions;
use super::settings::{RECONCILE, SETTINGS, Setting};
use super::sources::Given;

/// The configuration file, and where what it says goes.
pub(super) struct File<'a> {
    pub(super) path: &'a str,
    pub(super) given: &'a mut BTreeMap<&'static str, Given>,
    pub(super) headers: &'a mut HeaderMap,
    pub(super) dispositions: &'a mut Dispositions,
    pub(super) errors: &'a mut Vec<String>,
}

impl File<'_> {
    pub(super) fn read(mut self, text: &str) {
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
