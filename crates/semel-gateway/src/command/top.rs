//! `semel top`: what a gateway does now, in the terminal.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Command};
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::line::text;
use super::records::{Desk, Failure, Heard, clean, columns, desk, json, line_of, print, run, say};
use crate::config::values;
use crate::events::names;
use crate::operations::view::{Count, Overview, Summary, age};

/// How many records are shown of each kind.
const RECORDS: usize = 100;
/// How many events are kept to be shown.
const EVENTS: usize = 100;
/// After so long without an answer what is shown is said to be old.
const LATE: Duration = Duration::from_secs(3);
/// Not shown one by one: they are most of what happens, and all is well.
const USUAL: [&str; 7] = [
    "unkeyed",
    "new",
    "completed",
    "replayed",
    "renewed",
    "step_kept",
    "step_replayed",
];
/// What is counted, and what it is called.
const RATES: [(&str, &[&str]); 8] = [
    ("new", &["new"]),
    ("replayed", &["replayed"]),
    ("again", &["again"]),
    ("in flight", &["in_flight"]),
    ("mismatch", &["mismatch"]),
    ("unknown", &["marked_unknown"]),
    ("stale", &["stale"]),
    ("store errors", &["store_error"]),
];

/// `semel top`.
pub fn command() -> Command {
    Command::new("top")
        .about("Shows what happens now: rates, records that are stuck or in flight, events")
        .after_help(
            "Keys: q ends it, s shows only stuck records or all, p stops the picture.\n\
             Where no terminal is, or with --json, it shows once how things stand.",
        )
        .arg(text("interval", "DUR", "How often it looks").default_value("1s"))
        .arg(json())
        .args(desk())
}

/// Shows it until somebody ends it.
pub fn main(flags: &ArgMatches) -> ExitCode {
    run(flags, async |desk| {
        let every = text_of(flags, "interval");
        let every = values::duration(every)
            .ok()
            .filter(|every| *every >= Duration::from_millis(100));
        let every = every.ok_or_else(|| {
            let why = "--interval: it is a duration of 100ms at least, like 2s";
            Failure::Misused(why.to_owned())
        })?;
        let first = Snapshot::take(desk).await?;
        if flags.get_flag("json") {
            say(line_of(&first)?);
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            first.print();
            return Ok(());
        }
        let mut screen = Screen::open()?;
        live(&mut screen.0, desk, first, every).await
    })
}

fn text_of<'a>(flags: &'a ArgMatches, name: &str) -> &'a str {
    super::records::text(flags, name).unwrap_or_default()
}

/// How things stand.
#[derive(Debug, Serialize)]
struct Snapshot {
    overview: Overview,
    /// Unknown and lapsed ones first, then those in flight.
    records: Vec<Summary>,
    /// Whether there may be more of them.
    more: bool,
}

impl Snapshot {
    async fn take(desk: &Desk) -> Result<Self, Failure> {
        let overview = desk.overview().await?;
        let of = |name, value: &str| [(name, value.to_owned())];
        let stuck = desk.list(&of("stuck", "true"), None, RECORDS).await?;
        let running = desk.list(&of("state", "in-flight"), None, RECORDS).await?;
        let more = stuck.next.is_some() || running.next.is_some();
        let mut known = HashSet::new();
        let mut records = stuck.records;
        records.extend(running.records);
        records.retain(|record| known.insert(record.id.clone()));
        Ok(Self {
            overview,
            records,
            more,
        })
    }

    fn print(&self) {
        say(self.standing());
        let events = &self.overview.events;
        if !events.is_empty() {
            let names = RATES.map(|(name, _)| name);
            columns(names, &[RATES.map(|(_, of)| total(events, of).to_string())]);
        }
        print::table(&self.records);
        if self.more {
            say("there are more: semel records list");
        }
    }

