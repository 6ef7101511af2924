//! Bearer tokens that are JSON Web Tokens (RFC 7519, RFC 8725).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::jwks::{Jwks, NoKey, Source};
use super::{Error, Named, Refusal};
use crate::tls::client::Trust;

/// How tokens are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the keys are that sign them.
    pub jwks: Source,
    /// Who may have issued them.
    pub issuers: Vec<String>,
    /// For whom they are: one of these has to be named.
    pub audiences: Vec<String>,
    /// How they may be signed. The token chooses among these, and no other.
    pub algorithms: Vec<Algorithm>,
    /// The claims that name the caller.
    pub claims: Vec<String>,
    /// By how much clocks may differ.
    pub leeway: Duration,
    /// How often the keys are read again.
    pub refresh: Duration,
}

/// Verifies tokens.
pub(super) struct Tokens {
    settings: Settings,
    jwks: Arc<Jwks>,
}

impl Tokens {
    pub(super) fn open(settings: &Settings, trust: &Arc<Trust>) -> Result<Self, Error> {
        Ok(Self {
            jwks: Jwks::open(&settings.jwks, settings.refresh, trust)?,
            settings: settings.clone(),
        })
    }

    /// With the same keys, if these settings name the same place for them.
    pub(super) fn with(&self, settings: &Settings, trust: &Arc<Trust>) -> Result<Self, Error> {
        let known = &self.settings;
        if (&settings.jwks, settings.refresh) != (&known.jwks, known.refresh) {
            return Self::open(settings, trust);
        }
        Ok(Self {
            jwks: Arc::clone(&self.jwks),
            settings: settings.clone(),
        })
    }

    pub(super) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Issuer and claims of the token that a request brings: what stays the same when it is refreshed.
    pub(super) async fn claims_of(&self, headers: &HeaderMap) -> Result<Named, Refusal> {
        let Some(token) = bearer(headers)? else {
            return Ok(None);
        };
        let claims = self.verify(token).await?;
        let issuer = text(&claims, "iss").ok_or(Refusal::token("Its issuer is not one text."))?;
        let mut named = vec![issuer];
        for claim in &self.settings.claims {
            let value = text(&claims, claim).filter(|value| !value.is_empty());
            let value = value.ok_or(Refusal::token("It does not say who the caller is."))?;
            named.extend([claim.clone(), value]);
        }
        Ok(Some(named))
    }

    async fn verify(&self, token: &str) -> Result<Map<String, Value>, Refusal> {
        // Of the header nothing is believed: it chooses among what is configured.
        let header = decode_header(token).map_err(|_| Refusal::token(MALFORMED))?;
        if header.crit.is_some() {
            return Err(Refusal::token("It has extensions that are not understood."));
        }
        let mut algorithms = self.settings.algorithms.iter();
        let algorithm = algorithms
            .find(|algorithm| **algorithm == header.alg)
            .ok_or(Refusal::token("Its algorithm is not accepted."))?;
        let found = self.jwks.find(header.kid.as_deref(), *algorithm).await;
        let keys = found.map_err(|why| match why {
            NoKey::Unknown => Refusal::token(UNKNOWN_KEY),
            NoKey::Unavailable => Refusal::unavailable(),
        })?;
        let validation = self.validation(*algorithm);
        for key in &keys {
            match decode::<Map<String, Value>>(token, key, &validation) {
                // Of an unknown form it is not looked at by the library.
                Ok(it) if self.settings.audiences.is_empty() && it.claims.contains_key("aud") => {
                    return Err(Refusal::token(AUDIENCE));
                }
                Ok(it) => return Ok(it.claims),
                // Without the name of a key all that fit are tried.
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {}
                Err(error) => return Err(Refusal::token(reason(error.kind()))),
            }
        }
        Err(Refusal::token("Its signature is not right."))
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let settings = &self.settings;
        let mut validation = Validation::new(algorithm);
        validation.leeway = settings.leeway.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&settings.issuers);
        if settings.audiences.is_empty() {
            validation.set_required_spec_claims(&["exp", "iss"]);
        } else {
            validation.set_audience(&settings.audiences);
            validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        }
        validation
    }
}

const MALFORMED: &str = "It is not a signed JSON Web Token.";
const UNKNOWN_KEY: &str = "The key that it was signed with is not known.";
const AUDIENCE: &str = "It is for another audience.";

fn reason(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "It has expired.",
        ErrorKind::ImmatureSignature => "It is not valid yet.",
        ErrorKind::InvalidIssuer => "It is of another issuer.",
        ErrorKind::InvalidAudience => AUDIENCE,
        ErrorKind::MissingRequiredClaim(_) => "It lacks its issuer, its audience or its end.",
        ErrorKind::InvalidClaimFormat(_) => "Its times are not numbers.",
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => {
            "Its algorithm is not that of its key."
        }
        _ => MALFORMED,
    }
}

/// The token of a scheme `Bearer`; none where there is another scheme.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(Refusal::token(
            "There is more than one field Authorization.",
        ));
    }
    let line = line.as_bytes().trim_ascii();
    let (scheme, token) = match line.iter().position(u8::is_ascii_whitespace) {
        Some(end) => line.split_at(end),
        None => (line, &b""[..]),
    };
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Ok(None);
    }
    match std::str::from_utf8(token.trim_ascii()) {
        Ok(token) if !token.is_empty() => Ok(Some(token)),
        _ => Err(Refusal::token(MALFORMED)),
    }
}

/// A claim that is a text or a whole number.
fn text(claims: &Map<String, Value>, name: &str) -> Option<String> {
    match claims.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}
