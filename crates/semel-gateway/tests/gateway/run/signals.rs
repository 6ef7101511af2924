//! Signals, lost claims, and what becomes of a command whose `semel run` dies.

use std::time::Duration;

use rustix::process::Signal;

use super::job::{EFFECT, Running, Way, is_alive, until};

/// Says that it has begun, and what it got.
fn trapping(signal: &str, end: &str) -> String {
    format!(
        "trap 'echo got {signal}; {end}' {signal}; {EFFECT} echo begun; while :; do sleep 0.05; done"
    )
}

pub(super) fn signals_reach_the_command_once(way: &Way) {
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let before = way.ran();
        let job = way.job(name, &trapping(name, "exit 0"));
        let mut running = job.start();
        assert_eq!(running.line(), "begun\n");
        running.signal(signal);
        // On stderr the shell may say what became of its own child.
        let (status, out, _) = running.end();
        let got = format!("got {name}\n");
        assert_eq!((status.code(), &out), (Some(0), &got));
        let again = job.run();
        assert_eq!(
            (again.result(), again.stdout()),
            ("replayed", &*format!("begun\n{got}"))
        );
        assert_eq!(way.ran(), before + 1);
    }
}

pub(super) fn semel_waits_for_a_command_that_goes_on_after_a_signal(way: &Way) {
    let script = format!(
        "trap 'echo got TERM' TERM; echo begun; while [ ! -e go ]; do sleep 0.05; done; {EFFECT} echo finished"
    );
    let job = way.job("goes-on", &script);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "got TERM\n");
    assert!(!running.is_over());
    assert_eq!(job.run().result(), "in-flight");
    std::fs::write(way.path("go"), "").unwrap();
    let (status, out, _) = running.end();
    assert_eq!((status.code(), &*out), (Some(0), "finished\n"));
    assert_eq!(job.run().stdout(), "begun\ngot TERM\nfinished\n");
}

/// It reaches all that a shell has started, too, and what a signal kills is unknown.
pub(super) fn a_signal_that_kills_the_command_leaves_it_unknown(way: &Way) {
    let script = format!("{EFFECT} sleep 1000 & echo $! > child; echo begun; wait");
    let job = way.job("killed-by-term", &script);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    running.signal(Signal::TERM);
    let (status, _, err) = running.end();
    assert_eq!(status.code(), Some(115));
    assert!(err.contains("signal 15"), "{err}");
    let child = std::fs::read_to_string(way.path("child")).unwrap();
    until("the end of the child", || !is_alive(&child));
    assert_eq!((job.run().result(), way.ran()), ("unknown", 1));
}

pub(super) fn a_signal_while_it_waits_runs_nothing(way: &Way) {
    let script = format!("{EFFECT} echo begun; while [ ! -e go ]; do sleep 0.01; done");
    let job = way.job("waiting", &script);
    let mut first = job.start();
    assert_eq!(first.line(), "begun\n");
    let patient = job.clone().with(&["--wait", "10m"]).start();
    // Before it listens it would be killed by it.
    patient.until_it_listens();
    patient.signal(Signal::INT);
    let (status, out, err) = patient.end();
    assert_eq!((status.code(), &*out), (Some(113), ""), "{err}");
    assert!(err.contains("signal 2"), "{err}");
    std::fs::write(way.path("go"), "").unwrap();
    assert_eq!(first.end().0.code(), Some(0));
    assert_eq!((job.run().result(), way.ran()), ("replayed", 1));
}

pub(super) fn a_signal_ends_a_replay_whose_reader_pauses(way: &Way) {
    for (key, stream) in [("stdout", 1), ("stderr", 2)] {
        // More than a pipe holds.
        let script = format!("{{ echo begun; head -c 300000 /dev/zero; }} >&{stream}");
        let job = way.job(key, &script);
        assert_eq!(job.run().result(), "ran");
        let mut replay = job.start();
        let line = match stream {
            1 => replay.line(),
            _ => replay.error_line(),
        };
        assert_eq!(line, "begun\n");
        replay.signal(Signal::TERM);
        let process = replay.process().to_string();
        until("the end of the replay", || !is_alive(&process));
        let (status, _, err) = replay.end();
        assert_eq!(status.code(), Some(113), "{key}");
        let told =
            err.contains("stopped by signal 15 while an earlier run's output was given again");
        // Where nobody reads it, it goes without a word.
        assert_eq!(told, stream == 1, "{err:?}");
    }
}

