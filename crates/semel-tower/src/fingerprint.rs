//! What makes two requests "the same": the fingerprint saved with the claim (protocol rule R3).

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use semel::{Fingerprint, FingerprintBuilder};

use crate::host;
use crate::json::{self, Digits};
use crate::preset::adcp_payload_hash;

/// How the body enters the fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum BodyForm {
    /// Byte for byte. A `multipart` body with a new boundary is then another body.
    Raw,
    /// JSON by its canonical form ([`json::canonical`]), where the media
    /// type is `application/json` or ends in `+json` and there is no content coding; everything
    /// else byte for byte.
    #[default]
    Json,
}

/// Another condition is another request: its answer is not that of the one before.
const CONDITIONS: [HeaderName; 2] = [IF_MATCH, IF_NONE_MATCH];

/// The fingerprint of a request: method, path and query, media type, content coding, `If-Match` and
/// `If-None-Match`, the fields named by `headers`, and the body.
///
/// Path and query are taken with their percent-encoding normalised (RFC 3986, section 6.2.2): `%7e`
/// and `%7E` are `~`, `%2f` is `%2F` and not `/`. Dot segments stay: routers tell them apart. Of
/// `Content-Type` only the media type counts, in lower case, without its parameters.
///
/// `Host` among `headers` is the host that the request is for, wherever it stands: in the target, as
/// HTTP/2 has it, or in the field. It counts in lower case, without the ports 80 and 443; an address
/// (`10.0.0.1:8080`) does not count, because a retry may be sent to another instance of the service.
/// `X-Forwarded-Host` is treated alike.
pub fn of_request<'a>(
    parts: &Parts,
    body: &[u8],
    form: BodyForm,
    headers: impl IntoIterator<Item = &'a HeaderName>,
) -> Fingerprint {
    let mut builder = target(parts);
    let media_type = media_type(&parts.headers);
    if let Some(media_type) = &media_type {
        builder = builder.part("content-type", media_type);
    }
    let mut coded = false;
    for coding in parts.headers.get_all(CONTENT_ENCODING) {
        coded = true;
        let coding = coding.as_bytes().trim_ascii().to_ascii_lowercase();
        builder = builder.part("content-encoding", &coding);
    }
    builder = fields(builder, parts, CONDITIONS.iter().chain(headers));
    let is_json = !coded && media_type.as_deref().is_some_and(is_json);
    content(builder, body, form == BodyForm::Json && is_json).finish()
}

/// The fingerprint of a body, as JSON where it is some, of the query, the conditions and the host. The path
/// belongs to the scope.
pub(crate) fn of_body(parts: &Parts, body: &[u8], host: &HeaderName) -> Fingerprint {
    let query = normalized(parts.uri.query().unwrap_or_default());
    let builder = Fingerprint::builder().part("query", query.as_bytes());
    let fields = fields(builder, parts, CONDITIONS.iter().chain([host]));
    content(fields, body, true).finish()
}

/// The fingerprint of an AdCP task: what the request is for, and its payload.
pub(crate) fn of_adcp(parts: &Parts, body: &[u8], host: &HeaderName) -> Fingerprint {
    let builder = fields(target(parts), parts, CONDITIONS.iter().chain([host]));
    match adcp_payload_hash(body) {
        Some(hash) => builder.part("adcp", &hash),
        None => builder.part("body", body),
    }
    .finish()
}

fn target(parts: &Parts) -> FingerprintBuilder {
    let builder = Fingerprint::builder()
        .part("method", parts.method.as_str().as_bytes())
        .part("path", normalized(parts.uri.path()).as_bytes());
    match parts.uri.query() {
        Some(query) => builder.part("query", normalized(query).as_bytes()),
        None => builder,
    }
}

fn fields<'a>(
    mut builder: FingerprintBuilder,
    parts: &Parts,
    names: impl IntoIterator<Item = &'a HeaderName>,
) -> FingerprintBuilder {
    for name in names {
        for value in host::values(parts, name) {
            if host::is_host(name) && host::is_address(&value) {
                continue;
            }
            builder = builder
                .part("header", name.as_str().as_bytes())
                .part("value", &value);
        }
    }
    builder
}

