//! Requests that a web page sends from an operator's browser without being asked.

use http::Uri;
use http::header::{HOST, HeaderMap, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use crate::refused::{Code, Refused};

/// Refuses requests that change something and come from another site's page: what browsers say of a
/// request's origin cannot be set by a page. For browsers that say nothing there is
/// [`Given`](crate::exchange::Given), which takes only what a form cannot send.
pub(super) fn check(request: &Parts) -> Result<(), Refused> {
    if request.method.is_safe() {
        return Ok(());
    }
    match is_own(request) {
        true => Ok(()),
        false => Err(Refused::new(
            Code::Forbidden,
            "A page of another site sent this request. Nothing was done.",
        )),
    }
}

/// Whether no page of another site sent it, as far as browsers say.
pub(crate) fn is_own(request: &Parts) -> bool {
    let text = |name: &str| Some(request.headers.get(name)?.to_str().unwrap_or_default());
    // `none`: typed by the operator.
    if let Some(site) = text("sec-fetch-site") {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(ORIGIN.as_str()) else {
        // No browser.
        return true;
    };
    let host = host(&request.uri, &request.headers);
    let origin: Option<Uri> = origin.parse().ok();
    let origin = origin.as_ref().and_then(Uri::authority);
    origin.is_some_and(|origin| host.is_some_and(|host| origin.as_str().eq_ignore_ascii_case(host)))
}

/// The name and port that a request is for: HTTP/2 has them beside the path. Empty where they are no text.
pub(crate) fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let named = uri.authority().map(Authority::as_str);
    named.or_else(|| Some(headers.get(HOST)?.to_str().unwrap_or_default()))
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
    fn no_page_of_another_site_changes_anything() {
        for (fields, expected) in [
            (&[][..], None),
            (&[("sec-fetch-site", "same-origin")], None),
            (&[("sec-fetch-site", "none")], None),
            (&[("origin", "http://127.0.0.1:8081")], None),
            (&[("sec-fetch-site", "cross-site")], Some("forbidden")),
            (&[("sec-fetch-site", "same-site")], Some("forbidden")),
            (&[("sec-fetch-site", "é")], Some("forbidden")),
            (&[("origin", "http://127.0.0.1:8080")], Some("forbidden")),
            (&[("origin", "https://evil.example")], Some("forbidden")),
            (&[("origin", "null")], Some("forbidden")),
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
