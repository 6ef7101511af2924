//! The overview, lists, the audit log and the policy; and what all pages have around them.

use std::fmt::Write as _;
use std::time::Duration;

use askama::Template;
use axum::Extension;
use axum::response::{IntoResponse, Response};
use bytesize::ByteSize;
use http::StatusCode;
use semel::StateKind;
use semel::store::Entry;
use serde_json::Value;
use tokio::time::Instant;

use super::history::{CHARTS, EVENTS, FIGURES, Range, Stretch};
use super::{Asked, Console, Form, Proposal, Visitor, query, see};
use crate::api;
use crate::audit::{self, Came};
use crate::metrics::FREQUENT;
use crate::operations::order::{self, Lookup};
use crate::operations::view::{Count, Summary, age, time};
use crate::operations::{Filter, Found, Position, about_now, of_store};
use crate::reconcile;
use crate::refused::{Code, Refused};

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
    /// The screen that it is on, as the navigation has it.
    pub(super) screen: String,
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
    pub(super) since: Option<String>,
}

/// What became of a form: its entry in the audit log, or why there is none.
pub(super) struct Told {
    pub(super) entered: Option<audit::Entry>,
    pub(super) refused: Option<Refused>,
}

impl Told {
    /// The address names the entry, and may be anybody's: it is told to whom it is of, on the page that it
    /// is about, and a proposal as long as it waits.
    pub(super) async fn of(visitor: &Visitor, id: Option<&str>, open: &[Proposal]) -> Self {
        let entered = async {
            let number = visitor.asked.get("entry").parse().ok()?;
            let entry = visitor.console.api.operations.log().entry(number);
            let entry = entry.await.ok()??;
            let intent = entry.intent.as_ref()?;
            let is_theirs = visitor.caller.as_ref()?.name() == intent.by;
            let is_here = intent.id.as_deref() == id;
            let waits = open.iter().any(|(open, ..)| open.number == entry.number);
            let holds = entry.result != Came::Proposed || waits;
            (is_theirs && is_here && holds).then_some(entry)
        };
        Self {
            entered: entered.await,
            refused: None,
        }
    }

