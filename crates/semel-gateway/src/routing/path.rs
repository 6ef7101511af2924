//! Paths of routes, and the paths of requests as servers read them.
//!
//! The gateway passes a path on as it came, and servers differ in what they make of one: `%2F` may be a
//! slash or not, `//` one slash or two. So a request's path is matched in every [reading](readings) that
//! is common, and where these fall to different routes the request is refused: nobody gets around a
//! route by the way a path is written.

use std::collections::BTreeSet;
use std::fmt;

/// The path of a route: `/v1/orders/{id}`, `/v1/payments/*`.
///
/// `{name}` is one segment, and `*` at the end whatever comes, also nothing. A slash at the end does
/// not count. Our own: routers like `matchit` take the most specific of a set, and globs cross slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    segments: Vec<Segment>,
    is_open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Any(String),
}

impl Path {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("`{text}` {why}; write it like /v1/orders, /v1/orders/{{id}} or /v1/payments/*")
        };
        let Some(rest) = text.strip_prefix('/') else {
            return Err(wrong("does not begin with a slash"));
        };
        if text.contains("//") {
            return Err(wrong("has an empty segment"));
        }
        if text.contains(['?', '#']) {
            return Err(wrong("is more than a path: queries do not count"));
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (rest, is_open) = match rest.strip_suffix('*') {
            Some("") => ("", true),
            Some(before) if before.ends_with('/') => (&before[..before.len() - 1], true),
            _ => (rest, false),
        };
        let mut segments = Vec::new();
        for segment in rest.split('/').filter(|_| !rest.is_empty()) {
            let name = segment
                .strip_prefix('{')
                .and_then(|name| name.strip_suffix('}'));
            segments.push(match name {
                Some(name) if !name.is_empty() && !name.contains(['{', '}', '*']) => {
                    Segment::Any(name.to_owned())
                }
                _ if segment.contains(['{', '}']) => {
                    return Err(wrong("has a brace that is not around a whole segment"));
                }
                _ if segment.contains('*') => {
                    return Err(wrong("has a `*` that is not its last segment"));
                }
                _ => Segment::Literal(decoded(segment)),
            });
        }
        // What a request can be read as in two ways can be no route's.
        let literals = segments.iter().filter_map(Segment::literal);
        for literal in literals {
            if readings(&format!("/{literal}")).is_none_or(|all| all.len() > 1) {
                return Err(wrong(
                    "has `.`, `..`, `;`, `\\` or an encoded slash: servers read them in different ways",
                ));
            }
        }
        Ok(Self { segments, is_open })
    }

    /// Whether a reading of a request's path is one of these.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix('/') else {
            return false;
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let mut there = rest.split('/').filter(|_| !rest.is_empty());
        let all = self.segments.iter().all(|segment| {
            there.next().is_some_and(|there| match segment {
                Segment::Literal(literal) => literal == there,
                Segment::Any(_) => !there.is_empty(),
            })
        });
        all && (self.is_open || there.next().is_none())
    }

    /// Whether it matches everything that the other one does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_long_enough = match self.is_open {
            true => self.segments.len() <= other.segments.len(),
            false => self.segments.len() == other.segments.len() && !other.is_open,
        };
        let mut pairs = self.segments.iter().zip(&other.segments);
        is_long_enough && pairs.all(|(ours, theirs)| ours.literal().is_none() || ours == theirs)
    }
}

