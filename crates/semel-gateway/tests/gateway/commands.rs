//! `semel migrate` and `semel conformance`.

use std::process::{Command, Output, Stdio};

fn semel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_suite_passes_and_says_so_in_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().display());
    for store in ["memory:", &file] {
        let output = semel(&["conformance", "--store", store]);
        let table = printed(&output);
        assert!(output.status.success(), "{table}");
        let cases = semel::conformance::CASES.len();
        assert!(
            table.contains(&format!("{cases} cases, {cases} passed, 0 failed")),
            "{table}"
        );
        for group in ["claim", "races", "waiting"] {
            assert!(table.lines().any(|line| line.starts_with(group)), "{table}");
        }
    }
}

/// The suite leaves records behind, some of them in flight: never in the store that a gateway in this
/// folder, or of this environment, uses.
#[test]
fn the_suite_runs_on_no_store_that_was_not_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, "store = \"memory:\"\n").unwrap();
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(["conformance", "--only", "claim::"])
            .env_clear()
            .env("SEMEL_STORE", "memory:")
            .current_dir(folder.path())
            .stdin(Stdio::null());
        command
    };
    let output = command().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--store"), "{message}");
    assert!(!folder.path().join("semel-data").exists());
    let with_file = command().arg("--config").arg(&file).output().unwrap();
    assert_eq!(with_file.status.code(), Some(2), "{}", printed(&with_file));
}

#[test]
fn one_group_can_be_run_alone() {
    let output = semel(&["conformance", "--store", "memory:", "--only", "races::"]);
    assert!(output.status.success());
    let table = printed(&output);
    assert!(table.contains("12 cases, 12 passed"), "{table}");
    let none = semel(&[
        "conformance",
        "--store",
        "memory:",
        "--only",
        "no-such-case",
    ]);
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn a_store_that_is_not_there_is_said_so() {
    for command in ["conformance", "migrate"] {
        let output = semel(&[command, "--store", "mongodb://me:hunter2@host/"]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("no store `mongodb:`"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_store_without_tables_has_nothing_to_migrate() {
    let output = semel(&["migrate", "--store", "memory:"]);
    assert!(output.status.success());
    assert_eq!(printed(&output), "nothing to do: version 1\n");
}

#[cfg(feature = "sqlite")]
#[test]
fn tables_are_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let first = semel(&["migrate", "--store", &store]);
    assert!(first.status.success());
    assert!(printed(&first).contains("made version "), "{first:?}");
    let again = semel(&["migrate", "--store", &store]);
    assert!(printed(&again).starts_with("nothing to do"), "{again:?}");
}
