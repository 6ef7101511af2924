//! What a gateway changes in header fields, and nothing else.

mod forwarded;
mod reserved;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use ipnet::IpNet;
use semel::IdentityDigest;
use semel::guard::AttemptInfo;

use crate::config::{Config, KeyPlace, Route};
use crate::peer::Peer;
use forwarded::Proto;
pub(crate) use forwarded::{FORWARDED_HOST, is_trusted};
use reserved::Reserved;

/// Carries the fence of the attempt to the upstream.
pub const FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// Carries the name of the operation to the upstream and to the reconciler.
pub const ID: HeaderName = HeaderName::from_static("idempotency-id");
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The fields of one connection.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Which fields there are that something is to be done with. Most headers have one of them at most: a look at each
/// field is less than a search for each name.
#[derive(Debug, Clone, Copy)]
struct Present(u8);

impl Present {
    const CONNECTION: u8 = 1 << 0;
    /// Another one of [`HOP_BY_HOP`].
    const HOP_BY_HOP: u8 = 1 << 1;
    const EXPECT: u8 = 1 << 2;
    const COOKIE: u8 = 1 << 3;
    /// What only the gateway says.
    const OURS: u8 = 1 << 4;
    /// What only trusted peers say of others.
    const FORWARDED: u8 = 1 << 5;

    fn of(headers: &HeaderMap) -> Self {
        let kinds = headers.keys().map(|name| match name.as_str() {
            "connection" => Self::CONNECTION,
            "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade" => Self::HOP_BY_HOP,
            "expect" => Self::EXPECT,
            "cookie" => Self::COOKIE,
            "idempotency-fence" | "idempotency-id" => Self::OURS,
            "forwarded" | "x-forwarded-for" | "x-forwarded-host" | "x-forwarded-port"
            | "x-forwarded-proto" => Self::FORWARDED,
            _ => 0,
        });
        Self(kinds.fold(0, |all, kind| all | kind))
    }

    const fn any(self, kinds: u8) -> bool {
        self.0 & kinds != 0
    }
}

/// How the header of a request changes on its way through the gateway.
#[derive(Debug)]
pub(crate) struct Rules {
    end_to_end: Vec<HeaderName>,
    preserve_host: bool,
    trusted: Vec<IpNet>,
    reserved: Reserved,
    /// What only trusted peers say.
    of_trusted: Vec<HeaderName>,
    proto: Proto,
}

impl Rules {
    /// As a route of the configuration says.
    pub(crate) fn new(config: &Config, route: &Route) -> Self {
        let key = match &route.key {
            KeyPlace::Header(name) => Some(name.clone()),
            KeyPlace::Member(_) => None,
        };
        let read: Vec<_> = route
            .scope_headers
            .iter()
            .cloned()
            .chain(route.preset.fields())
            .chain(key)
            .collect();
        let credentials = config.auth.iter().flat_map(|auth| &auth.fields);
        let compared = route.fingerprint_headers.iter().chain(credentials);
        Self {
            end_to_end: end_to_end(read.iter().chain(compared)),
            preserve_host: route.preserve_host,
            trusted: config.trust_forwarded.clone(),
            reserved: Reserved::new(&read),
            of_trusted: match route.trusted_scope {
                true => route.scope_headers.clone(),
                false => Vec::new(),
            },
            proto: match config.tls {
                Some(_) => Proto::Https,
                None => Proto::Http,
            },
        }
    }

    /// Takes from a client's header what is none of the client's to say, before anybody reads it.
    pub(crate) fn admit(
        &self,
        headers: &mut HeaderMap,
        target: Option<&Authority>,
        peer: Option<&Peer>,
    ) {
        let present = Present::of(headers);
        let trailers = present.any(Present::HOP_BY_HOP) && wants_trailers(headers);
        let upgrade = strip_hop_by_hop(headers, present, &self.end_to_end);
        if let Some(upgrade) = upgrade {
            set_upgrade(headers, upgrade);
        } else if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
        if present.any(Present::EXPECT) {
            // The gateway itself answers it, when it begins to read the body.
            headers.remove(EXPECT);
        }
        if present.any(Present::OURS) {
            headers.remove(FENCE);
            headers.remove(ID);
        }
        self.reserved.remove_twins(headers);
        if present.any(Present::COOKIE) {
            join_cookies(headers);
        }
        let trusted = peer.is_some_and(|peer| is_trusted(peer.address(), &self.trusted));
        let foreign = self.of_trusted.iter().filter(|name| **name != HOST);
        for name in foreign.filter(|_| !trusted) {
            headers.remove(name);
        }
        let host = host(headers, target);
        let believed = present.any(Present::FORWARDED) && forwarded::believe(headers, trusted);
        forwarded::write(headers, host.as_ref(), peer, believed, self.proto);
    }

