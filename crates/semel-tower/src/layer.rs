//! The layer and its settings.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, IntoHeaderName};
use http::{HeaderMap, Method, StatusCode, request};
use semel::guard::{Guard, Observer, Policy, TransactOptions};
use semel::secrets::Secrets;
use semel::transaction::Transactional;
use semel::{Fingerprint, KeyRule, Scope, Service, Store, StoreError};
use tower_layer::Layer;

use crate::config::Config;
use crate::fingerprint::BodyForm;
use crate::header::Syntax;
use crate::note::NoteField;
use crate::observe::Mode;
use crate::policy::{Disposition, Reply};
use crate::preset::{Dialect, Preset, RetentionError};
use crate::quota::ScopeLimits;
use crate::service::Idempotency;
use crate::transact::Transactions;

/// Makes requests with an idempotency key run once. See the [crate's documentation](crate).
///
/// Fields are named by literals (`"x-account"`) or by [`HeaderName`]s. A literal that is no field's name
/// panics when the layer is made, as with [`HeaderName::from_static`] (but in any case); text that is
/// known at run time has to be made a `HeaderName` first.
///
/// Clones share the store and the tasks under way. Several layers with different settings may share
/// one store: give each an `Arc` of it.
#[must_use = "a layer does nothing until it is put around a service"]
pub struct IdempotencyLayer<S> {
    guard: Guard<S>,
    config: Arc<Config>,
    transactions: Option<Arc<dyn Transactions<S>>>,
}

impl<S: Store> IdempotencyLayer<S> {
    /// A layer over a store, or over a [`Guard`] with an observer, a reconciler or a policy of its
    /// own. Several layers may share one: give each a clone.
    pub fn new(guard: impl Into<Guard<S>>) -> Self {
        Self {
            guard: guard.into(),
            config: Arc::default(),
            transactions: None,
        }
    }

    /// For payments, and what else must not be done twice: [`Policy::payment`], and
    /// [a principal is required](Self::with_principal_required). The policy takes the place of the
    /// guard's; to change it, give [`with_policy`](Self::with_policy) a changed `Policy::payment()`.
    ///
    /// ```no_run
    /// # use semel_tower::{IdempotencyLayer, MemoryStore};
    /// # let store = MemoryStore::default();
    /// let layer = IdempotencyLayer::payments(store).with_principal_header("x-account");
    /// ```
    pub fn payments(guard: impl Into<Guard<S>>) -> Self {
        Self::careful(guard, Policy::payment())
    }

    /// For orders: [`Policy::order`], and [a principal is required](Self::with_principal_required).
    pub fn orders(guard: impl Into<Guard<S>>) -> Self {
        Self::careful(guard, Policy::order())
    }

    /// A layer that follows a published convention; each setting can be changed afterwards.
    ///
    /// ```
    /// # use semel_tower::{IdempotencyLayer, MemoryStore, Preset};
    /// # let store = MemoryStore::default();
    /// let layer = IdempotencyLayer::preset(Preset::StripeV1, store)
    ///     .with_principal_header("x-account")
    ///     .checked()?;
    /// # Ok::<_, semel_tower::RetentionError>(())
    /// ```
    pub fn preset(preset: Preset, guard: impl Into<Guard<S>>) -> Self {
        Self::new(guard).with_preset(preset)
    }

    /// Sets all that a published convention says, in place of what was set before of it: where the key
    /// is, what belongs to the scope and to the fingerprint, which failures are kept, how the layer
    /// answers, and of the policy the retention and whether a key is required.
    pub fn with_preset(self, preset: Preset) -> Self {
        let policy = preset.policy(*self.guard.policy());
        self.with_policy(policy)
            .configured(|config| config.set_preset(preset))
    }

    /// The layer, if its policy is one that its [preset](Self::with_preset) allows: the last of its
    /// settings.
    ///
    /// # Errors
    /// Answers are replayed for longer or shorter than the convention allows.
    pub fn checked(self) -> Result<Self, RetentionError> {
        self.config.preset.check(self.guard.policy().retention())?;
        Ok(self)
    }

