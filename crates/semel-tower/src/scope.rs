//! Who a key belongs to.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use semel::Scope;
use sha2::{Digest as _, Sha256};

use crate::problem::{Problem, ProblemCode};
use crate::{fingerprint, host};

type Finder = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// Finds the principal of a request, and what else belongs to its scope.
#[derive(Clone, Default)]
pub(crate) struct ScopeRule {
    principal: Principal,
    /// Fields whose values are added: tenant, account, mode.
    also: Vec<HeaderName>,
    /// Whether method and path are added, behind all else.
    target: bool,
    required: bool,
}

#[derive(Clone, Default)]
enum Principal {
    /// Digest of the `Authorization` field, where its scheme sends the same in every request.
    #[default]
    Authorization,
    /// Digest of this field, so that no credential is ever stored.
    Credentials(HeaderName),
    Header(HeaderName),
    Function(Arc<Finder>),
}

/// Why a request has no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoScope {
    /// A principal is required, and there is none.
    Missing,
    /// There are credentials, of a scheme whose credentials may differ in each request.
    MayDiffer,
}

impl ScopeRule {
    pub(crate) fn set_header(&mut self, name: HeaderName) {
        self.principal = match name {
            AUTHORIZATION | COOKIE => Principal::Credentials(name),
            name => Principal::Header(name),
        };
    }

    pub(crate) fn set_function(&mut self, find: Arc<Finder>) {
        self.principal = Principal::Function(find);
    }

    pub(crate) fn add_header(&mut self, name: HeaderName) {
        self.also.push(name);
    }

    pub(crate) fn remove_headers(&mut self, names: &[&str]) {
        self.also.retain(|name| !names.contains(&name.as_str()));
    }

    pub(crate) fn set_required(&mut self, required: bool) {
        self.required = required;
    }

    pub(crate) fn set_target(&mut self, is_added: bool) {
        self.target = is_added;
    }

    /// The scope of a request.
    pub(crate) fn of(&self, parts: &Parts) -> Result<Scope, NoScope> {
        let principal = match &self.principal {
            Principal::Authorization => {
                let has_credentials = has_stable_credentials(&parts.headers)?;
                has_credentials.then(|| digest_of(&parts.headers, &AUTHORIZATION))
            }
            Principal::Credentials(name) => {
                let is_sent = host::values(parts, name).any(|value| !is_blank(&value));
                is_sent.then(|| digest_of(&parts.headers, name))
            }
            Principal::Header(name) => {
                let is_sent = host::values(parts, name).any(|value| !is_blank(&value));
                is_sent.then(|| {
                    let mut segments = Vec::new();
                    append(&mut segments, parts, name);
                    Scope::new(segments)
                })
            }
            Principal::Function(find) => find(parts),
        };
        let scope = match principal {
            Some(scope) => scope,
            None if self.required => return Err(NoScope::Missing),
            None => Scope::anonymous(),
        };
        let mut segments = Vec::new();
        for name in &self.also {
            match *name {
                AUTHORIZATION | COOKIE => {
                    let digest = digest_of(&parts.headers, name);
                    segments.extend(digest.segments().map(str::to_owned));
                }
                _ => append(&mut segments, parts, name),
            }
        }
        Ok(joined(scope, segments))
    }

    /// A scope with method and path behind it, where they belong to it.
    pub(crate) fn with_target(&self, scope: Scope, parts: &Parts) -> Scope {
        if !self.target {
            return scope;
        }
        let path = fingerprint::normalized(parts.uri.path()).into_owned();
        joined(
            scope,
            vec!["target".to_owned(), parts.method.to_string(), path],
        )
    }

    /// The scope without what [`with_target`](Self::with_target) added: who asks, whatever for.
    pub(crate) fn without_target<'a>(&self, scope: &'a Scope) -> Cow<'a, Scope> {
        if !self.target {
            return Cow::Borrowed(scope);
        }
        let segments = scope.segments();
        let others = segments.len().saturating_sub(3);
        Cow::Owned(Scope::new(segments.take(others)))
    }
}

