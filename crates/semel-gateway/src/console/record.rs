//! One record: what happened to it, its answer, and what can be done about it.

use askama::Template;
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use semel::IdentityDigest;
use semel::store::Entry;
use serde_json::{Map, Value, json};

use super::answer::Shown;
use super::pages::{Frame, Row, pages};
use super::{Console, Form, Query, Shared, Visitor, form_of, see};
use crate::access::Role;
use crate::api;
use crate::audit::{Came, Number};
use crate::operations::order::{self, Order};
use crate::operations::view::{Choice, Detail, Event, Resolution, time};
use crate::operations::{CONFIRMED_WITHIN, about_now};
use crate::peer::Peer;
use crate::reconcile;
use crate::refused::Refused;

/// How many of the audit log's last entries are looked at for proposals.
const LOOK: usize = 100;

/// What can be done, as forms have it.
struct Card {
    /// The form's name, and the heading.
    name: &'static str,
    title: &'static str,
    /// What is posted to.
    action: &'static str,
    effect: String,
    risk: String,
    /// The role that it needs, where the visitor has a lower one.
    missing: Option<&'static str>,
    needs_two: bool,
    proposals: Vec<Proposal>,
}

/// What somebody proposed and nobody confirmed.
#[derive(Clone)]
struct Proposal {
    number: String,
    by: String,
    at: Option<String>,
    reason: String,
    is_own: bool,
}

#[derive(Template)]
#[template(path = "record.html")]
struct Page {
    frame: Frame,
    row: Row,
    detail: Detail,
    timeline: Vec<Moment>,
    shown: Option<Shown>,
    cards: Vec<Card>,
    is_http: bool,
    /// What was sent last and did not do anything, and why.
    sent: Form,
    sent_as: String,
    refused: Option<Refused>,
    /// An entry of the audit log that was just made, and whether it waits for somebody else.
    done: Option<(String, bool)>,
}

pages!(Page);

/// Something that happened to the record.
struct Moment {
    at: Option<String>,
    /// The last time, where it happened several times.
    until: Option<String>,
    what: String,
    more: String,
    mark: &'static str,
}

impl Page {
    /// What was written into a field of the form that was sent last.
    fn sent(&self, card: &str, field: &str) -> &str {
        if self.sent_as == card {
            self.sent.get(field)
        } else {
            ""
        }
    }
}

/// An event in words, and how it is marked.
fn words(event: &str) -> (&str, &'static str) {
    match event {
        "new" => ("Claimed", ""),
        "again" => ("Claimed again", "warn"),
        "renewed" => ("Lease renewed", ""),
        "step_kept" => ("Step finished", ""),
        "step_replayed" => ("Step taken from an earlier attempt", ""),
        "replayed" => ("Answer replayed", "good"),
        "in_flight" => ("A duplicate came while it ran", "warn"),
        "mismatch" => ("The key came with another request", "bad"),
        "unknown" => ("A retry was refused: outcome unknown", "warn"),
        "expired" => ("A retry was refused: expired", "warn"),
        "completed" => ("Completed", "good"),
        "omitted" => ("Completed, without keeping the answer", "good"),
        "released" => ("Released: free to run again", ""),
        "marked_unknown" => ("The outcome became unknown", "bad"),
        "stale" => ("A late attempt was refused", "bad"),
        "resolved" => ("Decided", "good"),
        other => (other, ""),
    }
}

fn timeline(row: &Row, detail: &Detail) -> Vec<Moment> {
    let of_event = |event: &Event| {
        let (what, mark) = words(&event.event);
        let mut more = Vec::new();
        if let Some(resolved) = detail
            .resolved
            .as_ref()
            .filter(|_| event.event == "resolved")
        {
            let Resolution {
                by,
                before,
                after,
                reason,
                ..
            } = resolved;
            more.push(format!("by {by}, from {before} to {after}: “{reason}”"));
        }
        more.extend(event.attempt.map(|attempt| format!("attempt {attempt}")));
        if event.times > 1 {
            more.push(format!("{} times", event.times));
        }
        if event.seen_by == "gateway" {
            more.push("seen by this gateway".to_owned());
        }
        if event.observed {
            more.push("only observed".to_owned());
        }
        Moment {
            at: event.at.clone(),
            until: event.last_at.clone().filter(|_| event.times > 1),
            what: what.to_owned(),
            more: more.join(", "),
            mark,
        }
    };
    let mut all: Vec<Moment> = detail.events.iter().map(of_event).collect();
    if detail.summary.lapsed {
        all.push(Moment {
            at: detail.summary.lease_until.clone(),
            until: None,
            what: "The lease lapsed".to_owned(),
            more: row.lease.clone(),
            mark: "bad",
        });
    }
    all
}

