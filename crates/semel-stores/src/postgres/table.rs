//! The names of what a store has on its server.

use std::fmt;
use std::str::FromStr;

/// The records table's name: `name` or `schema.name`, of letters, digits and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    schema: Option<String>,
    name: String,
}

impl FromStr for Table {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // Room for `_versioned` within PostgreSQL's 63 bytes.
        let plain = |part: &str| {
            part.len() <= 50
                && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        if !plain(name) || !schema.is_none_or(plain) {
            return Err(());
        }
        Ok(Self {
            schema: schema.map(Into::into),
            name: name.into(),
        })
    }
}

impl Table {
    fn named(&self, suffix: &str) -> String {
        match &self.schema {
            Some(schema) => format!("\"{schema}\".\"{}{suffix}\"", self.name),
            None => format!("\"{}{suffix}\"", self.name),
        }
    }

    /// The table of records, quoted.
    pub(super) fn quoted(&self) -> String {
        self.named("")
    }

    /// The table that holds the schema's version, quoted.
    pub(super) fn versions(&self) -> String {
        self.named("_versions")
    }

    /// The table of versioned records, quoted.
    pub(super) fn versioned(&self) -> String {
        self.named("_versioned")
    }

    /// The sequence that fences come from, quoted.
    pub(super) fn fences(&self) -> String {
        self.named("_fences")
    }

    /// The name of an index, quoted. It lies in its table's schema.
    pub(super) fn index(&self, what: &str) -> String {
        format!("\"{}_{what}\"", self.name)
    }

    /// The channel on which changes are told, unquoted.
    pub(super) fn channel(&self) -> String {
        format!("semel_{}", self.name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            schema: None,
            name: "semel_records".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_names_and_nothing_else() {
        for (text, quoted) in [
            ("a", "\"a\""),
            ("Orders_2", "\"Orders_2\""),
            ("s.t", "\"s\".\"t\""),
        ] {
            assert_eq!(text.parse::<Table>().unwrap().quoted(), quoted);
        }
        for text in [
            "", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "ä", "a;b",
        ] {
            assert!(text.parse::<Table>().is_err(), "{text}");
        }
        assert!("a".repeat(51).parse::<Table>().is_err());
    }
}
