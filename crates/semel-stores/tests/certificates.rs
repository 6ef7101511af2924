//! Certificates of one's own: what a client shows, whose certificate it takes, and what a probe says
//! of connections on which nobody is checked.

#![cfg_attr(
    not(all(
        feature = "mysql",
        feature = "nats",
        feature = "postgres",
        feature = "redis"
    )),
    allow(dead_code, reason = "not each store needs all")
)]

use std::net::UdpSocket;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use semel::store::{Claim, ClaimRequest, Fenced, Nonce, Retention, StoreExt as _};
use semel::{AnyStore, Fingerprint, Identity, Key, Outcome, Scope, Store as _, StoreErrorKind};
use semel_stores::{OpenError, OpenOptions, Schema, check_url};
use tempfile::TempDir;

/// Who signs certificates, and the folder that they are in.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of a certificate and of its key.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The file of its own certificate.
    pub(crate) fn file(&self) -> String {
        self.path("ca.pem")
    }

    /// Signs for these names or addresses, the first of which is the common name.
    pub(crate) fn sign(&self, names: &[&str]) -> Signed {
        let all = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(all.collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, names[0]);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let signed = Signed {
            certificate: self.path(&format!("{}.crt", names[0])),
            key: self.path(&format!("{}.key", names[0])),
        };
        std::fs::write(&signed.certificate, certificate.pem()).unwrap();
        std::fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }
}

/// An address of this machine that is not its loopback's.
fn outer_address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Sends nothing: the system only chooses the address that it would send from.
    socket
        .connect("198.51.100.1:9")
        .expect("this machine has an address besides its loopback's");
    socket.local_addr().unwrap().ip().to_string()
}

async fn open(url: &str) -> Result<AnyStore, OpenError> {
    let mut options = OpenOptions::default();
    options.schema = Schema::Create;
    semel_stores::open(url, &options).await
}

/// A claim and its completion, by the store of this URL.
async fn works(url: &str) {
    let store = open(url).await.unwrap_or_else(|e| panic!("{url}: {e}"));
    let key = Key::new("a-key-of-some-length").unwrap();
    let identity = Identity::new(Scope::new(["tenant"]), "order", key);
    let lease = Duration::from_secs(30);
    let request = ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b"body"), lease);
    let Claim::Acquired(claimed) = store.claim(&identity, &request).await.unwrap() else {
        panic!("not acquired");
    };
    let outcome = Outcome::success(b"done");
    let done = store.complete(
        identity.digest(),
        &claimed.token,
        &outcome,
        Retention::ORDER,
    );
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    store.close().await.unwrap();
}

/// What is said where a store cannot be opened for want of a setting.
async fn refused(url: &str) -> String {
    match open(url).await {
        Err(OpenError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Config, "{url}: {error}");
            error.to_string()
        }
        Err(other) => panic!("{url}: {other}"),
        Ok(_) => panic!("{url} opened"),
    }
}

#[track_caller]
fn is_wrong(url: &str, says: &str) {
    let message = check_url(url).expect_err(url).to_string();
    assert!(message.contains(says), "{url}: {message}");
}

/// The warnings about the connection: `None` where there is none.
async fn warned(url: &str) -> Option<String> {
    let store = open(url).await.unwrap_or_else(|e| panic!("{url}: {e}"));
    let probe = store.probe().await.unwrap();
    store.close().await.unwrap();
    let about = |warning: &String| warning.starts_with("The connection");
    probe.warnings.into_iter().find(about)
}

#[track_caller]
fn says(warning: Option<&String>, what: &str, remedy: &str) {
    let warning = warning.expect(what);
    assert!(warning.contains(what), "{warning}");
    assert!(warning.contains(remedy), "{warning}");
}

const PLAIN: &str = "is not encrypted";
const ANYBODY: &str = "the server is not authenticated";

#[cfg(feature = "postgres")]
pub(crate) mod postgres {
    use std::process::Command;

    use semel_testkit::servers::{Postgres, Server as _};

    use super::*;

