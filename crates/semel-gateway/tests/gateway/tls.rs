//! TLS towards clients.

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::tls::{Authority, Signed, connect, http2};
use crate::support::{Answer, Gateway, Recorder, Shop, eventually, get};

/// A directory of files, and the flags that name them.
struct Files {
    directory: TempDir,
    flags: Vec<String>,
}

impl Files {
    fn of(signed: &Signed) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = signed.files_in(directory.path());
        let flags = [("--tls-cert", certificate), ("--tls-key", key)];
        let flags = flags.map(|(flag, path)| format!("{flag}={}", path.display()));
        Self {
            directory,
            flags: flags.to_vec(),
        }
    }

    fn and_client_ca(mut self, authority: &Authority) -> Self {
        let path = authority.file_in(self.directory.path());
        self.flags
            .push(format!("--tls-client-ca={}", path.display()));
        self
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn start(&self, upstream: SocketAddr, more: &[&str]) -> Gateway {
        let flags = self.flags.iter().map(String::as_str);
        let flags: Vec<_> = flags.chain(more.iter().copied()).collect();
        Gateway::start(upstream, &flags)
    }
}

fn order(key: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri("https://localhost/orders")
        .header("host", "localhost")
        .header("idempotency-key", key)
        .body(Full::from("{\"item\":1}"))
        .unwrap()
}

/// Sends a request with the HTTP that ALPN chooses.
async fn send(
    gateway: &Gateway,
    client: &TlsConnector,
    mut request: Request<Full<Bytes>>,
) -> Result<Answer, String> {
    let stream = connect(gateway.address, client).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let answer = if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        http2(stream).await.send_request(request).await
    } else {
        *request.uri_mut() = request.uri().path().parse().unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    let (head, body) = answer.map_err(|error| format!("{error:?}"))?.into_parts();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    })
}

#[tokio::test]
async fn clients_speak_tls_with_http_1_and_2() {
    let shop = Shop::open().await;
    let authority = Authority::new();
    let files = Files::of(&authority.sign(&["localhost"]));
    let mut gateway = files.start(shop.address, &[]);
    let both = ["h2", "http/1.1"];
    for (alpn, replay) in [(&both[..], false), (&both[1..], true), (&[], true)] {
        let client = authority.client(alpn, None);
        let answer = send(&gateway, &client, order("\"k\"")).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, replay));
    }
    assert_eq!(shop.placed(), 1);
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(0));
}

#[tokio::test]
async fn the_upstream_is_told_of_https() {
    let upstream = Recorder::start().await;
    let authority = Authority::new();
    let files = Files::of(&authority.sign(&["localhost"]));
    let gateway = files.start(upstream.address, &[]);
    let client = authority.client(&["h2"], None);
    let answer = send(&gateway, &client, order("\"k\"")).await.unwrap();
    assert_eq!(answer.status, 200);
    let seen = upstream.seen();
    assert_eq!(seen[0].values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen[0].values("x-forwarded-host"), ["localhost"]);
    assert!(seen[0].faults.is_empty(), "{seen:?}");
}

/// Who does not get as far as HTTP takes nobody's time, and no room for longer than a while.
#[tokio::test]
async fn clients_that_shake_no_hands_hinder_nobody() {
    let shop = Shop::open().await;
    let authority = Authority::new();
    let files = Files::of(&authority.sign(&["localhost"]));
    let mut gateway = files.start(shop.address, &["--max-connections", "3"]);
    let _mute = TcpStream::connect(gateway.address).await.unwrap();
    let mut plain = TcpStream::connect(gateway.address).await.unwrap();
    plain
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut said = Vec::new();
    plain.read_to_end(&mut said).await.unwrap();
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    let client = authority.client(&["h2"], None);
    assert!(send(&gateway, &client, order("\"k\"")).await.is_ok());
    let metrics = get(gateway.admin, "/metrics").await;
    let failed = "semel_tls_failures_total 1\n";
    assert!(metrics.text().contains(failed), "{}", metrics.text());
    gateway.terminate();
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// The certificate that the gateway shows.
async fn shown(gateway: &Gateway, client: &TlsConnector) -> CertificateDer<'static> {
    let stream = connect(gateway.address, client).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    shown[0].clone().into_owned()
}

