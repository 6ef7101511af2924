//! Flags, environment and file.

use std::process::{Command, Output, Stdio};

use crate::support::{Gateway, Shop, store_in};

const UPSTREAM: [&str; 2] = ["--upstream", "http://127.0.0.1:9"];

/// Where there is no store yet.
fn semel(subcommand: &str, flags: &[&str], environment: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .arg(subcommand)
        .args(flags)
        .current_dir(&directory)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// The messages of a configuration that is not right, in `serve` and in `check`.
fn errors(flags: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let mut messages = Vec::new();
    for subcommand in ["check", "serve"] {
        let output = semel(subcommand, flags, environment);
        assert_eq!(output.status.code(), Some(2), "{subcommand} {flags:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        messages = text
            .lines()
            .map(|line| line.strip_prefix("error: ").unwrap_or(line).to_owned())
            .collect();
    }
    messages
}

#[test]
fn each_wrong_value_has_one_clear_message() {
    for (name, value, message) in [
        ("upstream", "", "--upstream: `` is not a URL"),
        (
            "upstream",
            "127.0.0.1:9000",
            "--upstream: the scheme is missing",
        ),
        (
            "upstream",
            "ftp://a",
            "--upstream: `ftp:` is not supported: it is http, https or h2c",
        ),
        (
            "trust-forwarded",
            "10.0.0.0/8,proxy.example",
            "--trust-forwarded: `proxy.example` is not an address; write it like 10.0.0.7",
        ),
        (
            "trust-forwarded",
            "10.0.0.0/33",
            "--trust-forwarded: `10.0.0.0/33` is not an address",
        ),
        ("upstream", "ftp://a", "--upstream: `ftp:` is not supported"),
        (
            "upstream",
            "http://a/b",
            "--upstream: a path is not supported",
        ),
        (
            "upstream",
            "http://a?b",
            "--upstream: a path is not supported",
        ),
        (
            "upstream",
            "http://u:secret@a",
            "--upstream: a user name or password",
        ),
        ("upstream", "http://a:0", "--upstream: the port is not one"),
        ("listen", "8080", "--listen: `8080` is not an address"),
        ("listen", ":8080", "--listen: `:8080` is not an address"),
        (
            "listen",
            "127.0.0.1:80800",
            "--listen: `127.0.0.1:80800` is not",
        ),
        (
            "admin",
            "localhost",
            "--admin: `localhost` is not an address",
        ),
        (
            "admin",
            "127.0.0.1:8080",
            "--listen and --admin are the same address",
        ),
        (
            "store",
            "semel-data",
            "--store: a store's URL begins with its scheme",
        ),
        ("store", "files:x", "--store: there is no store `files:`"),
        ("store", "file:", "--store: `file:` needs the path"),
        (
            "store",
            "redis://u:secret@h?tabel=x",
            "--store: `redis:` has no parameter `tabel`",
        ),
        ("lease", "30", "--lease: `30` is not a duration"),
        (
            "lease",
            "10ms",
            "--lease: `10ms` is too short: a lease is 30ms at least",
        ),
        ("ttl", "0s", "--ttl: must be longer than nothing"),
        (
            "ttl",
            "10000000000000000000s",
            "--ttl: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "lease",
            "10000000000000000000s",
            "--lease: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "wait",
            "10000000000000000000s",
            "--wait: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "upstream-timeout",
            "10000000000000000000s",
            "--upstream-timeout: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "drain",
            "10000000000000000000s",
            "--drain: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "drain-delay",
            "10000000000000000000s",
            "--drain-delay: `10000000000000000000s` is too long: 100 years at most",
        ),
        (
            "body-timeout",
            "10000000000000000000s",
            "--body-timeout: `10000000000000000000s` is too long: 100 years at most",
        ),
        ("ttl", "-1s", "--ttl: `-1s` is not a duration"),
        ("wait", "soon", "--wait: `soon` is not a duration"),
        (
            "on-lost",
            "never",
            "--on-lost: `never` is none of hold, retry and reconcile",
        ),
        ("max-body", "1 apple", "--max-body: `1 apple` is not a size"),
        ("max-body", "0", "--max-body: must be larger than nothing"),
        (
            "max-body",
            "2GiB",
            "--max-body: `2GiB` is more than 1.0 GiB",
        ),
        (
            "require-key",
            "maybe",
            "--require-key: `maybe` is neither true nor false",
        ),
        (
            "service",
            "a@b",
            "--service: `a@b` cannot name a service: 1 to 64 ASCII letters",
        ),
        (
            "scope-header",
            "a b",
            "--scope-header: `a b` cannot be the name",
        ),
        (
            "note",
            "method,query",
            "--note: `query` is nothing to keep with a record; that can be method, path,",
        ),
        (
            "note",
            "header:Authorization",
            "--note: `header:Authorization` is nothing to keep",
        ),
        (
            "note",
            "path,path,path,path,path,path,path,path,path,path,path,path,path",
            "--note: 13 fields are too many: 12 at most",
        ),
        (
            "upstream-timeout",
            "1",
            "--upstream-timeout: `1` is not a duration",
        ),
        ("drain", "1", "--drain: `1` is not a duration"),
        ("drain-delay", "1", "--drain-delay: `1` is not a duration"),
        ("body-timeout", "1", "--body-timeout: `1` is not a duration"),
        (
            "max-attempts",
            "0",
            "--max-attempts: `0` is not a number from 1",
        ),
        (
            "max-connections",
            "many",
            "--max-connections: `many` is not a number from 1",
        ),
        (
            "max-body-memory",
            "much",
            "--max-body-memory: `much` is not a size",
        ),
        (
            "admin-host",
            "semel:8081",
            "--admin-host: `semel:8081` is not a host's name",
        ),
        (
            "log-format",
            "xml",
            "--log-format: `xml` is neither text nor json",
        ),
        ("log-level", "loud", "--log-level: `loud` is none of"),
    ] {
        let flag = format!("--{name}={value}");
        let mut flags = vec![flag.as_str()];
        if name != "upstream" {
            flags.extend(UPSTREAM);
        }
        let messages = errors(&flags, &[]);
        assert_eq!(messages.len(), 1, "{flag}: {messages:?}");
        assert!(messages[0].starts_with(message), "{flag}: {messages:?}");
        assert!(!messages[0].contains("secret"), "{messages:?}");

        // The same in the environment and in a file, under the name that it has there.
        if value.is_empty() || message.starts_with("--listen and") {
            continue;
        }
        let variable = format!("SEMEL_{}", name.to_uppercase().replace('-', "_"));
        let flags: &[&str] = if name == "upstream" { &[] } else { &UPSTREAM };
        let messages = errors(flags, &[(&variable, value)]);
        let message = message.split_once(": ").unwrap().1;
        assert!(
            messages[0].starts_with(&format!("{variable}: {message}")),
            "{messages:?}"
        );

        let file = file(&format!("{name} = \"{value}\"\n"));
        let path = file.path().to_str().unwrap();
        let mut flags = flags.to_vec();
        flags.extend(["--config", path]);
        let messages = errors(&flags, &[]);
        let expected = format!("{path}:1: {name}: {message}");
        assert!(messages[0].starts_with(&expected), "{messages:?}");
    }
}

#[test]
fn the_upstream_is_not_the_gateway() {
    for (upstream, own, flag) in [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "--listen"),
        ("http://localhost:8080", "127.0.0.1:8080", "--listen"),
        ("http://[::1]:8080", "[::]:8080", "--listen"),
        ("http://127.0.0.1", "0.0.0.0:80", "--listen"),
        (
            "http://gateway.example:8080",
            "gateway.example:8080",
            "--listen",
        ),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "--admin"),
    ] {
        let other = if flag == "--listen" {
            "--admin"
        } else {
            "--listen"
        };
        let flags = ["--upstream", upstream, flag, own, other, "127.0.0.1:1"];
        let message =
            format!("--upstream is {flag} itself, {own}: requests would come back to the gateway");
        assert_eq!(errors(&flags, &[]), [message], "{upstream}");
    }
    let flags = [
        "--upstream",
        "http://10.0.0.1:8080",
        "--listen",
        "0.0.0.0:8080",
    ];
    assert!(semel("check", &flags, &[]).status.success());
}

