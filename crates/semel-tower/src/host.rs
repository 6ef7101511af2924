//! Fields of a request as scope and fingerprint read them: hosts wherever they stand, and in one form.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, HeaderName};
use http::request::Parts;

/// What a proxy in front says of the host that it was asked for.
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The values of a field. Of `Host` it is the host that the request is for: the target's authority
/// (HTTP/2, and the absolute form of HTTP/1.1), or else the field (RFC 9112, section 3.3).
pub(crate) fn values<'a>(
    parts: &'a Parts,
    name: &HeaderName,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let is_host = is_host(name);
    let target = parts.uri.authority().filter(|_| *name == HOST);
    let fields = parts.headers.get_all(name).iter();
    let fields = fields.filter(move |_| target.is_none()).map(move |value| {
        let value = value.as_bytes();
        if is_host {
            normalized(value)
        } else {
            Cow::Borrowed(value)
        }
    });
    // A user name is part of a target, and of no host (RFC 3986, section 3.2.1).
    let target = target.map(|target| {
        let target = target.as_str();
        let host = target.rsplit_once('@').map_or(target, |(_, host)| host);
        normalized(host.as_bytes())
    });
    target.into_iter().chain(fields)
}

/// Whether a field says for which host a request is.
pub(crate) fn is_host(name: &HeaderName) -> bool {
    *name == HOST || *name == FORWARDED_HOST
}

/// Whether a host is an address of a machine. Unlike a name it says where a request was sent, and not
/// for whom.
pub(crate) fn is_address(host: &[u8]) -> bool {
    let text = std::str::from_utf8(host).unwrap_or_default();
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    // Names may begin with a digit, too.
    text.starts_with(|c: char| c.is_ascii_digit() || c == '[')
        && (text.parse::<SocketAddr>().is_ok() || bare.unwrap_or(text).parse::<IpAddr>().is_ok())
}

/// In lower case, and without the port that `http` or `https` has of itself
/// (RFC 9110, section 4.2.3). Which of the two the client spoke is not known behind a proxy.
fn normalized(host: &[u8]) -> Cow<'_, [u8]> {
    let host = host.trim_ascii();
    let host = [&b":80"[..], b":443", b":"]
        .iter()
        .find_map(|port| host.strip_suffix(*port))
        .unwrap_or(host);
    if host.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_names() {
        for host in ["127.0.0.1", "10.0.0.1:8080", "[::1]", "[2001:db8::1]:8080"] {
            assert!(is_address(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            "1",
            "7.example",
            "a",
            "localhost",
            "localhost:8080",
            "[x]",
            "1.2.3.4.example",
        ] {
            assert!(!is_address(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn hosts_that_are_one_are_written_alike() {
        for (host, normal) in [
            ("Shop.Example", "shop.example"),
            ("shop.example:80", "shop.example"),
            ("shop.example:443", "shop.example"),
            ("shop.example:", "shop.example"),
            ("shop.example:8080", "shop.example:8080"),
            ("shop.example:180", "shop.example:180"),
            ("[2001:DB8::80]", "[2001:db8::80]"),
            ("[2001:db8::80]:80", "[2001:db8::80]"),
            ("", ""),
        ] {
            assert_eq!(normalized(host.as_bytes()), normal.as_bytes(), "{host}");
        }
    }
}
