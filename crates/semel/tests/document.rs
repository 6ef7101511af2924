//! `docs/protocol.md` names the suite's cases; this keeps it true.

use std::collections::{BTreeMap, BTreeSet};

use semel::conformance::CASES;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

/// The text of each rule, by its number.
fn rules() -> BTreeMap<&'static str, &'static str> {
    let sections = DOCUMENT.split("\n### ").skip(1);
    let rules = sections.filter(|section| section.starts_with('R'));
    rules
        .map(|section| {
            let (number, text) = section.split_once(' ').expect("a number and a title");
            (number, text.split("\n## ").next().unwrap_or(text))
        })
        .collect()
}

/// The names of cases in a text: `group::case`, in backticks.
fn named(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.contains("::")).collect()
}

#[test]
fn each_rule_names_the_cases_that_check_it() {
    let rules = rules();
    let numbers: Vec<String> = (1..=13).map(|n| format!("R{n}")).collect();
    for number in &numbers {
        let text = rules.get(&**number);
        let text = text.unwrap_or_else(|| panic!("{number} is not in the document"));
        let checking = CASES.iter().filter(|case| case.rules.contains(&&**number));
        let wanted: BTreeSet<&str> = checking.map(|case| case.name).collect();
        assert_eq!(named(text), wanted, "cases of {number}");
    }
    for case in CASES {
        for rule in case.rules {
            assert!(rules.contains_key(rule), "{}: no rule {rule}", case.name);
        }
    }
}

#[test]
fn the_table_holds_every_case_with_its_promise() {
    let (_, table) = DOCUMENT
        .split_once("\n| case | promise |\n|---|---|\n")
        .expect("the table");
    let wanted: String = CASES
        .iter()
        .map(|case| format!("| `{}` | {} |\n", case.name, case.promise))
        .collect();
    assert_eq!(table, wanted);
    let count = format!("\n{} cases. ", CASES.len());
    assert!(DOCUMENT.contains(&count), "there are{count}");
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
}
