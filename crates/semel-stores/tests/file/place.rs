//! The directory: whose it is, and whether it is still the one that was opened.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use semel::{Store, StoreErrorKind};
use semel_stores::{FileOptions, FileStore};

use super::{acquire, complete, identity, open, replayed, request, settle};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn nobody_else_can_look_into_it() {
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join("new");
    let store = open(&new);
    assert!(store.probe().await.unwrap().warnings.is_empty());
    assert_eq!(mode(&new), 0o700);
    assert_eq!(mode(&new.join("records")), 0o700);
    assert_eq!(mode(&new.join("acknowledged")), 0o600);
    store.close().await.unwrap();

    // One that was there keeps the owner's choice; the records in it are closed off all the same.
    let given = directory.path().join("given");
    fs::create_dir(&given).unwrap();
    fs::set_permissions(&given, fs::Permissions::from_mode(0o755)).unwrap();
    let store = open(&given);
    assert!(store.probe().await.unwrap().warnings.is_empty());
    assert_eq!((mode(&given), mode(&given.join("records"))), (0o755, 0o700));
    store.close().await.unwrap();
    fs::set_permissions(given.join("records"), fs::Permissions::from_mode(0o755)).unwrap();
    let warnings = open(&given).probe().await.unwrap().warnings;
    assert!(warnings[0].contains("chmod -R go="), "{warnings:?}");
}

async fn until_refused(store: &FileStore) -> String {
    let waited = async {
        loop {
            if let Err(refused) = store.get(identity("done").digest()).await {
                assert_eq!(refused.kind(), StoreErrorKind::NotApplied);
                return refused.to_string();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let noticed = tokio::time::timeout(Duration::from_secs(2), waited).await;
    noticed.expect("nobody noticed for 2 s")
}

async fn until_open(store: &FileStore) {
    let waited = async {
        while store.probe().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let opened = tokio::time::timeout(Duration::from_secs(10), waited).await;
    opened.expect("it is not opened again");
}

#[tokio::test]
async fn a_directory_that_was_moved_away_is_noticed_and_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let (path, aside) = (
        directory.path().join("data"),
        directory.path().join("aside"),
    );
    let store = open(&path);
    let token = acquire(&store, "runs").await.token;
    settle(&store, "done").await;
    fs::rename(&path, &aside).unwrap();
    let said = until_refused(&store).await;
    assert!(said.contains("was deleted or moved away"), "{said}");
    assert!(store.claim(&identity("new"), &request()).await.is_err());
    assert!(!path.exists(), "it was made anew");
    fs::rename(&aside, &path).unwrap();
    until_open(&store).await;
    assert_eq!(replayed(&store, "done").await, "done");
    complete(&store, "runs", &token, b"late").await;
}

#[tokio::test]
async fn one_that_was_deleted_or_replaced_is_not_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let store = open(&path);
    settle(&store, "done").await;
    fs::remove_dir_all(&path).unwrap();
    until_refused(&store).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!path.exists());

    // Another store in its place: it is not mixed up with this one.
    let other = open(&path);
    settle(&other, "theirs").await;
    other.close().await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let said = until_refused(&store).await;
    assert!(said.contains("was replaced"), "{said}");
    store.close().await.unwrap();
    assert_eq!(replayed(&open(&path), "theirs").await, "theirs");
}

#[tokio::test]
async fn a_lock_or_a_watermark_that_was_deleted_is_noticed() {
    for file in ["records/lock", "acknowledged"] {
        let directory = tempfile::tempdir().unwrap();
        let store = FileOptions::new().open(directory.path()).unwrap();
        settle(&store, "done").await;
        fs::remove_file(directory.path().join(file)).unwrap();
        let said = until_refused(&store).await;
        assert!(said.contains(file), "{said}");
    }
}
