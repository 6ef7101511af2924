//! What a gateway changes in header fields, and nothing else.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use semel::IdentityDigest;
use semel::guard::AttemptInfo;

/// Carries the fence of the attempt to the upstream.
pub const FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// Carries the name of the operation to the upstream and to the reconciler.
pub const ID: HeaderName = HeaderName::from_static("idempotency-id");
/// Carries the key.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Carries the host that the client asked.
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Makes a client's header the one that the upstream gets.
pub(crate) fn to_upstream(
    headers: &mut HeaderMap,
    target: Option<&Authority>,
    upstream: &HeaderValue,
    peer: Option<IpAddr>,
    attempt: Option<&AttemptInfo>,
) {
    let trailers = wants_trailers(headers);
    strip_hop_by_hop(headers);
    // The gateway itself answers an expectation, when it begins to read the body.
    headers.remove(EXPECT);
    // Only the gateway says what attempt this is.
    headers.remove(FENCE);
    headers.remove(ID);
    if let Some(attempt) = attempt {
        headers.insert(FENCE, HeaderValue::from(attempt.fence.0));
        headers.insert(ID, id(&attempt.id));
    }
    // In HTTP/2 the host stands in the target.
    let host = target.and_then(|target| HeaderValue::from_str(target.as_str()).ok());
    match host.or_else(|| headers.get(HOST).cloned()) {
        Some(host) => headers.insert(FORWARDED_HOST, host),
        None => headers.remove(FORWARDED_HOST),
    };
    headers.insert(HOST, upstream.clone());
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    if let Some(Ok(peer)) = peer.map(|peer| HeaderValue::try_from(peer.to_string())) {
        headers.append(FORWARDED_FOR, peer);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// The fields that scope, key and fingerprint are made of.
pub(crate) fn end_to_end(scope: &[HeaderName]) -> Arc<[HeaderName]> {
    let read = [
        KEY,
        AUTHORIZATION,
        COOKIE,
        HOST,
        CONTENT_TYPE,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        IF_MATCH,
        IF_NONE_MATCH,
    ];
    read.into_iter().chain(scope.iter().cloned()).collect()
}

/// Takes these names out of `Connection`. The service gets them as they were read here: it would not
/// know otherwise for whom, or under what key, it works. A sender must not name them there (RFC 9110,
/// section 7.6.1).
pub(crate) fn keep_end_to_end(headers: &mut HeaderMap, names: &[HeaderName]) {
    let is_kept = |member: &&str| {
        names
            .iter()
            .any(|n| member.eq_ignore_ascii_case(n.as_str()))
    };
    if !members(headers, &CONNECTION).any(|member| is_kept(&member)) {
        return;
    }
    let rest: Vec<&str> = members(headers, &CONNECTION)
        .filter(|member| !is_kept(member))
        .collect();
    match HeaderValue::try_from(rest.join(", ")) {
        Ok(rest) if !rest.is_empty() => drop(headers.insert(CONNECTION, rest)),
        _ => drop(headers.remove(CONNECTION)),
    }
}

/// An operation's name as a field.
pub(crate) fn id(id: &IdentityDigest) -> HeaderValue {
    HeaderValue::from_str(&id.to_string()).expect("digits can stand in a field")
}

/// Makes the upstream's header the one that the client gets.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
}

/// Whether another protocol is asked for. `h2c` is not among them: it may be ignored (RFC 9110,
/// section 7.8), and some clients offer it with every request.
pub(crate) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    members(headers, &CONNECTION).any(|member| member.eq_ignore_ascii_case("upgrade"))
        && members(headers, &UPGRADE).any(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
}

/// RFC 9110, section 7.6.1.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let nominated: Vec<HeaderName> = members(headers, &CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .collect();
    for name in nominated {
        headers.remove(name);
    }
    // Of two lengths the chunks' own counts (RFC 9112, section 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    members(headers, &TE).any(|member| member.eq_ignore_ascii_case("trailers"))
}

fn members<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
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

    #[tokio::test]
    async fn a_request_loses_what_belongs_to_its_connection() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers, deflate"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("idempotency-fence", "99"),
            ("idempotency-id", "mine"),
            ("idempotency-key", "\"k\""),
            ("host", "shop.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
        ]);
        let attempt = attempt().await;
        let upstream = HeaderValue::from_static("127.0.0.1:9000");
        let peer = "10.0.0.2".parse().unwrap();
        to_upstream(&mut headers, None, &upstream, Some(peer), Some(&attempt));
        assert_eq!(
            lines(&headers),
            [
                "connection: te",
                "host: 127.0.0.1:9000",
                &format!("idempotency-fence: {}", attempt.fence),
                &format!("idempotency-id: {}", attempt.id),
                "idempotency-key: \"k\"",
                "te: trailers",
                "x-forwarded-for: 10.0.0.1",
                "x-forwarded-for: 10.0.0.2",
                "x-forwarded-host: shop.example",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn an_upgrade_is_one_that_cannot_be_ignored() {
        let asks = |upgrade| asks_for_upgrade(&map(&[("connection", "Upgrade"), upgrade]));
        assert!(asks(("upgrade", "websocket")));
        assert!(!asks(("upgrade", "h2c")));
        assert!(!asks_for_upgrade(&map(&[("upgrade", "websocket")])));
    }
}
