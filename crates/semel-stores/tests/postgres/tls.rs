//! TLS, as `sslmode` says.

use semel::store::Store as _;
use semel_stores::{OpenOptions, Schema};
use semel_testkit::servers::{Postgres, Server as _};

use super::client;
use crate::certificates::{Authority, postgres};

/// Whether connections of semel's are encrypted, or why there is none.
async fn opened(server: &Postgres, host: &str, parameters: &str) -> Result<bool, String> {
    let url = server.url().replace("127.0.0.1", host);
    let options = OpenOptions::default();
    let mut schema = options.clone();
    schema.schema = Schema::Create;
    let url = format!("{url}?connections=1&{parameters}");
    let store = semel_stores::open(&url, &schema)
        .await
        .map_err(|e| e.to_string())?;
    store.get(super::identity("a-key").digest()).await.unwrap();
    // The latest: those of a store that was closed before may not have ended.
    let query = "SELECT s.ssl FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid)
        WHERE a.application_name = 'semel' ORDER BY a.backend_start DESC LIMIT 1";
    let row = client(&server.url())
        .await
        .query_one(query, &[])
        .await
        .unwrap();
    let encrypted = row.get(0);
    store.close().await.unwrap();
    Ok(encrypted)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_checks_what_it_says() {
    let authority = Authority::new();
    let access = "host all all all trust";
    let server = postgres::server(&authority, &["localhost"], &[], access).await;
    let root = format!("sslrootcert={}", authority.file());
    let (name, number) = ("localhost", "127.0.0.1");
    assert_eq!(opened(&server, number, "sslmode=disable").await, Ok(false));
    assert_eq!(opened(&server, number, "").await, Ok(true));
    assert_eq!(opened(&server, number, "sslmode=require").await, Ok(true));
    for (host, parameters) in [
        (name, format!("sslmode=verify-full&{root}")),
        (number, format!("sslmode=verify-ca&{root}")),
        (number, format!("sslmode=require&{root}")),
    ] {
        assert_eq!(
            opened(&server, host, &parameters).await,
            Ok(true),
            "{parameters}"
        );
    }
    for (host, parameters) in [
        (number, format!("sslmode=verify-full&{root}")),
        (name, "sslmode=verify-full".to_owned()),
        (name, "sslmode=verify-ca".to_owned()),
    ] {
        let error = opened(&server, host, &parameters).await.unwrap_err();
        assert!(error.contains("TLS"), "{parameters}: {error}");
    }
    let error = opened(
        &server,
        name,
        "sslmode=verify-full&sslrootcert=/nowhere.pem",
    )
    .await;
    assert!(error.unwrap_err().contains("sslrootcert"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_where_it_is_wanted() {
    let server = Postgres::start(&[]).unwrap();
    assert_eq!(opened(&server, "127.0.0.1", "").await, Ok(false));
    let error = opened(&server, "127.0.0.1", "sslmode=require")
        .await
        .unwrap_err();
    assert!(error.contains("TLS"), "{error}");
}