    /// Makes an admitted header the one that the upstream gets, but for the host where that is not the client's:
    /// whoever knows the address sets it.
    pub(crate) fn to_upstream(
        &self,
        headers: &mut HeaderMap,
        target: Option<&Authority>,
        attempt: Option<&AttemptInfo>,
    ) {
        if let Some(attempt) = attempt {
            headers.insert(FENCE, HeaderValue::from(attempt.fence.0));
            headers.insert(ID, id(&attempt.id));
        }
        if self.preserve_host
            && let Some(host) = host(headers, target)
        {
            headers.insert(HOST, host);
        }
    }

    /// Makes a client's trailers the ones that the upstream gets.
    pub(crate) fn trailers_to_upstream(&self, trailers: &mut HeaderMap) {
        self.reserved.remove_from_trailers(trailers);
    }
}

/// The host that the client asked. Of one in the target and one in a field the target's counts (RFC
/// 9112, section 3.2.2), and in HTTP/2 there may be no other.
fn host(headers: &HeaderMap, target: Option<&Authority>) -> Option<HeaderValue> {
    target
        .and_then(|target| HeaderValue::from_str(target.as_str()).ok())
        .or_else(|| headers.get(HOST).cloned())
}

/// An operation's name as a field.
pub(crate) fn id(id: &IdentityDigest) -> HeaderValue {
    HeaderValue::try_from(id.to_string()).expect("digits can stand in a field")
}

/// Makes the upstream's header the one that the client gets. Only in an answer that `switches` there is
/// another protocol.
pub(crate) fn to_client(headers: &mut HeaderMap, switches: bool) {
    let upgrade = strip_hop_by_hop(headers, Present::of(headers), &[]);
    if let Some(upgrade) = upgrade.filter(|_| switches) {
        set_upgrade(headers, upgrade);
        headers.remove(CONTENT_LENGTH);
    }
    // Of several that are the same hyper writes one (RFC 9110, section 8.6).
    if !has_plain_length(headers) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Whether there is no length, or one number. With a zero in front some read it as octal, although the
/// grammar allows it.
pub(crate) fn has_plain_length(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = fields.next().map(HeaderValue::as_bytes) else {
        return true;
    };
    let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
    fields.next().is_none() && digits && (length == b"0" || length[0] != b'0')
}

/// Whether another protocol is asked for. `h2c` is not among them: it may be ignored (RFC 9110,
/// section 7.8), and some clients offer it with every request.
pub(crate) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    members(headers, &CONNECTION).any(|member| member.eq_ignore_ascii_case("upgrade"))
        && members(headers, &UPGRADE).any(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
}

/// Whether there is what an upgrade may not have.
pub(crate) fn has_body_or_key(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH);
    headers.contains_key(KEY)
        || headers.contains_key(TRANSFER_ENCODING)
        || length.is_some_and(|length| length.as_bytes() != b"0")
}

/// The protocols that are asked for, or one that was chosen.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    if !asks_for_upgrade(headers) {
        return None;
    }
    let protocols = members(headers, &UPGRADE).filter(|name| !name.eq_ignore_ascii_case("h2c"));
    HeaderValue::try_from(protocols.collect::<Vec<_>>().join(", ")).ok()
}

fn set_upgrade(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocols);
}

/// Leaves an admitted request with HTTP.
pub(crate) fn remove_upgrade(headers: &mut HeaderMap) {
    if headers.remove(UPGRADE).is_some() {
        headers.remove(CONNECTION);
    }
}