    /// What the service has to declare of the layer under its [preset](Self::with_preset): under `adcp`
    /// the block `adcp.idempotency` of `get_adcp_capabilities`, under `iceberg` the member
    /// `idempotency-key-lifetime` of `GET /v1/config`, each as a JSON object to merge into the answer.
    /// `None` under the others, which have none, and where the layer does not
    /// [enforce](Mode::Enforce): what is only observed is no promise.
    ///
    /// It says for how long answers are replayed, and none is for less, whatever a handler says.
    ///
    /// ```
    /// # use semel_tower::{IdempotencyLayer, MemoryStore, Preset};
    /// # let store = MemoryStore::default();
    /// let layer = IdempotencyLayer::preset(Preset::Iceberg, store);
    /// let declared = layer.declaration()?.expect("Iceberg's catalogs declare it");
    /// assert_eq!(declared["idempotency-key-lifetime"], "PT24H");
    /// # Ok::<_, semel_tower::RetentionError>(())
    /// ```
    ///
    /// # Errors
    /// As of [`checked`](Self::checked).
    pub fn declaration(&self) -> Result<Option<serde_json::Value>, RetentionError> {
        let preset = self.config.preset;
        let declared = preset.declaration(self.guard.policy().retention())?;
        Ok(declared.filter(|_| self.config.mode == Mode::Enforce))
    }

    fn careful(guard: impl Into<Guard<S>>, policy: Policy) -> Self {
        Self::new(guard)
            .with_policy(policy)
            .with_principal_required(true)
    }

    /// The policy of its attempts: the guard's, with what the preset says of it.
    pub fn policy(&self) -> Policy {
        self.config.policy(self.guard.policy())
    }

    /// The guard that runs the attempts.
    pub const fn guard(&self) -> &Guard<S> {
        &self.guard
    }

    /// Purges the store for as long as it is used: see [`Guard::spawn_purger`].
    pub fn spawn_purger(&self) {
        self.guard.spawn_purger();
    }

    /// Waits until no attempt is running, and no answer that is not kept is on its way; ends the purger.
    /// Call it, or [`close`](Self::close), when no more requests come: without it, attempts whose
    /// clients went away end with the runtime, and their outcomes are unknown.
    pub async fn drain(&self) {
        self.guard.drain().await;
    }

