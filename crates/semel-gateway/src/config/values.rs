//! How the value of a setting is written: from text to what it means, or to what would be right.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytesize::ByteSize;
use http::header::HeaderName;
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Uri};
use ipnet::IpNet;
use jsonwebtoken::Algorithm;
use semel::guard::Policy;
use semel::store::{OnLost, Retention};
use semel::{KeyRule, Service};
use semel_stores::objects::ObjectsUrl;
use semel_tower::{BodyForm, Dialect, Mode, NoteField, Preset, Rate, Syntax};
use tracing::Level;

use crate::operations::ACTIONS;
use crate::principal::{Part, Source};
use crate::upstream::Address;

pub(crate) fn upstream(value: &str) -> Result<Address, String> {
    value.parse()
}

/// The path of a request, perhaps with a query.
pub(crate) fn path(value: &str) -> Result<PathAndQuery, String> {
    let path = value.starts_with('/').then(|| value.parse().ok()).flatten();
    path.ok_or_else(|| format!("`{value}` is not a path; write it like /healthz"))
}

pub(crate) fn address(value: &str) -> Result<String, String> {
    let named = value
        .rsplit_once(':')
        .is_some_and(|(host, port)| is_host_name(host) && port.parse::<u16>().is_ok());
    if named || value.parse::<SocketAddr>().is_ok() {
        return Ok(value.to_owned());
    }
    Err(format!(
        "`{value}` is not an address; write it like 127.0.0.1:8080 or [::1]:8080"
    ))
}

/// Whether a connection to the upstream would end at this address of our own, as far as that can be
/// told without asking for names.
pub(crate) fn is_same_socket(upstream: &Address, own: &str) -> bool {
    let Some((host, port)) = own.rsplit_once(':') else {
        return false;
    };
    let protocol = upstream.protocol;
    let upstream = &upstream.authority;
    let same_port = port.parse() == Ok(upstream.port_u16().unwrap_or(protocol.port()));
    let same_host = match (ip(upstream.host()), ip(host)) {
        // Whatever is on this machine. To connect to "any address" is to connect to this machine.
        (Some(to), Some(own)) if own.is_unspecified() => to.is_loopback() || to.is_unspecified(),
        (Some(to), Some(own)) if to.is_unspecified() => own.is_loopback(),
        (Some(to), Some(own)) => to == own,
        (None, None) => upstream.host().eq_ignore_ascii_case(host),
        _ => false,
    };
    same_port && same_host
}

fn ip(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.trim_matches(['[', ']']).parse().ok()
}

/// Addresses and networks, with commas between them.
pub(crate) fn networks(value: &str) -> Result<Vec<IpNet>, String> {
    let network = |text: &str| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_| text.parse()).map_err(|_| {
            format!("`{text}` is not an address; write it like 10.0.0.7, 10.0.0.0/8 or fd00::/8")
        })
    };
    value.split(',').map(|text| network(text.trim())).collect()
}

fn is_host_name(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    host.starts_with(|c: char| c.is_ascii_alphabetic()) && host.chars().all(allowed)
}

pub(crate) fn store(value: &str) -> Result<String, String> {
    semel_stores::check_url(value)
        .map(|()| value.to_owned())
        .map_err(|error| error.to_string())
}

pub(crate) fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("`{value}` is neither true nor false")),
    }
}

pub(crate) fn duration(value: &str) -> Result<Duration, String> {
    match humantime::parse_duration(value) {
        Ok(long) if long > LONGEST => Err(format!("`{value}` is too long: 100 years at most")),
        Ok(duration) => Ok(duration),
        Err(_) => Err(format!(
            "`{value}` is not a duration; write it like 500ms, 30s, 24h or 7d"
        )),
    }
}

/// `0s` is none.
pub(crate) fn limit(value: &str) -> Result<Option<Duration>, String> {
    Ok(Some(duration(value)?).filter(|limit| !limit.is_zero()))
}

