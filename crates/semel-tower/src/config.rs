//! Everything that the layer's setters set, but for the policies that the guard follows.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, response};
use http_body::Body as HttpBody;
use semel::guard::{Asked, Policy};
use semel::secrets::Secrets;
use semel::store::Retention;
use semel::{Clock as _, Fingerprint, Identity, Key, KeyRule, Note, Outcome, Scope, SystemClock};
use serde_json::value::RawValue;

use crate::body::Body;
use crate::fingerprint::{self, BodyForm};
use crate::header::{self, HeaderError, Syntax};
use crate::limits::Limits;
use crate::note::{NoteField, note};
use crate::observe::Mode;
use crate::operation::OperationRule;
use crate::policy::{self, Disposition, Reply};
use crate::preset::members::Members;
use crate::preset::{self, Carrier, Content, Convention, Dialect, Preset, adcp};
use crate::problem::{self, Problem, ProblemCode};
use crate::replay;
use crate::scope::ScopeRule;

pub(crate) type Classifier = dyn Fn(&Reply<'_>) -> Disposition + Send + Sync;
pub(crate) type ErrorClassifier = dyn Fn(&dyn Any) -> Option<Disposition> + Send + Sync;
pub(crate) type Fingerprinter = dyn Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync;

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) mode: Mode,
    /// What holds that is not set on its own.
    pub(crate) preset: Preset,
    pub(crate) key_header: HeaderName,
    /// The member of a JSON body that is the key, in place of the field.
    pub(crate) key_member: Option<Box<str>>,
    /// The methods whose keys count; all but safe ones where none are named.
    pub(crate) methods: Option<Vec<Method>>,
    pub(crate) syntax: Syntax,
    pub(crate) key_rule: KeyRule,
    pub(crate) scope: ScopeRule,
    pub(crate) operation: OperationRule,
    /// What identities are named under.
    pub(crate) secrets: Option<Secrets>,
    pub(crate) body_form: BodyForm,
    pub(crate) host_header: HeaderName,
    pub(crate) fingerprint_headers: Vec<HeaderName>,
    pub(crate) fingerprinter: Option<Arc<Fingerprinter>>,
    /// What of a request is kept with its record.
    pub(crate) note: Vec<NoteField>,
    pub(crate) max_request_body: usize,
    pub(crate) max_response_body: usize,
    pub(crate) limits: Limits,
    pub(crate) dialect: Dialect,
    pub(crate) replay_header: Option<HeaderName>,
    pub(crate) allowed_replay_headers: Vec<HeaderName>,
    pub(crate) dispositions: BTreeMap<u16, Disposition>,
    pub(crate) classifier: Option<Arc<Classifier>>,
    pub(crate) error_classifier: Option<Arc<ErrorClassifier>>,
    /// Absolute; the code is appended and makes the problem's type.
    pub(crate) problem_base: Cow<'static, str>,
    /// What clients say of time is compared with.
    pub(crate) clock: SystemClock,
}

/// What of a request goes into its answers.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    pub(crate) origin: Option<HeaderValue>,
    /// AdCP's `context`.
    pub(crate) context: Option<Box<RawValue>>,
}

/// A request whose body was read for what it says.
pub(crate) struct Read {
    pub(crate) key: Option<Key>,
    /// What of the body belongs to the scope.
    pub(crate) scope: Vec<String>,
}

const MIB: usize = 1 << 20;

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            preset: Preset::Ietf,
            key_header: HeaderName::from_static("idempotency-key"),
            key_member: None,
            methods: None,
            syntax: Syntax::default(),
            key_rule: KeyRule::GENERAL,
            scope: ScopeRule::default(),
            operation: OperationRule::default(),
            secrets: None,
            body_form: BodyForm::default(),
            host_header: HOST,
            fingerprint_headers: Vec::new(),
            fingerprinter: None,
            note: Vec::new(),
            max_request_body: MIB,
            max_response_body: MIB,
            limits: Limits::default(),
            dialect: Dialect::default(),
            replay_header: Some(replay::REPLAYED),
            allowed_replay_headers: Vec::new(),
            dispositions: BTreeMap::new(),
            classifier: None,
            error_classifier: None,
            problem_base: Cow::Borrowed(problem::DOCUMENTATION),
            clock: SystemClock::new(),
        }
    }
}

impl Config {
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, HeaderError> {
        let lines = headers.get_all(&self.key_header);
        let lines = lines.iter().map(HeaderValue::as_bytes);
        header::parse(lines, self.syntax, &self.key_rule)
    }

