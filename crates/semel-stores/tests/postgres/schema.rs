//! Tables and their versions, and the URL.

use semel::StoreErrorKind;
use semel::store::{Store as _, StoreExt as _};
use semel_stores::{
    OpenError, OpenOptions, PostgresOptions, PostgresStore, Schema, check_url, migrate,
};
use semel_testkit::servers::{Kind, Postgres, Server as _, shared};

use super::{acquire, client, open, url};

fn config(error: &OpenError) -> String {
    match error {
        OpenError::Store(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
            error.to_string()
        }
        error => panic!("{error}"),
    }
}

async fn refused(url: &str) -> OpenError {
    let options = OpenOptions::default();
    match semel_stores::open(url, &options).await {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_says_what_to_run() {
    let url = url();
    let error = refused(&url).await;
    assert!(config(&error).contains("semel migrate"), "{error}");
    assert!(config(&error).contains("schema=create"), "{error}");
    semel_stores::open(&format!("{url}&schema=create"), &OpenOptions::default())
        .await
        .unwrap();
    PostgresStore::open(&url).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_done_once() {
    let url = url();
    let options = OpenOptions::default();
    let first = migrate(&url, &options).await.unwrap();
    assert_eq!((first.from, first.to, first.done.len()), (None, 2, 1));
    let second = migrate(&url, &options).await.unwrap();
    assert_eq!((second.from, second.to, second.done.len()), (Some(2), 2, 0));
    let store = open(&url).await;
    acquire(&store, "a-key").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_migrations_at_once_are_one() {
    let url = url();
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let url = url.clone();
            tokio::spawn(async move {
                if n % 2 == 0 {
                    let options = PostgresOptions::from_url(&url).unwrap();
                    options.schema(Schema::Migrate).open().await.unwrap();
                    return 0;
                }
                let done = migrate(&url, &OpenOptions::default()).await.unwrap();
                done.done.len()
            })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        made += task.await.unwrap();
    }
    assert!(made <= 1);
    let table = url.split("table=").nth(1).unwrap();
    let query = format!("SELECT count(*) FROM {table}_versions");
    let row = client(&url).await.query_one(&query, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_version_is_refused() {
    let url = url();
    open(&url).await;
    let table = url.split("table=").nth(1).unwrap();
    let newer = format!("INSERT INTO {table}_versions (version) VALUES (7)");
    client(&url).await.batch_execute(&newer).await.unwrap();
    let error = refused(&url).await;
    assert!(config(&error).contains("version 7"), "{error}");
    let error = migrate(&url, &OpenOptions::default()).await.unwrap_err();
    assert!(config(&error).contains("version 7"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_was_never_released_is_refused() {
    let url = url();
    open(&url).await;
    let table = url.split("table=").nth(1).unwrap();
    let older = format!("UPDATE {table}_versions SET version = 1");
    client(&url).await.batch_execute(&older).await.unwrap();
    for schema in ["", "&schema=create", "&schema=migrate"] {
        let error = refused(&format!("{url}{schema}")).await;
        assert!(config(&error).contains("never released"), "{error}");
    }
    let error = migrate(&url, &OpenOptions::default()).await.unwrap_err();
    assert!(config(&error).contains("never released"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_in_a_schema_of_its_own() {
    let server = shared(Kind::Postgres).unwrap();
    let schema = super::table();
    let make = format!("CREATE SCHEMA {schema}");
    client(&server).await.batch_execute(&make).await.unwrap();
    let store = open(&format!("{server}?table={schema}.records")).await;
    acquire(&store, "a-key").await;
    store.probe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_partitioned_by_hash_works() {
    let url = url();
    let store = open(&url).await;
    let table = url.split("table=").nth(1).unwrap();
    let mut change = format!(
        "ALTER TABLE {table} RENAME TO {table}_old;
         CREATE TABLE {table} (LIKE {table}_old INCLUDING DEFAULTS, PRIMARY KEY (digest))
           PARTITION BY HASH (digest);
         CREATE INDEX ON {table} (purge_at) WHERE purge_at < 'infinity';
         CREATE INDEX ON {table} (digest) WHERE state IN ('in-flight', 'unknown');"
    );
    for part in 0..4 {
        change.push_str(&format!(
            "CREATE TABLE {table}_{part} PARTITION OF {table}
               FOR VALUES WITH (MODULUS 4, REMAINDER {part});"
        ));
    }
    client(&url).await.batch_execute(&change).await.unwrap();
    let brief = semel::store::Retention::new(std::time::Duration::from_millis(1));
    for n in 0..20 {
        let key = format!("parted-{n}");
        let token = acquire(&store, &key).await.token;
        let id = super::identity(&key);
        if n % 2 == 0 {
            let nothing = semel::Outcome::void();
            let done = store.complete(id.digest(), &token, &nothing, brief).await;
            assert_eq!(done.unwrap(), semel::store::Fenced::Applied);
        } else {
            let done = super::complete(&store, &key, &token).await;
            assert_eq!(done, semel::store::Fenced::Applied);
            assert_eq!(super::replayed(&store, &key).await, key.as_bytes());
        }
    }
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(store.purge(100).await.unwrap().removed, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_is_told_what_to_grant() {
    let server = Postgres::start(&[]).unwrap();
    let url = server.url();
    open(&url).await;
    let admin = client(&url).await;
    admin
        .batch_execute("CREATE ROLE guest LOGIN")
        .await
        .unwrap();
    let guest = url.replace("semel@", "guest@");
    let create = format!("{guest}?table=other&schema=create");
    let error = refused(&create).await;
    assert!(config(&error).contains("grant"), "{error}");
    let error = refused(&guest).await;
    assert!(config(&error).contains("grant"), "{error}");
    let half = "GRANT SELECT ON semel_records, semel_records_versions TO guest";
    admin.batch_execute(half).await.unwrap();
    let store = semel_stores::open(&guest, &OpenOptions::default())
        .await
        .unwrap();
    let error = store.probe().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    let error = store
        .claim(&super::identity("a-key"), &super::request())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    assert!(error.to_string().contains("grant"), "{error}");
}

fn chain(error: &OpenError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_never_shown() {
    let server = Postgres::start(&["password_encryption=scram-sha-256"]).unwrap();
    let hba = server.folder().join("pg_hba.conf");
    let admin = client(&server.url()).await;
    admin
        .batch_execute("CREATE ROLE guest LOGIN PASSWORD 'hunter2-right'")
        .await
        .unwrap();
    let rules = "host all guest 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    std::fs::write(hba, rules).unwrap();
    admin
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    // The reload is a signal: it takes a moment.
    for _ in 0..100 {
        let bare = server.url().replace("semel@", "guest@");
        if tokio_postgres::connect(&bare, tokio_postgres::NoTls)
            .await
            .is_err()
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let with = |password: &str| {
        server
            .url()
            .replace("semel@", &format!("guest:{password}@"))
    };
    let error = refused(&with("hunter2")).await;
    config(&error);
    assert!(!chain(&error).contains("hunter2"), "{}", chain(&error));
    // The right one comes as far as the missing table.
    let error = refused(&with("hunter2-right")).await;
    assert!(config(&error).contains("semel migrate"), "{error}");
    let options = PostgresOptions::from_url(&with("hunter2")).unwrap();
    assert!(!format!("{options:?}").contains("hunter2"));
    let error = refused("postgres://me:hunter2@127.0.0.1:1/db").await;
    assert!(!chain(&error).contains("hunter2"), "{}", chain(&error));
    let OpenError::Store(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), StoreErrorKind::NotApplied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there() {
    let url = shared(Kind::Postgres).unwrap();
    let error = refused(&url.replace("/postgres", "/elsewhere")).await;
    assert!(config(&error).contains("database"), "{error}");
}

#[test]
fn urls_are_understood_or_refused_with_a_reason() {
    for parameters in [
        "",
        "?table=a.b&timeout=500ms&connections=2&group=1&prepared=off&listen=off&schema=expect",
        "?sslmode=verify-full&application_name=x&connect_timeout=3",
        "?options=-c%20synchronous_commit%3Doff",
        "?listen=postgres%3A%2F%2Fu%40h%2Fd",
        "?host=one,two&port=1,2",
    ] {
        check_url(&format!("postgres://me:hunter2@host/db{parameters}")).unwrap();
    }
    for (parameters, says) in [
        ("?table=a%22b", "`table` must be"),
        ("?timeout=5", "`timeout` must be"),
        ("?timeout=0s", "`timeout` must be"),
        ("?connections=0", "`connections`"),
        ("?connections=many", "`connections` must be"),
        ("?prepared=maybe", "`prepared` must be"),
        ("?schema=drop", "`schema` must be"),
        ("?sslmode=always", "`sslmode` must be"),
        ("?sslrootcert=/a.pem", "`sslrootcert` needs"),
        ("?listen=nowhere", "`listen` must be"),
        ("?tabel=x", "no parameter `tabel`; there are table, schema"),
        ("?connect_timeout=soon", "connect_timeout"),
    ] {
        let url = format!("postgres://me:hunter2@host/db{parameters}");
        let message = check_url(&url).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}
