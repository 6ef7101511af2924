//! `semel run`: a command once per key, as users start it.

mod claims;
mod job;
mod kills;
mod misuse;
mod outage;
mod signals;

use std::process::Stdio;

use job::{EFFECT, Way, is_alive, until};
use signals::*;

/// Every case, with the records reached in both ways.
macro_rules! cases {
    ($($case:ident,)*) => {
        mod store {
            $(#[test] fn $case() { super::$case(&super::Way::store()); })*
        }
        mod through_gateway {
            $(#[test] fn $case() { super::$case(&super::Way::gateway()); })*
        }
    };
}

cases! {
    a_replay_is_the_same_byte_for_byte,
    failures_are_released_unless_told_otherwise,
    a_killed_command_is_unknown_and_retry_runs_it_again,
    a_status_of_semels_own_is_never_the_commands,
    another_command_is_a_mismatch,
    a_second_runner_is_told_who_runs_or_waits,
    a_crowd_runs_it_once,
    output_that_is_too_large_is_not_kept_and_nothing_runs_again,
    what_cannot_be_started_is_released,
    the_command_knows_its_name_fence_and_attempt,
    scopes_operations_and_services_are_apart,
    signals_reach_the_command_once,
    semel_waits_for_a_command_that_goes_on_after_a_signal,
    a_signal_that_kills_the_command_leaves_it_unknown,
    a_signal_while_it_waits_runs_nothing,
    a_signal_ends_a_replay_whose_reader_pauses,
    a_run_that_lost_its_claim_stops_its_command_and_says_so,
    a_lost_command_that_ignores_sigterm_is_killed,
    a_held_run_that_was_paused_goes_on_and_is_recorded,
    a_command_does_not_outlive_its_semel,
}

fn a_replay_is_the_same_byte_for_byte(way: &Way) {
    let bytes = r"printf 'a\000\377\r\n\033[1mb'; printf '\001err\376' >&2; printf c; ";
    for (key, script, status) in [
        ("binary", format!("{EFFECT}{bytes}"), 0),
        ("kept", format!("{EFFECT}{bytes} exit 7"), 7),
        ("silent", EFFECT.to_owned(), 0),
        // More than a pipe holds.
        (
            "long",
            format!("{EFFECT} head -c 300000 /dev/zero; echo end >&2"),
            0,
        ),
    ] {
        let before = way.ran();
        let job = way.job(key, &script).with(&["--on-exit", "failure=keep"]);
        let first = job.run();
        assert_eq!((first.code(), first.result()), (status, "ran"), "{first:?}");
        assert_eq!(first.report["recorded"], "completed");
        for _ in 0..2 {
            let again = job.run();
            assert_eq!((again.code(), again.result()), (status, "replayed"));
            assert_eq!(again.output, first.output, "{key}");
            assert_eq!(again.report["id"], first.report["id"]);
        }
        assert_eq!(way.ran(), before + 1, "{key}");
        let bytes = [first.output.stdout.len(), first.output.stderr.len()];
        let expected = match key {
            "silent" => [0, 0],
            "long" => [300_000, 4],
            _ => [11, 5],
        };
        assert_eq!(bytes, expected, "{first:?}");
    }
}

fn failures_are_released_unless_told_otherwise(way: &Way) {
    // Script's end, rules, the first run's status and result, what was recorded, the second run's status
    // and result.
    for (nth, (end, rules, first, second)) in [
        ("exit 3", "", (3, "ran", "released"), (3, "ran")),
        ("exit 3", "3=keep", (3, "ran", "completed"), (3, "replayed")),
        (
            "exit 3",
            "3=unknown",
            (115, "unknown", "unknown"),
            (115, "unknown"),
        ),
        (
            "exit 3",
            "1-5=unknown,3=release",
            (3, "ran", "released"),
            (3, "ran"),
        ),
        (
            "exit 137",
            "",
            (115, "unknown", "unknown"),
            (115, "unknown"),
        ),
        (
            "exit 137",
            "signal=keep",
            (137, "ran", "completed"),
            (137, "replayed"),
        ),
        (
            "kill -9 $$",
            "",
            (115, "unknown", "unknown"),
            (115, "unknown"),
        ),
        (
            "kill -9 $$",
            "signal=release",
            (137, "ran", "released"),
            (137, "ran"),
        ),
        (
            "kill -9 $$",
            "signal=keep",
            (137, "ran", "completed"),
            (137, "replayed"),
        ),
        (
            "exit 0",
            "failure=keep",
            (0, "ran", "completed"),
            (0, "replayed"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let before = way.ran();
        let mut job = way.job(&format!("end-{nth}"), &format!("{EFFECT}{end}"));
        if !rules.is_empty() {
            job = job.with(&["--on-exit", rules]);
        }
        let ran = job.run();
        let recorded = ran.report["recorded"].as_str().unwrap();
        assert_eq!((ran.code(), ran.result(), recorded), first, "{end} {rules}");
        let again = job.run();
        assert_eq!((again.code(), again.result()), second, "{end} {rules}");
        let runs = if second.1 == "ran" { 2 } else { 1 };
        assert_eq!(way.ran(), before + runs, "{end} {rules}");
    }
}

fn a_killed_command_is_unknown_and_retry_runs_it_again(way: &Way) {
    let script = format!("{EFFECT} [ $SEMEL_ATTEMPT = 2 ] || kill -TERM $$; echo second");
    let job = way.job("killed", &script);
    let killed = job.run();
    assert_eq!((killed.code(), &killed.report["signal"]), (115, &15.into()));
    assert!(killed.stderr().contains("signal 15"), "{killed:?}");
    let held = job.run();
    assert_eq!((held.code(), held.result()), (115, "unknown"));
    assert_eq!(held.report["id"], killed.report["id"]);
    let id = held.report["id"].as_str().unwrap();
    assert!(killed.stderr().contains(id), "{killed:?}");
    for told in [id, "attempt 1", "--on-lost retry"] {
        assert!(held.stderr().contains(told), "{held:?}");
    }
    assert_eq!(way.ran(), 1);
    let again = job.with(&["--on-lost", "retry"]).run();
    assert_eq!((again.code(), again.stdout()), (0, "second\n"), "{again:?}");
    assert_eq!(again.report["attempt"], 2);
    let fence = |ran: &job::Ran| ran.report["fence"].as_u64().unwrap();
    assert!(fence(&again) > fence(&killed));
    assert_eq!(way.ran(), 2);
}

fn a_status_of_semels_own_is_never_the_commands(way: &Way) {
    for status in [112, 118, 121] {
        let job = way.job(&format!("own-{status}"), &format!("exit {status}"));
        let job = job.with(&["--on-exit", "failure=keep"]);
        for result in ["ran", "replayed"] {
            let ran = job.run();
            assert_eq!((ran.code(), ran.result()), (121, result), "{ran:?}");
            assert_eq!(ran.report["status"], status);
            assert!(ran.stderr().contains(&status.to_string()), "{ran:?}");
        }
    }
    for status in [111, 122] {
        let ran = way.job("near", &format!("exit {status}")).run();
        assert_eq!(ran.code(), status);
    }
}

fn another_command_is_a_mismatch(way: &Way) {
    let script = format!("{EFFECT} echo $0");
    let with = |flags: &[&str], word: &str| {
        let job = way.job("one-key", "").with(flags);
        job.with_command(&["/bin/sh", "-c", &script, word]).run()
    };
    assert_eq!(with(&[], "a").code(), 0);
    let other = with(&[], "b");
    assert_eq!((other.code(), other.result()), (116, "mismatch"));
    assert!(other.stderr().contains("--fingerprint"), "{other:?}");
    assert!(!other.stderr().contains("one-key"), "{other:?}");
    assert_eq!(with(&["--fingerprint", "import"], "a").code(), 116);
    assert_eq!(with(&[], "a").stdout(), "a\n");
    assert_eq!(way.ran(), 1);

    // What counts is said in other words.
    let with = |word: &str, print: &str| {
        let job = way.job("by-print", "").with(&["--fingerprint", print]);
        job.with_command(&["/bin/sh", "-c", &script, word]).run()
    };
    assert_eq!(with("/tmp/1", "orders").stdout(), "/tmp/1\n");
    assert_eq!(with("/tmp/2", "orders").stdout(), "/tmp/1\n");
    assert_eq!(with("/tmp/2", "books").code(), 116);
    assert_eq!(way.ran(), 2);
}

fn a_second_runner_is_told_who_runs_or_waits(way: &Way) {
    let script = format!("{EFFECT} echo begun; while [ ! -e go ]; do sleep 0.01; done; echo done");
    let job = way.job("a-long-secret-key", &script);
    let mut first = job.start();
    // Written while it runs.
    assert_eq!(first.line(), "begun\n");
    let second = job.run();
    assert_eq!((second.code(), second.result()), (114, "in-flight"));
    let told = second.stderr();
    let fence = second.report["fence"].to_string();
    for part in ["in flight", "begun 20", "attempt 1", &fence, "--wait"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // The claim API tells no more than that.
    if way.has_store() {
        let process = format!("process {}", first.process());
        for part in [&*process, "host ", "program /bin/sh"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    assert!(!told.contains("a-long-secret-key"), "{told}");
    assert_eq!(second.stdout(), "");
    let patient = job.clone().with(&["--wait", "10m"]).start();
    // A wait that ends first.
    let short = job.clone().with(&["--wait", "100ms"]).run();
    assert_eq!(short.code(), 114);
    assert!(short.stderr().contains("--wait is over"), "{short:?}");
    std::fs::write(way.path("go"), "").unwrap();
    let (status, out, err) = first.end();
    assert_eq!((status.code(), &*out, &*err), (Some(0), "done\n", ""));
    let (status, out, err) = patient.end();
    let all = "begun\ndone\n";
    assert_eq!((status.code(), &*out, &*err), (Some(0), all, ""));
    assert_eq!(way.ran(), 1);
}

fn a_crowd_runs_it_once(way: &Way) {
    let script = format!("{EFFECT} sleep 0.2; echo $SEMEL_FENCE");
    let job = way.job("crowd", &script).with(&["--wait", "10m"]);
    let crowd: Vec<_> = (0..8).map(|_| job.start()).collect();
    let ends: Vec<_> = crowd.into_iter().map(job::Running::end).collect();
    for (status, out, err) in &ends {
        assert_eq!((status.code(), err.as_str()), (Some(0), ""));
        assert_eq!(out, &ends[0].1);
    }
    assert_eq!(way.ran(), 1);
}

fn output_that_is_too_large_is_not_kept_and_nothing_runs_again(way: &Way) {
    for (key, bytes, end, is_kept) in [
        ("fits", 1024, 0, true),
        ("one-more", 1025, 0, false),
        ("failed", 5000, 3, false),
    ] {
        let before = way.ran();
        // Both streams count together.
        let script = format!(
            "{EFFECT} head -c {} /dev/zero; printf 1234 >&2; exit {end}",
            bytes - 4
        );
        let flags = ["--max-output", "1KiB", "--on-exit", "failure=keep"];
        let job = way.job(key, &script).with(&flags);
        let first = job.run();
        assert_eq!((first.code(), first.result()), (end, "ran"));
        assert_eq!(
            first.output.stdout.len(),
            bytes - 4,
            "it is passed on whole"
        );
        assert!(first.stderr().starts_with("1234"), "{first:?}");
        assert_eq!(
            first.stderr().contains("--max-output"),
            !is_kept,
            "{first:?}"
        );
        let again = job.run();
        assert_eq!((again.code(), again.result()), (end, "replayed"));
        assert_eq!(
            again.report["output"],
            if is_kept { "kept" } else { "omitted" }
        );
        if is_kept {
            assert_eq!(again.output, first.output);
        } else {
            assert_eq!(again.stdout(), "");
            assert!(again.stderr().contains("was not kept"), "{again:?}");
        }
        assert_eq!(way.ran(), before + 1);
    }
}

fn what_cannot_be_started_is_released(way: &Way) {
    std::fs::write(way.path("plain"), "no program").unwrap();
    for program in ["/nowhere/at-all", "no-such-program-here", "./plain"] {
        let job = way.job("wrong-path", "").with_command(&[program, "x"]);
        let ran = job.run();
        assert_eq!((ran.code(), ran.result()), (120, "not-started"), "{ran:?}");
        assert!(ran.stderr().contains(program), "{ran:?}");
    }
    let right = way.job("wrong-path", "echo right").run();
    assert_eq!((right.code(), right.stdout()), (0, "right\n"));
}

fn the_command_knows_its_name_fence_and_attempt(way: &Way) {
    let script = "echo $SEMEL_ID $SEMEL_FENCE $SEMEL_ATTEMPT; exit 1";
    let told = |key: &str| {
        let ran = way.job(key, script).run();
        let words: Vec<_> = ran.stdout().split_whitespace().map(str::to_owned).collect();
        let report = &ran.report;
        assert_eq!(words[0], report["id"].as_str().unwrap());
        assert_eq!(words[1], report["fence"].to_string());
        assert_eq!(words[2], report["attempt"].to_string());
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        (words[0].clone(), number(1), number(2))
    };
    let (first, second, other) = (told("named"), told("named"), told("other"));
    assert_eq!((first.0.len(), &first.0), (64, &second.0));
    assert!(second.1 > first.1, "the fence grows");
    assert_eq!((first.2, second.2), (1, 2));
    assert_ne!(other.0, first.0);
}

fn scopes_operations_and_services_are_apart(way: &Way) {
    let all: [&[&str]; 6] = [
        &[],
        &["--scope", "a"],
        &["--scope", "a", "--scope", "b"],
        &["--scope", "a,b"],
        &["--operation", "deploy"],
        &["--service", "orders"],
    ];
    for (nth, flags) in all.into_iter().enumerate() {
        assert_eq!(way.job("same", EFFECT).with(flags).run().code(), 0);
        assert_eq!(way.ran(), nth + 1, "{flags:?}");
    }
    for flags in all {
        assert_eq!(
            way.job("same", EFFECT).with(flags).run().result(),
            "replayed"
        );
    }
    assert_eq!(way.ran(), all.len());
}

/// A reader who goes away does not stop the command, and its output is kept whole.
#[test]
fn a_command_outlives_the_reader_of_its_output() {
    let way = Way::store();
    let script = format!(
        "echo begun; while [ ! -e go ]; do sleep 0.01; done; head -c 200000 /dev/zero; {EFFECT}"
    );
    let job = way.job("unread", &script);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| running.stop_reading());
        std::fs::write(way.path("go"), "").unwrap();
        assert_eq!(ended.join().unwrap().code(), Some(0));
    });
    assert_eq!(way.ran(), 1);
    let again = job.run();
    assert_eq!(
        (again.result(), again.output.stdout.len()),
        ("replayed", 200_006)
    );
}

/// What the command leaves behind and holds its output open is not waited for.
#[test]
fn a_daemon_that_holds_the_output_open_is_left_alone() {
    let way = Way::store();
    let script = "sleep 1000 & echo $! > daemon; (sleep 0.3; echo late) & echo early";
    let job = way.job("daemon", script).with(&["--lease", "6s"]);
    let ran = job.run();
    assert_eq!((ran.code(), ran.stdout()), (0, "early\nlate\n"), "{ran:?}");
    let daemon = std::fs::read_to_string(way.path("daemon")).unwrap();
    assert!(is_alive(&daemon), "it was stopped");
    assert_eq!(job.run().stdout(), "early\nlate\n");
    let kill = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("kill {daemon}")])
        .status();
    assert!(kill.unwrap().success());
    until("the daemon to end", || !is_alive(&daemon));
}

/// Stdin, working directory, umask and environment are those of whoever starts it.
#[test]
fn the_command_has_the_surroundings_of_its_caller() {
    use std::io::Write as _;
    let way = Way::store();
    let script = "cat; umask; pwd; echo $OF_MINE";
    let plain = std::process::Command::new("/bin/sh")
        .args(["-c", "umask"])
        .output()
        .unwrap();
    let umask = String::from_utf8(plain.stdout).unwrap();
    let mut command = way.job("surroundings", script).command();
    command.env("OF_MINE", "mine").stdin(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"input\n").unwrap();
    let output = process.wait_with_output().unwrap();
    let folder = way.folder.path().canonicalize().unwrap();
    let expected = format!("input\n{umask}{}\nmine\n", folder.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// Expired records go away without a gateway.
#[test]
fn an_outcome_is_replayed_for_its_time_only() {
    let way = Way::store();
    let job = way
        .job("short", EFFECT)
        .with(&["--ttl", "1ms", "--lease", "1s"]);
    assert_eq!(job.run().result(), "ran");
    // It is kept as long as the lease at least, for those who wait.
    until("it runs again", || job.run().result() == "ran");
    assert_eq!(way.ran(), 2);
}
