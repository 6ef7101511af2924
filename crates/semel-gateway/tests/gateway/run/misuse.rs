//! What `semel run` refuses before anything runs.

use std::process::{Command, Output, Stdio};

use semel_gateway::command::run::settings::SETTINGS;

use super::job::{EFFECT, Way};

fn semel(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_wrong_command_line_has_a_status_of_its_own_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (store, ran) = (format!("sqlite:{}", path("records.db")), path("ran"));
    let touch = ["--", "touch", &ran];
    let with_store = ["--store", &store];
    for (flags, environment, told) in [
        (&["--key", "k"][..], &[][..], "--store"),
        (&["--key", "k", "--store", "memory:"], &[], "memory:"),
        (&["--key", "k", "--store", "mongodb://h"], &[], "no store"),
        (
            &["--key", "k"],
            &[("SEMEL_STORE", "memory:")],
            "SEMEL_STORE",
        ),
        (&[&with_store[..], &["--key", ""]].concat(), &[], "--key"),
        (&with_store, &[], "--key"),
        (
            &[&with_store[..], &["--key", "k", "--nope"]].concat(),
            &[],
            "--nope",
        ),
        (
            &[&with_store[..], &["--key", "k", "--ttl", "soon"]].concat(),
            &[],
            "--ttl",
        ),
        (
            &[&with_store[..], &["--key", "k", "--lease", "1ms"]].concat(),
            &[],
            "--lease",
        ),
        (
            &[&with_store[..], &["--key", "k", "--wait", "-1s"]].concat(),
            &[],
            "--wait",
        ),
        (
            &[&with_store[..], &["--key", "k", "--on-lost", "reconcile"]].concat(),
            &[],
            "neither hold nor retry",
        ),
        (
            &[&with_store[..], &["--key", "k", "--on-exit", "0=release"]].concat(),
            &[],
            "WHAT=MEANING",
        ),
        (
            &[&with_store[..], &["--key", "k"]].concat(),
            &[("SEMEL_ON_EXIT", "3=keep,4")],
            "SEMEL_ON_EXIT",
        ),
        (
            &[&with_store[..], &["--key", "k", "--service", "a b"]].concat(),
            &[],
            "--service",
        ),
        (
            &[&with_store[..], &["--key", "k", "--max-output", "much"]].concat(),
            &[],
            "--max-output",
        ),
        (
            &[
                &with_store[..],
                &["--key", "k", "--report", "/nowhere/report"],
            ]
            .concat(),
            &[],
            "--report",
        ),
    ] {
        let output = semel(&[&["run"][..], flags, &touch].concat(), environment);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(112), "{flags:?}: {message}");
        assert!(message.contains(told), "{told}: {message}");
        assert!(!std::path::Path::new(&ran).exists(), "{flags:?}");
    }
    let nothing = semel(&[&["run", "--key", "k"][..], &with_store].concat(), &[]);
    assert_eq!(nothing.status.code(), Some(112));
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let flags = [
        "run", "--key", "k", "--ttl", "soon", "--lease", "x", "--", "true",
    ];
    let output = semel(&flags, &[("SEMEL_WAIT", "y")]);
    let message = String::from_utf8(output.stderr).unwrap();
    for told in ["--ttl", "--lease", "SEMEL_WAIT", "--store"] {
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn help_is_no_misuse() {
    let output = semel(&["run", "--help"], &[]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("118 the claim was lost"), "{help}");
    let help = String::from_utf8(semel(&["--help"], &[]).stdout).unwrap();
    assert!(!help.contains("keep-group"), "{help}");
}

/// The environment says what the flags would; a flag beats it.
#[test]
fn settings_come_from_the_environment() {
    let way = Way::store();
    let run = |flags: &[&str]| {
        let mut command = way
            .job("env", &format!("{EFFECT} exit 3"))
            .with(flags)
            .command();
        command
            .env("SEMEL_ON_EXIT", "failure=keep")
            .env("SEMEL_SCOPE", "a,b")
            .env("SEMEL_REPORT", way.path("report"));
        command.output().unwrap().status.code()
    };
    assert_eq!((run(&[]), run(&[]), way.ran()), (Some(3), Some(3), 1));
    let flags = ["--scope", "a", "--scope", "b", "--on-exit", "failure=keep"];
    assert_eq!((run(&flags), way.ran()), (Some(3), 1));
    assert_eq!((run(&["--scope", "a,b"]), way.ran()), (Some(3), 2));
    let report = std::fs::read_to_string(way.path("report")).unwrap();
    assert!(report.contains("\"ran\""), "{report}");
}

#[test]
fn without_the_store_nothing_runs() {
    let way = Way::store();
    let nowhere = "sqlite:/nowhere/at/all/records.db";
    let ran = way.job("k", EFFECT).with(&["--store", nowhere]).run();
    assert_eq!(
        (ran.code(), ran.result(), way.ran()),
        (113, "unavailable", 0),
        "{ran:?}"
    );
}

/// A store that one process has to itself: a second run does not start.
#[cfg(feature = "file")]
#[test]
fn a_store_in_use_is_said_so() {
    let way = Way::store();
    let store = crate::support::store_in(way.folder.path());
    let script = format!("{EFFECT} echo begun; while [ ! -e go ]; do sleep 0.01; done");
    let job = way.job("file", &script).with(&["--store", &store]);
    let mut first = job.start();
    assert_eq!(first.line(), "begun\n");
    let second = job.run();
    assert_eq!((second.code(), second.result()), (113, "unavailable"));
    std::fs::write(way.path("go"), "").unwrap();
    assert_eq!(first.end().0.code(), Some(0));
    assert_eq!((job.run().result(), way.ran()), ("replayed", 1));
}

/// `docs/run.md` says what the program says.
#[test]
fn every_setting_and_status_is_described_as_it_is() {
    let document = include_str!("../../../../../docs/run.md");
    let cells = |line: &'static str| {
        let cells = line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']));
        cells.collect::<Vec<_>>()
    };
    let lines = document.lines();
    let rows = lines.filter(|line| line.starts_with("| `--")).map(cells);
    let described: Vec<_> = rows.skip(1).map(|row| row[..3].join(" ")).collect();
    let expected: Vec<_> = SETTINGS
        .iter()
        .map(|setting| {
            let value = setting.value.unwrap().replace('|', "\\|");
            let default = setting.default.map_or("–".to_owned(), |d| format!("`{d}`"));
            format!(
                "`--{} {value}` `{}` {default}",
                setting.name,
                setting.variable()
            )
        })
        .collect();
    assert_eq!(described, expected);

    let help = String::from_utf8(semel(&["run", "--help"], &[]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows = document.lines().filter(|line| line.starts_with("| 1"));
    let statuses: Vec<_> = rows.map(|row| cells(row)[0].to_owned()).collect();
    assert_eq!(
        statuses,
        (112..=121).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    for status in statuses {
        assert!(help.contains(&format!("{status} ")), "{status}: {help}");
    }
}
