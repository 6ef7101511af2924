//! The conventions. Where each fact is from stands in `docs/presets.md`.

use std::time::Duration;

use semel::KeyRule;
use semel::store::Retention;

use super::{Carrier, Content, Convention, Dialect};
use crate::header::Syntax;
use crate::policy::Disposition;

const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

const DAY: Duration = Duration::from_hours(24);
const A_DAY_AT_LEAST: (Duration, Duration) = (DAY, Duration::MAX);

/// What the layer does unless told otherwise. The others say how they differ.
const DEFAULT: Convention = Convention {
    key: Carrier::Field("idempotency-key"),
    syntax: Syntax::Lenient,
    key_rule: KeyRule::GENERAL,
    key_required: false,
    methods: &[],
    scope_fields: &[],
    scope_target: false,
    content: Content::Request,
    first_sent: false,
    statuses: &[],
    dialect: Dialect::Problem,
    mark: Some("idempotency-replayed"),
    retention: Retention::ORDER,
    bounds: (Duration::ZERO, Duration::MAX),
    is_declared: false,
};

pub(super) static IETF: Convention = DEFAULT;

pub(super) static IETF_STRICT: Convention = Convention {
    syntax: Syntax::Strict,
    ..DEFAULT
};

pub(super) static STRIPE_V1: Convention = Convention {
    scope_fields: &["stripe-account"],
    // 502, 503 and 504 are no answers of the one who works: they mean what they mean elsewhere.
    statuses: &[
        (500, 501, Disposition::KeepFailure),
        (505, 599, Disposition::KeepFailure),
    ],
    dialect: Dialect::Stripe,
    mark: Some(IDEMPOTENT_REPLAYED),
    bounds: A_DAY_AT_LEAST,
    ..DEFAULT
};

pub(super) static STRIPE_V2: Convention = Convention {
    scope_fields: &["stripe-account", "stripe-context"],
    statuses: &[(400, 599, Disposition::Release)],
    dialect: Dialect::Stripe,
    mark: Some(IDEMPOTENT_REPLAYED),
    retention: Retention::new(DAY.saturating_mul(30)),
    bounds: A_DAY_AT_LEAST,
    ..DEFAULT
};

pub(super) static ADCP: Convention = Convention {
    key: Carrier::Member("idempotency_key"),
    key_rule: KeyRule::STRICT,
    key_required: true,
    content: Content::Adcp,
    statuses: &[(400, 599, Disposition::Release)],
    dialect: Dialect::Adcp,
    retention: Retention::new(DAY).with_tombstone(DAY.saturating_mul(7)),
    bounds: (Duration::from_hours(1), DAY.saturating_mul(7)),
    is_declared: true,
    ..DEFAULT
};

pub(super) static ACP: Convention = Convention {
    key_required: true,
    scope_target: true,
    content: Content::Body,
    statuses: &[(500, 599, Disposition::Release)],
    dialect: Dialect::Acp,
    mark: Some(IDEMPOTENT_REPLAYED),
    bounds: A_DAY_AT_LEAST,
    ..DEFAULT
};

pub(super) static ICEBERG: Convention = Convention {
    key_rule: KeyRule::UUID_V7,
    scope_target: true,
    // 419: the catalog's word for credentials that ran out.
    statuses: &[
        (419, 419, Disposition::Release),
        (500, 599, Disposition::Release),
    ],
    dialect: Dialect::Iceberg,
    mark: None,
    is_declared: true,
    ..DEFAULT
};

pub(super) static OASIS: Convention = Convention {
    key: Carrier::Field("repeatability-request-id"),
    // Asked to do it for others, a server that cannot has to say so.
    methods: &["POST", "PUT", "PATCH", "DELETE"],
    scope_fields: &["repeatability-client-id"],
    first_sent: true,
    statuses: &[(500, 599, Disposition::Release)],
    dialect: Dialect::Odata,
    mark: None,
    bounds: (Duration::from_mins(5), Duration::MAX),
    ..DEFAULT
};
