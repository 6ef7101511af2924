//! What of a request is kept with its record, for operators.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{
    AUTHORIZATION, COOKIE, HeaderName, HeaderValue, PROXY_AUTHORIZATION, SET_COOKIE,
};
use http::request::Parts;
use semel::{Key, Note};
use serde_json::value::RawValue;

use crate::TraceParent;
use crate::preset::members::Members;

/// A text of a request that is kept with its record in a [`Note`], so that operators know what it is
/// about. It may be personal data; it decides nothing.
///
/// Texts that have the request's key in them are left out (protocol rule R12), and so are
/// `Authorization` and `Cookie`. As text, in configurations: `method`, `path`, `request-id`,
/// `trace-id`, `header:NAME`, `json:/POINTER`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoteField {
    /// The method.
    Method,
    /// The path, without the query.
    Path,
    /// The field `X-Request-Id`.
    RequestId,
    /// The trace in the field `traceparent` (W3C Trace Context), or in a [`TraceParent`] among the
    /// extensions of the request.
    TraceId,
    /// This field of the header, by its name.
    Header(HeaderName),
    /// A text, a number or a truth value in a JSON body, by its JSON Pointer (RFC 6901), as in
    /// `/amount`. Reads the body once more.
    Json(Arc<str>),
    /// The same in every request: its name and its text.
    Fixed(Arc<str>, Arc<str>),
}

impl NoteField {
    fn name(&self) -> &str {
        match self {
            Self::Method => "method",
            Self::Path => "path",
            Self::RequestId => "request-id",
            Self::TraceId => "trace-id",
            Self::Header(name) => name.as_str(),
            Self::Json(name) | Self::Fixed(name, _) => name,
        }
    }

    fn of<'a>(&'a self, parts: &'a Parts, body: &'a Bytes) -> Option<Cow<'a, str>> {
        match self {
            Self::Method => Some(parts.method.as_str().into()),
            Self::Path => Some(parts.uri.path().into()),
            Self::RequestId => text(&parts.headers, &REQUEST_ID),
            Self::TraceId => {
                let parent = parts.extensions.get().map(|TraceParent(parent)| parent);
                trace_id(parent.or_else(|| parts.headers.get(TRACE_PARENT))?)
            }
            Self::Header(name) if is_secret(name) => None,
            Self::Header(name) => text(&parts.headers, name),
            Self::Json(pointer) => in_json(body, pointer),
            Self::Fixed(_, text) => Some((&**text).into()),
        }
    }
}

/// What is kept of a request with this key.
pub(crate) fn note(fields: &[NoteField], parts: &Parts, body: &Bytes, key: &Key) -> Note {
    let texts = fields.iter().filter_map(|field| {
        let text = field.of(parts, body)?;
        let has_key = *field != NoteField::Method && text.contains(key.as_str());
        (!has_key).then(|| (field.name(), text))
    });
    Note::new(texts)
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

fn is_secret(name: &HeaderName) -> bool {
    [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, SET_COOKIE].contains(name)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    Some(String::from_utf8_lossy(headers.get(name)?.as_bytes()))
}

fn trace_id(parent: &HeaderValue) -> Option<Cow<'_, str>> {
    let id = parent.to_str().ok()?.split('-').nth(1)?;
    let is_id = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| id.into())
}

fn in_json<'a>(body: &'a Bytes, pointer: &str) -> Option<Cow<'a, str>> {
    let mut value: &RawValue = serde_json::from_slice(body).ok()?;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        value = match value.get() {
            object if object.starts_with('{') => Members::of(object.as_bytes())?.get(&step)?,
            list if list.starts_with('[') => {
                let items: Vec<&RawValue> = serde_json::from_str(list).ok()?;
                items.get(step.parse::<usize>().ok()?)?
            }
            _ => return None,
        };
    }
    match value.get() {
        text if text.starts_with('"') => serde_json::from_str::<String>(text).ok().map(Cow::Owned),
        other if other.starts_with(['{', '[', 'n']) => None,
        plain => Some(plain.into()),
    }
}

