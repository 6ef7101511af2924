//! One record: what happened to it, its answer, and what can be done about it.

use askama::Template;
use axum::Extension;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use semel::store::Entry;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::answer::Shown;
use super::pages::{Frame, Row, Told, pages};
use super::{Asked, Form, Proposal, Visitor, see};
use crate::api;
use crate::operations::order::{self, Order};
use crate::operations::view::{Answer, Choice, Detail};
use crate::peer::Peer;
use crate::reconcile;
use crate::refused::Refused;

/// What can be done, as a form has it.
struct Card {
    /// Its name in the audit log.
    name: String,
    /// The form's heading, and what stands on its button.
    words: (&'static str, &'static str),
    choice: Choice,
    /// The role that it needs, where the visitor has a lower one.
    missing: Option<&'static str>,
    needs_two: bool,
    proposals: Vec<Proposal>,
}

impl Card {
    /// What is posted to, and what `--four-eyes` names.
    fn action(&self) -> &str {
        self.name.split('-').next().unwrap_or_default()
    }

    fn words(name: &str) -> Option<(&'static str, &'static str)> {
        Some(match name {
            "resolve-happened" => (
                "It happened: give retries this answer",
                "Resolve: it happened",
            ),
            "resolve-did-not-happen" => ("It did not happen: release the key", "Release the key"),
            "extend" => ("Extend the replay", "Extend"),
            "reveal" => ("Reveal the answer", "Reveal"),
            "erase" => ("Erase the answer", "Erase"),
            _ => return None,
        })
    }
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
    /// Proposals that no form here confirms.
    others: Vec<Proposal>,
    /// What is to be said where there may be more proposals.
    unseen: Option<String>,
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
        "deferred" => ("The store could not be told yet", "warn"),
        "gave_up" => ("The store was never told how it ended", "bad"),
        "reconcile_asked" => ("The reconciler was asked", ""),
        "resolved" => ("Decided", "good"),
        "resolve_refused" => ("The reconciler answered too late", "warn"),
        "still_unknown" => ("The reconciler could not say what happened", "warn"),
        "reconciler_failed" => ("The reconciler failed", "warn"),
        "reconcile_gave_up" => ("The reconciler is not asked any more", "bad"),
        "store_error" => ("The store failed", "warn"),
        "capacity" => ("The store was full", "warn"),
        "overloaded" => ("A request was refused: too many at once", "warn"),
        "limited" => ("A request was refused: its scope’s limit", "warn"),
        other => (other, ""),
    }
}

/// What was done to a record that was completed before.
fn amended(detail: &Detail) -> &'static str {
    let is_omitted = |answer: &Answer| answer.kind == "omitted";
    match detail.outcome.as_ref().is_some_and(is_omitted) && detail.summary.is_expired() {
        true => "Erased",
        false => "Extended, or encrypted anew",
    }
}