    /// The store, and how many records somebody may have to look at.
    fn standing(&self) -> String {
        let Overview { store, records, .. } = &self.overview;
        let why = store.why.as_deref().map(|why| format!(" ({})", clean(why)));
        format!(
            "store {}{}   unknown {}   lapsed {}   in flight {}",
            store.condition,
            why.unwrap_or_default(),
            counted(records.unknown),
            counted(records.lapsed),
            counted(records.in_flight),
        )
    }
}

fn counted(count: Option<Count>) -> String {
    match count {
        None => "?".to_owned(),
        Some(Count { records, more }) => format!("{records}{}", if more { "+" } else { "" }),
    }
}

fn total(events: &BTreeMap<String, u64>, of: &[&str]) -> u64 {
    of.iter().filter_map(|name| events.get(*name)).sum()
}

/// The whole terminal, given back when dropped; after a panic, too.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init()
            .map(Self)
            .map_err(|error| failed(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to give back.
        ratatui::try_restore().ok();
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::Failed(format!("the terminal: {error}"))
}

/// What is shown.
struct View<'a> {
    /// Where it looks.
    at: &'a str,
    now: Snapshot,
    taken: Instant,
    /// How often it looks, and when it was answered last.
    every: Duration,
    answered: Instant,
    /// How often something happened in a second, in the order of [`RATES`]; none before the second look.
    rates: Option<[f64; RATES.len()]>,
    /// Why the last look failed.
    trouble: Option<String>,
    /// Why it hears of no events.
    deaf: Option<String>,
    /// What was told lately, the latest first.
    told: VecDeque<Heard>,
    only_stuck: bool,
    stands_still: bool,
}

/// What was heard and is not shown yet, the latest first: no more than is shown.
#[derive(Default)]
struct Ears {
    told: VecDeque<Heard>,
    deaf: Option<String>,
}

impl Ears {
    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Listens => self.deaf = None,
            Heard::Deaf(why) => {
                // It tries again and again; what is missed is missed once.
                if self.deaf.replace(why).is_none() {
                    self.keep(Heard::Deaf(String::new()));
                }
            }
            told => self.keep(told),
        }
    }

    fn keep(&mut self, told: Heard) {
        self.told.truncate(EVENTS - 1);
        self.told.push_front(told);
    }
}

/// What a key means.
enum Pressed {
    End,
    Other,
}

async fn live(
    terminal: &mut DefaultTerminal,
    desk: &Desk,
    first: Snapshot,
    every: Duration,
) -> Result<(), Failure> {
    let stop = |kind| signal(kind).map_err(|error| failed(&error));
    let mut terminate = stop(SignalKind::terminate())?;
    let mut interrupt = stop(SignalKind::interrupt())?;
    let mut hangup = stop(SignalKind::hangup())?;
    let mut keys = EventStream::new();
    let mut view = View {
        at: desk.name(),
        now: first,
        taken: Instant::now(),
        every,
        answered: Instant::now(),
        rates: None,
        trouble: None,
        deaf: None,
        told: VecDeque::new(),
        only_stuck: false,
        stands_still: false,
    };
    let ears = RefCell::new(Ears::default());
    let unusual: Vec<&str> = names().filter(|name| !USUAL.contains(name)).collect();
    let mut listening = pin!(desk.listen(&unusual, |heard| ears.borrow_mut().hear(heard)));
    let look = || async {
        sleep(every).await;
        Snapshot::take(desk).await
    };
    let mut looking = pin!(look());
    loop {
        view.hear(&mut ears.borrow_mut());
        let drawn = terminal.draw(|frame| view.draw(frame));
        drawn.map_err(|error| failed(&error))?;
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            key = keys.next() => match key {
                Some(Ok(Event::Key(key))) => match view.press(key) {
                    Pressed::End => return Ok(()),
                    Pressed::Other => {}
                },
                // Of another size.
                Some(Ok(_)) => {}
                // Nobody sits there any more.
                Some(Err(_)) | None => return Ok(()),
            },
            taken = &mut looking => {
                view.take(taken);
                looking.set(look());
            }
            never = &mut listening => match never {},
            // How long nothing was answered goes on.
            () = sleep(Duration::from_secs(1)) => {}
        }
    }
}

