//! Records for people.

use std::fmt::Display;
use std::time::Duration;

use super::say;
use crate::operations::view::{Answer, Detail, Summary, age};

/// Rows under these names, each column as wide as it needs.
pub(in crate::command) fn columns<const N: usize>(names: [&str; N], rows: &[[String; N]]) {
    let mut widths = names.map(|name| name.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        say(cells.join("  ").trim_end())
    };
    line(names);
    for row in rows {
        line(std::array::from_fn(|at| row[at].as_str()));
    }
}

/// The columns of a list.
pub(in crate::command) const NAMES: [&str; 8] = [
    "STATE",
    "AGE",
    "ATTEMPT",
    "SERVICE",
    "OPERATION",
    "SCOPE",
    "KEY",
    "ID",
];

pub(in crate::command) fn table(records: &[Summary]) {
    columns(NAMES, &rows(records));
}

pub(in crate::command) fn rows(records: &[Summary]) -> Vec<[String; 8]> {
    records
        .iter()
        .map(|record| {
            [
                record.standing().to_owned(),
                age(record.age_seconds),
                record.attempt.to_string(),
                clean(&record.service),
                clean(&record.operation),
                scope(record),
                format!("{}…", clean(&record.key_hint)),
                record.id.clone(),
            ]
        })
        .collect()
}

fn scope(record: &Summary) -> String {
    let segments: Vec<String> = record.scope.iter().map(|segment| clean(segment)).collect();
    segments.join(" / ")
}

/// What clients choose may move the cursor, or hide what is before it.
pub(in crate::command) fn clean(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

pub(super) fn record(detail: &Detail) {
    let record = &detail.summary;
    let line = |name: &str, what: &dyn Display| {
        say(format_args!("{name:<10} {what}"));
    };
    let at = |time: &Option<String>| time.clone().unwrap_or_else(|| "never".to_owned());
    line("id", &record.id);
    line(
        "state",
        &format_args!("{}: {}", record.standing(), record.meaning()),
    );
    line("service", &clean(&record.service));
    line("operation", &clean(&record.operation));
    line("scope", &scope(record));
    line("key", &format_args!("{}…", clean(&record.key_hint)));
    line(
        "attempt",
        &format_args!("{}, fence {}", record.attempt, record.fence),
    );
    let old = humantime::format_duration(Duration::from_secs(record.age_seconds));
    line(
        "claimed",
        &format_args!("{} for the first time, {old} ago", at(&record.created_at)),
    );
    if record.attempt > 1 {
        line(
            "",
            &format_args!("{} by this attempt", at(&record.claimed_at)),
        );
    }
    match &record.settled_at {
        None => line("lease", &format_args!("until {}", at(&record.lease_until))),
        Some(settled) => line("settled", settled),
    }
    if record.expires_at.is_some() {
        line("expires", &at(&record.expires_at));
    }
    if let Some(resolved) = &detail.resolved {
        let (before, after) = (&resolved.before, &resolved.after);
        line(
            "resolved",
            &format_args!(
                "{} by {}, from {before} to {after}",
                at(&resolved.at),
                clean(&resolved.by)
            ),
        );
        line("", &clean(&resolved.reason));
    }
    for (name, text) in &record.note {
        line("note", &format_args!("{}: {}", clean(name), clean(text)));
    }
    for step in &detail.steps {
        line(
            "step",
            &format_args!("{} ({} bytes)", clean(&step.name), step.bytes),
        );
    }
    if let Some(answer) = &detail.outcome {
        self::answer(answer, &line);
    }
    if !detail.actions.is_empty() {
        say("\nWhat you can do:");
        for action in &detail.actions {
            say(format_args!(
                "  {}\n    {}\n    {}",
                action.action, action.effect, action.risk
            ));
        }
    }
}

fn answer(answer: &Answer, line: &dyn Fn(&str, &dyn Display)) {
    let size = match answer.body_bytes {
        Some(bytes) => format!("a body of {bytes} bytes"),
        None => "no body".to_owned(),
    };
    let status = match answer.status {
        0 => String::new(),
        status => format!(" {status},"),
    };
    if let Some(why) = &answer.unreadable {
        let what = format_args!("{},{status} which cannot be read:", answer.kind);
        line("answer", &what);
        return line("", &clean(why));
    }
    line("answer", &format_args!("{},{status} {size}", answer.kind));
    if answer.redacted {
        let names: Vec<String> = answer
            .headers
            .iter()
            .map(|field| clean(&field.name))
            .collect();
        if !names.is_empty() {
            line("fields", &names.join(", "));
        }
        return;
    }
    for field in &answer.headers {
        let value = field.value.as_deref().unwrap_or_default();
        line(
            "field",
            &format_args!("{}: {}", clean(&field.name), clean(value)),
        );
    }
    if let Some(text) = &answer.body {
        let lines: Vec<String> = text.lines().map(clean).collect();
        line("body", &lines.join("\n           "));
    }
    if let Some(coded) = &answer.body_base64 {
        line("base64", coded);
    }
}
