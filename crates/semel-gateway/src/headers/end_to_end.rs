//! Fields that `Connection` cannot take away.

use std::sync::Arc;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST,
    HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH,
};

use super::{KEY, members};

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