impl View<'_> {
    fn press(&mut self, key: KeyEvent) -> Pressed {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('c') if with_control => return Pressed::End,
            KeyCode::Char('q') | KeyCode::Esc => return Pressed::End,
            KeyCode::Char('s') => self.only_stuck = !self.only_stuck,
            KeyCode::Char('p') => self.stands_still = !self.stands_still,
            _ => {}
        }
        Pressed::Other
    }

    fn hear(&mut self, ears: &mut Ears) {
        self.deaf.clone_from(&ears.deaf);
        if !self.stands_still {
            ears.told.append(&mut self.told);
            self.told = std::mem::take(&mut ears.told);
            self.told.truncate(EVENTS);
        }
    }

    fn take(&mut self, taken: Result<Snapshot, Failure>) {
        self.answered = Instant::now();
        let now = match taken {
            Err(failure) => {
                self.trouble = Some(failure.into_why());
                return;
            }
            Ok(now) => now,
        };
        self.trouble = None;
        if self.stands_still {
            return;
        }
        let seconds = self.taken.elapsed().as_secs_f64();
        let (before, events) = (&self.now.overview.events, &now.overview.events);
        self.rates = (!events.is_empty()).then(|| {
            RATES.map(|(_, of)| {
                // A gateway that was started anew counts from zero.
                let more = total(events, of).saturating_sub(total(before, of));
                more as f64 / seconds
            })
        });
        (self.now, self.taken) = (now, Instant::now());
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let events = &self.now.overview.events;
        let lines = |wanted: bool, lines| Constraint::Length(if wanted { lines } else { 0 });
        let [head, standing, rates, records, told, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(2),
            lines(!events.is_empty(), 4),
            Constraint::Min(3),
            lines(!self.told.is_empty(), 8),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let title = Line::from(vec![
            Span::styled("semel top", bold),
            format!("  {}", self.at).into(),
        ]);
        frame.render_widget(title, head);
        frame.render_widget(Line::from(self.now.standing()), standing);
        frame.render_widget(self.rates(), rates);
        frame.render_widget(self.records(records.height), records);
        frame.render_widget(self.told(told.height), told);
        let deaf = self.deaf.as_ref().map(|why| format!("no events: {why}"));
        let silence = self.answered.elapsed();
        let silent = (silence > self.every + LATE).then(|| {
            let seconds = age(silence.as_secs());
            format!("no answer for {seconds}: this is how things stood before")
        });
        let foot_line = match self.trouble.clone().or(silent).or(deaf) {
            Some(why) => Line::styled(clean(&why), Style::new().fg(Color::Red)),
            None if self.stands_still => Line::styled("p: go on", bold),
            None => Line::from("q: end   s: only stuck, or all   p: stop the picture"),
        };
        frame.render_widget(foot_line, foot);
    }

    fn rates(&self) -> Table<'static> {
        let events = &self.now.overview.events;
        let names = RATES.map(|(name, _)| name.to_owned());
        let rates = match self.rates {
            Some(rates) => rates.map(|rate| format!("{rate:.1}/s")),
            None => RATES.map(|_| "–".to_owned()),
        };
        let totals = RATES.map(|(_, of)| total(events, of).to_string());
        grid(&names, &[rates, totals])
    }

    fn records(&self, height: u16) -> Table<'static> {
        let is_stuck = |record: &&Summary| record.lapsed || record.state == "unknown";
        let records = self.now.records.iter();
        let records: Vec<_> = records
            .filter(|record| !self.only_stuck || is_stuck(record))
            .cloned()
            .collect();
        let mut rows = print::rows(&records);
        // Below the names.
        let room = usize::from(height).saturating_sub(1);
        let more = self.now.more && !self.only_stuck;
        if more || rows.len() > room {
            rows.truncate(room.saturating_sub(1));
            let hidden = records.len() - rows.len();
            let mut last = <[String; print::NAMES.len()]>::default();
            last[0] = match hidden {
                0 => "and more".to_owned(),
                hidden => format!("{hidden}{} more", if more { "+" } else { "" }),
            };
            rows.push(last);
        }
        grid(&print::NAMES.map(str::to_owned), &rows)
    }

    fn told(&self, most: u16) -> Paragraph<'static> {
        let line = |heard: &Heard| {
            let live = match heard {
                Heard::Event(live) => live,
                Heard::Lost(lost) => {
                    return Line::from(format!("{lost} events or fewer were lost here"));
                }
                Heard::Listens | Heard::Deaf(_) => return Line::from("events were missed here"),
            };
            let text = |text: &Option<String>| text.as_deref().map(clean).unwrap_or_default();
            let at = text(&live.at);
            // The time of the day, to the second.
            let at = at.get(11..19).unwrap_or_default();
            Line::from(format!(
                "{at}  {:<16} {}  {}",
                clean(live.action.as_ref().unwrap_or(&live.event)),
                text(&live.operation),
                text(&live.id),
            ))
        };
        let told = self.told.iter().take(most.into());
        Paragraph::new(told.map(line).collect::<Vec<_>>())
    }
}

