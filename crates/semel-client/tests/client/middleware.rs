//! The middleware of reqwest, before real sockets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use semel_client::decide::{Effect, Reason};
use semel_client::{AnswerInfo, Error, ErrorKind, Outbox, Retry};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

const CREATED: &str =
    "HTTP/1.1 201 Created\r\ncontent-length: 8\r\nidempotency-replayed: true\r\n\r\n{\"id\":1}";
const HALF: &str = "HTTP/1.1 201 Created\r\ncontent-length: 8\r\n\r\n{\"id";

/// Answers each connection's request with the next of these, and closes it. An empty one: without an answer.
async fn shop(answers: &'static [&'static str]) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/orders", listener.local_addr().unwrap());
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let record = seen.clone();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read(&mut stream).await;
            record.lock().unwrap().push(request);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, seen)
}

async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"apple") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

fn client(retry: Retry) -> ClientWithMiddleware {
    let retry = retry.with_pauses(Duration::from_millis(1), Duration::from_millis(50));
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    ClientBuilder::new(plain).with(retry).build()
}

#[tokio::test]
async fn it_asks_until_there_is_a_whole_answer() {
    let (url, seen) = shop(&["", HALF, CREATED]).await;
    let answer = client(Retry::new())
        .post(&url)
        .body("apple")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.url().as_str()),
        (201, &*url)
    );
    let info = *answer.extensions().get::<AnswerInfo>().unwrap();
    assert_eq!((info.tries, info.replayed), (3, true));
    assert_eq!(answer.text().await.unwrap(), "{\"id\":1}");
    let seen = seen.lock().unwrap();
    assert!(seen[0].contains("\r\nidempotency-key: 0"), "{seen:?}");
    assert!(seen.iter().all(|request| *request == seen[0]), "{seen:?}");
}

#[tokio::test]
async fn an_intent_is_sent_with_its_key() {
    let (url, seen) = shop(&["", CREATED]).await;
    let outbox = Outbox::in_memory();
    let order = |_: &_| {
        http::Request::post(&url)
            .header("x-shop", "1")
            .body("apple")
    };
    let intent = outbox.begin("order 1", order).await.unwrap();
    let answer = intent.send(&client(Retry::new())).await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let key = format!("\r\nidempotency-key: {}\r\n", intent.key().as_str());
    let seen = seen.lock().unwrap().clone();
    assert!(
        seen.iter()
            .all(|request| request.contains(&key) && request.contains("\r\nx-shop: 1\r\n"))
    );
    // Its age counts, so it is known as an intent.
    let late = client(Retry::new().with_key_lifetime(Duration::ZERO));
    let error = intent.send(&late).await.unwrap_err();
    let error = Error::of(&error).unwrap();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Expired));
    assert_eq!((error.effect(), error.tries()), (Effect::Possible, 0));
}

#[tokio::test]
async fn errors_say_what_is_known() {
    let mismatch = "HTTP/1.1 422 U\r\ncontent-type: application/problem+json\r\ncontent-length: 19\r\n\r\n{\"code\":\"mismatch\"}";
    let (url, seen) = shop(Box::leak(Box::new([mismatch]))).await;
    let error = client(Retry::new())
        .post(&url)
        .body("apple")
        .send()
        .await
        .unwrap_err();
    assert_eq!(
        Error::of(&error).unwrap().kind(),
        ErrorKind::Stopped(Reason::Mismatch)
    );
    assert_eq!(seen.lock().unwrap().len(), 1);

    // Nobody listens there any more.
    let url = nobody();
    let brief = Retry::new().with_deadline(Duration::from_secs(1));
    let brief = client(brief.without_redirects());
    let error = brief.post(&url).body("apple").send().await.unwrap_err();
    let error = Error::of(&error).unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::GaveUp { .. }),
        "{error:?}"
    );
    assert_eq!(error.effect(), Effect::None, "{error:?}");
    assert!(error.tries() > 1);

    let long = client(Retry::new().with_max_body(4));
    let error = long.post(&url).body("apple").send().await.unwrap_err();
    let error = Error::of(&error).unwrap();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Invalid));
    assert_eq!(error.tries(), 0);
    let stream = reqwest::Body::wrap(http_body_util::StreamBody::new(
        futures_util::stream::empty::<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>(),
    ));
    let error = long.post(&url).body(stream).send().await.unwrap_err();
    assert_eq!(
        Error::of(&error).unwrap().kind(),
        ErrorKind::Stopped(Reason::Invalid)
    );
}

