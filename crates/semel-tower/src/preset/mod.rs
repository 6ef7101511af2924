//! Published conventions, each as one setting.
//!
//! A preset says where the key is, whose it is, what makes two requests the same, which failures are
//! kept, in which words the layer refuses, how replays are marked, and how long answers are replayed.
//! It is data ([`Convention`]): the code is the same for all of them.

pub(crate) mod adcp;
mod dialect;
mod first_sent;
pub(crate) mod members;
mod table;
pub(crate) mod unmark;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderName;
use semel::KeyRule;
use semel::guard::Policy;
use semel::store::Retention;
use serde_json::{Value, json};

use crate::header::Syntax;
use crate::policy::Disposition;

pub use adcp::adcp_payload_hash;
pub use dialect::Dialect;
use first_sent::AHEAD;
pub(crate) use first_sent::{FIRST_SENT, check as check_first_sent};

/// A published convention for idempotency keys: what
/// [`IdempotencyLayer::preset`](crate::IdempotencyLayer::preset) sets. What each of them sets stands in
/// `docs/presets.md`, which a test compares with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// `ietf`: draft-ietf-httpapi-idempotency-key-header, keys also without quotes. What the layer
    /// does unless told otherwise.
    Ietf,
    /// `ietf-strict`: the same, and keys are quoted, as the draft has it.
    IetfStrict,
    /// `stripe-v1`: Stripe's API v1. Failures of the server are replayed, too.
    StripeV1,
    /// `stripe-v2`: Stripe's API v2. What failed runs again.
    StripeV2,
    /// `adcp`: the Ad Context Protocol. The key is a member of the JSON body.
    Adcp,
    /// `acp`: the Agentic Commerce Protocol.
    Acp,
    /// `iceberg`: the REST catalog of Apache Iceberg.
    Iceberg,
    /// `oasis`: Repeatable Requests 1.0, as Azure has it.
    Oasis,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 8] = [
        Self::Ietf,
        Self::IetfStrict,
        Self::StripeV1,
        Self::StripeV2,
        Self::Adcp,
        Self::Acp,
        Self::Iceberg,
        Self::Oasis,
    ];

    /// The name in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ietf => "ietf",
            Self::IetfStrict => "ietf-strict",
            Self::StripeV1 => "stripe-v1",
            Self::StripeV2 => "stripe-v2",
            Self::Adcp => "adcp",
            Self::Acp => "acp",
            Self::Iceberg => "iceberg",
            Self::Oasis => "oasis",
        }
    }

    /// How long answers are replayed, and what comes after, unless set otherwise.
    pub const fn retention(self) -> Retention {
        self.convention().retention
    }

    /// How long an answer is kept that is to be replayed for so long. `oasis` takes requests that were
    /// first sent by a clock that is ahead, and their answers outlast them.
    #[must_use]
    pub const fn kept_for(self, retention: Retention) -> Retention {
        let ahead = match self.convention().first_sent {
            true => AHEAD,
            false => Duration::ZERO,
        };
        Retention {
            replay: retention.replay.saturating_add(ahead),
            ..retention
        }
    }

    /// Whether a key is required unless set otherwise.
    pub const fn key_required(self) -> bool {
        self.convention().key_required
    }

    /// The field that carries the key, unless it is in the body or set otherwise.
    pub fn key_header(self) -> Option<HeaderName> {
        match self.convention().key {
            Carrier::Field(name) => Some(HeaderName::from_static(name)),
            Carrier::Member(_) => None,
        }
    }

    /// The member of a JSON body that is the key, unless it is in a field or set otherwise.
    pub const fn key_member(self) -> Option<&'static str> {
        match self.convention().key {
            Carrier::Field(_) => None,
            Carrier::Member(name) => Some(name),
        }
    }

    /// Which forms of the field are accepted unless set otherwise.
    pub const fn syntax(self) -> Syntax {
        self.convention().syntax
    }

    /// Which keys are accepted unless set otherwise.
    pub const fn key_rule(self) -> KeyRule {
        self.convention().key_rule
    }

    /// The methods whose keys count unless set otherwise; all but safe ones where none are named.
    pub const fn methods(self) -> &'static [&'static str] {
        self.convention().methods
    }

    /// Whether method and path belong to the scope unless set otherwise.
    pub const fn scope_target(self) -> bool {
        self.convention().scope_target
    }

    /// Whether all of a request counts in its fingerprint. Where the convention says what does, neither the
    /// [form of the body](crate::IdempotencyLayer::with_body_form) nor
    /// [more fields](crate::IdempotencyLayer::with_fingerprint_headers) can be set.
    pub const fn compares_requests(self) -> bool {
        matches!(self.convention().content, Content::Request)
    }

    /// In which words it refuses unless set otherwise.
    pub const fn dialect(self) -> Dialect {
        self.convention().dialect
    }

    /// The field that marks replays unless set otherwise.
    pub fn replay_header(self) -> Option<HeaderName> {
        self.convention().mark.map(HeaderName::from_static)
    }

    /// The fields of a request that it reads, besides those that all read: proxies must not lose them.
    pub fn fields(self) -> impl Iterator<Item = HeaderName> {
        let convention = self.convention();
        let scope = convention.scope_fields.iter();
        let scope = scope.copied().map(HeaderName::from_static);
        let names = self.key_header().into_iter().chain(scope);
        names.chain(convention.first_sent.then_some(FIRST_SENT))
    }

    /// This policy with what the convention says of it: retention, and whether a key is required.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Policy {
        policy
            .with_retention(self.retention())
            .with_key_required(self.key_required())
    }

    /// Whether the convention allows that answers are replayed for this long.
    ///
    /// # Errors
    /// [`RetentionError`] says what it allows.
    pub fn check(self, retention: Retention) -> Result<(), RetentionError> {
        let (least, most) = self.convention().bounds;
        let replay = retention.replay;
        match replay < least || replay > most {
            true => Err(RetentionError {
                preset: self,
                replay,
                least,
                most,
            }),
            false => Ok(()),
        }
    }

    /// What a service has to declare to its clients if answers are replayed for this long: see
    /// [`IdempotencyLayer::declaration`](crate::IdempotencyLayer::declaration).
    ///
    /// # Errors
    /// As of [`check`](Self::check).
    pub fn declaration(self, retention: Retention) -> Result<Option<Value>, RetentionError> {
        self.check(retention)?;
        let seconds = retention.replay.as_secs();
        Ok(match self {
            Self::Adcp => Some(json!({"supported": true, "replay_ttl_seconds": seconds})),
            Self::Iceberg => {
                let lifetime = iso_8601(seconds);
                Some(json!({"idempotency-key-lifetime": lifetime}))
            }
            _ => None,
        })
    }

    pub(crate) const fn convention(self) -> &'static Convention {
        match self {
            Self::Ietf => &table::IETF,
            Self::IetfStrict => &table::IETF_STRICT,
            Self::StripeV1 => &table::STRIPE_V1,
            Self::StripeV2 => &table::STRIPE_V2,
            Self::Adcp => &table::ADCP,
            Self::Acp => &table::ACP,
            Self::Iceberg => &table::ICEBERG,
            Self::Oasis => &table::OASIS,
        }
    }
}

