//! Reading the key out of its header field: a pure function over the field's lines.

use semel::{Key, KeyError, KeyRule};
use sfv::{Item, Parser};

/// Which forms of the header field are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Syntax {
    /// The quoted string of the draft, and the bare form that every published service sends.
    ///
    /// A bare value is an opaque run of visible ASCII without `"`, `,`, `;` and `\`. It is never
    /// typed: `0123` and `123` are two keys, and `123` is the key `"123"`.
    #[default]
    Lenient,
    /// The quoted string only (draft-ietf-httpapi-idempotency-key-header-07, section 2.1).
    Strict,
}

/// Why a header field holds no usable key. Never contains the key (protocol rule R12).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// More than one field line. The field is an item, not a list (RFC 9651, section 4.2).
    #[error("the header field was sent more than once; send one key")]
    Repeated,
    /// The field has no value.
    #[error("the header field is empty; send a key, for instance \"8e03978e-40d5-43dd\"")]
    Empty,
    /// Not a structured-field string with well-formed parameters (RFC 9651, section 3.3.3).
    #[error("the header field is not a quoted string as RFC 9651 (section 3.3.3) writes it")]
    NotAString,
    /// Neither a quoted string nor a bare value.
    #[error(
        "the header field is neither a quoted string nor visible ASCII without '\"', ',', ';' and '\\'"
    )]
    NotBare,
    /// Well-formed, but not a key that the rule allows.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The key in the field whose lines are `lines`; `None` where there is no line.
///
/// A malformed field is an error, never ignored: to ignore it would be to run unprotected.
/// Whitespace around the value is not part of it (RFC 9110, section 5.5), parameters behind a
/// quoted string are parsed and ignored (RFC 9651, section 4.2.3).
///
/// # Errors
/// [`HeaderError`] says which rule was broken.
pub fn parse<'a>(
    lines: impl IntoIterator<Item = &'a [u8]>,
    syntax: Syntax,
    rule: &KeyRule,
) -> Result<Option<Key>, HeaderError> {
    let mut lines = lines.into_iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(HeaderError::Repeated);
    }
    let value = trim_ows(line);
    match (value.first(), syntax) {
        (None, _) => Err(HeaderError::Empty),
        (Some(b'"'), _) => quoted(value, rule),
        (Some(_), Syntax::Strict) => Err(HeaderError::NotAString),
        (Some(_), Syntax::Lenient) => bare(value, rule),
    }
    .map(Some)
}

fn quoted(value: &[u8], rule: &KeyRule) -> Result<Key, HeaderError> {
    let item: Item = Parser::new(value)
        .parse()
        .map_err(|_| HeaderError::NotAString)?;
    let content = item.bare_item.as_string().ok_or(HeaderError::NotAString)?;
    Ok(rule.parse(content.as_str())?)
}

fn bare(value: &[u8], rule: &KeyRule) -> Result<Key, HeaderError> {
    let text = std::str::from_utf8(value)
        .ok()
        .filter(|text| {
            text.bytes()
                .all(|b| b.is_ascii_graphic() && !b"\",;\\".contains(&b))
        })
        .ok_or(HeaderError::NotBare)?;
    Ok(rule.parse(text)?)
}

// Optional whitespace: SP and HTAB, nothing else (RFC 9110, section 5.6.3).
fn trim_ows(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