/// The fields that scope, key and fingerprint are made of.
fn end_to_end<'a>(said: impl IntoIterator<Item = &'a HeaderName>) -> Vec<HeaderName> {
    let read = [
        KEY,
        AUTHORIZATION,
        COOKIE,
        HOST,
        FORWARDED_HOST,
        CONTENT_TYPE,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        IF_MATCH,
        IF_NONE_MATCH,
    ];
    read.into_iter().chain(said.into_iter().cloned()).collect()
}

/// Removes the fields of one connection: RFC 9110, section 7.6.1. `Connection` cannot name what is
/// `kept`: the service would not know for whom, or under what key, it works. A sender must not do that.
/// What is returned is the [`upgrade`] among them.
fn strip_hop_by_hop(
    headers: &mut HeaderMap,
    present: Present,
    kept: &[HeaderName],
) -> Option<HeaderValue> {
    if !present.any(Present::CONNECTION | Present::HOP_BY_HOP) {
        return None;
    }
    let has_others = present.any(Present::HOP_BY_HOP);
    let upgrade = has_others.then(|| upgrade(headers)).flatten();
    let nominated: Vec<HeaderName> = members(headers, &CONNECTION)
        .filter(|name| {
            !["keep-alive", "close"]
                .iter()
                .any(|word| name.eq_ignore_ascii_case(word))
        })
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| !kept.contains(name))
        .collect();
    for name in nominated {
        headers.remove(name);
    }
    if !has_others {
        headers.remove(CONNECTION);
        return None;
    }
    // Of two lengths the chunks' own counts (RFC 9112, section 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    upgrade
}

/// Clients of HTTP/2 may send each cookie in a field of its own; elsewhere there is one (RFC 9113,
/// section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    let (Some(first), Some(_)) = (lines.next(), lines.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for line in headers.get_all(COOKIE).iter().skip(1) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    if let Ok(joined) = HeaderValue::try_from(joined) {
        headers.insert(COOKIE, joined);
    }
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    members(headers, &TE).any(|member| member.eq_ignore_ascii_case("trailers"))
}

/// The members of a field that is a list.
pub(crate) fn members<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|member| !member.is_empty())
}

#[cfg(test)]
mod tests {
    use semel::guard::{Asked, Begin, Guard};
    use semel::memory::MemoryStore;
    use semel::{Fingerprint, Identity, Key, Scope};

    use super::*;

    #[test]
    fn a_look_finds_what_there_is_something_to_do_with() {
        let found = |name: &HeaderName| {
            let one = HeaderValue::from_static("1");
            Present::of(&[(name.clone(), one)].into_iter().collect()).0
        };
        assert_eq!(found(&CONNECTION), Present::CONNECTION);
        for name in HOP_BY_HOP.iter().filter(|name| **name != CONNECTION) {
            assert_eq!(found(name), Present::HOP_BY_HOP, "{name}");
        }
        for name in &forwarded::ALL {
            assert_eq!(found(name), Present::FORWARDED, "{name}");
        }
        for (name, kind) in [
            (EXPECT, Present::EXPECT),
            (COOKIE, Present::COOKIE),
            (FENCE, Present::OURS),
            (ID, Present::OURS),
            (HOST, 0),
        ] {
            assert_eq!(found(&name), kind, "{name}");
        }
    }

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        let mut lines: Vec<_> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    async fn attempt() -> AttemptInfo {
        let key = Key::new("k").unwrap();
        let identity = Identity::new(Scope::anonymous(), "http", key);
        let asked = Asked::new(identity, Fingerprint::of(b""));
        let guard = Guard::from(MemoryStore::default());
        match guard.begin(&asked).await {
            Ok(Begin::Acquired(mut held)) => held.info(),
            begun => panic!("{begun:?}"),
        }
    }

    fn rules() -> Rules {
        Rules {
            end_to_end: end_to_end([]),
            of_trusted: vec![HeaderName::from_static("x-account"), HOST],
            preserve_host: false,
            trusted: vec!["10.0.0.0/24".parse().unwrap()],
            reserved: Reserved::new(&[HeaderName::from_static("x-account")]),
            proto: Proto::Http,
        }
    }

