//! Which records to show, page by page.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel::store::{Cursor, Entry, Label, ListQuery, Store};
use semel::{
    Clock as _, Outcome, OutcomeKind, Service, State, StateKind, StoreErrorKind, SystemClock,
    Timestamp,
};
use tokio::time::Instant;

use super::{is_internal, of_store};
use crate::config::values;
use crate::refused::Refused;

/// How many records a page looks at. Where a filter is not the store's, most of them may not be wanted.
const LOOK: usize = 2_000;
/// How long a page goes on looking. A call of a store's own is not cut short.
const LOOK_FOR: Duration = Duration::from_millis(50);
/// The most on one page.
pub const MOST: usize = 500;
/// What a store is asked for first: its records come with their answers. Where these are short, up to twice as
/// many are next.
const AT_ONCE: usize = 50;
/// How long the answers are to be that come at once, in bytes.
const BYTES: usize = 1 << 20;
/// What an answer may take in a page, in bytes. One that is kept elsewhere, with its place, takes less.
const LONG: usize = 4 << 10;

/// Which records to show. The store filters by state, and by lapsed leases; the rest is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    state: Option<StateKind>,
    /// In flight past their lease, by the store's clock.
    lapsed: bool,
    /// Unknown, or lapsed: what somebody should look at.
    stuck: bool,
    service: Option<String>,
    operation: Option<String>,
    /// As the note names it.
    route: Option<String>,
    /// What a scope begins with.
    scope: Vec<String>,
    older: Option<Duration>,
}

/// The names that a filter is written with.
const NAMES: [&str; 8] = [
    "state",
    "lapsed",
    "stuck",
    "service",
    "operation",
    "route",
    "scope",
    "older",
];

impl Filter {
    /// From pairs of name and value, as they stand in a query. `scope` may come several times: its segments.
    ///
    /// # Errors
    /// What cannot be understood.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Refused> {
        let mut filter = Self::default();
        for (name, value) in pairs {
            let wrong = |why: String| Refused::invalid(format!("{name}: {why}"));
            match name {
                "state" => filter.state = Some(state(value).map_err(wrong)?),
                "lapsed" => filter.lapsed = values::boolean(value).map_err(wrong)?,
                "stuck" => filter.stuck = values::boolean(value).map_err(wrong)?,
                "service" => {
                    Service::new(value).map_err(|error| wrong(error.to_string()))?;
                    filter.service = Some(value.to_owned());
                }
                "operation" => filter.operation = Some(value.to_owned()),
                "route" => filter.route = Some(value.to_owned()),
                "scope" => filter.scope.push(value.to_owned()),
                "older" => filter.older = Some(values::duration(value).map_err(wrong)?),
                _ => {
                    let known = NAMES.join(", ");
                    let why = format!("there is no such filter; there are {known}");
                    return Err(wrong(why));
                }
            }
        }
        let in_flight = filter
            .state
            .is_none_or(|state| state == StateKind::InFlight);
        if filter.lapsed && !in_flight {
            return Err(Refused::invalid(
                "lapsed: only records in flight have a lease",
            ));
        }
        if filter.stuck && (filter.state.is_some() || filter.lapsed) {
            let why =
                "stuck: these are the unknown and the lapsed ones, so without state and lapsed";
            return Err(Refused::invalid(why));
        }
        Ok(filter)
    }

    /// What the store is asked for, one after the other: what somebody should look at first.
    fn sections(&self) -> Vec<(StateKind, bool)> {
        use StateKind::{Completed, InFlight, Released, Unknown};
        match self.state {
            _ if self.stuck => vec![(Unknown, false), (InFlight, true)],
            _ if self.lapsed => vec![(InFlight, true)],
            Some(state) => vec![(state, false)],
            None => [Unknown, InFlight, Completed, Released]
                .map(|state| (state, false))
                .to_vec(),
        }
    }

    /// Whether records of this name are wanted, as far as it says.
    pub(super) fn names(&self, label: &Label) -> bool {
        let (operation, service) = Service::split(&label.operation);
        let is =
            |wanted: &Option<String>, given: &str| wanted.as_deref().is_none_or(|w| w == given);
        !is_internal(label)
            && is(&self.service, service)
            && is(&self.operation, operation)
            && label.scope.segments().len() >= self.scope.len()
            && self
                .scope
                .iter()
                .zip(label.scope.segments())
                .all(|(wanted, given)| wanted == given)
    }

    fn lets_through(&self, entry: &Entry, now: Timestamp) -> bool {
        self.names(&entry.label)
            && (self.route.is_none() || self.route.as_deref() == entry.record.note.get("route"))
            && self
                .older
                .is_none_or(|older| entry.record.created_at.until(now) >= older)
    }
}

