//! What shows something, and changes nothing.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use semel::store::{OnLost, Store as _};
use semel_tower::{Mode, ProblemCode};
use tokio::time::timeout;

use super::{Answered, Api, Pairs, Shared};
use crate::audit;
use crate::config::{Config, Route};
use crate::exchange::{Given, Id, Told};
use crate::openapi::{ListProblems, LookProblems, LookupProblems, RecordProblems};
use crate::operations::order::Lookup;
use crate::operations::view::{
    Detail, Overview, Page, Policy, RoutePolicy, StoreCondition, StoreView,
};
use crate::operations::{Filter, Position, of_store};
use crate::refused::Refused;
use crate::store::{Condition, Health, PROBE_TIMEOUT};

/// Shows how things stand.
#[utoipa::path(
    get,
    path = "/api/v1/overview",
    operation_id = "overview",
    tag = "records",
    responses((status = 200, description = "How things stand", body = Overview), LookProblems),
)]
pub(super) async fn overview(State(api): Shared) -> Told<Overview> {
    let overview = Overview {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: condition(&api.health),
        records: api.operations.counts().await,
        events: api.metrics.events(),
    };
    Told(StatusCode::OK, overview)
}

fn condition(health: &Health) -> StoreCondition {
    let (name, why) = match health.condition() {
        Condition::Up => ("up", None),
        Condition::Full(why) => ("full", Some(why)),
        Condition::Down(why) => ("down", Some(why)),
    };
    StoreCondition {
        condition: name.to_owned(),
        why,
    }
}

/// Lists records, page by page.
#[utoipa::path(
    get,
    path = "/api/v1/records",
    operation_id = "list",
    tag = "records",
    params(
        ("state" = Option<String>, Query, description = "Only of this state", pattern = "^(in-flight|unknown|completed|released)$"),
        ("stuck" = Option<bool>, Query, description = "Only unknown ones, and those in flight past their lease"),
        ("lapsed" = Option<bool>, Query, description = "Only those in flight past their lease"),
        ("service" = Option<String>, Query, description = "Only of this service"),
        ("operation" = Option<String>, Query, description = "Only of this operation"),
        ("route" = Option<String>, Query, description = "Only those whose note names this route"),
        ("scope" = Option<Vec<String>>, Query, description = "The segments that the scope begins with, in their order"),
        ("older" = Option<String>, Query, description = "Only those first claimed at least so long ago: `10m`, `7d`"),
        ("limit" = Option<u32>, Query, description = "How many at most", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the page before"),
    ),
    responses((status = 200, description = "A page", body = Page), ListProblems),
)]
pub(super) async fn list(State(api): Shared, mut pairs: Pairs) -> Answered<Page> {
    let limit = pairs.limit()?;
    let from = pairs.take("cursor");
    let from = from
        .as_deref()
        .map_or_else(|| Ok(Position::default()), Position::parse)?;
    let filter = Filter::of(pairs.0.iter().map(|(name, value)| (&**name, &**value)))?;
    let found = api.operations.list(&filter, &from, limit).await?;
    Ok(Told(StatusCode::OK, found.into()))
}

/// Shows a record.
#[utoipa::path(
    get,
    path = "/api/v1/records/{id}",
    operation_id = "record",
    tag = "records",
    params(("id" = String, Path, description = "The name of the record", pattern = "^[0-9a-fA-F]{64}$")),
    responses((status = 200, description = "The record", body = Detail), RecordProblems),
)]
pub(super) async fn record(State(api): Shared, Id(id): Id) -> Answered<Detail> {
    let entry = api.operations.find(&id).await?;
    Ok(Told(StatusCode::OK, api.operations.detail(&entry)))
}

/// Finds a record by its key, which is in the body: URLs are written to logs.
#[utoipa::path(
    post,
    path = "/api/v1/records/lookup",
    operation_id = "lookup",
    tag = "records",
    request_body = Lookup,
    responses((status = 200, description = "The record", body = Detail), LookupProblems),
)]
pub(super) async fn lookup(State(api): Shared, Given(lookup): Given<Lookup>) -> Answered<Detail> {
    let entry = api.operations.look_up(&lookup).await?;
    Ok(Told(StatusCode::OK, api.operations.detail(&entry)))
}

