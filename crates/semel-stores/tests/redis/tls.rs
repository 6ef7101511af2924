//! TLS with an authority of one's own.

use std::path::Path;
use std::process::Command;

use semel::{Store as _, StoreErrorKind};
use semel_stores::OpenError;
use semel_testkit::servers::Redis;

use super::{claim, identity, options};

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(folder)
        .args(arguments.split(' '))
        .output()
        .expect("openssl is installed");
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_known_by_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        at,
        &format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=test -days 2"),
    );
    let extension =
        "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    openssl(
        at,
        &format!(
            "req -x509 {key} -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem -subj /CN=redis -days 2 {extension}"
        ),
    );
    let file = |name: &str| at.join(name).display().to_string();
    // Below the ports that the system gives out: the server takes one of those beside it.
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (first..32_000).find(free).unwrap().to_string();
    let (cert, secret, authority) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let _server = Redis::start(&[
        "--appendonly",
        "yes",
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &secret,
        "--tls-ca-cert-file",
        &authority,
        "--tls-auth-clients",
        "no",
    ])
    .unwrap();
    let url = format!("rediss://127.0.0.1:{port}");
    let store = options()
        .open(&format!("{url}?ca={authority}"))
        .await
        .unwrap();
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    // The subscriber, too.
    let wait = store.wait(
        identity.digest(),
        own.token.fence,
        std::time::Duration::from_millis(20),
    );
    wait.await.unwrap();

    // Nobody known signed it.
    assert!(options().open(&url).await.is_err());
    match options().open(&format!("{url}?ca=/nowhere.pem")).await {
        Err(OpenError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::Config),
        other => panic!("{other:?}"),
    }
}
