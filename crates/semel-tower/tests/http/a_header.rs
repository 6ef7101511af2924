//! A. Header parsing (rows 1 to 12).

use semel::KeyRule;
use semel_tower::header::{self, HeaderError, Syntax};
use serde_json::Value;

use crate::support::{App, Call, layer};

fn parse(line: &str, syntax: Syntax) -> Result<String, HeaderError> {
    let key = header::parse([line.as_bytes()], syntax, &KeyRule::GENERAL)?;
    Ok(key.expect("there is a line").as_str().to_owned())
}

fn lenient(line: &str) -> Result<String, HeaderError> {
    parse(line, Syntax::Lenient)
}

fn strict(line: &str) -> Result<String, HeaderError> {
    parse(line, Syntax::Strict)
}

async fn assert_refused(lines: &[&str]) {
    for syntax in [Syntax::Strict, Syntax::Lenient] {
        let app = App::orders(layer().with_syntax(syntax));
        let call = lines.iter().fold(Call::post("/orders"), |c, l| c.key(l));
        app.send(call).await.assert_problem(400, "invalid-key");
        assert_eq!(app.execs(), 0);
    }
}

#[test]
fn published_vectors_strict_and_lenient() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/header.json")).unwrap();
    for vector in vectors.as_array().unwrap() {
        let lines: Vec<&[u8]> = vector["field_lines"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line.as_str().unwrap().as_bytes())
            .collect();
        for (mode, syntax) in [("strict", Syntax::Strict), ("lenient", Syntax::Lenient)] {
            let parsed = header::parse(lines.iter().copied(), syntax, &KeyRule::GENERAL);
            let expected = &vector[mode];
            let name = &vector["name"];
            match expected["key"].as_str() {
                Some(key) => {
                    let parsed = parsed.expect("accepted").expect("present");
                    assert_eq!(parsed.as_str(), key, "{name} {mode}");
                }
                None => assert!(parsed.is_err(), "{name} {mode}: {parsed:?}"),
            }
        }
    }
}

