//! Certificates of one's own, and clients that speak TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Gateway;

/// Who signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate that an authority has signed, and its key.
pub(crate) struct Signed {
    pub(crate) certificate: rcgen::Certificate,
    key: KeyPair,
}

/// A gateway that speaks TLS to its clients, as `signed`, and to the upstream, trusting `authority`.
pub(crate) fn gateway_between(
    authority: &Authority,
    signed: &Signed,
    upstream: SocketAddr,
) -> Gateway {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let [certificate, key] = signed.files_in(directory.path());
    let ca = authority.file_in(directory.path());
    let flags = [
        format!("--upstream=https://localhost:{}", upstream.port()),
        format!("--upstream-ca={}", ca.display()),
        format!("--tls-cert={}", certificate.display()),
        format!("--tls-key={}", key.display()),
    ];
    // The gateway's own folder lasts as long as it does.
    Gateway::start_in(&directory, upstream, &flags.each_ref().map(String::as_str))
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// For these names or addresses.
    pub(crate) fn sign(&self, names: &[&str]) -> Signed {
        let names = names.iter().map(|name| (*name).to_owned());
        self.sign_params(&CertificateParams::new(names.collect::<Vec<_>>()).unwrap())
    }

    /// For a client of this name.
    pub(crate) fn sign_client(&self, name: &str, uri: &str) -> Signed {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().unwrap()));
        self.sign_params(&params)
    }

    fn sign_params(&self, params: &CertificateParams) -> Signed {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Signed { certificate, key }
    }

    /// Its own certificate in a file.
    pub(crate) fn file_in(&self, directory: &Path) -> PathBuf {
        write(directory, "ca.pem", &self.0.pem())
    }

    /// A client that trusts it, and shows what it has.
    pub(crate) fn client(&self, alpn: &[&str], shown: Option<&Signed>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            Some(Signed { certificate, key }) => builder
                .with_client_auth_cert(vec![certificate.der().clone()], der(key))
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

impl Signed {
    /// The files of the certificate and of its key.
    pub(crate) fn files_in(&self, directory: &Path) -> [PathBuf; 2] {
        [
            write(directory, "cert.pem", &self.certificate.pem()),
            write(directory, "key.pem", &self.key.serialize_pem()),
        ]
    }

    /// A server that shows it.
    pub(crate) fn server(&self, alpn: &[&str]) -> TlsAcceptor {
        self.server_for(alpn, None)
    }

    /// The same for clients with a certificate that an authority has signed.
    pub(crate) fn server_for(&self, alpn: &[&str], clients: Option<&Authority>) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            Some(Authority(issuer)) => {
                let mut roots = RootCertStore::empty();
                roots.add(issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(vec![self.certificate.der().clone()], der(&self.key))
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Connects, and shakes hands with whoever answers to `localhost`.
pub(crate) async fn connect(
    address: SocketAddr,
    client: &TlsConnector,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    client.connect(name, stream).await
}

fn der(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(key.serialize_der().into())
}

/// In one step, as whoever replaces a certificate should.
fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    let fresh = directory.join(format!("{name}.new"));
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    path
}

/// A connection of HTTP/2 over what is connected already.
pub(crate) async fn http2<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<B>
where
    B: http_body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static,
{
    let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shaken.unwrap();
    tokio::spawn(connection);
    sender
}
