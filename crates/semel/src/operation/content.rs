//! What is asked, in a form that is the same for equal requests.

use super::CallError;
use crate::Fingerprint;

/// Fields by name. Their order does not count, but that of the values of one name.
#[derive(Clone, Default)]
pub(super) struct Content(Vec<(Box<str>, Box<[u8]>)>);

/// The version of the form: part of every digest, so that another form makes other ones.
const FORM: &str = "semel/content/1";

impl Content {
    pub(super) fn add(&mut self, name: &str, value: Vec<u8>) {
        // Behind its equals: the fields are sorted at any time, and stay in order for each name.
        let at = self.0.partition_point(|(known, _)| **known <= *name);
        self.0.insert(at, (name.into(), value.into()));
    }

    /// Of all fields.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        digest(self.0.iter())
    }

    /// A key of all fields.
    pub(super) fn key_of_all(&self) -> String {
        text(&self.fingerprint())
    }

    /// A key of these fields.
    pub(super) fn key_of(&self, names: &'static [&'static str]) -> Result<String, CallError> {
        let has = |name: &str| self.0.iter().any(|(known, _)| **known == *name);
        match names.iter().find(|name| !has(name)) {
            Some(name) => Err(CallError::MissingField(name)),
            None => {
                let chosen = self.0.iter().filter(|(name, _)| names.contains(&&**name));
                Ok(text(&digest(chosen)))
            }
        }
    }
}

fn digest<'a>(fields: impl Iterator<Item = &'a (Box<str>, Box<[u8]>)>) -> Fingerprint {
    fields
        .fold(
            Fingerprint::builder().part("form", FORM.as_bytes()),
            |digest, (name, value)| digest.part(name, value),
        )
        .finish()
}

/// `c`, the version of the digest, and its hexadecimal digits: within every key rule.
fn text(digest: &Fingerprint) -> String {
    let [version, digest @ ..] = digest.to_bytes();
    format!("c{version}.{}", hex::encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> Content {
        let mut content = Content::default();
        for (name, value) in fields {
            content.add(name, value.as_bytes().into());
        }
        content
    }

    #[test]
    fn equal_content_is_one_whatever_the_order_of_names() {
        let one = of(&[("a", "1"), ("b", "2"), ("a", "3")]);
        let same = of(&[("b", "2"), ("a", "1"), ("a", "3")]);
        assert_eq!(one.key_of_all(), same.key_of_all());
        for other in [
            of(&[("a", "3"), ("b", "2"), ("a", "1")]),
            of(&[("a", "1"), ("b", "2")]),
            of(&[("a", "12"), ("b", ""), ("a", "3")]),
            of(&[]),
        ] {
            assert_ne!(one.key_of_all(), other.key_of_all());
        }
    }

    #[test]
    fn the_digest_is_as_it_was() {
        // Another value makes the keys of all users new: raise the form's version with it.
        let key = of(&[("symbol", "ACME"), ("quantity", "3")]).key_of_all();
        assert_eq!(
            key,
            "c1.30cd81058bb525f7c500e11f5bdeec98bab76e984a4ee0885ccd79927c67bdba"
        );
    }

    #[test]
    fn chosen_fields_are_needed_and_others_do_not_count() {
        let key = |fields: &[(&str, &str)]| of(fields).key_of(&["customer", "month"]);
        let one = key(&[("customer", "c"), ("month", "11"), ("cents", "1")]);
        assert_eq!(
            one,
            key(&[("month", "11"), ("customer", "c"), ("cents", "2")])
        );
        assert_eq!(
            key(&[("customer", "c")]),
            Err(CallError::MissingField("month"))
        );
    }
}