fn content(builder: FingerprintBuilder, body: &[u8], is_json: bool) -> FingerprintBuilder {
    if !is_json {
        return builder.part("body", body);
    }
    // Two names, so that a canonical form never equals bytes that happen to look like it.
    json::with_canonical(body, Digits::Kept, |canonical| match canonical {
        Some(canonical) => builder.part("json", canonical),
        None => builder.part("body", body),
    })
}

pub(crate) fn media_type(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let value = values.next()?.as_bytes();
    let essence = value.split(|b| *b == b';').next().unwrap_or_default();
    let mut media_type = Cow::Borrowed(essence.trim_ascii());
    if media_type.iter().any(u8::is_ascii_uppercase) {
        media_type.to_mut().make_ascii_lowercase();
    }
    for more in values {
        // Not valid, and never equal to a request that is.
        let media_type = media_type.to_mut();
        media_type.push(b',');
        media_type.extend_from_slice(more.as_bytes());
    }
    Some(media_type)
}

pub(crate) fn is_json(media_type: &[u8]) -> bool {
    media_type == b"application/json" || media_type.ends_with(b"+json")
}

/// Upper-case hexadecimal digits in percent-encodings, and none where the character needs none.
pub(crate) fn normalized(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        rest = after;
        let Some(byte) = after.get(..2).and_then(hex_byte) else {
            out.push('%');
            continue;
        };
        rest = &after[2..];
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend(after[..2].chars().map(|c| c.to_ascii_uppercase()));
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn hex_byte(pair: &str) -> Option<u8> {
    // Not all that the integer parser takes is two digits: "+1".
    pair.bytes()
        .all(|b| b.is_ascii_hexdigit())
        .then(|| u8::from_str_radix(pair, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn of(uri: &str, content_type: &str, body: &str, form: BodyForm) -> Fingerprint {
        let request = Request::post(uri)
            .header(CONTENT_TYPE, content_type)
            .body(())
            .unwrap();
        of_request(&request.into_parts().0, body.as_bytes(), form, &[])
    }

    #[test]
    fn percent_encoding_is_normalized() {
        for (raw, normal) in [
            ("/a%7eb", "/a~b"),
            ("/a%2fb", "/a%2Fb"),
            ("/%41%2E", "/A."),
            ("/100%", "/100%"),
            ("/%zz%+1%c3%a9", "/%zz%+1%C3%A9"),
            ("/a%2", "/a%2"),
        ] {
            assert_eq!(normalized(raw), normal);
        }
    }

    #[test]
    fn a_canonical_form_never_equals_the_same_bytes_taken_raw() {
        let body = r#"{"a":1}"#;
        let json = of("/", "application/json", body, BodyForm::Json);
        let raw = of("/", "application/json", body, BodyForm::Raw);
        assert_ne!(json, raw);
        let spaced = of("/", "application/json", r#"{ "a": 1.0 }"#, BodyForm::Json);
        assert_eq!(json, spaced);
    }

    #[test]
    fn a_query_is_not_a_path() {
        let of = |uri| of(uri, "text/plain", "", BodyForm::Raw);
        assert_ne!(of("/orders"), of("/orders?"));
        assert_ne!(of("/orders?a=1"), of("/orders?a=2"));
        assert_eq!(of("/orders?a=%7e"), of("/orders?a=~"));
        assert_ne!(of("/a/../b"), of("/b"));
    }

    /// Whatever a preset compares beside it.
    #[test]
    fn another_condition_is_another_request() {
        let forms: [fn(&Parts) -> Fingerprint; _] = [
            |parts| of_request(parts, b"{}", BodyForm::Json, &[]),
            |parts| of_body(parts, b"{}", &http::header::HOST),
            |parts| of_adcp(parts, b"{}", &http::header::HOST),
        ];
        for of in forms {
            let mut seen = Vec::new();
            for (name, value) in [
                ("if-match", "1"),
                ("if-match", "2"),
                ("if-none-match", "1"),
                ("accept", "1"),
            ] {
                let request = Request::post("/").header(name, value).body(()).unwrap();
                let fingerprint = of(&request.into_parts().0);
                assert!(!seen.contains(&fingerprint), "{name}: {value}");
                seen.push(fingerprint);
            }
        }
    }
}
