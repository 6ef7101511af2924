//! A file that cannot grow.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel::store::{Claim, Fenced, Retention, StoreExt as _};
use semel::{Outcome, Store, StoreError, StoreErrorKind};
use semel_stores::SqliteStore;

use super::{LONG, acquire, complete, file, foreign, identity, options, replayed, request};

#[tokio::test]
async fn a_full_file_refuses_and_forgets_nothing() {
    let (_directory, path) = file();
    let store = options().max_bytes(256 << 10).open(&path).unwrap();
    let done = acquire(&store, "done").await.token;
    complete(&store, "done", &done, b"done").await;
    let mut tokens = Vec::new();
    let error = loop {
        let key = format!("key-{}", tokens.len());
        match store.claim(&identity(&key), &request()).await {
            Ok(Claim::Acquired(acquired)) => tokens.push((key, acquired.token)),
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(error.to_string().contains("max_bytes"), "{error}");
    assert!(tokens.len() > 100, "{}", tokens.len());
    assert_eq!(replayed(&store, "done").await, &b"done"[..]);

    // Room comes back with what is purged.
    for (key, token) in tokens.drain(..60) {
        let gone = Retention::new(Duration::ZERO);
        let digest = *identity(&key).digest();
        let completed = store
            .complete(&digest, &token, &Outcome::void(), gone)
            .await;
        assert_eq!(completed.unwrap(), Fenced::Applied);
    }
    assert_eq!(store.purge(1_000).await.unwrap().removed, 60);
    acquire(&store, "after").await;
    for (key, _) in &tokens {
        assert!(
            store.get(identity(key).digest()).await.unwrap().is_some(),
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_refuses_new_claims_only() {
    let (_directory, path) = file();
    drop(super::open(&path));
    let run = options().open(&path).unwrap();
    let token = acquire(&run, "runs").await.token;
    let store = options().reserve_bytes(u64::MAX).open(&path).unwrap();
    let error = store.claim(&identity("new"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(error.to_string().contains("reserve_bytes"), "{error}");
    complete(&store, "runs", &token, b"done").await;
    replayed(&store, "runs").await;
}

const SMALL_DISK: &str = "SEMEL_TEST_SQLITE_SMALL_DISK";

/// On a disk of 4 MiB. A test only so that the test binary can start itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filler() {
    let Ok(directory) = std::env::var(SMALL_DISK) else {
        return;
    };
    let path = std::path::Path::new(&directory).join("semel.db");
    let store = Arc::new(options().reserve_bytes(0).open(&path).unwrap());
    one_that_does_not_fit_takes_no_other_with_it(&store, &path).await;

    let mut kept = Vec::new();
    let error = loop {
        let key = format!("key-{}", kept.len());
        match claim_and_complete(&store, &key, 20_000).await {
            Ok(()) => kept.push(key),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(kept.len() > 20, "{}", kept.len());
    for key in &kept {
        replayed(&store, key).await;
    }
    store.close().await.unwrap();
    let store = options().reserve_bytes(0).open(&path).unwrap();
    for key in &kept {
        replayed(&store, key).await;
    }
}

async fn claim_and_complete(
    store: &SqliteStore,
    key: &str,
    bytes: usize,
) -> Result<(), StoreError> {
    let identity = identity(key);
    let Claim::Acquired(acquired) = store.claim(&identity, &request()).await? else {
        panic!("{key} was not acquired");
    };
    let outcome = Outcome::success(&vec![b'x'; bytes]);
    let retention = Retention::new(LONG);
    let done = store.complete(identity.digest(), &acquired.token, &outcome, retention);
    assert_eq!(done.await?, Fenced::Applied);
    Ok(())
}

async fn one_that_does_not_fit_takes_no_other_with_it(store: &Arc<SqliteStore>, path: &Path) {
    let large = acquire(store, "large").await.token;
    let lock = foreign(path);
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let commits = store.commits();
    let spawn = |n: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            if n == 7 {
                let (identity, outcome) =
                    (identity("large"), Outcome::success(&vec![b'x'; 8 << 20]));
                let retention = Retention::new(LONG);
                let full = store
                    .complete(identity.digest(), &large, &outcome, retention)
                    .await;
                assert_eq!(full.unwrap_err().kind(), StoreErrorKind::Capacity);
            } else {
                acquire(&store, &format!("small-{n}")).await;
            }
        })
    };
    let tasks: Vec<_> = (0..20).map(spawn).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    lock.execute_batch("ROLLBACK").unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        store.commits() - commits,
        19,
        "they were together, and then one by one"
    );
    // And it is kept without its body.
    complete(store, "large", &large, b"").await;
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_what_was_acknowledged_stays() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("unshare");
    // A mount that nobody else sees.
    if std::fs::metadata(directory.path()).unwrap().uid() != 0 {
        child.args(["--user", "--map-root-user"]);
    }
    let output = child
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=4m tmpfs \"$1\" && shift && exec \"$@\"")
        .arg("sh")
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::capacity::filler", "--nocapture"])
        .env(SMALL_DISK, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{told}"
    );
}
