//! A stored answer for people: JSON in lines, what is no text as bytes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

use crate::operations::view::{Answer, Field};

/// More of a body is not shown.
const MOST_TEXT: usize = 256 << 10;
const MOST_BYTES: usize = 4 << 10;

/// An answer as it is shown once it is revealed.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) headers: Vec<Field>,
    /// The body as text, JSON in lines; none where it is no text.
    pub(super) text: Option<String>,
    /// Its first bytes.
    pub(super) bytes: String,
    /// How many bytes there are.
    pub(super) len: usize,
    pub(super) is_cut: bool,
}

impl Shown {
    pub(super) fn of(answer: Answer) -> Self {
        // No more is decoded than is shown.
        let coded = answer.body_base64.as_deref().unwrap_or_default();
        let coded = &coded[..coded.len().min(MOST_BYTES.div_ceil(3) * 4)];
        let decoded = STANDARD.decode(coded).unwrap_or_default();
        let bytes = answer.body.as_ref().map_or(&*decoded, String::as_bytes);
        let bytes = dump(&bytes[..bytes.len().min(MOST_BYTES)]);
        let text = answer
            .body
            .map(|text| match serde_json::from_str::<IgnoredAny>(&text) {
                Ok(_) => in_lines(&text),
                Err(_) => text,
            });
        let is_cut = text.as_ref().is_some_and(|text| text.len() > MOST_TEXT);
        Self {
            headers: answer.headers,
            text: text.map(|text| text[..text.floor_char_boundary(MOST_TEXT)].to_owned()),
            bytes,
            len: answer.body_bytes.unwrap_or_default(),
            is_cut,
        }
    }
}

/// JSON, each member in a line of its own, and not much more of it than is shown: indented, it may be
/// thirty times as long. Numbers and strings stay as they were written: reading them could change them.
fn in_lines(json: &str) -> String {
    let mut lines = String::new();
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut all = json.chars().peekable();
    while lines.len() <= MOST_TEXT
        && let Some(c) = all.next()
    {
        if in_text {
            lines.push(c);
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            ' ' | '\t' | '\r' | '\n' => {}
            '"' => {
                lines.push(c);
                in_text = true;
            }
            '{' | '[' => {
                lines.push(c);
                while all.next_if(char::is_ascii_whitespace).is_some() {}
                if all.peek().is_some_and(|next| matches!(next, '}' | ']')) {
                    lines.extend(all.next());
                } else {
                    depth += 1;
                    begin(&mut lines, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                begin(&mut lines, depth);
                lines.push(c);
            }
            ',' => {
                lines.push(c);
                begin(&mut lines, depth);
            }
            ':' => lines.push_str(": "),
            _ => lines.push(c),
        }
    }
    lines
}

fn begin(lines: &mut String, depth: usize) {
    lines.push('\n');
    // Deeper than anybody reads: an answer may be nothing but brackets.
    (0..depth.min(32)).for_each(|_| lines.push_str("  "));
}

/// 16 bytes in a line: where they stand, in hexadecimal digits, as text.
fn dump(bytes: &[u8]) -> String {
    let mut lines = String::new();
    for (nth, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = line.iter().map(|byte| {
            if byte.is_ascii_graphic() {
                char::from(*byte)
            } else {
                '.'
            }
        });
        let text: String = text.collect();
        writeln!(lines, "{:06x}  {:<47}  {text}", nth * 16, digits.join(" ")).ok();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_in_lines_and_not_changed() {
        let json =
            r#"{"id":12345678901234567890123, "a":[ ], "t":"x, \"{}\\", "n":[1e400,{"b":null}]}"#;
        let lines = "{\n  \"id\": 12345678901234567890123,\n  \"a\": [],\n  \"t\": \"x, \\\"{}\\\\\",\n  \
                     \"n\": [\n    1e400,\n    {\n      \"b\": null\n    }\n  ]\n}";
        assert_eq!(in_lines(json), lines);
    }

    /// However much longer lines would make it.
    #[test]
    fn no_more_is_put_into_lines_than_is_shown() {
        let (begin, end) = ("[".repeat(100), "]".repeat(100));
        let json = format!("{begin}{}1{end}", "1,".repeat(1 << 20));
        assert!(in_lines(&json).len() < MOST_TEXT + 100);
        let shown = Shown::of(Answer {
            kind: String::new(),
            status: 200,
            headers: Vec::new(),
            body_bytes: Some(json.len()),
            body: Some(json),
            body_base64: None,
            redacted: false,
            unreadable: None,
        });
        assert!(shown.is_cut && shown.text.unwrap().len() == MOST_TEXT);
    }

    #[test]
    fn bytes_are_shown_with_their_place() {
        let bytes: Vec<u8> = (60..80).collect();
        let shown = dump(&bytes);
        assert!(shown.starts_with("000000  3c 3d 3e"), "{shown}");
        assert!(shown.ends_with("  LMNO\n"), "{shown}");
        assert_eq!(shown.lines().count(), 2);
    }
}
