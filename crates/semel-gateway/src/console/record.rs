//! One record: what happened to it, its answer, and what can be done about it.

use askama::Template;
use axum::Extension;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use semel::store::Entry;
use serde_json::{Map, Value, json};

use super::answer::Shown;
use super::pages::{Frame, Row, Told, pages};
use super::{Asked, Form, Proposal, Visitor, see};
use crate::api;
use crate::operations::order::{self, Order};
use crate::operations::view::{Choice, Detail};
use crate::peer::Peer;
use crate::reconcile;
use crate::refused::Refused;

/// An action as a form.
struct Kind {
    /// Its name among the API's choices.
    choice: &'static str,
    /// What is posted to, and what `--four-eyes` names.
    action: &'static str,
    /// Its name in the audit log.
    audited: &'static str,
    /// The form's name, its heading, and what stands on its button.
    name: &'static str,
    title: &'static str,
    button: &'static str,
}

#[rustfmt::skip]
const KINDS: [Kind; 5] = [
    Kind { choice: "resolve --happened", action: "resolve", audited: "resolve-happened",
           name: "happened", title: "It happened: give retries this answer", button: "Resolve: it happened" },
    Kind { choice: "resolve --did-not-happen", action: "resolve", audited: "resolve-did-not-happen",
           name: "not-happened", title: "It did not happen: release the key", button: "Release the key" },
    Kind { choice: "extend", action: "extend", audited: "extend",
           name: "extend", title: "Extend the replay", button: "Extend" },
    Kind { choice: "reveal", action: "reveal", audited: "reveal",
           name: "reveal", title: "Reveal the answer", button: "Reveal" },
    Kind { choice: "erase", action: "erase", audited: "erase",
           name: "erase", title: "Erase the answer", button: "Erase" },
];

/// What can be done, as forms have it.
struct Card {
    kind: &'static Kind,
    choice: Choice,
    /// The role that it needs, where the visitor has a lower one.
    missing: Option<&'static str>,
    needs_two: bool,
    proposals: Vec<Proposal>,
}

