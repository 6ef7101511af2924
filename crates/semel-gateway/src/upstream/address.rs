//! The address of an upstream, as its URL says it.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

/// Where a service is, and what it speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// What it speaks.
    pub protocol: Protocol,
    /// Its host, and its port if it is not the protocol's own.
    pub authority: Authority,
}

/// What an upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// `http://`: HTTP/1.1.
    Http,
    /// `https://`: TLS, with HTTP/2 where the upstream has it and HTTP/1.1 elsewhere.
    Https,
    /// `h2c://`: HTTP/2 without TLS.
    H2c,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Http, Self::Https, Self::H2c];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }

    /// The scheme of requests.
    pub(crate) const fn scheme(self) -> Scheme {
        match self {
            Self::Http | Self::H2c => Scheme::HTTP,
            Self::Https => Scheme::HTTPS,
        }
    }

    /// The port that holds where none is said.
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::Http | Self::H2c => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.protocol.as_str(), self.authority)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        let example = "write it like http://127.0.0.1:9000";
        let uri: Uri = value
            .parse()
            .map_err(|error| format!("`{value}` is not a URL ({error}); {example}"))?;
        let parts = uri.into_parts();
        let Some(scheme) = parts.scheme else {
            return Err(format!("the scheme is missing; {example}"));
        };
        let known = Protocol::ALL.into_iter();
        let mut known = known.filter(|protocol| protocol.as_str() == scheme.as_str());
        let Some(protocol) = known.next() else {
            return Err(format!(
                "`{scheme}:` is not supported: it is http, https or h2c; {example}"
            ));
        };
        let Some(authority) = parts.authority.filter(|a| !a.host().is_empty()) else {
            return Err(format!("the host is missing; {example}"));
        };
        if authority.as_str().contains('@') {
            return Err("a user name or password in the URL is not supported".to_owned());
        }
        if authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(format!("the port is not one; {example}"));
        }
        // `Location` fields are passed on as they are: they would be wrong behind a prefix.
        if parts.path_and_query.is_some_and(|path| path != "/") {
            return Err(format!(
                "a path is not supported, since requests keep theirs; {example}"
            ));
        }
        Ok(Self {
            protocol,
            authority,
        })
    }
}