#[tokio::test]
async fn row_01_a_quoted_string_is_accepted_and_unescaped() {
    let app = App::orders(layer().with_syntax(Syntax::Strict));
    let answers = app
        .with_keys(["\"8e03978e-40d5-43dd-bc93-6894a57f9324\""])
        .await;
    answers[0].assert_first(201);
    assert_eq!(app.execs(), 1);
    assert_eq!(strict(r#""a\"b""#).unwrap(), "a\"b");
}

#[tokio::test]
async fn row_02_only_quote_and_backslash_are_escaped() {
    assert_eq!(lenient(r#""a\"b""#).unwrap(), r#"a"b"#);
    assert_eq!(lenient(r#""a\\b""#).unwrap(), r"a\b");
    assert_refused(&[r#""a\nb""#]).await;
}

#[tokio::test]
async fn row_03_malformed_values_are_refused_never_ignored() {
    for line in ["\"abc", "\"abc\\", "\"a\"b", "\"a\tb\"", "\"fü\""] {
        assert_refused(&[line]).await;
    }
    // DEL never gets through `http`; the function is asked directly.
    assert!(lenient("\"a\x7f\"").is_err());
    assert!(lenient("a\x7f").is_err());
}

#[tokio::test]
async fn row_04_parameters_are_parsed_and_ignored() {
    let app = App::orders(layer());
    let keys = ["\"k\"", "\"k\";ttl=60", "\"k\"; a=\"x\";a=2"];
    let answers = app.with_keys(keys).await;
    answers[0].assert_first(201);
    answers[1].assert_replay_of(&answers[0]);
    answers[2].assert_replay_of(&answers[0]);
    assert_eq!(app.execs(), 1);
    for line in ["\"k\" ;a", "\"k\";A=1", "\"k\";a=\"x"] {
        assert_refused(&[line]).await;
    }
}

#[test]
fn row_05_other_bare_items_are_no_strings() {
    for line in ["123", "?1", ":YWJj:", "@1659578233", "%\"abc\"", "tok"] {
        assert_eq!(strict(line), Err(HeaderError::NotAString), "{line}");
    }
}

#[tokio::test]
async fn row_06_a_bare_value_is_the_key_of_its_quoted_form() {
    let app = App::orders(layer());
    let bare = "f50e8400-e29b-41d4-a716-446655440000";
    let answers = app.with_keys([bare, &format!("\"{bare}\"")]).await;
    answers[0].assert_first(201);
    answers[1].assert_replay_of(&answers[0]);
    assert_eq!(app.execs(), 1);
}

#[tokio::test]
async fn row_07_bare_values_are_never_typed() {
    let app = App::orders(layer());
    for answer in app.with_keys(["0123", "123", "123.0"]).await {
        answer.assert_first(201);
    }
    assert!(app.with_keys(["\"123\""]).await[0].is_replay());
    let uuids = [
        "550e8400-e29b-41d4-a716-446655440000",
        "f50e8400-e29b-41d4-a716-446655440000",
    ];
    for answer in app.with_keys(uuids).await {
        answer.assert_first(201);
    }
    assert_eq!(app.execs(), 5);
}

#[tokio::test]
async fn row_08_a_bare_value_has_no_quotes_commas_semicolons_or_space() {
    for line in ["a,b", "k;ttl=60", "order 42", "a\"b", "a\\b", "fü", "a\tb"] {
        assert_refused(&[line]).await;
    }
}

#[tokio::test]
async fn row_09_more_than_one_line_is_refused() {
    assert_refused(&["\"a\"", "\"a\""]).await;
    assert_refused(&["\"foo", "bar\""]).await;
    assert_refused(&["\"a\", \"b\""]).await;
    assert_refused(&["a", "a"]).await;
}

#[tokio::test]
async fn row_10_empty_is_invalid_and_not_missing() {
    assert_refused(&[""]).await;
    assert_refused(&["\"\""]).await;
    assert_refused(&["  \t "]).await;
    let app = App::orders(layer());
    app.send(Call::post("/orders"))
        .await
        .assert_problem(400, "missing-key");
}

#[tokio::test]
async fn row_11_space_outside_is_trimmed_inside_counts_and_case_counts() {
    let app = App::orders(layer());
    assert_eq!(lenient("  \"k\"\t").unwrap(), "k");
    assert_eq!(lenient(" \t bare\t").unwrap(), "bare");
    let answers = app
        .with_keys(["\"k\"", "  \"k\"\t", "\" k \"", "\"ABC\"", "\"abc\""])
        .await;
    let replays: Vec<_> = answers.iter().map(|a| a.is_replay()).collect();
    assert_eq!(replays, [false, true, false, false, false]);
    assert_eq!(app.execs(), 4);
}

#[tokio::test]
async fn row_12_the_limit_is_on_the_decoded_key_and_never_cuts() {
    let app = App::orders(layer());
    let quoted = |content: &str, n| format!("\"{}\"", content.repeat(n));
    let (fits, escaped) = (quoted("a", 255), quoted("\\\"", 255));
    for answer in app.with_keys([&fits, &escaped]).await {
        answer.assert_first(201);
    }
    assert_refused(&[&quoted("a", 256)]).await;
    assert_refused(&[&"a".repeat(256)]).await;
    let answer = app.with_keys([&quoted("a", 256)]).await.remove(0);
    assert!(answer.text().contains("255"), "{}", answer.text());
}

#[tokio::test]
async fn row_79_line_breaks_and_nul_never_reach_the_store() {
    for line in ["\"a\rb\"", "\"a\nb\"", "\"a\0b\"", "a\rb", "a\nb", "a\0b"] {
        assert!(lenient(line).is_err() && strict(line).is_err(), "{line:?}");
    }
    let app = App::orders(layer());
    for answer in app
        .with_keys(["\"'; DROP TABLE x--\"", "\"../\"", "\"{tag}\"", "*"])
        .await
    {
        answer.assert_first(201);
    }
}

proptest::proptest! {
    #[test]
    fn any_line_is_answered(line: Vec<u8>) {
        for syntax in [Syntax::Strict, Syntax::Lenient] {
            let _ = header::parse([&*line], syntax, &KeyRule::GENERAL);
        }
    }
}
