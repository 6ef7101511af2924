//! Who can read along, or answer in the server's place, on the way to it.

#[cfg(any(feature = "postgres", feature = "redis"))]
use std::error::Error;
#[cfg(any(feature = "postgres", feature = "redis"))]
use std::io;
#[cfg(any(feature = "mysql", feature = "redis"))]
use std::net::IpAddr;
#[cfg(any(feature = "postgres", feature = "redis"))]
use std::sync::Arc;

/// How a connection is protected from whoever is on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It does not leave this machine.
    Local,
    /// Not at all.
    Plain,
    /// It is encrypted, with whoever answers.
    Encrypted,
    /// It is encrypted, and the server's certificate is checked.
    Authenticated,
}

impl Way {
    pub(crate) fn of(local: bool, encrypted: bool, authenticated: bool) -> Self {
        match (encrypted, authenticated) {
            _ if local => Self::Local,
            (false, _) => Self::Plain,
            (true, false) => Self::Encrypted,
            (true, true) => Self::Authenticated,
        }
    }

    /// What a probe says about it; `remedy` is what to write in the URL.
    pub(crate) fn warning(self, remedy: &str) -> Option<String> {
        match self {
            Self::Local | Self::Authenticated => None,
            Self::Plain => Some(format!(
                "The connection is not encrypted, and not on this machine: use {remedy}."
            )),
            Self::Encrypted => Some(format!(
                "The connection is encrypted, but the server is not authenticated: whoever is on \
                 the way can answer in its place. Use {remedy}."
            )),
        }
    }
}

/// Whether this host of a URL is certainly this machine.
#[cfg(any(feature = "mysql", feature = "redis"))]
pub(crate) fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>();
    address.map_or(bare.eq_ignore_ascii_case("localhost"), |address| {
        address.to_canonical().is_loopback()
    })
}

/// What stands in the way of TLS, where that is behind an error: the server's certificate for us, or
/// ours for the server.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn objection<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(objection) = error.downcast_ref() {
            use rustls::Error::{AlertReceived, InvalidCertificate};
            let about_us = matches!(objection, AlertReceived(_) | InvalidCertificate(_));
            return about_us.then_some(objection);
        }
        // These two hide what they hold from `source`.
        next = if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**shared)
        } else if let Some(inner) = error.downcast_ref().and_then(io::Error::get_ref) {
            Some(inner)
        } else {
            error.source()
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "mysql", feature = "redis"))]
    #[test]
    fn only_what_is_certainly_this_machine_is_local() {
        for host in [
            "localhost",
            "LocalHost",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "0.0.0.0", "fd00::2", "db"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn who_is_on_the_way_is_warned_of() {
        let warning = |local, encrypted, authenticated| {
            Way::of(local, encrypted, authenticated).warning("tls=on")
        };
        for local in [
            warning(true, false, false),
            warning(true, true, false),
            warning(false, true, true),
        ] {
            assert_eq!(local, None);
        }
        let plain = warning(false, false, true).unwrap();
        assert!(
            plain.contains("not encrypted") && plain.contains("tls=on"),
            "{plain}"
        );
        let anybody = warning(false, true, false).unwrap();
        assert!(
            anybody.contains("not authenticated") && anybody.contains("tls=on"),
            "{anybody}"
        );
    }
}
