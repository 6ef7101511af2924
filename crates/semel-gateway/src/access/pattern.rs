//! Which operations a token may claim.

use std::fmt;

/// The operation of requests with a key, unless a preset names them otherwise.
const HTTP: &str = "http";

/// `SERVICE/OPERATION`, in both of which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    service: Box<str>,
    operation: Box<str>,
}

impl Pattern {
    /// Every operation of every service.
    pub(super) fn all() -> Self {
        let [service, operation] = ["*".into(), "*".into()];
        Self { service, operation }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((service, operation)) if !service.is_empty() && !operation.is_empty() => {
                Ok(Self {
                    service: service.into(),
                    operation: operation.into(),
                })
            }
            _ => Err(format!(
                "`{text}` names no operations; write SERVICE/OPERATION, where `*` stands for any text: \
                 default/settle-*, orders/*, */*"
            )),
        }
    }

    /// The requests of the gateway's clients are one operation, and their records hold what those were
    /// answered: a star takes them in only where it stands for everything.
    pub(super) fn takes(&self, service: &str, operation: &str) -> bool {
        let is_meant = operation != HTTP || &*self.operation == HTTP || *self == Self::all();
        is_meant && matches(&self.service, service) && matches(&self.operation, operation)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.operation)
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return text.ends_with(part);
        }
        // The first place leaves most to those behind it.
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_nothing_else_does() {
        for (pattern, yes, no) in [
            ("settle", &["settle"][..], &["settle-1", "", "Settle"][..]),
            (
                "settle-*",
                &["settle-", "settle-1"],
                &["settle", "unsettle-1"],
            ),
            ("*", &["", "a", "a/b"], &[]),
            ("*-day", &["close-day", "-day"], &["day", "close-days"]),
            (
                "a*b*c",
                &["abc", "a1b2c", "abbcc", "abcbc"],
                &["ac", "acb", "abcd"],
            ),
            ("a*a", &["aa", "aba"], &["a"]),
            ("POST /v1/*", &["POST /v1/orders"], &["GET /v1/orders"]),
            ("?", &["?"], &["a"]),
        ] {
            for text in yes {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in no {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn a_pattern_has_both_parts() {
        for wrong in ["settle", "", "/a", "a/", "*"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
        let orders = Pattern::parse("orders/POST /v1/*").unwrap();
        assert!(orders.takes("orders", "POST /v1/pay"));
        assert!(!orders.takes("default", "POST /v1/pay"));
    }

    #[test]
    fn what_clients_of_the_gateway_were_answered_is_for_those_who_name_it() {
        let takes = |pattern: &str| Pattern::parse(pattern).unwrap().takes("orders", "http");
        assert!(["orders/http", "*/http", "*/*"].into_iter().all(takes));
        assert!(!["orders/*", "orders/h*", "*/htt*"].into_iter().any(takes));
    }
}
