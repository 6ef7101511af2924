//! Tables of histories for the tests of judges, as text. Times in it are in milliseconds.

use std::fmt::Debug;
use std::str::FromStr;

use crate::clock::Nanos;

pub(crate) const MS: Nanos = 1_000_000;

/// Judges a table. Below what a rule says, and what its histories come `after`, by name or in full, each row is the
/// rest of a history, a bar, and its verdict.
pub(crate) fn judged(table: &str, beginnings: &[(&str, &str)], verdict: impl Fn(&str) -> String) {
    let (mut rule, mut before) = ("", "");
    let mut wrong = Vec::new();
    for row in table.lines().map(str::trim) {
        if let Some((history, wanted)) = row.split_once('|') {
            let verdict = verdict(&format!("{before};{history}"));
            if verdict != wanted.trim() {
                wrong.push(format!("{rule}\n  {before}\n  {row}\nis judged: {verdict}"));
            }
        } else if let Some(beginning) = row.strip_prefix("after ") {
            let beginning = beginning.trim_end_matches(':');
            let named = beginnings.iter().find(|(name, _)| *name == beginning);
            before = named.map_or(beginning, |(_, history)| history);
        } else {
            rule = row;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub(crate) fn number<N: FromStr<Err: Debug>>(text: &str) -> N {
    text.parse()
        .unwrap_or_else(|why| panic!("{text} is no number: {why:?}"))
}

pub(crate) fn ms(text: &str) -> Nanos {
    number::<Nanos>(text) * MS
}

/// From when until when.
pub(crate) fn span(text: &str) -> (Nanos, Nanos) {
    let (from, until) = text.split_once('-').expect("two times");
    (ms(from), ms(until))
}
