//! The overview, lists, the audit log and the policy; and what all pages have around them.

use std::fmt::Write as _;
use std::time::Duration;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytesize::ByteSize;
use http::StatusCode;
use semel::StateKind;
use semel::store::Entry;
use serde_json::Value;
use tokio::time::Instant;

use super::history::{EVENTS, Point, Range, of_route};
use super::{Console, Form, Query, Shared, Visitor, form_of, or_problem, see};
use crate::api;
use crate::audit;
use crate::operations::order::Lookup;
use crate::operations::view::{Count, Counts, Summary, age, time};
use crate::operations::{Filter, Found, Position, about_now, of_store};
use crate::refused::Refused;

/// How many records a page has.
const RECORDS: usize = 50;
/// How many entries of the audit log a page has.
const ENTRIES: usize = 50;
/// A list that took longer is not fetched as often.
const SLOW: Duration = Duration::from_millis(100);
/// In which steps a page fetches itself again, in seconds.
const LIVE: u32 = 5;
const LIVE_WHERE_SLOW: u32 = 30;

/// What is around every page.
pub(super) struct Frame {
    /// From the page to the root.
    pub(super) base: String,
    pub(super) title: String,
    /// Who looks, and as what.
    pub(super) who: Option<(String, &'static str)>,
    pub(super) is_signed_in: bool,
    /// What forms carry.
    pub(super) form: String,
    pub(super) trouble: Option<Trouble>,
    pub(super) assets: &'static str,
}

/// What is the matter with the store.
pub(super) struct Trouble {
    pub(super) is_down: bool,
    pub(super) why: String,
    pub(super) since: String,
}

/// Renders a template; a template that fails is a mistake of ours.
macro_rules! pages {
    ($($page:ident),*) => {
        $(impl IntoResponse for $page {
            fn into_response(self) -> Response {
                match self.render() {
                    Ok(html) => axum::response::Html(html).into_response(),
                    Err(error) => {
                        tracing::error!("console: {error}");
                        StatusCode::INTERNAL_SERVER_ERROR.into_response()
                    }
                }
            }
        })*
    };
}
pub(super) use pages;

pages!(Problem, SignIn, Overview, Records, Audit, Policy);

/// Something is not as asked.
#[derive(Template)]
#[template(path = "problem.html")]
pub(super) struct Problem {
    pub(super) frame: Frame,
    pub(super) detail: String,
    pub(super) is_outage: bool,
}

#[derive(Template)]
#[template(path = "sign_in.html")]
pub(super) struct SignIn {
    pub(super) frame: Frame,
    /// The page that was asked for.
    pub(super) to: String,
    pub(super) why: Option<String>,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    range: Range,
    counts: [(&'static str, &'static str, &'static str, Option<Count>); 3],
    events: Vec<(&'static str, String, String)>,
    charts: Vec<Chart>,
    routes: Vec<RouteRow>,
    store: Vec<(&'static str, String)>,
    version: &'static str,
}

/// A chart, and the table behind it.
struct Chart {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    /// What its lines are, with the number of their colour.
    lines: Vec<(&'static str, usize)>,
    rows: Vec<(String, Vec<String>)>,
}

struct RouteRow {
    name: String,
    operation: String,
    counts: [u64; 6],
}

/// What became of a route's requests: events of the log, and their columns.
const COLUMNS: [(&str, &str); 6] = [
    ("ran", "Ran"),
    ("replayed", "Replayed"),
    ("in-flight", "Conflicts"),
    ("mismatch", "Mismatches"),
    ("outcome-unknown", "Unknown"),
    ("passed_on", "Without a key"),
];

pub(super) async fn overview(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    query: Query,
) -> Response {
    let asked = form_of(query);
    let range = Range::ALL
        .into_iter()
        .find(|range| range.names().0 == asked.get("range"));
    let range = range.unwrap_or(Range::Hour);
    let stretch = console.history.stretch(range);
    let Counts {
        unknown,
        lapsed,
        in_flight,
    } = console.counts().await;
    let events = EVENTS
        .iter()
        .zip(stretch.events)
        .enumerate()
        .map(|(nth, ((_, name), count))| {
            let last = stretch.points.last().map_or(0.0, |point| point.rates[nth]);
            (*name, count.to_string(), figure(last))
        });
    let chart =
        |id, title, unit, lines: &[(&'static str, usize)], row: &dyn Fn(&Point) -> Vec<String>| {
            let rows = stretch
                .points
                .iter()
                .filter_map(|point| Some((time(point.at)?, row(point))));
            Chart {
                id,
                title,
                unit,
                lines: lines.to_vec(),
                rows: rows.collect(),
            }
        };
    let rates = |point: &Point, from: usize, to: usize| -> Vec<String> {
        point.rates[from..to].iter().copied().map(figure).collect()
    };
    let lines = |from: usize, to: usize| -> Vec<(&'static str, usize)> {
        (from..to).map(|nth| (EVENTS[nth].1, nth + 1)).collect()
    };
    let charts = vec![
        chart(
            "calls",
            "New and replayed",
            "a second",
            &lines(0, 2),
            &|p| rates(p, 0, 2),
        ),
        chart(
            "trouble",
            "Refused, unknown and stale",
            "a second",
            &lines(2, 6),
            &|p| rates(p, 2, 6),
        ),
        chart(
            "store",
            "Store latency",
            "ms",
            &[("Average", 1), ("Slowest", 6)],
            &|p| {
                p.store.map_or_else(
                    || vec![String::new(); 2],
                    |times| times.map(figure).to_vec(),
                )
            },
        ),
        chart(
            "in-flight",
            "Requests in flight",
            "at once",
            &[("Most", 2)],
            &|p| vec![p.in_flight.to_string()],
        ),
    ];
    let happened = stretch.routes.iter().filter(|([name, _], counts)| {
        // Requests that no route takes have a row where there are any.
        !name.is_empty() || counts.iter().any(|count| *count > 0)
    });
    let routes = happened.map(|([name, operation], counts)| RouteRow {
        name: if name.is_empty() {
            "no route".to_owned()
        } else {
            name.clone()
        },
        operation: operation.clone(),
        counts: COLUMNS.map(|(event, _)| of_route(counts, event)),
    });
    let page = Overview {
        range,
        counts: [
            ("Unknown", "unknown", "state=unknown", unknown),
            ("Past their lease", "lapsed", "lapsed=true", lapsed),
            ("In flight", "in-flight", "state=in-flight", in_flight),
        ],
        events: events.collect(),
        routes: routes.collect(),
        store: store(&console).await,
        charts,
        version: env!("CARGO_PKG_VERSION"),
        frame: console.frame(&visitor, "Overview"),
    };
    page.into_response()
}

/// What the store says of itself, and what is known of it.
async fn store(console: &Console) -> Vec<(&'static str, String)> {
    let begun = Instant::now();
    let promises = match api::promises(&console.api).await {
        Ok(promises) => promises,
        Err(refused) => return vec![("Does not answer", refused.detail().to_owned())],
    };
    let mut facts = vec![
        ("Store", promises.store),
        ("Records survive", promises.survives),
        (
            "Answered in",
            format!("{} ms", figure(begun.elapsed().as_secs_f64() * 1e3)),
        ),
    ];
    if !promises.finds_by_state {
        let what = "Each page looks through some of all records: there is no index by state.";
        facts.push(("Lists", what.to_owned()));
    }
    facts.extend(
        promises
            .warnings
            .into_iter()
            .map(|warning| ("Warning", warning)),
    );
    facts
}

/// Three digits are enough for people.
fn figure(value: f64) -> String {
    let digits = match value {
        100.0.. => 0,
        10.0..100.0 => 1,
        1.0..10.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A record in a list.
pub(super) struct Row {
    pub(super) summary: Summary,
    /// What it is about, in a few words.
    pub(super) about: String,
    pub(super) age: String,
    /// Until when its lease holds, or since when not.
    pub(super) lease: String,
}

impl Row {
    pub(super) fn of(entry: &Entry) -> Self {
        let summary = Summary::from(entry);
        let note = |name: &str| summary.note.get(name).map(String::as_str);
        // The path is among them where the configuration says so.
        let about = match (note("method"), note("path").or_else(|| note("route"))) {
            (Some(method), Some(place)) => format!("{method} {place}"),
            _ => summary.operation.clone(),
        };
        let (now, until) = (about_now(), entry.record.lease_until);
        let lease = match entry.record.state.kind() {
            StateKind::InFlight if summary.lapsed => {
                format!("lapsed {} ago", age(until.until(now).as_secs()))
            }
            StateKind::InFlight => format!("{} left", age(now.until(until).as_secs())),
            _ => String::new(),
        };
        Self {
            age: age(summary.age_seconds),
            about,
            lease,
            summary,
        }
    }

    /// What it is called on its badge.
    pub(super) fn state(&self) -> &str {
        match self.summary.lapsed {
            true => "lapsed",
            false => &self.summary.state,
        }
    }

    fn rank(&self) -> u8 {
        match self.state() {
            "unknown" => 0,
            "lapsed" => 1,
            "in-flight" => 2,
            _ => 3,
        }
    }

    fn scope(&self) -> String {
        self.summary.scope.join(" / ")
    }

    fn short_id(&self) -> &str {
        self.summary.id.get(..12).unwrap_or_default()
    }
}

#[derive(Template)]
#[template(path = "records.html")]
struct Records {
    frame: Frame,
    asked: Form,
    tabs: Vec<(&'static str, String, bool)>,
    rows: Vec<Row>,
    looked_at: usize,
    next: Option<String>,
    is_partial: bool,
    is_first: bool,
    is_filtered: bool,
    refused: Option<Refused>,
    live: u32,
}

const TABS: [(&str, &str, &str); 6] = [
    ("All", "", ""),
    ("Needs attention", "stuck", "true"),
    ("Unknown", "state", "unknown"),
    ("In flight", "state", "in-flight"),
    ("Completed", "state", "completed"),
    ("Released", "state", "released"),
];
/// What a list can be narrowed by besides.
const FIELDS: [&str; 4] = ["service", "operation", "older", "scope"];

pub(super) async fn records(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    query: Query,
) -> Response {
    // Fields that were left empty ask for nothing.
    let filled = query
        .0
        .into_iter()
        .filter(|(_, value)| !value.trim().is_empty());
    let asked = Form(filled.collect());
    let begun = Instant::now();
    let found = async {
        let pairs = asked
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let filter = Filter::of(pairs.filter(|(name, _)| *name != "cursor"))?;
        let from = match asked.get("cursor") {
            "" => Position::default(),
            text => Position::parse(text)?,
        };
        console.api.operations.list(&filter, &from, RECORDS).await
    };
    let (found, refused) = match found.await {
        Ok(found) => (found, None),
        Err(refused) => (Found::default(), Some(refused)),
    };
    let mut rows: Vec<Row> = found.entries.iter().map(Row::of).collect();
    rows.sort_by_key(Row::rank);
    let kept = || {
        asked
            .0
            .iter()
            .filter(|(name, _)| FIELDS.contains(&name.as_str()))
    };
    let with = |name: &str, value: &str| {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        if !name.is_empty() {
            query.append_pair(name, value);
        }
        for (name, value) in kept() {
            query.append_pair(name, value);
        }
        query.finish()
    };
    let shown = TABS
        .iter()
        .position(|(_, name, value)| !name.is_empty() && asked.get(name) == *value);
    let shown = shown
        .or((asked.get("lapsed") == "true").then_some(1))
        .unwrap_or(0);
    let tabs = TABS
        .iter()
        .enumerate()
        .map(|(nth, (title, name, value))| (*title, with(name, value), nth == shown));
    let next = found.next.map(|next| {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let same = asked.0.iter().filter(|(name, _)| name != "cursor");
        query.extend_pairs(same.map(|(name, value)| (name, value)));
        query.append_pair("cursor", &next.to_string());
        query.finish()
    });
    let page = Records {
        tabs: tabs.collect(),
        rows,
        next,
        looked_at: found.looked_at,
        is_partial: found.is_partial,
        is_first: asked.get("cursor").is_empty(),
        is_filtered: kept().next().is_some(),
        live: if begun.elapsed() > SLOW {
            LIVE_WHERE_SLOW
        } else {
            LIVE
        },
        frame: console.frame(&visitor, "Records"),
        asked,
        refused,
    };
    let status = page
        .refused
        .as_ref()
        .map_or(StatusCode::OK, |refused| refused.status());
    (status, page).into_response()
}

/// By an id, or by a key: it is in the form's body, and what follows has the id in its place.
pub(super) async fn find(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Form>,
) -> Response {
    let id = match form.filled("id") {
        Some(id) => crate::operations::order::id(&id.to_lowercase()),
        None => {
            let scope: Vec<_> = form
                .all("scope")
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
                .collect();
            let lookup = Lookup {
                service: form.filled("service"),
                operation: form.filled("operation"),
                scope: (!scope.is_empty()).then_some(scope),
                key: form.get("key").to_owned(),
            };
            console.api.operations.name(&lookup)
        }
    };
    match or_problem(&console, &visitor, id) {
        Ok(id) => see(&id.to_string()),
        Err(problem) => *problem,
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    frame: Frame,
    entries: Vec<audit::Entry>,
    next: Option<String>,
    is_first: bool,
}

/// A record's state in an entry of the log.
pub(super) fn state_in(facts: Option<&Value>) -> String {
    let Some(facts) = facts else {
        return String::new();
    };
    let mut text = facts["state"].as_str().unwrap_or_default().to_owned();
    if let Some(records) = facts["records"].as_u64() {
        write!(text, "{records} records").ok();
    }
    if let Some(scope) = facts["scope"].as_array() {
        let scope: Vec<&str> = scope.iter().filter_map(Value::as_str).collect();
        write!(text, "scope {}", scope.join(" / ")).ok();
    }
    text
}

pub(super) async fn audit(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    query: Query,
) -> Response {
    let asked = form_of(query);
    let page = async {
        let from = asked.filled("cursor").map(|text| text.parse()).transpose();
        let from = from.map_err(|why| Refused::invalid(format!("cursor: {why}")))?;
        console
            .api
            .operations
            .log()
            .page(from, ENTRIES)
            .await
            .map_err(of_store)
    };
    match or_problem(&console, &visitor, page.await) {
        Ok(page) => Audit {
            frame: console.frame(&visitor, "Audit"),
            entries: page.entries,
            next: page.next,
            is_first: asked.filled("cursor").is_none(),
        }
        .into_response(),
        Err(problem) => *problem,
    }
}

#[derive(Template)]
#[template(path = "policy.html")]
struct Policy {
    frame: Frame,
    routes: Vec<(String, Vec<(String, String)>)>,
    store: Vec<(&'static str, String)>,
    upstreams: Vec<(String, bool)>,
}

pub(super) async fn policy(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
) -> Response {
    let table = console.api.table.load();
    let routes = table.config.routes.iter().map(|route| {
        let facts = serde_json::to_value(api::of_route(route)).unwrap_or_default();
        let facts = facts.as_object().into_iter().flatten();
        let facts = facts.filter(|(name, _)| *name != "name");
        let mut facts: Vec<_> = facts
            .map(|(name, value)| (name.replace('_', " "), said(value)))
            .collect();
        // What it takes comes first.
        facts.sort_by_key(|(name, _)| !["matches", "upstreams"].contains(&name.as_str()));
        (route.label.clone(), facts)
    });
    let page = Policy {
        routes: routes.collect(),
        upstreams: console.pools.conditions().into_iter().collect(),
        store: store(&console).await,
        frame: console.frame(&visitor, "Policy"),
    };
    page.into_response()
}

/// A value of the API's, for people.
fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        Value::Array(list) => list.iter().map(said).collect::<Vec<_>>().join(", "),
        // The only number is a size.
        other => other
            .as_u64()
            .map_or_else(String::new, |bytes| ByteSize(bytes).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_few_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0166, "0.017"),
            (1.5, "1.5"),
            (12.34, "12.3"),
            (100.0, "100"),
            (1234.5, "1234"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
