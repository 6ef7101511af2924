//! The form in which cases are written down: see `README.md` beside this file.

use std::collections::HashSet;

/// What is sent, and what is to come of it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// One for each answer.
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) wants: Vec<Want>,
    /// Escapes are not read yet: HTTP/2 has a script here.
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Runs each time, without a fence.
    Plain,
    /// Runs once, with a fence; the next time is a replay.
    Once,
    /// Refused with this status, and never run.
    Refused(u16),
    /// No answer, and the connection ends.
    Closed,
    /// No answer while the client waits.
    Waits,
    /// The upstream's answer is passed on, kept and replayed.
    Kept,
    /// The upstream's answer is kept without its body; its first client gets none.
    Omitted,
    /// 502, and from then on 409.
    Unknown,
    /// HTTP/2: the stream is reset.
    Reset,
    /// HTTP/2: the connection ends with an error.
    GoAway,
    /// HTTP/2: the connection goes on.
    Borne,
}

/// What the upstream or the client sees besides.
#[derive(Debug, Clone)]
pub(crate) enum Want {
    Body(Vec<u8>),
    Target(String),
    /// The upstream gets this field with this value.
    Field(String, String),
    /// The upstream does not get this field.
    No(String),
    /// The upstream gets this trailer with this value.
    Trailer(String, String),
    /// The client gets a problem with this code.
    Problem(String),
    /// The connection ends with the last answer.
    Closes,
}

impl Case {
    fn read(line: &str, template: &str) -> Self {
        let parts: Vec<&str> = line.splitn(3, " | ").map(str::trim).collect();
        let [name, expected, text] = parts[..] else {
            panic!("not a case: {line}");
        };
        let mut words = expected.split_whitespace();
        let outcomes = words
            .next()
            .unwrap_or_default()
            .split('+')
            .map(|word| match word {
                "plain" => Outcome::Plain,
                "once" => Outcome::Once,
                "closed" => Outcome::Closed,
                "waits" => Outcome::Waits,
                "kept" => Outcome::Kept,
                "omitted" => Outcome::Omitted,
                "unknown" => Outcome::Unknown,
                "reset" => Outcome::Reset,
                "goaway" => Outcome::GoAway,
                "borne" => Outcome::Borne,
                status => Outcome::Refused(status.parse().unwrap_or_else(|_| panic!("{line}"))),
            });
        let outcomes = outcomes.collect();
        let wants = words.map(|word| {
            let (what, value) = word.split_once('=').unwrap_or((word, ""));
            match (what, value.split_once(':')) {
                ("body", _) => Want::Body(unescape(value, name)),
                ("target", _) => Want::Target(text_of(value, name)),
                ("field", Some((field, value))) => {
                    Want::Field(field.to_owned(), text_of(value, name))
                }
                ("no", _) => Want::No(value.to_owned()),
                ("trailer", Some((field, value))) => {
                    Want::Trailer(field.to_owned(), text_of(value, name))
                }
                ("closes", _) => Want::Closes,
                ("problem", _) => Want::Problem(value.to_owned()),
                _ => panic!("{line}"),
            }
        });
        Self {
            wants: wants.collect(),
            name: name.to_owned(),
            outcomes,
            text: template.replacen('@', text, 1),
        }
    }

    /// How often it is sent: what is run shows what becomes of its key when it comes again.
    pub(crate) fn times(&self) -> usize {
        let run = |outcome: &Outcome| matches!(outcome, Outcome::Plain | Outcome::Once);
        if self.outcomes.iter().any(run) { 2 } else { 1 }
    }

    /// The bytes to send.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        unescape(&self.text, &self.name)
    }
}

/// Reads files of cases.
pub(crate) fn read(files: &[&str]) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut template = "@".to_owned();
    for line in files.iter().flat_map(|file| file.lines()) {
        match line.strip_prefix("send: ") {
            Some(line) => line.clone_into(&mut template),
            None if line.is_empty() || line.starts_with('#') => {}
            None => cases.push(Case::read(line, &template)),
        }
    }
    let mut names = HashSet::new();
    for Case { name, .. } in &cases {
        let sign = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        assert!(name.bytes().all(sign), "{name}");
        assert!(names.insert(name.clone()), "{name} is there twice");
    }
    cases
}

pub(crate) fn text_of(text: &str, name: &str) -> String {
    unescape(text, name).into_iter().map(char::from).collect()
}

/// `\r`, `\n`, `\t`, `\\`, `\xHH`; `{case}`, and `{TEXT*N}` for N times a text.
pub(crate) fn unescape(text: &str, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (escape, after) = rest.split_at(first.len_utf8());
        rest = after;
        match first {
            '\\' => {
                let (sign, after) = rest.split_at(1);
                rest = after;
                match sign {
                    "r" => bytes.push(b'\r'),
                    "n" => bytes.push(b'\n'),
                    "t" => bytes.push(b'\t'),
                    "\\" => bytes.push(b'\\'),
                    "x" => {
                        bytes.push(u8::from_str_radix(&rest[..2], 16).unwrap());
                        rest = &rest[2..];
                    }
                    _ => panic!("escape \\{sign} in {text}"),
                }
            }
            '{' => {
                let (inner, after) = rest.split_once('}').unwrap();
                rest = after;
                match inner.rsplit_once('*') {
                    Some((part, times)) => {
                        let part = unescape(part, name);
                        bytes.extend(part.repeat(times.parse().unwrap()));
                    }
                    None if inner == "case" => bytes.extend(name.as_bytes()),
                    None => panic!("{{{inner}}} in {text}"),
                }
            }
            _ => bytes.extend(escape.as_bytes()),
        }
    }
    bytes
}
