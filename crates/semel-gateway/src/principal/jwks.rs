//! The keys that tokens are signed with: a set of JSON Web Keys (RFC 7517), from a file or a URL, read
//! again from time to time, and when a token names a key that is not among them.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::Error;
use super::get::Get;
use crate::command::with_causes;
use crate::tls::client::Trust;

/// How long a set may take to come.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two tries for keys that are not there: whoever sends a token can name a key that
/// there is not.
const PAUSE: Duration = Duration::from_secs(10);
/// The largest set, in bytes, and how many keys of it are used.
const MAX_SET: usize = 1 << 20;
const MAX_KEYS: usize = 100;

/// Where the keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// In a file.
    File(PathBuf),
    /// At a URL.
    Url(Uri),
}

/// A key that may have signed a token.
#[derive(Debug, Clone)]
struct Known {
    id: Option<String>,
    // What the set says that it is for.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

impl Known {
    /// A key for signatures, of a kind that can be verified with what is public.
    fn of(jwk: &Jwk) -> Option<Self> {
        let (usage, operations) = (&jwk.common.public_key_use, &jwk.common.key_operations);
        let is_signing = usage
            .as_ref()
            .is_none_or(|it| *it == PublicKeyUse::Signature)
            && operations
                .as_ref()
                .is_none_or(|it| it.contains(&KeyOperations::Verify));
        let is_usable = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => true,
            AlgorithmParameters::EllipticCurve(key) => {
                matches!(key.curve, EllipticCurve::P256 | EllipticCurve::P384)
            }
            AlgorithmParameters::OctetKeyPair(key) => key.curve == EllipticCurve::Ed25519,
            // A secret: whoever can verify with it can also sign.
            _ => false,
        };
        let algorithm = jwk.common.key_algorithm.map(Algorithm::try_from);
        (is_signing && is_usable).then_some(Self {
            id: jwk.common.key_id.clone(),
            algorithm: algorithm.transpose().ok()?,
            key: DecodingKey::from_jwk(jwk).ok()?,
        })
    }

    fn fits(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        self.key.family() == algorithm.family()
            && self.algorithm.is_none_or(|named| named == algorithm)
            && id.is_none_or(|id| self.id.as_deref() == Some(id))
    }
}

/// The keys of a set that can be used. One that is not understood leaves the others.
fn read(set: &[u8]) -> Result<Vec<Known>, &'static str> {
    let set: serde_json::Value = serde_json::from_slice(set).map_err(|_| "it is not JSON")?;
    let keys = set.get("keys").and_then(serde_json::Value::as_array);
    let keys = keys.ok_or("it is not a set of JSON Web Keys: there is no list `keys`")?;
    let jwks = keys
        .iter()
        .filter_map(|key| serde_json::from_value(key.clone()).ok());
    let known: Vec<Known> = jwks
        .filter_map(|jwk: Jwk| Known::of(&jwk))
        .take(MAX_KEYS)
        .collect();
    if known.is_empty() {
        return Err("it holds no public key for signatures (RSA, P-256, P-384 or Ed25519)");
    }
    Ok(known)
}

impl Source {
    /// The keys, where they are in a file.
    fn read(&self) -> Result<Option<Vec<Known>>, Error> {
        let Self::File(path) = self else {
            return Ok(None);
        };
        let wrong = |why: &dyn fmt::Display| Error(format!("`{}`: {why}", path.display()));
        let set = std::fs::read(path).map_err(|why| wrong(&why))?;
        read(&set).map(Some).map_err(|why| wrong(&why))
    }

    /// Whether the keys can be read, where they are in a file.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no key of use.
    pub fn check(&self) -> Result<(), Error> {
        self.read().map(drop)
    }
}

/// Why there is no key for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The set has none that fits.
    Unknown,
    /// The set could not be read when it was last tried.
    Unavailable,
}