pub(crate) fn positive(value: &str) -> Result<Duration, String> {
    match duration(value)? {
        Duration::ZERO => Err("must be longer than nothing".to_owned()),
        duration => Ok(duration),
    }
}

/// A duration, or the name of what is kept for so long.
pub(crate) fn retention(value: &str) -> Result<Duration, String> {
    let retention = match value {
        "payment" => Retention::PAYMENT,
        "order" => Retention::ORDER,
        "email" => Retention::EMAIL,
        "api" => Retention::API,
        "webhook" => Retention::WEBHOOK,
        _ if value.contains(|c: char| c.is_ascii_digit()) => return positive(value),
        _ => {
            return Err(format!(
                "`{value}` is not a duration, nor one of payment, order, email, api and webhook; \
                 write it like 500ms, 30s, 24h or 7d"
            ));
        }
    };
    Ok(retention.replay)
}

/// A published convention.
pub(crate) fn preset(value: &str) -> Result<Preset, String> {
    value
        .parse()
        .map_err(|unknown| format!("`{value}`: {unknown}"))
}

/// The field of a key.
pub(crate) fn key_header(value: &str) -> Result<HeaderName, String> {
    let allowed = "a field that says nothing else is allowed, like Idempotency-Key or X-Key";
    field_but(
        value,
        &[&ONE_HOP, &OF_REQUESTS],
        "has another meaning",
        allowed,
    )
}

/// A field that is in none of these, whose names end with `-` where all that begin so are meant.
fn field_but(
    value: &str,
    refused: &[&[&str]],
    why: &str,
    allowed: &str,
) -> Result<HeaderName, String> {
    let name = field(value)?;
    let text = name.as_str();
    let is_refused = refused
        .iter()
        .copied()
        .flatten()
        .any(|refused| text == *refused || refused.ends_with('-') && text.starts_with(refused));
    match is_refused {
        true => Err(format!("`{name}` {why}; {allowed}")),
        false => Ok(name),
    }
}

/// What ends with a connection.
const ONE_HOP: [&str; 9] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// What a request says with them nobody else may say, or is logged, or is gone before a key is looked for.
const OF_REQUESTS: [&str; 35] = [
    "accept",
    "accept-",
    "access-control-",
    "authorization",
    "baggage",
    "cache-control",
    "content-",
    "cookie",
    "date",
    "digest",
    "expect",
    "forwarded",
    "host",
    "idempotency-body-omitted",
    "idempotency-fence",
    "idempotency-id",
    "idempotency-protected",
    "idempotency-replayed",
    "if-",
    "max-forwards",
    "origin",
    "pragma",
    "prefer",
    "priority",
    "range",
    "referer",
    "repeatability-client-id",
    "repeatability-first-sent",
    "repeatability-result",
    "sec-",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-forwarded-",
    "x-request-id",
];

/// What an answer says with them is not that it is a replay.
const OF_ANSWERS: [&str; 29] = [
    "accept-",
    "access-control-",
    "age",
    "allow",
    "alt-svc",
    "cache-control",
    "content-",
    "date",
    "etag",
    "expires",
    "idempotency-body-omitted",
    "idempotency-fence",
    "idempotency-id",
    "idempotency-protected",
    "last-modified",
    "link",
    "location",
    "refresh",
    "repeatability-result",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "traceparent",
    "tracestate",
    "vary",
    "warning",
    "www-authenticate",
    "x-request-id",
];

/// The field that marks replays; `none`: there is none.
pub(crate) fn replay_header(value: &str) -> Result<Option<HeaderName>, String> {
    let allowed = "a field that says nothing else is allowed, like Idempotency-Replayed, or none";
    match value {
        NONE => Ok(None),
        name => field_but(
            name,
            &[&ONE_HOP, &OF_ANSWERS],
            "has another meaning",
            allowed,
        )
        .map(Some),
    }
}

