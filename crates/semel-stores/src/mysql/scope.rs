//! A scope as one text that people can read: a JSON array of strings.

use semel::Scope;

pub(super) fn to_text(scope: &Scope) -> String {
    let mut to = String::from("[");
    for (number, segment) in scope.segments().enumerate() {
        if number > 0 {
            to.push(',');
        }
        to.push('"');
        for c in segment.chars() {
            match c {
                '"' | '\\' => to.extend(['\\', c]),
                '\0'..='\x1f' => {
                    to.push_str(if c < '\x10' { "\\u000" } else { "\\u001" });
                    to.extend(char::from_digit(u32::from(c) % 16, 16));
                }
                _ => to.push(c),
            }
        }
        to.push('"');
    }
    to.push(']');
    to
}

/// Reads what [`to_text`] wrote, and nothing else.
pub(super) fn from_text(text: &str) -> Option<Scope> {
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        if !segments.is_empty() {
            rest = rest.strip_prefix(',')?;
        }
        let (segment, after) = string(rest)?;
        segments.push(segment);
        rest = after;
    }
    Some(Scope::new(segments))
}

fn string(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?.chars();
    let mut segment = String::new();
    loop {
        match rest.next()? {
            '"' => return Some((segment, rest.as_str())),
            '\\' => match rest.next()? {
                c @ ('"' | '\\') => segment.push(c),
                'u' => {
                    let code = u32::from_str_radix(rest.as_str().get(..4)?, 16).ok()?;
                    segment.push(char::from_u32(code)?);
                    rest.nth(3)?;
                }
                _ => return None,
            },
            c => segment.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        for segments in [
            vec![],
            vec![""],
            vec!["", ""],
            vec!["tenant", "account"],
            vec![
                "a\"b\\c",
                "\0\n\r\t\u{1f}\u{7f}",
                "ü 🦀 \u{2028}",
                "\\u0041",
                "],[",
            ],
        ] {
            let scope = Scope::new(&segments);
            let text = to_text(&scope);
            assert!(!text.contains(|c: char| c < ' '));
            assert_eq!(from_text(&text), Some(scope), "{text}");
        }
        assert_eq!(to_text(&Scope::new(["a", "\n"])), r#"["a","\u000a"]"#);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "[",
            "[]]",
            "[\"a\"",
            "[\"a\",]",
            "[1]",
            "[\"a\"\"b\"]",
            "[\"\\x\"]",
            "[\"\\u00\"]",
        ] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
