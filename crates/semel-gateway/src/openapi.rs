//! The description of the operators' interfaces, made from the types that they are written with.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, SecurityRequirement,
};
use utoipa::{IntoResponses, Modify, OpenApi as _};

use crate::claims::wire::Problem;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "semel",
        description = "The operators' interfaces of a gateway: https://github.com/semel-rs/semel/blob/main/docs/claims.md and operate.md"
    ),
    tags(
        (name = "claims", description = "Work that happens once"),
        (name = "records", description = "What operators see of records, and decide about them"),
        (name = "audit", description = "What they did"),
        (name = "policy", description = "What holds"),
    ),
    components(schemas(Problem)),
    modifiers(&Security),
)]
struct Head;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, scheme) in [
            ("bearer", HttpAuthScheme::Bearer),
            ("basic", HttpAuthScheme::Basic),
        ] {
            components.add_security_scheme(name, SecurityScheme::Http(Http::new(scheme)));
        }
        let none: [&str; 0] = [];
        // None is needed where no tokens are configured.
        document.security = Some(vec![
            SecurityRequirement::default(),
            SecurityRequirement::new("bearer", none),
            SecurityRequirement::new("basic", none),
        ]);
    }
}

/// The description without its paths.
pub(crate) fn head() -> OpenApi {
    Head::openapi()
}

/// The description as it is served: with its links, from a claim to what is done with it.
pub(crate) fn served(document: &OpenApi) -> Value {
    let mut document = json!(document);
    let links = [
        "show",
        "renew",
        "keep_step",
        "complete",
        "abandon",
        "mark_unknown",
    ]
    .map(|name| {
        let mut link = json!({"operationId": name, "parameters": {"id": "$response.body#/id"}});
        if name != "show" {
            link["requestBody"] = json!({"token": "$response.body#/token"});
        }
        (name.to_owned(), link)
    });
    let acquired = "/paths/~1v1~1claims/post/responses/201";
    if let Some(acquired) = document.pointer_mut(acquired) {
        acquired["links"] = Value::Object(links.into_iter().collect());
    }
    document
}

fn problems(statuses: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let problem = || {
        ContentBuilder::new()
            .schema(Some(Ref::from_schema_name("Problem")))
            .build()
    };
    let responses = statuses.iter().map(|(status, codes)| {
        let response = ResponseBuilder::new()
            .description(*codes)
            .content("application/problem+json", problem())
            .build();
        (status.to_string(), RefOr::T(response))
    });
    responses.collect()
}

const WHO: [(u16, &str); 3] = [
    (401, "unauthorized"),
    (403, "forbidden"),
    (503, "store-unavailable, overloaded"),
];
const FOUND: (u16, &str) = (404, "not-found, no-record");
const WRITE: [(u16, &str); 3] = [
    (400, "invalid-request, incomplete-body"),
    (413, "too-large"),
    (415, "unsupported-media-type"),
];

macro_rules! problem_sets {
    ($($(#[$doc:meta])+ $name:ident = $sets:expr;)+) => {
        $($(#[$doc])+
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                problems(&$sets.concat())
            }
        })+
    };
}

// Of two with the same status the later one is taken.
problem_sets! {
    /// The problems of what is always there.
    LookProblems = [&WHO[..]];
    /// The problems of what reads a query.
    ListProblems = [&WHO[..], &[(400, "invalid-request")]];
    /// The problems of what shows a record.
    RecordProblems = [&WHO[..], &[FOUND]];
    /// The problems of what finds a record.
    LookupProblems = [&WHO[..], &WRITE, &[FOUND]];
    /// The problems of what takes a token.
    TokenProblems = [&WHO[..], &WRITE, &[FOUND, (409, "stale, step-conflict")]];
    /// The problems of a claim.
    ClaimProblems = [
        &WHO[..],
        &WRITE,
        &[
            (400, "invalid-request, invalid-key, incomplete-body"),
            (409, "in-flight, outcome-unknown, expired"),
            (422, "mismatch"),
            (503, "store-unavailable, capacity"),
        ],
    ];
    /// The problems of what operators do.
    ActionProblems = [
        &WHO[..],
        &WRITE,
        &[
            FOUND,
            (400, "invalid-request, missing-reason, incomplete-body"),
            (403, "forbidden, not-confirmed"),
            (409, "attempt-running, record-changed, wrong-state"),
            (413, "too-large, outcome-too-large"),
            (503, "store-unavailable, action-unknown"),
        ],
    ];
}
