//! How the interfaces of the operators' listener read requests and write answers: JSON, never cached.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use semel::IdentityDigest;
use semel_tower::ProblemCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::claims::MAX_REQUEST;
use crate::refused::{Code, Refused};

/// How long a request's body may take.
const BODY_TIME: Duration = Duration::from_secs(30);

/// What a request says, in JSON, and declared as such: a page of another site cannot send that from a
/// form.
pub(crate) struct Given<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Given<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        if !is_json(request.headers()) {
            return Err(Refused::new(
                Code::UnsupportedMediaType,
                "Send JSON, with `Content-Type: application/json`. Nothing was done.",
            ));
        }
        let body = timeout(BODY_TIME, Bytes::from_request(request, state)).await;
        let body = match body {
            Ok(Ok(body)) => body,
            Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let detail =
                    format!("A request has {MAX_REQUEST} bytes at most. Nothing was done.");
                return Err(Refused::of_layer(ProblemCode::TooLarge, detail));
            }
            Ok(Err(_)) | Err(_) => {
                let detail = "The body broke off, or did not come in time. Nothing was done.";
                return Err(Refused::of_layer(ProblemCode::IncompleteBody, detail));
            }
        };
        let mut json = serde_json::Deserializer::from_slice(&body);
        let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let place = error.path().to_string();
            wrong(&place, &error.into_inner())
        })?;
        json.end().map_err(|error| wrong(".", &error))?;
        Ok(Self(read))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// What is wrong with a request, without the value: it may be a key.
fn wrong(place: &str, error: &serde_json::Error) -> Refused {
    let text = error.to_string();
    let text = match text.split_once(", expected ") {
        Some((found, expected))
            if ["invalid ", "unknown variant "]
                .iter()
                .any(|start| found.starts_with(start)) =>
        {
            let expected = expected.split(" at line ").next().unwrap_or(expected);
            format!("must be {expected}")
        }
        _ => text,
    };
    Refused::invalid(match place {
        "." | "?" => text,
        place => format!("{place}: {text}"),
    })
}

/// The name of a record, in a path.
pub(crate) struct Id(pub(crate) IdentityDigest);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = RawPathParams::from_request_parts(parts, state).await.ok();
        let id = path.and_then(|path| {
            let (_, id) = path.iter().find(|(name, _)| *name == "id")?;
            IdentityDigest::from_hex(id)
        });
        let detail = "There is no record of this id: it has 64 hexadecimal digits.";
        id.map(Self)
            .ok_or_else(|| Refused::new(Code::NotFound, detail))
    }
}

/// An answer, as JSON.
pub(crate) struct Told<T>(pub(crate) StatusCode, pub(crate) T);

impl<T: Serialize> IntoResponse for Told<T> {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match serde_json::to_vec(&self.1) {
            Ok(json) => (self.0, headers, json).into_response(),
            Err(error) => {
                tracing::error!("an answer cannot be written as JSON: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::claims::wire::CompleteRequest;

    async fn said(body: &str) -> String {
        sent("application/json", body).await
    }

    async fn sent(kind: &str, body: &str) -> String {
        let request = Request::post("/").header(CONTENT_TYPE, kind);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        match Given::<CompleteRequest>::from_request(request, &()).await {
            Ok(_) => String::new(),
            Err(refused) => refused.to_string(),
        }
    }

    #[tokio::test]
    async fn only_json_is_read() {
        let body = r#"{"token": "t"}"#;
        for kind in ["application/json", "Application/JSON; charset=utf-8"] {
            assert_eq!(sent(kind, body).await, "", "{kind}");
        }
        for kind in ["", "text/plain", "application/jsonp", "é"] {
            let said = sent(kind, body).await;
            assert!(said.starts_with("unsupported-media-type"), "{kind}: {said}");
        }
    }

    #[tokio::test]
    async fn what_is_wrong_is_named_and_not_repeated() {
        for (body, message) in [
            (
                "",
                "invalid-request: EOF while parsing a value at line 1 column 0",
            ),
            (
                "{}",
                "invalid-request: missing field `token` at line 1 column 2",
            ),
            (
                r#"{"token": "t", "outcome": {"code": "my secret"}}"#,
                "invalid-request: outcome.code: must be u16",
            ),
            (
                r#"{"token": 1}"#,
                "invalid-request: token: must be a string",
            ),
            (
                r#"{"token": "t", "color": "my secret"}"#,
                "color: unknown field `color`",
            ),
            (
                r#"{"token": "t"} my secret"#,
                "invalid-request: trailing characters",
            ),
            (r#"{"token": "t", "token": "t"}"#, "duplicate field `token`"),
        ] {
            let said = said(body).await;
            assert!(said.contains(message), "{body}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
        assert_eq!(
            said(r#"{"token": "t", "outcome": {"json": null}}"#).await,
            ""
        );
    }
}
