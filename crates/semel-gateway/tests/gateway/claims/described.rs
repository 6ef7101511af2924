//! The description, held against the server and the documentation.

use std::collections::BTreeSet;

use serde_json::Value;

use super::api::Api;
use super::gateway;

const CLAIMS: &str = include_str!("../../../../../docs/claims.md");
const OPERATE: &str = include_str!("../../../../../docs/operate.md");
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
        let asked = asked.replace("{action}", "release");
        for method in METHODS {
            // It has no end.
            if (method, path.as_str()) == ("GET", "/api/v1/events") {
                continue;
            }
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
    // The tables of the documentation are the same list.
    for (documentation, below) in [(CLAIMS, " /v1/claims"), (OPERATE, " /api/v1/")] {
        let rows = documentation.lines().filter_map(|line| {
            let name = line.strip_prefix("| `")?.split('`').next()?;
            let (method, _) = name.split_once(' ')?;
            METHODS.contains(&method).then_some(name)
        });
        let names = described.iter().map(String::as_str);
        let names = names.filter(|name| name.contains(below));
        assert_eq!(rows.collect::<BTreeSet<_>>(), names.collect());
    }
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
    let schemas = &api.document["components"]["schemas"];
    for (below, documentation) in [("/v1/claims", CLAIMS), ("/api/v1/", OPERATE)] {
        let paths = api.document["paths"].as_object().unwrap();
        let paths = paths.iter().filter(|(path, _)| path.starts_with(below));
        let mut names = BTreeSet::new();
        for (_, path) in paths {
            named(path, schemas, &mut names);
        }
        // Documented with the claim API.
        names.remove("Problem");
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            check(&name, &schemas[&name], documentation);
        }
        check("Problem", &schemas["Problem"], CLAIMS);
    }
}

/// The schemas that a value names, and those that they name.
fn named(value: &Value, schemas: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(name) = members.get("$ref").and_then(Value::as_str) {
                let name = name.rsplit('/').next().unwrap();
                if names.insert(name.to_owned()) {
                    named(&schemas[name], schemas, names);
                }
            }
            members
                .values()
                .for_each(|member| named(member, schemas, names));
        }
        Value::Array(values) => values.iter().for_each(|value| named(value, schemas, names)),
        _ => {}
    }
}

fn check(name: &str, schema: &Value, documentation: &str) {
    let parts = schema["allOf"].as_array().cloned().unwrap_or_default();
    for part in parts.iter().chain([schema]) {
        let members = part["properties"].as_object();
        for member in members.into_iter().flat_map(|members| members.keys()) {
            let is_said = documentation.contains(&format!("`{member}`"))
                || documentation.contains(&format!("\"{member}\""));
            assert!(is_said, "{name}.{member}");
        }
        let known = part["enum"].as_array();
        for value in known.into_iter().flatten().filter_map(Value::as_str) {
            assert!(documentation.contains(value), "{name}: {value}");
        }
    }
}
