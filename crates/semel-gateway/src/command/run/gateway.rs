//! The records of a gateway, by its claim API: as much of a store as one run needs.
//!
//! Each call is a request that can be sent again (`docs/claims.md`), so what the guard does with an answer
//! that was lost is right here, too: it repeats the claim under its nonce, and tells again what is known.

use std::error::Error as StdError;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use semel::record::{Change, Update};
use semel::store::{
    Acquired, Claim, ClaimRequest, Entry, Fence, Fenced, Label, ListQuery, Nonce, OnLost, Page,
    Probe, Purged, Refusal, Result, Store, Token, Waited,
};
use semel::{
    Fingerprint, Identity, IdentityDigest, Note, Outcome, OutcomeKind, Progress, Record, Scope,
    Service, State, StateKind, StoreError, StoreErrorKind, Timestamp,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::claims::{MAX_REQUEST, body, wire};
use crate::connector::Connector;
use crate::tls::client::{Speaks, Trust};

/// How long a call may take, beside what it waits for and what its request takes on the slowest line.
const WITHIN: Duration = Duration::from_secs(5);
/// Of the slowest line, in bytes a second. A gateway reads the largest request for about as long.
const SLOWEST: usize = 64 << 10;
/// How long a gateway lets a claim wait.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The largest answer: an outcome as large as any store keeps, in base64.
const LARGEST: usize = 64 << 20;

/// Which gateway, and how it is asked.
pub(super) struct Gateway {
    /// Where its paths begin, without a slash at the end.
    pub(super) url: Uri,
    pub(super) token: Option<HeaderValue>,
    pub(super) trust: Arc<Trust>,
}

/// The records of a gateway, for one claim.
pub(super) struct Remote {
    client: Client<Connector, Full<Bytes>>,
    url: String,
    token: Option<HeaderValue>,
    claim: Arc<std::sync::Mutex<Held>>,
}

/// What the gateway calls the record.
pub(super) struct Name(Arc<std::sync::Mutex<Held>>);

impl Name {
    /// As far as it has said so: it may have secrets.
    pub(super) fn known(&self) -> Option<IdentityDigest> {
        locked(&self.0).id
    }
}

fn locked(held: &std::sync::Mutex<Held>) -> std::sync::MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of the claim.
#[derive(Default)]
struct Held {
    /// What was sent to make it.
    request: Option<(wire::ClaimRequest, Nonce)>,
    /// What the gateway calls its record.
    id: Option<IdentityDigest>,
    /// What it is held by.
    token: Option<(Fence, String)>,
    /// Made while it waited.
    made: Option<wire::Acquired>,
    /// It may have been made, and the guard does not know of it.
    is_doubtful: bool,
}

/// What came back.
enum Answer {
    Done(StatusCode, Bytes),
    Refused(wire::Problem),
}

impl Answer {
    fn of(status: StatusCode, body: Bytes) -> Result<Self> {
        if status.is_success() {
            return Ok(Self::Done(status, body));
        }
        let problem: wire::Problem =
            serde_json::from_slice(&body).map_err(|_| no_gateway(status))?;
        let kind = match problem.code.as_str() {
            "in-flight" | "outcome-unknown" | "mismatch" | "expired" | "stale" | "not-found" => {
                return Ok(Self::Refused(problem));
            }
            "capacity" => StoreErrorKind::Capacity,
            // The request broke off on its way.
            "incomplete-body" => StoreErrorKind::NotApplied,
            _ => kind_of(status),
        };
        let what = format!("the gateway answered {}: {}", problem.code, problem.detail);
        Err(StoreError::new(kind, what))
    }
}

impl Remote {
    pub(super) fn new(gateway: &Gateway) -> Self {
        let connector = Connector::new(WITHIN, Arc::clone(&gateway.trust), Speaks::Http1);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            client,
            url: gateway.url.to_string().trim_end_matches('/').to_owned(),
            token: gateway.token.clone(),
            claim: Arc::default(),
        }
    }

    pub(super) fn name(&self) -> Name {
        Name(Arc::clone(&self.claim))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        locked(&self.claim)
    }

    /// Posts a request that is answered after `wait` at the latest.
    async fn post(&self, path: &str, request: &impl Serialize, wait: Duration) -> Result<Answer> {
        let json = serde_json::to_vec(request).map_err(|error| wrong(error.to_string()))?;
        let len = json.len();
        // The gateway closes the connection on it, and its refusal may be lost with that.
        if len > MAX_REQUEST {
            let what =
                format!("a gateway takes requests of {MAX_REQUEST} bytes; this one has {len}");
            return Err(StoreError::new(StoreErrorKind::TooLarge, what));
        }
        let within = within(len).saturating_add(wait);
        self.ask(Method::POST, path, json.into(), within).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/v1/claims{path}", self.url))
            .header(USER_AGENT, "semel")
            .header(CONTENT_TYPE, "application/json");
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let request = request
            .body(Full::new(body))
            .map_err(|error| wrong(error.to_string()))?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| {
                // What was not sent was not done.
                let kind = match error.is_connect() {
                    true => StoreErrorKind::NotApplied,
                    false => StoreErrorKind::Unknown,
                };
                StoreError::new(kind, "the gateway is not reached").with_source(error)
            })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, LARGEST)
                .collect()
                .await
                .map_err(broken_off)?;
            Ok((head.status, body.to_bytes()))
        };
        let (status, body) = timeout(within, exchange).await.unwrap_or_else(|_| {
            let what = format!("the gateway did not answer within {within:?}");
            Err(StoreError::new(StoreErrorKind::Unknown, what))
        })?;
        Answer::of(status, body)
    }

    fn named(&self, id: &IdentityDigest) -> IdentityDigest {
        self.held().id.unwrap_or(*id)
    }

    /// Sends a claim, and notes what came of it.
    async fn send(&self, request: &wire::ClaimRequest, wait: Duration) -> Result<Answered> {
        let was_doubtful = std::mem::replace(&mut self.held().is_doubtful, true);
        let answer = self.post("", request, wait).await;
        if let Err(error) = &answer {
            // One that was not made says nothing of those before it.
            self.held().is_doubtful = was_doubtful || error.kind() == StoreErrorKind::Unknown;
        }
        let answered = match answer? {
            Answer::Refused(problem) => Answered::Refused(problem),
            Answer::Done(StatusCode::CREATED, acquired) => Answered::Acquired(read(&acquired)?),
            Answer::Done(_, replayed) => Answered::Replayed(read(&replayed)?),
        };
        let id = match &answered {
            Answered::Acquired(acquired) => Some(&acquired.id),
            Answered::Replayed(replayed) => Some(&replayed.id),
            Answered::Refused(problem) => problem.id.as_ref(),
        };
        let mut held = self.held();
        held.id = id.and_then(|id| IdentityDigest::from_hex(id)).or(held.id);
        match &answered {
            Answered::Acquired(acquired) => {
                held.token = Some((Fence(acquired.fence), acquired.token.clone()));
            }
            Answered::Replayed(_) | Answered::Refused(_) => held.is_doubtful = false,
        }
        drop(held);
        Ok(answered)
    }

    /// Posts to the claim that is held.
    async fn change_held(
        &self,
        id: &IdentityDigest,
        what: &str,
        request: &impl Serialize,
    ) -> Result<Fenced> {
        let path = format!("/{}/{what}", self.named(id));
        Ok(match self.post(&path, request, Duration::ZERO).await? {
            Answer::Done(..) => Fenced::Applied,
            Answer::Refused(problem) => Fenced::Refused(refusal(&problem)),
        })
    }

    /// A record as the API shows it. Of its token only a claim of our own is known, of its fingerprint and
    /// its steps nothing is asked for.
    fn entry(&self, digest: IdentityDigest, shown: wire::Shown) -> Result<Entry> {
        let service = Service::new(&shown.service).map_err(|error| wrong(error.to_string()))?;
        let at = |time_of: Option<&String>| time_of.map(|text| time(text)).transpose();
        let fence = Fence(shown.fence);
        let held = self.held();
        let ours = held.token.as_ref().is_some_and(|(held, _)| *held == fence);
        let nonce = held
            .request
            .as_ref()
            .filter(|_| ours)
            .map(|(_, nonce)| *nonce);
        Ok(Entry {
            label: Label {
                digest,
                scope: Scope::new(&shown.scope),
                operation: service.operation(&shown.operation).into(),
                key_hint: shown.key_hint.into(),
            },
            record: Record {
                state: match shown.state {
                    wire::State::InFlight => State::InFlight,
                    wire::State::Unknown => State::Unknown,
                    wire::State::Released => State::Released,
                    wire::State::Completed => {
                        State::Completed(kept(&shown.outcome.unwrap_or_default())?)
                    }
                },
                expires_at: at(shown.expires_at.as_ref())?.unwrap_or(Timestamp::MAX),
                purge_at: Timestamp::MAX,
                fingerprint: Fingerprint::of(b""),
                attempt: shown.attempt,
                token: Token {
                    fence,
                    nonce: nonce.unwrap_or(Nonce::from_bytes([0; 16])),
                },
                lease_until: time(&shown.lease_until)?,
                created_at: time(&shown.created_at)?,
                claimed_at: time(&shown.claimed_at)?,
                settled_at: at(shown.settled_at.as_ref())?,
                resolved: None,
                progress: Progress::EMPTY,
                note: Note::EMPTY,
            },
        })
    }

    /// The claim that was made while this waited, renewed, if it is held still.
    async fn still_held(&self, lease: Duration) -> Result<Option<wire::Acquired>> {
        let Some(acquired) = self.held().made.clone() else {
            return Ok(None);
        };
        let request = wire::RenewRequest {
            token: acquired.token.clone(),
            lease: Some(millis(lease)),
        };
        let path = format!("/{}/renew", acquired.id);
        let answer = self.post(&path, &request, Duration::ZERO).await?;
        self.held().made = None;
        Ok(matches!(answer, Answer::Done(..)).then_some(acquired))
    }

    /// What the API knows the claim by.
    fn token_of(&self, token: &Token) -> Result<String> {
        let held = self.held();
        let known = held
            .token
            .as_ref()
            .filter(|(fence, _)| *fence == token.fence);
        let (_, text) = known.ok_or_else(|| wrong("a claim that was not made here".to_owned()))?;
        Ok(text.clone())
    }
}

