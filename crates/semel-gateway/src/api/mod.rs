//! The admin API: JSON under `/api/v1/` of the operators' listener. What it does is `operations`; here it
//! is read from requests and written to answers.

mod live;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::{Extension, Path, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{StatusCode, Uri};
use semel::store::{ListQuery, Store};
use semel::{Service, StateKind};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::access::{Caller, Gate, Role};
use crate::config::{Config, Route};
use crate::events::Events;
use crate::exchange::Given;
use crate::metrics::Metrics;
use crate::operations::order::{self, Lookup, Many, Order};
use crate::operations::view::{Detail, Page};
use crate::operations::{Actor, Code, Filter, Operations, Position, Refused};
use crate::peer::Peer;
use crate::refused;
use crate::routing::Table;
use crate::store::{Condition, Health, PROBE_TIMEOUT};

/// How many records a page has unless something else is asked for.
const PAGE: usize = 100;
/// How far the overview counts.
const COUNTED: usize = 1_000;
/// How long it counts in each state.
const COUNTING: Duration = Duration::from_millis(500);

/// How many may listen to what happens at once.
pub const LISTENERS: usize = 64;

/// What the API works on.
pub struct Api<S> {
    /// What can be done.
    pub operations: Operations<S>,
    /// The routes that hold now.
    pub table: Arc<ArcSwap<Table<S>>>,
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

type Shared<S> = State<Arc<Api<S>>>;
type Answered<T> = Result<Json<T>, Refused>;

/// The routes of the API.
pub fn router<S: Store + Clone>(api: Api<S>) -> Router {
    Router::new()
        .route("/api/v1/overview", get(overview::<S>))
        .route("/api/v1/records", get(list::<S>))
        .route("/api/v1/records/lookup", post(lookup::<S>))
        .route("/api/v1/records/{id}", get(show::<S>))
        .route("/api/v1/records/{id}/{action}", post(act::<S>))
        .route("/api/v1/purge", post(many::<S>))
        .route("/api/v1/erase", post(many::<S>))
        .route("/api/v1/audit", get(audit::<S>))
        .route("/api/v1/events", get(live::events::<S>))
        .route("/api/v1/policy", get(policy::<S>))
        .route("/api/v1/store", get(store::<S>))
        .layer(axum::middleware::from_fn(readers))
        .layer(axum::middleware::map_response(never_kept))
        .with_state(Arc::new(api))
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
        None => refused::Refused::new(refused::Code::Unauthorized, "Nobody said who asks.")
            .into_response(),
    }
}

/// What is shown changes, and may be personal.
async fn never_kept(mut response: Response) -> Response {
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, never);
    response
}

type Pairs = Query<Vec<(String, String)>>;

/// The value of a name that comes once, and the pairs that are left.
fn taken(pairs: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    let at = pairs.iter().position(|(found, _)| found == name)?;
    Some(pairs.remove(at).1)
}

fn limit(pairs: &mut Vec<(String, String)>) -> Result<usize, Refused> {
    let Some(limit) = taken(pairs, "limit") else {
        return Ok(PAGE);
    };
    let most = crate::operations::MOST;
    let wrong = || Refused::invalid(format!("limit: it is a number from 1 to {most}"));
    limit
        .parse()
        .ok()
        .filter(|limit| (1..=most).contains(limit))
        .ok_or_else(wrong)
}

async fn list<S: Store + Clone>(State(api): Shared<S>, Query(mut pairs): Pairs) -> Answered<Page> {
    let limit = limit(&mut pairs)?;
    let from = taken(&mut pairs, "cursor");
    let from = from
        .as_deref()
        .map_or_else(|| Ok(Position::default()), Position::parse)?;
    let filter = Filter::of(pairs.iter().map(|(name, value)| (&**name, &**value)))?;
    Ok(Json(
        api.operations.list(&filter, &from, limit).await?.into(),
    ))
}

async fn show<S: Store + Clone>(State(api): Shared<S>, Path(id): Path<String>) -> Answered<Detail> {
    let entry = api.operations.find(&order::id(&id)?).await?;
    Ok(Json(api.operations.detail(&entry)))
}

/// The key is in the body: URLs are written to logs.
async fn lookup<S: Store + Clone>(
    State(api): Shared<S>,
    Given(lookup): Given<Lookup>,
) -> Answered<Detail> {
    let entry = api.operations.find(&lookup.id()?).await?;
    Ok(Json(api.operations.detail(&entry)))
}

