//! What a probe finds.

use semel::StoreErrorKind;
use semel::store::{Durability, Probe, Store as _};
use semel_testkit::servers::{Postgres, Server as _};

use super::{client, open};

async fn probed(settings: &[&str], parameters: &str) -> Probe {
    let server = Postgres::start(settings).unwrap();
    let store = open(&format!("{}?{parameters}", server.url())).await;
    store.probe().await.unwrap()
}

#[track_caller]
fn warns(probe: &Probe, about: &str) {
    let found = probe.warnings.iter().any(|w| w.contains(about));
    assert!(found, "{about}: {:?}", probe.warnings);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_usual_settings_survive_a_loss_of_power() {
    let probe = probed(&[], "").await;
    assert_eq!(
        (probe.store, probe.durability),
        ("postgres", Durability::Power)
    );
    assert_eq!(probe.warnings, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_are_told() {
    let off = "options=-c%20synchronous_commit%3Doff";
    let probe = probed(&["fsync=off", "full_page_writes=off"], off).await;
    assert_eq!(probe.durability, Durability::Process);
    for about in ["synchronous_commit", "fsync", "full_page_writes"] {
        warns(&probe, about);
    }
    let probe = probed(&["fsync=off"], "").await;
    assert_eq!(probe.durability, Durability::Crash);
    let isolation = ["default_transaction_isolation=serializable"];
    let probe = probed(&isolation, "").await;
    assert_eq!(probe.warnings, Vec::<String>::new());
    let probe = probed(&isolation, "prepared=off").await;
    warns(&probe, "default_transaction_isolation");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlogged_table_is_told() {
    let server = Postgres::start(&[]).unwrap();
    let store = open(&server.url()).await;
    let unlogged = "ALTER TABLE semel_records SET UNLOGGED";
    client(&server.url())
        .await
        .batch_execute(unlogged)
        .await
        .unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Process);
    warns(&probe, "unlogged");
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronous_standbys_count_as_replicas() {
    // `local` does not wait for a standby that is not there.
    let local = "options=-c%20synchronous_commit%3Dlocal";
    let server = Postgres::start(&[]).unwrap();
    open(&server.url()).await;
    let admin = client(&server.url()).await;
    let names = "ALTER SYSTEM SET synchronous_standby_names = 'one'";
    admin.batch_execute(names).await.unwrap();
    admin
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let store = open(&server.url()).await;
    assert_eq!(
        store.probe().await.unwrap().durability,
        Durability::Replicated
    );
    let store = open(&format!("{}?{local}", server.url())).await;
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Power);
    warns(&probe, "synchronous_standby_names");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_refused() {
    let server = Postgres::start(&[]).unwrap();
    let store = open(&format!("{}?connections=1", server.url())).await;
    let admin = client(&server.url()).await;
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    admin.batch_execute(read_only).await.unwrap();
    admin
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let error = store.probe().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("standby"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_encoding_is_refused() {
    let server = Postgres::start(&[]).unwrap();
    client(&server.url())
        .await
        .batch_execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        .await
        .unwrap();
    let store = open(&server.url().replace("/postgres", "/latin")).await;
    let error = store.probe().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("LATIN1"), "{error}");
}