fn nobody() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/", free.local_addr().unwrap())
}

#[tokio::test]
async fn a_redirect_that_leads_nowhere_was_sent() {
    for target in [nobody(), "gopher://shop.example/".to_owned()] {
        let answer = format!(
            "HTTP/1.1 303 See Other\r\nlocation: {target}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let (url, seen) = shop(Box::leak(Box::new([&*answer.leak()]))).await;
        let retry = Retry::new().with_deadline(Duration::from_secs(1));
        let client = client(retry.without_keys());
        let error = client.post(&url).body("apple").send().await.unwrap_err();
        let error = Error::of(&error).unwrap();
        assert!(error.is_unknown(), "{target}: {error}");
        assert_eq!((error.effect(), error.tries()), (Effect::Possible, 1));
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}

#[derive(Debug)]
struct NoNames;

impl reqwest::dns::Resolve for NoNames {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async { Err("no such name".into()) })
    }
}

#[tokio::test]
async fn the_errors_of_reqwest_are_known() {
    let error = client(Retry::new())
        .post("gopher://shop.example/")
        .send()
        .await
        .unwrap_err();
    let error = Error::of(&error).unwrap();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Invalid), "{error}");
    assert_eq!((error.effect(), error.tries()), (Effect::None, 1));

    let plain = reqwest::Client::builder().no_proxy();
    let plain = plain
        .dns_resolver(Arc::new(NoNames))
        .redirect(reqwest::redirect::Policy::none());
    let retry = Retry::new().with_deadline(Duration::from_millis(10));
    let client = ClientBuilder::new(plain.build().unwrap())
        .with(retry.without_redirects())
        .build();
    let error = client
        .post("http://shop.example/")
        .send()
        .await
        .unwrap_err();
    let error = Error::of(&error).unwrap();
    assert_eq!(error.effect(), Effect::None, "{error:?}");
}

#[tokio::test]
async fn what_happened_stays_so() {
    let (url, _) = shop(&[
        HALF,
        "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
    ])
    .await;
    let error = client(Retry::new())
        .post(&url)
        .body("apple")
        .send()
        .await
        .unwrap_err();
    let error = Error::of(&error).unwrap();
    assert_eq!(error.kind(), ErrorKind::Stopped(Reason::Unauthorized));
    assert_eq!((error.effect(), error.tries()), (Effect::Happened, 2));
}

#[tokio::test]
async fn a_service_whose_certificate_is_not_trusted_is_asked_once() {
    let names = || CertificateParams::new(["localhost".to_owned()]).unwrap();
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let own = names().self_signed(&key).unwrap();
    let trusted = names().self_signed(&other).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            acceptor.accept(stream).await.unwrap_err();
        }
    });
    let trusted = reqwest::Certificate::from_der(trusted.der()).unwrap();
    let plain = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([trusted]);
    let plain = plain.build().unwrap();
    for (retry, effect) in [
        (Retry::new().without_redirects(), Effect::None),
        (Retry::new(), Effect::Possible),
    ] {
        let client = ClientBuilder::new(plain.clone()).with(retry).build();
        let sent = client
            .post(format!("https://localhost:{port}/orders"))
            .body("apple");
        let error = sent.send().await.unwrap_err();
        let error = Error::of(&error).unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::Stopped(Reason::Invalid)),
            "{error:?}"
        );
        assert_eq!(error.effect(), effect);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}
