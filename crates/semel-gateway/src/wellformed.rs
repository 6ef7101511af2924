//! Requests that a server has to refuse, or may, and that hyper lets through: RFC 9110, 9112, 9113.
//!
//! Another server on the way could read such a request as another one. Everything here is checked
//! before the idempotency layer, so that no key is taken by a request that never runs.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, Uri, Version};
use hyper::service::Service;
use pin_project_lite::pin_project;

use crate::headers;
use crate::problem::Problem;

/// Says what is wrong with a request, if anything is.
pub(crate) fn check(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    if *method == Method::CONNECT {
        return Err(Problem::NotSupported(
            "Tunnels (CONNECT) are not supported.",
        ));
    }
    if headers::asks_for_upgrade(headers)
        && (version != Version::HTTP_11 || headers::has_body_or_key(headers))
    {
        return Err(Problem::NotSupported(
            "An upgrade to another protocol is passed on in HTTP/1.1, without a key and without a body.",
        ));
    }
    check_target(method, uri)?;
    check_host(uri, version, headers)?;
    if !headers::has_plain_length(headers) {
        return Err(Problem::Malformed(
            "Content-Length is not a number without leading zeros.",
        ));
    }
    check_coding(headers)
}

/// RFC 9112, section 3.2; RFC 9113, section 8.3.1.
fn check_target(method: &Method, uri: &Uri) -> Result<(), Problem> {
    match (uri.scheme_str(), uri.authority()) {
        (None, Some(_)) => Err(Problem::Malformed(
            "The target is no path: it must begin with a slash.",
        )),
        (Some("http" | "https") | None, _) if uri.path() == "*" && *method != Method::OPTIONS => {
            Err(Problem::Malformed("The target * is for OPTIONS only."))
        }
        (Some("http" | "https") | None, _) => Ok(()),
        (Some(_), _) => Err(Problem::Malformed(
            "The target's scheme is neither http nor https.",
        )),
    }
}

/// RFC 9112, section 3.2; RFC 9113, section 8.3.1.
fn check_host(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let target = uri.authority().map(|authority| authority.as_str());
    let mut fields = headers.get_all(HOST).iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(Problem::Malformed("There is more than one Host field."));
    }
    if target.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(Problem::Malformed("The target's host is not one."));
    }
    match (field, target) {
        (Some(field), _) if !is_host(field.as_bytes()) => {
            Err(Problem::Malformed("The Host field is not a host."))
        }
        (Some(field), Some(target))
            if version == Version::HTTP_2
                && !field.as_bytes().eq_ignore_ascii_case(target.as_bytes()) =>
        {
            Err(Problem::Malformed(
                "The Host field and :authority name two hosts.",
            ))
        }
        (None, _) if version == Version::HTTP_11 => {
            Err(Problem::Malformed("There is no Host field."))
        }
        (None, None) if version == Version::HTTP_2 => Err(Problem::Malformed(
            "There is neither :authority nor a Host field.",
        )),
        _ => Ok(()),
    }
}

/// A host and perhaps a port: RFC 3986, section 3.2, without user information, which has no place
/// here (RFC 9110, section 4.2.4).
fn is_host(text: &[u8]) -> bool {
    let (host, port) = match text {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|b| *b == b']') else {
                return false;
            };
            let (address, port) = (&rest[..end], &rest[end + 1..]);
            let allowed = |b: &u8| b.is_ascii_hexdigit() || b":.".contains(b);
            if !address.iter().all(allowed) {
                return false;
            }
            (address, port)
        }
        _ => {
            let end = text.iter().position(|b| *b == b':').unwrap_or(text.len());
            let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(b);
            if !text[..end].iter().all(allowed) {
                return false;
            }
            text.split_at(end)
        }
    };
    let is_port = match port {
        [] => true,
        [b':'] => true,
        [b':', digits @ ..] => {
            digits.iter().all(u8::is_ascii_digit)
                && std::str::from_utf8(digits).is_ok_and(|port| port.parse::<u16>().is_ok())
        }
        _ => false,
    };
    !host.is_empty() && is_port
}

/// RFC 9112, section 6.1.
fn check_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut chunked = 0;
    for coding in headers::members(headers, &TRANSFER_ENCODING) {
        if !coding.eq_ignore_ascii_case("chunked") {
            return Err(Problem::NotSupported(
                "Of the transfer codings only chunked is supported.",
            ));
        }
        chunked += 1;
    }
    if chunked > 1 {
        return Err(Problem::Malformed(
            "The transfer coding chunked is there twice.",
        ));
    }
    Ok(())
}

/// Answers what is not well-formed, and passes on what is.
#[derive(Debug, Clone)]
pub(crate) struct Checked<S>(pub(crate) S);

impl<S, B, R> Service<Request<B>> for Checked<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Answer<S::Future, R>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let version = request.version();
        match check(request.method(), request.uri(), version, request.headers()) {
            Ok(()) => Answer::Passed {
                future: self.0.call(request),
            },
            Err(problem) => {
                let mut response = problem.respond();
                // Where this request ends nobody can be sure.
                if version < Version::HTTP_2 {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                Answer::Refused {
                    response: Some(response),
                }
            }
        }
    }
}

pin_project! {
    /// The answer to a request that was checked.
    #[project = AnswerProj]
    pub(crate) enum Answer<F, R> {
        Refused { response: Option<Response<R>> },
        Passed { #[pin] future: F },
    }
}

impl<F, R> Future for Answer<F, R>
where
    F: Future<Output = Result<Response<R>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            AnswerProj::Passed { future } => future.poll(cx),
            AnswerProj::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // Polled after its end, as other futures are not either.
                None => Poll::Pending,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
        for host in [
            "a",
            "a.b",
            "A:80",
            "a:",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:65535",
            "a_b",
            "%41",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "", ":80", "a b", "a/b", "a?b", "u@a", "a:b", "a:65536", "[::1", "[]", "[::1]a", "[x]",
            "a:80:80", "a\u{e9}", "<a>", "a\\b", "a#b", "\"a\"",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}
