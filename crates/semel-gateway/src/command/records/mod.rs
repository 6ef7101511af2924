//! `semel records`: find records, look at them, decide about them; through a gateway's admin API, or on a
//! store.

mod desk;
mod line;
pub(super) mod print;

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use clap::ArgMatches;

use super::{FAILED, MISUSED, block_on, fail};
use crate::at_rest::{self, AtRest, Large, Source};
use crate::config::settings::SETTINGS;
use crate::config::values;
use crate::operations::order::{Lookup, Many, Order};
pub(super) use desk::{Desk, Failure, Heard};
pub use line::{audit, command};
pub(super) use line::{desk, json};
pub(super) use print::{clean, columns};

/// How many records a table has unless something else is asked for.
const ROWS: usize = 100;

type Outcome = Result<(), Failure>;

/// Does what a subcommand of `semel records` says.
pub fn main(flags: &ArgMatches) -> ExitCode {
    let Some((name, flags)) = flags.subcommand() else {
        // The parser asks for one.
        return ExitCode::from(MISUSED);
    };
    run(flags, async |desk| match name {
        "list" => list(desk, flags).await,
        "show" => show(desk, flags).await,
        "purge" | "reencrypt" => many(desk, name, flags).await,
        "erase" if text(flags, "id").is_none() => many(desk, name, flags).await,
        action => act(desk, action, flags).await,
    })
}

/// Runs on what `--admin` or `--store` names.
pub(super) fn run(flags: &ArgMatches, task: impl AsyncFnOnce(&Desk) -> Outcome) -> ExitCode {
    block_on(async {
        let desk = match Desk::open(flags).await {
            Ok(desk) => desk,
            Err(failure) => return failure.end(),
        };
        let done = task(&desk).await;
        let closed = desk.close().await;
        match done.and(closed) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.end(),
        }
    })
}

impl Failure {
    /// In words.
    pub(super) fn into_why(self) -> String {
        match self {
            Self::Misused(why) | Self::Failed(why) => why,
        }
    }

    fn end(self) -> ExitCode {
        match self {
            Self::Misused(why) => fail(MISUSED, format_args!("error: {why}")),
            Self::Failed(why) => fail(FAILED, format_args!("error: {why}")),
        }
    }
}

pub(super) fn text<'a>(flags: &'a ArgMatches, name: &str) -> Option<&'a str> {
    flags.get_one::<String>(name).map(String::as_str)
}

/// Where the keys of a store come from, by flag or environment.
pub(super) fn at_rest(flags: &ArgMatches) -> Result<AtRest, String> {
    let above = said(flags, at_rest::ABOVE, values::memory)?.unwrap_or_default();
    let large = said(flags, at_rest::LARGE, values::objects)?;
    Ok(AtRest {
        keys: said(flags, at_rest::KEYS, Source::parse)?,
        secrets: said(flags, at_rest::SECRETS, Source::parse)?,
        large: large.map(|url| Large { url, above }),
    })
}

/// What a flag says, the environment, or else nobody.
fn said<T>(
    flags: &ArgMatches,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let setting = SETTINGS.iter().find(|setting| setting.name == name);
    let given = text(flags, name).map(|said| (format!("--{name}"), said.to_owned()));
    let given = given.or_else(|| {
        let variable = setting?.variable();
        let value = std::env::var(&variable).ok()?;
        (!value.is_empty()).then_some((variable, value))
    });
    let given = given.or_else(|| Some((String::new(), setting?.default?.to_owned())));
    let read = given.map(|(from, value)| parse(&value).map_err(|why| format!("{from}: {why}")));
    read.transpose()
}

/// Writes to stdout. Whoever does not read on is no failure.
pub(super) fn say(line: impl std::fmt::Display) -> bool {
    writeln!(io::stdout().lock(), "{line}").is_ok()
}

/// What a command says about what it is doing, where a person looks.
pub(super) fn progress(line: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        // Over the line before; an empty one leaves nothing behind.
        write!(err, "\r\x1b[K{line}").ok();
    }
}

async fn list(desk: &Desk, flags: &ArgMatches) -> Outcome {
    let mut filter = Vec::new();
    for name in ["state", "service", "operation", "route", "older"] {
        filter.extend(text(flags, name).map(|value| (name, value.to_owned())));
    }
    for name in ["lapsed", "stuck"] {
        filter.extend(flags.get_flag(name).then(|| (name, "true".to_owned())));
    }
    let scope = flags.get_many::<String>("scope").into_iter().flatten();
    filter.extend(scope.map(|segment| ("scope", segment.clone())));
    let json = flags.get_flag("json");
    let limit = flags.get_one::<usize>("limit").copied();
    let mut left = limit.unwrap_or(if json { usize::MAX } else { ROWS });
    let (mut rows, mut looked_at, mut next) = (Vec::new(), 0, None);
    while left > 0 {
        let page = desk.list(&filter, next.as_deref(), left.min(ROWS)).await?;
        looked_at += page.looked_at;
        left = left.saturating_sub(page.records.len());
        next = page.next;
        if json {
            for record in &page.records {
                if !say(line_of(record)?) {
                    return Ok(());
                }
            }
        } else {
            rows.extend(page.records);
        }
        if next.is_none() {
            break;
        }
        progress(&format!("{looked_at} records looked at"));
    }
    progress("");
    if !json {
        print::table(&rows);
        if next.is_some() {
            let shown = rows.len();
            writeln!(
                io::stderr(),
                "the first {shown}; there are more: --limit N, or narrow the list"
            )
            .ok();
        }
    }
    Ok(())
}

/// A value as one line of JSON.
pub(super) fn line_of(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::Failed(error.to_string()))
}

