//! `docs/protocol.md` names the suite's cases; this keeps it true.

use std::collections::BTreeSet;

use semel::conformance::CASES;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

#[test]
fn each_rule_has_a_section() {
    for case in CASES {
        for rule in case.rules {
            let heading = format!("\n### {rule} ");
            assert!(DOCUMENT.contains(&heading), "{}: no rule {rule}", case.name);
        }
    }
}

#[test]
fn the_table_holds_every_case_with_its_promise() {
    let (_, table) = DOCUMENT
        .split_once("\n| case | promise (rules) |\n|---|---|\n")
        .expect("the table");
    let wanted: String = CASES
        .iter()
        .map(|case| {
            let rules = case.rules.join(", ");
            format!("| `{}` | {} ({rules}) |\n", case.name, case.promise)
        })
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
