//! A store's directory or file that goes away while it is used.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{HEALED, NOTICED, lines, metric, shop_and, within};
use crate::support::{Gateway, Shop, get, order, store_in};

async fn is_refused(gateway: &Gateway, key: &str) -> bool {
    let answer = order(gateway.address, key).await;
    answer.status == 503 && answer.problem() == "store-unavailable"
}

/// Replays and new keys are refused within two seconds, which is told once, and nothing is made in
/// the place of what went.
async fn a_store_that_goes_is_noticed(mut gateway: Gateway, shop: &Shop, place: &std::path::Path) {
    assert_eq!(order(gateway.address, "\"done\"").await.status, 201);
    assert!(order(gateway.address, "\"done\"").await.is_replay());
    if place.is_dir() {
        fs::remove_dir_all(place).unwrap();
    } else {
        fs::remove_file(place).unwrap();
    }
    let took = within(NOTICED, "a replay is refused", async || {
        is_refused(&gateway, "\"done\"").await
    })
    .await;
    println!("noticed after {took:?}");
    let orders = shop.placed();
    assert!(is_refused(&gateway, "\"new\"").await);
    assert_eq!(shop.placed(), orders, "it ran unprotected");
    within(NOTICED, "the log", async || {
        !lines(&gateway, "ERROR").is_empty()
    })
    .await;
    let ready = get(gateway.admin, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(
        ready.text().contains("was deleted or moved away"),
        "{}",
        ready.text()
    );
    assert_eq!(metric(&gateway, "semel_store_up").await, "0");
    tokio::time::sleep(NOTICED).await;
    let told = lines(&gateway, "ERROR");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("was deleted or moved away"), "{told:?}");
    assert!(!place.exists(), "it was made anew");
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(1));
    assert!(gateway.log().contains("could not be used at the end"));
}

#[tokio::test]
async fn a_deleted_directory_stops_acknowledgements() {
    let (shop, gateway) = shop_and(&[]).await;
    let place = gateway.directory().path().join("records");
    a_store_that_goes_is_noticed(gateway, &shop, &place).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_deleted_sqlite_file_stops_acknowledgements() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("records.db");
    let url = format!("sqlite:{}", place.display());
    let (shop, gateway) = shop_and(&["--store", &url]).await;
    a_store_that_goes_is_noticed(gateway, &shop, &place).await;
}

#[tokio::test]
async fn a_directory_that_comes_back_is_used_again() {
    let (shop, gateway) = shop_and(&[]).await;
    let place = gateway.directory().path().join("records");
    let aside = gateway.directory().path().join("aside");
    assert_eq!(order(gateway.address, "\"done\"").await.status, 201);
    fs::rename(&place, &aside).unwrap();
    within(NOTICED, "a replay is refused", async || {
        is_refused(&gateway, "\"done\"").await
    })
    .await;
    fs::rename(&aside, &place).unwrap();
    within(HEALED, "a replay", async || {
        order(gateway.address, "\"done\"").await.is_replay()
    })
    .await;
    assert_eq!(shop.placed(), 1);
    super::until_logged(&gateway, "store: works again after").await;
}

/// Whatever the umask says.
#[tokio::test]
async fn what_a_gateway_keeps_is_for_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let shop = Shop::open().await;
    let sqlite = format!("sqlite:{}", directory.path().join("records.db").display());
    for store in [store_in(directory.path()), sqlite] {
        let under = ["sh", "-c", "umask 000; exec \"$0\" \"$@\""];
        let directory = std::sync::Arc::new(tempfile::tempdir().unwrap());
        let gateway = Gateway::start_under(&under, &directory, shop.address, &["--store", &store]);
        assert_eq!(order(gateway.address, "\"k\"").await.status, 201);
    }
    let mut left = vec![directory.path().to_owned()];
    let mut seen = 0;
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let is_directory = entry.file_type().unwrap().is_dir();
            let expected = if is_directory { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{}: {mode:o}", entry.path().display());
            seen += 1;
            if is_directory {
                left.push(entry.path());
            }
        }
    }
    assert!(seen > 6, "{seen}");
}