/// Shows the audit log, the newest first.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "audit",
    tag = "audit",
    params(
        ("limit" = Option<u32>, Query, description = "How many entries at most", minimum = 1, maximum = 500),
        ("cursor" = Option<String>, Query, description = "The `next` of the page before", pattern = "^[0-9]{1,6}-[0-9]{1,9}$"),
        ("format" = Option<String>, Query, description = "JSON, or JSON Lines", pattern = "^(json|jsonl)$"),
    ),
    responses(
        (status = 200, description = "A page of the log", content(
            (audit::Page = "application/json"),
            (String = "application/jsonl"),
        )),
        ListProblems,
    ),
)]
pub(super) async fn audit(State(api): Shared, mut pairs: Pairs) -> Result<Response, Refused> {
    let limit = pairs.limit()?;
    let from = pairs.take("cursor").map(|text| text.parse()).transpose();
    let from = from.map_err(|why| Refused::invalid(format!("cursor: {why}")))?;
    let lines = match pairs.take("format").as_deref() {
        None | Some("json") => false,
        Some("jsonl") => true,
        Some(_) => return Err(Refused::invalid("format: there are json and jsonl")),
    };
    if let Some((name, _)) = pairs.0.first() {
        let why = format!("{name}: there is no such name; there are limit, cursor and format");
        return Err(Refused::invalid(why));
    }
    let page = api.operations.log().page(from, limit).await;
    let page = page.map_err(of_store)?;
    if !lines {
        return Ok(Told(StatusCode::OK, page).into_response());
    }
    let kind = HeaderValue::from_static("application/jsonl");
    let mut response = ([(CONTENT_TYPE, kind)], page.lines()).into_response();
    if let Some(next) = page.next.and_then(|next| HeaderValue::try_from(next).ok()) {
        response.headers_mut().insert("semel-next", next);
    }
    Ok(response)
}

/// Shows what holds for each route.
#[utoipa::path(
    get,
    path = "/api/v1/policy",
    operation_id = "policy",
    tag = "policy",
    responses((status = 200, description = "What holds for each route", body = Policy), LookProblems),
)]
pub(super) async fn policy(State(api): Shared) -> Told<Policy> {
    let table = api.table.load();
    let Config { routes, .. } = &table.config;
    let routes = routes.iter().map(of_route).collect();
    Told(StatusCode::OK, Policy { routes })
}

/// What holds for a route's requests.
pub(crate) fn of_route(route: &Route) -> RoutePolicy {
    let duration = |of| humantime::format_duration(of).to_string();
    let shown = RoutePolicy {
        name: route.name.clone(),
        matches: route.matches.to_string(),
        upstreams: route.upstreams.iter().map(ToString::to_string).collect(),
        protect: route.protect,
        ..RoutePolicy::default()
    };
    if !route.protect {
        return shown;
    }
    let on_lost = match route.on_lost {
        OnLost::Hold => "hold",
        OnLost::Retry => "retry",
        OnLost::Reconcile => "reconcile",
    };
    let mode = match route.mode {
        Mode::Observe => "observe",
        _ => "enforce",
    };
    let service = route.service();
    RoutePolicy {
        service: Some(service.name().to_owned()),
        mode: Some(mode.to_owned()),
        preset: Some(route.preset.to_string()),
        require_key: Some(route.require_key),
        lease: Some(duration(route.lease)),
        ttl: Some(duration(route.ttl)),
        wait: Some(duration(route.wait)),
        on_lost: Some(on_lost.to_owned()),
        max_body: Some(route.max_body as u64),
        require_principal: Some(route.require_principal),
        ..shown
    }
}

/// Shows the store's promises and warnings.
#[utoipa::path(
    get,
    path = "/api/v1/store",
    operation_id = "store",
    tag = "policy",
    responses((status = 200, description = "The store", body = StoreView), LookProblems),
)]
pub(super) async fn store(State(api): Shared) -> Answered<StoreView> {
    Ok(Told(StatusCode::OK, promises(&api).await?))
}

/// What the store says of itself when it is asked.
pub(crate) async fn promises(api: &Api) -> Result<StoreView, Refused> {
    let probe = timeout(PROBE_TIMEOUT, api.operations.store().probe()).await;
    let late = |_| Refused::of_layer(ProblemCode::StoreUnavailable, "no answer in time");
    let probe = probe.map_err(late)?.map_err(of_store)?;
    let mut view = StoreView::from(&probe);
    view.condition = condition(&api.health);
    Ok(view)
}
