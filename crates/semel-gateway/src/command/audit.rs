//! `semel audit`: what operators and reconcilers did.

use std::process::ExitCode;

use clap::ArgMatches;

use super::records::{clean, columns, line_of, progress, run, say};
use crate::audit::Entry;

/// How many entries are read at once, and shown unless something else is asked for.
const PAGE: usize = 100;

/// Shows the log.
pub fn main(flags: &ArgMatches) -> ExitCode {
    run(flags, async |desk| {
        let json = flags.get_flag("json");
        let limit = flags.get_one::<usize>("limit").copied();
        let mut left = limit.unwrap_or(if json { usize::MAX } else { PAGE });
        let (mut rows, mut next, mut read) = (Vec::new(), None, 0);
        while left > 0 {
            let page = desk.audit(next.as_deref(), left.min(PAGE)).await?;
            left -= page.entries.len().min(left);
            read += page.entries.len();
            next = page.next;
            for entry in page.entries {
                if !json {
                    rows.push(row(&entry));
                } else if !say(line_of(&entry)?) {
                    return Ok(());
                }
            }
            if next.is_none() {
                break;
            }
            progress(&format!("{read} entries read"));
        }
        progress("");
        if !json {
            columns(
                [
                    "ENTRY", "AT", "BY", "FROM", "ACTION", "RESULT", "ID", "REASON",
                ],
                &rows,
            );
        }
        Ok(())
    })
}

fn row(entry: &Entry) -> [String; 8] {
    let text = |text: Option<&str>| text.map_or_else(|| "–".to_owned(), clean);
    let intent = entry.intent.as_ref();
    [
        entry.number.clone(),
        text(entry.at.as_deref()),
        text(intent.map(|intent| &*intent.by)),
        text(intent.map(|intent| &*intent.from)),
        text(intent.map(|intent| &*intent.action)),
        entry.result.as_str().to_owned(),
        text(intent.and_then(|intent| intent.id.as_deref())),
        text(intent.map(|intent| &*intent.reason)),
    ]
}
