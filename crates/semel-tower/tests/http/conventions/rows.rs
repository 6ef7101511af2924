//! The matrix of the checklist's section I: what each preset is expected to do. It is not made of the
//! code that it is held against.

/// Where the key is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Carrier {
    Quoted(&'static str),
    Bare(&'static str),
    Member(&'static str),
}

/// What becomes of the next request with the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Runs,
    Replay,
    Mismatch,
}

/// How a replay is marked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    None,
    Field(&'static str),
    /// `replayed: true` in the JSON body.
    Envelope,
}

/// Status and code of an answer of the layer itself.
pub(crate) type Says = (u16, &'static str);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) preset: &'static str,
    pub(crate) carrier: Carrier,
    /// A key that the convention does not take, as it is sent.
    pub(crate) bad_key: &'static str,
    /// Fields of every request; `{now}` is the present date.
    pub(crate) fields: &'static [(&'static str, &'static str)],
    /// Fields that belong to the scope.
    pub(crate) scope: &'static [&'static str],
    /// Where a body says what went wrong, and its media type.
    pub(crate) code: (&'static str, &'static str),
    /// What a request without a key gets; none where it runs.
    pub(crate) missing: Option<Says>,
    pub(crate) invalid: Says,
    pub(crate) mismatch: Says,
    /// Where the body has the kind of error that a mismatch is.
    pub(crate) mismatch_type: Option<(&'static str, &'static str)>,
    pub(crate) in_flight: Says,
    /// After a 500 of the handler.
    pub(crate) after_500: Then,
    /// After a 422 of the handler.
    pub(crate) after_422: Then,
    /// After others.
    pub(crate) after: &'static [(u16, Then)],
    /// With the key of another route.
    pub(crate) other_route: Then,
    pub(crate) mark: Mark,
    /// How long answers are replayed, in seconds, and what comes then.
    pub(crate) replayed_for: u64,
    pub(crate) then: Afterwards,
    /// The shortest and the longest time allowed, in seconds.
    pub(crate) bounds: (u64, Option<u64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Afterwards {
    New,
    Refused(u16, &'static str),
}

const KEY: &str = "idempotency-key";
const DAY: u64 = 86_400;
const PROBLEM: (&str, &str) = ("/code", "application/problem+json");

const IETF: Row = Row {
    preset: "ietf",
    carrier: Carrier::Bare(KEY),
    bad_key: "a b",
    fields: &[],
    scope: &[],
    code: PROBLEM,
    missing: None,
    invalid: (400, "invalid-key"),
    mismatch: (422, "mismatch"),
    mismatch_type: None,
    in_flight: (409, "in-flight"),
    after_500: Then::Runs,
    after_422: Then::Replay,
    after: &[(501, Then::Runs), (505, Then::Runs), (419, Then::Replay)],
    other_route: Then::Mismatch,
    mark: Mark::Field("idempotency-replayed"),
    replayed_for: DAY,
    then: Afterwards::New,
    bounds: (0, None),
};

const STRIPE_V1: Row = Row {
    preset: "stripe-v1",
    scope: &["stripe-account"],
    code: ("/error/code", "application/json"),
    invalid: (400, "idempotency_key_invalid"),
    mismatch: (400, "idempotency_key_reused"),
    mismatch_type: Some(("/error/type", "idempotency_error")),
    in_flight: (409, "idempotency_key_in_use"),
    after_500: Then::Replay,
    after: &[
        (501, Then::Replay),
        (505, Then::Replay),
        (599, Then::Replay),
    ],
    mark: Mark::Field("idempotent-replayed"),
    bounds: (DAY, None),
    ..IETF
};

pub(crate) const ROWS: [Row; 8] = [
    IETF,
    Row {
        preset: "ietf-strict",
        carrier: Carrier::Quoted(KEY),
        bad_key: "0192f5a0-7c1e-7abc-8def-0123456789ab",
        ..IETF
    },
    STRIPE_V1,
    Row {
        preset: "stripe-v2",
        scope: &["stripe-account", "stripe-context"],
        after_500: Then::Runs,
        after_422: Then::Runs,
        after: &[(501, Then::Runs), (599, Then::Runs)],
        replayed_for: 30 * DAY,
        ..STRIPE_V1
    },
    Row {
        preset: "adcp",
        carrier: Carrier::Member("idempotency_key"),
        bad_key: "too-short",
        code: ("/error/code", "application/json"),
        missing: Some((400, "INVALID_REQUEST")),
        invalid: (400, "INVALID_REQUEST"),
        mismatch: (422, "IDEMPOTENCY_CONFLICT"),
        in_flight: (409, "IDEMPOTENCY_IN_FLIGHT"),
        after_422: Then::Runs,
        after: &[(501, Then::Runs), (404, Then::Runs)],
        mark: Mark::Envelope,
        then: Afterwards::Refused(409, "IDEMPOTENCY_EXPIRED"),
        bounds: (3600, Some(7 * DAY)),
        ..IETF
    },
    Row {
        preset: "acp",
        code: ("/code", "application/json"),
        missing: Some((400, "idempotency_key_required")),
        invalid: (400, "idempotency_key_invalid"),
        mismatch: (422, "idempotency_conflict"),
        mismatch_type: Some(("/type", "invalid_request")),
        in_flight: (409, "idempotency_in_flight"),
        other_route: Then::Runs,
        mark: Mark::Field("idempotent-replayed"),
        bounds: (DAY, None),
        ..IETF
    },
    Row {
        preset: "iceberg",
        // A UUID, but of version 4.
        bad_key: "8e03978e-40d5-43dd-bc93-6894a57f9324",
        code: ("/error/type", "application/json"),
        invalid: (400, "BadRequestException"),
        mismatch: (422, "UnprocessableEntityException"),
        in_flight: (409, "ConflictException"),
        after: &[(501, Then::Runs), (599, Then::Runs), (419, Then::Runs)],
        other_route: Then::Runs,
        mark: Mark::None,
        ..IETF
    },
    Row {
        preset: "oasis",
        carrier: Carrier::Bare("repeatability-request-id"),
        fields: &[("repeatability-first-sent", "{now}")],
        scope: &["repeatability-client-id"],
        code: ("/error/code", "application/json"),
        invalid: (400, "InvalidKey"),
        mismatch: (400, "Mismatch"),
        in_flight: (409, "InFlight"),
        mark: Mark::Field("repeatability-result"),
        then: Afterwards::Refused(412, "OutsideWindow"),
        bounds: (300, None),
        ..IETF
    },
];
