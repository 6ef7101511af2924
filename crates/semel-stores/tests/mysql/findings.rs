//! What probing says, what is refused, and URLs.

use std::time::Duration;

use semel::store::{Clear as _, Durability};
use semel::{Store as _, StoreErrorKind};
use semel_stores::{MysqlOptions, OpenOptions, Schema, check_url};
use semel_testkit::servers::Server as _;

use super::{acquire, ask, claim, common, identity, link, open, options, own, table};

#[tokio::test]
async fn durable_settings_survive_a_loss_of_power() {
    let store = open(&common().await).await;
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.store, "mysql");
    assert_eq!(probe.durability, Durability::Power);
    let [off] = &*probe.warnings else {
        panic!("{probe:?}")
    };
    assert!(off.contains("The binary log is off"), "{off}");
}

#[tokio::test]
async fn weaker_settings_are_said() {
    let server = own(&[
        "log-bin",
        "binlog-format=row",
        "sync-binlog=0",
        "server-id=1",
    ])
    .await;
    let store = open(&server.url()).await;
    let mut root = link(&server.url()).await;
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Crash);
    assert!(probe.warnings[0].contains("sync_binlog is 0"), "{probe:?}");
    ask(&mut root, "SET GLOBAL sync_binlog=1").await;
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Power);
    assert_eq!(probe.warnings, Vec::<String>::new());
    for (value, durability) in [(2, Durability::Crash), (0, Durability::Process)] {
        let set = format!("SET GLOBAL innodb_flush_log_at_trx_commit={value}");
        ask(&mut root, set).await;
        let probe = store.probe().await.unwrap();
        assert_eq!(probe.durability, durability);
        let said = format!("innodb_flush_log_at_trx_commit is {value}");
        assert!(probe.warnings[0].contains(&said), "{probe:?}");
    }

    // Steps work with a binary log of rows, and not with one of statements.
    acquire(&store, "row").await;
    ask(&mut root, "SET GLOBAL binlog_format='STATEMENT'").await;
    let refused = store.probe().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    assert!(refused.to_string().contains("binlog_format"), "{refused}");
}

#[tokio::test]
async fn a_replica_is_refused() {
    let server = own(&["log-bin", "binlog-format=row", "sync-binlog=1"]).await;
    let store = open(&server.url()).await;
    let mut root = link(&server.url()).await;
    ask(&mut root, "CREATE USER app@'%' IDENTIFIED BY 'app'").await;
    ask(&mut root, "GRANT ALL ON semel.* TO app@'%'").await;
    let app = server.url().replace("semel:semel@", "app:app@");
    ask(&mut root, "SET GLOBAL read_only=1").await;
    let refused = store.probe().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let refused = options(&app).open().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);

    // One that is writable, and follows another.
    ask(&mut root, "SET GLOBAL read_only=0").await;
    ask(
        &mut root,
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1',MASTER_PORT=1,MASTER_USER='nobody'",
    )
    .await;
    let probe = store.probe().await.unwrap();
    assert!(probe.warnings[0].contains("stopped"), "{probe:?}");
    ask(&mut root, "SET GLOBAL server_id=2").await;
    ask(&mut root, "START SLAVE").await;
    let refused = store.probe().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    assert!(refused.to_string().contains("replicates"), "{refused}");
    let refused = options(&server.url()).open().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    let accepted = options(&format!("{}?unsafe=warn", server.url()))
        .open()
        .await
        .unwrap();
    acquire(&accepted, "accepted").await;
    let probe = accepted.probe().await.unwrap();
    assert!(probe.warnings[0].contains("replicates"), "{probe:?}");
    ask(&mut root, "STOP SLAVE").await;
    ask(&mut root, "RESET SLAVE ALL").await;
    assert_eq!(store.probe().await.unwrap().warnings, Vec::<String>::new());

    // A server that turned into a replica under an open store says so at each step.
    let store = options(&app).open().await.unwrap();
    acquire(&store, "before").await;
    ask(&mut root, "SET GLOBAL read_only=1").await;
    let refused = claim(&store, "after").await.unwrap_err();
    // Which may be over in a moment: an outcome is told again until it is taken.
    assert_eq!(refused.kind(), StoreErrorKind::NotApplied);
    assert!(refused.to_string().contains("primary"), "{refused}");
    ask(&mut root, "SET GLOBAL read_only=0").await;
    acquire(&store, "after").await;
}

#[tokio::test]
async fn missing_privileges_are_named() {
    let url = common().await;
    let mut root = link(&url).await;
    let (user, table) = (table(), table());
    let opened = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    opened.clone().migrate().await.unwrap();
    ask(
        &mut root,
        format!("CREATE USER {user}@'%' IDENTIFIED BY 'x'"),
    )
    .await;
    ask(
        &mut root,
        format!("GRANT SELECT,INSERT,UPDATE ON semel.* TO {user}@'%'"),
    )
    .await;
    let store = opened.user(&user, "x").open().await.unwrap();
    let refused = store.probe().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    assert!(refused.to_string().contains("DELETE"), "{refused}");
    ask(&mut root, format!("GRANT DELETE ON semel.* TO {user}@'%'")).await;
    let store = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    let store = store.user(&user, "x").open().await.unwrap();
    let probe = store.probe().await.unwrap();
    assert!(probe.warnings[1].contains("REPLICA MONITOR"), "{probe:?}");
}

