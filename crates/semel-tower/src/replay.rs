//! What is kept of a response, and the response made of it again (protocol rule R10).

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue,
    RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Response, StatusCode, response};
use http_body::Body as HttpBody;
use semel::{Outcome, OutcomeKind};

use crate::body::Body;

/// On replays of an answer whose body was too large to keep, or a stream.
pub const BODY_OMITTED: HeaderName = HeaderName::from_static("idempotency-body-omitted");
/// `false` on answers that ran without protection, or that could not be recorded.
pub const PROTECTED: HeaderName = HeaderName::from_static("idempotency-protected");
/// The field that marks replays, unless
/// [`with_replay_header`](crate::IdempotencyLayer::with_replay_header) names another.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Among the extensions of replays, whatever marks them for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replayed;

/// Among the extensions of an answer of the inner service: the trace and the span in which it was made, as the
/// field `traceparent` has them (W3C Trace Context). It is kept with the answer, is among the extensions of
/// each replay, so that a replay's trace can be linked to the first one, and is never sent to clients.
///
/// Among the extensions of a request: the trace that it belongs to, for [`NoteField::TraceId`](crate::NoteField::TraceId).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent(pub HeaderValue);

const TRUE: HeaderValue = HeaderValue::from_static("true");
const FALSE: HeaderValue = HeaderValue::from_static("false");

/// Belongs to one transmission or one client: not kept unless allowed by name.
const NOT_KEPT: [&str; 10] = [
    "age",
    "date",
    "server-timing",
    "set-cookie",
    "set-cookie2",
    "traceparent",
    "tracestate",
    "x-request-id",
    "authentication-info",
    "ratelimit",
];
const NOT_KEPT_PREFIXES: [&str; 2] = ["ratelimit-", "x-ratelimit-"];

/// Removes what only the layer may say.
pub(crate) fn strip_marks(headers: &mut HeaderMap, replay_header: Option<&HeaderName>) {
    if let Some(name) = replay_header {
        headers.remove(name);
    }
    headers.remove(BODY_OMITTED);
    headers.remove(PROTECTED);
}

/// Says that the answer is not protected.
pub(crate) fn mark_unprotected(headers: &mut HeaderMap) {
    headers.insert(PROTECTED, FALSE);
}

/// The outcome that the layer would have kept of this answer, for those who record one in its place:
/// a [`Reconciler`](semel::guard::Reconciler), an operator. Replayed like any other. Without `body`
/// replays say that it was not kept.
///
/// ```
/// # use http::{Response, header};
/// let (head, body) = Response::builder()
///     .status(201)
///     .header(header::CONTENT_TYPE, "application/json")
///     .body("{\"id\":7}".into())?
///     .into_parts();
/// let outcome = semel_tower::outcome_of_response(&head, Some(&body));
/// assert_eq!((outcome.code(), outcome.body()), (201, Some(body)));
/// # Ok::<_, http::Error>(())
/// ```
pub fn outcome_of_response(parts: &response::Parts, body: Option<&Bytes>) -> Outcome {
    let kind = match (body, parts.status.as_u16()) {
        (None, _) => OutcomeKind::Omitted,
        (_, 400..) => OutcomeKind::Failure,
        _ => OutcomeKind::Success,
    };
    outcome_of(kind, parts, body, None, &[])
}

/// What is kept of a response. `body` is `None` where it is omitted.
pub(crate) fn outcome_of(
    kind: OutcomeKind,
    parts: &response::Parts,
    body: Option<&Bytes>,
    trailers: Option<&HeaderMap>,
    allowed: &[HeaderName],
) -> Outcome {
    let nominated = nominated(&parts.headers);
    let trailers = trailers.filter(|_| body.is_some());
    // One allocation; a little too large where fields are not kept.
    let fields = trailers.into_iter().chain([&parts.headers]).flatten();
    let each = fields.map(|(name, value)| 6 + name.as_str().len() + value.len());
    let room = each.sum::<usize>() + body.map_or(0, Bytes::len) + 1;
    let mut outcome = Outcome::builder(kind)
        .code(parts.status.as_u16())
        .reserve(room);
    for (name, value) in trailers.into_iter().flatten() {
        if is_kept(name, allowed) {
            outcome = outcome.field(&format!("{TRAILER_MARK}{name}"), value.as_bytes());
        }
    }
    if let Some(TraceParent(made_in)) = parts.extensions.get() {
        outcome = outcome.field(TRACE_PARENT, made_in.as_bytes());
    }
    for (name, value) in &parts.headers {
        if is_kept(name, allowed) && !nominated.iter().any(|n| n == name) {
            outcome = outcome.field(name.as_str(), value.as_bytes());
        }
    }
    match body {
        Some(body) if has_body(parts.status) => outcome.body(body),
        _ => outcome.void(),
    }
}

/// Before the name of a field behind the body. No field's name has a colon in it.
const TRAILER_MARK: &str = "trailer:";
/// The name under which a [`TraceParent`] is kept.
const TRACE_PARENT: &str = "trace:parent";
/// The most bytes of trailers that are kept with an answer.
const MOST_TRAILERS: usize = 8 << 10;

