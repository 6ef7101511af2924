//! In the application's own file.

use semel::{Store, StoreErrorKind};
use semel_stores::SqliteOptions;

use super::{acquire, complete, file, foreign, identity, open, options, replayed};

const APP: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT);
    INSERT INTO orders (what) VALUES ('tea');
";

fn orders(path: &std::path::Path) -> i64 {
    foreign(path)
        .query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
        .unwrap()
}

fn mode(path: &std::path::Path) -> String {
    foreign(path)
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap()
}

#[tokio::test]
async fn its_journal_mode_is_not_changed_unasked() {
    let (_directory, path) = file();
    foreign(&path).execute_batch(APP).unwrap();
    let error = options().open(&path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    let message = error.to_string();
    assert!(
        message.contains("`delete`") && message.contains("journal=wal"),
        "{message}"
    );
    assert_eq!(mode(&path), "delete");
    let tables: i64 = foreign(&path)
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1, "nothing was made");

    let store = options().convert_to_wal().open(&path).unwrap();
    acquire(&store, "key").await;
    assert_eq!((mode(&path), orders(&path)), ("wal".into(), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_write_at_the_same_time() {
    let (_directory, path) = file();
    let app = foreign(&path);
    app.execute_batch("PRAGMA journal_mode = wal").unwrap();
    app.execute_batch(APP).unwrap();
    app.busy_timeout(std::time::Duration::from_secs(10))
        .unwrap();
    let store = open(&path);
    let orders_made = std::thread::spawn(move || {
        for _ in 0..200 {
            app.execute("INSERT INTO orders (what) VALUES ('more tea')", [])
                .unwrap();
        }
    });
    for n in 0..200 {
        let key = format!("key-{n}");
        let token = acquire(&store, &key).await.token;
        complete(&store, &key, &token, b"done").await;
    }
    orders_made.join().unwrap();
    assert_eq!(orders(&path), 201);
    assert_eq!(store.purge(10).await.unwrap().removed, 0);
}

#[tokio::test]
async fn stores_of_two_names_do_not_meet() {
    let (_directory, path) = file();
    let (one, two) = (
        options().table("one").open(&path).unwrap(),
        options().table("two").open(&path).unwrap(),
    );
    let token = acquire(&one, "key").await.token;
    complete(&one, "key", &token, b"one").await;
    acquire(&two, "key").await;
    assert_eq!(replayed(&one, "key").await, &b"one"[..]);
    let error = SqliteOptions::new().open(&path).unwrap_err();
    assert!(error.to_string().contains("no tables `semel`"), "{error}");
}

#[tokio::test]
async fn operators_read_rows() {
    let (_directory, path) = file();
    let store = open(&path);
    let token = acquire(&store, "a-key-of-some-length").await.token;
    complete(&store, "a-key-of-some-length", &token, b"body").await;
    let (scope, operation, hint, state, code): (String, String, String, String, i64) =
        foreign(&path)
            .query_row(
                "SELECT json_extract(scope, '$[0]'), operation, key_hint, state, code FROM semel",
                [],
                |row| {
                    Ok((
                        row.get(0)?,
                        row.get(1)?,
                        row.get(2)?,
                        row.get(3)?,
                        row.get(4)?,
                    ))
                },
            )
            .unwrap();
    assert_eq!(
        (&*scope, &*operation, &*state, code),
        ("tenant", "order", "completed", 0)
    );
    assert!(!hint.contains("a-key-of-some-length"), "{hint}");
    let plan = |sql: &str| -> String {
        foreign(&path)
            .query_row(&format!("EXPLAIN QUERY PLAN {sql}"), [], |row| row.get(3))
            .unwrap()
    };
    let lookup = plan("SELECT * FROM semel WHERE digest = x'00'");
    assert!(lookup.contains("USING INDEX"), "{lookup}");
    let purge =
        plan("SELECT id FROM semel WHERE purge_at IS NOT NULL AND purge_at <= 5 ORDER BY purge_at");
    assert!(purge.contains("semel_by_purge"), "{purge}");
    let stuck = plan("SELECT * FROM semel WHERE state = 'unknown' AND id > 5 ORDER BY id");
    assert!(stuck.contains("semel_by_state"), "{stuck}");
    assert!(
        store
            .get(identity("a-key-of-some-length").digest())
            .await
            .unwrap()
            .is_some()
    );
}
