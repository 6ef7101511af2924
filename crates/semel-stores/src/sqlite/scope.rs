//! A scope as text: a JSON array of its segments, so that operators can read and query it.

use semel::Scope;

pub(super) fn encode(scope: &Scope) -> String {
    let mut text = String::from("[");
    for (n, segment) in scope.segments().enumerate() {
        text.push_str(if n == 0 { "\"" } else { ",\"" });
        for c in segment.chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                // NUL among them: functions of SQLite end a text there.
                '\0'..='\x1f' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
                _ => text.push(c),
            }
        }
        text.push('"');
    }
    text.push(']');
    text
}

/// Reads what [`encode`] wrote; `None` for anything else.
pub(super) fn decode(text: &str) -> Option<Scope> {
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?.chars();
    let mut segments: Vec<String> = Vec::new();
    while let Some(c) = rest.next() {
        let opens = match (c, segments.is_empty()) {
            ('"', true) => true,
            (',', false) => rest.next() == Some('"'),
            _ => false,
        };
        if !opens {
            return None;
        }
        segments.push(string(&mut rest)?);
    }
    Some(Scope::new(segments))
}

fn string(rest: &mut std::str::Chars<'_>) -> Option<String> {
    let mut text = String::new();
    loop {
        match rest.next()? {
            '"' => return Some(text),
            '\\' => match rest.next()? {
                c @ ('"' | '\\') => text.push(c),
                'u' => {
                    let digits: String = rest.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).ok()?;
                    text.push(char::from_u32(code)?);
                }
                _ => return None,
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        for segments in [
            &[][..],
            &[""],
            &["", ""],
            &["a", "b,c", "[\"d\"]"],
            &["nul\0 line\n quote\" back\\ \\u0000 ü 漢 😀", "]"],
        ] {
            let scope = Scope::new(segments);
            let text = encode(&scope);
            assert!(!text.contains(['\0', '\n']), "{text:?}");
            assert_eq!(decode(&text), Some(scope), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "[",
            "{}",
            "[1]",
            "[\"a\" ]",
            "[\"a\"\"b\"]",
            "[,\"a\"]",
            "[\"\\n\"]",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