/// Fields that two requests must have in common, or none.
pub(crate) fn fingerprint_headers(value: &str) -> Result<Vec<HeaderName>, String> {
    let differs = [
        "authorization",
        "traceparent",
        "tracestate",
        "x-forwarded-for",
        "x-request-id",
    ];
    let allowed = "fields are allowed that say the same in each retry of an operation";
    let why = "differs from one transmission to another";
    fields_or_none(value, |name| {
        field_but(name, &[&ONE_HOP, &differs], why, allowed)
    })
}

/// Fields that are replayed though they belong to one transmission, or none.
pub(crate) fn kept_headers(value: &str) -> Result<Vec<HeaderName>, String> {
    let allowed = "all fields of answers are allowed that do not end with a connection";
    let why = "is made anew for each answer";
    fields_or_none(value, |name| {
        field_but(name, &[&ONE_HOP, &["content-length"]], why, allowed)
    })
}

/// What takes back what is said elsewhere.
pub(crate) const NONE: &str = "none";

/// The member of a JSON body that is the key.
pub(crate) fn member(value: &str) -> Result<String, String> {
    match value.is_empty() {
        true => Err("a member's name is missing".to_owned()),
        false => Ok(value.to_owned()),
    }
}

/// The name of one of them, or what there is.
fn one_of<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == value);
    found.map(|(_, one)| *one).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("`{value}` is none of {}", names.join(", "))
    })
}

/// What the one is called that it is.
pub(crate) fn name_in<T>(all: &[(&str, T)], is_it: impl Fn(&T) -> bool) -> Option<String> {
    let found = all.iter().find(|(_, one)| is_it(one));
    found.map(|(name, _)| (*name).to_owned())
}

pub(crate) const SYNTAXES: [(&str, Syntax); 2] =
    [("lenient", Syntax::Lenient), ("strict", Syntax::Strict)];

/// With the length of the shortest key that each allows.
pub(crate) const KEY_RULES: [(&str, (KeyRule, usize)); 3] = [
    ("general", (KeyRule::GENERAL, 1)),
    ("strict", (KeyRule::STRICT, 16)),
    ("uuid-v7", (KeyRule::UUID_V7, 36)),
];

pub(crate) fn syntax(value: &str) -> Result<Syntax, String> {
    one_of(value, &SYNTAXES)
}

pub(crate) fn key_rule(value: &str) -> Result<(KeyRule, usize), String> {
    one_of(value, &KEY_RULES)
}

pub(crate) fn key_max(value: &str) -> Result<usize, String> {
    match count(value)? {
        max @ ..=255 => Ok(max as usize),
        max => Err(format!(
            "`{max}` is too long: no key has more than 255 bytes"
        )),
    }
}

pub(crate) fn body_form(value: &str) -> Result<BodyForm, String> {
    one_of(value, &[("json", BodyForm::Json), ("raw", BodyForm::Raw)])
}

pub(crate) fn dialect(value: &str) -> Result<Dialect, String> {
    one_of(
        value,
        &Dialect::ALL.map(|dialect| (dialect.as_str(), dialect)),
    )
}

/// A method whose keys can count.
pub(crate) fn key_method(value: &str) -> Result<Method, String> {
    match crate::routing::method(value)? {
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE => {
            Err(format!("`{value}` changes nothing: keys never count there"))
        }
        method => Ok(method),
    }
}

/// Whole hours, as people write them.
pub(crate) fn hours(duration: Duration) -> String {
    match duration.as_secs() / 3600 {
        0 => "0s".to_owned(),
        hours => format!("{hours}h"),
    }
}

pub(crate) fn lease(value: &str) -> Result<Duration, String> {
    match duration(value)? {
        short if short < Policy::MIN_LEASE => Err(format!(
            "`{value}` is too short: a lease is {} at least",
            humantime::format_duration(Policy::MIN_LEASE)
        )),
        lease => Ok(lease),
    }
}

pub(crate) fn size(value: &str) -> Result<usize, String> {
    match memory(value)? {
        bytes if bytes as u64 > MAX_BODY => Err(format!(
            "`{value}` is more than {}: it is held in memory",
            ByteSize::b(MAX_BODY).display().iec()
        )),
        bytes => Ok(bytes),
    }
}

