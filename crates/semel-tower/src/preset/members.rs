//! The members of a JSON object, each as it was written.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The object that a JSON text is. Members that are not changed keep their bytes: no number is read.
pub(crate) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// `None` where the text is no JSON object, or names a member twice.
    pub(crate) fn of(text: &'a [u8]) -> Option<Self> {
        let members: Self = serde_json::from_slice(text).ok()?;
        let named_twice = |nth: usize, name: &String| members.0[..nth].iter().any(|m| m.0 == *name);
        let mut all = members.0.iter().enumerate();
        (!all.any(|(nth, (name, _))| named_twice(nth, name))).then_some(members)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let mut members = self.0.iter();
        members.find(|member| member.0 == name).map(|m| m.1)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|member| member.0.as_str())
    }

    /// Sets a member, or removes it.
    pub(crate) fn set(&mut self, name: &str, value: Option<&'a RawValue>) {
        let place = self.0.iter().position(|member| member.0 == name);
        match (place, value) {
            (Some(at), Some(value)) => self.0[at].1 = value,
            (Some(at), None) => drop(self.0.remove(at)),
            (None, Some(value)) => self.0.push((name.to_owned(), value)),
            (None, None) => {}
        }
    }

    pub(crate) fn write(&self) -> Bytes {
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
        text.into()
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
    use super::*;

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
