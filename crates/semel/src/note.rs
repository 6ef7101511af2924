//! What an operator is told about the request behind a record: short texts with names, such as the
//! method, the request id, an amount.
//!
//! # Text form
//!
//! A line for each text: the name, `=`, the text. Nothing at all is no text. There is no control
//! character in it but the ends of lines, so that databases and terminals can show it as it is.

use std::fmt;
use std::sync::Arc;

use crate::DecodeError;

/// What a claim says of its request, for operators: it decides nothing. Kept with the record until
/// the next attempt's takes its place or the record is purged. Cloning shares it.
///
/// ```
/// use semel::Note;
///
/// let note = Note::new([("order", "4711"), ("amount", "12.50 EUR")]);
/// assert_eq!(note.get("amount"), Some("12.50 EUR"));
/// // Texts may be personal data: names only.
/// assert_eq!(format!("{note:?}"), r#"Note["order", "amount"]"#);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Note(Option<Arc<str>>);

impl Note {
    /// The most bytes of a note in its text form.
    pub const MAX_BYTES: usize = 1 << 10;

    /// The most bytes of a name, and of a text: what is longer is cut, and ends with `…`.
    pub const MAX_TEXT: usize = 256;

    /// Nothing to say.
    pub const EMPTY: Self = Self(None);

    /// These names and texts, in their order. What does not fit into
    /// [`MAX_BYTES`](Self::MAX_BYTES) is left out: a note never makes a claim fail. Control
    /// characters, and `=` in names, become `�`.
    pub fn new<N, T>(texts: impl IntoIterator<Item = (N, T)>) -> Self
    where
        N: AsRef<str>,
        T: AsRef<str>,
    {
        let mut all = String::new();
        for (name, text) in texts {
            let before = all.len();
            match before {
                0 => all.reserve(Self::MAX_TEXT),
                _ => all.push('\n'),
            }
            put(&mut all, name.as_ref(), |c| c.is_control() || c == '=');
            all.push('=');
            put(&mut all, text.as_ref(), char::is_control);
            if all.len() > Self::MAX_BYTES {
                all.truncate(before);
            }
        }
        Self((!all.is_empty()).then(|| all.into()))
    }

    /// One line, as it is.
    #[cfg(feature = "sealed")]
    pub(crate) fn line(name: &str, text: &str) -> Self {
        Self(Some(format!("{name}={text}").into()))
    }

    /// Whether there is nothing in it.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The names and texts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        // Each line has a name: checked when the text came in.
        self.as_text()
            .split('\n')
            .filter_map(|line| line.split_once('='))
    }

    /// The text of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find_map(|(n, text)| (n == name).then_some(text))
    }

    /// The text form.
    pub fn as_text(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`DecodeError::Damaged`] for text that [`as_text`](Self::as_text) never returned.
    pub fn from_text(text: &str) -> Result<Self, DecodeError> {
        if text.is_empty() {
            return Ok(Self::EMPTY);
        }
        let is_line = |line: &str| line.contains('=') && !has_control(line);
        if text.len() > Self::MAX_BYTES || !text.split('\n').all(is_line) {
            return Err(DecodeError::Damaged);
        }
        Ok(Self(Some(text.into())))
    }
}

fn put(to: &mut String, text: &str, is_bad: impl Fn(char) -> bool) {
    let start = to.len();
    // Nearly all are of this kind, and they are copied at once.
    let is_plain = |b| matches!(b, b' '..=b'~') && b != b'=';
    if text.len() <= Note::MAX_TEXT && text.bytes().all(is_plain) {
        to.push_str(text);
        return;
    }
    let clean = |c| match is_bad(c) {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    to.extend(text.chars().take(Note::MAX_TEXT + 1).map(clean));
    if to.len() - start > Note::MAX_TEXT {
        let mut end = start + Note::MAX_TEXT - '…'.len_utf8();
        while !to.is_char_boundary(end) {
            end -= 1;
        }
        to.truncate(end);
        to.push('…');
    }
}

fn has_control(text: &str) -> bool {
    match text.is_ascii() {
        true => text.bytes().any(|b| b.is_ascii_control()),
        false => text.contains(char::is_control),
    }
}

// Texts may be personal data: not for logs.
impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Note")?;
        f.debug_list()
            .entries(self.iter().map(|(name, _)| name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(note: &Note) -> Vec<(&str, &str)> {
        note.iter().collect()
    }

    #[test]
    fn texts_come_back_in_their_order() {
        let texts = [
            ("method", "POST"),
            ("", ""),
            ("größe", "a=b"),
            ("method", "again"),
        ];
        let note = Note::new(texts);
        assert_eq!(read(&note), texts);
        assert_eq!(note.get("method"), Some("POST"));
        assert_eq!(note.get("path"), None);
        assert_eq!(Note::from_text(note.as_text()), Ok(note));
    }

    #[test]
    fn nothing_is_nothing() {
        let note = Note::new([("", ""); 0]);
        assert_eq!(note, Note::EMPTY);
        assert!(note.is_empty());
        assert_eq!((read(&note), note.as_text()), (vec![], ""));
        assert_eq!(Note::from_text(""), Ok(Note::EMPTY));
    }

    #[test]
    fn what_would_break_a_line_or_a_terminal_is_replaced() {
        let note = Note::new([("a\n=b", "x\ny\0\u{1b}[2J")]);
        assert_eq!(read(&note), [("a��b", "x�y��[2J")]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let long = "é".repeat(1000);
        let note = Note::new([("long", &*long), ("short", "s")]);
        let text = note.get("long").unwrap();
        assert!(
            text.ends_with("é…") && text.len() <= Note::MAX_TEXT,
            "{text}"
        );
        assert!(text.len() > Note::MAX_TEXT - 5, "{text}");
        assert_eq!(note.get("short"), Some("s"));
        // What does not fit is left out, and what fits behind it is kept.
        let texts = ["a", "b", "c", "d", "e"].map(|name| (name, &*long));
        let note = Note::new(texts.into_iter().chain([("f", "s")]));
        let names: Vec<&str> = note.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b", "c", "f"]);
        assert!(note.as_text().len() <= Note::MAX_BYTES);
        assert_eq!(Note::from_text(note.as_text()), Ok(note));
    }

    #[test]
    fn damage_is_told() {
        let long = format!("a={}", "x".repeat(Note::MAX_BYTES));
        for text in ["a", "a=b\nc", "a=b\n", "\n", "a=\0", "a=b\r\nc=d", &long] {
            assert_eq!(Note::from_text(text), Err(DecodeError::Damaged), "{text:?}");
        }
    }
}