pub(crate) fn memory(value: &str) -> Result<usize, String> {
    match value.parse::<ByteSize>().map(|size| size.as_u64()) {
        Ok(0) => Err("must be larger than nothing".to_owned()),
        Ok(bytes) => usize::try_from(bytes).map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "`{value}` is not a size; write it like 64KiB or 1MiB"
        )),
    }
}

pub(crate) fn objects(value: &str) -> Result<ObjectsUrl, String> {
    ObjectsUrl::parse(value).map_err(|error| error.to_string())
}

pub(crate) fn host_names(value: &str) -> Result<Vec<String>, String> {
    let names = value.split(',').map(str::trim);
    names
        .map(|name| match is_host_name(name) {
            true => Ok(name.to_owned()),
            false => Err(format!(
                "`{name}` is not a host's name; write it like semel.internal, without a port"
            )),
        })
        .collect()
}

pub(crate) fn four_eyes(value: &str) -> Result<Vec<String>, String> {
    let names = value.split(',').map(str::trim);
    names
        .map(|name| match ACTIONS.contains(&name) {
            true => Ok(name.to_owned()),
            false => Err(format!(
                "`{name}` is no action; there are {}",
                ACTIONS.join(", ")
            )),
        })
        .collect()
}

pub(crate) fn mode(value: &str) -> Result<Mode, String> {
    match value {
        "enforce" => Ok(Mode::Enforce),
        "observe" => Ok(Mode::Observe),
        _ => Err(format!("`{value}` is neither enforce nor observe")),
    }
}

pub(crate) fn on_lost(value: &str) -> Result<OnLost, String> {
    match value {
        "hold" => Ok(OnLost::Hold),
        "retry" => Ok(OnLost::Retry),
        "reconcile" => Ok(OnLost::Reconcile),
        _ => Err(format!("`{value}` is none of hold, retry and reconcile")),
    }
}

/// The URL of the reconciler.
pub(crate) fn endpoint(value: &str) -> Result<Uri, String> {
    let password = "send a field, with [reconcile.headers]";
    url(value, "http://127.0.0.1:9100/reconcile", password)
}

/// The URL of a gateway's claim API, before `/v1/claims`.
pub(crate) fn gateway(value: &str) -> Result<Uri, String> {
    let uri = url(
        value,
        "http://127.0.0.1:8081",
        "name a file with --token-file",
    )?;
    match uri.query() {
        None => Ok(uri),
        Some(_) => Err("has a query; write it like http://127.0.0.1:8081".to_owned()),
    }
}

/// The URL of the endpoint that is asked about callers.
pub(crate) fn auth_url(value: &str) -> Result<Uri, String> {
    let password = "let the endpoint trust the gateway's address";
    url(value, "http://127.0.0.1:9000/auth", password)
}

/// Where the keys of tokens are.
pub(crate) fn jwks(value: &str) -> Result<Source, String> {
    if !value.contains("://") {
        return Ok(Source::File(value.into()));
    }
    let password = "keys are public";
    url(
        value,
        "http://127.0.0.1:9100/jwks.json or keys.json",
        password,
    )
    .map(Source::Url)
}

/// Where a collector takes traces: below its URL, unless that is `whole`.
pub(crate) fn collector(value: &str, is_whole: bool) -> Result<Uri, String> {
    let password = "send a field, with OTEL_EXPORTER_OTLP_HEADERS";
    let base = url(value, "http://127.0.0.1:4318", password)?;
    if is_whole {
        return Ok(base);
    }
    if base.query().is_some() {
        return Err("a query has no place in it: /v1/traces is added".to_owned());
    }
    let below = format!("{}/v1/traces", value.trim_end_matches('/'));
    below
        .parse()
        .map_err(|error| format!("not a URL ({error})"))
}

/// What something is called in metrics.
pub(crate) fn label(value: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match value.chars().all(allowed) && (1..=64).contains(&value.len()) {
        true if value == "default" => Err("`default` is what no route takes".to_owned()),
        true => Ok(value.to_owned()),
        false => Err(format!(
            "`{value}` is not a name; it has 1 to 64 ASCII letters, digits, `.`, `_` and `-`"
        )),
    }
}