/// A duration in hours, minutes and seconds (ISO 8601, section 5.5.2).
fn iso_8601(seconds: u64) -> String {
    let parts = [
        (seconds / 3600, 'H'),
        (seconds / 60 % 60, 'M'),
        (seconds % 60, 'S'),
    ];
    let mut text = "PT".to_owned();
    for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("{count}{unit}"));
    }
    if seconds == 0 {
        text.push_str("0S");
    }
    text
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let mut all = Self::ALL.into_iter();
        all.find(|preset| preset.as_str() == name)
            .ok_or(UnknownPreset)
    }
}

/// There is no preset of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownPreset;

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such preset; there are ")?;
        for (nth, preset) in Preset::ALL.iter().enumerate() {
            let comma = if nth > 0 { ", " } else { "" };
            write!(f, "{comma}{preset}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownPreset {}

/// Answers would be replayed for a time that the convention does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionError {
    /// Which convention.
    pub preset: Preset,
    /// How long they would be replayed.
    pub replay: Duration,
    /// The shortest time allowed.
    pub least: Duration,
    /// The longest time allowed.
    pub most: Duration,
}

impl fmt::Display for RetentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            preset,
            replay,
            least,
            most,
        } = *self;
        write!(
            f,
            "the preset {preset} replays answers for {} s at least",
            least.as_secs()
        )?;
        if most < Duration::MAX {
            write!(f, " and {} s at most", most.as_secs())?;
        }
        write!(f, ", not for {} s", replay.as_secs_f64())
    }
}

impl std::error::Error for RetentionError {}

/// Everything that a published convention says.
#[derive(Debug)]
pub(crate) struct Convention {
    pub(crate) key: Carrier,
    pub(crate) syntax: Syntax,
    pub(crate) key_rule: KeyRule,
    pub(crate) key_required: bool,
    /// The methods whose keys count; all but safe ones where none are named.
    pub(crate) methods: &'static [&'static str],
    /// Fields that belong to the scope, besides the principal.
    pub(crate) scope_fields: &'static [&'static str],
    /// The same key on another method or path is another record, and not a mismatch.
    pub(crate) scope_target: bool,
    pub(crate) content: Content,
    pub(crate) first_sent: bool,
    /// What failures mean that mean something else by default: from one status to another.
    pub(crate) statuses: &'static [(u16, u16, Disposition)],
    pub(crate) dialect: Dialect,
    /// The field that marks replays.
    pub(crate) mark: Option<&'static str>,
    pub(crate) retention: Retention,
    /// How long answers may be replayed, from and to.
    pub(crate) bounds: (Duration, Duration),
    /// Whether how long they are is told to clients: no answer is kept for less.
    pub(crate) is_declared: bool,
}

/// Where the key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Field(&'static str),
    /// A member of the JSON object that is the body.
    Member(&'static str),
}

/// What makes two requests the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// The whole of it: [`fingerprint::of_request`](crate::fingerprint::of_request).
    Request,
    /// The body, as JSON where it is some.
    Body,
    /// [`adcp::payload_hash`], and what the request is for.
    Adcp,
}

impl Convention {
    /// What a status means, where the convention says so.
    pub(crate) fn disposition(&self, status: StatusCode) -> Option<Disposition> {
        let status = status.as_u16();
        let mut statuses = self.statuses.iter();
        let found = statuses.find(|(from, to, _)| (*from..=*to).contains(&status));
        found.map(|(.., disposition)| *disposition)
    }
}
