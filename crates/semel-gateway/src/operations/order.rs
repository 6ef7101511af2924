//! Orders as they come: JSON of the admin API, and what the command line makes of its flags.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use semel::secrets::Secrets;
use semel::store::{Retention, Verdict};
use semel::{Identity, IdentityDigest, Key, Outcome, OutcomeKind, Scope, Service};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Action;
use crate::config::values;
use crate::reconcile;
use crate::refused::Refused;

/// What `POST /api/v1/records/{id}/{action}` takes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The fence that the viewer saw.
    pub fence: Option<u64>,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// `resolve`: whether the operation had its effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub happened: Option<bool>,
    /// `resolve`: what retries get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub outcome: Option<Map<String, Value>>,
    /// `resolve`: how long they get it; `extend`: for how long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// The number of the audit log's entry that proposes the same, to confirm it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
}

/// What `POST /api/v1/purge` and `POST /api/v1/erase` take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Many {
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// `erase`: what the scopes begin with whose answers are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// `erase`: only of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The number of the audit log's entry that proposes the same, to confirm it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
}

/// What `POST /api/v1/records/lookup` takes: a full identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Lookup {
    /// The service; `default` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The operation; `http`, that of a gateway's requests, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The scope's segments; `["anonymous"]` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Vec<String>>,
    /// The whole key.
    pub key: String,
}

/// How long an answer is replayed that an operator gives, where nothing says otherwise.
pub const OUTCOME_RETENTION: Retention = Retention::ORDER;

impl Order {
    /// The fence, and what is to be done.
    ///
    /// # Errors
    /// What is missing, or not right.
    pub fn read(self, action: &str, default: Retention) -> Result<(u64, String, Action), Refused> {
        let missing = "fence: say which attempt this is about: the record's `fence`, as you saw it";
        let fence = self.fence.ok_or_else(|| Refused::invalid(missing))?;
        let resolves = self.happened.is_some() || self.outcome.is_some();
        let only = |what: &str| Refused::invalid(format!("{action}: it takes {what} only"));
        let action = match (action, self.ttl.as_deref()) {
            ("release", None) if !resolves => Action::Release,
            ("erase", None) if !resolves => Action::Erase,
            ("release" | "erase", _) => return Err(only("fence and reason")),
            ("extend", Some(ttl)) if !resolves => Action::Extend(self::ttl(ttl)?),
            ("extend", _) => return Err(only("fence, reason and ttl")),
            ("resolve", ttl) => {
                Action::Resolve(verdict(self.happened, self.outcome, ttl, default)?)
            }
            _ => {
                let known = "release, resolve, extend, erase and reveal";
                let why = format!("there is no action `{action}`; there are {known}");
                return Err(Refused::invalid(why));
            }
        };
        Ok((fence, self.reason, action))
    }
}

fn verdict(
    happened: Option<bool>,
    outcome: Option<Map<String, Value>>,
    ttl: Option<&str>,
    default: Retention,
) -> Result<Verdict, Refused> {
    match (happened, outcome) {
        (None, _) => Err(Refused::invalid("happened: say true or false")),
        (Some(false), None) if ttl.is_none() => Ok(Verdict::DidNotHappen),
        (Some(false), _) => {
            let why = "outcome, ttl: what did not happen has none";
            Err(Refused::invalid(why))
        }
        (Some(true), None) => {
            let why = "outcome: say what retries get, as in {\"status\": 201, \"body\": \"…\"}";
            Err(Refused::invalid(why))
        }
        (Some(true), Some(outcome)) => {
            let ttl = ttl.map(self::ttl).transpose()?;
            Ok(Verdict::Happened {
                outcome: self::outcome(&outcome)?,
                retention: Retention {
                    replay: ttl.unwrap_or(default.replay),
                    ..default
                },
            })
        }
    }
}

fn ttl(given: &str) -> Result<Duration, Refused> {
    values::retention(given).map_err(|why| Refused::invalid(format!("ttl: {why}")))
}

/// An answer over HTTP (`status`, `headers`, `body` or `body_base64`), or, without a status, a value: its
/// `body` or `body_base64`, and `kind` success or failure.
pub fn outcome(given: &Map<String, Value>) -> Result<Outcome, Refused> {
    let wrong = |why: String| Refused::invalid(format!("outcome: {why}"));
    if given.contains_key("status") {
        return reconcile::outcome(given).map_err(|why| wrong(why.to_string()));
    }
    let kind = match given.get("kind").and_then(Value::as_str) {
        Some("success") => OutcomeKind::Success,
        Some("failure") => OutcomeKind::Failure,
        _ => {
            let why = "it has a `status`, or a `kind` that is success or failure";
            return Err(wrong(why.to_owned()));
        }
    };
    if let Some(other) = given
        .keys()
        .find(|name| !["kind", "body", "body_base64"].contains(&name.as_str()))
    {
        return Err(wrong(format!(
            "without a status it has kind, body and body_base64, not `{other}`"
        )));
    }
    let builder = Outcome::builder(kind);
    match (given.get("body"), given.get("body_base64")) {
        (None, None) => Ok(builder.void()),
        (Some(Value::String(text)), None) => Ok(builder.body(text.as_bytes())),
        (None, Some(Value::String(coded))) => {
            let bytes = STANDARD.decode(coded).map(Bytes::from);
            let bytes = bytes.map_err(|_| wrong("`body_base64` is not Base64".to_owned()))?;
            Ok(builder.body(&bytes))
        }
        _ => Err(wrong(
            "of `body` and `body_base64` there is one, and it is text".to_owned(),
        )),
    }
}

impl Lookup {
    /// The identity.
    ///
    /// # Errors
    /// What cannot be part of one. Shows nothing of the key.
    pub fn identity(&self, secrets: Option<&Secrets>) -> Result<Identity, Refused> {
        let service = self
            .service
            .as_deref()
            .map_or_else(|| Ok(Service::default()), Service::new);
        let service = service.map_err(|why| Refused::invalid(format!("service: {why}")))?;
        let key = Key::new(&self.key).map_err(|why| Refused::invalid(format!("key: {why}")))?;
        let scope = self
            .scope
            .as_ref()
            .map_or_else(Scope::anonymous, Scope::new);
        let operation = self.operation.as_deref().unwrap_or(reconcile::OPERATION);
        let operation = service.operation(operation);
        Ok(Identity::keyed(scope, operation, key, secrets))
    }
}

/// A record's name.
///
/// # Errors
/// Anything but 64 hexadecimal digits.
pub fn id(text: &str) -> Result<IdentityDigest, Refused> {
    IdentityDigest::from_hex(text).ok_or_else(|| {
        Refused::invalid("id: it is 64 hexadecimal digits, as in `Idempotency-Id` and in lists")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that its convention calls expired for a time is not new again because an operator answered.
    #[test]
    fn a_given_answer_is_remembered_as_others_are() {
        let hour = Duration::from_hours(1);
        let default = Retention::new(hour).with_tombstone(2 * hour);
        for (ttl, replay) in [(None, hour), (Some("3h"), 3 * hour)] {
            let order = Order {
                fence: Some(1),
                happened: Some(true),
                outcome: Some(Map::from_iter([("status".to_owned(), 201.into())])),
                ttl: ttl.map(str::to_owned),
                ..Order::default()
            };
            let (.., action) = order.read("resolve", default).unwrap();
            let Action::Resolve(Verdict::Happened { retention, .. }) = action else {
                panic!("{action:?}");
            };
            assert_eq!(retention, Retention { replay, ..default });
        }
    }
}
