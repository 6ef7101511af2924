//! Which requests a route takes.

use std::fmt;

use http::Method;

use super::path::Path;

/// The hosts, paths and methods of a route; an empty list stands for any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matches {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The paths.
    pub paths: Vec<Path>,
    /// The methods.
    pub methods: Vec<Method>,
}

impl Matches {
    /// Why a request with this host, method and reading of its path is none of these, unless it is one.
    pub(crate) fn misses(
        &self,
        host: Option<&str>,
        path: &str,
        method: &Method,
    ) -> Option<&'static str> {
        if !self.methods.is_empty() && !self.methods.contains(method) {
            return Some("method");
        }
        if !self.paths.is_empty() && !self.paths.iter().any(|ours| ours.matches(path)) {
            return Some("path");
        }
        let is_ours = |host| self.hosts.iter().any(|ours| ours.matches(host));
        (!self.hosts.is_empty() && !host.is_some_and(is_ours)).then_some("host")
    }

    /// Whether each request that the other one takes is one of these.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        covers(&self.hosts, &other.hosts, Host::covers)
            && covers(&self.paths, &other.paths, Path::covers)
            && covers(&self.methods, &other.methods, Method::eq)
    }
}

fn covers<T>(ours: &[T], theirs: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    let covered = |theirs: &T| ours.iter().any(|ours| covers(ours, theirs));
    ours.is_empty() || (!theirs.is_empty() && theirs.iter().all(covered))
}

impl fmt::Display for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |texts: Vec<String>, any: &str| match texts.is_empty() {
            true => any.to_owned(),
            false => texts.join(","),
        };
        let methods = list(self.methods.iter().map(Method::to_string).collect(), "any");
        let hosts = list(self.hosts.iter().map(Host::to_string).collect(), "");
        let paths = list(self.paths.iter().map(Path::to_string).collect(), "/*");
        write!(f, "{methods} {hosts}{paths}")
    }
}

/// A host by its name, or all below one: `*.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// This one.
    Exact(String),
    /// All whose names end with this, which begins with a dot.
    Below(String),
}

impl Host {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_bracketed = name.starts_with('[') && name.ends_with(']') && name == text;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let labels = || name.split('.').all(|label| !label.is_empty());
        if !(is_bracketed || name.chars().all(allowed) && labels()) {
            return Err(format!(
                "`{text}` is not a host; write it like shop.example.com or *.example.com, without a \
                 port"
            ));
        }
        Ok(match text.starts_with("*.") {
            true => Self::Below(format!(".{name}")),
            false => Self::Exact(name),
        })
    }

    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Below(end) => host.len() > end.len() && host.ends_with(end),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Exact(name) => self.matches(name),
            Self::Below(end) => {
                matches!(self, Self::Below(ours) if end.ends_with(ours.as_str()))
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Below(end) => write!(f, "*{end}"),
        }
    }
}

/// A host as routes compare it: in lower case, without port and closing dot.
pub(crate) fn host_name(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    host.trim_end_matches('.').to_ascii_lowercase()
}

pub(crate) fn method(text: &str) -> Result<Method, String> {
    // Methods are case-sensitive, and `post` is none that anybody uses.
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) if !text.bytes().any(|b| b.is_ascii_lowercase()) => Ok(method),
        _ => Err(format!(
            "`{text}` is not a method; write it like POST or PATCH"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(hosts: &[&str], paths: &[&str], methods: &[&str]) -> Matches {
        Matches {
            hosts: hosts
                .iter()
                .map(|host| Host::parse(host).unwrap())
                .collect(),
            paths: paths
                .iter()
                .map(|path| Path::parse(path).unwrap())
                .collect(),
            methods: methods.iter().map(|text| method(text).unwrap()).collect(),
        }
    }

    #[test]
    fn hosts_match_exactly_or_below() {
        let below = matches(&["*.example.com"], &[], &[]);
        for (host, is) in [
            ("shop.example.com", true),
            ("a.b.example.com", true),
            ("example.com", false),
            (".example.com", false),
            ("badexample.com", false),
            ("example.com.evil", false),
        ] {
            let misses = below.misses(Some(host), "/", &Method::GET);
            assert_eq!(misses, (!is).then_some("host"), "{host}");
        }
        assert!(below.misses(None, "/", &Method::GET).is_some());
        let exact = matches(&["Shop.example."], &[], &[]);
        for host in ["shop.example", "SHOP.example:8080", "shop.example.:443"] {
            let misses = exact.misses(Some(&host_name(host)), "/", &Method::GET);
            assert_eq!(misses, None, "{host}");
        }
        assert_eq!(host_name("[2001:DB8::1]"), "[2001:db8::1]");
        assert_eq!(host_name("[2001:DB8::1]:80"), "[2001:db8::1]");
    }

    #[test]
    fn what_is_no_host_or_method_is_told() {
        for host in ["", "*", "*.", "a:80", "a b", "*.*.a", "a..b", "http://a"] {
            assert!(Host::parse(host).is_err(), "{host}");
        }
        for text in ["", "post", "P T", "POST,PUT"] {
            assert!(method(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_route_that_takes_everything_of_another_covers_it() {
        let any = Matches::default();
        let orders = matches(&["*.example.com"], &["/orders/*"], &["POST", "PUT"]);
        let shop = matches(&["shop.example.com"], &["/orders/{id}"], &["POST"]);
        assert!(any.covers(&orders) && orders.covers(&shop));
        assert!(!orders.covers(&any) && !shop.covers(&orders));
        assert_eq!(orders.to_string(), "POST,PUT *.example.com/orders/*");
        assert_eq!(any.to_string(), "any /*");
    }
}
