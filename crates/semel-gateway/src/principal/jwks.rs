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
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two tries for keys that are not there: whoever sends a token can name a key that
/// there is not.
const PAUSE: Duration = Duration::from_secs(10);
/// The largest set, in bytes, how many keys of it are used, and how many are tried for a token that names
/// none.
const MAX_SET: usize = 1 << 20;
const MAX_KEYS: usize = 100;
const MAX_TRIED: usize = 8;

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
        let algorithm = algorithm.transpose().ok()?;
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let is_its_own = algorithm.is_none_or(|named| named.family() == key.family());
        (is_signing && is_usable && is_its_own).then_some(Self {
            id: jwk.common.key_id.clone(),
            algorithm,
            key,
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
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<DecodingKey>, NoKey> {
        if let Some(found) = self.look(id, algorithm) {
            return Ok(found);
        }
        // Whose request is given up breaks nothing off: the next would begin it again, without a pause.
        let (jwks, id) = (Arc::clone(self), id.map(str::to_owned));
        let found = tokio::spawn(async move { jwks.find_again(id.as_deref(), algorithm).await });
        found.await.unwrap_or(Err(NoKey::Unavailable))
    }

    async fn find_again(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<DecodingKey>, NoKey> {
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
        let fitting = fitting.take(MAX_TRIED);
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
        if is_there || tried.has_failed || jwks.is_empty() {
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{advance, timeout};

    use super::*;

    /// Of RFC 8037, appendix A.2.
    fn key(id: &str) -> Value {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
    }

    fn hold(path: &Path, keys: &[Value]) {
        std::fs::write(path, json!({ "keys": keys }).to_string()).unwrap();
    }

    #[test]
    fn what_cannot_verify_a_signature_is_left_out() {
        let with = |name: &str, value: Value| {
            let mut key = key("k");
            key[name] = value;
            key
        };
        let set = [
            key("a"),
            with("use", json!("sig")),
            with("key_ops", json!(["verify"])),
            with("alg", json!("EdDSA")),
            // These are not.
            with("use", json!("enc")),
            with("key_ops", json!(["sign"])),
            with("alg", json!("RSA-OAEP")),
            with("alg", json!("HS256")),
            with("crv", json!("X25519")),
            with("kty", json!("oct")),
            with("x", json!("?")),
            json!({"kty": "oct", "k": "c2VjcmV0", "kid": "a"}),
            json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
            json!(null),
        ];
        let known = read(json!({ "keys": set }).to_string().as_bytes()).unwrap();
        assert_eq!(known.len(), 4, "{known:?}");
        let fits = |id, algorithm| known.iter().filter(|k| k.fits(id, algorithm)).count();
        assert_eq!(fits(Some("a"), Algorithm::EdDSA), 1);
        for other in [Algorithm::RS256, Algorithm::ES256, Algorithm::HS256] {
            assert_eq!(fits(None, other), 0, "{other:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_is_read_for_an_unknown_key_once_in_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jwks.json");
        hold(&path, &[key("1")]);
        let source = Source::File(path.clone());
        let day = Duration::from_hours(24);
        let jwks = Jwks::open(&source, day, &Arc::default()).unwrap();
        let find = async |id| {
            let found = jwks.find(Some(id), Algorithm::EdDSA).await;
            found.map(|keys| keys.len())
        };
        assert_eq!(find("1").await, Ok(1));
        hold(&path, &[key("1"), key("2")]);
        assert_eq!(find("2").await, Ok(1));
        hold(&path, &[key("2"), key("3")]);
        assert_eq!(find("3").await, Err(NoKey::Unknown));
        assert_eq!(find("1").await, Ok(1), "it was not read");
        advance(PAUSE).await;
        assert_eq!(find("3").await, Ok(1));
        assert_eq!(find("1").await, Err(NoKey::Unknown));
        std::fs::remove_file(&path).unwrap();
        advance(PAUSE).await;
        assert_eq!(find("4").await, Err(NoKey::Unavailable));
        assert_eq!(find("3").await, Ok(1));
        // And without being asked for.
        hold(&path, &[key("5")]);
        advance(day).await;
        while find("3").await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(find("5").await, Ok(1));
        // Also after it could not be read.
        std::fs::remove_file(&path).unwrap();
        advance(day).await;
        while !jwks.tried.lock().await.has_failed {
            tokio::task::yield_now().await;
        }
        hold(&path, &[key("6")]);
        for _ in 0..100_000 {
            advance(PAUSE).await;
            if find("5").await.is_err() {
                return;
            }
        }
        panic!("it was not read again");
    }

    /// Requests that are given up while a slow provider is asked do not ask it again and again.
    #[tokio::test]
    async fn requests_that_are_given_up_ask_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                    let set = json!({ "keys": [key("1")] }).to_string();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                        set.len()
                    );
                    stream.read_u8().await.unwrap();
                    stream.write_all((head + &set).as_bytes()).await.unwrap();
                }
                // Of the others none is answered.
                open.push(stream);
            }
        });
        let source = Source::Url(url.parse().unwrap());
        let jwks = Jwks::open(&source, Duration::from_hours(1), &Arc::default()).unwrap();
        let find = |id| jwks.find(Some(id), Algorithm::EdDSA);
        assert_eq!(find("1").await.map(|keys| keys.len()), Ok(1));
        for _ in 0..5 {
            let given_up = timeout(Duration::from_millis(50), find("2")).await;
            assert!(given_up.is_err());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
