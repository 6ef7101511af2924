//! One intent.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderValue, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderName, Method, Request, Uri};
use http_body_util::Full;
use semel::Key;

use super::{Outbox, OutboxError};
use crate::call::{Keyed, OUTBOX_FIELD};

/// A request with a key of its own, until its answer was put to use.
///
/// Clones, and what [`Outbox::get`] finds under its name, are the same intent.
#[derive(Debug, Clone)]
pub struct Intent {
    pub(crate) kept: Arc<Kept>,
    pub(super) outbox: Outbox,
}

impl Intent {
    /// The name that it was begun under.
    pub fn name(&self) -> &str {
        &self.kept.name
    }

    /// Its key. Do not log it.
    pub fn key(&self) -> &Key {
        &self.kept.key
    }

    /// When it was begun, by this machine's clock.
    pub fn begun(&self) -> SystemTime {
        self.kept.keyed.begun
    }

    /// What to send. [`Retry`](crate::Retry) knows it by its extensions.
    pub fn request(&self) -> Request<Full<Bytes>> {
        let kept = &*self.kept;
        let mut request = Request::new(Full::new(kept.body.clone()));
        *request.method_mut() = kept.method.clone();
        *request.uri_mut() = kept.uri.clone();
        *request.headers_mut() = kept.headers.clone();
        for value in request.headers_mut().values_mut() {
            // Whoever logs the request does not log its key.
            if contains(value.as_bytes(), &kept.key) {
                value.set_sensitive(true);
            }
        }
        request.extensions_mut().insert(kept.keyed.clone());
        request
    }

    /// Forgets it: its answer was put to use, or somebody decided that it is over. On disk that is
    /// synced, too: an intent that came back after its service forgot the key would be done twice.
    ///
    /// # Errors
    /// [`OutboxError::Io`]: it is still pending then.
    pub async fn finish(&self) -> Result<(), OutboxError> {
        self.outbox.shared.clone().forget(self.kept.clone()).await
    }
}

/// What is kept of an intent.
pub(crate) struct Kept {
    pub(super) name: Box<str>,
    pub(super) key: Key,
    /// Of one that was found on disk a try may have had its effect.
    pub(super) keyed: Keyed,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Kept {
    pub(super) fn new(name: &str, key: Key, request: Request<Bytes>) -> Result<Self, OutboxError> {
        let (mut head, body) = request.into_parts();
        for (field, value) in &head.headers {
            let carries_key = contains(value.as_bytes(), &key);
            let is_secret = CREDENTIALS.contains(field) || value.is_sensitive() && !carries_key;
            let why = if is_secret {
                "it is a credential; add it to each try, under the layer or middleware that retries"
            } else if value.to_str().is_err() {
                "it has other characters than visible ASCII"
            } else {
                continue;
            };
            let field = field.as_str().into();
            return Err(OutboxError::Field { field, why });
        }
        put_key(&mut head.headers, &body, &key)?;
        Ok(Self {
            name: name.into(),
            key,
            keyed: Keyed::new(),
            method: head.method,
            uri: head.uri,
            headers: head.headers,
            body,
        })
    }

    /// About how much memory it takes.
    pub(super) fn size(&self) -> usize {
        let fields = self.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        self.name.len() + self.body.len() + fields.sum::<usize>()
    }

    /// Whether this request means the same.
    pub(super) fn check(&self, request: Request<Bytes>) -> Result<(), OutboxError> {
        let (mut head, body) = request.into_parts();
        put_key(&mut head.headers, &body, &self.key)?;
        let what = if head.method != self.method {
            "method"
        } else if head.uri != self.uri {
            "target"
        } else if body != self.body {
            "body"
        } else if meant(head.headers) != meant(self.headers.clone()) {
            "header"
        } else {
            return Ok(());
        };
        Err(OutboxError::Differs { what })
    }
}

const CREDENTIALS: [HeaderName; 3] = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE];

/// Fields that tell nothing of what is wanted, and may differ each time that it is.
const INCIDENTAL: [&str; 5] = ["baggage", "date", "traceparent", "tracestate", "user-agent"];

fn meant(mut headers: HeaderMap) -> HeaderMap {
    for name in INCIDENTAL {
        headers.remove(name);
    }
    headers
}

/// Unless it is there already. A key of the caller's own is never replaced in silence: the request would be
/// sent under a key that the caller does not know.
fn put_key(headers: &mut HeaderMap, body: &Bytes, key: &Key) -> Result<(), OutboxError> {
    let is_there = |value: &HeaderValue| contains(value.as_bytes(), key);
    if !headers.get_all(OUTBOX_FIELD).iter().all(is_there) {
        return Err(OutboxError::Field {
            field: OUTBOX_FIELD.to_owned(),
            why: "it holds another key than the intent's; leave it out, or put that key there",
        });
    }
    if !contains(body, key) && !headers.values().any(is_there) {
        let value = HeaderValue::from_str(key.as_str()).map_err(http::Error::from)?;
        headers.insert(OUTBOX_FIELD, value);
    }
    Ok(())
}

fn contains(bytes: &[u8], key: &Key) -> bool {
    let key = key.as_str().as_bytes();
    bytes.windows(key.len()).any(|some| some == key)
}

// Neither the key nor what is sent.
impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("name", &self.name)
            .field("key", &self.key)
            .field("begun", &self.keyed.begun)
            .finish_non_exhaustive()
    }
}
