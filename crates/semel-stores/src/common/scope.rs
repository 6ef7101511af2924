//! A scope as one text that people can read and query: a JSON array of its segments.

use semel::Scope;

/// The scope as JSON. NUL and other control characters are escaped in it.
pub(crate) fn to_json(scope: &Scope) -> String {
    let segments: Vec<&str> = scope.segments().collect();
    serde_json::Value::from(segments).to_string()
}

/// Reads what [`to_json`] wrote; `None` for anything else.
pub(crate) fn from_json(text: &str) -> Option<Scope> {
    let segments: Vec<String> = serde_json::from_str(text).ok()?;
    Some(Scope::new(segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back_and_holds_no_control_character() {
        let scopes: [&[&str]; 4] = [
            &[],
            &[""],
            &["a:b", "", "'quoted' \\ \"", "\u{1F511}"],
            &["new\nline", "nul\0", "\u{7f}\u{1f}"],
        ];
        for segments in scopes {
            let scope = Scope::new(segments);
            let text = to_json(&scope);
            assert!(!text.bytes().any(|b| b < b' '), "{text:?}");
            assert_eq!(from_json(&text), Some(scope));
        }
        assert_eq!(from_json("[1]"), None);
        assert_eq!(from_json("[\"a\""), None);
    }
}