impl Segment {
    fn literal(&self) -> Option<&str> {
        match self {
            Self::Literal(literal) => Some(literal),
            Self::Any(_) => None,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(f, "/{literal}")?,
                Segment::Any(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.is_open, self.segments.is_empty()) {
            (true, _) => f.write_str("/*"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

/// Whether there is one reading only, the path itself.
pub(crate) fn is_plain(path: &str) -> bool {
    let mut last = 0;
    path.bytes().all(|byte| {
        let is_strange = match last {
            b'/' => matches!(byte, b'%' | b';' | b'\\' | b'/' | b'.'),
            _ => matches!(byte, b'%' | b';' | b'\\'),
        };
        last = byte;
        !is_strange
    })
}

/// What servers may take a path for; `None` if that is too much to compare. Percent-encodings are decoded
/// in all of them. Each further step is taken by some servers and not by others, in whatever order, and
/// decoding more than once by chains of them.
pub(crate) fn readings(path: &str) -> Option<BTreeSet<String>> {
    let steps: [fn(&str) -> String; 5] = [
        |path| decoded_but(path, b""),
        |path| path.replace('\\', "/"),
        without_parameters,
        with_single_slashes,
        without_dots,
    ];
    let mut readings = BTreeSet::new();
    let mut new = vec![decoded(path)];
    while let Some(reading) = new.pop() {
        if readings.contains(&reading) {
            continue;
        }
        new.extend(steps.map(|step| step(&reading)));
        readings.insert(reading);
        if readings.len() > MOST_READINGS {
            return None;
        }
    }
    Some(readings)
}

/// What people write has a handful.
const MOST_READINGS: usize = 64;
/// Not all servers decode these before they look for segments.
const KEPT: &[u8] = b"/\\;%";

/// A path with what all servers decode.
pub(crate) fn decoded(path: &str) -> String {
    decoded_but(path, KEPT)
}

/// Decodes percent-encodings, but for those of `kept`, whose digits become upper case.
fn decoded_but(text: &str, kept: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let byte = match after {
            [a, b, ..] if *first == b'%' => hex(*a).zip(hex(*b)).map(|(a, b)| a << 4 | b),
            _ => None,
        };
        match byte {
            Some(byte) if kept.contains(&byte) => {
                bytes.push(b'%');
                bytes.extend(after[..2].iter().map(u8::to_ascii_uppercase));
            }
            Some(byte) => bytes.push(byte),
            None => bytes.push(*first),
        }
        if byte.is_some() {
            rest = &after[2..];
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Without what follows a `;` in a segment, as servlets read it.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/');
    let bare: Vec<&str> = segments
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .collect();
    bare.join("/")
}

fn with_single_slashes(path: &str) -> String {
    let mut single = String::with_capacity(path.len());
    for c in path.chars() {
        if c != '/' || !single.ends_with('/') {
            single.push(c);
        }
    }
    single
}

/// RFC 3986, section 5.2.4.
fn without_dots(path: &str) -> String {
    let Some(rest) = path.strip_prefix('/') else {
        return path.to_owned();
    };
    let mut kept = Vec::new();
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
        if segments.peek().is_none() && matches!(segment, "." | "..") {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    #[test]
    fn segments_match_whole() {
        for (pattern, yes, no) in [
            ("/", &["/"][..], &["/a", "*", ""][..]),
            ("/*", &["/", "/a", "/a/b/"], &["*"]),
            (
                "/v1/orders",
                &["/v1/orders", "/v1/orders/"],
                &["/v1/order", "/v1/orders/1", "/V1/orders", "/v1"],
            ),
            (
                "/v1/orders/{id}",
                &["/v1/orders/1", "/v1/orders/1/"],
                &["/v1/orders", "/v1/orders/", "/v1/orders/1/2"],
            ),
            (
                "/v1/{id}/lines",
                &["/v1/7/lines"],
                &["/v1//lines", "/v1/7/8/lines"],
            ),
            (
                "/v1/payments/*",
                &[
                    "/v1/payments",
                    "/v1/payments/",
                    "/v1/payments/1",
                    "/v1/payments/1/capture",
                ],
                &["/v1/paymentsx", "/v1"],
            ),
            ("/caf%C3%A9", &["/caf\u{e9}"], &["/cafe"]),
        ] {
            for yes in yes {
                assert!(path(pattern).matches(yes), "{pattern} {yes}");
            }
            for no in no {
                assert!(!path(pattern).matches(no), "{pattern} {no}");
            }
        }
    }

    #[test]
    fn a_pattern_that_could_be_read_in_two_ways_is_none() {
        for text in [
            "v1", "", "/a?b", "/a#b", "/a/{id", "/a/x{id}", "/a/{}", "/a/{i*d}", "/a/*/b", "/a/b*",
            "/a//b", "/a/./b", "/a/../b", "/a;b", "/a\\b", "/a%2Fb", "/a%252Fb", "//", "/%2e%2e",
        ] {
            assert!(Path::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_is_shown_as_it_is_written() {
        for text in [
            "/",
            "/*",
            "/v1/orders",
            "/v1/orders/{id}/lines",
            "/v1/{a}/*",
        ] {
            assert_eq!(path(text).to_string(), text);
        }
    }

    #[test]
    fn a_wider_pattern_covers_a_narrower_one() {
        for (wide, narrow) in [
            ("/*", "/a/{id}"),
            ("/a/*", "/a"),
            ("/a/{id}", "/a/b"),
            ("/a/*", "/a/b/*"),
            ("/a", "/a"),
        ] {
            assert!(path(wide).covers(&path(narrow)), "{wide} {narrow}");
        }
        for (one, other) in [
            ("/a/{id}", "/a/*"),
            ("/a/b", "/a/{id}"),
            ("/a/*", "/b"),
            ("/a", "/a/b"),
        ] {
            assert!(!path(one).covers(&path(other)), "{one} {other}");
        }
    }

    #[test]
    fn every_reading_of_a_path_is_known() {
        for spelled in [
            "/v1/%70ayments",
            "/v1/./payments",
            "/v1//payments",
            "//v1/payments",
            "/v1/x/../payments",
            "/v1/%2e/payments",
            "/v1/x/%2E%2e/payments",
            "/v1%2Fpayments",
            "/v1%2fpayments",
            "/v1%252Fpayments",
            "/v1%25252Fpayments",
            "/v1\\payments",
            "/v1%5Cpayments",
            "/v1;a=b/payments",
            "/v1/payments;a=b",
            "/v1/;/payments",
            "/v1/x/..;/payments",
            "/v1/x%2F..%2Fpayments",
            "/v1/x/..%3B/payments",
            "/v1/%252e/payments",
            "/../v1/payments",
            // Parameters first, then what is encoded, as servlets do.
            "/x;p%2Fq/..%2Fv1/payments",
            "/v1;%2F/payments",
        ] {
            assert!(!is_plain(spelled), "{spelled}");
            let all = readings(spelled).unwrap();
            assert!(all.contains("/v1/payments"), "{spelled}");
        }
        for plain in [
            "/",
            "/v1/payments",
            "/v1/payments/",
            "/a.b/c..d",
            "*",
            "/~a/b-c_d",
        ] {
            assert!(is_plain(plain), "{plain}");
            let all = BTreeSet::from([plain.to_owned()]);
            assert_eq!(readings(plain), Some(all), "{plain}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_read_too() {
        for path in ["/%", "/%2", "/%zz", "/%ff", "/%00", "/%E2%82"] {
            assert!(readings(path).is_some_and(|all| !all.is_empty()));
        }
        assert_eq!(readings(&format!("/%{}2F", "25".repeat(100))), None);
    }
}
