//! Canonical JSON (RFC 8785) for fingerprints, only where it loses nothing.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;
use std::sync::LazyLock;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The canonical form of a JSON text (RFC 8785), or `None` where the text is to be taken byte for
/// byte instead.
///
/// Two texts with the same canonical form count as the same request, so the form is given only to
/// I-JSON (RFC 7493) that it represents without loss. `None` for what is not JSON at all (a byte
/// order mark, invalid UTF-8, `NaN`), for duplicate names, lone surrogates, 128 levels and more, much
/// text within many levels whose members are out of order, and numbers whose digits a double does
/// not keep: `1.000000000000000001` would collapse into `1`, and `9007199254740993` into
/// `9007199254740992`.
pub fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    with_canonical(text, Digits::Kept, |form| form.map(<[u8]>::to_vec))
}

/// What becomes of numbers whose digits a double does not keep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digits {
    /// The text is refused.
    Kept,
    /// They are rounded, as RFC 8785 has it.
    Rounded,
}

/// Shows `then` the canonical form of a text, if it has one.
pub(crate) fn with_canonical<T>(
    text: &[u8],
    digits: Digits,
    then: impl FnOnce(Option<&[u8]>) -> T,
) -> T {
    // Most bodies are small, and each thread writes one after the other. The last stays in its memory.
    const KEPT: usize = 16 << 10;
    thread_local! {
        static WRITER: Cell<Writer> = const { Cell::new(Writer::new()) };
    }
    let mut writer = WRITER.take();
    let shown = then(writer.write(text, digits));
    if writer.out.capacity() <= KEPT && writer.members.capacity() <= KEPT / size_of::<Member>() {
        WRITER.set(writer);
    }
    shown
}

/// Writes what it reads, without a tree of it (RFC 8785, section 3.2).
#[derive(Default)]
struct Writer {
    out: Vec<u8>,
    /// Of all objects that are open.
    members: Vec<Member>,
    /// How many bytes may be moved yet: each level moves what is in it.
    may_move: usize,
}

/// Where a member of an object stands in what was written.
#[derive(Clone, Copy)]
struct Member {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Writer {
    const fn new() -> Self {
        Self {
            out: Vec::new(),
            members: Vec::new(),
            may_move: 0,
        }
    }

    fn write(&mut self, text: &[u8], digits: Digits) -> Option<&[u8]> {
        // As much as deep nesting alone comes to: some 20 ms for a megabyte.
        const MOVES: usize = 64;
        self.out.clear();
        self.members.clear();
        self.may_move = text.len().saturating_mul(MOVES);
        let mut reader = serde_json::Deserializer::from_slice(text);
        self.deserialize(&mut reader).ok()?;
        reader.end().ok()?;
        (digits == Digits::Rounded || keeps_all_digits(text)).then_some(&*self.out)
    }

    /// As serde_json escapes it: as section 3.2.2.2 says.
    fn string<E: Error>(&mut self, text: &str) -> Result<(), E> {
        serde_json::to_writer(&mut self.out, text).map_err(E::custom)
    }

    /// As `ryu_js` writes doubles: as ECMAScript does (section 3.2.2.3).
    fn number<E: Error>(&mut self, number: f64) -> Result<(), E> {
        if !number.is_finite() {
            return Err(E::custom("a number beyond a double"));
        }
        let mut text = ryu_js::Buffer::new();
        self.out
            .extend_from_slice(text.format_finite(number).as_bytes());
        Ok(())
    }

    /// Puts the members of the object that opens at `open`, which are the last from `first` on, in the order
    /// of section 3.2.3.
    fn sort<E: Error>(&mut self, open: usize, first: usize) -> Result<(), E> {
        let (out, members) = (&mut self.out, &mut self.members[first..]);
        let name = |member: &Member| &out[member.start..member.name_end];
        if members.iter().any(|member| name(member).contains(&b'\\')) {
            // Each is read once, not at each comparison.
            members
                .sort_by_cached_key(|member| said(name(member)).encode_utf16().collect::<Vec<_>>());
        } else {
            members.sort_unstable_by(|one, other| by_utf16(name(one), name(other)));
        }
        // What says the same is written the same.
        if members
            .windows(2)
            .any(|pair| name(&pair[0]) == name(&pair[1]))
        {
            return Err(E::custom("two members of one name"));
        }
        if !members.is_sorted_by_key(|member| member.start) {
            let end = out.len();
            self.may_move = self.may_move.checked_sub(end - open).ok_or_else(|| {
                E::custom("too many levels of much text whose members are out of order")
            })?;
            // Written behind the object, then moved over it.
            for (nth, member) in members.iter().enumerate() {
                if nth > 0 {
                    out.push(b',');
                }
                out.extend_from_within(member.start..member.end);
            }
            out.copy_within(end.., open);
            out.truncate(end);
        }
        self.members.truncate(first);
        Ok(())
    }
}

/// Two names as they are written, without escapes, by their UTF-16.
fn by_utf16(one: &[u8], other: &[u8]) -> Ordering {
    if one.is_ascii() && other.is_ascii() {
        return bare(one).cmp(bare(other));
    }
    said(one).encode_utf16().cmp(said(other).encode_utf16())
}

fn bare(written: &[u8]) -> &[u8] {
    let inner = written.strip_prefix(b"\"").unwrap_or(written);
    inner.strip_suffix(b"\"").unwrap_or(inner)
}

fn said(written: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bare(written)) {
        Ok(bare) if !written.contains(&b'\\') => Cow::Borrowed(bare),
        _ => serde_json::from_slice(written).unwrap_or_default(),
    }
}

