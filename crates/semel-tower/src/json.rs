//! Canonical JSON (RFC 8785) for fingerprints, only where it loses nothing.

use serde_json::{Map, Value};

/// The canonical form of a JSON text (RFC 8785), or `None` where the text is to be taken byte for
/// byte instead.
///
/// Two texts with the same canonical form count as the same request, so the form is given only to
/// I-JSON (RFC 7493) that it represents without loss. `None` for what is not JSON at all (a byte
/// order mark, invalid UTF-8, `NaN`), for duplicate names, lone surrogates, more than 128 levels, and
/// numbers whose digits a double does not keep: `1.000000000000000001` would collapse into `1`, and
/// `9007199254740993` into `9007199254740992`.
pub fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    let value = parse(text, Digits::Kept)?;
    // Whitespace is what it may lose most; numbers alone can become longer.
    let mut out = Vec::with_capacity(text.len());
    write(&value, &mut out)?;
    Some(out)
}

/// The canonical form of a value; `None` where a number is beyond a double.
pub(crate) fn to_canonical(value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    write(value, &mut out)?;
    Some(out)
}

/// RFC 8785, section 3.2. serde_json escapes strings as it says (section 3.2.2.2), and `ryu_js` writes
/// doubles as ECMAScript does (section 3.2.2.3).
fn write(value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::Array(items) => {
            out.push(b'[');
            for (nth, item) in items.iter().enumerate() {
                if nth > 0 {
                    out.push(b',');
                }
                write(item, out)?;
            }
            out.push(b']');
        }
        Value::Object(members) => write_object(members, out)?,
        Value::Number(number) => {
            // With serde_json's `arbitrary_precision` unified in by some other crate, numbers beyond a
            // double are found only here.
            let double = number.as_f64().filter(|double| double.is_finite())?;
            let mut text = ryu_js::Buffer::new();
            out.extend_from_slice(text.format_finite(double).as_bytes());
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {
            serde_json::to_writer(out, value).ok()?;
        }
    }
    Some(())
}

fn write_object(members: &Map<String, Value>, out: &mut Vec<u8>) -> Option<()> {
    let mut members: Vec<_> = members.iter().collect();
    // By UTF-16 (section 3.2.3). serde_json sorts by code points, which is the same but for a few, unless
    // some other crate turned on its `preserve_order`.
    members.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
    out.push(b'{');
    for (nth, (name, value)) in members.into_iter().enumerate() {
        if nth > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, name).ok()?;
        out.push(b':');
        write(value, out)?;
    }
    out.push(b'}');
    Some(())
}

/// What becomes of numbers whose digits a double does not keep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digits {
    /// The text is refused.
    Kept,
    /// They are rounded, as RFC 8785 has it.
    Rounded,
}

/// A JSON text in which no object has two members of one name.
pub(crate) fn parse(text: &[u8], digits: Digits) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let members = scan(text, digits)?;
    // serde_json keeps the last of two members with one name: then it has fewer than the text.
    (members == count_members(&value)).then_some(value)
}

