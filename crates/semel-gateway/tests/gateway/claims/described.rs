//! The description, held against the server and the documentation.

use std::collections::BTreeSet;

use serde_json::Value;

use super::api::Api;
use super::gateway;

const DOCUMENTATION: &str = include_str!("../../../../../docs/claims.md");
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// What is described is there, and what is there is described.
#[tokio::test]
async fn the_server_has_what_the_description_says_and_nothing_else() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    assert_eq!(api.document["openapi"], "3.1.0");
    let paths = api.document["paths"].as_object().unwrap();
    let described = paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    let described: BTreeSet<String> = described.collect();
    for path in paths.keys() {
        let asked = path.replace("{id}", &"0".repeat(64));
        for method in METHODS {
            let answer = api.ask(method, &asked, "{}").await;
            let is_there = answer.status != 405;
            let name = format!("{method} {path}");
            assert_eq!(
                is_there,
                described.contains(&name),
                "{name}: {}",
                answer.text()
            );
            if !is_there {
                assert_eq!(answer.problem(), "method-not-allowed");
                let allowed = answer.header("allow").unwrap();
                let first = described
                    .iter()
                    .find(|name| name.ends_with(&format!(" {path}")));
                let (method, _) = first.unwrap().split_once(' ').unwrap();
                assert!(allowed.contains(method), "{name}: {allowed}");
            }
        }
    }
    // The table of the documentation is the same list.
    let rows = DOCUMENTATION.lines().filter_map(|line| {
        let name = line.strip_prefix("| `")?.split('`').next()?;
        let (method, _) = name.split_once(' ')?;
        METHODS.contains(&method).then(|| name.to_owned())
    });
    let rows: BTreeSet<String> = rows.collect();
    let claims: BTreeSet<String> = described
        .into_iter()
        .filter(|name| name.contains("/v1/claims"))
        .collect();
    assert_eq!(rows, claims);
    for path in ["/v1/claim", "/v1/claims/a/b/c"] {
        let answer = api.ask("GET", path, "").await;
        assert_eq!(answer.status, 404, "{path}");
    }
}

/// No member without a word in the documentation.
#[tokio::test]
async fn every_member_is_documented() {
    let gateway = gateway();
    let api = Api::of(gateway.admin).await;
    let schemas = api.document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        let members = schema["properties"].as_object();
        for member in members.into_iter().flat_map(|members| members.keys()) {
            let is_said = DOCUMENTATION.contains(&format!("`{member}`"))
                || DOCUMENTATION.contains(&format!("\"{member}\""));
            assert!(is_said, "{name}.{member}");
        }
        let known = schema["enum"].as_array();
        for value in known.into_iter().flatten().filter_map(Value::as_str) {
            assert!(DOCUMENTATION.contains(value), "{name}: {value}");
        }
    }
}