/// Whether these trailers are kept; where they are not, neither is the body.
pub(crate) fn can_be_kept(trailers: &HeaderMap) -> bool {
    let bytes = trailers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    bytes.sum::<usize>() <= MOST_TRAILERS
}

fn is_kept(name: &HeaderName, allowed: &[HeaderName]) -> bool {
    if is_hop_by_hop(name) || name == CONTENT_LENGTH {
        return false;
    }
    let text = name.as_str();
    let per_transmission =
        NOT_KEPT.contains(&text) || NOT_KEPT_PREFIXES.iter().any(|p| text.starts_with(p));
    !per_transmission || allowed.contains(name)
}

/// RFC 9110, section 7.6.1, and what proxies and browsers treat alike.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE].contains(name)
        || matches!(
            name.as_str(),
            "keep-alive"
                | "proxy-connection"
                | "proxy-authenticate"
                | "proxy-authorization"
                | "proxy-authentication-info"
        )
}

/// The fields that `Connection` makes hop-by-hop.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .collect()
}

/// 204, 205 and 304 have no content (RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5).
fn has_body(status: StatusCode) -> bool {
    !matches!(status.as_u16(), 100..=199 | 204 | 205 | 304)
}

/// The response that an outcome keeps, marked as a replay, with this body. `origin` is that of the
/// present request.
pub(crate) fn response_of<R: HttpBody>(
    outcome: &Outcome,
    body: Option<Bytes>,
    replay_header: Option<&HeaderName>,
    origin: Option<&HeaderValue>,
) -> Response<Body<R>> {
    let omitted = outcome.kind() == OutcomeKind::Omitted;
    let status = match StatusCode::from_u16(outcome.code()) {
        Ok(status) => status,
        // Recorded by somebody who knows no HTTP: an operator, a reconciler.
        Err(_) if body.is_some() => StatusCode::OK,
        Err(_) => StatusCode::NO_CONTENT,
    };
    let (mut head, mut trailers) = (HeaderMap::new(), HeaderMap::new());
    let mut made_in = None;
    for (name, value) in outcome.fields() {
        if name == TRACE_PARENT {
            made_in = HeaderValue::from_bytes(value).ok().map(TraceParent);
            continue;
        }
        let (fields, name) = match name.strip_prefix(TRAILER_MARK) {
            Some(name) => (&mut trailers, name),
            None if omitted && describes_body(name) => continue,
            None => (&mut head, name),
        };
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    }
    // HTTP/1.1 sends those only that are announced (RFC 9110, section 6.6.2).
    for name in trailers.keys() {
        head.append(TRAILER, HeaderValue::from(name.clone()));
    }
    let trailers = (!trailers.is_empty()).then_some(trailers);
    let mut response = Response::new(Body::with_trailers(body.unwrap_or_default(), trailers));
    *response.status_mut() = status;
    *response.headers_mut() = head;
    let headers = response.headers_mut();
    if !admits(headers, origin) {
        headers.remove(ACCESS_CONTROL_ALLOW_ORIGIN);
        headers.remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
        headers.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
    }
    if let Some(name) = replay_header {
        headers.insert(name, TRUE);
    }
    let extensions = response.extensions_mut();
    extensions.insert(Replayed);
    if let Some(made_in) = made_in {
        extensions.insert(made_in);
    }
    let headers = response.headers_mut();
    if omitted {
        headers.insert(BODY_OMITTED, TRUE);
    }
    response
}

fn describes_body(name: &str) -> bool {
    (name.starts_with("content-") && name != "content-location")
        || matches!(name, "digest" | "repr-digest" | "accept-ranges")
}

/// Whether a stored `Access-Control-Allow-Origin` is right for the origin that asks now.
fn admits(headers: &HeaderMap, origin: Option<&HeaderValue>) -> bool {
    match headers.get(ACCESS_CONTROL_ALLOW_ORIGIN) {
        None => true,
        Some(allowed) => allowed == "*" || Some(allowed) == origin,
    }
}

/// Lets scripts of other origins read the layer's fields, where they may read the answer at all.
pub(crate) fn expose(headers: &mut HeaderMap, replay_header: Option<&HeaderName>) {
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        if let Some(name) = replay_header {
            admit(headers, &ACCESS_CONTROL_EXPOSE_HEADERS, name);
        }
        admit(headers, &ACCESS_CONTROL_EXPOSE_HEADERS, &RETRY_AFTER);
    }
}

/// Lets scripts of other origins send the key, where the answer to a preflight lets them send
/// anything.
pub(crate) fn allow(headers: &mut HeaderMap, key_header: &HeaderName) {
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        admit(headers, &ACCESS_CONTROL_ALLOW_HEADERS, key_header);
    }
}

fn admit(headers: &mut HeaderMap, list: &HeaderName, name: &HeaderName) {
    // `*` is a name like any other where credentials are allowed (Fetch, CORS protocol).
    let wildcard = headers.get(ACCESS_CONTROL_ALLOW_CREDENTIALS).is_none();
    let admitted = |t: &str| t.eq_ignore_ascii_case(name.as_str()) || (wildcard && t == "*");
    if !tokens(headers, list).any(admitted) {
        headers.append(list, HeaderValue::from(name.clone()));
    }
}

/// The members of a field that is a comma-separated list of tokens.
pub(crate) fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}