/// Under `nohup` neither of the two minds that its terminal goes away.
#[test]
fn nohup_holds_for_the_command() {
    let way = Way::store();
    let script = format!("echo begun; while [ ! -e go ]; do sleep 0.01; done; {EFFECT}");
    let job = way.job("nohup", &script);
    let plain = job.command();
    let mut command = std::process::Command::new("/bin/sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "-"])
        // Without what resets signals.
        .args(plain.get_args().skip(1))
        .current_dir(way.folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut running = Running::of(command);
    assert_eq!(running.line(), "begun\n");
    running.signal(Signal::HUP);
    std::fs::write(way.path("go"), "").unwrap();
    assert_eq!(running.end().0.code(), Some(0));
    assert_eq!(job.run().result(), "replayed");
}

/// A run that is paused for longer than its lease, while another one takes over.
pub(super) fn a_run_that_lost_its_claim_stops_its_command_and_says_so(way: &Way) {
    let script = "if [ $SEMEL_ATTEMPT = 2 ]; then echo second; exit 0; fi
        trap 'echo stopped; exit 0' TERM; echo begun; while :; do sleep 0.05; done";
    let job = way.job("paused", script);
    let job = job.with(&["--lease", "500ms", "--on-lost", "retry"]);
    let mut first = job.start();
    assert_eq!(first.line(), "begun\n");
    first.pause();
    let second = job.clone().with(&["--wait", "10m"]).run();
    assert_eq!(
        (second.code(), second.stdout()),
        (0, "second\n"),
        "{second:?}"
    );
    assert_eq!(second.report["attempt"], 2);
    first.signal(Signal::CONT);
    let (status, out, err) = first.end();
    assert_eq!((status.code(), &*out), (Some(118), "stopped\n"), "{err}");
    assert!(err.contains("the claim was lost"), "{err}");
    assert_eq!(job.run().stdout(), "second\n");
}

/// A command that does not mind is killed.
pub(super) fn a_lost_command_that_ignores_sigterm_is_killed(way: &Way) {
    let script = "if [ $SEMEL_ATTEMPT = 2 ]; then exit 0; fi
        trap '' TERM; echo begun; while :; do sleep 0.05; done";
    let job = way.job("ignores", script);
    let job = job.with(&["--lease", "500ms", "--on-lost", "retry"]);
    let mut first = job.start();
    assert_eq!(first.line(), "begun\n");
    first.pause();
    assert_eq!(job.clone().with(&["--wait", "10m"]).run().code(), 0);
    first.signal(Signal::CONT);
    assert_eq!(first.end().0.code(), Some(118));
}

/// Under `hold` a lease that is over by itself stops nothing: another run finds it lost, and does not
/// start.
pub(super) fn a_held_run_that_was_paused_goes_on_and_is_recorded(way: &Way) {
    let script = format!("echo begun; while [ ! -e go ]; do sleep 0.01; done; {EFFECT} echo done");
    let job = way.job("held", &script).with(&["--lease", "300ms"]);
    let mut first = job.start();
    assert_eq!(first.line(), "begun\n");
    first.pause();
    let second = job.clone().with(&["--wait", "10m"]).run();
    assert_eq!((second.code(), second.result()), (115, "unknown"));
    first.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(600));
    assert!(!first.is_over());
    std::fs::write(way.path("go"), "").unwrap();
    let (status, out, err) = first.end();
    assert_eq!((status.code(), &*out, &*err), (Some(0), "done\n", ""));
    assert_eq!((job.run().stdout(), way.ran()), ("begun\ndone\n", 1));
}

/// `kill -9` of `semel run`: its command, and what that has started, do not outlive the lease, though they
/// ignore what they can.
pub(super) fn a_command_does_not_outlive_its_semel(way: &Way) {
    let script = "trap '' TERM HUP INT; sleep 1000 & echo $! $$ > pids; echo begun; sleep 1000";
    let job = way.job("orphan", script).with(&["--lease", "3s"]);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    let pids = std::fs::read_to_string(way.path("pids")).unwrap();
    assert!(pids.split_whitespace().all(is_alive));
    running.signal(Signal::KILL);
    until("the end of the command", || {
        !pids.split_whitespace().any(is_alive)
    });
    // It holds what it has until it is resolved.
    let next = job.with(&["--wait", "10m"]).run();
    assert_eq!((next.code(), next.result()), (115, "unknown"));
}

/// One that minds SIGTERM gets to clean up, as long as it writes no output: nobody reads it.
#[test]
fn an_orphan_may_clean_up() {
    let way = Way::store();
    let script = "trap 'echo clean > cleaned; exit 0' TERM; echo begun; sleep 1000 & wait";
    let mut running = way.job("cleans", script).start();
    assert_eq!(running.line(), "begun\n");
    running.signal(Signal::KILL);
    until("the command to clean up", || way.path("cleaned").exists());
}