/// A table whose columns are as wide as they need.
fn grid<const N: usize>(names: &[String; N], rows: &[[String; N]]) -> Table<'static> {
    let widths = std::array::from_fn::<_, N, _>(|at| {
        let cells = rows.iter().map(|row| &row[at]).chain([&names[at]]);
        let widest = cells.map(|cell| Span::raw(cell).width()).max();
        Constraint::Length(u16::try_from(widest.unwrap_or_default()).unwrap_or(u16::MAX))
    });
    let head = Row::new(names.clone()).style(Style::new().add_modifier(Modifier::BOLD));
    let rows = rows.iter().cloned().map(Row::new);
    Table::new(rows, widths).header(head).column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::events::Live;
    use crate::operations::view::{Counts, StoreCondition};

    fn snapshot(new: u64) -> Snapshot {
        let count = |records| {
            Some(Count {
                records,
                more: records == 7,
            })
        };
        Snapshot {
            overview: Overview {
                version: "1".to_owned(),
                store: StoreCondition {
                    condition: "down".to_owned(),
                    why: Some("no\u{1b}[2Jroute".to_owned()),
                },
                records: Counts {
                    unknown: count(7),
                    lapsed: count(0),
                    in_flight: None,
                },
                events: [("new".to_owned(), new)].into(),
            },
            records: Vec::new(),
            more: false,
        }
    }

    fn view() -> View<'static> {
        View {
            at: "http://host",
            now: snapshot(10),
            taken: Instant::now(),
            every: Duration::from_secs(1),
            answered: Instant::now(),
            rates: None,
            trouble: None,
            deaf: None,
            told: VecDeque::new(),
            only_stuck: false,
            stands_still: false,
        }
    }

    fn shown(view: &View<'_>, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_of_the_time_between_two_looks() {
        let mut view = view();
        tokio::time::advance(Duration::from_secs(2)).await;
        view.take(Ok(snapshot(40)));
        let screen = shown(&view, 100, 20);
        assert!(
            screen.contains("15.0/s") && screen.contains("40"),
            "{screen}"
        );
        assert!(
            screen.contains("unknown 7+   lapsed 0   in flight ?"),
            "{screen}"
        );
        // What stores say cannot write to the terminal as it likes.
        assert!(
            screen.contains("store down (no\u{fffd}[2Jroute)"),
            "{screen}"
        );
        // Started anew.
        tokio::time::advance(Duration::from_secs(1)).await;
        view.take(Ok(snapshot(0)));
        assert!(shown(&view, 100, 20).contains("0.0/s"));
        view.take(Err(Failure::Failed("no gateway answers there".to_owned())));
        assert!(shown(&view, 100, 20).contains("no gateway answers there"));
        // However small the terminal is.
        for (width, height) in [(1, 1), (20, 3), (10, 40)] {
            shown(&view, width, height);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_do_what_is_said() {
        let mut view = view();
        let press = |view: &mut View<'_>, code, modifiers| {
            matches!(view.press(KeyEvent::new(code, modifiers)), Pressed::End)
        };
        let none = KeyModifiers::NONE;
        assert!(!press(&mut view, KeyCode::Char('p'), none));
        tokio::time::advance(Duration::from_secs(1)).await;
        view.take(Ok(snapshot(99)));
        assert!(!shown(&view, 100, 20).contains("99"));
        assert!(!press(&mut view, KeyCode::Char('s'), none) && view.only_stuck);
        assert!(!press(&mut view, KeyCode::Char('c'), none));
        assert!(press(&mut view, KeyCode::Char('q'), none));
        assert!(press(&mut view, KeyCode::Char('c'), KeyModifiers::CONTROL));
    }

    /// Not that all is well, because nobody says otherwise.
    #[tokio::test(start_paused = true)]
    async fn what_is_old_is_said_to_be_old() {
        let mut view = view();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(shown(&view, 100, 20).contains("no answer for 9s"));
        view.take(Err(Failure::Failed("it broke off".to_owned())));
        view.stands_still = true;
        let screen = shown(&view, 100, 20);
        assert!(
            screen.contains("it broke off") && !screen.contains("no answer"),
            "{screen}"
        );
        // It works again, also where the picture stands still.
        view.take(Ok(snapshot(11)));
        assert!(!shown(&view, 100, 20).contains("it broke off"));
    }

    #[tokio::test(start_paused = true)]
    async fn records_that_have_no_room_are_said_to_be_there() {
        let mut view = view();
        let record = serde_json::json!({
            "id": "", "state": "unknown", "lapsed": false, "service": "", "operation": "", "scope": [],
            "key_hint": "", "note": {}, "attempt": 1, "fence": 1, "created_at": null, "claimed_at": null,
            "lease_until": null, "settled_at": null, "expires_at": null, "age_seconds": 0,
        });
        let record: Summary = serde_json::from_value(record).unwrap();
        view.now.records = vec![record; RECORDS];
        // 1 and 2 lines above, 4 of rates, 1 below: 12 are left for names, 10 records and what is hidden.
        let screen = shown(&view, 100, 20);
        assert!(screen.contains("90 more"), "{screen}");
        view.now.more = true;
        assert!(shown(&view, 100, 20).contains("90+ more"));
        view.now.records.truncate(3);
        assert!(shown(&view, 100, 20).contains("and more"));
        view.now.more = false;
        assert!(!shown(&view, 100, 20).contains("more"));
    }

    #[test]
    fn what_is_not_heard_is_said_and_no_more_is_kept_than_is_shown() {
        let (mut view, mut ears) = (view(), Ears::default());
        view.stands_still = true;
        let event = |nth: usize| {
            Heard::Event(Box::new(Live {
                event: format!("event-{nth}"),
                ..Live::default()
            }))
        };
        (0..3 * EVENTS).for_each(|nth| ears.hear(event(nth)));
        ears.hear(Heard::Lost(7));
        ears.hear(Heard::Deaf("forbidden".to_owned()));
        view.hear(&mut ears);
        assert_eq!((ears.told.len(), view.told.len()), (EVENTS, 0));
        let screen = shown(&view, 100, 30);
        assert!(screen.contains("no events: forbidden"), "{screen}");
        view.stands_still = false;
        ears.hear(Heard::Listens);
        view.hear(&mut ears);
        assert_eq!((ears.told.len(), view.told.len()), (0, EVENTS));
        let screen = shown(&view, 100, 30);
        assert!(screen.contains("7 events or fewer were lost"), "{screen}");
        assert!(screen.contains("events were missed here"), "{screen}");
        let latest = format!("event-{} ", 3 * EVENTS - 1);
        assert!(screen.contains(&latest), "{screen}");
        assert!(!screen.contains("forbidden"), "{screen}");
    }
}
