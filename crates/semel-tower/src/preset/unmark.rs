//! A first answer that is too long to be read whole, and says that it is a replay.

use bytes::Bytes;

/// Writes `"replayed": false` where the JSON object that passes says `true`.
#[derive(Debug, Default)]
pub(crate) struct Unmark {
    depth: usize,
    /// What passes is no object.
    is_other: bool,
    is_in_text: bool,
    is_escaped: bool,
    /// Within the rest of a `true` that was replaced.
    is_replaced: bool,
    place: Place,
    /// The name of the member that is read, as it is written.
    name: Vec<u8>,
}

/// Where in the object it is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Elsewhere,
    /// A member's name comes, or is read.
    Name,
    /// The value of `replayed` comes.
    Mark,
}

/// No spelling of `replayed` is longer: each letter as an escape.
const LONGEST: usize = 48;

impl Unmark {
    /// What passes in place of this piece.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let mut changed: Option<Vec<u8>> = None;
        for (at, byte) in data.iter().copied().enumerate() {
            let is_rest = self.is_replaced && byte.is_ascii_alphabetic();
            let starts = !is_rest && self.see(byte);
            self.is_replaced = is_rest || starts;
            if self.is_replaced {
                let changed = changed.get_or_insert_with(|| data[..at].to_vec());
                if starts {
                    changed.extend_from_slice(b"false");
                }
            } else if let Some(changed) = &mut changed {
                changed.push(byte);
            }
        }
        changed.map_or(data, Bytes::from)
    }

    /// Whether the `true` starts here that is to be replaced.
    fn see(&mut self, byte: u8) -> bool {
        if self.is_in_text {
            self.see_text(byte);
            return false;
        }
        let is_outside = self.depth == 0 && byte.is_ascii() && !byte.is_ascii_whitespace();
        self.is_other |= is_outside && byte != b'{';
        match byte {
            _ if self.is_other => {}
            b'"' => {
                self.is_in_text = true;
                self.name.clear();
            }
            b'{' | b'[' => {
                self.depth += 1;
                if self.depth == 1 && byte == b'{' {
                    self.place = Place::Name;
                }
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' if self.depth == 1 => self.place = Place::Name,
            b't' => return self.depth == 1 && self.place == Place::Mark,
            _ => {}
        }
        false
    }

    fn see_text(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => {
                self.is_in_text = false;
                if self.depth == 1 && self.place == Place::Name {
                    self.place = match self.is_mark() {
                        true => Place::Mark,
                        false => Place::Elsewhere,
                    };
                }
                return;
            }
            _ => {}
        }
        if self.name.len() <= LONGEST {
            self.name.push(byte);
        }
    }

    fn is_mark(&self) -> bool {
        let text = [b"\"", &*self.name, b"\""].concat();
        let name: Option<String> = serde_json::from_slice(&text).ok();
        name.as_deref() == Some("replayed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(text: &str, at: usize) -> String {
        let mut unmark = Unmark::default();
        let (start, rest) = text.as_bytes().split_at(at);
        let pieces = [start, rest].map(|piece| unmark.pass(Bytes::copy_from_slice(piece)));
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn the_mark_of_the_object_itself_is_taken_back_wherever_a_piece_ends() {
        for (text, expected) in [
            (r#"{"replayed":true}"#, r#"{"replayed":false}"#),
            (
                r#" {"a" : [1, {"replayed":true}], "replayed" : true , "b":true}"#,
                r#" {"a" : [1, {"replayed":true}], "replayed" : false , "b":true}"#,
            ),
            (
                r#"{"a":"\"replayed\":true","repl\u0061yed":true}"#,
                r#"{"a":"\"replayed\":true","repl\u0061yed":false}"#,
            ),
            (
                r#"{"replayed":true,"replayed":true}"#,
                r#"{"replayed":false,"replayed":false}"#,
            ),
        ] {
            for at in 0..text.len() {
                assert_eq!(passed(text, at), expected, "{at}");
            }
        }
    }

    #[test]
    fn all_else_passes_as_it_is() {
        for text in [
            r#"{"replayed":false}"#,
            r#"{"replayed":"true"}"#,
            r#"{"replayed":{"replayed":true}}"#,
            r#"{"data":{"replayed":true}}"#,
            r#"["replayed",true]"#,
            r#"{"a":"replayed","b":true}"#,
            r#"{"replayedd":true,"b":true}"#,
            "no JSON: true",
        ] {
            for at in 0..text.len() {
                assert_eq!(passed(text, at), text, "{at}");
            }
        }
    }
}
