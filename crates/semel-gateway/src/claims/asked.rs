//! What a claim asks for, checked.

use std::time::Duration;

use semel::guard::Policy;
use semel::secrets::Secrets;
use semel::store::{self, Nonce, Retention};
use semel::{Fingerprint, Identity, Key, KeyRule, Note, Scope, Service};
use semel_tower::ProblemCode;
use serde_json::Value;
use serde_json::value::RawValue;

use super::body;
use super::wire::{ClaimRequest, OnLost};
use crate::config::values;
use crate::refused::Refused;

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const LEASES: [Duration; 2] = [Duration::from_millis(100), Duration::from_hours(24)];
const LONGEST_WAIT: Duration = Duration::from_mins(10);
const MOST_SEGMENTS: usize = 16;
const LONGEST_TEXT: usize = 255;
/// Integers up to here are no doubles in JSON, and doubles from here on may be integers that lost digits.
const WHOLE: f64 = 9_223_372_036_854_775_808.0;

/// A claim to be made.
pub(super) struct Asked {
    pub(super) identity: Identity,
    pub(super) request: store::ClaimRequest,
    /// Whether the client made the nonce, and can come back with it.
    pub(super) is_repeatable: bool,
    pub(super) wait: Duration,
    pub(super) retention: Retention,
}

/// The service and the operation of a request, for those who ask for rights first.
pub(super) fn named(wire: &ClaimRequest) -> Result<Service, Refused> {
    let service = match &wire.service {
        Some(name) => {
            Service::new(name).map_err(|error| Refused::invalid(format!("service: {error}")))?
        }
        None => Service::default(),
    };
    text("operation", &wire.operation)?;
    Ok(service)
}

impl Asked {
    pub(super) fn read(
        wire: &ClaimRequest,
        service: &Service,
        secrets: Option<&Secrets>,
    ) -> Result<Self, Refused> {
        let key = KeyRule::GENERAL.parse(&wire.key);
        let key: Key = key
            .map_err(|error| Refused::of_layer(ProblemCode::InvalidKey, format!("key: {error}")))?;
        if wire.scope.len() > MOST_SEGMENTS {
            return Err(Refused::invalid(format!(
                "scope: has {} texts; at most {MOST_SEGMENTS} are allowed",
                wire.scope.len()
            )));
        }
        for (nth, segment) in wire.scope.iter().enumerate() {
            if !segment.is_empty() {
                text(&format!("scope[{nth}]"), segment)?;
            }
        }
        let on_lost = match wire.on_lost {
            Some(OnLost::Retry) => store::OnLost::Retry,
            Some(OnLost::Hold) | None => store::OnLost::Hold,
        };
        let operation = service.operation(&wire.operation);
        let identity = Identity::keyed(Scope::new(&wire.scope), operation, key, secrets);
        let given = wire.nonce.as_deref().map(nonce).transpose()?;
        let (nonce, is_repeatable) = match given {
            // Of two names a nonce is one call's: see `semel::secrets`.
            Some(nonce) if identity.other().is_none() => (nonce, true),
            _ => (Nonce::random()?, false),
        };
        Ok(Self {
            identity,
            request: store::ClaimRequest {
                nonce,
                fingerprint: fingerprint(wire)?,
                lease: match &wire.lease {
                    Some(text) => lease(text)?,
                    None => DEFAULT_LEASE,
                },
                on_lost,
                note: Note::EMPTY,
                is_forgettable: false,
            },
            is_repeatable,
            wait: wait(wire.wait.as_deref())?,
            retention: retention(
                Retention::ORDER,
                wire.ttl.as_deref(),
                wire.tombstone.as_deref(),
            )?,
        })
    }
}

fn fingerprint(wire: &ClaimRequest) -> Result<Fingerprint, Refused> {
    match (&wire.payload, &wire.payload_base64, &wire.fingerprint) {
        (None, None, None) => Ok(Fingerprint::of(b"")),
        (Some(json), None, None) => of_json(json),
        (None, Some(text), None) => Ok(Fingerprint::of(&body::bytes(text, "payload_base64")?)),
        (None, None, Some(hex)) => {
            let digest = semel::IdentityDigest::from_hex(hex).ok_or_else(|| {
                Refused::invalid("fingerprint: must be 64 hexadecimal digits (a SHA-256)")
            })?;
            let mut bytes = [Fingerprint::VERSION; Fingerprint::LEN];
            bytes[1..].copy_from_slice(digest.as_bytes());
            Ok(Fingerprint::from_bytes(bytes))
        }
        _ => Err(Refused::invalid(
            "payload: at most one of `payload`, `payload_base64` and `fingerprint`",
        )),
    }
}

