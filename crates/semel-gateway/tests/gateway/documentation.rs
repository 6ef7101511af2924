//! `docs/gateway.md` says what the program says.

use std::collections::BTreeSet;

use semel::guard::Signal;
use semel_gateway::config::settings::{Reach, SETTINGS};

use crate::support::{Gateway, Reaction, Script, get};

const DOCUMENT: &str = include_str!("../../../../docs/gateway.md");

#[test]
fn every_setting_is_described_as_it_is() {
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .map(|line| {
            line.split(" | ")
                .map(|cell| cell.trim_matches(['|', ' ']))
                .collect()
        })
        .collect();
    let described: Vec<[&str; 3]> = rows.iter().map(|row| [row[0], row[1], row[2]]).collect();
    let expected: Vec<[String; 3]> = SETTINGS
        .iter()
        .map(|setting| {
            let flag = match setting.value {
                Some(value) => format!("`--{} {}`", setting.name, value.replace('|', "\\|")),
                None => format!("`--{}`", setting.name),
            };
            let default = setting.default.map_or("–".to_owned(), |d| format!("`{d}`"));
            [flag, format!("`{}`", setting.variable()), default]
        })
        .collect();
    let expected: Vec<[&str; 3]> = expected
        .iter()
        .map(|[flag, variable, default]| [flag.as_str(), variable.as_str(), default.as_str()])
        .collect();
    assert_eq!(described, expected);
}

/// Holds expressions to what there is: those that name another metric or event never show anything.
/// Answers how many metrics and events they name.
fn hold(metrics: &str, expressions: &str) -> (usize, usize) {
    let words = expressions.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("semel_")).collect();
    for name in &named {
        let family = name.trim_end_matches("_bucket").trim_end_matches("_total");
        assert!(metrics.contains(&format!("# TYPE {family} ")), "{name}");
    }
    let events_of = |metric: &str| -> Vec<&str> {
        let selector = format!("{metric}{{event=");
        let selectors = expressions.split(&selector).skip(1);
        let events = selectors.flat_map(|rest| rest.split('"').nth(1).unwrap().split('|'));
        events.collect()
    };
    let events = [
        events_of("semel_events_total"),
        events_of("semel_observed_total"),
    ]
    .concat();
    for event in &events {
        let line = format!("semel_events_total{{event=\"{event}\"}}");
        assert!(metrics.contains(&line), "{event}");
    }
    for code in events_of("semel_requests_total") {
        assert!(DOCUMENT.contains(&format!("\n| `{code}` |")), "{code}");
    }
    assert_eq!(
        expressions.matches("{event=").count(),
        expressions.matches("_total{event=").count()
    );
    hold_labels(metrics, expressions);
    (named.len(), events.len())
}

/// What is selected by, or summed by, is a label of the metric that it is said of.
fn hold_labels(metrics: &str, expressions: &str) {
    let name_in = |text: &str| {
        let start = text.find("semel_").unwrap();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, rest) = text[start..].split_at(text[start..].find(|c| !is_name(c)).unwrap());
        (name.to_owned(), rest.to_owned())
    };
    let mut said = Vec::new();
    for (at, _) in expressions.match_indices("semel_") {
        let (name, rest) = name_in(&expressions[at..]);
        let Some(selectors) = rest.strip_prefix('{') else {
            continue;
        };
        let selectors = selectors.split('}').next().unwrap().split(',');
        said.extend(selectors.map(|one| (name.clone(), one.split('=').next().unwrap().to_owned())));
    }
    for (at, clause) in expressions.match_indices("by (") {
        let rest = &expressions[at + clause.len()..];
        let (labels, rest) = rest.split_once(')').unwrap();
        let (name, _) = name_in(rest);
        said.extend(
            labels
                .split(", ")
                .map(|label| (name.clone(), label.to_owned())),
        );
    }
    assert!(said.len() > 8, "{said:?}");
    for (name, label) in said {
        let has = |line: &str| {
            let labels = line
                .strip_prefix(&name)
                .and_then(|rest| rest.strip_prefix('{'));
            labels.is_some_and(|labels| labels.contains(&format!("{label}=\"")))
        };
        assert!(metrics.lines().any(has), "{name} has no label {label}");
    }
}