#[tokio::test]
async fn wrong_passwords_and_addresses_are_typed_and_never_repeated() {
    let url = common().await;
    let wrong = url.replace("semel:semel@", "semel:hunter2@");
    let refused = options(&wrong).open().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    let all = format!("{refused} {refused:?} {:?}", options(&wrong));
    assert!(!all.contains("hunter2"), "{all}");
    let missing = url.replace("/semel", "/nothing");
    let refused = options(&missing).open().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config, "{refused}");
    let nobody = options("mysql://me:hunter2@127.0.0.1:1/semel").open();
    let refused = nobody.await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotApplied);
    let all = format!("{refused} {refused:?}");
    assert!(!all.contains("hunter2"), "{all}");
    let tls = format!("{url}?ssl-mode=required");
    let refused = options(&tls).open().await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config, "{refused}");
}

#[test]
fn urls_are_checked() {
    for good in [
        "mysql://host/db",
        "mysql://me:p%40ss@host:3307/db?table=t_1&timeout=500ms&connections=4&schema=create",
        "mysql://host/db?ssl-mode=verify_ca&ssl-ca=/ca.pem&timeout=2m",
    ] {
        check_url(good).unwrap_or_else(|e| panic!("{good}: {e}"));
    }
    for (bad, says) in [
        ("mysql:hunter2", "names no host or database"),
        ("mysql://me:hunter2@host", "names no host or database"),
        (
            "mysql://me:hunter2@host/db?tabel=x",
            "no parameter `tabel`; there are schema, table",
        ),
        ("mysql://me:hunter2@host/db?hunter2!=x", "no such parameter"),
        ("mysql://me:hunter2@host/db?table=a`b", "`table` must be"),
        ("mysql://me:hunter2@host/db?table=", "`table` must be"),
        ("mysql://me:hunter2@host/db?timeout=5", "`timeout` must be"),
        ("mysql://me:hunter2@host/db?timeout=1h", "`timeout` must be"),
        ("mysql://me:hunter2@host/db?timeout=0s", "`timeout` must be"),
        (
            "mysql://me:hunter2@host/db?timeout=4294967295m",
            "`timeout` must be",
        ),
        (
            "mysql://me:hunter2@host/db?connections=0",
            "`connections` must be",
        ),
        (
            "mysql://me:hunter2@host/db?schema=maybe",
            "`expect`, `create` or `migrate`",
        ),
        ("mysql://me:hunter2@host/db?ssl-mode=hunter2", "ssl-mode"),
    ] {
        let refused = check_url(bad).unwrap_err().to_string();
        assert!(refused.contains(says), "{bad}: {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    assert!(
        MysqlOptions::from_url("mysql://h/d")
            .unwrap()
            .table(&"x".repeat(49))
            .is_err()
    );
}

#[tokio::test]
async fn opened_by_url_it_makes_its_table_where_told() {
    let url = common().await;
    let table = table();
    let there = format!("{url}?table={table}&connections=2");
    let mut how = OpenOptions::default();
    let refused = semel_stores::open(&there, &how).await.unwrap_err();
    assert!(refused.to_string().contains("semel migrate"), "{refused}");
    how.schema = Schema::Create;
    semel_stores::open(&there, &how).await.unwrap();
    // The URL comes first.
    let other = format!("{url}?table={table}_b&schema=expect");
    assert!(semel_stores::open(&other, &how).await.is_err());
    let store = semel_stores::open(&there, &OpenOptions::default())
        .await
        .unwrap();
    assert_eq!(store.get(identity("none").digest()).await.unwrap(), None);
}

#[tokio::test]
async fn only_a_store_for_tests_is_cleared() {
    let url = common().await;
    let store = open(&url).await;
    acquire(&store, "key").await;
    store.clear(false).await.unwrap();
    acquire(&store, "key").await;
    let table = table();
    let plain = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    let plain = plain.schema(Schema::Create).open().await.unwrap();
    acquire(&plain, "key").await;
    let refused = plain.clear(false).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    plain.clear(true).await.unwrap();
    acquire(&plain, "key").await;
}

#[tokio::test]
async fn the_servers_zone_and_clock_functions_do_not_matter() {
    let server = own(&[
        "default-time-zone=+09:00",
        "sysdate-is-now",
        "sql-mode=ANSI,SIMULTANEOUS_ASSIGNMENT",
    ])
    .await;
    let store = open(&server.url()).await;
    acquire(&store, "key").await;
    let entry = store.get(identity("key").digest()).await.unwrap().unwrap();
    let claimed = Duration::from_micros(entry.record.claimed_at.as_micros());
    #[expect(
        clippy::disallowed_methods,
        reason = "the server's clock is this machine's"
    )]
    let now = std::time::SystemTime::now();
    let apart = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .abs_diff(claimed);
    assert!(apart < Duration::from_mins(1), "{apart:?}");
}
