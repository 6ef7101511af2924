//! Processes that write one file and are killed at random instants.

use semel_stores::SqliteStore;

use super::{file, foreign};
use crate::crash::Crash;

const CRASH: Crash<SqliteStore> = Crash {
    open: super::open,
    victim: "sqlite::crash::victim",
    rounds: 16,
    together: 2,
    lives: |round, one| 20_000 + round * 3_733 + one * 7_311,
    least: 20,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    CRASH.victim().await;
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let (_directory, path) = file();
    CRASH.survives_kills(&path, || {
        let sound: String = foreign(&path)
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sound, "ok");
    });
}