/// Counts the members of all objects in a valid JSON text; `None` where a number loses digits that
/// are to be kept.
fn scan(text: &[u8], digits: Digits) -> Option<usize> {
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
                let literal = std::str::from_utf8(&text[at..end]).ok()?;
                if digits == Digits::Kept && !keeps_digits(literal) {
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

/// Whether the double nearest to a number, in its shortest form, says what the number says.
fn keeps_digits(literal: &str) -> bool {
    // Every integer of so few digits is a double.
    if literal.len() <= 15 && literal.bytes().all(|b| b.is_ascii_digit()) {
        return true;
    }
    let Ok(double) = literal.parse::<f64>() else {
        return false;
    };
    double.is_finite() && Decimal::of(literal) == Decimal::of(&format!("{double:e}"))
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
        // Too long a one saturates: no double has such an exponent, so nothing equals it but zero.
        let exponent: i64 = exponent.parse().unwrap_or(i64::MIN);
        let mut digits: Vec<u8> = whole
            .bytes()
            .chain(fraction.bytes())
            .filter(u8::is_ascii_digit)
            .skip_while(|d| *d == b'0')
            .collect();
        let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let mut exponent = exponent.saturating_sub(places);
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent = exponent.saturating_add(1);
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
    use proptest::prelude::*;

    use super::*;

    fn text(input: &str) -> Option<String> {
        canonical(input.as_bytes()).map(|c| String::from_utf8(c).unwrap())
    }

    #[test]
    fn large_numbers_keep_their_digits_or_are_refused() {
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

    #[test]
    fn numbers_whose_digits_a_double_does_not_keep_are_refused() {
        for lossy in [
            "1.000000000000000001",
            "1.000000000000000002",
            "99.99999999999999999",
            "0.10000000000000000001",
            "1e-5000",
            "1.5e-9223372036854775808",
            "-1.5e-9223372036854775807",
            "1.5e-99999999999999999999",
            "0.1e9223372036854775807",
        ] {
            assert_eq!(text(lossy), None, "{lossy}");
        }
        for (input, output) in [
            ("0.1", "0.1"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("1234567.89", "1234567.89"),
            ("1.50000000000000000000", "1.5"),
            ("0.00e-9223372036854775808", "0"),
            ("0e99999999999999999999", "0"),
            ("5e-324", "5e-324"),
        ] {
            assert_eq!(text(input).as_deref(), Some(output), "{input}");
        }
    }

    /// A number as JSON may write it: any digits, and exponents up to the edge of what a machine
    /// counts in.
    fn literals() -> impl Strategy<Value = String> {
        let exponent = prop_oneof![
            Just(String::new()),
            "[eE][+-]?[0-9]{1,3}",
            "[eE]-?9223372036854775[0-9]{3}",
            "[eE]-?[1-9][0-9]{18,24}",
        ];
        ("-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?", exponent).prop_map(|(m, e)| m + &e)
    }

    /// Sign, digits and exponent, found without any of the code above.
    fn value_of(literal: &str) -> (bool, String, i128) {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let unsigned = mantissa.trim_start_matches('-');
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let dropped = digits.len() - significant.len();
        let significant = significant.trim_start_matches('0').to_owned();
        if significant.is_empty() {
            return (false, significant, 0);
        }
        let exponent: i128 = exponent.parse().unwrap();
        let exponent = exponent - fraction.len() as i128 + dropped as i128;
        (mantissa.starts_with('-'), significant, exponent)
    }

    /// Any JSON, nested a little, with names that UTF-8 and UTF-16 sort in two ways.
    fn values() -> impl Strategy<Value = Value> {
        let text = || "[\u{0}-\u{1f}a-c\"\\\\/\u{7f}é\u{e000}-\u{ffff}\u{10000}-\u{10ffff}]{0,4}";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(text(), inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_form_is_what_another_writer_makes_of_it(value in values()) {
            let other = serde_json_canonicalizer::to_vec(&value).unwrap();
            prop_assert_eq!(to_canonical(&value), Some(other));
        }

        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>) {
            let _ = canonical(&bytes);
        }

        #[test]
        fn no_two_numbers_have_one_form(literal in literals()) {
            if let Some(form) = text(&literal) {
                prop_assert_eq!(value_of(&literal), value_of(&form));
            }
        }

        #[test]
        fn what_a_double_says_in_its_shortest_form_has_one(
            double in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL,
        ) {
            let form = text(&format!("{double:e}"));
            prop_assert!(form.is_some());
            // However it is written.
            let point = if double.fract() == 0.0 { ".00" } else { "00" };
            prop_assert_eq!(&text(&format!("{double}{point}")), &form);
            prop_assert_eq!(text(&format!("{double}")), form);
        }

        #[test]
        fn digits_behind_those_of_a_double_are_not_dropped(
            whole in 0_u32..1000,
            (one, other) in ("[0-9]{18,20}", "[0-9]{18,20}"),
        ) {
            let (one, other) = (format!("{whole}.{one}"), format!("{whole}.{other}"));
            prop_assume!(value_of(&one) != value_of(&other));
            let forms = (text(&one), text(&other));
            prop_assert!(forms.0.is_none() || forms.0 != forms.1);
        }
    }
}
