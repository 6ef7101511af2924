//! Everything that the layer's setters set, but for the policies that the guard follows.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Response, response};
use http_body::Body as HttpBody;
use semel::{Fingerprint, Identity, Key, KeyRule, Outcome};

use crate::body::Body;
use crate::fingerprint::{self, BodyForm};
use crate::header::{self, HeaderError, Syntax};
use crate::limits::Limits;
use crate::operation::OperationRule;
use crate::policy::{self, Disposition, Reply};
use crate::problem::{self, Problem, ProblemCode};
use crate::replay;
use crate::scope::ScopeRule;

pub(crate) type Classifier = dyn Fn(&Reply<'_>) -> Disposition + Send + Sync;
pub(crate) type ErrorClassifier = dyn Fn(&dyn Any) -> Option<Disposition> + Send + Sync;
pub(crate) type Fingerprinter = dyn Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync;

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) is_protecting: bool,
    pub(crate) key_header: HeaderName,
    pub(crate) syntax: Syntax,
    pub(crate) key_rule: KeyRule,
    pub(crate) scope: ScopeRule,
    pub(crate) operation: OperationRule,
    pub(crate) body_form: BodyForm,
    pub(crate) fingerprint_headers: Vec<HeaderName>,
    pub(crate) fingerprinter: Option<Arc<Fingerprinter>>,
    pub(crate) max_request_body: usize,
    pub(crate) max_response_body: usize,
    pub(crate) limits: Limits,
    pub(crate) replay_header: HeaderName,
    pub(crate) allowed_replay_headers: Vec<HeaderName>,
    pub(crate) dispositions: BTreeMap<u16, Disposition>,
    pub(crate) classifier: Option<Arc<Classifier>>,
    pub(crate) error_classifier: Option<Arc<ErrorClassifier>>,
    /// Absolute; the code is appended and makes the problem's type.
    pub(crate) problem_base: Cow<'static, str>,
}

const MIB: usize = 1 << 20;

impl Default for Config {
    fn default() -> Self {
        Self {
            is_protecting: true,
            key_header: HeaderName::from_static("idempotency-key"),
            syntax: Syntax::default(),
            key_rule: KeyRule::GENERAL,
            scope: ScopeRule::default(),
            operation: OperationRule::default(),
            body_form: BodyForm::default(),
            fingerprint_headers: Vec::new(),
            fingerprinter: None,
            max_request_body: MIB,
            max_response_body: MIB,
            limits: Limits::default(),
            replay_header: replay::REPLAYED,
            allowed_replay_headers: Vec::new(),
            dispositions: BTreeMap::new(),
            classifier: None,
            error_classifier: None,
            problem_base: Cow::Borrowed(problem::DOCUMENTATION),
        }
    }
}

impl Config {
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Option<Key>, HeaderError> {
        let lines = headers.get_all(&self.key_header);
        let lines = lines.iter().map(HeaderValue::as_bytes);
        header::parse(lines, self.syntax, &self.key_rule)
    }

    /// Who asks for what; a problem where it is known without reading the body that it cannot be
    /// answered.
    pub(crate) fn identity<B: HttpBody>(
        &self,
        parts: &Parts,
        body: &B,
        key: Key,
    ) -> Result<Identity, Problem> {
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
        Ok(Identity::new(scope, &self.operation.of(parts), key))
    }

    pub(crate) fn fingerprint(&self, parts: &Parts, body: &Bytes) -> Fingerprint {
        match &self.fingerprinter {
            Some(make) => make(parts, body),
            None => {
                let headers = [&HOST].into_iter().chain(&self.fingerprint_headers);
                fingerprint::of_request(parts, body, self.body_form, headers)
            }
        }
    }

    pub(crate) fn missing_key(&self) -> Problem {
        Problem::new(ProblemCode::MissingKey).with_detail(format!(
            "Send `{}` with a key that is new for each operation, and the same for its retries. \
             Nothing was run.",
            self.key_header
        ))
    }

    pub(crate) fn too_large(&self) -> Problem {
        Problem::new(ProblemCode::TooLarge).with_detail(format!(
            "A request with a key is read whole before it is run, and may have {} bytes. Nothing was run.",
            self.max_request_body
        ))
    }

    pub(crate) fn problem<R: HttpBody>(&self, problem: Problem) -> Response<Body<R>> {
        problem.respond(&self.problem_base)
    }

    pub(crate) fn replay<R: HttpBody>(
        &self,
        outcome: &Outcome,
        origin: Option<&HeaderValue>,
    ) -> Response<Body<R>> {
        let mut response = replay::response_of(outcome, &self.replay_header, origin);
        replay::expose(response.headers_mut(), &self.replay_header);
        response
    }

    /// What a response means, where its head alone says so.
    pub(crate) fn by_head(&self, head: &response::Parts) -> Option<Disposition> {
        if head.status.is_informational() {
            return Some(Disposition::Release);
        }
        self.stated(head).or_else(|| match self.classifier {
            None => policy::by_head(head),
            Some(_) => None,
        })
    }

    /// What a response means.
    pub(crate) fn classify(&self, reply: &Reply<'_>) -> Disposition {
        self.stated(reply.head)
            .unwrap_or_else(|| match &self.classifier {
                Some(classify) => classify(reply),
                None => Disposition::of(reply),
            })
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
            .field("key_header", &self.key_header)
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