/// The URL of an endpoint of the operator's own. The messages show nothing of it: it may hold a
/// password.
fn url(value: &str, example: &str, password: &str) -> Result<Uri, String> {
    let example = format!("write it like {example}");
    let uri: Uri = value
        .parse()
        .map_err(|error| format!("not a URL ({error}); {example}"))?;
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => {}
        Some(_) => {
            return Err(format!(
                "only http:// and https:// are supported; {example}"
            ));
        }
        None => return Err(format!("the scheme is missing; {example}")),
    }
    let Some(authority) = uri.authority().filter(|a| !a.host().is_empty()) else {
        return Err(format!("the host is missing; {example}"));
    };
    if authority.as_str().contains('@') {
        return Err(format!(
            "a user name or password in the URL is not supported; {password}"
        ));
    }
    if authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(format!("the port is not one; {example}"));
    }
    Ok(uri)
}

/// What is verified; an empty list, or `none`, takes back what is said elsewhere.
pub(crate) fn principal(value: &str) -> Result<Vec<Part>, String> {
    if matches!(value, "" | NONE) {
        return Ok(Vec::new());
    }
    let mut parts = Vec::new();
    for name in value.split(',').map(str::trim) {
        let part = match name {
            "jwt" => Part::Jwt,
            "auth" => Part::Auth,
            "certificate" => Part::Certificate,
            _ => {
                return Err(format!(
                    "`{name}` is none of jwt, auth and certificate; fields go to --scope-header"
                ));
            }
        };
        if parts.contains(&part) {
            return Err(format!("`{part}` is named twice"));
        }
        parts.push(part);
    }
    Ok(parts)
}

/// What of a request is kept with its record; an empty list, or `none`, is nothing. Where there is no
/// route that has a name or a path, it is the request's path that says which.
pub(crate) fn note(value: &str, route: Option<&str>) -> Result<Vec<NoteField>, String> {
    if matches!(value, "" | NONE) {
        return Ok(Vec::new());
    }
    let field = |text: &str| match (text, route) {
        ("route", Some(route)) => Ok(NoteField::Fixed("route".into(), route.into())),
        ("route", None) => Ok(NoteField::Path),
        _ => text
            .parse()
            .map_err(|error| format!("`{text}` is {error}, and route")),
    };
    let fields = list(field)(value)?;
    match fields.len() {
        ..=MOST_NOTED => Ok(fields),
        many => Err(format!("{many} fields are too many: {MOST_NOTED} at most")),
    }
}

const MOST_NOTED: usize = 12;

/// How a token may be signed: with a key whose public half verifies it.
pub(crate) fn algorithm(value: &str) -> Result<Algorithm, String> {
    match value.parse() {
        Ok(algorithm @ (Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)) => Err(format!(
            "`{algorithm:?}` signs with a secret, which everybody who verifies has to know; \
             {ALGORITHMS}"
        )),
        Ok(algorithm) => Ok(algorithm),
        Err(_) => Err(format!("`{value}` is not accepted; {ALGORITHMS}")),
    }
}

const ALGORITHMS: &str =
    "there are RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA";

/// A name in a list.
pub(crate) fn name(value: &str) -> Result<String, String> {
    match value.is_empty() {
        true => Err("a name in it is empty".to_owned()),
        false => Ok(value.to_owned()),
    }
}

/// A name that HTTP basic authentication can carry, and a line of the audit.
pub(crate) fn token_name(value: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_graphic() && c != ':';
    match (1..=64).contains(&value.len()) && value.chars().all(is_plain) {
        true => Ok(value.to_owned()),
        false => Err(format!(
            "`{value}` cannot name a token: 1 to 64 visible ASCII characters but `:`"
        )),
    }
}

/// Up to five minutes: more than clocks may differ.
pub(crate) fn leeway(value: &str) -> Result<Duration, String> {
    at_most(value, Duration::from_mins(5))
}

