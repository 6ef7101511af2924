//! TLS, as `sslmode` says.

use std::path::Path;
use std::process::Command;

use semel::store::Store as _;
use semel_stores::{OpenOptions, Schema};
use semel_testkit::servers::{Postgres, Server as _};

use super::client;

fn openssl(folder: &Path, arguments: &[&str]) {
    let done = Command::new("openssl")
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("openssl is installed: run scripts/setup");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A server with a certificate for `localhost` that a root of its own signed.
async fn server() -> (Postgres, tempfile::TempDir) {
    let server = Postgres::start(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let root = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout root.key \
        -out root.pem -days 2 -subj /CN=root";
    openssl(at, &root.split_whitespace().collect::<Vec<_>>());
    let ask = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key -out \
        server.csr -subj /CN=localhost";
    openssl(at, &ask.split_whitespace().collect::<Vec<_>>());
    std::fs::write(at.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let sign = "x509 -req -in server.csr -CA root.pem -CAkey root.key -CAcreateserial -out \
        server.pem -days 2 -extfile names";
    openssl(at, &sign.split_whitespace().collect::<Vec<_>>());
    let data = server.folder();
    for (from, to) in [("server.pem", "server.crt"), ("server.key", "server.key")] {
        let to = data.join(to);
        std::fs::copy(at.join(from), &to).unwrap();
        // As its other files: read by nobody else.
        let like = data.join("postgresql.conf");
        for program in ["chown", "chmod"] {
            let done = Command::new(program)
                .arg("--reference")
                .arg(&like)
                .arg(&to)
                .status();
            assert!(done.unwrap().success());
        }
    }
    let admin = client(&server.url()).await;
    admin
        .batch_execute("ALTER SYSTEM SET ssl = on")
        .await
        .unwrap();
    admin
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    (server, folder)
}

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
    let query =
        "SELECT bool_and(s.ssl) FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid)
        WHERE a.application_name = 'semel'";
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
    let (server, folder) = server().await;
    let root = format!("sslrootcert={}", folder.path().join("root.pem").display());
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
