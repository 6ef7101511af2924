//! The admin API: JSON under `/api/v1/` of the operators' listener. What it does is `operations`; here it
//! is read from requests and written to answers, and described for `/openapi.json`.

mod decide;
mod live;
mod look;

use std::convert::Infallible;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, HeaderValue};
use http::request::Parts;
use semel::AnyStore;
use tokio::sync::{Semaphore, watch};
use url::form_urlencoded;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Caller, Gate, Role};
use crate::events::Events;
use crate::exchange::Told;
use crate::metrics::Metrics;
use crate::operations::{MOST, Operations};
use crate::refused::{Code, Refused};
use crate::routing::Table;
use crate::store::{Health, Watched};
pub(crate) use decide::{actor, finished, least};
pub(crate) use look::{of_route, promises};

/// How many records a page has unless something else is asked for.
const PAGE: usize = 100;

/// What the API works on.
pub struct Api {
    /// What can be done.
    pub operations: Operations<Watched<AnyStore>>,
    /// The routes that hold now.
    pub table: Arc<ArcSwap<Table<Watched<AnyStore>>>>,
    /// What is known of the store.
    pub health: Arc<Health>,
    /// What was counted in this process.
    pub metrics: Arc<Metrics>,
    /// What happens in this process.
    pub events: Arc<Events>,
    /// Room for those who listen to it.
    pub listening: Arc<Semaphore>,
    /// Who may go on listening.
    pub gate: Arc<Gate>,
    /// Whether the gateway is stopping.
    pub stopping: watch::Receiver<bool>,
}

type Shared = State<Arc<Api>>;
type Answered<T> = Result<Told<T>, Refused>;

/// The routes of the API, and their description.
pub(crate) fn router(api: Arc<Api>) -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(look::overview))
        .routes(routes!(look::list))
        .routes(routes!(look::lookup))
        .routes(routes!(look::record))
        .routes(routes!(decide::act))
        .routes(routes!(decide::reveal))
        .routes(routes!(decide::erase))
        .routes(routes!(decide::purge))
        .routes(routes!(decide::reencrypt))
        .routes(routes!(look::audit))
        .routes(routes!(live::events))
        .routes(routes!(look::policy))
        .routes(routes!(look::store))
        .layer(from_fn(readers))
        .layer(map_response(never_kept))
        .with_state(api)
}

/// Whoever only claims has nothing to look at here.
async fn readers(request: Request, next: Next) -> Response {
    match request
        .extensions()
        .get::<Caller>()
        .map(|caller| caller.require(Role::ReadOnly))
    {
        Some(Ok(())) => next.run(request).await,
        Some(Err(refused)) => refused.into_response(),
        // The listener lets nobody in whom it does not know.
        None => Refused::new(Code::Unauthorized, "Nobody said who asks.").into_response(),
    }
}

/// What is shown changes, and may be personal.
async fn never_kept(mut response: Response) -> Response {
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, never);
    response
}

/// The pairs of name and value in a query.
struct Pairs(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Pairs {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self(
            form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        ))
    }
}

impl Pairs {
    /// The value of a name that comes once; the pairs that are left stay.
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(found, _)| found == name)?;
        Some(self.0.remove(at).1)
    }

    fn limit(&mut self) -> Result<usize, Refused> {
        let Some(limit) = self.take("limit") else {
            return Ok(PAGE);
        };
        let wrong = || Refused::invalid(format!("limit: it is a number from 1 to {MOST}"));
        limit
            .parse()
            .ok()
            .filter(|limit| (1..=MOST).contains(limit))
            .ok_or_else(wrong)
    }
}
