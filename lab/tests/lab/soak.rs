//! Soaks that are too short to prove anything but that what grows is seen.

use serde_json::Value;

use crate::lab;

fn soak(arguments: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().to_str().expect("a plain path");
    let run = ["soak", "--store", "sqlite", "--for", "10s", "--every", "2s"];
    let more = ["--seed", "7", "--pace", "50ms", "--out", out];
    let report = lab(&[&run[..], &more, arguments].concat()).report;
    let page = report["page"].as_str().expect("a page");
    let page = std::fs::read_to_string(page).expect("the page is there");
    (report, page)
}

fn grew(report: &Value) -> Vec<&str> {
    let growth = report["growth"].as_array().expect("what grew");
    let grew = growth
        .iter()
        .filter(|of| of["end"].as_f64() > of["bound"].as_f64());
    grew.filter_map(|of| of["what"].as_str()).collect()
}

#[test]
fn a_short_one_grows_in_nothing() {
    let (report, page) = soak(&["--faults", "kill-worker"]);
    assert!(grew(&report).is_empty(), "{report}");
    assert!(report["answered"].as_u64() > Some(500), "{report}");
    assert!(!report["faults"].as_array().expect("faults").is_empty());
    // Four of the calls, eight of the resources.
    assert_eq!(page.matches("<polyline").count(), 12);
}

#[test]
fn records_that_stay_are_found() {
    let (report, _) = soak(&["--faults", "none", "--bug", "keeps-records"]);
    assert!(grew(&report).contains(&"records"), "{report}");
}

#[test]
fn memory_that_leaks_is_found() {
    let (report, _) = soak(&["--faults", "none", "--bug", "leaks"]);
    assert!(grew(&report).contains(&"worker_memory_mib"), "{report}");
}