pub(super) async fn show(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    Path(id): Path<String>,
    query: Query,
) -> Response {
    let asked = form_of(query);
    let found = async { console.api.operations.find(&order::id(&id)?).await };
    let entry = match found.await {
        Ok(entry) => entry,
        Err(refused) => return console.refused(&visitor, &refused),
    };
    let mut page = page(&console, &visitor, &entry).await;
    let number = |name: &str| {
        asked
            .get(name)
            .parse::<Number>()
            .ok()
            .map(|number| number.to_string())
    };
    let done = number("done").map(|number| (number, false));
    page.done = done.or_else(|| number("proposed").map(|number| (number, true)));
    page.into_response()
}

async fn page(console: &Console, visitor: &Visitor, entry: &Entry) -> Page {
    let (detail, row) = (console.api.operations.detail(entry), Row::of(entry));
    let proposals = proposals(console, visitor, &entry.label.digest, detail.summary.fence).await;
    let cards = cards(console, visitor, &detail, &proposals);
    Page {
        frame: console.frame(visitor, "Record"),
        timeline: timeline(&row, &detail),
        row,
        shown: None,
        cards,
        is_http: detail.summary.operation == reconcile::OPERATION,
        sent: Form::default(),
        sent_as: String::new(),
        refused: None,
        done: None,
        detail,
    }
}

/// The family of an action, as `--four-eyes` names it, the form's name, heading and least role.
fn known(choice: &Choice) -> Option<(&'static str, &'static str, &'static str, Role)> {
    Some(match choice.action.as_str() {
        "resolve --happened" => (
            "resolve",
            "happened",
            "It happened: give retries this answer",
            Role::Operator,
        ),
        "resolve --did-not-happen" => (
            "resolve",
            "not-happened",
            "It did not happen: release the key",
            Role::Operator,
        ),
        "extend" => ("extend", "extend", "Extend the replay", Role::Operator),
        "reveal" => ("reveal", "reveal", "Reveal the answer", Role::Operator),
        "erase" => ("erase", "erase", "Erase the answer", Role::Admin),
        _ => return None,
    })
}

fn cards(
    console: &Console,
    visitor: &Visitor,
    detail: &Detail,
    proposals: &[(String, Proposal)],
) -> Vec<Card> {
    let card = |choice: &Choice| {
        let (action, name, title, least) = known(choice)?;
        let audited = match name {
            "happened" => "resolve-happened",
            "not-happened" => "resolve-did-not-happen",
            other => other,
        };
        let of_it = proposals.iter().filter(|(proposed, _)| proposed == audited);
        Some(Card {
            name,
            title,
            action,
            effect: choice.effect.clone(),
            risk: choice.risk.clone(),
            missing: (!visitor.may(least)).then(|| least.as_str()),
            needs_two: console.api.operations.needs_two(action),
            proposals: of_it.map(|(_, proposal)| proposal.clone()).collect(),
        })
    };
    detail.actions.iter().filter_map(card).collect()
}

/// The open proposals about a record as it is, with what they propose.
async fn proposals(
    console: &Console,
    visitor: &Visitor,
    id: &IdentityDigest,
    fence: u64,
) -> Vec<(String, Proposal)> {
    let operations = &console.api.operations;
    let families = crate::operations::ACTIONS;
    if !families.iter().any(|family| operations.needs_two(family)) {
        return Vec::new();
    }
    let Ok(page) = operations.log().page(None, LOOK).await else {
        return Vec::new();
    };
    let id = id.to_string();
    let earliest = time(about_now().before(CONFIRMED_WITHIN));
    // Once, whatever came of it.
    let confirmed = |number: &str| {
        let mut intents = page
            .entries
            .iter()
            .filter_map(|entry| entry.intent.as_ref());
        intents.any(|intent| intent.confirms.as_deref() == Some(number))
    };
    let me = visitor.caller.as_ref().map(crate::access::Caller::name);
    let open = page
        .entries
        .iter()
        .filter(|entry| entry.result == Came::Proposed && entry.at >= earliest);
    let of_it = open.filter_map(|entry| {
        let intent = entry.intent.as_ref()?;
        let about = intent
            .before
            .as_ref()
            .and_then(|before| before["fence"].as_u64());
        let is_open =
            intent.id.as_deref() == Some(&*id) && about == Some(fence) && !confirmed(&entry.number);
        is_open.then(|| {
            let proposal = Proposal {
                number: entry.number.clone(),
                by: intent.by.clone(),
                at: entry.at.clone(),
                reason: intent.reason.clone(),
                is_own: me == Some(&*intent.by),
            };
            (intent.action.clone(), proposal)
        })
    });
    of_it.collect()
}