    /// A server whose certificate `authority` signed, and which takes those that it signs. `access`
    /// is its `pg_hba.conf`.
    pub(crate) async fn server(
        authority: &Authority,
        names: &[&str],
        settings: &[&str],
        access: &str,
    ) -> Postgres {
        let server = Postgres::start(settings).unwrap();
        let data = server.folder();
        let own = authority.sign(names);
        for (from, to) in [
            (own.certificate, "server.crt"),
            (own.key, "server.key"),
            (authority.file(), "root.crt"),
        ] {
            let to = data.join(to);
            std::fs::copy(from, &to).unwrap();
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
        let admin = crate::postgres::client(&server.url()).await;
        std::fs::write(data.join("pg_hba.conf"), format!("{access}\n")).unwrap();
        for command in [
            "ALTER SYSTEM SET ssl = on",
            "ALTER SYSTEM SET ssl_ca_file = 'root.crt'",
            "SELECT pg_reload_conf()",
        ] {
            admin.batch_execute(command).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        server
    }

    fn url(server: &Postgres, host: &str, parameters: &str) -> String {
        let port = server.address().port();
        format!("postgres://semel@{host}:{port}/postgres?connections=1&{parameters}")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_logs_in_by_its_certificate() {
        let (authority, foreign) = (Authority::new(), Authority::new());
        let server = server(&authority, &["localhost"], &[], "hostssl all all all cert").await;
        let url = |root: &Authority, client: Option<&Signed>| {
            let client = client.map_or_else(String::new, |Signed { certificate, key }| {
                format!("&sslcert={certificate}&sslkey={key}")
            });
            let root = root.file();
            let parameters = format!("sslmode=verify-full&sslrootcert={root}{client}");
            url(&server, "localhost", &parameters)
        };
        let client = authority.sign(&["semel"]);
        works(&url(&authority, Some(&client))).await;

        let none = refused(&url(&authority, None)).await;
        assert!(none.contains("valid client certificate"), "{none}");
        let another = refused(&url(&authority, Some(&authority.sign(&["other"])))).await;
        assert!(another.contains("certificate authentication"), "{another}");
        let unknown = refused(&url(&authority, Some(&foreign.sign(&["semel"])))).await;
        assert!(unknown.contains("TLS"), "{unknown}");
        let server = refused(&url(&foreign, Some(&client))).await;
        assert!(server.contains("TLS"), "{server}");
        let mixed = Signed {
            certificate: client.certificate.clone(),
            key: foreign.sign(&["key"]).key,
        };
        let mixed = refused(&url(&authority, Some(&mixed))).await;
        assert!(mixed.contains("`sslkey`"), "{mixed}");
        let nowhere = Signed {
            certificate: "/nowhere.pem".into(),
            ..client
        };
        let nowhere = refused(&url(&authority, Some(&nowhere))).await;
        assert!(nowhere.contains("`sslcert`"), "{nowhere}");
        assert!(nowhere.contains("/nowhere.pem"), "{nowhere}");
    }

    #[test]
    fn parameters_that_do_not_go_together_are_explained() {
        let url = "postgres://me@h/d";
        for (parameters, says) in [
            ("sslcert=a.pem", "`sslcert` needs `sslkey`"),
            ("sslkey=a.pem", "`sslkey` needs `sslcert`"),
            (
                "sslmode=disable&sslcert=a.pem&sslkey=b.pem",
                "`sslmode` is `disable`",
            ),
            ("sslmode=require&sslrootcert=system", "`verify-full`"),
            ("sslmode=verify-ca&sslrootcert=system", "`verify-full`"),
        ] {
            is_wrong(&format!("{url}?{parameters}"), says);
        }
        for parameters in [
            "sslcert=a.pem&sslkey=b.pem",
            "sslrootcert=system",
            "sslmode=verify-full&sslrootcert=system",
        ] {
            check_url(&format!("{url}?{parameters}")).unwrap();
        }
    }

    const URL: &str = "SEMEL_TEST_SYSTEM_ROOTS_URL";

    /// A test only so that the test program can start itself with other roots of the system.
    #[tokio::test]
    async fn by_the_systems_roots() {
        if let Ok(url) = std::env::var(URL) {
            works(&url).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_systems_roots_are_trusted_where_that_is_asked_for() {
        let authority = Authority::new();
        let access = "hostssl all all all trust";
        let server = server(&authority, &["localhost"], &[], access).await;
        let url = |host| url(&server, host, "sslrootcert=system");
        let trusted = |url: String, trusted: &str| {
            let done = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "certificates::postgres::by_the_systems_roots"])
                .env(URL, url)
                .env("SSL_CERT_FILE", trusted)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(
                said.contains("1 passed") || said.contains("1 failed"),
                "{said}"
            );
            (done.status.success(), said)
        };
        let (works, said) = trusted(url("localhost"), &authority.file());
        assert!(works, "{said}");
        // As libpq: who trusts so many looks at the name.
        assert!(!trusted(url("127.0.0.1"), &authority.file()).0);
        assert!(!trusted(url("localhost"), &Authority::new().file()).0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_not_checked_is_told() {
        let (authority, outer) = (Authority::new(), outer_address());
        let names = ["localhost", &outer];
        let settings = ["listen_addresses=0.0.0.0"];
        let server = server(&authority, &names, &settings, "host all all all trust").await;
        let root = authority.file();
        let warned = |parameters: String| {
            let url = url(&server, &outer, &parameters);
            async move { warned(&url).await }
        };
        let remedy = "sslmode=verify-full";
        says(
            warned("sslmode=disable".into()).await.as_ref(),
            PLAIN,
            remedy,
        );
        for parameters in ["", "sslmode=prefer", "sslmode=require"] {
            says(warned(parameters.into()).await.as_ref(), ANYBODY, remedy);
        }
        for mode in ["require", "verify-ca", "verify-full"] {
            let warning = warned(format!("sslmode={mode}&sslrootcert={root}")).await;
            assert_eq!(warning, None, "{mode}");
        }
        // On this machine nobody is in between.
        assert_eq!(super::warned(&url(&server, "127.0.0.1", "")).await, None);
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use semel_testkit::servers::{MariaDb, Server as _};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_not_checked_is_told() {
        let (authority, outer) = (Authority::new(), outer_address());
        let own = authority.sign(&["localhost", &outer]);
        let settings = [
            format!("ssl-cert={}", own.certificate),
            format!("ssl-key={}", own.key),
            "bind-address=0.0.0.0".to_owned(),
        ];
        let server = MariaDb::start(&settings.each_ref().map(String::as_str)).unwrap();
        let url = |host: &str, parameters: &str| {
            let port = server.address().port();
            format!("mysql://semel:semel@{host}:{port}/semel?connections=1&{parameters}")
        };
        let ca = format!("ssl-ca={}", authority.file());
        let remedy = "ssl-mode=verify_identity";
        let warning = warned(&url(&outer, "ssl-mode=disabled")).await;
        says(warning.as_ref(), PLAIN, remedy);
        // The driver trusts public roots beside `ssl-ca`, and these sign for everybody.
        let chain = format!("ssl-mode=verify_ca&{ca}");
        for parameters in ["", "ssl-mode=preferred", "ssl-mode=required", &chain] {
            let warning = warned(&url(&outer, parameters)).await;
            says(warning.as_ref(), ANYBODY, remedy);
        }
        let checked = url(&outer, &format!("ssl-mode=verify_identity&{ca}"));
        assert_eq!(warned(&checked).await, None);
        for parameters in ["", "ssl-mode=disabled"] {
            assert_eq!(warned(&url("127.0.0.1", parameters)).await, None);
        }
    }
}

#[cfg(feature = "redis")]
pub(crate) mod redis {
    use semel_testkit::servers::{Redis, Server as _};

    use super::*;

    /// A server that speaks TLS on this port beside its own. Whether clients must show a certificate
    /// is `yes` or `no`.
    pub(crate) fn server(authority: &Authority, clients: &str) -> (Redis, u16) {
        // Below the ports that the system gives out: the server takes one of those beside it.
        let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
        let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (first..32_000).find(free).unwrap();
        let own = authority.sign(&["127.0.0.1"]);
        let server = Redis::start(&[
            "--appendonly",
            "yes",
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &own.certificate,
            "--tls-key-file",
            &own.key,
            "--tls-ca-cert-file",
            &authority.file(),
            "--tls-auth-clients",
            clients,
        ]);
        (server.unwrap(), port)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_is_known_by_its_certificate() {
        let (authority, foreign) = (Authority::new(), Authority::new());
        let (_server, port) = server(&authority, "yes");
        let url = |root: &Authority, client: Option<&Signed>| {
            let client = client.map_or_else(String::new, |Signed { certificate, key }| {
                format!("&cert={certificate}&key={key}")
            });
            format!("rediss://127.0.0.1:{port}?ca={}{client}", root.file())
        };
        let client = authority.sign(&["semel"]);
        works(&url(&authority, Some(&client))).await;

        let none = refused(&url(&authority, None)).await;
        assert!(none.contains("TLS"), "{none}");
        assert!(none.contains("CertificateRequired"), "{none}");
        let unknown = refused(&url(&authority, Some(&foreign.sign(&["semel"])))).await;
        assert!(unknown.contains("TLS"), "{unknown}");
        let server = refused(&url(&foreign, Some(&client))).await;
        assert!(server.contains("TLS"), "{server}");
        assert!(server.contains("invalid peer certificate"), "{server}");
        let swapped = Signed {
            certificate: client.key.clone(),
            key: client.certificate.clone(),
        };
        let swapped = refused(&url(&authority, Some(&swapped))).await;
        assert!(swapped.contains("PEM"), "{swapped}");
        let nowhere = Signed {
            key: "/nowhere.pem".into(),
            ..client
        };
        let nowhere = refused(&url(&authority, Some(&nowhere))).await;
        assert!(nowhere.contains("/nowhere.pem"), "{nowhere}");
    }

    #[test]
    fn parameters_that_do_not_go_together_are_explained() {
        for (url, says) in [
            ("rediss://h?cert=a.pem", "`cert` needs `key`"),
            ("rediss://h?key=a.pem", "`key` needs `cert`"),
            ("redis://h?ca=a.pem", "need TLS"),
            ("redis://h?cert=a.pem&key=b.pem", "need TLS"),
            ("redis-cluster://h?ca=a.pem", "need TLS"),
            ("redis-cluster://h?tls=no&ca=a.pem", "need TLS"),
        ] {
            is_wrong(url, says);
        }
        check_url("rediss://h?cert=a.pem&key=b.pem").unwrap();
        check_url("redis-cluster://h?tls=yes&ca=a.pem").unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_others_can_read_is_told() {
        let authority = Authority::new();
        let bind = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        let plain = Redis::start(&bind).unwrap();
        let url = |host: &str| format!("redis://{host}:{}", plain.address().port());
        let warning = warned(&url(&outer_address())).await;
        says(warning.as_ref(), PLAIN, "rediss://");
        let (_server, port) = server(&authority, "no");
        let secure = format!("rediss://127.0.0.1:{port}?ca={}", authority.file());
        for url in [url("localhost"), secure] {
            assert_eq!(warned(&url).await, None, "{url}");
        }
    }
}

#[cfg(feature = "nats")]
mod nats {
    use super::*;
    use crate::nats::Own;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_is_known_by_its_certificate() {
        let (authority, foreign) = (Authority::new(), Authority::new());
        let own = authority.sign(&["localhost", "127.0.0.1"]);
        let settings = format!(
            "jetstream {{ store_dir: \"DATA\" }}\n\
             tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}\n",
            own.certificate,
            own.key,
            authority.file()
        );
        let server = Own::start(&settings);
        let url = |root: &Authority, client: Option<&Signed>| {
            let client = client.map_or_else(String::new, |Signed { certificate, key }| {
                format!("&cert={certificate}&key={key}")
            });
            let root = root.file();
            format!("nats://{}/semel?tls=on&ca={root}{client}", server.address)
        };
        let client = authority.sign(&["semel"]);
        works(&url(&authority, Some(&client))).await;

        for (root, client) in [
            (&authority, None),
            (&authority, Some(foreign.sign(&["semel"]))),
            (&foreign, Some(client)),
        ] {
            let message = refused(&url(root, client.as_ref())).await;
            assert!(message.contains("TLS"), "{message}");
        }
    }

    #[test]
    fn parameters_that_do_not_go_together_are_explained() {
        for (parameters, says) in [
            ("tls=on&cert=a.pem", "`cert` needs `key`"),
            ("tls=on&key=a.pem", "`key` needs `cert`"),
            ("ca=a.pem", "need `tls=on`"),
            ("cert=a.pem&key=b.pem", "need `tls=on`"),
            ("tls=off&cert=a.pem&key=b.pem", "need `tls=on`"),
        ] {
            is_wrong(&format!("nats://h/semel?{parameters}"), says);
        }
        check_url("nats://h/semel?tls=on&ca=c.pem&cert=a.pem&key=b.pem").unwrap();
    }
}
