//! The command lines of `semel records` and `semel audit`.

use clap::builder::ArgAction;
use clap::{Arg, ArgGroup, Command};

use super::super::line::text;
use crate::at_rest;
use crate::config::settings::{SETTINGS, Setting};

/// How long the audit log is kept.
pub(super) const RETENTION: &str = "audit-retention";

/// `semel records`.
pub fn command() -> Command {
    Command::new("records")
        .about("Finds records, shows them, and decides about them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("Lists records: unknown ones first, then in flight, completed, released")
                .after_help(
                    "The store filters by state and by lapsed leases; for the other filters records are \
                     looked at one by one.",
                )
                .arg(text("state", "STATE", "Only unknown, in-flight, completed or released"))
                .arg(switch("stuck", "Only unknown ones, and those in flight past their lease"))
                .arg(switch("lapsed", "Only those in flight past their lease"))
                .args(whose())
                .arg(text("route", "NAME", "Only those whose note names this route"))
                .arg(text("older", "DUR", "Only those first claimed at least so long ago"))
                .arg(
                    text("limit", "N", "How many at most [default: 100, and all with --json]")
                        .value_parser(clap::value_parser!(usize)),
                )
                .arg(json())
                .args(desk()),
        )
        .subcommand(
            Command::new("show")
                .about("Shows a record, and what can be done about it")
                .arg(id().required(false))
                .arg(switch("key-stdin", "Find it by its key, read from the standard input").conflicts_with("id"))
                .args(whose())
                .arg(switch("reveal", "Show the whole answer; it is entered in the audit log").requires("reason"))
                .arg(reason().required(false))
                .arg(confirm().requires("reveal"))
                .arg(json())
                .args(desk()),
        )
        .subcommand(action("release", "Gives the key of an unknown or lapsed record back: it did not happen"))
        .subcommand(
            action("resolve", "Decides about an unknown or lapsed record")
                .arg(switch("did-not-happen", "It had no effect, and will have none: the next request runs"))
                .arg(switch("happened", "It had its effect: retries get --outcome").requires("outcome"))
                .group(ArgGroup::new("verdict").args(["did-not-happen", "happened"]).required(true))
                .arg(
                    text(
                        "outcome",
                        "FILE",
                        "What retries get, as JSON with status, headers and body; - is the standard input",
                    )
                    .requires("happened"),
                )
                .arg(
                    text("ttl", "DUR", "How long they get it [default: the route's; with --store 24h]")
                        .requires("happened"),
                ),
        )
        .subcommand(
            action("extend", "Replays the answer of a completed record for longer")
                .arg(text("ttl", "DUR", "For how long from now").required(true)),
        )
        .subcommand(
            decision("erase", "Removes answers, and keeps that there were some: retries get `expired`")
                .arg(id().required(false))
                .arg(text("scope", "SEGMENT", "All answers whose scope begins so; several times: its segments in their order")
                    .action(ArgAction::Append)
                    .conflicts_with("id"))
                .arg(text("service", "NAME", "With --scope: only of this service").requires("scope"))
                .arg(fence().requires("id")),
        )
        .subcommand(decision("purge", "Removes what is past its retention now, as gateways do every minute"))
        .subcommand(decision("reencrypt", "Encrypts all answers with the first of --encryption-keys; goes on where it was broken off"))
}

/// `semel audit`.
pub fn audit() -> Command {
    Command::new("audit")
        .about("Shows what operators and reconcilers did, the newest first")
        .arg(
            text(
                "limit",
                "N",
                "How many entries at most [default: 100, and all with --json]",
            )
            .value_parser(clap::value_parser!(usize)),
        )
        .arg(json())
        .args(desk())
}

fn action(name: &'static str, about: &'static str) -> Command {
    decision(name, about).arg(id()).arg(fence())
}

fn decision(name: &'static str, about: &'static str) -> Command {
    Command::new(name)
        .about(about)
        .arg(reason())
        .arg(confirm())
        .arg(switch("yes", "Do not ask"))
        .arg(json())
        .args(desk())
}

fn confirm() -> Arg {
    text(
        "confirm",
        "ENTRY",
        "Confirm what somebody else proposed: the number of its audit entry",
    )
}

fn fence() -> Arg {
    text(
        "fence",
        "N",
        "The record's fence as you saw it [default: as it is now]",
    )
    .value_parser(clap::value_parser!(u64))
}

fn id() -> Arg {
    Arg::new("id")
        .value_name("ID")
        .help("The record's id: 64 hexadecimal digits, the Idempotency-Id of the operation")
        .required(true)
}

fn reason() -> Arg {
    text(
        "reason",
        "TEXT",
        "Why: kept in the audit log, and with the record",
    )
    .required(true)
}

pub(in crate::command) fn json() -> Arg {
    switch("json", "JSON for scripts: an object on a line")
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .help(help)
        .action(ArgAction::SetTrue)
}

/// Whose records.
fn whose() -> [Arg; 3] {
    [
        text("service", "NAME", "The service"),
        text(
            "operation",
            "NAME",
            "The operation; `http` are a gateway's requests",
        ),
        text(
            "scope",
            "SEGMENT",
            "The scope; several times: its segments in their order",
        )
        .action(ArgAction::Append),
    ]
}

/// Where the records are.
pub(in crate::command) fn desk() -> impl Iterator<Item = Arg> {
    let names = [
        at_rest::KEYS,
        at_rest::SECRETS,
        at_rest::LARGE,
        at_rest::ABOVE,
        RETENTION,
    ];
    let of_store = move |setting: &&Setting| names.contains(&setting.name);
    let of_store = SETTINGS.iter().filter(of_store);
    let of_store = of_store.map(|setting| setting.arg().requires("store"));
    [
        text(
            "admin",
            "URL",
            "The gateway's --admin address [default: http://127.0.0.1:8081] [env: SEMEL_ADMIN]",
        ),
        text(
            "token-file",
            "FILE",
            "A file with the token for it [env: SEMEL_TOKEN, the token itself]",
        ),
        text(
            "ca",
            "FILE",
            "Who signs its certificate, in PEM, in place of the system's roots",
        ),
        text("store", "URL", "The store itself, in place of a gateway").conflicts_with_all([
            "admin",
            "token-file",
            "ca",
        ]),
        text(
            "by",
            "NAME",
            "With --store: who you are, for the audit log [default: the user's name]",
        )
        .requires("store"),
    ]
    .into_iter()
    .chain(of_store)
}