fn of_json(json: &RawValue) -> Result<Fingerprint, Refused> {
    let invalid = |error: serde_json::Error| Refused::invalid(format!("payload: {error}"));
    let value: Value = serde_json::from_str(json.get()).map_err(invalid)?;
    if loses_digits(&value) {
        return Err(Refused::invalid(
            "payload: a number in it is beyond 64-bit integers; send it as a text",
        ));
    }
    Fingerprint::of_json(&value).map_err(invalid)
}

/// Whether another number would be read as the same one.
fn loses_digits(value: &Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().is_none_or(|number| number.abs() >= WHOLE)
        }
        Value::Array(values) => values.iter().any(loses_digits),
        Value::Object(members) => members.values().any(loses_digits),
        _ => false,
    }
}

/// A name that stores can keep: not empty, and not too long.
pub(super) fn text(place: &str, text: &str) -> Result<(), Refused> {
    match KeyRule::GENERAL.parse(text) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refused::invalid(format!(
            "{place}: must be 1 to {LONGEST_TEXT} bytes without control characters"
        ))),
    }
}

fn nonce(hex: &str) -> Result<Nonce, Refused> {
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bits = u128::from_str_radix(hex, 16).ok().filter(|_| is_hex);
    bits.map(|bits| Nonce::from_bytes(bits.to_be_bytes()))
        .ok_or_else(|| Refused::invalid("nonce: must be 32 hexadecimal digits, made at random"))
}

pub(super) fn lease(text: &str) -> Result<Duration, Refused> {
    let lease = duration("lease", text)?;
    match is_lease(lease) {
        true => Ok(lease),
        false => Err(Refused::invalid("lease: must be 100ms to 24h")),
    }
}

fn is_lease(lease: Duration) -> bool {
    let [least, most] = LEASES;
    (least.max(Policy::MIN_LEASE)..=most).contains(&lease)
}

/// Whether a request could have asked for this.
pub(super) fn is_allowed(lease: Duration, retention: Retention) -> bool {
    let kept = [retention.replay, retention.tombstone];
    is_lease(lease) && kept.iter().all(|kept| *kept <= values::LONGEST)
}

fn wait(text: Option<&str>) -> Result<Duration, Refused> {
    match text.map(|text| duration("wait", text)).transpose()? {
        Some(long) if long > LONGEST_WAIT => Err(Refused::invalid(
            "wait: must be 10m at most; claim again to wait longer",
        )),
        wait => Ok(wait.unwrap_or_default()),
    }
}

/// What is said, and else what `usual` says.
pub(super) fn retention(
    usual: Retention,
    ttl: Option<&str>,
    tombstone: Option<&str>,
) -> Result<Retention, Refused> {
    let invalid = |reason: String| Refused::invalid(format!("ttl: {reason}"));
    let replay = ttl.map(|ttl| values::retention(ttl).map_err(invalid));
    let tombstone = tombstone.map(|tombstone| duration("tombstone", tombstone));
    Ok(Retention {
        replay: replay.transpose()?.unwrap_or(usual.replay),
        tombstone: tombstone.transpose()?.unwrap_or(usual.tombstone),
    })
}

