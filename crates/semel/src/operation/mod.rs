//! Operations: how a call's parts become the identity of what is done once.
//!
//! An [`Operation`] declares its name, which parts of the caller its keys belong to, where the key
//! comes from and how long the answer is kept. What a call of it [asks](Operation::asked) a
//! [`Guard`](crate::guard::Guard) runs once. Which strategy when: `docs/keys.md`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use semel::guard::{Done, Guard};
//! use semel::memory::MemoryStore;
//! use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
//! use semel::{KeyRule, store::Retention};
//!
//! // One store, one guard; each operation with its own retention.
//! let guard = Guard::from(MemoryStore::default());
//! let client = KeyFrom::Client(KeyRule::GENERAL);
//! let open = Operation::new("open", [Part::TENANT, Part::ACCOUNT], client)
//!     .with_retention(Retention::PAYMENT);
//! let close = Operation::new("close", [Part::TENANT, Part::ACCOUNT], client);
//!
//! let caller = Caller::new().with(Part::TENANT, "acme").with(Part::ACCOUNT, "a-1");
//! let call = Call::by(&caller).key(Some("request-1")).field("symbol", "ACME");
//! async fn work(answer: &str) -> std::io::Result<String> { Ok(answer.to_owned()) }
//!
//! assert_eq!(guard.run(open.asked(&call)?, |_| work("opened")).await?, Done::Fresh("opened".into()));
//! assert_eq!(guard.run(open.asked(&call)?, |_| work("again")).await?, Done::Replayed("opened".into()));
//! // The same request id for another operation is another record.
//! assert_eq!(guard.run(close.asked(&call)?, |_| work("closed")).await?, Done::Fresh("closed".into()));
//! # Ok(())
//! # }
//! ```

mod call;
mod content;
mod window;

use std::fmt;
use std::time::Duration;

use crate::guard::{Asked, Overrides, Policy};
use crate::store::Retention;
use crate::{Identity, Key, KeyRule, Scope};

pub use call::{Call, CallError, Caller, Part};
pub use window::Aligned;

/// Where the key of an operation comes from.
///
/// Under [`Content`](Self::Content) equal requests are one, meant or not; under
/// [`Fields`](Self::Fields) and [`Scope`](Self::Scope) a request that differs in the rest is a
/// mismatch (R3).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::guard::{Done, Guard, RunError};
/// use semel::memory::MemoryStore;
/// use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
///
/// let guard = Guard::from(MemoryStore::default());
/// let key = KeyFrom::Fields(&["customer", "month"]);
/// let invoice = Operation::new("invoice", [Part::TENANT], key);
/// let caller = Caller::new().with(Part::TENANT, "acme");
/// let of = |cents: u64| {
///     let call = Call::by(&caller).field("customer", "c-1").field("month", "2026-11");
///     call.field("cents", cents)
/// };
/// let write = |_| async { Ok::<_, std::io::Error>("invoice 1".to_owned()) };
///
/// assert_eq!(guard.run(invoice.asked(&of(900))?, write).await?, Done::Fresh("invoice 1".into()));
/// assert_eq!(guard.run(invoice.asked(&of(900))?, write).await?, Done::Replayed("invoice 1".into()));
/// // Not a second invoice for that month.
/// assert!(matches!(guard.run(invoice.asked(&of(901))?, write).await, Err(RunError::Mismatch)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyFrom {
    /// The client sends it, and it keeps this rule. It may be left out, unless the operation
    /// requires it.
    Client(KeyRule),
    /// All fields of the call.
    Content,
    /// These fields of the call, each of which it must have.
    Fields(&'static [&'static str]),
    /// Nothing: once for each scope and operation.
    Scope,
}

/// The key of those who need none.
const ONLY: &str = "once";

#[derive(Debug, Clone, Copy, Default)]
enum Window {
    #[default]
    None,
    Rolling(Duration),
    Aligned(Aligned),
}

