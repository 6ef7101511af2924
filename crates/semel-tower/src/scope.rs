//! Who a key belongs to.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;
use semel::Scope;
use sha2::{Digest as _, Sha256};

type Finder = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// Finds the principal of a request, and what else belongs to its scope.
#[derive(Clone, Default)]
pub(crate) struct ScopeRule {
    principal: Principal,
    /// Fields whose values are added: tenant, account, mode.
    also: Vec<HeaderName>,
    required: bool,
}

#[derive(Clone, Default)]
enum Principal {
    /// Digest of the `Authorization` field, so that no credential is ever stored.
    #[default]
    Authorization,
    Header(HeaderName),
    Function(Arc<Finder>),
}

impl ScopeRule {
    pub(crate) fn set_header(&mut self, name: HeaderName) {
        self.principal = Principal::Header(name);
    }

    pub(crate) fn set_function(&mut self, find: Arc<Finder>) {
        self.principal = Principal::Function(find);
    }

    pub(crate) fn add_header(&mut self, name: HeaderName) {
        self.also.push(name);
    }

    pub(crate) fn set_required(&mut self, required: bool) {
        self.required = required;
    }

    /// The scope of a request; `None` where a principal is required and there is none.
    pub(crate) fn of(&self, parts: &Parts) -> Option<Scope> {
        let principal = match &self.principal {
            Principal::Authorization => digest_of(&parts.headers, &AUTHORIZATION)
                .map(|digest| Scope::new([AUTHORIZATION.as_str(), &digest])),
            Principal::Header(name) => {
                let mut segments = Vec::new();
                append(&mut segments, &parts.headers, name);
                // An empty value names nobody.
                (segments.len() > 2 && segments[2..].iter().any(|s| !s.is_empty()))
                    .then(|| Scope::new(&segments))
            }
            Principal::Function(find) => find(parts),
        };
        let scope = match principal {
            Some(scope) => scope,
            None if self.required => return None,
            None => Scope::anonymous(),
        };
        if self.also.is_empty() {
            return Some(scope);
        }
        let mut segments: Vec<String> = scope.segments().map(str::to_owned).collect();
        for name in &self.also {
            append(&mut segments, &parts.headers, name);
        }
        Some(Scope::new(segments))
    }
}

impl fmt::Debug for ScopeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let principal = match &self.principal {
            Principal::Authorization => "digest of authorization",
            Principal::Header(name) => name.as_str(),
            Principal::Function(_) => "function",
        };
        f.debug_struct("ScopeRule")
            .field("principal", &principal)
            .field("also", &self.also)
            .field("required", &self.required)
            .finish()
    }
}

/// Adds a field's name, the number of its values, and each value. The number keeps two adjacent
/// fields apart; bytes that are no text are written so that they equal no text.
fn append(segments: &mut Vec<String>, headers: &HeaderMap, name: &HeaderName) {
    let values = headers.get_all(name);
    segments.push(name.as_str().to_owned());
    segments.push(values.iter().count().to_string());
    for value in values {
        segments.push(match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => text.to_owned(),
            // A field value holds no control characters, so no text begins like this.
            Err(_) => format!("\0{}", value.as_bytes().escape_ascii()),
        });
    }
}

/// SHA-256, in hexadecimal, over all values of a field.
fn digest_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let mut hash = Sha256::new();
    for value in values {
        hash.update((value.len() as u64).to_be_bytes());
        hash.update(value.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    Some(semel::IdentityDigest::from_bytes(digest).to_string())
}
