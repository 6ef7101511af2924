//! The members of a JSON object, each as it was written.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The object that a JSON text is. Members that are not changed keep their bytes: no number is read.
pub(crate) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// `None` where the text is no JSON object, or names a member twice.
    pub(crate) fn of(text: &'a [u8]) -> Option<Self> {
        let members = Self::of_any(text)?;
        let mut names = HashSet::with_capacity(members.0.len());
        let are_distinct = members.0.iter().all(|(name, _)| names.insert(&**name));
        are_distinct.then_some(members)
    }

    /// `None` where the text is no JSON object.
    pub(crate) fn of_any(text: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let mut members = self.0.iter();
        members.find(|member| member.0 == name).map(|m| m.1)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|member| member.0.as_str())
    }

    /// Every value of a member.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &'a RawValue> {
        let members = self.0.iter();
        members.filter(move |member| member.0 == name).map(|m| m.1)
    }

    /// Sets a member, or removes it, however often it is named.
    pub(crate) fn set(&mut self, name: &str, value: Option<&'a RawValue>) {
        let mut value = value;
        self.0.retain_mut(|member| match member.0 == name {
            true => value.take().map(|value| member.1 = value).is_some(),
            false => true,
        });
        self.0.extend(value.map(|value| (name.to_owned(), value)));
    }

    pub(crate) fn write(&self) -> Bytes {
        self.text().into()
    }

    pub(crate) fn to_raw(&self) -> Option<Box<RawValue>> {
        RawValue::from_string(self.text()).ok()
    }

    fn text(&self) -> String {
        let mut text = String::from("{");
        for (nth, (name, value)) in self.0.iter().enumerate() {
            if nth > 0 {
                text.push(',');
            }
            text.push_str(&serde_json::Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Any JSON, nested a little.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 32, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map(".*", inner, 0..8)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = Members::of(&bytes);
        }

        #[test]
        fn an_object_is_written_as_it_was_read(value in json()) {
            let text = value.to_string();
            let members = Members::of(text.as_bytes());
            prop_assert_eq!(members.is_some(), value.is_object());
            if let Some(members) = members {
                let again: Value = serde_json::from_slice(&members.write()).unwrap();
                prop_assert_eq!(again, value);
            }
        }
    }

    #[test]
    fn what_is_not_changed_keeps_its_bytes() {
        let text = br#" {"b" : 9007199254740993, "a\n":[ 1.10 ],"c":{"x":1,"x":2}} "#;
        let mut members = Members::of(text).unwrap();
        assert_eq!(
            members.write(),
            &br#"{"b":9007199254740993,"a\n":[ 1.10 ],"c":{"x":1,"x":2}}"#[..]
        );
        members.set("b", None);
        members.set("absent", None);
        members.set("a\n", members.get("c"));
        members.set("d", members.get("c"));
        assert_eq!(
            members.write(),
            &br#"{"a\n":{"x":1,"x":2},"c":{"x":1,"x":2},"d":{"x":1,"x":2}}"#[..]
        );
    }

    #[test]
    fn a_member_that_is_named_twice_is_set_once_and_removed_whole() {
        let text = br#"{"c":1,"a":2,"\u0063":3,"c":4}"#;
        let mut members = Members::of_any(text).unwrap();
        members.set("c", members.get("a"));
        assert_eq!(members.write(), &br#"{"c":2,"a":2}"#[..]);
        let mut members = Members::of_any(text).unwrap();
        members.set("c", None);
        assert_eq!(members.write(), &br#"{"a":2}"#[..]);
    }

    #[test]
    fn what_is_no_object_has_no_members() {
        for text in [
            "[]",
            "1",
            "",
            "{",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
        ] {
            assert!(Members::of(text.as_bytes()).is_none(), "{text}");
        }
    }
}
