//! Services that share a store, kept apart by name.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// One of the services that keep their records in one store.
///
/// Its name is part of every operation's name in the store ([`operation`](Self::operation)), and so
/// of every [`Identity`](crate::Identity): the same key, scope and request in two services make two
/// records, and what works on one service's records in the background
/// ([`Background`](crate::guard::Background)) leaves alone those of the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Service(Arc<str>);

/// Not a name for a service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot name a service: 1 to {max} ASCII letters, digits, `.`, `_` and `-`, with a letter or \
     a digit first",
    max = Service::MAX_LEN
)]
pub struct ServiceError(Box<str>);

impl Service {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64;
    const DEFAULT: &str = "default";
    // In no name of a service.
    const AT: char = '@';

    /// The service of this name.
    ///
    /// # Errors
    /// A name that is not 1 to 64 ASCII letters, digits, `.`, `_` and `-`, a letter or digit first.
    pub fn new(name: &str) -> Result<Self, ServiceError> {
        match Self::is_name(name) {
            true => Ok(Self(name.into())),
            false => Err(ServiceError(name.into())),
        }
    }

    fn is_name(name: &str) -> bool {
        (1..=Self::MAX_LEN).contains(&name.len())
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name that one of its operations has in the store: `pay@orders`. In the service `default`
    /// it is the operation's own, unless that has an `@` in it. No two pairs have the same name.
    pub fn operation<'a>(&self, operation: &'a str) -> Cow<'a, str> {
        match self.name() {
            Self::DEFAULT if !operation.contains(Self::AT) => Cow::Borrowed(operation),
            service => Cow::Owned(format!("{operation}{}{service}", Self::AT)),
        }
    }

    /// The operation and the service's name, of a name in the store.
    pub fn split(stored: &str) -> (&str, &str) {
        match stored.rsplit_once(Self::AT) {
            Some((operation, service)) if Self::is_name(service) => (operation, service),
            _ => (stored, Self::DEFAULT),
        }
    }
}

/// The service `default`.
impl Default for Service {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_pairs_have_one_name_and_each_can_be_told_from_it() {
        let operations = [
            "",
            "http",
            "http@a",
            "http@default",
            "@",
            "a@",
            "@a",
            "a b@c d",
            "a@b@c",
        ];
        let mut names = HashSet::new();
        for service in ["default", "a", "b", "http", "a.b_c-1"] {
            let service = Service::new(service).unwrap();
            for operation in operations {
                let name = service.operation(operation).into_owned();
                assert_eq!(Service::split(&name), (operation, service.name()), "{name}");
                assert!(names.insert(name.clone()), "{name}");
            }
        }
    }

    #[test]
    fn the_default_changes_no_name() {
        assert_eq!(Service::default().operation("http"), "http");
        assert_eq!(Service::new("default"), Ok(Service::default()));
    }

    #[test]
    fn names_are_checked() {
        let longest = "x".repeat(64);
        for name in ["a", "9", "orders-v2.eu_west", &longest] {
            assert_eq!(Service::new(name).unwrap().name(), name);
        }
        let too_long = "x".repeat(65);
        for name in ["", "a@b", "-a", ".", "a b", "é", "a/b", "a\n", &too_long] {
            let error = Service::new(name).unwrap_err().to_string();
            assert!(error.contains("64 ASCII letters"), "{error}");
        }
    }
}