    /// How many records it was about, where it was about many.
    pub(super) fn records(entry: &audit::Entry) -> Option<String> {
        Some(match entry.after.as_ref()?["records"].as_u64()? {
            1 => "1 record".to_owned(),
            many => format!("{many} records"),
        })
    }
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
                        http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
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
    stretch: Stretch,
    /// The steps of the charts, as text.
    points: Vec<(Option<String>, [String; FIGURES])>,
    store: Vec<(&'static str, String)>,
}

/// What became of a route's requests: the columns of [`FREQUENT`].
const COLUMNS: [&str; FREQUENT.len()] = [
    "Ran",
    "Replayed",
    "Conflicts",
    "Mismatches",
    "Outcome unknown",
    "Without a key",
];

pub(super) async fn overview(Extension(visitor): Asked) -> Response {
    let console = &visitor.console;
    let mut ranges = Range::ALL.into_iter();
    let range = ranges.find(|range| range.name == visitor.asked.get("range"));
    let range = range.unwrap_or(Range::HOUR);
    let mut stretch = console.history.stretch(range);
    // Requests that no route takes have a row where there are any.
    stretch
        .routes
        .retain(|[name, _], counts| !name.is_empty() || counts.iter().any(|count| *count > 0));
    let points = stretch.points.iter();
    let points = points.map(|point| (time(point.at), point.figures.map(figure)));
    let (counts, store) = tokio::join!(console.counts(), store(console));
    let page = Overview {
        frame: visitor.frame("Overview"),
        range,
        counts: [
            ("Unknown", "unknown", "state=unknown", counts.unknown),
            ("Past their lease", "lapsed", "lapsed=true", counts.lapsed),
            (
                "In flight",
                "in-flight",
                "state=in-flight",
                counts.in_flight,
            ),
        ],
        points: points.collect(),
        stretch,
        store,
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
    let took = figure(Some(begun.elapsed().as_secs_f64() * 1e3));
    let mut facts = vec![
        ("Store", promises.store),
        ("Records survive", promises.survives),
        ("Answered in", format!("{took} ms")),
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
fn figure(value: Option<f64>) -> String {
    let Some(value) = value else {
        return String::new();
    };
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
            about,
            lease,
            summary,
        }
    }

    fn age(&self) -> String {
        age(self.summary.age_seconds)
    }

    fn rank(&self) -> u8 {
        match self.summary.standing() {
            "unknown" => 0,
            "lapsed" => 1,
            "in-flight" => 2,
            _ => 3,
        }
    }
}

#[derive(Template)]
#[template(path = "records.html")]
struct Records {
    frame: Frame,
    asked: Form,
    tabs: Vec<(&'static str, String, bool)>,
    found: Found,
    rows: Vec<Row>,
    /// What is said where there are none.
    nothing: (String, &'static str),
    next: Option<String>,
    is_filtered: bool,
    refused: Option<Refused>,
    live: u32,
}

/// A list by state: its name, what its address asks for, and what is said where nothing is in it.
struct Tab {
    title: &'static str,
    name: &'static str,
    value: &'static str,
    none: &'static str,
}

#[rustfmt::skip]
const TABS: [Tab; 7] = [
    Tab { title: "All", name: "", value: "", none: "No records" },
    Tab { title: "Needs attention", name: "stuck", value: "true", none: "Nothing needs attention" },
    Tab { title: "Unknown", name: "state", value: "unknown", none: "No outcome is unknown" },
    Tab { title: "Past their lease", name: "lapsed", value: "true", none: "No lease has lapsed" },
    Tab { title: "In flight", name: "state", value: "in-flight", none: "No attempt is in flight" },
    Tab { title: "Completed", name: "state", value: "completed", none: "No answer is kept" },
    Tab { title: "Released", name: "state", value: "released", none: "No key was released lately" },
];
/// What a list can be narrowed by besides.
const FIELDS: [&str; 5] = ["service", "operation", "route", "older", "scope"];

/// What is said of a page without records. That of a whole list is no promise about a part of it.
fn nothing(tab: &Tab, found: &Found, is_whole: bool) -> (String, &'static str) {
    if found.is_partial {
        let what = "None found so far".to_owned();
        return (
            what,
            "Not all records were looked at for this page: others may follow.",
        );
    }
    if !is_whole {
        return ("No such records here".to_owned(), "");
    }
    let more = match tab.name {
        "" => "There is one as soon as a request with a key comes in, until its retention ends.",
        "stuck" => "No outcome is unknown, and no lease has lapsed.",
        _ => "",
    };
    (tab.none.to_owned(), more)
}

pub(super) async fn records(Extension(visitor): Asked) -> Response {
    // Fields that were left empty ask for nothing.
    let mut asked = visitor.asked.clone();
    asked.0.retain(|(_, value)| !value.trim().is_empty());
    let begun = Instant::now();
    let same: Vec<_> = asked
        .pairs()
        .filter(|(name, _)| *name != "cursor")
        .collect();
    let found = async {
        let filter = Filter::of(same.iter().copied())?;
        let from = match asked.get("cursor") {
            "" => Position::default(),
            text => Position::parse(text)?,
        };
        visitor
            .console
            .api
            .operations
            .list(&filter, &from, RECORDS)
            .await
    };
    let (found, refused) = match found.await {
        Ok(found) => (found, None),
        Err(refused) => (Found::default(), Some(refused)),
    };
    let mut rows: Vec<Row> = found.entries.iter().map(Row::of).collect();
    rows.sort_by_key(Row::rank);
    let kept = same
        .iter()
        .copied()
        .filter(|(name, _)| FIELDS.contains(name));
    let mut named = TABS.iter().skip(1);
    let shown = named.find(|tab| asked.get(tab.name) == tab.value);
    let shown = shown.unwrap_or(&TABS[0]);
    let tabs = TABS.iter().map(|tab| {
        let own = Some((tab.name, tab.value)).filter(|_| !tab.name.is_empty());
        let query = query(own.into_iter().chain(kept.clone()));
        (tab.title, query, tab.title == shown.title)
    });
    let next = found.next.as_ref().map(|next| {
        let next = next.to_string();
        query(same.iter().copied().chain([("cursor", &*next)]))
    });
    let is_filtered = kept.clone().next().is_some();
    let is_slow = begun.elapsed() > SLOW;
    let is_whole = !is_filtered && asked.get("cursor").is_empty();
    let page = Records {
        frame: visitor.frame("Records"),
        nothing: nothing(shown, &found, is_whole),
        tabs: tabs.collect(),
        rows,
        next,
        found,
        is_filtered,
        live: if is_slow { LIVE_WHERE_SLOW } else { LIVE },
        refused,
        asked,
    };
    let status = page
        .refused
        .as_ref()
        .map_or(StatusCode::OK, Refused::status);
    (status, page).into_response()
}

/// By an id, or by a key: it is in the form's body, and what follows has the id in its place.
pub(super) async fn find(Extension(visitor): Asked) -> Response {
    let form = &visitor.asked;
    if let Some(id) = form.filled("id") {
        let id = order::id(&id.to_lowercase());
        return visitor.shown(id.map(|id| see(&id.to_string())));
    }
    let scope = form.all("scope").filter(|segment| !segment.is_empty());
    let scope: Vec<_> = scope.map(str::to_owned).collect();
    let lookup = Lookup {
        service: form.filled("service"),
        operation: form.filled("operation"),
        scope: (!scope.is_empty()).then_some(scope),
        key: form.get("key").to_owned(),
    };
    let found = visitor.console.api.operations.look_up(&lookup).await;
    let found = found.map_err(|why| match why.is(Code::NoRecord) {
        true => Refused::new(Code::NoRecord, nowhere(&lookup)),
        false => why,
    });
    visitor.shown(found.map(|entry| see(&entry.label.digest.to_string())))
}

/// Where a key was looked for: it may be another record's elsewhere.
fn nowhere(lookup: &Lookup) -> String {
    let scope = lookup.scope.as_ref();
    let scope = scope.map_or_else(|| "anonymous".to_owned(), |scope| scope.join(" / "));
    format!(
        "No record of this key has the service “{}”, the operation “{}” and the scope “{scope}”, or its \
         retention ended. With another of the three, the key is another record’s.",
        lookup.service.as_deref().unwrap_or("default"),
        lookup.operation.as_deref().unwrap_or(reconcile::OPERATION),
    )
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Audit {
    frame: Frame,
    page: audit::Page,
    is_first: bool,
}

/// A record's state in an entry of the log.
fn state_in(facts: Option<&Value>) -> String {
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

pub(super) async fn audit(Extension(visitor): Asked) -> Response {
    let page = async {
        let from = visitor.asked.filled("cursor");
        let from = from.map(|text| text.parse()).transpose();
        let from = from.map_err(|why| Refused::invalid(format!("cursor: {why}")))?;
        let log = visitor.console.api.operations.log();
        Ok(Audit {
            frame: visitor.frame("Audit"),
            page: log.page(from, ENTRIES).await.map_err(of_store)?,
            is_first: from.is_none(),
        })
    };
    visitor.shown(page.await)
}

#[derive(Template)]
#[template(path = "policy.html")]
struct Policy {
    frame: Frame,
    routes: Vec<(String, Vec<(String, String)>)>,
    store: Vec<(&'static str, String)>,
    upstreams: Vec<(String, bool)>,
}

pub(super) async fn policy(Extension(visitor): Asked) -> Response {
    let console = &visitor.console;
    let table = console.api.table.load();
    let routes = table.config.routes.iter().map(|route| {
        let facts = serde_json::to_value(api::of_route(route)).unwrap_or_default();
        let facts = facts.as_object().into_iter().flatten();
        let facts = facts.filter(|(name, _)| *name != "name");
        let facts = facts.map(|(name, value)| (name.replace('_', " "), said(value)));
        let mut facts: Vec<_> = facts.collect();
        // What it takes comes first.
        facts.sort_by_key(|(name, _)| !["matches", "upstreams"].contains(&name.as_str()));
        (route.label.clone(), facts)
    });
    let page = Policy {
        frame: visitor.frame("Policy"),
        routes: routes.collect(),
        upstreams: console.pools.conditions().into_iter().collect(),
        store: store(console).await,
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

    /// That none is on a page says nothing of those on others, nor of those that are filtered away.
    #[test]
    fn an_empty_page_promises_no_more_than_it_knows() {
        let found = Found::default();
        let stuck = &TABS[1];
        assert_eq!(nothing(stuck, &found, true).0, "Nothing needs attention");
        assert_eq!(nothing(stuck, &found, false).0, "No such records here");
        let partial = Found {
            is_partial: true,
            ..Found::default()
        };
        let said = nothing(stuck, &partial, true);
        assert_eq!(said.0, "None found so far");
        assert!(said.1.contains("others may follow"));
    }

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
            assert_eq!(figure(Some(value)), text);
        }
        assert_eq!(figure(None), "");
    }

    fn problem(trouble: Option<Trouble>) -> String {
        let frame = Frame {
            base: "./".to_owned(),
            title: "Unknown".to_owned(),
            screen: String::new(),
            who: None,
            is_signed_in: false,
            form: String::new(),
            trouble,
            assets: "",
        };
        let page = Problem {
            frame,
            detail: String::new(),
            is_outage: true,
        };
        page.render().unwrap()
    }

    /// An answer that was lost says nothing about what was done.
    #[test]
    fn an_outage_is_no_promise_that_nothing_was_done() {
        let page = problem(None);
        assert!(
            page.contains("look at it first") && !page.contains("was not done"),
            "{page}"
        );
    }

    /// What the store says may name its address.
    #[test]
    fn strangers_are_not_told_why_the_store_is_down() {
        let page = problem(Some(Trouble {
            is_down: true,
            why: "cannot connect to 10.0.0.7".to_owned(),
            since: None,
        }));
        assert!(page.contains("The store is down") && !page.contains("10.0.0.7"));
    }
}