/// The set.
pub(super) struct Jwks {
    place: Place,
    known: RwLock<Option<Arc<[Known]>>>,
    // One reads it at a time.
    tried: Mutex<Tried>,
}

enum Place {
    File(PathBuf),
    Url(Box<Get>),
}

#[derive(Debug, Default)]
struct Tried {
    // When it was last read for a token's sake.
    at: Option<Instant>,
    has_failed: bool,
}

impl Jwks {
    /// Reads a file at once, a URL in the background; and again after each `refresh`, for as long as
    /// it is used.
    pub(super) fn open(
        source: &Source,
        refresh: Duration,
        trust: &Arc<Trust>,
    ) -> Result<Arc<Self>, Error> {
        let known = source.read()?.map(Arc::from);
        let place = match source {
            Source::File(path) => Place::File(path.clone()),
            Source::Url(url) => Place::Url(Box::new(Get::new(url, TIMEOUT, trust))),
        };
        let is_there = known.is_some();
        let jwks = Arc::new(Self {
            place,
            known: RwLock::new(known),
            tried: Mutex::default(),
        });
        tokio::spawn(keep_fresh(Arc::downgrade(&jwks), is_there, refresh));
        Ok(jwks)
    }

    /// The keys that may have signed a token which names this key and algorithm. If there are none the
    /// set is read again first, but not again and again.
    pub(super) async fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<DecodingKey>, NoKey> {
        if let Some(found) = self.look(id, algorithm) {
            return Ok(found);
        }
        let mut tried = self.tried.lock().await;
        // Somebody else may have read it meanwhile.
        if let Some(found) = self.look(id, algorithm) {
            return Ok(found);
        }
        if tried.at.is_none_or(|at| at.elapsed() >= PAUSE) {
            // The first time is nobody's fault.
            let is_first = self.is_empty();
            self.refresh(&mut tried).await;
            tried.at = Some(Instant::now()).filter(|_| !is_first || tried.has_failed);
        }
        self.look(id, algorithm).ok_or(match tried.has_failed {
            true => NoKey::Unavailable,
            false => NoKey::Unknown,
        })
    }

    fn look(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Vec<DecodingKey>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let fitting = known.iter().flat_map(|known| known.iter());
        let fitting = fitting.filter(|known| known.fits(id, algorithm));
        let found: Vec<_> = fitting.map(|known| known.key.clone()).collect();
        (!found.is_empty()).then_some(found)
    }

    fn is_empty(&self) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.is_none()
    }

    async fn refresh(&self, tried: &mut Tried) {
        let set = match self.fetch().await {
            Ok(set) => read(&set).map_err(str::to_owned),
            Err(error) => Err(with_causes(&*error)),
        };
        tried.has_failed = set.is_err();
        match set {
            Ok(set) => {
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                *known = Some(set.into());
            }
            // Those that were there stay: nobody would get in otherwise.
            Err(why) => tracing::warn!("jwt-jwks: the keys cannot be read: {why}"),
        }
    }

    async fn fetch(&self) -> Result<Vec<u8>, Box<dyn StdError + Send + Sync>> {
        let url = match &self.place {
            Place::File(path) => return Ok(tokio::fs::read(path).await?),
            Place::Url(url) => url,
        };
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let answer = url.get(headers, MAX_SET).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body().into()),
            status => Err(format!("answered {status}, not 200").into()),
        }
    }
}

/// So that a key which is taken out of the set is not accepted for long.
async fn keep_fresh(jwks: Weak<Jwks>, mut is_there: bool, refresh: Duration) {
    loop {
        if is_there {
            sleep(refresh).await;
        }
        let Some(jwks) = jwks.upgrade() else {
            return;
        };
        let mut tried = jwks.tried.lock().await;
        // Unless a request was first.
        if is_there || jwks.is_empty() {
            jwks.refresh(&mut tried).await;
        }
        is_there = !tried.has_failed;
        drop(tried);
        drop(jwks);
        if !is_there {
            sleep(PAUSE.min(refresh)).await;
        }
    }
}