    /// [Drains](Self::drain), then closes the store: the end of a program.
    ///
    /// # Errors
    /// The store's.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.guard.close().await
    }

    /// Lease, retention, waiting, and what becomes of lost attempts, panics and requests without a
    /// key. The guard's unless set. What an error means is not in it here: a
    /// [`Disposition`] says so.
    ///
    /// A response that has a [`Retention`](semel::store::Retention) among its extensions is kept for
    /// that long, whatever the policy says.
    ///
    /// Of methods that RFC 9110 (section 9.2.2) calls idempotent no key is ever required. Under
    /// [`OnLost::Reconcile`](semel::store::OnLost::Reconcile) the guard's
    /// [`Reconciler`](semel::guard::Reconciler) gives the answer: see
    /// [`outcome_of_response`](crate::outcome_of_response).
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.guard = self.guard.with_policy(policy);
        self
    }

    /// Tells this observer of its requests, in place of the guard's: of several layers that share a guard
    /// each can have its own.
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.guard = self.guard.with_observer(observer);
        self
    }

    /// Offers the handler a transaction of the store's database, in which its effects and the
    /// answer are committed together: as a
    /// [`TransactionHandle`](crate::TransactionHandle) among the request's extensions, or an
    /// argument `InTransaction` (feature `axum`). See `docs/transactions.md`.
    pub fn with_transactions(mut self, options: TransactOptions) -> Self
    where
        S: Transactional,
    {
        self.transactions = Some(Arc::new(options));
        self
    }

    /// Whether the layer enforces, only observes, or lets everything go past.
    /// [`Mode::Enforce`] unless set.
    pub fn with_mode(self, mode: Mode) -> Self {
        self.configured(|config| config.mode = mode)
    }

    /// The field that carries the key. `Idempotency-Key` unless set.
    pub fn with_key_header(self, name: impl IntoHeaderName) -> Self {
        self.configured(|config| {
            config.key_header = field(name);
            config.key_member = None;
        })
    }

    /// Takes the key from this member of a body that is a JSON object, in place of a field. Such bodies
    /// are then read whole, with a key or without; those of other media types have none.
    pub fn with_key_member(self, name: impl Into<Box<str>>) -> Self {
        self.configured(|config| config.key_member = Some(name.into()))
    }

    /// The methods whose keys count; keys of others are ignored. All but safe ones unless set.
    pub fn with_methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.configured(|config| config.methods = Some(methods.into_iter().collect()))
    }

    /// Which forms of that field are accepted. [`Syntax::Lenient`] unless set.
    pub fn with_syntax(self, syntax: Syntax) -> Self {
        self.configured(|config| config.syntax = syntax)
    }

    /// Which keys are accepted. [`KeyRule::GENERAL`] (1 to 255 bytes) unless set.
    pub fn with_key_rule(self, rule: KeyRule) -> Self {
        self.configured(|config| config.key_rule = rule)
    }

    /// Finds the principal that a key belongs to; `None` where there is none.
    ///
    /// Unless set, it is the SHA-256 of the `Authorization` field, where its scheme is Basic or
    /// Bearer. A request with a key and another scheme is answered 400 `missing-principal`, because
    /// its credentials may differ in each request (Digest, AWS4-HMAC-SHA256, signatures): each retry
    /// would be another caller's, and run.
    ///
    /// A stable name is better than a digest of credentials: after a token is refreshed, a retry under
    /// the new one is another caller's request, and runs. A service outside that authenticates can
    /// leave the name among the request's extensions.
    pub fn with_principal_by(
        self,
        find: impl Fn(&request::Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        self.configured(|config| config.scope.set_function(Arc::new(find)))
    }

    /// Takes the principal from this field. It must come from something that authenticated the
    /// caller: anybody who can send the field can read every answer.
    ///
    /// `Authorization` and `Cookie` are taken by their SHA-256. Naming `Authorization` says that every
    /// scheme in use sends the same in each request.
    pub fn with_principal_header(self, name: impl IntoHeaderName) -> Self {
        self.configured(|config| config.scope.set_header(field(name)))
    }

    /// Adds the values of this field to the scope: tenant, account, mode. May be called again. `Host`
    /// is the host that the request is for, also where HTTP/2 or an absolute target says it.
    pub fn with_scope_header(self, name: impl IntoHeaderName) -> Self {
        self.configured(|config| config.scope.add_header(field(name)))
    }

    /// Whether method and path belong to the scope: the same key on another route is then another
    /// record, in place of a mismatch. They do not unless set.
    pub fn with_scope_target(self, belongs: bool) -> Self {
        self.configured(|config| config.scope.set_target(belongs))
    }

    /// Whether requests with a key but without a principal are refused with 400
    /// `missing-principal`. Unless set they share the scope `anonymous`: then a caller that sends an
    /// anonymous caller's key and request gets its answer.
    pub fn with_principal_required(self, required: bool) -> Self {
        self.configured(|config| config.scope.set_required(required))
    }

    /// The service that this layer protects: part of every identity. `default` unless set. Services
    /// that share a store need names of their own; else a key that is sent to two of them is a
    /// mismatch, or gets the other one's answer.
    ///
    /// In the store, and for [`Background`](semel::guard::Background), operations have the names that
    /// [`Service::operation`] makes.
    pub fn with_service(self, service: Service) -> Self {
        self.configured(|config| config.operation.set_service(service))
    }

    /// Names records, and keeps fingerprints, under a secret: see [`semel::secrets`].
    pub fn with_secrets(self, secrets: impl Into<Option<Secrets>>) -> Self {
        let secrets = secrets.into();
        self.configured(|config| config.secrets = secrets)
    }

    /// Names what is done. `http` for everything unless set: the same key on another route is then
    /// a mismatch, because method and path are part of the fingerprint.
    pub fn with_operation(self, name: impl Into<Arc<str>>) -> Self {
        self.configured(|config| config.operation.set_name(name.into()))
    }

    /// Names what is done by the request, for instance by its path: the same key in two operations
    /// then makes two records.
    pub fn with_operation_by(
        self,
        name: impl Fn(&request::Parts) -> String + Send + Sync + 'static,
    ) -> Self {
        self.configured(|config| config.operation.set_function(Arc::new(name)))
    }

    /// How the body enters the fingerprint. [`BodyForm::Json`] unless set.
    pub fn with_body_form(self, form: BodyForm) -> Self {
        self.configured(|config| config.body_form = form)
    }

    /// Fields that enter the fingerprint, besides `Host`, `Content-Type` and `Content-Encoding`.
    pub fn with_fingerprint_headers(
        self,
        names: impl IntoIterator<Item = impl IntoHeaderName>,
    ) -> Self {
        self.configured(|config| {
            config.fingerprint_headers = names.into_iter().map(field).collect();
        })
    }

    /// What of a request is kept with its record, so that operators know what it is about: nothing
    /// unless set. Up to [`Note::MAX_BYTES`](semel::Note::MAX_BYTES), until the record is purged; it
    /// may be personal data.
    ///
    /// ```
    /// # use semel_tower::{IdempotencyLayer, MemoryStore};
    /// use semel_tower::NoteField;
    ///
    /// # let layer = IdempotencyLayer::new(MemoryStore::default());
    /// let amount = NoteField::Json("/amount".into());
    /// layer.with_note([NoteField::Method, NoteField::Path, NoteField::RequestId, amount]);
    /// ```
    pub fn with_note(self, fields: impl IntoIterator<Item = NoteField>) -> Self {
        self.configured(|config| config.note = fields.into_iter().collect())
    }

    /// The field that says for which host a request is, where a proxy in front puts its own into `Host`
    /// and passes the client's on in another field, as `X-Forwarded-Host`. `Host` unless set.
    pub fn with_host_header(self, name: impl IntoHeaderName) -> Self {
        self.configured(|config| config.host_header = field(name))
    }

    /// Makes the fingerprint, in place of [`fingerprint::of_request`](crate::fingerprint::of_request)
    /// with `Host` among its fields: for conventions that leave parts of the request out of it. What is
    /// left out may differ between retries, and the first one's counts.
    ///
    /// The host that a request is for is to be left out where one service has several names, under
    /// which clients retry:
    ///
    /// ```
    /// # use semel_tower::{BodyForm, IdempotencyLayer, MemoryStore, fingerprint};
    /// let layer = IdempotencyLayer::new(MemoryStore::default())
    ///     .with_fingerprint_by(|parts, body| fingerprint::of_request(parts, body, BodyForm::Json, []));
    /// ```
    pub fn with_fingerprint_by(
        self,
        make: impl Fn(&request::Parts, &Bytes) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.configured(|config| config.fingerprinter = Some(Arc::new(make)))
    }

    /// The largest body of a request with a key; a larger one is answered 413. 1 MiB unless set.
    pub fn with_max_request_body(self, bytes: usize) -> Self {
        self.configured(|config| config.max_request_body = bytes)
    }

    /// The largest answer that is kept. Of a larger one, and of a stream, status and fields are
    /// kept; it is never run again. 1 MiB unless set.
    pub fn with_max_response_body(self, bytes: usize) -> Self {
        self.configured(|config| config.max_response_body = bytes)
    }

    /// How many attempts may run at once, on this layer and its clones; an answer that is too large to
    /// be kept is one until it was read to its end. Without bound unless set.
    ///
    /// Beyond it requests with a new key are answered 503 `overloaded`, before anything is claimed.
    /// What is known already is still answered: replays, mismatches, attempts in flight, which are
    /// then not waited for. Duplicates that wait are no attempts, nor are requests without a key.
    pub fn with_max_attempts(self, at_once: usize) -> Self {
        self.configured(|config| config.limits.set_attempts(at_once))
    }

    /// How many bytes of bodies may be held at once, on this layer and its clones: those of requests
    /// with a key, until their attempt is over, and of the answers that are kept, until they are
    /// recorded. Without bound unless set.
    ///
    /// Beyond it requests with a key are answered 503 `overloaded`, before anything is claimed. An
    /// answer is never given up for it: these may add
    /// [`max_response_body`](Self::with_max_response_body) for each
    /// [attempt](Self::with_max_attempts).
    pub fn with_max_body_memory(self, bytes: usize) -> Self {
        self.configured(|config| config.limits.set_body_memory(bytes))
    }

    /// What each scope may use. Without bound unless set.
    ///
    /// Beyond it requests with a new key are answered 429 `limit`, before anything is claimed. What is
    /// known already is still answered, as at [`with_max_attempts`](Self::with_max_attempts), and counts
    /// for nothing: replays, mismatches, attempts in flight.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use semel_tower::{IdempotencyLayer, MemoryStore, Rate, ScopeLimits};
    /// const HOUR: Duration = Duration::from_hours(1);
    /// let limits = ScopeLimits::new()
    ///     .with_new_keys(Rate::per_second(50))
    ///     .with_running(20)
    ///     .with_kept(Rate::new(100 << 20, HOUR));
    /// let layer = IdempotencyLayer::new(MemoryStore::default())
    ///     .with_principal_header("x-account")
    ///     .with_scope_limits(limits);
    /// ```
    pub fn with_scope_limits(self, limits: ScopeLimits) -> Self {
        self.configured(|config| config.limits.set_scopes(limits))
    }

    /// The field that marks replays. `Idempotency-Replayed` unless set.
    pub fn with_replay_header(self, name: impl IntoHeaderName) -> Self {
        self.configured(|config| config.replay_header = Some(field(name)))
    }

    /// Marks replays by no field: their extension [`Replayed`](crate::Replayed) is all that tells them
    /// from first answers.
    pub fn without_replay_header(self) -> Self {
        self.configured(|config| config.replay_header = None)
    }

    /// Fields that are kept though they belong to one transmission, for instance `Set-Cookie`.
    /// Hop-by-hop fields are never kept.
    pub fn with_allowed_replay_headers(
        self,
        names: impl IntoIterator<Item = impl IntoHeaderName>,
    ) -> Self {
        self.configured(|config| {
            config.allowed_replay_headers = names.into_iter().map(field).collect();
        })
    }

    /// What a response of this status means, in place of all that [`Disposition::of`] and a
    /// [classifier](Self::with_classifier) say of it. What a handler puts among the response's
    /// extensions counts before it. May be called again, for other statuses.
    pub fn with_disposition(self, status: StatusCode, disposition: Disposition) -> Self {
        self.configured(|config| {
            config.dispositions.insert(status.as_u16(), disposition);
        })
    }

    /// Decides what becomes of a response, in place of [`Disposition::of`].
    ///
    /// Answers that wrap failures in a 200, like those of GraphQL and JSON-RPC, need this.
    pub fn with_classifier(
        self,
        classify: impl Fn(&Reply<'_>) -> Disposition + Send + Sync + 'static,
    ) -> Self {
        self.configured(|config| config.classifier = Some(Arc::new(classify)))
    }

    /// Decides whether an error of the inner service means that nothing ran
    /// ([`Disposition::Release`]) or that nobody knows (all others). Errors of another type than `E`
    /// are as [`Disposition::of_error`] says.
    pub fn with_error_classifier<E: 'static>(
        self,
        classify: impl Fn(&E) -> Disposition + Send + Sync + 'static,
    ) -> Self {
        let classify = move |error: &dyn Any| error.downcast_ref().map(&classify);
        self.configured(|config| config.error_classifier = Some(Arc::new(classify)))
    }

    /// In which words the layer gives its own answers. [`Dialect::Problem`] unless set.
    pub fn with_dialect(self, dialect: Dialect) -> Self {
        self.configured(|config| config.dialect = dialect)
    }

    /// Where the problems are described: an absolute URI to which a problem's code is appended. It makes
    /// the problem's `type`, and is what it links to. A section of this project's documentation unless
    /// set.
    pub fn with_problem_base(self, uri: impl Into<Cow<'static, str>>) -> Self {
        self.configured(|config| config.problem_base = uri.into())
    }

    fn configured(mut self, set: impl FnOnce(&mut Config)) -> Self {
        set(Arc::make_mut(&mut self.config));
        self
    }
}

/// The name itself, which [`IntoHeaderName`] gives to a map only.
fn field(name: impl IntoHeaderName) -> HeaderName {
    let mut fields = HeaderMap::with_capacity(1);
    fields.insert(name, HeaderValue::from_static(""));
    let mut names = fields.into_iter().filter_map(|(name, _)| name);
    names.next().expect("what was inserted has a name")
}

impl<S, Inner> Layer<Inner> for IdempotencyLayer<S> {
    type Service = Idempotency<Inner, S>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Idempotency::new(
            inner,
            self.guard.clone(),
            Arc::clone(&self.config),
            self.transactions.clone(),
        )
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self {
            guard: self.guard.clone(),
            config: Arc::clone(&self.config),
            transactions: self.transactions.clone(),
        }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("guard", &self.guard)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
