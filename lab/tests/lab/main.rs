//! Short runs of every experiment of the program itself. Each starts the servers that it needs, or
//! shares one of each kind with the others; one that is not installed is a failure.

mod crash;
mod events;
mod gateway;
mod lost;
mod soak;
mod torture;

use std::process::{Command, Output};

use semel_testkit::servers::{Kind, shared};
use serde_json::Value;

/// A run of the program that came to its end.
struct Run {
    /// Nothing was wrong, and enough happened to say so.
    passed: bool,
    /// The last line of what it printed.
    report: Value,
    /// What it said to people.
    errors: String,
}

impl Run {
    fn nothing_is_wrong(&self) {
        let wrong = &self.report["failed_because"];
        assert!(wrong.is_null(), "{}", self.report);
    }
}

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel-lab"))
        .args(arguments)
        .output()
        .expect("the lab runs")
}

fn lab(arguments: &[&str]) -> Run {
    let output = program(arguments);
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{out}\n{errors}");
    let last = out.lines().last().expect("the report is the last line");
    Run {
        passed: output.status.success(),
        report: serde_json::from_str(last).expect("the report is JSON"),
        errors,
    }
}

/// Why the program did not begin.
fn refusal(arguments: &[&str]) -> String {
    let output = program(arguments);
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// One on a database of this kind, and on a server that these tests share where it takes one.
fn on(database: &str, command: &str, arguments: &[&str]) -> Run {
    let url = match database {
        "postgres" => Some(shared(Kind::Postgres).expect("PostgreSQL starts")),
        "mysql" => Some(shared(Kind::MariaDb).expect("MariaDB starts")),
        _ => None,
    };
    let store = url.as_deref().map(|url| ["--store", url]);
    let store = store.as_ref().map_or(&[][..], |store| store);
    lab(&[&[command, "--db", database], store, arguments].concat())
}

/// What a run meets depends on the machine, and its seed: where one meets too little, another follows.
/// What must never happen is asserted within `run`, so that no seed makes up for it.
fn some_seed(run: impl FnMut(&'static str) -> bool) -> bool {
    ["7", "8", "9", "10"].into_iter().any(run)
}
