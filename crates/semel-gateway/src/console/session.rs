//! Who sits before the browser: a session for each sign-in with a token, in this process's memory.
//!
//! 1. *The browser has a random number*, in a cookie that no script reads and that no other site's page has
//!    sent along. The gateway keeps its digest, with that of the token.
//! 2. *The configuration is asked each time* who the token belongs to: one that is removed ends its sessions.
//! 3. *What changes something carries a second number* of the page's form, which another site cannot read,
//!    also where no sign-in is needed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{COOKIE, HOST, HeaderMap};
use semel::StoreError;
use semel::store::Nonce;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use crate::access::TokenDigest;

/// How long a session lasts.
const LASTS: Duration = Duration::from_hours(12);
/// How many there may be: beyond, the oldest ends.
const MOST: usize = 1_000;

/// Those who are signed in.
pub(super) struct Sessions {
    known: Mutex<HashMap<[u8; 32], (Instant, TokenDigest)>>,
    /// Of this process: what forms' numbers are made of.
    secret: String,
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
        let oldest = known.iter().min_by_key(|(_, (since, _))| *since);
        if let Some(oldest) = oldest
            .map(|(oldest, _)| *oldest)
            .filter(|_| known.len() >= MOST)
        {
            known.remove(&oldest);
        }
        known.insert(digest(&number), (Instant::now(), token));
        Ok(number)
    }

    /// The token of a session, while it lasts.
    pub(super) fn token(&self, number: &str) -> Option<TokenDigest> {
        let mut known = self.known();
        known.retain(|_, (since, _)| since.elapsed() < LASTS);
        known.get(&digest(number)).map(|(_, token)| *token)
    }

    pub(super) fn end(&self, number: &str) {
        self.known().remove(&digest(number));
    }

    /// What forms carry that are shown in this session, or without one.
    pub(super) fn form_number(&self, session: Option<&str>) -> String {
        let text = [&self.secret, "/", session.unwrap_or_default()].concat();
        super::hex(&digest(&text)[..16])
    }

    pub(super) fn is_form_number(&self, session: Option<&str>, given: &str) -> bool {
        let expected = self.form_number(session);
        expected.as_bytes().ct_eq(given.as_bytes()).into()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 32], (Instant, TokenDigest)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// 256 bits from the system.
fn random() -> Result<String, StoreError> {
    let halves = [Nonce::random()?, Nonce::random()?];
    Ok(halves.map(|half| super::hex(half.as_bytes())).concat())
}

/// The cookie's name. Browsers keep one jar for all ports of a host, and each forwarded port may lead to
/// another gateway.
pub(super) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    format!("semel-session-{}", port.unwrap_or("0"))
}

/// The number of the session that a request belongs to.
pub(super) fn number(headers: &HeaderMap) -> Option<String> {
    let name = cookie_name(headers);
    let cookies = headers
        .get_all(COOKIE)
        .into_iter()
        .filter_map(|field| field.to_str().ok());
    let mut pairs = cookies
        .flat_map(|field| field.split(';'))
        .filter_map(|c| c.trim().split_once('='));
    let found = pairs.find(|(found, _)| *found == name);
    found.map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> TokenDigest {
        TokenDigest::parse(&"ab".repeat(32)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_lasts_until_its_end() {
        let sessions = Sessions::new().unwrap();
        let (first, second) = (
            sessions.begin(token()).unwrap(),
            sessions.begin(token()).unwrap(),
        );
        assert_ne!(first, second);
        assert!(sessions.token(&first).is_some());
        assert!(sessions.token("").is_none());
        sessions.end(&first);
        assert!(sessions.token(&first).is_none());
        tokio::time::advance(LASTS).await;
        assert!(sessions.token(&second).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_too_many_ends() {
        let sessions = Sessions::new().unwrap();
        let first = sessions.begin(token()).unwrap();
        for _ in 0..MOST {
            tokio::time::advance(Duration::from_millis(1)).await;
            sessions.begin(token()).unwrap();
        }
        assert!(sessions.token(&first).is_none());
        assert_eq!(sessions.known().len(), MOST);
    }

    #[test]
    fn a_form_is_of_its_session_and_process() {
        let (here, there) = (Sessions::new().unwrap(), Sessions::new().unwrap());
        let number = here.form_number(Some("a"));
        assert!(here.is_form_number(Some("a"), &number));
        for (sessions, session, given) in [
            (&here, None, &*number),
            (&here, Some("b"), &number),
            (&there, Some("a"), &number),
            (&here, Some("a"), ""),
        ] {
            assert!(!sessions.is_form_number(session, given));
        }
    }

    #[test]
    fn each_port_has_its_cookie() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "127.0.0.1:8081".parse().unwrap());
        headers.insert(
            COOKIE,
            "semel-session-8082=x; a=b; semel-session-8081=y"
                .parse()
                .unwrap(),
        );
        assert_eq!(number(&headers).as_deref(), Some("y"));
        headers.insert(HOST, "ops.example".parse().unwrap());
        assert_eq!(
            (cookie_name(&headers).as_str(), number(&headers)),
            ("semel-session-0", None)
        );
    }
}