/// What the gateway says that was just started.
async fn metrics() -> String {
    let upstream = Script::start(Reaction::Close).await;
    // So that there is what only those routes have.
    let gateway = Gateway::start(upstream.address, &["--mode", "observe"]);
    get(gateway.admin, "/metrics").await.text().to_owned()
}

#[tokio::test]
async fn the_rules_for_alerts_name_metrics_that_exist() {
    let page = include_str!("../../../../docs/observability.md");
    let rules = include_str!("../../../../docs/semel.alerts.yaml");
    let alerts = rules
        .lines()
        .filter_map(|line| line.split_once("- alert: "));
    for (_, alert) in alerts {
        assert!(page.contains(&format!("`{alert}`")), "{alert}");
    }
    let expressions = rules.lines().filter(|line| !line.trim().starts_with('#'));
    let (metrics, events) = hold(&metrics().await, &expressions.collect::<String>());
    assert_eq!(metrics, 9);
    assert!(events > 8, "{events}");
    for event in Signal::ALL {
        let name = event.as_str();
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[tokio::test]
async fn the_dashboard_names_metrics_that_exist() {
    let board = include_str!("../../../../docs/gateway.dashboard.json");
    let board: serde_json::Value = serde_json::from_str(board).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<&str> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let (metrics, events) = hold(&metrics().await, &expressions.join("\n"));
    assert!(metrics >= 20, "{metrics}");
    assert!(events >= 15, "{events}");
}

#[test]
fn the_files_that_are_shown_are_accepted() {
    let pages = [DOCUMENT, include_str!("../../../../docs/unknown.md")];
    let blocks = pages
        .iter()
        .flat_map(|page| page.split("```toml\n").skip(1));
    let files: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("semel.toml");
        std::fs::write(&path, file).unwrap();
        let checked = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["check", "--no-open", "--upstream", "http://127.0.0.1:9000"])
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{file}\n{said}");
    }
}

#[test]
fn the_schema_is_the_one_that_the_program_prints() {
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["check", "--schema"])
        .output()
        .unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let kept = include_str!("../../../../docs/semel.schema.json");
    let how = "semel check --schema > docs/semel.schema.json";
    assert!(printed == kept, "write it anew: {how}");
    // It has what the documentation shows.
    let schema: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let routes = &schema["properties"]["routes"]["items"]["properties"];
    for key in [
        "host",
        "path",
        "methods",
        "protect",
        "scope",
        "dispositions",
        "ttl",
    ] {
        assert!(routes[key].is_object(), "{key}");
    }
    assert!(routes["listen"].is_null());
    assert_eq!(schema["properties"]["require-key"]["type"], "boolean");
    assert_eq!(schema["properties"]["on-lost"]["enum"][2], "reconcile");
    assert_eq!(schema["properties"]["drain"]["default"], "30s");
}

#[test]
fn what_changes_with_a_restart_only_is_said() {
    let (_, rest) = DOCUMENT
        .split_once("These settings change with a restart only")
        .unwrap();
    let (listed, _) = rest.split_once("\n\n").unwrap();
    let named: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).collect();
    let starts = SETTINGS
        .iter()
        .filter(|s| s.reach == Reach::Start && s.name != "config");
    let mut expected: BTreeSet<&str> = starts.map(|setting| setting.name).collect();
    expected.insert("[reconcile]");
    assert_eq!(named, expected);
}

#[test]
fn the_help_names_every_setting() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for setting in &SETTINGS {
        assert!(
            help.contains(&format!("--{}", setting.name)),
            "{}",
            setting.name
        );
        assert!(help.contains(&setting.variable()), "{}", setting.name);
    }
    let flags = help.matches("      --").count();
    assert_eq!(flags, SETTINGS.len(), "{help}");
}
