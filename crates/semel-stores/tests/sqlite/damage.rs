//! Damage is told, and only where it is.

use std::io::{Seek as _, SeekFrom, Write as _};

use semel::store::{ListQuery, StoreExt as _};
use semel::{StateKind, Store, StoreErrorKind};

use super::{acquire, complete, file, foreign, identity, open, options, replayed, request};

#[tokio::test]
async fn a_record_that_cannot_be_read_is_told_and_the_others_are_served() {
    let (_directory, path) = file();
    let store = open(&path);
    for key in ["bad", "good"] {
        let token = acquire(&store, key).await.token;
        complete(&store, key, &token, key.as_bytes()).await;
    }
    let digest = *identity("bad").digest();
    for damage in [
        "outcome = x'09'",
        "nonce = x'00'",
        "outcome = NULL",
        "claimed_at = -5",
    ] {
        let sql = format!("UPDATE semel SET {damage} WHERE digest = ?1");
        foreign(&path).execute(&sql, [digest.as_bytes()]).unwrap();
        let error = store.claim(&identity("bad"), &request()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{damage}: {error}");
        assert!(error.to_string().contains("cannot be read"), "{error}");
        assert_eq!(
            store.get(&digest).await.unwrap_err().kind(),
            StoreErrorKind::Corrupt
        );
        let token = acquire(&store, damage).await.token;
        let renewed = store.renew(&digest, &token, super::LONG).await;
        assert_eq!(renewed.unwrap_err().kind(), StoreErrorKind::Corrupt);
    }
    let listed = store.list(&ListQuery::new(StateKind::Completed)).await;
    assert_eq!(listed.unwrap_err().kind(), StoreErrorKind::Corrupt);
    assert_eq!(replayed(&store, "good").await, &b"good"[..]);
}

#[tokio::test]
async fn a_damaged_file_is_told() {
    let (_directory, path) = file();
    let store = open(&path);
    for n in 0..200 {
        acquire(&store, &format!("key-{n}")).await;
    }
    store.close().await.unwrap();
    drop(store);
    // Connections that are closed at the same moment may leave it all in the log.
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    foreign(&path).execute_batch(checkpoint).unwrap();
    let mut bytes = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = bytes.metadata().unwrap().len();
    assert!(len > 64 << 10, "{len}");
    // All but the first pages, which hold the schema.
    bytes.seek(SeekFrom::Start(8 * 4096)).unwrap();
    let garbage: Vec<u8> = (8 * 4096..len).map(|n| (n % 251) as u8).collect();
    bytes.write_all(&garbage).unwrap();
    drop(bytes);
    let error = match options().open(&path) {
        Err(e) => e,
        Ok(store) => {
            let mut told = None;
            for n in 0..200 {
                if let Err(e) = store.get(identity(&format!("key-{n}")).digest()).await {
                    told = Some(e);
                    break;
                }
            }
            told.unwrap()
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_replaced_is_noticed() {
    let (directory, path) = file();
    let store = open(&path);
    let token = acquire(&store, "key").await.token;
    complete(&store, "key", &token, b"done").await;
    let away = tempfile::tempdir_in(directory.path()).unwrap();
    let move_away = || {
        for name in ["semel.db", "semel.db-wal", "semel.db-shm"] {
            let _ = std::fs::rename(directory.path().join(name), away.path().join(name));
        }
    };
    move_away();
    let error = store.claim(&identity("key"), &request()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
    assert!(
        error.to_string().contains("was deleted or moved away"),
        "{error}"
    );
    assert!(!path.exists(), "no file was made unasked");

    let other = open(&path);
    let token = acquire(&other, "key").await.token;
    complete(&other, "key", &token, b"in the new file").await;
    for refused in [
        store.claim(&identity("key"), &request()).await.map(drop),
        store.claim(&identity("next"), &request()).await.map(drop),
        store.get(identity("key").digest()).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotApplied, "{error}");
        assert!(error.to_string().contains("was replaced"), "{error}");
    }
    other.close().await.unwrap();

    // Put back, it goes on by itself.
    for name in ["semel.db", "semel.db-wal", "semel.db-shm"] {
        let _ = std::fs::remove_file(directory.path().join(name));
        let _ = std::fs::rename(away.path().join(name), directory.path().join(name));
    }
    assert_eq!(replayed(&store, "key").await, &b"done"[..]);
    acquire(&store, "next").await;
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_can_read_a_new_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let (directory, path) = file();
    let store = open(&path);
    acquire(&store, "key").await;
    for name in ["semel.db", "semel.db-wal", "semel.db-shm"] {
        let found = std::fs::metadata(directory.path().join(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
    }
}
