//! Migrations.

use semel::store::Fenced;
use semel::{Store as _, StoreErrorKind};
use semel_stores::{MysqlOptions, MysqlStore, Schema};
use sqlx::Row as _;

use super::{acquire, ask, common, complete, link, table};

fn at(url: &str, table: &str) -> MysqlOptions {
    MysqlOptions::from_url(url).unwrap().table(table).unwrap()
}

#[tokio::test]
async fn made_once_and_found_again() {
    let (url, table) = (common().await, table());
    let missing = at(&url, &table).open().await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Config);
    assert!(missing.to_string().contains("semel migrate"), "{missing}");
    let made = at(&url, &table).migrate().await.unwrap();
    assert_eq!((made.from, made.to), (None, 2));
    assert_eq!(made.done.len(), 4, "{made:?}");
    let again = at(&url, &table).migrate().await.unwrap();
    assert_eq!((again.from, again.to, again.done), (Some(2), 2, vec![]));
    let parameters = if url.contains('?') { '&' } else { '?' };
    let store = MysqlStore::open(&format!("{url}{parameters}table={table}")).await;
    store.unwrap().probe().await.unwrap();
}

#[tokio::test]
async fn several_at_once_make_one() {
    let (url, table) = (common().await, table());
    let mut all = tokio::task::JoinSet::new();
    for number in 0..8 {
        let options = at(&url, &table);
        all.spawn(async move {
            if number % 2 == 0 {
                options.migrate().await.unwrap().done.len()
            } else {
                options.schema(Schema::Create).open().await.unwrap();
                0
            }
        });
    }
    let made: usize = all.join_all().await.into_iter().sum();
    assert!(made == 4 || made == 0, "{made}");
    acquire(&at(&url, &table).open().await.unwrap(), "key").await;
}

#[tokio::test]
async fn another_version_is_refused_and_left_alone() {
    let (url, table) = (common().await, table());
    at(&url, &table).migrate().await.unwrap();
    let mut link = link(&url).await;
    for (version, says) in [(3, "newer"), (1, "never released")] {
        ask(
            &mut link,
            format!("UPDATE {table}_schema SET version={version}"),
        )
        .await;
        for schema in [Schema::Expect, Schema::Create, Schema::Migrate] {
            let refused = at(&url, &table).schema(schema).open().await.unwrap_err();
            assert_eq!(refused.kind(), StoreErrorKind::Config);
            assert!(refused.to_string().contains(says), "{refused}");
        }
        assert!(at(&url, &table).migrate().await.is_err());
    }
}

#[tokio::test]
async fn half_a_migration_is_done_again() {
    let (url, table) = (common().await, table());
    at(&url, &table).migrate().await.unwrap();
    let store = at(&url, &table).open().await.unwrap();
    let token = acquire(&store, "kept").await;
    let mut link = link(&url).await;
    // As if it had ended before the last step.
    ask(&mut link, format!("DROP TABLE {table}_schema")).await;
    ask(&mut link, format!("DROP VIEW {table}_readable")).await;
    ask(&mut link, format!("DROP TABLE {table}_versioned")).await;
    let made = at(&url, &table).migrate().await.unwrap();
    assert_eq!(made.from, None);
    let done = complete(&store, "kept", &token).await.unwrap();
    assert_eq!(done, Fenced::Applied);
}

#[tokio::test]
async fn a_database_without_a_table_beside_is_told_to_migrate() {
    let (url, table) = (common().await, table());
    at(&url, &table).migrate().await.unwrap();
    let mut link = link(&url).await;
    ask(&mut link, format!("DROP TABLE {table}_versioned")).await;
    let missing = at(&url, &table).open().await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Config);
    assert!(missing.to_string().contains("semel migrate"), "{missing}");
    at(&url, &table).migrate().await.unwrap();
    at(&url, &table).open().await.unwrap();
}

#[tokio::test]
async fn people_can_read_records() {
    let (url, table) = (common().await, table());
    let store = at(&url, &table)
        .schema(Schema::Create)
        .open()
        .await
        .unwrap();
    let token = acquire(&store, "some-readable-key").await;
    let mut link = link(&url).await;
    let sql = format!(
        "SELECT state,scope,operation,attempt,CAST(YEAR(created_at) AS SIGNED),purge_at IS NULL,\
         outcome_kind,outcome_bytes FROM {table}_readable"
    );
    let row = &ask(&mut link, sql.clone()).await[0];
    assert_eq!(row.get::<String, _>(0), "in-flight");
    assert_eq!(row.get::<String, _>(1), r#"["tests","of \u0000\n'mysql'"]"#);
    assert_eq!(row.get::<String, _>(2), "test");
    assert!(row.get::<i64, _>(4) >= 2026);
    assert_eq!(row.get::<i64, _>(5), 1);
    assert_eq!(row.get::<Option<String>, _>(6), None);
    let done = complete(&store, "some-readable-key", &token).await.unwrap();
    assert_eq!(done, Fenced::Applied);
    let row = &ask(&mut link, sql).await[0];
    assert_eq!(row.get::<String, _>(0), "completed");
    assert_eq!(row.get::<i64, _>(5), 0);
    assert_eq!(row.get::<Option<String>, _>(6).as_deref(), Some("success"));
}