fn timeline(row: &Row, detail: &Detail) -> Vec<Moment> {
    let moments = detail.events.iter().map(|event| {
        let (mut what, mark) = words(&event.event);
        let mut more = Vec::new();
        // The record has the latest decision: that of this fence.
        let is_it = |fence| event.event == "resolved" && event.fence == Some(fence);
        if let Some(by) = detail.resolved.as_ref().filter(|by| is_it(by.fence)) {
            let (name, before, after, why) = (&by.by, &by.before, &by.after, &by.reason);
            if before == "completed" {
                what = amended(detail);
                more.push(format!("by {name}: “{why}”"));
            } else {
                more.push(format!("by {name}, from {before} to {after}: “{why}”"));
            }
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
        let (proposals, unseen) = proposals.await;
        let card = |choice: &Choice| {
            let name = choice.action.replace(" --", "-");
            let mut card = Card {
                words: Card::words(&name)?,
                name,
                choice: choice.clone(),
                missing: None,
                needs_two: false,
                proposals: Vec::new(),
            };
            let least = api::least(card.action());
            card.missing = (!visitor.may(least)).then(|| least.as_str());
            card.needs_two = operations.needs_two(card.action());
            let of_it = proposals.iter();
            let of_it = of_it.filter(|(_, intent, _)| intent.action == card.name);
            card.proposals = of_it.cloned().collect();
            Some(card)
        };
        let cards: Vec<Card> = detail.actions.iter().filter_map(card).collect();
        let mut others = proposals.clone();
        others.retain(|(_, intent, _)| !cards.iter().any(|card| card.name == intent.action));
        let mut frame = visitor.frame("Records");
        frame.title = format!("{}: {}", detail.summary.standing(), row.about);
        Self {
            frame,
            told: Told::of(visitor, Some(id.as_str()), &proposals).await,
            timeline: timeline(&row, &detail),
            row,
            shown: None,
            cards,
            others,
            unseen,
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
    // Forms send the ends of lines as CR LF.
    let body = form.get("body").replace("\r\n", "\n");
    match form.filled("status") {
        Some(status) => {
            let wrong = |_| Refused::invalid("status: it is a number from 200 to 599");
            say("status", json!(status.parse::<u16>().map_err(wrong)?));
            if let Some(kind) = form.filled("content-type") {
                // Retries get it from now on, and nobody can take it back.
                if is_json(&kind) && serde_json::from_str::<IgnoredAny>(&body).is_err() {
                    let why =
                        "body: it is not JSON, as its Content-Type says: change either of them";
                    return Err(Refused::invalid(why));
                }
                say("headers", json!({ "content-type": kind }));
            }
        }
        None => drop(say("kind", json!(form.get("kind")))),
    }
    if !body.is_empty() {
        say("body", json!(body));
    }
    Ok(outcome)
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}

/// What became of a form.
enum Became {
    Revealed(Box<(Entry, Shown)>),
    /// Done or proposed, under this number.
    Entered(String),
}

pub(super) async fn act(
    Extension(visitor): Asked,
    Extension(peer): Extension<Peer>,
    Path((id, action)): Path<(String, String)>,
) -> Response {
    let actor = match visitor.acts(api::least(&action), &peer) {
        Ok(actor) => actor,
        Err(problem) => return *problem,
    };
    let (api, asked) = (visitor.console.api.clone(), visitor.clone());
    let (name, what) = (id.clone(), action.clone());
    let became = api::finished(async move {
        let id = order::id(&name)?;
        let order = ordered(&asked.asked, &what)?;
        if what == "reveal" {
            let revealed = api.operations.reveal(&actor, &id, &order).await?;
            return Ok(match revealed {
                Ok((entry, answer)) => Became::Revealed(Box::new((entry, Shown::of(answer)))),
                Err(number) => Became::Entered(number),
            });
        }
        let retention = api.retention(&id, &what).await?;
        let decided = api.operations.act(&actor, &id, &what, order, retention);
        let decided = decided.await?;
        Ok(Became::Entered(decided.number))
    });
    let refused = match became.await {
        Ok(Became::Entered(number)) => return see(&format!("../{id}?entry={number}")),
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
        ("resolve", "true") => "resolve-happened".to_owned(),
        ("resolve", _) => "resolve-did-not-happen".to_owned(),
        _ => action,
    };
    let status = refused.status();
    (page.sent, page.told.refused) = (form, Some(refused));
    (status, page).into_response()
}

#[cfg(test)]
mod tests {
    use semel::Outcome;
    use semel::guard::Signal;

    use super::*;

    /// Each event that a record can have is said in words.
    #[test]
    fn no_metric_stands_among_what_happened() {
        let names = Signal::ALL.iter().map(|signal| signal.as_str());
        let unsaid: Vec<_> = names.filter(|name| words(name).0 == *name).collect();
        // Those before a claim are of no record.
        let before = [
            "unkeyed",
            "unprotected",
            "missing_key",
            "invalid_key",
            "missing_principal",
            "too_large",
            "incomplete_body",
        ];
        assert_eq!(unsaid, before);
    }

    #[test]
    fn what_is_said_to_be_json_is_json() {
        let form = |kind: &str, body: &str| {
            let pairs = [("status", "201"), ("content-type", kind), ("body", body)];
            Form(
                pairs
                    .map(|(name, text)| (name.to_owned(), text.to_owned()))
                    .into(),
            )
        };
        for (kind, body, is_good) in [
            ("application/json", "{\"id\": 4711}", true),
            ("application/json", "{id: 4711}", false),
            ("application/problem+json; charset=utf-8", "", false),
            ("text/plain", "{id: 4711}", true),
            ("", "", true),
        ] {
            assert_eq!(outcome(&form(kind, body)).is_ok(), is_good, "{kind} {body}");
        }
    }

    /// What is told of a record that was decided about twice, the second time by ada.
    fn decided(before: &str, outcome: &Value) -> Vec<Moment> {
        let event = |fence, seen_by: &str| {
            json!({"event": "resolved", "at": null, "times": 1, "last_at": null, "attempt": null,
                   "fence": fence, "seen_by": seen_by, "observed": false})
        };
        let decided = json!({"by": "ada", "reason": "in the books", "at": null, "fence": 9,
                             "before": before, "after": "completed"});
        let record = json!({
            "id": "", "state": "completed", "lapsed": false, "service": "", "operation": "",
            "scope": [], "key_hint": "", "note": {}, "attempt": 2, "fence": 9, "created_at": null,
            "claimed_at": null, "lease_until": null, "settled_at": null,
            "expires_at": "2001-01-01T00:00:00.000000Z", "age_seconds": 0, "resolved": decided,
            "steps": [], "outcome": outcome, "actions": [],
            "events": [event(5, "gateway"), event(9, "store")],
        });
        let detail: Detail = serde_json::from_value(record).unwrap();
        let row = Row {
            summary: detail.summary.clone(),
            about: String::new(),
            lease: String::new(),
        };
        timeline(&row, &detail)
    }

    /// Of those who decided before the record says nothing any more.
    #[test]
    fn who_decided_last_did_not_decide_before() {
        let told = decided("unknown", &Value::Null);
        let told: Vec<_> = told.into_iter().map(|of| of.more).collect();
        let by = "by ada, from unknown to completed: “in the books”";
        assert_eq!(told, ["seen by this gateway", by]);
    }

    #[test]
    fn what_was_completed_before_was_not_decided_about() {
        let answer = |kind| {
            json!(Answer {
                kind,
                ..Answer::redacted(&Outcome::void())
            })
        };
        for (kind, what) in [
            ("omitted", "Erased"),
            ("success", "Extended, or encrypted anew"),
        ] {
            let told = decided("completed", &answer(kind.to_owned()));
            assert_eq!(
                (&*told[1].what, &*told[1].more),
                (what, "by ada: “in the books”")
            );
        }
    }
}
