//! Who sits before the browser: a session for each sign-in with a token, in this process's memory.
//!
//! 1. *The browser has a random number*, in a cookie that no script reads and that no other site's page has
//!    sent along. The gateway keeps its digest, with that of the token.
//! 2. *The configuration is asked each time* who the token belongs to. A session that comes while its token is
//!    not in it has ended, also if the token comes back.
//! 3. *What changes something carries a second number* of the page's form, which another site cannot read,
//!    also where no sign-in is needed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{COOKIE, HeaderMap};
use http::request::Parts;
use semel::StoreError;
use semel::store::Nonce;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use crate::access::{TokenDigest, site};

/// How long a session lasts.
const LASTS: Duration = Duration::from_hours(12);
/// How many there may be: beyond, the oldest ends.
const MOST: usize = 1_000;

/// Since when one lasts, and its token; none once that was missing.
type Session = (Instant, Option<TokenDigest>);

/// Those who are signed in.
pub(super) struct Sessions {
    known: Mutex<HashMap<[u8; 32], Session>>,
    /// Of this process: what forms' numbers are made of.
    secret: String,
}

/// Why a number is of no session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSession {
    /// There is none, or it is over.
    Unknown,
    /// Its token was taken out of the configuration.
    Ended,
}

impl Sessions {
    pub(super) fn new() -> Result<Self, StoreError> {
        Ok(Self {
            known: Mutex::default(),
            secret: random()?,
        })
    }

    /// Begins a session. Its number is for the cookie.
    pub(super) fn begin(&self, token: TokenDigest) -> Result<String, StoreError> {
        let number = random()?;
        let mut known = self.known();
        if known.len() >= MOST {
            let oldest = known.iter().min_by_key(|(_, (since, _))| *since);
            if let Some(oldest) = oldest.map(|(oldest, _)| *oldest) {
                known.remove(&oldest);
            }
        }
        known.insert(digest(number.as_bytes()), (Instant::now(), Some(token)));
        Ok(number)
    }

    /// Who has the token of a session, while it lasts.
    pub(super) fn caller<C>(
        &self,
        number: &str,
        holder: impl FnOnce(TokenDigest) -> Option<C>,
    ) -> Result<C, NoSession> {
        let mut known = self.known();
        known.retain(|_, (since, _)| since.elapsed() < LASTS);
        let session = known.get_mut(&digest(number.as_bytes()));
        let (_, token) = session.ok_or(NoSession::Unknown)?;
        let caller = token.and_then(holder);
        if caller.is_none() {
            *token = None;
        }
        caller.ok_or(NoSession::Ended)
    }

    pub(super) fn end(&self, number: &str) {
        self.known().remove(&digest(number.as_bytes()));
    }

    /// What forms carry that are shown to whoever comes with this: a session's number, or a token.
    pub(super) fn form_number(&self, whose: &[u8]) -> String {
        let text = [self.secret.as_bytes(), b"/", whose].concat();
        hex::encode(&digest(&text)[..16])
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 32], Session>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares so that the time says nothing.
pub(super) fn is_same(expected: &str, given: &str) -> bool {
    expected.as_bytes().ct_eq(given.as_bytes()).into()
}

fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// 256 bits from the system.
fn random() -> Result<String, StoreError> {
    let halves = [Nonce::random()?, Nonce::random()?];
    Ok(halves.map(|half| hex::encode(half.as_bytes())).concat())
}

/// The cookie's name. Browsers keep one jar for all ports of a host, and each forwarded port may lead to
/// another gateway.
pub(super) fn cookie_name(request: &Parts) -> String {
    let host = site::host(&request.uri, &request.headers).unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    format!("semel-session-{}", port.unwrap_or("0"))
}

/// The number in the cookie of this name.
pub(super) fn number(headers: &HeaderMap, cookie: &str) -> Option<String> {
    let cookies = headers.get_all(COOKIE).into_iter();
    let mut pairs = cookies
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let found = pairs.find(|(name, _)| *name == cookie);
    found.map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn token() -> TokenDigest {
        TokenDigest::parse(&"ab".repeat(32)).unwrap()
    }

    fn is_there(sessions: &Sessions, number: &str) -> bool {
        sessions.caller(number, Some).is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_lasts_until_its_end() {
        let sessions = Sessions::new().unwrap();
        let begin = || sessions.begin(token()).unwrap();
        let (first, second, third) = (begin(), begin(), begin());
        assert_ne!(first, second);
        assert!(is_there(&sessions, &first) && !is_there(&sessions, ""));
        sessions.end(&first);
        assert!(!is_there(&sessions, &first));
        // Its token is missing, and comes back.
        let gone = sessions.caller(&third, |_| None::<()>);
        assert_eq!(gone, Err(NoSession::Ended));
        assert!(!is_there(&sessions, &third) && is_there(&sessions, &second));
        tokio::time::advance(LASTS).await;
        assert!(!is_there(&sessions, &second));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_ends() {
        let sessions = Sessions::new().unwrap();
        let first = sessions.begin(token()).unwrap();
        for _ in 0..MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            sessions.begin(token()).unwrap();
        }
        assert!(!is_there(&sessions, &first));
        assert_eq!(sessions.known().len(), MOST);
    }

    #[test]
    fn a_form_is_of_its_visitor_and_process() {
        let [here, there] = [(); 2].map(|()| Sessions::new().unwrap());
        let number = here.form_number(b"a");
        assert!(is_same(&here.form_number(b"a"), &number));
        for (sessions, whose, given) in [
            (&here, &b""[..], &*number),
            (&here, b"b", &number),
            (&there, b"a", &number),
            (&here, b"a", ""),
        ] {
            assert!(!is_same(&sessions.form_number(whose), given));
        }
    }

    #[test]
    fn each_port_has_its_cookie() {
        let cookies = "semel-session-8082=x; a=b; semel-session-8081=y";
        for (uri, host, name, found) in [
            ("/", Some("127.0.0.1:8081"), "semel-session-8081", Some("y")),
            // As HTTP/2 says it.
            ("https://ops:8082/", None, "semel-session-8082", Some("x")),
            ("/", Some("ops.example"), "semel-session-0", None),
        ] {
            let request = Request::get(uri).header(COOKIE, cookies);
            let request = match host {
                Some(host) => request.header("host", host),
                None => request,
            };
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let cookie = cookie_name(&parts);
            assert_eq!(cookie, name);
            assert_eq!(number(&parts.headers, &cookie).as_deref(), found);
        }
    }
}
