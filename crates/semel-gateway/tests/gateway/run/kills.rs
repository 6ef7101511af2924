//! `kill -9` of `semel run` at any point, under `hold`: the command never starts twice.
//!
//! A round has a key of its own. `semel run` is killed at a random moment between its start and some
//! time after its usual end; then somebody runs the same command with the same key until the answer stays:
//! it ran (now, or before the kill, and is replayed), or its outcome is unknown. In the end:
//!
//! - no command had its effect twice;
//! - what was answered 0 had it once; and a run that ended before the kill, acknowledged, is replayed;
//! - what is unknown stays so, whoever asks.
//!
//! `SEMEL_KILL_ROUNDS` sets how many rounds there are (10 unless set), `SEMEL_KILL_SEED` which.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::job::{Way, until};
use crate::crash::{Random, setting};

/// Before the effect, the effect, after it: each takes a while in which a kill can hit.
const COMMAND: &str = "echo $0 >> began; sleep 0.05; echo $0 >> ledger; sleep 0.05; echo done $0";
/// How long that takes, at least.
const RUN: Duration = Duration::from_millis(120);
/// How many rounds are on their way at the same time.
const AT_ONCE: usize = 4;

/// Every second kill comes while the command runs; the others at any moment.
const fn is_aimed(round: u64) -> bool {
    round % 2 == 1
}

#[derive(Debug, Default)]
struct Tally {
    /// The kill came when all was over.
    late: u64,
    /// The next run ran it: it was killed before the claim.
    fresh: u64,
    /// The next run got what the killed one had recorded.
    replayed: u64,
    unknown: u64,
    /// Those of the unknown that had their effect.
    unknown_done: u64,
}

fn rounds(way: &Way) {
    let rounds = setting("SEMEL_KILL_ROUNDS", 10);
    let seed = setting("SEMEL_KILL_SEED", 20_261_122);
    // How long it takes when nobody kills it, on this machine now.
    let before = Instant::now();
    assert_eq!(way.job("warm", "true").run().code(), 0);
    let usual = before.elapsed() + RUN;

    let next = AtomicU64::new(0);
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    let mut tally = Tally::default();
                    loop {
                        let round = next.fetch_add(1, Ordering::Relaxed);
                        if round >= rounds {
                            return tally;
                        }
                        let span = [usual * 5 / 4, RUN][usize::from(is_aimed(round))];
                        let span = u64::try_from(span.as_micros()).unwrap();
                        let moment = Random(seed ^ round << 32).below(span);
                        one_round(way, round, Duration::from_micros(moment), &mut tally);
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });

    let ledger = std::fs::read_to_string(way.path("ledger")).unwrap_or_default();
    let mut effects = HashMap::<&str, u64>::new();
    for key in ledger.lines() {
        *effects.entry(key).or_default() += 1;
    }
    let twice: Vec<_> = effects.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "ran twice: {twice:?}");
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (late, unknown) = (sum(|t| t.late), sum(|t| t.unknown));
    println!(
        "rounds: {rounds}, seed: {seed}, killed within {usual:?} and a quarter; over before the kill: {late}; killed and then \
         run by the next: {}, replayed: {}, unknown: {unknown} (of them with their effect: {}); effects twice: 0",
        sum(|t| t.fresh),
        sum(|t| t.replayed),
        sum(|t| t.unknown_done),
    );
    assert!(
        unknown > 0 && late < rounds,
        "no kill hit a command while it ran: the test shows nothing"
    );
}

fn one_round(way: &Way, round: u64, moment: Duration, tally: &mut Tally) {
    let key = format!("round-{round}-{}", std::process::id());
    let job = way
        .job(&key, "")
        .with_command(&["/bin/sh", "-c", COMMAND, &key]);
    // Soon over, once it is killed; and of those that nobody kills, long enough for a busy machine.
    let mut killed = job.clone().with(&["--lease", "3s"]).start();
    if is_aimed(round) {
        until("the command to begin", || {
            let began = std::fs::read_to_string(way.path("began")).unwrap_or_default();
            began.lines().any(|line| line == key)
        });
    }
    std::thread::sleep(moment);
    let was_over = killed.is_over();
    drop(killed);
    let done = format!("done {key}\n");
    let effects = || {
        let ledger = std::fs::read_to_string(way.path("ledger")).unwrap_or_default();
        ledger.lines().filter(|line| *line == key).count()
    };
    // It finds what was lost in flight until the lease is over, and waits for that.
    let next = job.clone().with(&["--wait", "10m"]).run();
    match (next.code(), next.result()) {
        (0, "replayed") if was_over => tally.late += 1,
        (0, "replayed") => tally.replayed += 1,
        (0, "ran") => tally.fresh += 1,
        (115, "unknown") => tally.unknown += 1,
        _ => panic!("{key}: {next:?}"),
    }
    assert!(
        !was_over || next.result() == "replayed",
        "acknowledged, and lost: {next:?}"
    );
    if next.code() == 0 {
        assert_eq!((next.stdout(), effects()), (&*done, 1), "{key}");
    } else {
        // The orphan has had its time.
        tally.unknown_done += effects() as u64;
    }
    let again = job.run();
    assert_eq!(again.code(), next.code(), "{key}: {again:?}");
    assert_eq!(
        again.result(),
        if next.code() == 0 {
            "replayed"
        } else {
            "unknown"
        }
    );
    assert!(effects() <= 1, "{key}");
}

#[test]
fn killed_at_any_point_it_never_runs_twice_on_sqlite() {
    rounds(&Way::store());
}

#[test]
fn killed_at_any_point_it_never_runs_twice_through_a_gateway() {
    rounds(&Way::gateway());
}

#[cfg(feature = "postgres")]
#[test]
fn killed_at_any_point_it_never_runs_twice_on_postgres() {
    use semel_testkit::servers::{Kind, shared};
    rounds(&Way::at(&shared(Kind::Postgres).unwrap()));
}