/// What a form orders.
fn ordered(form: &Form, action: &str) -> Result<Order, Refused> {
    let happened = match form.get("happened") {
        "" => None,
        text => Some(text == "true"),
    };
    let outcome = (happened == Some(true))
        .then(|| outcome(form))
        .transpose()?;
    let fence = form.get("fence").parse();
    let fence =
        fence.map_err(|_| Refused::invalid("fence: the form has none: open the page again"))?;
    Ok(Order {
        // Whoever looks at an answer decides nothing.
        fence: (action != "reveal").then_some(fence),
        reason: form.get("reason").replace("\r\n", "\n"),
        happened,
        outcome,
        ttl: form.filled("ttl"),
        proposal: form.filled("proposal"),
    })
}

fn outcome(form: &Form) -> Result<Map<String, Value>, Refused> {
    // Forms send the ends of lines as CR LF.
    let body = form.get("body").replace("\r\n", "\n");
    let mut outcome = Map::new();
    match form.filled("status") {
        Some(status) => {
            let wrong = |_| Refused::invalid("status: it is a number from 200 to 599");
            outcome.insert(
                "status".to_owned(),
                json!(status.parse::<u16>().map_err(wrong)?),
            );
            if let Some(kind) = form.filled("content-type") {
                outcome.insert("headers".to_owned(), json!({ "content-type": kind }));
            }
        }
        None => {
            outcome.insert("kind".to_owned(), json!(form.get("kind")));
        }
    }
    if !body.is_empty() {
        outcome.insert("body".to_owned(), json!(body));
    }
    Ok(outcome)
}

/// What became of a form.
enum Became {
    Revealed(Box<(Entry, Shown)>),
    Done(String),
    Proposed(String),
}

pub(super) async fn act(
    State(console): Shared,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Form>,
    Extension(peer): Extension<Peer>,
    Path((id, action)): Path<(String, String)>,
) -> Response {
    let least = match action.as_str() {
        "erase" => Role::Admin,
        _ => Role::Operator,
    };
    let Some(caller) = visitor.caller.clone() else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    if let Err(refused) = caller.require(least) {
        let title = "You are not allowed to do this";
        return console.problem(&visitor, StatusCode::FORBIDDEN, title, refused.detail());
    }
    let actor = api::actor(&caller, &peer);
    let (api, given, name) = (console.api.clone(), form.clone(), id.clone());
    let what = action.clone();
    let became = api::finished(async move {
        let id = order::id(&name)?;
        let order = ordered(&given, &what)?;
        if what == "reveal" {
            return match api.operations.reveal(&actor, &id, &order).await? {
                Ok(answer) => {
                    let entry = api.operations.find(&id).await?;
                    Ok(Became::Revealed(Box::new((entry, Shown::of(answer)))))
                }
                Err(number) => Ok(Became::Proposed(number)),
            };
        }
        let default_ttl = api.default_ttl(&id).await;
        let decided = api
            .operations
            .act(&actor, &id, &what, order, default_ttl)
            .await?;
        Ok(match decided.is_proposed {
            true => Became::Proposed(decided.number),
            false => Became::Done(decided.number),
        })
    });
    let refused = match became.await {
        Ok(Became::Done(number)) => return see(&format!("../{id}?done={number}")),
        Ok(Became::Proposed(number)) => return see(&format!("../{id}?proposed={number}")),
        Ok(Became::Revealed(revealed)) => {
            let (entry, shown) = *revealed;
            let mut page = page(&console, &visitor, &entry).await;
            page.shown = Some(shown);
            return page.into_response();
        }
        Err(refused) => refused,
    };
    // What was written is not lost: it stands in the form again, beside why nothing was done.
    let entry = async { console.api.operations.find(&order::id(&id)?).await };
    let Ok(entry) = entry.await else {
        return console.refused(&visitor, &refused);
    };
    let mut page = page(&console, &visitor, &entry).await;
    page.sent_as = match (action.as_str(), form.get("happened")) {
        ("resolve", "true") => "happened".to_owned(),
        ("resolve", _) => "not-happened".to_owned(),
        _ => action,
    };
    let status = refused.status();
    (page.sent, page.refused) = (form, Some(refused));
    (status, page).into_response()
}