#[test]
fn a_value_with_a_minus_is_told_beside_the_others() {
    let mut flags = vec!["--ttl", "-1s", "--max-body", "-1", "--max-attempts", "-1"];
    flags.extend(UPSTREAM);
    let messages = errors(&flags, &[]);
    let expected = [
        "--ttl: `-1s` is not a duration",
        "--max-body: `-1` is not a size",
        "--max-attempts: `-1` is not a number from 1",
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.starts_with(expected), "{messages:?}");
    }
}

#[test]
fn what_is_wrong_in_the_file_is_told_beside_the_others() {
    let file = file("leese = \"1s\"\nttl = \"soon\"");
    let path = file.path().to_str().unwrap();
    let messages = errors(&["--config", path, "--lease", "x"], &[]);
    assert_eq!(messages.len(), 4, "{messages:?}");
    // A file that cannot be read may say where requests go.
    let messages = errors(&["--config", "/nowhere/semel.toml", "--lease", "x"], &[]);
    assert_eq!(messages.len(), 2, "{messages:?}");
}

#[test]
fn errors_are_json_where_log_lines_are() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let flags = |flags: &[&'static str]| [&UPSTREAM[..], flags].concat();
    let wrong = flags(&["--lease", "x", "--ttl", "y", "--log-format", "json"]);
    let started = flags(&["--store", "memory:", "--log-format", "json", "--listen"]);
    let started = [&started[..], &[&*taken]].concat();
    for (flags, errors) in [(wrong, 2), (started, 1)] {
        let output = semel("serve", &flags, &[]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        let told = lines.iter().filter(|line| line["level"] == "ERROR").count();
        assert_eq!(told, errors, "{said}");
    }
}

#[test]
fn all_errors_are_told_at_once() {
    let messages = errors(&["--lease", "x", "--ttl", "y"], &[("SEMEL_WAIT", "z")]);
    assert_eq!(messages.len(), 4, "{messages:?}");
    assert!(
        messages[0].starts_with("--upstream is required"),
        "{messages:?}"
    );
}

#[test]
fn files_that_are_not_right_are_refused() {
    let flags = |path: &'static str| [UPSTREAM[0], UPSTREAM[1], "--config", path];
    let messages = errors(&flags("/nowhere/semel.toml"), &[]);
    assert!(
        messages[0].starts_with("--config: cannot read `/nowhere/semel.toml`"),
        "{messages:?}"
    );
    for (text, message) in [
        ("leese = \"1s\"", "there is no setting `leese`"),
        ("config = \"other.toml\"", "there is no setting `config`"),
        ("lease = [1]", "`lease` must be a text"),
        ("lease = ", "string values must be quoted"),
        ("require-key = 1.5", "`require-key` must be a text"),
    ] {
        let file = file(text);
        let path = file.path().to_str().unwrap().to_owned();
        let messages = errors(&flags(path.clone().leak()), &[]);
        assert!(
            messages[0].starts_with(&format!("{path}:1: {message}")),
            "{messages:?}"
        );
    }
}

#[test]
fn the_files_of_tls_go_together() {
    for (flags, message) in [
        (&["--tls-cert=/no"][..], "--tls-cert needs --tls-key"),
        (&["--tls-key=/no"], "--tls-key needs --tls-cert"),
        (
            &["--tls-client-ca=/no"],
            "--tls-client-ca needs --tls-cert and --tls-key",
        ),
        (
            &["--proxy-protocol"],
            "--proxy-protocol needs --trust-forwarded",
        ),
        (
            &["--upstream-ca=/no"],
            "--upstream-ca is for https:// URLs, and there is none",
        ),
        (
            &["--upstream-cert=/no"],
            "--upstream-cert needs --upstream-key",
        ),
        (
            &["--upstream-cert=/no", "--upstream-key=/no"],
            "--upstream-cert is for https:// upstreams and reconcilers, and there is none",
        ),
        (
            &["--tls-cert=/no", "--tls-key=/no", "--store=memory:"],
            "--tls-cert: cannot read `/no`: ",
        ),
    ] {
        let messages = errors(&[&UPSTREAM[..], flags].concat(), &[]);
        assert_eq!(messages.len(), 1, "{flags:?}: {messages:?}");
        assert!(messages[0].starts_with(message), "{messages:?}");
    }
}

#[test]
fn upstreams_that_speak_http2_or_tls_have_their_own_errors() {
    for (flags, message) in [
        (
            &["--upstream=https://a", "--upstream-ca=/no"][..],
            "--upstream-ca: cannot read `/no`: ",
        ),
        (
            &[
                "--upstream=https://a",
                "--upstream-cert=/no",
                "--upstream-key=/no",
            ],
            "--upstream-cert: cannot read `/no`: ",
        ),
        (
            &["--upstream=http://a,http://b", "--upstream=http://a"],
            "--upstream: an upstream is there twice",
        ),
        (
            &["--upstream=http://a", "--upstream-health=healthz"],
            "--upstream-health: `healthz` is not a path; write it like /healthz",
        ),
        (
            &["--upstream=h2c://a", "--preserve-host"],
            "--upstream: an h2c:// upstream cannot be used with --preserve-host",
        ),
    ] {
        let messages = errors(&[flags, &["--store=memory:"]].concat(), &[]);
        assert_eq!(messages.len(), 1, "{flags:?}: {messages:?}");
        assert!(messages[0].starts_with(message), "{messages:?}");
    }
}

#[test]
fn who_is_asked_goes_with_the_policy() {
    let asked = "--reconciler=http://u:secret@a";
    for (flags, message) in [
        (
            &["--on-lost=reconcile"][..],
            "--on-lost reconcile needs --reconciler",
        ),
        (
            &["--reconciler=http://a/b"],
            "--reconciler is asked with --on-lost reconcile only",
        ),
        (
            &["--on-lost=reconcile", asked],
            "--reconciler: a user name or password",
        ),
        (
            &["--on-lost=reconcile", "--reconciler=ftp://a"],
            "--reconciler: only http:// and https:// are supported",
        ),
        (
            &["--on-lost=reconcile", "--reconciler=127.0.0.1:9100"],
            "--reconciler: the scheme is missing",
        ),
        (
            &["--on-lost=reconcile", "--reconciler=http://a:0/"],
            "--reconciler: the port is not one",
        ),
    ] {
        let messages = errors(&[&UPSTREAM[..], flags].concat(), &[]);
        assert_eq!(messages.len(), 1, "{flags:?}: {messages:?}");
        assert!(messages[0].starts_with(message), "{messages:?}");
        assert!(!messages[0].contains("secret"), "{messages:?}");
    }
}

#[test]
fn the_section_reconcile() {
    let section = "on-lost = \"reconcile\"\n[reconcile]\nurl = \"http://a:1/b?token=secret\"\n";
    let flags = |file: &tempfile::NamedTempFile| {
        let path = file.path().to_str().unwrap().to_owned();
        ["--upstream=http://a", "--config", path.leak()]
    };
    for (more, message) in [
        ("attempts = 0", "reconcile.attempts: `0` is not a number"),
        ("pause = \"0s\"", "reconcile.pause: must be longer"),
        (
            "timeout = \"x\"",
            "reconcile.timeout: `x` is not a duration",
        ),
        ("every = [1]", "`reconcile.every` must be a text"),
        ("evry = \"1s\"", "there is no setting `reconcile.evry`"),
        ("headers = 1", "`reconcile.headers` must be a section"),
        ("headers = { x = 1 }", "reconcile.headers: a field's value"),
        (
            "headers = { x = \"secret\\n\" }",
            "reconcile.headers: a field's value",
        ),
        (
            "headers = { \"a b\" = \"secret\" }",
            "reconcile.headers: `a b` cannot be",
        ),
    ] {
        let file = file(&format!("{section}{more}\n"));
        let messages = errors(&flags(&file), &[]);
        let expected = format!("{}:4: {message}", file.path().display());
        assert!(messages[0].starts_with(&expected), "{messages:?}");
        assert!(!messages[0].contains("secret"), "{messages:?}");
    }
    let file = file(&format!(
        "{section}attempts = 7\nheaders = {{ Authorization = \"Bearer secret\" }}\n"
    ));
    let output = semel("check", &flags(&file), &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let path = file.path().display();
    for line in [
        format!("reconciler         http://a:1/b?…  ({path}:3: reconcile.url)"),
        format!("reconcile.attempts 7  ({path}:4: reconcile.attempts)"),
        "reconcile.timeout  5s  (default)".to_owned(),
        "reconcile.headers  authorization: …".to_owned(),
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn unknown_flags_are_misuse() {
    for arguments in [&["serve", "--leese", "1s"][..], &["sing"], &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let file = file(
        "upstream = \"http://127.0.0.1:1\"\nlease = \"1s\"\nttl = \"1h\"\nwait = \"1s\"\n\
         require-key = true\nmax-body = 4096\n",
    );
    let path = file.path().to_str().unwrap();
    let output = semel(
        "check",
        &["--config", path, "--lease", "3s", "--require-key=false"],
        &[
            ("SEMEL_LEASE", "2s"),
            ("SEMEL_TTL", "2h"),
            ("SEMEL_DRAIN", ""),
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let from_file = |line| format!("({path}:{line}:");
    for expected in [
        vec!["lease", "3s", "(--lease)"],
        vec!["ttl", "2h", "(SEMEL_TTL)"],
        vec!["wait", "1s", &from_file(4), "wait)"],
        vec!["max-body", "4096", &from_file(6), "max-body)"],
        vec!["require-key", "false", "(--require-key)"],
        vec!["drain", "30s", "(default)"],
        vec!["store", "file:./semel-data", "(default)"],
    ] {
        assert!(lines.contains(&expected), "{expected:?} in {text}");
    }
}

#[tokio::test]
async fn a_store_has_one_process() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let store = store_in(gateway.directory().path());
    let flags = [
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        "--store",
        &store,
    ];
    let flags = [&UPSTREAM[..], &flags[..]].concat();
    for subcommand in ["serve", "check"] {
        let output = semel(subcommand, &flags, &[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("error: --store: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let flags = [&flags[..], &["--no-open"]].concat();
    assert!(semel("check", &flags, &[]).status.success());
}

#[test]
fn check_opens_the_store_as_serve_does() {
    let flags = [&UPSTREAM[..], &["--store", "file:/proc/nowhere"]].concat();
    let output = semel("check", &flags, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("error: --store: "), "{message}");
}

#[tokio::test]
async fn an_address_in_use_is_said_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let other = if flag == "--listen" {
            "--admin"
        } else {
            "--listen"
        };
        let flags = [flag, &taken, other, "127.0.0.1:0", "--store", "memory:"];
        let output = semel("serve", &[&UPSTREAM[..], &flags[..]].concat(), &[]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        let expected = format!("error: {flag}: cannot listen on {taken}: ");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn a_token_that_is_no_good_has_a_clear_message() {
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    for (token, message) in [
        (String::new(), "token 1: `name` is required"),
        (
            "name = \"a\"\nrole = \"admin\"".to_owned(),
            "token 1: `sha256` or `token-file` is required",
        ),
        (
            format!("name = \"a\"\nsha256 = \"{digest}\""),
            "token 1: it is good for nothing",
        ),
        (
            format!("name = \"a\"\nsha256 = \"{digest}\"\ntoken-file = \"b\"\nrole = \"admin\""),
            "`sha256` and `token-file`: one of them is enough",
        ),
        (
            "name = \"a\"\nsha256 = \"my-secret\"\nrole = \"admin\"".to_owned(),
            "token 1: sha256: is not the SHA-256 of a token: 64 hexadecimal digits",
        ),
        (
            format!("name = \"a\"\nsha256 = \"{digest}\"\nrole = \"root\""),
            "role: `root` is not one of read-only, operator and admin",
        ),
        (
            format!("name = \"a\"\nsha256 = \"{digest}\"\nclaims = [\"settle\"]"),
            "claims: `settle` names no operations; write SERVICE/OPERATION",
        ),
        (
            "name = \"a:b\"".to_owned(),
            "name: `a:b` cannot name a token: 1 to 64 visible ASCII characters but `:`",
        ),
        (
            "name = \"a\"\nclaim = \"a/b\"".to_owned(),
            "there is no setting `claim`; did you mean `claims`?",
        ),
        (
            "name = \"a\"\ntoken-file = \"/nowhere/a\"\nrole = \"admin\"".to_owned(),
            "token-file: cannot read `/nowhere/a`",
        ),
    ] {
        let file = file(&format!(
            "upstream = \"http://127.0.0.1:9\"\n[[tokens]]\n{token}\n"
        ));
        let messages = errors(&["--config", file.path().to_str().unwrap()], &[]);
        let found = messages.iter().any(|found| found.contains(message));
        assert!(found, "{message}: {messages:?}");
        assert!(!messages.iter().any(|found| found.contains("my-secret")));
    }
}

#[test]
fn tokens_are_shown_without_their_secrets() {
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let file = file(&format!(
        "upstream = \"http://127.0.0.1:9\"\n[[tokens]]\nname = \"a\"\nsha256 = \"{digest}\"\n\
         role = \"operator\"\nclaims = [\"default/settle-*\", \"orders/*\"]\n"
    ));
    let flags = ["--no-open", "--config", file.path().to_str().unwrap()];
    let output = semel("check", &flags, &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("a: operator, claims default/settle-*,orders/*"),
        "{text}"
    );
    assert!(!text.contains(digest), "{text}");
}