/// Who asks, for the audit log.
fn actor(caller: &Caller, peer: &Peer) -> Actor {
    Actor {
        name: caller.name().to_owned(),
        from: peer.address().to_string(),
    }
}

/// Does something to the end, also where whoever asked for it goes away in the middle.
async fn finished<T: Send + 'static>(
    task: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<T, Refused> {
    tokio::spawn(task).await.unwrap_or_else(|error| {
        let why = format!("it broke off: {error}");
        Err(Refused::new(Code::ActionUnknown, why))
    })
}

async fn act<S: Store + Clone>(
    State(api): Shared<S>,
    Path((id, action)): Path<(String, String)>,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    order: Result<Given<Order>, refused::Refused>,
) -> Result<Response, Response> {
    let least = match action.as_str() {
        "erase" => Role::Admin,
        _ => Role::Operator,
    };
    caller.require(least).map_err(IntoResponse::into_response)?;
    let Given(order) = order.map_err(IntoResponse::into_response)?;
    let actor = actor(&caller, &peer);
    let done = finished(async move {
        let id = order::id(&id)?;
        if action == "reveal" {
            return Ok(match api.operations.reveal(&actor, &id, &order).await? {
                Ok(answer) => Json(answer).into_response(),
                Err(audit) => proposed(json!({ "audit": audit, "proposed": true })),
            });
        }
        let default_ttl = api.default_ttl(&id).await;
        let done = api
            .operations
            .act(&actor, &id, &action, order, default_ttl)
            .await?;
        let done = api.operations.done(done);
        Ok(match done.proposed {
            true => proposed(done),
            false => Json(done).into_response(),
        })
    });
    done.await.map_err(IntoResponse::into_response)
}

async fn many<S: Store + Clone>(
    State(api): Shared<S>,
    uri: Uri,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    order: Result<Given<Many>, refused::Refused>,
) -> Result<Response, Response> {
    caller
        .require(Role::Admin)
        .map_err(IntoResponse::into_response)?;
    let Given(order) = order.map_err(IntoResponse::into_response)?;
    let actor = actor(&caller, &peer);
    let done = finished(async move {
        let operations = &api.operations;
        let done = match uri.path() {
            "/api/v1/erase" => operations.erase_scope(&actor, &order, |_| ()).await?,
            _ => operations.purge(&actor, &order, |_| ()).await?,
        };
        Ok(match done.proposed {
            true => proposed(done),
            false => Json(done).into_response(),
        })
    });
    done.await.map_err(IntoResponse::into_response)
}

/// Nothing is done until somebody else confirms it.
fn proposed(what: impl Serialize) -> Response {
    (StatusCode::ACCEPTED, Json(what)).into_response()
}

impl<S: Store + Clone> Api<S> {
    /// As long as an answer of the record's service is replayed that comes by itself.
    async fn default_ttl(&self, id: &semel::IdentityDigest) -> Duration {
        let service = match self.operations.find(id).await {
            Ok(entry) => Service::split(&entry.label.operation).1.to_owned(),
            Err(_) => String::new(),
        };
        let table = self.table.load();
        let of_service = |route: &&Route| {
            route.protect && route.service.clone().unwrap_or_default().name() == service
        };
        let route = table.config.routes.iter().find(of_service);
        route.map_or(order::DEFAULT_TTL, |route| route.ttl)
    }
}

/// How many there are, as far as it was counted.
#[derive(Serialize)]
struct Count {
    records: usize,
    /// Whether there are more.
    more: bool,
}

async fn overview<S: Store + Clone>(State(api): Shared<S>) -> Json<Value> {
    let count = async |state, lapsed| {
        let query = ListQuery {
            lapsed,
            limit: COUNTED,
            ..ListQuery::new(state)
        };
        // A store that reads all its records for it may take longer than anybody waits.
        let page = timeout(COUNTING, api.operations.store().list(&query))
            .await
            .ok()?
            .ok()?;
        let more = page.next.is_some();
        let entries = page.entries.iter();
        let records = entries
            .filter(|entry| !crate::audit::is_entry(&entry.label))
            .count();
        Some(Count { records, more })
    };
    let (unknown, lapsed, in_flight) = tokio::join!(
        count(StateKind::Unknown, false),
        count(StateKind::InFlight, true),
        count(StateKind::InFlight, false),
    );
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": condition(&api.health),
        "records": { "unknown": unknown, "lapsed": lapsed, "in_flight": in_flight },
        "events": api.metrics.events(),
    }))
}