fn state(name: &str) -> Result<StateKind, String> {
    let found = StateKind::ALL
        .into_iter()
        .find(|state| state.as_str() == name);
    found.ok_or_else(|| {
        let known = StateKind::ALL.map(StateKind::as_str).join(", ");
        format!("there is no state `{name}`; there are {known}")
    })
}

/// Where a page begins. As text it is opaque: one page makes it for the next.
///
/// These are the parts of the list that are not at their end; none is the beginning of all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position(Vec<Part>);

/// One of the sections, from here on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    section: u8,
    after: Option<Cursor>,
}

impl Position {
    /// From its text.
    ///
    /// # Errors
    /// What no page made.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| not_ours())?;
        let (mut rest, mut parts) = (&*bytes, Vec::<Part>::new());
        while let [section, high, low, behind @ ..] = rest {
            let length = u16::from_be_bytes([*high, *low]).into();
            let (after, behind) = behind.split_at_checked(length).ok_or_else(not_ours)?;
            if parts.last().is_some_and(|last| last.section >= *section) {
                return Err(not_ours());
            }
            parts.push(Part {
                section: *section,
                after: (!after.is_empty()).then(|| Cursor(after.into())),
            });
            rest = behind;
        }
        match rest.is_empty() && !parts.is_empty() {
            true => Ok(Self(parts)),
            false => Err(not_ours()),
        }
    }
}

fn not_ours() -> Refused {
    Refused::invalid("cursor: it is not one that a page of this list made")
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = Vec::new();
        for Part { section, after } in &self.0 {
            let after = after.as_ref().map_or(&[][..], |cursor| &cursor.0);
            let length = u16::try_from(after.len()).map_err(|_| std::fmt::Error)?;
            bytes.push(*section);
            bytes.extend(length.to_be_bytes());
            bytes.extend(after);
        }
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// A page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// What is on it; may be less than was asked for.
    pub entries: Vec<Entry>,
    /// Where to go on; `None` at the end.
    pub next: Option<Position>,
    /// How many records were looked at for it.
    pub looked_at: usize,
    /// Whether a section was left at a bound: others may follow even where it is empty, and what somebody should
    /// look at may come after what nobody needs to.
    pub is_partial: bool,
}

/// The present by this machine's clock. It says how old records are, to people; no protocol step is
/// decided by it (R6).
pub(crate) fn about_now() -> Timestamp {
    SystemClock::default().now()
}

/// Of its answer, in bytes.
fn length(entry: &Entry) -> usize {
    match &entry.record.state {
        State::Completed(outcome) => outcome.as_bytes().len(),
        _ => 0,
    }
}

/// How many records to ask for, after that many with answers of so many bytes.
fn next_at_once(at_once: usize, seen: usize, bytes: usize) -> usize {
    let fit = seen * BYTES / bytes.max(1);
    fit.clamp(AT_ONCE, (at_once * 2).min(MOST))
}

/// The same without a long answer: no list shows it.
fn light(mut entry: Entry) -> Entry {
    let is_long = length(&entry) > LONG;
    if let State::Completed(outcome) = &mut entry.record.state
        && outcome.kind() != OutcomeKind::Omitted
        && is_long
    {
        *outcome = Outcome::builder(outcome.kind()).void();
    }
    entry
}