/// Up to an hour.
pub(crate) fn cache(value: &str) -> Result<Duration, String> {
    at_most(value, Duration::from_hours(1))
}

fn at_most(value: &str, most: Duration) -> Result<Duration, String> {
    match duration(value)? {
        long if long > most => Err(format!(
            "`{value}` is too long: {} at most",
            humantime::format_duration(most)
        )),
        duration => Ok(duration),
    }
}

/// A second at least.
pub(crate) fn refresh(value: &str) -> Result<Duration, String> {
    match duration(value)? {
        short if short < Duration::from_secs(1) => {
            Err(format!("`{value}` is too short: 1s at least"))
        }
        duration => Ok(duration),
    }
}

/// Fields of a request that can be credentials.
pub(crate) fn credential(value: &str) -> Result<HeaderName, String> {
    let reserved = [
        "connection",
        "content-length",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-host",
        "x-original-method",
        "x-original-uri",
    ];
    let name = field(value)?;
    match reserved.contains(&name.as_str()) {
        true => Err(format!("`{name}` cannot be a credential")),
        false => Ok(name),
    }
}

/// So many in some time.
pub(crate) fn rate(value: &str) -> Result<Rate, String> {
    let example = "write it like 50/s, 600/m or 1000/h";
    rate_of(value, example, |amount| amount.parse().ok())
}

/// So many bytes in some time.
pub(crate) fn byte_rate(value: &str) -> Result<Rate, String> {
    let bytes = |amount: &str| amount.parse::<ByteSize>().ok().map(|size| size.as_u64());
    rate_of(value, "write it like 100MiB/h or 1GiB/d", bytes)
}

fn rate_of(
    value: &str,
    example: &str,
    amount: impl Fn(&str) -> Option<u64>,
) -> Result<Rate, String> {
    let read = || {
        let (amount_of, per) = value.split_once('/')?;
        let seconds = match per.trim() {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            _ => return None,
        };
        let amount = amount(amount_of.trim()).filter(|amount| *amount > 0)?;
        Some(Rate::new(amount, Duration::from_secs(seconds)))
    };
    read().ok_or_else(|| format!("`{value}` is not a rate; {example}"))
}

pub(crate) fn count(value: &str) -> Result<u32, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err(format!("`{value}` is not a number from 1")),
        Ok(count) => Ok(count),
    }
}

pub(crate) fn service(value: &str) -> Result<Service, String> {
    Service::new(value).map_err(|error| error.to_string())
}

/// Names of header fields, with commas between them.
pub(crate) fn fields(value: &str) -> Result<Vec<HeaderName>, String> {
    value.split(',').map(field).collect()
}

/// The same; an empty list, or `none`, takes back what is said elsewhere.
fn fields_or_none(
    value: &str,
    parse: impl Fn(&str) -> Result<HeaderName, String>,
) -> Result<Vec<HeaderName>, String> {
    match value {
        "" | NONE => Ok(Vec::new()),
        names => names.split(',').map(parse).collect(),
    }
}

pub(crate) fn field(name: &str) -> Result<HeaderName, String> {
    HeaderName::from_bytes(name.trim().as_bytes())
        .map_err(|_| format!("`{name}` cannot be the name of a header field"))
}

/// What `parse` reads, with commas between them.
pub(crate) fn list<T>(
    parse: impl Fn(&str) -> Result<T, String>,
) -> impl FnOnce(&str) -> Result<Vec<T>, String> {
    move |value| value.split(',').map(|text| parse(text.trim())).collect()
}

pub(crate) fn log_format(value: &str) -> Result<bool, String> {
    match value {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err(format!("`{value}` is neither text nor json")),
    }
}

pub(crate) fn log_level(value: &str) -> Result<Level, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is none of error, warn, info, debug and trace"))
}

/// No clock overflows by it: 100 years of 365.25 days.
pub(crate) const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);
/// A body of this size is still read into memory.
const MAX_BODY: u64 = 1 << 30;