fn condition(health: &Health) -> Value {
    let (name, why) = match health.condition() {
        Condition::Up => ("up", None),
        Condition::Full(why) => ("full", Some(why)),
        Condition::Down(why) => ("down", Some(why)),
    };
    json!({ "condition": name, "why": why })
}

async fn audit<S: Store + Clone>(
    State(api): Shared<S>,
    Query(mut pairs): Pairs,
) -> Result<Response, Refused> {
    let limit = limit(&mut pairs)?;
    let from = taken(&mut pairs, "cursor")
        .map(|text| text.parse())
        .transpose();
    let from = from.map_err(|why| Refused::invalid(format!("cursor: {why}")))?;
    let lines = match taken(&mut pairs, "format").as_deref() {
        None | Some("json") => false,
        Some("jsonl") => true,
        Some(_) => return Err(Refused::invalid("format: there are json and jsonl")),
    };
    if let Some((name, _)) = pairs.first() {
        let why = format!("{name}: there is no such name; there are limit, cursor and format");
        return Err(Refused::invalid(why));
    }
    let page = api.operations.log().page(from, limit).await?;
    if !lines {
        return Ok(Json(page).into_response());
    }
    let lines = page
        .entries
        .iter()
        .filter_map(|entry| serde_json::to_string(entry).ok());
    let text: String = lines.map(|line| line + "\n").collect();
    let kind = HeaderValue::from_static("application/jsonl");
    let mut response = ([(CONTENT_TYPE, kind)], text).into_response();
    if let Some(next) = page.next.and_then(|next| HeaderValue::try_from(next).ok()) {
        response.headers_mut().insert("semel-next", next);
    }
    Ok(response)
}

async fn policy<S: Store + Clone>(State(api): Shared<S>) -> Json<Value> {
    let table = api.table.load();
    let Config { routes, .. } = &table.config;
    Json(json!({ "routes": routes.iter().map(of_route).collect::<Vec<_>>() }))
}

/// What holds for a route's requests.
fn of_route(route: &Route) -> Value {
    let duration = |of| humantime::format_duration(of).to_string();
    let mut shown = json!({
        "name": route.name,
        "matches": route.matches.to_string(),
        "upstreams": route.upstreams.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "protect": route.protect,
    });
    if let (true, Value::Object(shown)) = (route.protect, &mut shown) {
        let on_lost = match route.on_lost {
            semel::store::OnLost::Hold => "hold",
            semel::store::OnLost::Retry => "retry",
            semel::store::OnLost::Reconcile => "reconcile",
        };
        let service = route.service.clone().unwrap_or_default();
        shown.extend([
            ("service".to_owned(), json!(service.name())),
            (
                "mode".to_owned(),
                json!(if route.mode == semel_tower::Mode::Observe {
                    "observe"
                } else {
                    "enforce"
                }),
            ),
            ("preset".to_owned(), json!(route.preset.to_string())),
            ("require_key".to_owned(), json!(route.require_key)),
            ("lease".to_owned(), json!(duration(route.lease))),
            ("ttl".to_owned(), json!(duration(route.ttl))),
            ("wait".to_owned(), json!(duration(route.wait))),
            ("on_lost".to_owned(), json!(on_lost)),
            ("max_body".to_owned(), json!(route.max_body)),
            (
                "require_principal".to_owned(),
                json!(route.require_principal),
            ),
        ]);
    }
    shown
}

async fn store<S: Store + Clone>(State(api): Shared<S>) -> Answered<Value> {
    let probe = timeout(PROBE_TIMEOUT, api.operations.store().probe()).await;
    let late = || Refused::new(Code::StoreUnavailable, "no answer in time");
    let probe = probe.map_err(|_| late())??;
    let survives = match probe.durability {
        semel::store::Durability::Process => "nothing: records end with the process",
        semel::store::Durability::Crash => {
            "a crash of the store's process, but not a loss of power"
        }
        semel::store::Durability::Power => "a loss of power",
        semel::store::Durability::Replicated => "the loss of a node",
        _ => "",
    };
    // They have no index by state: `docs/stores.md`.
    let reads_all = ["redis", "nats", "dynamodb"].contains(&probe.store);
    Ok(Json(json!({
        "store": probe.store,
        "condition": condition(&api.health),
        "survives": survives,
        "warnings": probe.warnings,
        "a_list_reads_all_records": reads_all,
    })))
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self { code, detail } = self;
        refused::Refused::of_operations(code, detail).into_response()
    }
}
