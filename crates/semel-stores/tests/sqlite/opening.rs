//! Opening: URLs, tables and their versions, and files that cannot be used.

use std::process::Command;
use std::time::Duration;

use semel::store::{Clear as _, Durability};
use semel::{Store, StoreError, StoreErrorKind};
use semel_stores::{
    OpenError, OpenOptions, Schema, SqliteOptions, SqliteStore, check_url, migrate,
};

use super::{acquire, file, foreign, open, options, replayed};

#[track_caller]
fn refused(error: &StoreError, kind: StoreErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn urls_are_read_with_care() {
    for url in [
        "sqlite:x.db",
        "sqlite:./x.db",
        "sqlite:../x y%20ü.db",
        "sqlite:/var/x.db",
        "sqlite:///var/x.db",
        "sqlite:./x.db?",
        "sqlite:./x.db?table=t&schema=migrate&timeout=500ms&synchronous=normal&journal=wal&max_bytes=1",
        "sqlite:./x.db?timeout=2m&synchronous=full",
    ] {
        check_url(url).unwrap_or_else(|e| panic!("{url}: {e}"));
    }
    for (url, says) in [
        ("sqlite:", "needs the path of a file"),
        ("sqlite:?table=t", "needs the path of a file"),
        ("sqlite::memory:", "needs the path of a file"),
        ("sqlite://x.db", "right after the colon"),
        (
            "sqlite:x.db?tabel=t",
            "no parameter `tabel`; there are table, schema",
        ),
        ("sqlite:x.db?table=a-b", "letters, digits and `_`"),
        ("sqlite:x.db?table=sqlite_t", "not `sqlite_`"),
        ("sqlite:x.db?timeout=5", "`timeout` must be a duration"),
        ("sqlite:x.db?timeout=0s", "`timeout` must be a duration"),
        (
            "sqlite:x.db?timeout=99999999999s",
            "`timeout` must be a duration",
        ),
        ("sqlite:x.db?schema=drop", "`expect`, `create` or `migrate`"),
        ("sqlite:x.db?synchronous=off", "`full` or `normal`"),
        ("sqlite:x.db?journal=delete", "must be `wal`"),
        ("sqlite:x.db?max_bytes=many", "a number of bytes"),
    ] {
        let message = check_url(url).expect_err(url).to_string();
        assert!(message.contains(says), "{url}: {message}");
    }
}

#[tokio::test]
async fn a_url_with_a_relative_path_opens() {
    let (_directory, path) = file();
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let relative = format!("{up}{}", path.strip_prefix("/").unwrap().display());
    let url = format!("sqlite:{relative}?table=mine&schema=create");
    let store = semel_stores::open(&url, &OpenOptions::default())
        .await
        .unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(
        (probe.store, probe.durability),
        ("sqlite", Durability::Power)
    );
    assert!(path.exists());
    store.close().await.unwrap();
    let tables: i64 = foreign(&path)
        .query_row("SELECT count(*) FROM mine", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn a_url_opens_the_store_with_its_type() {
    let (_directory, path) = file();
    let url = format!("sqlite:{}", path.display());
    let missing = SqliteStore::open(&url).await.unwrap_err();
    assert!(missing.is_missing(), "{missing}");
    let store = SqliteStore::open(&format!("{url}?schema=create")).await;
    acquire(&store.unwrap(), "key").await;
    for other in [path.to_str().unwrap(), "postgres://me:hunter2@host/db"] {
        let message = SqliteStore::open(other).await.unwrap_err().to_string();
        assert!(message.starts_with("`sqlite:` needs the path"), "{message}");
    }
}

#[tokio::test]
async fn tables_that_are_missing_are_not_made_unasked() {
    let (_directory, path) = file();
    let expecting = || SqliteOptions::new().open(&path).unwrap_err();
    refused(&expecting(), StoreErrorKind::Config, "run `semel migrate");
    assert!(!path.exists(), "no file was made");
    foreign(&path)
        .execute_batch("CREATE TABLE app (x)")
        .unwrap();
    refused(&expecting(), StoreErrorKind::Config, "schema=create");

    let url = format!("sqlite:{}?journal=wal", path.display());
    let first = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((first.from, first.to, first.done.len()), (None, 2, 1));
    let again = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((again.from, again.to, again.done.len()), (Some(2), 2, 0));
    let store = SqliteOptions::new().open(&path).unwrap();
    acquire(&store, "key").await;
}

#[test]
fn many_may_migrate_at_once() {
    for _ in 0..5 {
        let (_directory, path) = file();
        let made: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| SqliteOptions::new().migrate(&path).unwrap().done.len()))
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(made, 1, "one of them made the tables");
    }
}

#[test]
fn tables_of_another_version_are_left_alone() {
    let (_directory, path) = file();
    SqliteOptions::new().migrate(&path).unwrap();
    let any = [Schema::Migrate, Schema::Expect, Schema::Create];
    for (version, schemas, says) in [
        (3, &any[..], "have version 3, and this program knows 2"),
        (1, &any[..], "version 1, which was never released"),
        (0, &any[1..], "run `semel migrate"),
    ] {
        foreign(&path)
            .execute("UPDATE semel_schema SET version = ?1", [version])
            .unwrap();
        for schema in schemas {
            let opened = SqliteOptions::new().schema(*schema).open(&path);
            refused(&opened.unwrap_err(), StoreErrorKind::Config, says);
        }
    }
}

#[test]
fn a_path_that_cannot_be_is_named() {
    let (directory, path) = file();
    let missing = directory.path().join("none").join("semel.db");
    let error = options().open(&missing).unwrap_err();
    refused(&error, StoreErrorKind::Config, "there is no directory");
    assert!(error.to_string().contains("none"), "{error}");
    let error = options().open(directory.path()).unwrap_err();
    refused(&error, StoreErrorKind::Config, "this is a directory");
    for path in ["", ":memory:"] {
        refused(
            &options().open(path).unwrap_err(),
            StoreErrorKind::Config,
            "path of a file",
        );
    }
    std::fs::write(
        &path,
        "not a database, and longer than its header has to be. ".repeat(40),
    )
    .unwrap();
    let error = options().open(&path).unwrap_err();
    refused(&error, StoreErrorKind::Corrupt, "damaged, or is none");
}

const READ_ONLY: &str = "SEMEL_TEST_SQLITE_READ_ONLY";

/// Opens a file that it may only read. A test only so that the test binary can start itself.
#[test]
fn reader() {
    let Ok(path) = std::env::var(READ_ONLY) else {
        return;
    };
    let error = SqliteOptions::new().open(path).unwrap_err();
    refused(
        &error,
        StoreErrorKind::Config,
        "cannot be written by this process",
    );
}

#[cfg(unix)]
#[test]
fn a_file_that_can_only_be_read_is_refused() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let (directory, path) = file();
    SqliteOptions::new().migrate(&path).unwrap();
    for (path, mode) in [(&*path, 0o444), (directory.path(), 0o555)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let me = std::env::current_exe().unwrap();
    // Permissions do not bind root.
    let mut child = if std::fs::metadata(&path).unwrap().uid() == 0 {
        let mut child = Command::new("setpriv");
        child
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(me);
        child
    } else {
        Command::new(me)
    };
    let output = child
        .args(["--exact", "sqlite::opening::reader", "--nocapture"])
        .env(READ_ONLY, &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[tokio::test]
async fn a_probe_says_what_the_settings_promise() {
    let (_directory, path) = file();
    let store = options().without_sync().open(&path).unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Crash);
    assert!(
        probe.warnings[0].contains("synchronous=normal"),
        "{probe:?}"
    );
    drop(store);

    let store = open(&path);
    assert_eq!(store.probe().await.unwrap().warnings, Vec::<String>::new());
    foreign(&path)
        .execute("UPDATE semel_schema SET version = 7", [])
        .unwrap();
    let error = store.probe().await.unwrap_err();
    refused(&error, StoreErrorKind::Config, "have version 7");
}

#[tokio::test]
async fn tables_that_vanish_are_told() {
    let (_directory, path) = file();
    let store = options()
        .timeout(Duration::from_secs(2))
        .open(&path)
        .unwrap();
    acquire(&store, "key").await;
    foreign(&path)
        .execute_batch("ALTER TABLE semel RENAME TO away")
        .unwrap();
    let error = store
        .claim(&super::identity("key"), &super::request())
        .await
        .unwrap_err();
    refused(&error, StoreErrorKind::Config, "run `semel migrate");
    foreign(&path)
        .execute_batch("ALTER TABLE away RENAME TO semel")
        .unwrap();
    acquire(&store, "other").await;
}

#[tokio::test]
async fn only_stores_for_tests_are_cleared() {
    let (_directory, path) = file();
    let store = SqliteOptions::new()
        .schema(Schema::Create)
        .open(&path)
        .unwrap();
    let token = acquire(&store, "key").await.token;
    super::complete(&store, "key", &token, b"body").await;
    refused(
        &store.clear(false).await.unwrap_err(),
        StoreErrorKind::Config,
        "for tests",
    );
    replayed(&store, "key").await;
    store.clear(true).await.unwrap();
    acquire(&store, "key").await;
}

#[tokio::test]
async fn errors_of_urls_name_the_scheme_only() {
    let url = "sqlite:/nowhere/x.db?table=hunter2%20";
    let error = semel_stores::open(url, &OpenOptions::default())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Invalid { .. }), "{error:?}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}
