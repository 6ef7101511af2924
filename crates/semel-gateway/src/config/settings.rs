//! The one list of settings, from which flags, environment and file are read.

use clap::Arg;
use clap::builder::ArgAction;

use crate::telemetry::ENDPOINTS;

/// Something that an operator can set: the flag `--name`, the variable `SEMEL_NAME` and the key
/// `name` of the configuration file.
#[derive(Debug)]
pub struct Setting {
    /// The flag without its dashes; the key in the file.
    pub name: &'static str,
    /// What the value is called in the help; `None` for a switch.
    pub value: Option<&'static str>,
    /// What holds where nobody says otherwise.
    pub default: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
    /// Whether there can be several values: the flag more than once, commas, a list in the file.
    pub list: bool,
    /// Where it can be said, and when.
    pub reach: Reach,
}

/// Where a setting can be said, and whether it follows the file when that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// At the top, and read when the program starts: unless something else is said.
    Start,
    /// At the top.
    Gateway,
    /// At the top, and in a route.
    Route,
    /// The same, unless the route is forwarded plainly.
    Protected,
}

impl Setting {
    /// The key in a route.
    pub fn route_key(&self) -> &'static str {
        match self.name {
            "scope-header" => "scope",
            name => name,
        }
    }

    /// Whether a route can say it.
    pub const fn is_for_routes(&self) -> bool {
        matches!(self.reach, Reach::Route | Reach::Protected)
    }

    /// Whether it says nothing of requests that are forwarded plainly.
    pub(crate) fn needs_key(&self) -> bool {
        self.reach == Reach::Protected
    }

    const fn at(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// The variable in the environment.
    pub fn variable(&self) -> String {
        format!("SEMEL_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// What else in the environment says it, where the variable is not set: names that others have given it.
    pub(crate) const fn other_variables(&self) -> &'static [&'static str] {
        match self.name.as_bytes() {
            b"otlp-endpoint" => &ENDPOINTS,
            _ => &[],
        }
    }

    pub(crate) fn arg(&self) -> Arg {
        let mut help = self.help.to_owned();
        if let Some(default) = self.default {
            help.push_str(&format!(" [default: {default}]"));
        }
        help.push_str(&format!(" [env: {}]", self.variable()));
        let arg = Arg::new(self.name).long(self.name).help(help);
        match self.value {
            Some(value) if self.list => arg.value_name(value).action(ArgAction::Append),
            // So that `--ttl -1s` is told beside what else is wrong.
            Some(value @ ("DUR" | "SIZE" | "N")) => arg.value_name(value).allow_hyphen_values(true),
            Some(value) => arg.value_name(value),
            // `--require-key=false` takes back what the environment or the file says.
            None => arg
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
        }
    }
}

pub(crate) const fn setting(
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting {
        name,
        value: Some(value),
        default,
        help,
        list: false,
        reach: Reach::Start,
    }
}

pub(crate) const fn list(name: &'static str, value: &'static str, help: &'static str) -> Setting {
    Setting {
        list: true,
        ..setting(name, value, None, help)
    }
}

const fn switch(name: &'static str, help: &'static str) -> Setting {
    Setting {
        name,
        value: None,
        default: None,
        help,
        list: false,
        reach: Reach::Start,
    }
}

/// Every setting of `semel serve`.
pub const SETTINGS: [Setting; 79] = [
    list(
        "upstream",
        "URL",
        "The service that requests go to: http://, https:// or h2c://, as in http://127.0.0.1:9000 (required without routes)",
    ).at(Reach::Route),
    setting(
        "listen",
        "ADDR",
        Some("127.0.0.1:8080"),
        "Where clients connect; port 0 takes a free one",
    ),
    setting(
        "admin",
        "ADDR",
        Some("127.0.0.1:8081"),
        "Where operators and probes connect",
    ),
    list(
        "admin-host",
        "NAMES",
        "Host names that it answers to, separated by commas, besides localhost and addresses",
    ),
    setting(
        "audit-retention",
        "DUR",
        Some("400d"),
        "How long it is kept what operators and reconcilers did, at least",
    ),
    list(
        "four-eyes",
        "ACTIONS",
        "What one operator proposes and another confirms: resolve, release, extend, erase, purge, reveal",
    ),
    setting(
        "store",
        "URL",
        Some("file:./semel-data"),
        "Where records are kept: file:PATH, memory:, sqlite:PATH, postgres://…, redis://… and others",
    ),
    setting(
        "encryption-keys",
        "SOURCE",
        None,
        "The keys that answers are encrypted with: a file, env:NAME or exec:COMMAND; a line each, a name and 32 bytes as base64, the one in use first",
    ),
    setting(
        "identity-keys",
        "SOURCE",
        None,
        "The secrets that keys and bodies are digested with, likewise: one, or two while one replaces the other",
    ),
    setting(
        "large-answers",
        "URL",
        None,
        "Where answers are kept that are too large for the store: file:FOLDER, or s3://BUCKET/PREFIX?region=…&endpoint=…",
    ),
    setting(
        "large-answers-above",
        "SIZE",
        Some("256KiB"),
        "The largest answer that is kept in the store, with --large-answers",
    ),
    setting(
        "service",
        "NAME",
        Some("default"),
        "The name of the service, part of every identity: services that share a store need one each",
    ).at(Reach::Protected),
    setting(
        "config",
        "FILE",
        None,
        "A TOML file with any of these settings, and with routes",
    ),
    setting(
        "preset",
        "NAME",
        Some("ietf"),
        "The published convention that clients follow: ietf, ietf-strict, stripe-v1, stripe-v2, adcp, acp, iceberg or oasis",
    ).at(Reach::Protected),
    setting(
        "key-header",
        "NAME",
        Some("idempotency-key"),
        "The field that carries the key",
    ).at(Reach::Protected),
    setting(
        "key-member",
        "NAME",
        None,
        "The member of a JSON body that is the key, in place of a field",
    ).at(Reach::Protected),
    setting(
        "key-syntax",
        "lenient|strict",
        Some("lenient"),
        "Which forms of the field are accepted: quoted or bare, or quoted only",
    ).at(Reach::Protected),
    setting(
        "key-rule",
        "general|strict|uuid-v7",
        Some("general"),
        "Which keys are accepted: 1 to 255 bytes, [A-Za-z0-9_.:-]{16,255}, or UUIDs of version 7",
    ).at(Reach::Protected),
    setting(
        "key-max",
        "N",
        Some("255"),
        "The longest key that is accepted, in bytes; 255 at most",
    ).at(Reach::Protected),
    list(
        "key-methods",
        "METHOD",
        "The methods whose keys count; all but GET, HEAD, OPTIONS and TRACE unless set",
    ).at(Reach::Protected),
    switch(
        "scope-target",
        "Method and path belong to the scope: the same key on another path is another record, and no mismatch",
    ).at(Reach::Protected),
    setting(
        "body-form",
        "json|raw",
        Some("json"),
        "How JSON bodies are compared: by what they say, or byte for byte",
    ).at(Reach::Protected),
    list(
        "fingerprint-header",
        "NAME",
        "Fields that two requests must have in common to be the same, besides those that always count; or none",
    ).at(Reach::Protected),
    setting(
        "dialect",
        "problem|stripe|adcp|acp|iceberg|odata",
        Some("problem"),
        "In which words requests are refused: problem details, or the errors of a convention",
    ).at(Reach::Protected),
    setting(
        "replay-header",
        "NAME",
        Some("idempotency-replayed"),
        "The field that marks replays; none: no field does",
    ).at(Reach::Protected),
    list(
        "kept-header",
        "NAME",
        "Fields of answers that are replayed though they belong to one transmission, such as Set-Cookie; or none",
    ).at(Reach::Protected),
    setting(
        "mode",
        "enforce|observe",
        Some("enforce"),
        "Whether operations are made to happen once, or requests only observed: nothing is refused, replayed or changed",
    ).at(Reach::Protected),
    switch(
        "require-key",
        "Refuse requests of unsafe methods that have no key",
    ).at(Reach::Protected),
    setting(
        "lease",
        "DUR",
        Some("30s"),
        "How long an attempt counts as running after its last renewal",
    ).at(Reach::Protected),
    setting(
        "ttl",
        "DUR",
        Some("24h"),
        "How long answers are replayed, from completion; or payment, order, email, api, webhook",
    ).at(Reach::Protected),
    setting(
        "tombstone",
        "DUR",
        Some("0s"),
        "How long after that a retry is refused as expired, before its key is new again",
    ).at(Reach::Protected),
    setting(
        "wait",
        "DUR",
        Some("0s"),
        "How long a duplicate waits for the attempt in flight before it is answered 409",
    ).at(Reach::Protected),
    setting(
        "on-lost",
        "hold|retry|reconcile",
        Some("hold"),
        "What becomes of a lost attempt: held until it is resolved, run again, or asked about",
    ).at(Reach::Protected),
    setting(
        "reconciler",
        "URL",
        None,
        "The endpoint to ask about lost attempts, with --on-lost reconcile",
    ),
    setting(
        "max-body",
        "SIZE",
        Some("1MiB"),
        "The largest body of a request with a key, and the largest answer that is kept",
    ).at(Reach::Protected),
    setting(
        "body-timeout",
        "DUR",
        Some("60s"),
        "How long a request's body may take, plus a second for each 16 KiB of it; 0s: for ever",
    ).at(Reach::Gateway),
    setting(
        "max-body-memory",
        "SIZE",
        Some("256MiB"),
        "How many bytes of bodies are held in memory at once; 503 beyond",
    ),
    setting(
        "max-attempts",
        "N",
        Some("1024"),
        "How many requests with a key run at once; 503 for new keys beyond",
    ),
    setting(
        "max-connections",
        "N",
        Some("10000"),
        "How many connections clients may have open; others wait",
    ),
    setting(
        "max-waiting",
        "N",
        Some("1024"),
        "How many calls of the claim API wait for an attempt in flight at once; others do not wait",
    ),
    list(
        "principal",
        "jwt|auth|certificate",
        "What says who the caller is, verified by the gateway; with commas, all of them together",
    ).at(Reach::Protected),
    list(
        "scope-header",
        "NAME",
        "The field that names the principal, in place of a digest of Authorization; Host, and more behind a comma, narrow it",
    ).at(Reach::Protected),
    switch(
        "trusted-scope",
        "Take the fields of --scope-header from peers of --trust-forwarded only, and remove others'",
    ).at(Reach::Protected),
    Setting {
        default: Some("method,route,request-id,trace-id"),
        ..list(
            "note",
            "FIELD",
            "What of a request is kept with its record for operators, besides: path, header:NAME, json:/POINTER; or none",
        )
    }.at(Reach::Protected),
    switch(
        "require-principal",
        "Refuse requests with a key and without a principal",
    ).at(Reach::Protected),
    setting(
        "upstream-timeout",
        "DUR",
        Some("60s"),
        "How long the upstream may be silent; 504 beyond; 0s: for ever",
    ).at(Reach::Route),
    setting(
        "upstream-health",
        "PATH",
        None,
        "The path that upstreams are asked every 2 s whether they can be used, as in /healthz",
    )
    .at(Reach::Route),
    setting(
        "upstream-ca",
        "FILE",
        None,
        "Who signs the certificates of https:// upstreams and reconcilers, in PEM, in place of the system's roots",
    ),
    setting(
        "upstream-cert",
        "FILE",
        None,
        "The certificate for https:// upstreams and reconcilers that ask for one, with its chain, in PEM; with --upstream-key",
    ),
    setting(
        "upstream-key",
        "FILE",
        None,
        "The private key of --upstream-cert, in PEM",
    ),
    list(
        "trust-forwarded",
        "ADDR[/BITS]…",
        "Peers whose X-Forwarded-* and Forwarded fields are believed; more than one with commas",
    ),
    switch(
        "proxy-protocol",
        "Connections of --trust-forwarded begin with a header of the PROXY protocol, version 1 or 2",
    ).at(Reach::Start),
    switch(
        "preserve-host",
        "Send the client's Host to the upstream, in place of the upstream's",
    ).at(Reach::Route),
    setting(
        "tls-cert",
        "FILE",
        None,
        "The certificate for clients with its chain, in PEM: --listen speaks TLS then; with --tls-key",
    ),
    setting(
        "tls-key",
        "FILE",
        None,
        "The private key of --tls-cert, in PEM",
    ),
    setting(
        "tls-client-ca",
        "FILE",
        None,
        "Clients must have a certificate that one of these has signed, in PEM; with --tls-cert",
    ),
    setting(
        "admin-tls-cert",
        "FILE",
        None,
        "The certificate for operators with its chain, in PEM: --admin speaks TLS then; with --admin-tls-key",
    ),
    setting(
        "admin-tls-key",
        "FILE",
        None,
        "The private key of --admin-tls-cert, in PEM",
    ),
    setting(
        "drain",
        "DUR",
        Some("30s"),
        "How long a stopping gateway waits for running requests",
    ),
    setting(
        "drain-delay",
        "DUR",
        Some("0s"),
        "How long a stopping gateway still accepts connections, while /readyz says 503",
    ),
    setting(
        "log-format",
        "text|json",
        Some("text"),
        "How log lines are written to stderr",
    ),
    setting(
        "log-level",
        "LEVEL",
        Some("info"),
        "The least important lines logged: error, warn, info, debug or trace",
    ),
    switch("access-log", "Log a line for each request, at whatever --log-level"),
    setting(
        "otlp-endpoint",
        "URL",
        None,
        "The collector that traces go to by OTLP over HTTP, as http://127.0.0.1:4318; unless set, OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    setting(
        "jwt-jwks",
        "FILE",
        None,
        "The keys that sign tokens, as a set of JSON Web Keys: a file, or a URL; with --principal jwt",
    ).at(Reach::Gateway),
    list(
        "jwt-issuer",
        "NAME",
        "Who may have issued a token (iss); with --principal jwt",
    ).at(Reach::Gateway),
    list(
        "jwt-audience",
        "NAME",
        "For whom a token has to be (aud); unless set, only tokens without an audience are accepted",
    ).at(Reach::Gateway),
    Setting {
        default: Some("RS256,ES256"),
        ..list(
            "jwt-algorithms",
            "NAMES",
            "How tokens may be signed; nothing else is accepted",
        )
    }.at(Reach::Gateway),
    Setting {
        default: Some("sub"),
        ..list(
            "jwt-claims",
            "NAMES",
            "The claims that name the caller, together with the issuer: all have to be there",
        )
    }.at(Reach::Gateway),
    setting(
        "jwt-leeway",
        "DUR",
        Some("30s"),
        "By how much the clocks of issuer and gateway may differ; 5 min at most",
    ).at(Reach::Gateway),
    setting(
        "jwt-refresh",
        "DUR",
        Some("5m"),
        "How often the keys are read again; also when a token names one that is not known",
    ).at(Reach::Gateway),
    setting(
        "auth-url",
        "URL",
        None,
        "The endpoint that is asked whether a caller may, before anything is run or replayed; with --principal auth",
    ).at(Reach::Gateway),
    Setting {
        default: Some("authorization,cookie"),
        ..list(
            "auth-fields",
            "NAMES",
            "The fields of a request that the endpoint gets: the caller's credentials",
        )
    }.at(Reach::Gateway),
    setting(
        "auth-principal-header",
        "NAME",
        None,
        "The field of its answer that names the principal; unless set it only lets pass or not",
    ).at(Reach::Gateway),
    setting(
        "auth-cache",
        "DUR",
        Some("0s"),
        "How long it is not asked the same again after it let a caller pass; 1h at most",
    ).at(Reach::Gateway),
    setting(
        "auth-timeout",
        "DUR",
        Some("5s"),
        "How long it may take; 503 beyond",
    ).at(Reach::Gateway),
    setting(
        "limits-new-keys",
        "N/s",
        None,
        "How fast a scope may begin attempts, as 50/s; 429 beyond, and replays do not count",
    ).at(Reach::Protected),
    setting(
        "limits-running",
        "N",
        None,
        "How many attempts of a scope may run at once; 429 beyond",
    ).at(Reach::Protected),
    setting(
        "limits-kept",
        "SIZE/h",
        None,
        "How many bytes of answers may be kept for a scope in some time, as 100MiB/h; 429 beyond",
    ).at(Reach::Protected),
];

/// What only a route says.
pub const ROUTE: [Setting; 5] = [
    setting(
        "name",
        "NAME",
        None,
        "What it is called in metrics, log and traces; its methods, hosts and paths unless set",
    )
    .at(Reach::Route),
    list(
        "host",
        "NAME",
        "The hosts whose requests it takes: exact, or *.example.com; any unless set",
    )
    .at(Reach::Route),
    list(
        "path",
        "PATH",
        "The paths that it takes, as /v1/orders/{id} or /v1/payments/*; any unless set",
    )
    .at(Reach::Route),
    list(
        "methods",
        "METHOD",
        "The methods that it takes; any unless set",
    )
    .at(Reach::Route),
    Setting {
        default: Some("true"),
        ..switch(
            "protect",
            "Whether keys are looked at; false: forwarded plainly",
        )
    }
    .at(Reach::Route),
];

/// What a token says, in a section `tokens`.
pub(crate) const TOKEN: [Setting; 5] = [
    setting(
        "name",
        "NAME",
        None,
        "Who has the token: for the audit, and the user of HTTP basic authentication",
    ),
    setting(
        "sha256",
        "DIGEST",
        None,
        "The SHA-256 of the token, in hexadecimal digits",
    ),
    setting(
        "token-file",
        "FILE",
        None,
        "A file with the token, in place of its digest",
    ),
    setting(
        "role",
        "read-only|operator|admin",
        None,
        "What it is good for in the operators' interface; admin: for everything",
    ),
    list(
        "claims",
        "SERVICE/OPERATION",
        "The operations that may be claimed with it; `*` stands for any text",
    ),
];

/// Sections of the file: `jwks` in `[jwt]` is the setting `jwt-jwks`.
pub(crate) const SECTIONS: [&str; 3] = ["auth", "jwt", "limits"];

/// The rest of the file's section `reconcile`, whose `url` is the setting `reconciler`.
pub const RECONCILE: [Setting; 4] = [
    setting(
        "reconcile.attempts",
        "N",
        Some("20"),
        "How often the reconciler is asked about one record in the background",
    )
    .at(Reach::Start),
    setting(
        "reconcile.pause",
        "DUR",
        Some("1s"),
        "The pause after the first question in the background; each is twice as long, up to 5 min",
    )
    .at(Reach::Start),
    setting(
        "reconcile.timeout",
        "DUR",
        Some("5s"),
        "How long a question may take",
    )
    .at(Reach::Start),
    setting(
        "reconcile.every",
        "DUR",
        Some("30s"),
        "How often the store is asked for lost attempts",
    )
    .at(Reach::Start),
];