#[tokio::test]
async fn certificates_are_replaced_and_kept_if_the_new_ones_are_wrong() {
    let shop = Shop::open().await;
    let authority = Authority::new();
    let [first, second, third] = [(); 3].map(|()| authority.sign(&["localhost"]));
    let files = Files::of(&first);
    let gateway = files.start(shop.address, &[]);
    let client = authority.client(&["http/1.1"], None);
    assert_eq!(shown(&gateway, &client).await, *first.certificate.der());

    // A key that is another certificate's, for as long as somebody takes to notice.
    let other = tempfile::tempdir().unwrap();
    let [_, wrong] = third.files_in(other.path());
    std::fs::rename(wrong, files.path().join("key.pem")).unwrap();
    eventually("the complaint", || {
        let log = gateway.log();
        let said = log.contains("it is not the key of the certificate in --tls-cert");
        std::future::ready(said.then_some(()))
    })
    .await;
    assert_eq!(shown(&gateway, &client).await, *first.certificate.der());
    std::fs::remove_file(files.path().join("cert.pem")).unwrap();
    gateway.hang_up();
    eventually("the second complaint", || {
        std::future::ready(
            gateway
                .log()
                .contains("--tls-cert: cannot read")
                .then_some(()),
        )
    })
    .await;
    assert_eq!(shown(&gateway, &client).await, *first.certificate.der());

    second.files_in(files.path());
    eventually("the new certificate", || async {
        let shown = shown(&gateway, &client).await;
        (shown == *second.certificate.der()).then_some(())
    })
    .await;
    assert!(send(&gateway, &client, order("\"k\"")).await.is_ok());
    let metrics = get(gateway.admin, "/metrics").await;
    // rcgen's certificates end in the year 4096.
    let end = "semel_tls_expiry_seconds{listener=\"clients\"} 67090118400\n";
    assert!(metrics.text().contains(end), "{}", metrics.text());
}

#[tokio::test]
async fn clients_need_a_certificate_where_one_is_asked_for() {
    let shop = Shop::open().await;
    let (servers, clients) = (Authority::new(), Authority::new());
    let files = Files::of(&servers.sign(&["localhost"])).and_client_ca(&clients);
    let gateway = files.start(shop.address, &[]);
    let worker = clients.sign_client("worker", "spiffe://example/worker");
    for alpn in ["h2", "http/1.1"] {
        let client = servers.client(&[alpn], Some(&worker));
        let answer = send(&gateway, &client, order("\"k\"")).await.unwrap();
        assert_eq!(answer.status, 201);
    }
    let stranger = servers.sign_client("worker", "spiffe://example/worker");
    for shown in [None, Some(&stranger)] {
        let client = servers.client(&["http/1.1"], shown);
        // With TLS 1.3 a client learns it when it reads.
        let refused = send(&gateway, &client, order("\"l\"")).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn who_signs_clients_certificates_is_replaced() {
    let shop = Shop::open().await;
    let (servers, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let files = Files::of(&servers.sign(&["localhost"])).and_client_ca(&clients);
    let gateway = files.start(shop.address, &[]);
    let ask = async |signer: &Authority| {
        let worker = signer.sign_client("worker", "spiffe://example/worker");
        let client = servers.client(&["http/1.1"], Some(&worker));
        send(&gateway, &client, order("\"k\"")).await
    };
    assert!(ask(&clients).await.is_ok());
    assert!(ask(&others).await.is_err());
    others.file_in(files.path());
    gateway.hang_up();
    eventually("the new authority", async || ask(&others).await.ok()).await;
    assert!(ask(&clients).await.is_err());
}

/// A renewed certificate names the same client, whatever HTTP it speaks.
#[tokio::test]
async fn a_certificate_names_the_caller() {
    let shop = Shop::open().await;
    let (servers, clients) = (Authority::new(), Authority::new());
    let files = Files::of(&servers.sign(&["localhost"])).and_client_ca(&clients);
    let flags = ["--principal", "certificate", "--require-principal"];
    let gateway = files.start(shop.address, &flags);
    for (uri, replay) in [
        ("spiffe://example/a", false),
        ("spiffe://example/a", true),
        ("spiffe://example/b", false),
        ("spiffe://example/b", true),
    ] {
        let worker = clients.sign_client("worker", uri);
        let alpn = if replay { "h2" } else { "http/1.1" };
        let client = servers.client(&[alpn], Some(&worker));
        let answer = send(&gateway, &client, order("\"k\"")).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, replay));
    }
    assert_eq!(shop.placed(), 2);
}

/// Operators have a listener, and a certificate, of their own.
#[tokio::test]
async fn operators_speak_tls_too() {
    let shop = Shop::open().await;
    let authority = Authority::new();
    let files = Files::of(&authority.sign(&["localhost"]));
    let flags: Vec<_> = files
        .flags
        .iter()
        .map(|flag| flag.replace("--tls", "--admin-tls"))
        .collect();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let gateway = Gateway::start(shop.address, &flags);
    let client = authority.client(&["h2"], None);
    let stream = connect(gateway.admin, &client).await.unwrap();
    let request = Request::get("https://localhost/metrics");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let answer = http2(stream).await.send_request(request).await.unwrap();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    let end = "semel_tls_expiry_seconds{listener=\"operators\"} 67090118400\n";
    assert!(text.contains(end), "{text}");
    // Clients' listener is as it was: this is the service's answer.
    assert_eq!(get(gateway.address, "/orders").await.status, 405);
}