async fn show(desk: &Desk, flags: &ArgMatches) -> Outcome {
    let mut record = match text(flags, "id") {
        Some(id) => desk.show(id).await?,
        None => desk.lookup(&lookup(flags)?).await?,
    };
    if flags.get_flag("reveal") {
        let order = Order {
            fence: Some(record.summary.fence),
            reason: text(flags, "reason").unwrap_or_default().to_owned(),
            proposal: text(flags, "confirm").map(str::to_owned),
            ..Order::default()
        };
        match desk.reveal(&record.summary.id, &order).await? {
            Ok(answer) => record.outcome = Some(answer),
            Err(number) => {
                say(waits(&number));
                return Ok(());
            }
        }
    }
    if flags.get_flag("json") {
        say(line_of(&record)?);
    } else {
        print::record(&record);
    }
    Ok(())
}

/// The identity that the flags give, with the key from stdin.
fn lookup(flags: &ArgMatches) -> Result<Lookup, Failure> {
    if !flags.get_flag("key-stdin") {
        let why = "say which record: its ID, or --key-stdin and the key on the standard input";
        return Err(Failure::Misused(why.to_owned()));
    }
    let mut key = String::new();
    let read = io::stdin().read_line(&mut key);
    read.map_err(|error| Failure::Failed(format!("the key cannot be read: {error}")))?;
    let scope = flags.get_many::<String>("scope");
    Ok(Lookup {
        service: text(flags, "service").map(str::to_owned),
        operation: text(flags, "operation").map(str::to_owned),
        scope: scope.map(|segments| segments.cloned().collect()),
        key: key.trim_end_matches(['\r', '\n']).to_owned(),
    })
}

async fn act(desk: &Desk, action: &str, flags: &ArgMatches) -> Outcome {
    let id = text(flags, "id").unwrap_or_default();
    // As the viewer sees it: what changes from now on is not decided about.
    let seen = desk.show(id).await?;
    let mut order = Order {
        fence: flags
            .get_one::<u64>("fence")
            .copied()
            .or(Some(seen.summary.fence)),
        reason: text(flags, "reason").unwrap_or_default().to_owned(),
        proposal: text(flags, "confirm").map(str::to_owned),
        ..Order::default()
    };
    if ["resolve", "extend"].contains(&action) {
        order.ttl = text(flags, "ttl").map(str::to_owned);
    }
    if action == "resolve" {
        order.happened = Some(flags.get_flag("happened"));
        order.outcome = text(flags, "outcome").map(outcome).transpose()?;
    }
    confirm(flags, &format!("{action} this record"), || {
        print::record(&seen);
    })?;
    let done = desk.act(&seen.summary.id, action, order).await?;
    if flags.get_flag("json") {
        say(line_of(&done)?);
    } else if done.proposed {
        say(waits(&done.audit));
    } else {
        let state = &done.record.summary.state;
        say(format_args!(
            "{id} is {state} now; audit entry {}",
            done.audit
        ));
    }
    Ok(())
}

/// Nothing is done until somebody else says the same.
fn waits(number: &str) -> String {
    format!("proposed; somebody else confirms it with the same command and --confirm {number}")
}

/// What an operator says was answered, as a file has it.
fn outcome(path: &str) -> Result<serde_json::Map<String, serde_json::Value>, Failure> {
    let wrong = |why: String| Failure::Misused(format!("--outcome: {why}"));
    let mut text = String::new();
    let read = match path {
        "-" => io::stdin().read_to_string(&mut text).map(drop),
        path => std::fs::read_to_string(path).map(|read| text = read),
    };
    read.map_err(|error| wrong(format!("cannot read `{path}`: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        let example =
            r#"{"status": 201, "headers": {"content-type": "application/json"}, "body": "{}"}"#;
        wrong(format!(
            "`{path}` is not a JSON object like {example}: {error}"
        ))
    })
}

/// Asks whoever sits there, unless `--yes` says so.
fn confirm(flags: &ArgMatches, action: &str, show: impl FnOnce()) -> Outcome {
    if flags.get_flag("yes") {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        let why = format!("{action}: not confirmed, and nobody can be asked here; add --yes");
        return Err(Failure::Misused(why));
    }
    show();
    let mut err = io::stderr();
    write!(err, "\n{action}? [y/N] ").ok();
    err.flush().ok();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).ok();
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::Failed(
            "not confirmed; nothing was done".to_owned(),
        )),
    }
}

async fn many(desk: &Desk, action: &str, flags: &ArgMatches) -> Outcome {
    let mut order = Many {
        reason: text(flags, "reason").unwrap_or_default().to_owned(),
        proposal: text(flags, "confirm").map(str::to_owned),
        ..Many::default()
    };
    let mut what = "remove all records that are past their retention".to_owned();
    if action == "erase" {
        let scope = flags.get_many::<String>("scope").into_iter().flatten();
        order.scope = scope.cloned().collect();
        order.service = text(flags, "service").map(str::to_owned);
        if order.scope.is_empty() {
            let why = "say what to erase: the ID of a record, or --scope for all of a scope";
            return Err(Failure::Misused(why.to_owned()));
        }
        what = format!(
            "remove all answers whose scope begins with {}",
            order.scope.join(" / ")
        );
    }
    if action == "reencrypt" {
        what = "encrypt all answers with the key in use".to_owned();
    }
    confirm(flags, &what, || ())?;
    let done = desk.many(action, &order).await?;
    if flags.get_flag("json") {
        say(line_of(&done)?);
    } else if done.proposed {
        say(waits(&done.audit));
    } else {
        say(format_args!(
            "{} records; audit entry {}",
            done.records, done.audit
        ));
        if done.left > 0 {
            say(format_args!(
                "{} records need another key still: in flight, unknown, released, or with an answer that cannot be read",
                done.left
            ));
        }
    }
    Ok(())
}
