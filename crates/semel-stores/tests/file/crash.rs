//! A process that is killed at random instants.

use semel_stores::FileStore;

use crate::crash::Crash;

const CRASH: Crash<FileStore> = Crash {
    open: super::open,
    victim: "file::crash::victim",
    rounds: 32,
    together: 1,
    lives: |round, _| round * 1_733 + round * round * 31,
    least: 50,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn victim() {
    CRASH.victim().await;
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    CRASH.survives_kills(directory.path(), || {});
}