fn duration(place: &str, text: &str) -> Result<Duration, Refused> {
    values::duration(text).map_err(|reason| Refused::invalid(format!("{place}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Asked, String> {
        let wire: ClaimRequest = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let service = named(&wire).map_err(|refused| refused.to_string())?;
        Asked::read(&wire, &service, None).map_err(|refused| refused.to_string())
    }

    fn with(member: &str) -> Result<Asked, String> {
        read(&format!(r#"{{"operation": "pay", "key": "k", {member}}}"#))
    }

    #[test]
    fn of_two_names_a_nonce_is_one_calls() {
        let nonce = "0a".repeat(16);
        let json = format!(r#"{{"operation": "pay", "key": "k", "nonce": "{nonce}"}}"#);
        let wire: ClaimRequest = serde_json::from_str(&json).unwrap();
        let lines = "a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nplain";
        for (lines, is_own) in [(lines, false), (lines.lines().next().unwrap(), true)] {
            let secrets = Secrets::parse(lines).unwrap();
            let asked = Asked::read(&wire, &named(&wire).ok().unwrap(), Some(&secrets));
            let asked = asked.ok().unwrap();
            let has_it = asked.request.nonce == Nonce::from_bytes([10; 16]);
            assert_eq!((has_it, asked.is_repeatable), (is_own, is_own));
        }
    }

    #[test]
    fn the_identity_and_the_fingerprint_are_those_of_the_library() {
        let asked = with(
            r#""service": "orders", "scope": ["acme", ""], "payload": {"b": [1, 2.5], "a": "é"}"#,
        );
        let asked = asked.ok().unwrap();
        let service = Service::new("orders").unwrap();
        let scope = Scope::new(["acme", ""]);
        let key = Key::new("k").unwrap();
        let same = Identity::new(scope, &service.operation("pay"), key);
        assert_eq!(asked.identity.digest(), same.digest());
        let payload = serde_json::json!({"a": "é", "b": [1, 2.5]});
        let print = Fingerprint::of_json(&payload).unwrap();
        assert_eq!(asked.request.fingerprint, print);
        for (member, print) in [
            (r#""scope": []"#, Fingerprint::of(b"")),
            (r#""payload_base64": "YWI=""#, Fingerprint::of(b"ab")),
            (r#""payload": null"#, Fingerprint::of_json(&()).unwrap()),
        ] {
            assert_eq!(
                with(member).ok().unwrap().request.fingerprint,
                print,
                "{member}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = "x".repeat(256);
        for (member, message) in [
            (
                r#""service": "a b""#,
                "service: `a b` cannot name a service",
            ),
            (r#""scope": ["a\nb"]"#, "scope[0]: must be 1 to 255 bytes"),
            (
                &format!(r#""scope": ["", "{long}"]"#),
                "scope[1]: must be 1 to 255 bytes",
            ),
            (
                &format!(r#""scope": [{}"a"]"#, r#""a","#.repeat(16)),
                "scope: has 17 texts",
            ),
            (
                r#""payload": 1, "fingerprint": "ab""#,
                "at most one of `payload`",
            ),
            (
                r#""payload": 18446744073709551616"#,
                "beyond 64-bit integers",
            ),
            (
                r#""payload": [{"a": -9223372036854775809}]"#,
                "beyond 64-bit integers",
            ),
            (r#""payload": "\ud800""#, "payload: "),
            (
                r#""payload_base64": "YWI""#,
                "payload_base64: is not base64",
            ),
            (
                r#""fingerprint": "ab""#,
                "fingerprint: must be 64 hexadecimal digits",
            ),
            (
                r#""nonce": "+0000000000000000000000000000000""#,
                "nonce: must be 32",
            ),
            (r#""nonce": "00""#, "nonce: must be 32"),
            (r#""lease": "99ms""#, "lease: must be 100ms to 24h"),
            (r#""lease": "25h""#, "lease: must be 100ms to 24h"),
            (r#""lease": "soon""#, "lease: `soon` is not a duration"),
            (r#""wait": "11m""#, "wait: must be 10m at most"),
            (
                r#""ttl": "monthly""#,
                "ttl: `monthly` is not a duration, nor one of payment",
            ),
            (r#""ttl": "0s""#, "ttl: must be longer than nothing"),
            (r#""tombstone": """#, "tombstone: `` is not a duration"),
            (r#""on_lost": "reconcile""#, "unknown variant"),
            (r#""color": 1"#, "unknown field `color`"),
        ] {
            let said = with(member).err().unwrap();
            assert!(said.contains(message), "{member}: {said}");
        }
        for (json, message) in [
            (
                r#"{"operation": "", "key": "k"}"#,
                "operation: must be 1 to 255 bytes",
            ),
            (
                r#"{"operation": "pay", "key": ""}"#,
                "invalid-key: key: the key is empty",
            ),
            (r#"{"operation": "pay"}"#, "missing field `key`"),
        ] {
            let said = read(json).err().unwrap();
            assert!(said.contains(message), "{json}: {said}");
        }
    }
}