enum Answered {
    Acquired(wire::Acquired),
    Replayed(wire::Replayed),
    Refused(wire::Problem),
}

impl Store for Remote {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let (operation, service) = Service::split(identity.operation());
        let [_, digest @ ..] = request.fingerprint.to_bytes();
        let wire = wire::ClaimRequest {
            operation: operation.to_owned(),
            key: identity.key().as_str().to_owned(),
            service: Some(service.to_owned()),
            scope: identity.scope().segments().map(str::to_owned).collect(),
            fingerprint: Some(hex::encode(digest)),
            nonce: Some(hex::encode(request.nonce.as_bytes())),
            lease: Some(millis(request.lease)),
            on_lost: Some(match request.on_lost {
                OnLost::Retry => wire::OnLost::Retry,
                OnLost::Hold | OnLost::Reconcile => wire::OnLost::Hold,
            }),
            payload: None,
            payload_base64: None,
            wait: None,
            // Said at the end.
            ttl: None,
            tombstone: None,
        };
        self.held().request = Some((wire.clone(), request.nonce));
        let answered = match self.still_held(request.lease).await? {
            Some(acquired) => Answered::Acquired(acquired),
            None => self.send(&wire, Duration::ZERO).await?,
        };
        match answered {
            Answered::Acquired(acquired) => {
                let token = Token {
                    fence: Fence(acquired.fence),
                    nonce: request.nonce,
                };
                self.held().is_doubtful = false;
                Ok(Claim::Acquired(Acquired {
                    token,
                    attempt: acquired.attempt,
                    since: Timestamp::from_micros(acquired.since),
                    // Where it was, the gateway has renewed it.
                    is_repeated: false,
                }))
            }
            Answered::Replayed(replayed) => Ok(Claim::Completed {
                outcome: kept(&replayed.outcome)?,
                remaining: Duration::from_millis(replayed.remaining_ms),
            }),
            Answered::Refused(problem) => {
                let fence = Fence(problem.fence.unwrap_or_default());
                match problem.code.as_str() {
                    "outcome-unknown" => Ok(Claim::Unknown { fence }),
                    "mismatch" => Ok(Claim::Mismatch),
                    "expired" => Ok(Claim::Expired),
                    // A lapse, too, ends a wait on the gateway.
                    "in-flight" => Ok(Claim::InFlight {
                        fence,
                        remaining: LONGEST_WAIT,
                    }),
                    code => Err(wrong(format!(
                        "the gateway answered {code}: {}",
                        problem.detail
                    ))),
                }
            }
        }
    }

    async fn change(&self, id: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let Change::Held(token, update) = change else {
            return Err(unsupported());
        };
        let token = self.token_of(token)?;
        match update {
            Update::Renew(lease) => {
                let lease = Some(millis(*lease));
                let request = wire::RenewRequest { token, lease };
                self.change_held(id, "renew", &request).await
            }
            Update::Complete(outcome, retention) => {
                let request = wire::CompleteRequest {
                    token,
                    outcome: shown(outcome),
                    ttl: Some(millis(retention.replay)),
                    tombstone: Some(millis(retention.tombstone)),
                };
                self.change_held(id, "complete", &request).await
            }
            Update::Abandon => {
                let keys_given = false;
                let request = wire::AbandonRequest { token, keys_given };
                self.change_held(id, "abandon", &request).await
            }
            Update::MarkUnknown => {
                let request = wire::UnknownRequest { token };
                self.change_held(id, "unknown", &request).await
            }
            Update::KeepStep { .. } => Err(unsupported()),
        }
    }

    async fn get(&self, id: &IdentityDigest) -> Result<Option<Entry>> {
        let path = format!("/{}", self.named(id));
        match self.ask(Method::GET, &path, Bytes::new(), WITHIN).await? {
            Answer::Done(_, shown) => self.entry(*id, read(&shown)?).map(Some),
            Answer::Refused(_) => Ok(None),
        }
    }

    /// By a claim that waits on the gateway. If it is made, the next one is told so.
    async fn wait(&self, _: &IdentityDigest, _: Fence, within: Duration) -> Result<Waited> {
        let request = self.held().request.clone();
        let (mut request, _) = request.ok_or_else(unsupported)?;
        let wait = within.min(LONGEST_WAIT);
        request.wait = Some(millis(wait));
        let since = Instant::now();
        match self.send(&request, wait).await? {
            Answered::Refused(problem) if problem.code == "in-flight" => {
                // The gateway has no room for calls that wait.
                let left = wait.saturating_sub(since.elapsed());
                sleep(left.min(Duration::from_secs(1))).await;
                Ok(Waited::TimedOut)
            }
            Answered::Acquired(acquired) => {
                self.held().made = Some(acquired);
                Ok(Waited::Changed)
            }
            _ => Ok(Waited::Changed),
        }
    }

    async fn list(&self, _: &ListQuery) -> Result<Page> {
        Err(unsupported())
    }

    /// The gateway does that.
    async fn purge(&self, _: usize) -> Result<Purged> {
        Ok(Purged {
            removed: 0,
            more: false,
        })
    }

    async fn probe(&self) -> Result<Probe> {
        Err(unsupported())
    }

    /// Gives back a claim of which the guard was not told. Not where it may have taken over a run that was
    /// lost, whose effect nobody knows: that is left to its lease.
    async fn close(&self) -> Result<()> {
        let (request, made) = {
            let held = self.held();
            let request = held.request.clone().filter(|_| held.is_doubtful);
            (request, held.made.clone())
        };
        let Some((mut request, _)) = request else {
            return Ok(());
        };
        let takes_over = request.on_lost.replace(wire::OnLost::Hold) == Some(wire::OnLost::Retry);
        let answered = match made {
            Some(acquired) => Answered::Acquired(acquired),
            None => self.send(&request, Duration::ZERO).await?,
        };
        match answered {
            Answered::Acquired(acquired) if !takes_over || acquired.attempt == 1 => {
                let path = format!("/{}/abandon", acquired.id);
                let request = wire::AbandonRequest {
                    token: acquired.token,
                    keys_given: false,
                };
                self.post(&path, &request, Duration::ZERO).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// How long a request of so many bytes may take.
fn within(len: usize) -> Duration {
    WITHIN + Duration::from_secs((len / SLOWEST) as u64)
}

/// As durations are written in requests.
fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|_| no_gateway(StatusCode::OK))
}

/// An outcome that was answered.
fn kept(outcome: &wire::Outcome) -> Result<Outcome> {
    body::stored(outcome, "outcome").map_err(|refused| wrong(refused.to_string()))
}

/// An outcome to record: in base64, which bounds how much larger it gets.
fn shown(outcome: &Outcome) -> wire::Outcome {
    let mut fields = outcome.fields();
    let content_type = fields.find(|(name, _)| *name == CONTENT_TYPE.as_str());
    let content_type = content_type.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
    wire::Outcome {
        kind: match outcome.kind() {
            OutcomeKind::Success => wire::Kind::Success,
            OutcomeKind::Failure => wire::Kind::Failure,
            _ => wire::Kind::Omitted,
        },
        code: outcome.code(),
        content_type: content_type.map(Into::into),
        base64: outcome.body().map(|body| BASE64_STANDARD.encode(body)),
        ..wire::Outcome::default()
    }
}

fn time(text: &str) -> Result<Timestamp> {
    let since = humantime::parse_rfc3339(text).ok();
    let since = since.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let since = since.ok_or_else(|| wrong(format!("the gateway answered a time `{text}`")))?;
    Ok(Timestamp::default().after(since))
}

fn wrong(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::Config, what)
}

