//! What the upstream learns about the client: `X-Forwarded-*` and `Forwarded` (RFC 7239).
//!
//! Whoever can write these fields can pretend to be anybody, so they are believed from trusted peers
//! only; from all others they are written anew.

use std::net::IpAddr;

use http::header::{Entry, FORWARDED, HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::peer::Peer;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Carries the host that the client asked.
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What clients of the gateway speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proto {
    Http,
    Https,
}

impl Proto {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// What only trusted peers may say.
pub(super) const ALL: [HeaderName; 5] = [
    FORWARDED,
    FORWARDED_FOR,
    FORWARDED_HOST,
    FORWARDED_PORT,
    FORWARDED_PROTO,
];

/// Whether what this peer says of others is believed.
pub(crate) fn is_trusted(peer: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|net| net.contains(&peer))
}

/// Removes what is there, unless the peer is `trusted`; whether it is.
pub(super) fn believe(headers: &mut HeaderMap, trusted: bool) -> bool {
    if !trusted {
        for name in &ALL {
            headers.remove(name);
        }
    }
    trusted
}

/// Says who sent a request, to which host, and how; beside what a peer said who is `believed`. Else none of these
/// fields is there.
pub(super) fn write(
    headers: &mut HeaderMap,
    host: Option<&HeaderValue>,
    peer: Option<&Peer>,
    believed: bool,
    proto: Proto,
) {
    let how = HeaderValue::from_static(proto.as_str());
    if !believed {
        if let Some(peer) = peer {
            headers.insert(FORWARDED_FOR, peer.field().clone());
        }
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host.clone());
        }
        headers.insert(FORWARDED_PROTO, how);
        return;
    }
    if let Some(peer) = peer {
        append(headers, FORWARDED_FOR, peer.field().clone());
        // Who does not use it yet gets the other fields only.
        if headers.contains_key(FORWARDED)
            && let Ok(element) = element(peer.address(), host, proto).try_into()
        {
            append(headers, FORWARDED, element);
        }
    }
    if let Some(host) = host {
        insert_if_missing(headers, FORWARDED_HOST, host.clone());
    }
    insert_if_missing(headers, FORWARDED_PROTO, how);
}

/// One hop in `Forwarded`.
fn element(peer: IpAddr, host: Option<&HeaderValue>, proto: Proto) -> String {
    let proto = proto.as_str();
    let peer = match peer {
        IpAddr::V4(peer) => peer.to_string(),
        // Its colons and brackets may only stand within quotes.
        IpAddr::V6(peer) => format!("\"[{peer}]\""),
    };
    // A host has been checked: there is neither a quote nor a backslash in it.
    match host.and_then(|host| host.to_str().ok()) {
        Some(host) => format!("for={peer};host=\"{host}\";proto={proto}"),
        None => format!("for={peer};proto={proto}"),
    }
}

/// Adds a member to a list, and makes one line of it: some services read the first line only.
fn append(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    let lines: Vec<&[u8]> = headers
        .get_all(&name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let list = match lines.is_empty() {
        true => Ok(member),
        false => {
            HeaderValue::try_from([&lines[..], &[member.as_bytes()]].concat().join(&b", "[..]))
        }
    };
    if let Ok(list) = list {
        headers.insert(name, list);
    }
}

fn insert_if_missing(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    if let Entry::Vacant(vacant) = headers.entry(name) {
        vacant.insert(value);
    }
}