/// How serde_json names a number where some other crate turned on its `arbitrary_precision`.
const NUMBER: &str = "$serde_json::private::Number";
static ARE_NUMBERS_NAMED: LazyLock<bool> =
    LazyLock::new(|| serde_json::from_str::<serde_json::Value>("1e400").is_ok());

impl<'de> DeserializeSeed<'de> for &mut Writer {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Writer {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn visit_bool<E>(self, is_true: bool) -> Result<(), E> {
        let text: &[u8] = if is_true { b"true" } else { b"false" };
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.number(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.number(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.number(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.string(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.out.push(b'[');
        let mut end = self.out.len();
        while items.next_element_seed(&mut *self)?.is_some() {
            end = self.out.len();
            self.out.push(b',');
        }
        self.out.truncate(end);
        self.out.push(b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.out.push(b'{');
        let (first, open) = (self.members.len(), self.out.len());
        let (mut start, mut end) = (open, open);
        while let Some(is_number) = members.next_key_seed(Name(self))? {
            if is_number && start == open && *ARE_NUMBERS_NAMED {
                let number = members.next_value_seed(Number)?;
                self.out.truncate(open - 1);
                return self.number(number);
            }
            let name_end = self.out.len();
            self.out.push(b':');
            members.next_value_seed(&mut *self)?;
            end = self.out.len();
            self.members.push(Member {
                start,
                name_end,
                end,
            });
            self.out.push(b',');
            start = self.out.len();
        }
        self.out.truncate(end);
        self.sort(open, first)?;
        self.out.push(b'}');
        Ok(())
    }
}

/// A number that serde_json names. A string that a caller sent in its place is borrowed, and refused.
struct Number;

impl<'de> DeserializeSeed<'de> for Number {
    type Value = f64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<f64, D::Error> {
        deserializer.deserialize_string(self)
    }
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_string<E: Error>(self, number: String) -> Result<f64, E> {
        number.parse().map_err(E::custom)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<f64, E> {
        Err(E::custom("a string where a number is meant"))
    }
}

/// Writes the name of a member.
struct Name<'w>(&'w mut Writer);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    /// Whether it is [`NUMBER`].
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        self.0.string(name)?;
        Ok(name == NUMBER)
    }
}

/// Whether all numbers of a valid JSON text keep their digits.
fn keeps_all_digits(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => at = string_end(text, at),
            b'-' | b'0'..=b'9' => {
                let end = text[at..]
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
                    .map_or(text.len(), |len| at + len);
                if !std::str::from_utf8(&text[at..end]).is_ok_and(keeps_digits) {
                    return false;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    true
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

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
    fn what_serde_json_calls_its_own_is_an_object_like_any_other() {
        for own in ["Number", "RawValue"] {
            let name = format!("$serde_json::private::{own}");
            let input = format!(r#"{{"{name}":"12"}}"#);
            assert_ne!(text(&input).as_deref(), Some("12"), "{own}");
        }
    }

    #[test]
    fn much_text_is_not_moved_again_and_again() {
        let around = |levels: usize, within: &str| {
            let (before, after) = (r#"{"b":"#.repeat(levels), r#","a":0}"#.repeat(levels));
            format!("{before}{within}{after}")
        };
        let long = format!("\"{}\"", "x".repeat(10_000));
        assert!(text(&around(20, &long)).is_some());
        assert_eq!(text(&around(100, &long)), None);
        assert!(text(&around(100, "0")).is_some());
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

    /// A value with the members of each object as they are sorted, or in reverse.
    fn written(value: &Value, reversed: bool) -> String {
        match value {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| written(item, reversed)).collect();
                format!("[{}]", items.join(","))
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| {
                        format!(
                            "{}:{}",
                            Value::from(name.as_str()),
                            written(value, reversed)
                        )
                    })
                    .collect();
                if reversed {
                    members.reverse();
                }
                format!("{{{}}}", members.join(", "))
            }
            leaf => leaf.to_string(),
        }
    }

    proptest! {
        #[test]
        fn the_form_is_what_another_writer_makes_of_it(value in values()) {
            let other = serde_json_canonicalizer::to_vec(&value).unwrap();
            let text = serde_json::to_vec(&value).unwrap();
            with_canonical(&text, Digits::Rounded, |form| {
                prop_assert_eq!(form, Some(&*other));
                Ok(())
            })?;
        }

        #[test]
        fn the_order_of_members_says_nothing(value in values()) {
            let (sorted, reversed) = (written(&value, false), written(&value, true));
            prop_assert_eq!(canonical(sorted.as_bytes()), canonical(reversed.as_bytes()));
        }

        #[test]
        fn a_member_that_is_there_twice_is_found(
            value in values(),
            name in "[a-c\"\\\\é]{0,2}",
        ) {
            let name = Value::from(name).to_string();
            let text = format!("[{{{name}:1,\"\u{10000}\":{0},\"z\":{0},{name}:2}}]", written(&value, true));
            prop_assert_eq!(canonical(text.as_bytes()), None);
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
