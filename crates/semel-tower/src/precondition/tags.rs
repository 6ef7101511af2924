//! The value of `If-Match` and `If-None-Match`: `*`, or a list of entity tags (RFC 9110, sections
//! 8.8.3 and 13.1).

use semel::versioned::Version;

/// What a field names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tags {
    /// `*`: any version.
    Any,
    /// These versions. Tags that no version has are left out.
    These(Vec<Version>),
}

/// How tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// A weak tag equals nothing.
    Strong,
    /// Whether a tag is weak does not matter.
    Weak,
}

const NO_TAG: &str = "is neither `*` nor a list of entity tags in quotes, as in \"7\"";
const STAR: &str = "has `*` together with other tags";
const EMPTY: &str = "is empty; send `*`, or an entity tag in quotes, as in \"7\"";

impl Tags {
    /// Reads all lines of a field; `None` where there is no line.
    pub(super) fn parse<'a>(
        lines: impl Iterator<Item = &'a [u8]>,
        comparison: Comparison,
    ) -> Result<Option<Self>, &'static str> {
        let (mut sent, mut star, mut count, mut these) = (false, false, 0, Vec::new());
        for line in lines {
            sent = true;
            let mut rest = line;
            loop {
                // Lists may have empty elements (section 5.6.1.2).
                while let [b' ' | b'\t' | b',', after @ ..] = rest {
                    rest = after;
                }
                let Some((element, after)) = element(rest)? else {
                    break;
                };
                rest = after;
                count += 1;
                match element {
                    Element::Star => star = true,
                    Element::Tag { weak, opaque } => {
                        let counts = !weak || comparison == Comparison::Weak;
                        these.extend(version(opaque).filter(|_| counts));
                    }
                }
            }
        }
        match (sent, star, count) {
            (false, ..) => Ok(None),
            (true, _, 0) => Err(EMPTY),
            (true, true, 1) => Ok(Some(Self::Any)),
            (true, true, _) => Err(STAR),
            (true, false, _) => Ok(Some(Self::These(these))),
        }
    }

    /// Whether the record that was found is among them.
    pub(super) fn include(&self, found: Option<Version>) -> bool {
        match (self, found) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::These(these), Some(version)) => these.contains(&version),
        }
    }
}

enum Element<'a> {
    Star,
    Tag { weak: bool, opaque: &'a [u8] },
}

/// The first element, and what comes behind it.
fn element(text: &[u8]) -> Result<Option<(Element<'_>, &[u8])>, &'static str> {
    let (element, rest) = match text {
        [] => return Ok(None),
        [b'*', rest @ ..] => (Element::Star, rest),
        // `W` in this case only.
        [b'W', b'/', b'"', rest @ ..] => tag(rest, true)?,
        [b'"', rest @ ..] => tag(rest, false)?,
        _ => return Err(NO_TAG),
    };
    let end = rest.iter().find(|b| !matches!(b, b' ' | b'\t'));
    match end {
        None | Some(b',') => Ok(Some((element, rest))),
        Some(_) => Err(NO_TAG),
    }
}

/// Up to the closing quote: visible characters and what is beyond ASCII, without escapes.
fn tag(text: &[u8], weak: bool) -> Result<(Element<'_>, &[u8]), &'static str> {
    let end = text.iter().position(|b| *b == b'"').ok_or(NO_TAG)?;
    let (opaque, rest) = text.split_at(end);
    if opaque.iter().any(|b| *b <= b' ' || *b == 0x7f) {
        return Err(NO_TAG);
    }
    Ok((Element::Tag { weak, opaque }, &rest[1..]))
}

/// The version whose tag this is: a number as it is written, without zeros before it.
fn version(opaque: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(opaque).ok()?;
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(Version(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[&str]) -> Result<Option<Tags>, &'static str> {
        Tags::parse(lines.iter().map(|l| l.as_bytes()), Comparison::Strong)
    }

    fn these(numbers: &[u64]) -> Result<Option<Tags>, &'static str> {
        Ok(Some(Tags::These(
            numbers.iter().copied().map(Version).collect(),
        )))
    }

    #[test]
    fn lists_are_read_as_written() {
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&["*"]), Ok(Some(Tags::Any)));
        assert_eq!(parse(&[" * "]), Ok(Some(Tags::Any)));
        assert_eq!(parse(&["\"1\""]), these(&[1]));
        assert_eq!(parse(&["\"1\",\"2\" , ,\t\"3\","]), these(&[1, 2, 3]));
        assert_eq!(parse(&["\"1\"", "\"2\""]), these(&[1, 2]));
        // Well-formed, and no version's.
        for other in [
            "\"\"",
            "\"abc\"",
            "\"-1\"",
            "\"+1\"",
            "\"1,2\"",
            "\"ü\"",
            "W/\"1\"",
            "\"18446744073709551616\"",
        ] {
            assert_eq!(parse(&[other]), these(&[]), "{other}");
        }
    }

    #[test]
    fn what_is_malformed_is_never_ignored() {
        for bad in [
            "",
            " ",
            ",",
            "1",
            "\"1",
            "1\"",
            "w/\"1\"",
            "W/1",
            "W/",
            "\"1\" \"2\"",
            "\"1\"x",
            "*, \"1\"",
            "\"1\", *",
            "**",
            "*x",
            "\"a b\"",
            "'1'",
            "\"1\";q=1",
            "\"\\\"\"",
        ] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
        assert!(parse(&["*", "*"]).is_err());
        assert!(parse(&["\"1\"", "x"]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        for byte in 0..=255 {
            for around in [
                &[b'"', byte, b'"'][..],
                &[byte],
                &[b'W', byte, b'"', b'1', b'"'],
            ] {
                let _ = Tags::parse(std::iter::once(around), Comparison::Weak);
            }
        }
    }
}