/// There is no such field, or it is never kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadNoteField;

impl fmt::Display for BadNoteField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "nothing to keep with a record; that can be method, path, request-id, trace-id, \
             header:NAME but for Authorization and Cookie, and json:/POINTER",
        )
    }
}

impl std::error::Error for BadNoteField {}

impl FromStr for NoteField {
    type Err = BadNoteField;

    fn from_str(text: &str) -> Result<Self, BadNoteField> {
        Ok(match text.split_once(':') {
            None if text == "method" => Self::Method,
            None if text == "path" => Self::Path,
            None if text == "request-id" => Self::RequestId,
            None if text == "trace-id" => Self::TraceId,
            Some(("header", name)) => match name.parse() {
                Ok(name) if !is_secret(&name) => Self::Header(name),
                _ => return Err(BadNoteField),
            },
            Some(("json", pointer)) if pointer.starts_with('/') => Self::Json(pointer.into()),
            _ => return Err(BadNoteField),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";

    fn kept(fields: &[&str], request: http::request::Builder, body: &'static str) -> String {
        let fields: Vec<NoteField> = fields.iter().map(|f| f.parse().unwrap()).collect();
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let key = Key::new(KEY).unwrap();
        note(&fields, &parts, &body.into(), &key)
            .as_text()
            .to_owned()
    }

    #[test]
    fn what_is_asked_for_is_kept() {
        let request = Request::post("http://host/orders/7?card=4242")
            .header("x-request-id", "r-1")
            .header("x-customer", "c-9")
            .header(
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            );
        let fields = [
            "method",
            "path",
            "request-id",
            "trace-id",
            "header:X-Customer",
        ];
        assert_eq!(
            kept(&fields, request, ""),
            "method=POST\npath=/orders/7\nrequest-id=r-1\n\
             trace-id=4bf92f3577b34da6a3ce929d0e0e4736\nx-customer=c-9"
        );
        let bare = || Request::post("/").header("traceparent", "no trace");
        assert_eq!(kept(&fields[1..], bare(), ""), "path=/");
        assert_eq!(kept(&[], bare(), ""), "");
    }

    #[test]
    fn members_of_json_are_found_by_their_pointer() {
        let body = r#" {"amount": 1.50, "to": {"a/b": ["x", "né\n"], "~": true}, "no": null} "#;
        let fields = ["json:/amount", "json:/to/a~1b/1", "json:/to/~0"];
        let fields = fields
            .into_iter()
            .chain(["json:/no", "json:/to", "json:/to/a~1b/2"]);
        let fields: Vec<&str> = fields.chain(["json:/amount/x"]).collect();
        let request = || Request::post("/");
        assert_eq!(
            kept(&fields, request(), body),
            "/amount=1.50\n/to/a~1b/1=né\u{fffd}\n/to/~0=true"
        );
        assert_eq!(kept(&fields, request(), "a=1"), "");
        assert_eq!(kept(&fields, request(), ""), "");
    }

    #[test]
    fn no_key_and_no_credential_is_kept() {
        let path = format!("/orders/{KEY}/lines");
        let request = Request::put(path)
            .header("x-request-id", KEY)
            .header("x-customer", "c-9")
            .header("authorization", "Bearer secret");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let body = Bytes::from(format!(r#"{{"key":"{KEY}"}}"#));
        let fields = [
            NoteField::Path,
            NoteField::RequestId,
            NoteField::Json("/key".into()),
            NoteField::Header(AUTHORIZATION),
            NoteField::Header(HeaderName::from_static("x-customer")),
        ];
        let note = note(&fields, &parts, &body, &Key::new(KEY).unwrap());
        assert_eq!(note.as_text(), "x-customer=c-9");
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for bad in [
            "",
            "Method",
            "query",
            "header:",
            "header:a b",
            "header:authorization",
            "header:Cookie",
            "json:amount",
            "json:",
        ] {
            assert_eq!(bad.parse::<NoteField>(), Err(BadNoteField), "{bad}");
        }
    }
}