    /// Sets all that a convention says.
    pub(crate) fn set_preset(&mut self, preset: Preset) {
        self.scope.remove_headers(self.convention().scope_fields);
        let convention = preset.convention();
        self.preset = preset;
        match convention.key {
            Carrier::Field(name) => {
                self.key_header = HeaderName::from_static(name);
                self.key_member = None;
            }
            Carrier::Member(name) => self.key_member = Some(name.into()),
        }
        self.syntax = convention.syntax;
        self.key_rule = convention.key_rule;
        let methods = convention
            .methods
            .iter()
            .filter_map(|name| name.parse().ok());
        self.methods = Some(methods.collect()).filter(|methods: &Vec<_>| !methods.is_empty());
        for name in convention.scope_fields {
            self.scope.add_header(HeaderName::from_static(name));
        }
        self.scope.set_target(convention.scope_target);
        self.dialect = convention.dialect;
        self.replay_header = convention.mark.map(HeaderName::from_static);
    }

    const fn convention(&self) -> &'static Convention {
        self.preset.convention()
    }

    /// Whether a key counts in a request of this method. `is_safe` methods never reach this.
    pub(crate) fn protects(&self, method: &Method) -> bool {
        let methods = self.methods.as_ref();
        self.mode != Mode::Off && methods.is_none_or(|methods| methods.contains(method))
    }

    /// What to say to a request with a key whose method is not protected: nothing, where it runs.
    pub(crate) fn unprotected(&self, headers: &HeaderMap) -> Option<Problem> {
        let must_refuse = self.convention().first_sent && headers.contains_key(&self.key_header);
        must_refuse.then(|| Problem::new(ProblemCode::NotSupported))
    }

    /// Whether a request without a key is one that should have one.
    pub(crate) fn is_half_repeatable(&self, headers: &HeaderMap) -> bool {
        self.convention().first_sent && headers.contains_key(preset::FIRST_SENT)
    }

    /// Whose key it is; a problem where it is known without reading the body that the request cannot
    /// be answered.
    pub(crate) fn scope<B: HttpBody>(
        &self,
        parts: &Parts,
        body: &B,
        retention: Retention,
    ) -> Result<Scope, Problem> {
        if self.convention().first_sent {
            preset::check_first_sent(&parts.headers, self.clock.now(), retention.replay)?;
        }
        let scope = self.scope.of(parts)?;
        let announced = parts
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok())
            .unwrap_or(0_u64)
            .max(body.size_hint().lower());
        if announced > self.max_request_body as u64 {
            return Err(self.too_large());
        }
        Ok(scope)
    }

    /// The policy of attempts on a guard with that of `guard`.
    pub(crate) fn policy(&self, guard: &Policy) -> Policy {
        guard.with_retention(self.preset.kept_for(guard.retention()))
    }

    pub(crate) fn identity(&self, parts: &Parts, scope: Scope, key: Key) -> Identity {
        let scope = self.scope.with_target(scope, parts);
        let operation = self.operation.of(parts);
        let operation = match self.mode {
            Mode::Observe => format!("{operation} (observed)").into(),
            Mode::Enforce | Mode::Off => operation,
        };
        Identity::keyed(scope, operation, key, self.secrets.as_ref())
    }

    /// Whose limits count for a request.
    pub(crate) fn limited<'a>(&self, identity: &'a Identity) -> Cow<'a, Scope> {
        self.scope.without_target(identity.scope())
    }

    /// Whether the body of a request has something to say, where it is JSON: the key, or whose it is, or
    /// what goes into the answer.
    pub(crate) fn reads_body(&self) -> bool {
        self.key_member.is_some() || self.is_adcp()
    }

    /// Whether answers are AdCP's: by its words, or by its rules.
    fn is_adcp(&self) -> bool {
        self.dialect == Dialect::Adcp || self.convention().content == Content::Adcp
    }

    /// Whether the body of a request may hold the key.
    pub(crate) fn may_hold_key(headers: &HeaderMap) -> bool {
        let media_type = fingerprint::media_type(headers);
        media_type.is_none_or(|media_type| fingerprint::is_json(&media_type))
    }

    /// The key, if it is not known from a field, and what of a body says who asks.
    pub(crate) fn read(
        &self,
        key: Option<Key>,
        body: &Bytes,
        echo: &mut Echo,
    ) -> Result<Read, Problem> {
        let members = Members::of(body);
        if self.is_adcp() {
            let context = members.as_ref().and_then(|members| members.get("context"));
            echo.context = context.map(ToOwned::to_owned);
        }
        let key = match (&self.key_member, &members) {
            (None, _) => key,
            (Some(member), Some(members)) => self.key_of(member, members)?,
            (Some(_), None) if body.trim_ascii().is_empty() => None,
            (Some(member), None) => {
                let detail = format!(
                    "The body is no JSON object, or names a member twice, so that its `{member}` cannot \
                     be read. Nothing was run."
                );
                return Err(Problem::new(ProblemCode::InvalidKey).with_detail(detail));
            }
        };
        let scope = match (self.convention().content, &members) {
            (Content::Adcp, Some(members)) => adcp::scope(members),
            _ => Vec::new(),
        };
        Ok(Read { key, scope })
    }

    fn key_of(&self, member: &str, members: &Members<'_>) -> Result<Option<Key>, Problem> {
        let Some(value) = members.get(member) else {
            return Ok(None);
        };
        let text: Option<String> = serde_json::from_str(value.get()).ok();
        let key = text.ok_or("it is no text".to_owned()).and_then(|text| {
            let parsed = self.key_rule.parse(&text);
            parsed.map_err(|error| error.to_string())
        });
        key.map(Some).map_err(|error| {
            let detail = format!("In `{member}`: {error}. Nothing was run.");
            Problem::new(ProblemCode::InvalidKey).with_detail(detail)
        })
    }

    /// What a request asks for.
    pub(crate) fn asked(&self, identity: Identity, parts: &Parts, body: &Bytes) -> Asked {
        let note = match &*self.note {
            [] => Note::EMPTY,
            fields => note(fields, parts, body, identity.key()),
        };
        Asked::new(identity, self.fingerprint(parts, body)).with_note(note)
    }

    fn fingerprint(&self, parts: &Parts, body: &Bytes) -> Fingerprint {
        let convention = self.convention();
        match (&self.fingerprinter, convention.content) {
            (Some(make), _) => make(parts, body),
            (None, Content::Body) => fingerprint::of_body(parts, body, &self.host_header),
            (None, Content::Adcp) => fingerprint::of_adcp(parts, body, &self.host_header),
            (None, Content::Request) => {
                let first_sent = &preset::FIRST_SENT;
                let first_sent = convention.first_sent.then_some(first_sent);
                let headers = [&self.host_header].into_iter().chain(first_sent);
                let headers = headers.chain(&self.fingerprint_headers);
                fingerprint::of_request(parts, body, self.body_form, headers)
            }
        }
    }

    /// How long an answer is kept that says so itself: where a convention has declared it, no shorter
    /// than the policy says.
    pub(crate) fn retention(
        &self,
        stated: Option<Retention>,
        policy: Retention,
    ) -> Option<Retention> {
        let convention = self.convention();
        let is_bound = convention.is_declared || convention.first_sent;
        stated.map(|stated| match is_bound {
            true => Retention {
                replay: stated.replay.max(policy.replay),
                tombstone: stated.tombstone.max(policy.tombstone),
            },
            false => stated,
        })
    }

    pub(crate) fn missing_key(&self) -> Problem {
        let place = match &self.key_member {
            Some(name) => format!("`{name}` in the JSON body,"),
            None => format!("`{}`", self.key_header),
        };
        Problem::new(ProblemCode::MissingKey).with_detail(format!(
            "Send {place} with a key that is new for each operation, and the same for its retries. \
             Nothing was run."
        ))
    }

    pub(crate) fn too_large(&self) -> Problem {
        Problem::new(ProblemCode::TooLarge).with_detail(format!(
            "A request with a key is read whole before it is run, and may have {} bytes. Nothing was run.",
            self.max_request_body
        ))
    }

    pub(crate) fn problem<R: HttpBody>(&self, problem: Problem, echo: &Echo) -> Response<Body<R>> {
        let context = echo.context.as_deref();
        let mut response = self.dialect.write(&problem, &self.problem_base, context);
        response.extensions_mut().insert(problem);
        response.map(Body::whole)
    }

    pub(crate) fn replay<R: HttpBody>(&self, outcome: &Outcome, echo: &Echo) -> Response<Body<R>> {
        let (mark, origin) = (self.replay_header.as_ref(), echo.origin.as_ref());
        let mut response = replay::response_of(outcome, outcome.body(), mark, origin);
        if self.may_be_envelope(response.headers())
            && let Some(body) = outcome.body()
            && let Some(envelope) = adcp::replay(&body, echo.context.as_deref())
        {
            adcp::forget_body(response.headers_mut());
            response.body_mut().set_data(envelope);
        }
        self.dialect.accept(response.headers_mut());
        replay::expose(response.headers_mut(), mark);
        response
    }

    /// Takes from an answer of the inner service what only the layer may say.
    pub(crate) fn strip(&self, headers: &mut HeaderMap) {
        replay::strip_marks(headers, self.replay_header.as_ref());
    }

    /// Whether the body of an answer is an envelope of AdCP if it is a JSON object: unless its media type says
    /// that it is something else. Such a body is looked into whatever the answer means.
    pub(crate) fn may_be_envelope(&self, headers: &HeaderMap) -> bool {
        self.is_adcp()
            && fingerprint::media_type(headers).is_none_or(|media_type| {
                let is_text =
                    media_type.starts_with(b"text/") && *media_type != *b"text/event-stream";
                is_text || fingerprint::is_json(&media_type)
            })
    }

    /// Whether a replay of this body can be made: of an envelope, with another request's context in place of
    /// the first one's. What is called JSON has to be some.
    pub(crate) fn can_be_replayed(&self, head: &response::Parts, body: &Bytes) -> bool {
        let headers = &head.headers;
        let is_called_json =
            || fingerprint::media_type(headers).is_some_and(|it| fingerprint::is_json(&it));
        !self.may_be_envelope(headers)
            || !headers.contains_key(CONTENT_ENCODING)
                && (!is_called_json() || adcp::is_readable(body))
    }

    /// The body of a first answer, in which nothing says that it is a replay.
    pub(crate) fn first_body(&self, head: &mut response::Parts, body: Bytes) -> Bytes {
        if !self.may_be_envelope(&head.headers) {
            return body;
        }
        match adcp::first(&body) {
            Some(changed) => {
                adcp::forget_body(&mut head.headers);
                changed
            }
            None => body,
        }
    }

    /// The same of a body that was not read whole: it passes as it comes.
    pub(crate) fn first_stream<R: HttpBody>(
        &self,
        headers: &mut HeaderMap,
        body: Body<R>,
    ) -> Body<R> {
        if !self.may_be_envelope(headers) || body.is_whole() {
            return body;
        }
        adcp::forget_body(headers);
        body.unmarked()
    }

    /// Lets scripts of other origins send a key, and what belongs to it.
    pub(crate) fn allow(&self, headers: &mut HeaderMap) {
        let first_sent = &preset::FIRST_SENT;
        let first_sent = self.convention().first_sent.then_some(first_sent);
        for name in [&self.key_header].into_iter().chain(first_sent) {
            replay::allow(headers, name);
        }
    }

    /// The head of a first answer.
    pub(crate) fn first_head(&self, headers: &mut HeaderMap) {
        self.dialect.accept(headers);
        replay::expose(headers, self.replay_header.as_ref());
    }

    /// What a response means, where its head alone says so.
    pub(crate) fn by_head(&self, head: &response::Parts) -> Option<Disposition> {
        if head.status.is_informational() {
            return Some(Disposition::Release);
        }
        self.stated(head).or_else(|| match self.classifier {
            None => self
                .convention()
                .disposition(head.status)
                .or_else(|| policy::by_head(head)),
            Some(_) => None,
        })
    }

    /// The same, where its body could not say otherwise.
    pub(crate) fn by_head_alone(&self, head: &response::Parts) -> Option<Disposition> {
        let is_open =
            self.may_be_envelope(&head.headers) || head.status == StatusCode::UNPROCESSABLE_ENTITY;
        self.by_head(head).filter(|_| !is_open)
    }

    /// What a response means.
    pub(crate) fn classify(&self, reply: &Reply<'_>) -> Disposition {
        self.stated(reply.head)
            .unwrap_or_else(|| match &self.classifier {
                Some(classify) => classify(reply),
                None => self
                    .by_convention(reply)
                    .unwrap_or_else(|| Disposition::of(reply)),
            })
    }

    fn by_convention(&self, reply: &Reply<'_>) -> Option<Disposition> {
        let by_status = self.convention().disposition(reply.head.status);
        let is_task = self.may_be_envelope(&reply.head.headers) && reply.head.status.is_success();
        by_status.or_else(|| adcp::disposition(reply.body.filter(|_| is_task)?))
    }

    /// What the handler says of its response, or the application of the status.
    fn stated(&self, head: &response::Parts) -> Option<Disposition> {
        let stated = head.extensions.get::<Disposition>();
        stated
            .or_else(|| self.dispositions.get(&head.status.as_u16()))
            .copied()
    }

    /// What an error of the inner service means, where the application says so.
    pub(crate) fn classify_error(&self, error: &dyn Any) -> Option<Disposition> {
        self.error_classifier.as_ref()?(error)
    }

    /// Whether what a response means is said by more than its status.
    pub(crate) fn is_stated(&self, head: &response::Parts) -> bool {
        self.classifier.is_some() || self.stated(head).is_some()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("preset", &self.preset)
            .field("key_header", &self.key_header)
            .field("key_member", &self.key_member)
            .field("methods", &self.methods)
            .field("dialect", &self.dialect)
            .field("syntax", &self.syntax)
            .field("key_rule", &self.key_rule)
            .field("scope", &self.scope)
            .field("operation", &self.operation)
            .field("body_form", &self.body_form)
            .field("fingerprint_headers", &self.fingerprint_headers)
            .field("max_request_body", &self.max_request_body)
            .field("max_response_body", &self.max_response_body)
            .field("limits", &self.limits)
            .field("replay_header", &self.replay_header)
            .field("allowed_replay_headers", &self.allowed_replay_headers)
            .finish_non_exhaustive()
    }
}

/// The origin of a request made by a script.
pub(crate) fn origin(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(ORIGIN).cloned()
}