/// Nothing that `semel run` does.
fn unsupported() -> StoreError {
    wrong("the claim API has no such call".to_owned())
}

fn broken_off(error: Box<dyn StdError + Send + Sync>) -> StoreError {
    StoreError::new(StoreErrorKind::Unknown, "the gateway's answer broke off").with_source(error)
}

/// An answer that no gateway gives: of a proxy, or of another service.
fn no_gateway(status: StatusCode) -> StoreError {
    let what = format!(
        "what answered is no claim API of a gateway (status {status}): --gateway is its --admin address"
    );
    StoreError::new(kind_of(status), what)
}

/// What a status says by itself, a proxy's too. The clients for other languages send again after the same ones.
fn kind_of(status: StatusCode) -> StoreErrorKind {
    match status.as_u16() {
        425 | 429 => StoreErrorKind::NotApplied,
        408 | 500.. => StoreErrorKind::Unknown,
        413 => StoreErrorKind::TooLarge,
        _ => StoreErrorKind::Config,
    }
}

fn refusal(problem: &wire::Problem) -> Refusal {
    match problem.reason.as_deref() {
        Some("completed") => Refusal::Settled(StateKind::Completed),
        Some("released") => Refusal::Settled(StateKind::Released),
        Some("unknown") => Refusal::Settled(StateKind::Unknown),
        Some("superseded") => Refusal::Superseded,
        // Also of a record that is not found.
        _ => Refusal::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_request_has_more_time() {
        assert_eq!(within(1000), WITHIN);
        assert!(within(MAX_REQUEST) >= Duration::from_secs(30));
    }

    /// By the table that the clients for all languages share.
    #[test]
    fn what_passes_is_asked_again() {
        let table = include_str!("../../../../../clients/retry-cases.json");
        let table: serde_json::Value = serde_json::from_str(table).unwrap();
        for case in table["claim_calls"].as_array().unwrap() {
            let status = u16::try_from(case["status"].as_u64().unwrap()).unwrap();
            let body = match case["code"].as_str() {
                // A proxy's.
                None => "<html>".to_owned(),
                Some(code) => format!(
                    r#"{{"type":"t","title":"t","status":{status},"detail":"d","code":"{code}"}}"#
                ),
            };
            let answer = Answer::of(StatusCode::from_u16(status).unwrap(), body.into());
            let again = answer.is_err_and(|error| {
                use StoreErrorKind::{Capacity, NotApplied, Unknown};
                matches!(error.kind(), NotApplied | Unknown | Capacity)
            });
            assert_eq!(again, case["again"].as_bool().unwrap(), "{case}");
        }
    }

    /// A claim that may have been made is given back, and what surely was not is not looked for.
    #[test]
    fn what_may_have_been_done_is_told_from_what_was_not() {
        let kind = |status: u16, code: &str| {
            let body = format!(
                r#"{{"type":"t","title":"t","status":{status},"detail":"d","code":"{code}"}}"#
            );
            let answer = Answer::of(StatusCode::from_u16(status).unwrap(), body.into());
            answer.err().unwrap().kind()
        };
        for (status, code) in [(400, "incomplete-body"), (425, "early"), (429, "limit")] {
            assert_eq!(kind(status, code), StoreErrorKind::NotApplied, "{code}");
        }
        for (status, code) in [(408, "late"), (503, "store-unavailable"), (524, "gone")] {
            assert_eq!(kind(status, code), StoreErrorKind::Unknown, "{code}");
        }
        assert_eq!(kind(503, "capacity"), StoreErrorKind::Capacity);
    }

    #[test]
    fn what_is_too_large_is_said() {
        for body in [
            "<html>",
            r#"{"type":"t","title":"t","status":413,"detail":"d","code":"too-large"}"#,
        ] {
            let Err(error) = Answer::of(StatusCode::PAYLOAD_TOO_LARGE, body.into()) else {
                panic!("{body} is no error");
            };
            assert_eq!(error.kind(), StoreErrorKind::TooLarge, "{body}");
        }
    }
}
