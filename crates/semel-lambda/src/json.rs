//! The fields of a JSON object, each as it was sent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::error::EnvelopeError;

/// The fields of one object.
pub(crate) struct Fields<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    /// The fields of `text`; none where it is JSON, but no object.
    pub(crate) fn of(text: &'a str) -> Result<Option<Self>, EnvelopeError> {
        let whole: &RawValue = serde_json::from_str(text).map_err(EnvelopeError::NotJson)?;
        if !whole.get().starts_with('{') {
            return Ok(None);
        }
        let fields = serde_json::from_str(whole.get()).map_err(EnvelopeError::NotJson)?;
        Ok(Some(Self(fields)))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The field as it was sent.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    /// The field, where it is a text.
    pub(crate) fn text(&self, name: &str) -> Option<Box<str>> {
        serde_json::from_str(self.raw(name)?.get()).ok()
    }

    /// The field, which `shape` has and which is a text that is not empty.
    pub(crate) fn needed_text(
        &self,
        shape: &'static str,
        name: &str,
    ) -> Result<Box<str>, EnvelopeError> {
        self.text(name)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| EnvelopeError::Missing {
                shape,
                field: name.into(),
                kind: "a text",
            })
    }

    /// The field, which `shape` has.
    pub(crate) fn needed_raw(
        &self,
        shape: &'static str,
        name: &str,
    ) -> Result<&'a RawValue, EnvelopeError> {
        self.raw(name).ok_or_else(|| EnvelopeError::Missing {
            shape,
            field: name.into(),
            kind: "a value",
        })
    }

    /// Some names of fields, for a message.
    pub(crate) fn names(&self) -> String {
        const SHOWN: usize = 8;
        let mut names: Vec<String> = self
            .0
            .keys()
            .take(SHOWN)
            .map(|name| format!("`{}`", name.chars().take(32).collect::<String>()))
            .collect();
        if self.0.len() > SHOWN {
            names.push("…".to_owned());
        }
        names.join(", ")
    }
}