/// Each section in turn, what somebody should look at first. A store without an index by state may look long
/// for a section and find nothing, so each has its share of the time, and one look in any case: a page shows
/// what is there, and the next one goes on in all that are not at their end.
pub(super) async fn page<S: Store>(
    store: &S,
    filter: &Filter,
    from: &Position,
    limit: usize,
) -> Result<Found, Refused> {
    let limit = limit.clamp(1, MOST);
    let sections = filter.sections();
    let mut parts = from.0.clone();
    if parts.is_empty() {
        let all = (0..).zip(&sections);
        parts.extend(all.map(|(section, _)| Part {
            section,
            after: None,
        }));
    }
    let (begun, now) = (Instant::now(), about_now());
    let mut until = begun;
    let share = LOOK_FOR / u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let mut found = Found::default();
    let mut open = Vec::new();
    for mut part in parts {
        let mut at_once = AT_ONCE;
        let (state, lapsed) = *sections
            .get(usize::from(part.section))
            .ok_or_else(not_ours)?;
        until += share;
        loop {
            if found.entries.len() >= limit {
                open.push(part);
                break;
            }
            let query = ListQuery {
                lapsed,
                after: part.after.take(),
                limit: (limit - found.entries.len()).min(at_once),
                ..ListQuery::new(state)
            };
            let page = store
                .list(&query)
                .await
                .map_err(|error| match error.kind() {
                    // Stores check the cursors that they made.
                    StoreErrorKind::Config | StoreErrorKind::NotApplied
                        if query.after.is_some() =>
                    {
                        Refused::invalid(format!("cursor: {error}"))
                    }
                    _ => of_store(error),
                })?;
            // A page that ends at its bound may have looked at more than it shows.
            found.looked_at += page.entries.len().max(1);
            let (seen, bytes) = (page.entries.len(), page.entries.iter().map(length).sum());
            at_once = next_at_once(at_once, seen, bytes);
            let wanted = page
                .entries
                .into_iter()
                .filter(|entry| filter.lets_through(entry, now));
            found.entries.extend(wanted.map(light));
            part.after = page.next;
            if part.after.is_none() {
                break;
            }
            let is_full = found.entries.len() >= limit;
            if !is_full && (found.looked_at >= LOOK || Instant::now() >= until) {
                found.is_partial = true;
                open.push(part);
                break;
            }
        }
    }
    found.next = (!open.is_empty()).then_some(Position(open));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Code;

    #[test]
    fn what_is_not_understood_is_said() {
        for (pairs, part) in [
            (
                &[("state", "lost")][..],
                "there are in-flight, unknown, completed, released",
            ),
            (
                &[("method", "POST")],
                "there is no such filter; there are state",
            ),
            (&[("older", "1 moon")], "older: `1 moon` is not a duration"),
            (
                &[("service", "a b")],
                "service: `a b` cannot name a service",
            ),
            (
                &[("state", "unknown"), ("lapsed", "true")],
                "only records in flight",
            ),
            (&[("stuck", "true"), ("state", "unknown")], "without state"),
        ] {
            let refused = Filter::of(pairs.iter().copied()).unwrap_err();
            assert!(refused.is(Code::InvalidRequest), "{refused}");
            assert!(refused.detail().contains(part), "{refused}");
        }
    }

    #[test]
    fn more_is_asked_for_only_where_answers_are_seen_to_be_short() {
        assert_eq!(next_at_once(50, 50, 50 * 200), 100);
        assert_eq!(next_at_once(400, 400, 400 * 200), MOST);
        assert_eq!(next_at_once(400, 400, 400 << 20), 50);
        assert_eq!(next_at_once(100, 0, 0), 50);
        assert_eq!(next_at_once(200, 200, 200 * 10_000), 104);
    }

    #[test]
    fn a_position_survives_its_text() {
        let part = |section, after: Option<&[u8]>| Part {
            section,
            after: after.map(|after| Cursor(after.into())),
        };
        for parts in [
            vec![part(2, None)],
            vec![
                part(0, Some(&[0, 255, 7])),
                part(1, None),
                part(3, Some(&[1; 300])),
            ],
        ] {
            let position = Position(parts);
            assert_eq!(Position::parse(&position.to_string()), Ok(position));
        }
        let twice = Position(vec![part(1, None), part(1, None)]).to_string();
        for text in ["", "*", "a b", "AAAB", "AAAA_w", &twice] {
            assert!(Position::parse(text).is_err(), "{text}");
        }
    }
}
