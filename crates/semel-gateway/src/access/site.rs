//! Requests that a web page sends from an operator's browser without being asked.

use http::Uri;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use http::request::Parts;

use crate::refused::{Code, Refused};

/// Refuses requests that change something and come from another site's page, or could: a form cannot
/// send JSON, and what browsers say of a request's origin cannot be set by a page.
pub(super) fn check(request: &Parts) -> Result<(), Refused> {
    if request.method.is_safe() {
        return Ok(());
    }
    let headers = &request.headers;
    if !is_own(request) {
        let detail = "A page of another site sent this request. Nothing was done.";
        return Err(Refused::new(Code::Forbidden, detail));
    }
    match is_json(headers) {
        true => Ok(()),
        false => Err(Refused::new(
            Code::UnsupportedMediaType,
            "Send JSON, with `Content-Type: application/json`. Nothing was done.",
        )),
    }
}

fn is_own(request: &Parts) -> bool {
    let text = |name: &str| Some(request.headers.get(name)?.to_str().unwrap_or_default());
    // `none`: typed by the operator.
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(ORIGIN.as_str()) else {
        // No browser.
        return true;
    };
    let host = request.uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| text(HOST.as_str()));
    let origin: Option<Uri> = origin.parse().ok();
    let origin = origin.as_ref().and_then(Uri::authority);
    origin.is_some_and(|origin| host.is_some_and(|host| origin.as_str().eq_ignore_ascii_case(host)))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn said(method: &str, fields: &[(&str, &str)]) -> Option<&'static str> {
        let request = Request::builder().method(method).uri("/v1/claims");
        let fields = fields.iter().chain(&[("host", "127.0.0.1:8081")]);
        let request = fields.fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let (parts, ()) = request.body(()).unwrap().into_parts();
        check(&parts).err().map(|refused| refused.code())
    }

    #[test]
    fn only_json_from_no_other_site_changes_anything() {
        let json = ("content-type", "application/json; charset=utf-8");
        for (fields, expected) in [
            (&[json][..], None),
            (&[json, ("sec-fetch-site", "same-origin")], None),
            (&[json, ("sec-fetch-site", "none")], None),
            (&[json, ("origin", "http://127.0.0.1:8081")], None),
            (&[json, ("sec-fetch-site", "cross-site")], Some("forbidden")),
            (&[json, ("sec-fetch-site", "same-site")], Some("forbidden")),
            (&[json, ("sec-fetch-site", "é")], Some("forbidden")),
            (
                &[json, ("origin", "http://127.0.0.1:8080")],
                Some("forbidden"),
            ),
            (
                &[json, ("origin", "https://evil.example")],
                Some("forbidden"),
            ),
            (&[json, ("origin", "null")], Some("forbidden")),
            (&[], Some("unsupported-media-type")),
            (
                &[("content-type", "text/plain")],
                Some("unsupported-media-type"),
            ),
            (
                &[("content-type", "application/jsonp")],
                Some("unsupported-media-type"),
            ),
        ] {
            for method in ["POST", "PUT", "PATCH", "DELETE", "ANY"] {
                assert_eq!(said(method, fields), expected, "{method} {fields:?}");
            }
            for method in ["GET", "HEAD"] {
                assert_eq!(said(method, fields), None, "{method} {fields:?}");
            }
        }
    }
}