/// What is done once, declared once.
#[derive(Clone)]
pub struct Operation {
    name: Box<str>,
    scope: Box<[Part]>,
    key: KeyFrom,
    window: Window,
    overrides: Overrides,
}

impl Operation {
    /// An operation of this name. Its keys belong to the caller's parts in `scope`: the same key
    /// with another value of one of them is another record. Parts that the operation changes while
    /// it runs are left out; an empty scope is shared by all.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use semel::guard::{Done, Guard};
    /// # use semel::memory::MemoryStore;
    /// use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
    /// # use semel::KeyRule;
    /// # let guard = Guard::from(MemoryStore::default());
    /// // It replaces the account: neither the scope nor the fields know of it.
    /// let scope = [Part::TENANT, Part::USER];
    /// let reset = Operation::new("reset", scope, KeyFrom::Client(KeyRule::GENERAL));
    /// let under = |account| {
    ///     let caller = Caller::new().with(Part::TENANT, "acme").with(Part::USER, "u-7");
    ///     Call::by(&caller.with(Part::ACCOUNT, account)).key(Some("reset-1"))
    /// };
    /// let replace = |_| async { Ok::<_, std::io::Error>("a-2".to_owned()) };
    ///
    /// assert_eq!(guard.run(reset.asked(&under("a-1"))?, replace).await?, Done::Fresh("a-2".into()));
    /// // The retry comes under the old account, or already under the new one.
    /// assert_eq!(guard.run(reset.asked(&under("a-1"))?, replace).await?, Done::Replayed("a-2".into()));
    /// assert_eq!(guard.run(reset.asked(&under("a-2"))?, replace).await?, Done::Replayed("a-2".into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(name: &str, scope: impl IntoIterator<Item = Part>, key: KeyFrom) -> Self {
        Self {
            name: name.into(),
            scope: scope.into_iter().collect(),
            key,
            window: Window::default(),
            overrides: Overrides::default(),
        }
    }

    /// How long an outcome is replayed, counted from its completion. The guard's unless set.
    #[must_use]
    pub const fn with_retention(mut self, retention: Retention) -> Self {
        self.overrides.retention = Some(retention);
        self
    }

    /// How long a claim is held without renewal. The guard's unless set.
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.overrides.lease = Some(lease);
        self
    }

    /// Whether calls without a key are refused (R13). The guard's unless set. Only keys of the
    /// client can be missing.
    #[must_use]
    pub const fn with_key_required(mut self, required: bool) -> Self {
        self.overrides.key_required = Some(required);
        self
    }

    /// The whole policy, in place of the guard's. The other setters count above it, in whichever
    /// order they are called.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.overrides.policy = Some(policy);
        self
    }

    /// Equal requests are one until `window` after the first was completed, by the store's clock
    /// (R6). The window is the retention, whatever that was set to; the identity has no window in
    /// it, so that no boundary can come between an attempt and its retry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{sync::Arc, time::Duration};
    /// use semel::guard::{Done, Guard};
    /// use semel::memory::{Limits, MemoryStore};
    /// use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
    /// use semel::{ManualClock, Timestamp};
    ///
    /// let clock = Arc::new(ManualClock::new(Timestamp::default()));
    /// let store = MemoryStore::with_clock(Limits::default(), clock.clone());
    /// let guard = Guard::from(store);
    /// let resend = Operation::new("resend_receipt", [Part::USER], KeyFrom::Content)
    ///     .rolling(Duration::from_mins(5));
    /// let call = Call::by(&Caller::new().with(Part::USER, "u-7")).field("order", 4711);
    /// let send = |_| async { Ok::<_, std::io::Error>(()) };
    ///
    /// assert_eq!(guard.run(resend.asked(&call)?, send).await?, Done::Fresh(()));
    /// clock.advance(Duration::from_secs(299));
    /// assert_eq!(guard.run(resend.asked(&call)?, send).await?, Done::Replayed(()));
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(guard.run(resend.asked(&call)?, send).await?, Done::Fresh(()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn rolling(mut self, window: Duration) -> Self {
        self.window = Window::Rolling(window);
        self
    }

    /// Requests whose intents were made in the same window are one. Every call, a retry too, says
    /// when its intent was made ([`Call::made_at`]). Answers are kept for two windows at least, and
    /// for longer where the retention is.
    #[must_use]
    pub const fn aligned(mut self, every: Aligned) -> Self {
        self.window = Window::Aligned(every);
        self
    }

    /// The name of what is done.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `call` asks a [`Guard`](crate::guard::Guard) for, under this operation's policy. Without
    /// a key of the client's it runs plainly, unless the operation requires one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use semel::guard::{Done, Guard, RunError};
    /// # use semel::memory::MemoryStore;
    /// # use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
    /// # use semel::KeyRule;
    /// # let guard = Guard::from(MemoryStore::default());
    /// let start = Operation::new("start", [Part::USER], KeyFrom::Client(KeyRule::STRICT));
    /// let required = start.clone().with_key_required(true);
    /// let call = Call::by(&Caller::new().with(Part::USER, "u-7"));
    /// let work = |_| async { Ok::<_, std::io::Error>(()) };
    ///
    /// // Without a key it runs as often as it is called, and nothing is stored.
    /// assert_eq!(guard.run(start.asked(&call)?, work).await?, Done::Unprotected(()));
    /// assert!(guard.store().is_empty());
    /// let refused = guard.run(required.asked(&call)?, work).await;
    /// assert!(matches!(refused, Err(RunError::KeyRequired)));
    /// // With one, nothing is replayed as nothing.
    /// let call = call.key(Some("challenge:2026-11"));
    /// assert_eq!(guard.run(start.asked(&call)?, work).await?, Done::Fresh(()));
    /// assert_eq!(guard.run(start.asked(&call)?, work).await?, Done::Replayed(()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CallError`]: the call does not have what this operation needs.
    pub fn asked(&self, call: &Call) -> Result<Asked, CallError> {
        let fingerprint = call.content().fingerprint();
        let mut asked = match self.identity(call)? {
            Some(identity) => Asked::new(identity, fingerprint),
            None => Asked::unkeyed(fingerprint),
        };
        asked.overrides = self.overrides();
        Ok(asked)
    }

    /// The policy of its calls on a guard with that of `guard`.
    pub fn policy(&self, guard: &Policy) -> Policy {
        self.overrides().over(*guard)
    }

    fn overrides(&self) -> Overrides {
        let mut overrides = self.overrides;
        match self.window {
            Window::None => {}
            Window::Rolling(window) => overrides.retention = Some(Retention::new(window)),
            Window::Aligned(every) => overrides.replay_at_least = every.kept(),
        }
        overrides
    }

    fn identity(&self, call: &Call) -> Result<Option<Identity>, CallError> {
        let key = match self.key {
            KeyFrom::Client(rule) => match call.client_key() {
                Some(text) => rule.parse(text)?,
                None => return Ok(None),
            },
            KeyFrom::Content => key(&call.content().key_of_all())?,
            KeyFrom::Fields(names) => key(&call.content().key_of(names)?)?,
            KeyFrom::Scope => key(ONLY)?,
        };
        // A name before each value, the window's three last: no two lists are the same segments.
        let mut segments = Vec::with_capacity(2 * self.scope.len() + 3);
        for part in &self.scope {
            let value = call.caller().value(*part);
            let value = value.ok_or(CallError::MissingPart(part.name()))?;
            segments.push(part.name().to_owned());
            segments.push(value.to_owned());
        }
        if let Window::Aligned(every) = self.window {
            let made = call.intent_time().ok_or(CallError::MissingTime)?;
            segments.extend(every.segments(made));
        }
        Ok(Some(Identity::new(Scope::new(segments), &self.name, key)))
    }
}

fn key(ours: &str) -> Result<Key, CallError> {
    Ok(Key::new(ours)?)
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("scope", &self.scope)
            .field("key", &self.key)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