/// A scope with more segments, if there are any.
pub(crate) fn joined(scope: Scope, more: Vec<String>) -> Scope {
    if more.is_empty() {
        return scope;
    }
    Scope::new(scope.segments().map(str::to_owned).chain(more))
}

impl fmt::Debug for ScopeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let principal = match &self.principal {
            Principal::Authorization => "digest of authorization",
            Principal::Credentials(name) | Principal::Header(name) => name.as_str(),
            Principal::Function(_) => "function",
        };
        f.debug_struct("ScopeRule")
            .field("principal", &principal)
            .field("also", &self.also)
            .field("target", &self.target)
            .field("required", &self.required)
            .finish()
    }
}

impl From<NoScope> for Problem {
    fn from(why: NoScope) -> Self {
        let problem = Self::new(ProblemCode::MissingPrincipal);
        match why {
            NoScope::Missing => problem,
            // Shows nothing of the field: where there is no scheme, its first word is the secret.
            NoScope::MayDiffer => problem.with_detail(
                "The scheme of `Authorization` is neither Basic nor Bearer. Its credentials may \
                 differ in each request, as signatures do, so that a retry could not be told from \
                 another caller's request. Whoever runs this service has to say which field names \
                 the caller (`with_principal_header` or `with_principal_by` of the layer, \
                 `--scope-header` of the gateway); `Authorization` itself, where the scheme sends \
                 the same in every request. Nothing was run.",
            ),
        }
    }
}

/// Whether there are credentials, all of a scheme that sends the same in every request until they
/// are renewed: Basic (RFC 7617) and Bearer (RFC 6750). All others are taken to differ: a wrong
/// guess that they do not would run every retry, and nobody would be told.
fn has_stable_credentials(headers: &HeaderMap) -> Result<bool, NoScope> {
    let mut found = false;
    for value in headers.get_all(AUTHORIZATION) {
        let value = value.as_bytes().trim_ascii();
        let end = value.iter().position(u8::is_ascii_whitespace);
        let (scheme, credentials) = value.split_at(end.unwrap_or(value.len()));
        let is_stable = [&b"basic"[..], b"bearer"]
            .iter()
            .any(|stable| scheme.eq_ignore_ascii_case(stable));
        if !is_stable && !scheme.is_empty() {
            return Err(NoScope::MayDiffer);
        }
        found |= !is_blank(credentials);
    }
    Ok(found)
}

fn is_blank(value: &[u8]) -> bool {
    value.trim_ascii().is_empty()
}

/// Adds a field's name, the number of its values, and each value. The number keeps two adjacent
/// fields apart; bytes that are no text are written so that they equal no text.
fn append(segments: &mut Vec<String>, parts: &Parts, name: &HeaderName) {
    segments.push(name.as_str().to_owned());
    segments.push(host::values(parts, name).count().to_string());
    for value in host::values(parts, name) {
        segments.push(match std::str::from_utf8(&value) {
            Ok(text) => text.to_owned(),
            // A field value holds no control characters, so no text begins like this.
            Err(_) => format!("\0{}", value.escape_ascii()),
        });
    }
}

/// SHA-256, in hexadecimal, over all values of a field.
fn digest_of(headers: &HeaderMap, name: &HeaderName) -> Scope {
    let mut hash = Sha256::new();
    for value in headers.get_all(name) {
        hash.update((value.len() as u64).to_be_bytes());
        hash.update(value.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let digest = semel::IdentityDigest::from_bytes(digest).to_string();
    Scope::new([name.as_str(), &digest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_a_part_as_they_are() {
        let rule = ScopeRule {
            also: vec![AUTHORIZATION, COOKIE],
            ..ScopeRule::default()
        };
        let scope_of = |token: &str| {
            let request = http::Request::builder()
                .header(AUTHORIZATION, token)
                .header(COOKIE, "session=secret");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            rule.of(&parts).unwrap()
        };
        let scope = scope_of("Bearer secret");
        assert!(!format!("{scope:?}").contains("secret"), "{scope:?}");
        assert_eq!(scope, scope_of("Bearer secret"));
        assert_ne!(scope, scope_of("Bearer secret2"));
    }
}