#[derive(Template)]
#[template(path = "record.html")]
struct Page {
    frame: Frame,
    told: Told,
    row: Row,
    detail: Detail,
    timeline: Vec<Moment>,
    shown: Option<Shown>,
    cards: Vec<Card>,
    /// Whether all proposals were looked for.
    are_all: bool,
    is_http: bool,
    /// What was sent last and did not do anything.
    sent: Form,
    sent_as: String,
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
    let moments = detail.events.iter().map(|event| {
        let (what, mark) = words(&event.event);
        let mut more = Vec::new();
        // The record has the latest decision: that of this fence.
        let is_it = |fence| event.event == "resolved" && event.fence == Some(fence);
        if let Some(by) = detail.resolved.as_ref().filter(|by| is_it(by.fence)) {
            let (name, before, after, why) = (&by.by, &by.before, &by.after, &by.reason);
            more.push(format!("by {name}, from {before} to {after}: “{why}”"));
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
    });
    let lapsed = detail.summary.lapsed.then(|| Moment {
        at: detail.summary.lease_until.clone(),
        until: None,
        what: "The lease lapsed".to_owned(),
        more: row.lease.clone(),
        mark: "bad",
    });
    moments.chain(lapsed).collect()
}

pub(super) async fn show(Extension(visitor): Asked, Path(id): Path<String>) -> Response {
    let page = async {
        let entry = find(&visitor, &id).await?;
        Ok(Page::of(&visitor, &entry).await)
    };
    visitor.shown(page.await)
}

/// Where a form was sent to there is nothing to look at but the record.
pub(super) async fn back(
    Extension(visitor): Asked,
    Path((id, _)): Path<(String, String)>,
) -> Response {
    visitor.shown(order::id(&id).map(|id| see(&format!("../{id}"))))
}

async fn find(visitor: &Visitor, id: &str) -> Result<Entry, Refused> {
    visitor.console.api.operations.find(&order::id(id)?).await
}

impl Page {
    async fn of(visitor: &Visitor, entry: &Entry) -> Self {
        let operations = &visitor.console.api.operations;
        let (detail, row) = (operations.detail(entry), Row::of(entry));
        let (id, fence) = (&detail.summary.id, Some(detail.summary.fence));
        let proposals = visitor.proposals(|intent| {
            let before = intent.before.as_ref();
            let seen = before.and_then(|before| before["fence"].as_u64());
            intent.id.as_ref() == Some(id) && seen == fence
        });
        let (proposals, are_all) = proposals.await;
        let card = |choice: &Choice| {
            let kind = KINDS.iter().find(|kind| kind.choice == choice.action)?;
            let least = api::least(kind.action);
            let of_it = proposals.iter();
            let of_it = of_it.filter(|(_, intent, _)| intent.action == kind.audited);
            Some(Card {
                kind,
                choice: choice.clone(),
                missing: (!visitor.may(least)).then(|| least.as_str()),
                needs_two: operations.needs_two(kind.action),
                proposals: of_it.cloned().collect(),
            })
        };
        Self {
            frame: visitor.frame("Record"),
            told: Told::of(&visitor.asked),
            timeline: timeline(&row, &detail),
            row,
            shown: None,
            cards: detail.actions.iter().filter_map(card).collect(),
            are_all,
            is_http: detail.summary.operation == reconcile::OPERATION,
            sent: Form::default(),
            sent_as: String::new(),
            detail,
        }
    }
}

/// What a form orders.
fn ordered(form: &Form, action: &str) -> Result<Order, Refused> {
    let happened = form.filled("happened").map(|text| text == "true");
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
    let mut outcome = Map::new();
    let mut say = |name: &str, value| outcome.insert(name.to_owned(), value);
    match form.filled("status") {
        Some(status) => {
            let wrong = |_| Refused::invalid("status: it is a number from 200 to 599");
            say("status", json!(status.parse::<u16>().map_err(wrong)?));
            if let Some(kind) = form.filled("content-type") {
                say("headers", json!({ "content-type": kind }));
            }
        }
        None => drop(say("kind", json!(form.get("kind")))),
    }
    // Forms send the ends of lines as CR LF.
    let body = form.get("body").replace("\r\n", "\n");
    if !body.is_empty() {
        say("body", json!(body));
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
    Extension(visitor): Asked,
    Extension(peer): Extension<Peer>,
    Path((id, action)): Path<(String, String)>,
) -> Response {
    let caller = match visitor.allowed(api::least(&action)) {
        Ok(caller) => caller,
        Err(problem) => return *problem,
    };
    let actor = api::actor(caller, &peer);
    let (api, asked) = (visitor.console.api.clone(), visitor.clone());
    let (name, what) = (id.clone(), action.clone());
    let became = api::finished(async move {
        let id = order::id(&name)?;
        let order = ordered(&asked.asked, &what)?;
        if what == "reveal" {
            let revealed = api.operations.reveal(&actor, &id, &order).await?;
            return Ok(match revealed {
                Ok((entry, answer)) => Became::Revealed(Box::new((entry, Shown::of(answer)))),
                Err(number) => Became::Proposed(number),
            });
        }
        let ttl = api.default_ttl(&id).await;
        let decided = api.operations.act(&actor, &id, &what, order, ttl).await?;
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
            let mut page = Page::of(&visitor, &entry).await;
            page.shown = Some(shown);
            return page.into_response();
        }
        Err(refused) => refused,
    };
    // What was written is not lost: it stands in the form again, beside why nothing was done.
    let Ok(entry) = find(&visitor, &id).await else {
        return visitor.refused(&refused);
    };
    let mut page = Page::of(&visitor, &entry).await;
    let form = visitor.asked.clone();
    page.sent_as = match (action.as_str(), form.get("happened")) {
        ("resolve", "true") => "happened".to_owned(),
        ("resolve", _) => "not-happened".to_owned(),
        _ => action,
    };
    let status = refused.status();
    (page.sent, page.told.refused) = (form, Some(refused));
    (status, page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of those who decided before the record says nothing any more.
    #[test]
    fn who_decided_last_did_not_decide_before() {
        let event = |event: &str, fence, seen_by: &str| {
            json!({"event": event, "at": null, "times": 1, "last_at": null, "attempt": null,
                   "fence": fence, "seen_by": seen_by, "observed": false})
        };
        let decided = json!({"by": "ada", "reason": "in the books", "at": null, "fence": 9,
                             "before": "unknown", "after": "completed"});
        let record = json!({
            "id": "", "state": "completed", "lapsed": false, "service": "", "operation": "",
            "scope": [], "key_hint": "", "note": {}, "attempt": 2, "fence": 9, "created_at": null,
            "claimed_at": null, "lease_until": null, "settled_at": null, "expires_at": null,
            "age_seconds": 0, "resolved": decided, "steps": [], "outcome": null, "actions": [],
            "events": [event("resolved", 5, "gateway"), event("resolved", 9, "store")],
        });
        let detail: Detail = serde_json::from_value(record).unwrap();
        let row = Row {
            summary: detail.summary.clone(),
            about: String::new(),
            lease: String::new(),
        };
        let told: Vec<_> = timeline(&row, &detail)
            .into_iter()
            .map(|of| of.more)
            .collect();
        let by = "by ada, from unknown to completed: “in the books”";
        assert_eq!(told, ["seen by this gateway", by]);
    }
}