    /// What becomes of fields of this peer, without the host that the pool sets.
    fn upstream_gets(rules: &Rules, peer: &str, fields: &[(&str, &str)]) -> Vec<String> {
        let mut headers = map(fields);
        rules.admit(&mut headers, None, Some(&Peer::new(peer.parse().unwrap())));
        rules.to_upstream(&mut headers, None, None);
        if !rules.preserve_host {
            headers.remove(HOST);
        }
        lines(&headers)
    }

    #[tokio::test]
    async fn a_request_loses_what_belongs_to_its_connection() {
        let mut headers = map(&[
            ("connection", "close, X-Hop, Idempotency-Key"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers, deflate"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("idempotency-fence", "99"),
            ("idempotency_fence", "99"),
            ("idempotency-id", "mine"),
            ("idempotency-key", "\"k\""),
            ("cookie", "a=1"),
            ("cookie", "session=2"),
            ("host", "shop.example"),
            ("x_account", "1"),
        ]);
        let attempt = attempt().await;
        let peer = Peer::new("::ffff:192.0.2.2".parse().unwrap());
        rules().admit(&mut headers, None, Some(&peer));
        rules().to_upstream(&mut headers, None, Some(&attempt));
        assert_eq!(
            lines(&headers),
            [
                "connection: te",
                "cookie: a=1; session=2",
                // The pool sets its own.
                "host: shop.example",
                &format!("idempotency-fence: {}", attempt.fence),
                &format!("idempotency-id: {}", attempt.id),
                "idempotency-key: \"k\"",
                "te: trailers",
                "x-forwarded-for: 192.0.2.2",
                "x-forwarded-host: shop.example",
                "x-forwarded-proto: http",
            ]
        );
    }

    const SAID: [(&str, &str); 8] = [
        ("host", "inner.example"),
        ("forwarded", "for=203.0.113.9;proto=https"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-for", "10.0.0.7"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-port", "443"),
        ("x-forwarded-proto", "https"),
        ("x-account", "a"),
    ];

    #[test]
    fn nobody_is_believed_unless_trusted() {
        assert_eq!(
            upstream_gets(&rules(), "10.0.1.1", &SAID),
            [
                "x-forwarded-for: 10.0.1.1",
                "x-forwarded-host: inner.example",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn a_trusted_peer_is_believed_and_added() {
        assert_eq!(
            upstream_gets(&rules(), "10.0.0.1", &SAID),
            [
                "forwarded: for=203.0.113.9;proto=https, for=10.0.0.1;host=\"inner.example\";proto=http",
                "x-account: a",
                "x-forwarded-for: 203.0.113.9, 10.0.0.7, 10.0.0.1",
                "x-forwarded-host: shop.example",
                "x-forwarded-port: 443",
                "x-forwarded-proto: https",
            ]
        );
        // What it does not say the gateway does.
        assert_eq!(
            upstream_gets(&rules(), "10.0.0.1", &SAID[..1]),
            [
                "x-forwarded-for: 10.0.0.1",
                "x-forwarded-host: inner.example",
                "x-forwarded-proto: http",
            ]
        );
        let rules = Rules {
            trusted: vec!["2001:db8::/32".parse().unwrap()],
            ..rules()
        };
        let got = upstream_gets(&rules, "2001:db8::1", &SAID[1..2]);
        let hop = "for=203.0.113.9;proto=https, for=\"[2001:db8::1]\";proto=http";
        assert_eq!(got[0], format!("forwarded: {hop}"));
    }

    #[test]
    fn the_host_is_preserved_where_asked() {
        let rules = Rules {
            preserve_host: true,
            ..rules()
        };
        let got = upstream_gets(&rules, "192.0.2.1", &SAID[..1]);
        assert_eq!(got[0], "host: inner.example");
        // HTTP/1.0 may have none.
        let got = upstream_gets(&rules, "192.0.2.1", &[]);
        assert_eq!(got[0], "x-forwarded-for: 192.0.2.1");
    }

    #[test]
    fn an_upgrade_is_one_that_cannot_be_ignored() {
        let asks = |upgrade| asks_for_upgrade(&map(&[("connection", "Upgrade"), upgrade]));
        assert!(asks(("upgrade", "websocket")));
        assert!(!asks(("upgrade", "h2c")));
        assert!(!asks_for_upgrade(&map(&[("upgrade", "websocket")])));
    }
}
