//! Canonical JSON (RFC 8785) for fingerprints, only where it loses nothing.

use serde_json::Value;

/// The canonical form of a JSON text (RFC 8785), or `None` where the text is to be taken byte for
/// byte instead.
///
/// Two texts with the same canonical form count as the same request, so the form is given only to
/// I-JSON (RFC 7493) that it represents without loss. `None` for what is not JSON at all (a byte
/// order mark, invalid UTF-8, `NaN`), for duplicate names, lone surrogates, more than 128 levels,
/// numbers that are too large for a double, and numbers from 2^53 up whose digits a double does not
/// keep: `9007199254740993` would collapse into `9007199254740992`.
pub fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    let value = lossless(text)?;
    // With serde_json's `arbitrary_precision` unified in by some other crate, numbers beyond a
    // double are found only here.
    serde_json_canonicalizer::to_vec(&value).ok()
}

fn lossless(text: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let members = scan(text)?;
    // serde_json keeps the last of two members with one name: then it has fewer than the text.
    (members == count_members(&value)).then_some(value)
}

/// Counts the members of all objects in a valid JSON text; `None` where a number loses digits.
fn scan(text: &[u8]) -> Option<usize> {
    let mut members = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => at = string_end(text, at),
            b':' => {
                members += 1;
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let end = text[at..]
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
                    .map_or(text.len(), |len| at + len);
                if !keeps_digits(std::str::from_utf8(&text[at..end]).ok()?) {
                    return None;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    Some(members)
}

fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// Whether the double nearest to a number says what the number says, or is small enough that its
/// digits are taken to be rounding.
fn keeps_digits(literal: &str) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: every smaller integer is a double

    let Ok(double) = literal.parse::<f64>() else {
        return false;
    };
    if double == 0.0 {
        // Too small for a double, and not zero.
        return Decimal::of(literal).digits.is_empty();
    }
    double.is_finite()
        && (double.abs() < EXACT || Decimal::of(literal) == Decimal::of(&format!("{double:e}")))
}

/// A decimal number as its significant digits, times a power of ten. The sign is left out: both
/// sides of a comparison have the same.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    fn of(literal: &str) -> Self {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        // Only exponents of doubles are compared; longer ones are zeros or were refused before.
        let exponent: i64 = exponent.parse().unwrap_or(i64::MIN / 2);
        let mut digits: Vec<u8> = whole
            .bytes()
            .chain(fraction.bytes())
            .filter(u8::is_ascii_digit)
            .skip_while(|d| *d == b'0')
            .collect();
        let mut exponent = exponent - i64::try_from(fraction.len()).unwrap_or(i64::MAX / 4);
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent += 1;
        }
        if digits.is_empty() {
            exponent = 0;
        }
        Self { digits, exponent }
    }
}

fn count_members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count_members).sum(),
        Value::Object(members) => {
            members.len() + members.values().map(count_members).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(input: &str) -> Option<String> {
        canonical(input.as_bytes()).map(|c| String::from_utf8(c).unwrap())
    }

    #[test]
    fn numbers_from_2_to_the_53_up_keep_their_digits_or_are_refused() {
        for (input, output) in [
            ("9007199254740992", "9007199254740992"),
            ("1E30", "1e+30"),
            ("1e21", "1e+21"),
            ("100000000000000000000", "100000000000000000000"),
            ("-1.00e22", "-1e+22"),
            ("1.8014398509481984e16", "18014398509481984"),
            ("0e5", "0"),
            ("-0.0", "0"),
            ("4.50", "4.5"),
        ] {
            assert_eq!(text(input).as_deref(), Some(output), "{input}");
        }
        for lossy in [
            "9007199254740993",
            "-9007199254740993",
            "9007199254740993.0",
            "9007199254740992.5",
            "295147905179352825856",
            "18446744073709551615",
            "1e400",
            "1e-400",
            "1e99999999999999999999",
            "1e-99999999999999999999",
        ] {
            assert_eq!(text(lossy), None, "{lossy}");
        }
    }

    #[test]
    fn what_is_not_i_json_is_refused() {
        for bad in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"a":1,"a":1}}]"#,
            r#""\ud800""#,
            "NaN",
            "[1,]",
            "",
            "\u{feff}{}",
            "{} {}",
        ] {
            assert_eq!(text(bad), None, "{bad}");
        }
        assert_eq!(canonical(b"\"\xff\""), None);
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(text(&deep(100)).is_some());
        assert_eq!(text(&deep(200)), None);
    }

    #[test]
    fn colons_and_digits_within_strings_are_not_counted() {
        let input = r#"{"a:b\"":"9007199254740993 : \\","c":[]}"#;
        assert_eq!(text(input).as_deref(), Some(input));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = canonical(&bytes);
        }
    }
}
