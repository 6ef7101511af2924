//! TLS of the listeners: handshakes, and certificates that are replaced while the gateway runs.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::certificate::{self, ClientCertificate};
use super::stream::Stream;
use super::watch::{Replaceable, Watch};
use super::{Error, H2, HTTP1, PemFile, Shown, ShownContents, VERSIONS, provider};
use crate::metrics::Metrics;

/// How long a client may take until TLS is agreed on.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The files that a listener's TLS is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Whom the listener is for.
    pub(crate) listener: &'static str,
    /// What it shows.
    pub shown: Shown,
    /// Who signs clients' certificates, where these must have one.
    pub client_ca: Option<PemFile>,
}

/// What the files held.
#[derive(PartialEq, Eq)]
pub(crate) struct Contents {
    shown: ShownContents,
    client_ca: Option<Vec<u8>>,
}

/// A configuration of TLS, and when its certificate ends.
struct Made {
    config: Arc<ServerConfig>,
    expiry: Duration,
}

impl Files {
    /// Reads them as a start would.
    ///
    /// # Errors
    /// Files that cannot be read or used.
    pub fn check(&self) -> Result<(), Error> {
        self.make(&self.read()?).map(drop)
    }

    fn read(&self) -> Result<Contents, Error> {
        Ok(Contents {
            shown: self.shown.read()?,
            client_ca: self.client_ca.as_ref().map(PemFile::read).transpose()?,
        })
    }

    fn make(&self, contents: &Contents) -> Result<Made, Error> {
        let (chain, key) = self.shown.parse(&contents.shown)?;
        let end = chain.first().map(certificate::expiry).transpose();
        let end = end.map_err(|error| self.shown.certificate.unusable(error))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(Error::Setup)?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(file), Some(pem)) => {
                let roots = Arc::new(file.roots(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| file.unusable(error))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| self.shown.refused(error))?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
        // A session that is resumed would not see that its certificate ended, or is signed by nobody
        // who is trusted any more.
        if self.client_ca.is_some() {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = Ticketer::new().map_err(Error::Setup)?;
        }
        Ok(Made {
            config: Arc::new(config),
            expiry: end.unwrap_or_default(),
        })
    }
}

/// Answers handshakes.
pub struct Acceptor {
    files: Files,
    config: RwLock<Arc<ServerConfig>>,
    metrics: Arc<Metrics>,
}

impl Acceptor {
    /// With what is in the files now, and what replaces it.
    ///
    /// # Errors
    /// Files that cannot be read or used.
    pub(crate) fn new(
        files: Files,
        metrics: Arc<Metrics>,
    ) -> Result<(Arc<Self>, Watch<Self>), Error> {
        let contents = files.read()?;
        let Made { config, expiry } = files.make(&contents)?;
        metrics.certificate_ends(files.listener, expiry);
        let acceptor = Arc::new(Self {
            files,
            config: RwLock::new(config),
            metrics,
        });
        let watch = Watch::new(Arc::clone(&acceptor), contents);
        Ok((acceptor, watch))
    }

    /// Shakes hands with a client. The certificate is there if and only if clients must have one.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(Stream, Option<ClientCertificate>)> {
        let shaking = TlsAcceptor::from(self.config()).accept(stream);
        let shaken = timeout(HANDSHAKE_TIMEOUT, shaking).await;
        let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = shaken.inspect_err(|_| self.metrics.handshake_failed())?;
        let certificates = stream.get_ref().1.peer_certificates();
        let client = match certificates.and_then(|certificates| certificates.first()) {
            Some(certificate) => {
                Some(ClientCertificate::verified(certificate).map_err(io::Error::other)?)
            }
            None => None,
        };
        let stream = tokio_rustls::TlsStream::from(stream);
        Ok((stream.into(), client))
    }

    fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read();
        Arc::clone(&config.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Replaceable for Acceptor {
    type Contents = Contents;

    fn whose(&self) -> &'static str {
        self.files.listener
    }

    fn read(&self) -> Result<Contents, Error> {
        self.files.read()
    }

    fn replace(&self, contents: &Contents) -> Result<(), Error> {
        let made = self.files.make(contents)?;
        let listener = self.files.listener;
        self.metrics.certificate_ends(listener, made.expiry);
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        *config = made.config;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    fn files_in(directory: &Path) -> Files {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = |setting, name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            PemFile { setting, path }
        };
        Files {
            listener: "clients",
            shown: Shown {
                certificate: file("--tls-cert", "cert.pem", certificate.pem()),
                key: file("--tls-key", "key.pem", key.serialize_pem()),
            },
            client_ca: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_shakes_no_hands_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::new());
        let (acceptor, _) = Acceptor::new(files_in(directory.path()), metrics).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let before = Instant::now();
        let error = acceptor.accept(stream).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(before.elapsed().as_secs(), HANDSHAKE_TIMEOUT.as_secs());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[test]
    fn each_file_that_is_wrong_has_one_clear_message() {
        let directory = tempfile::tempdir().unwrap();
        let files = files_in(directory.path());
        let other = tempfile::tempdir().unwrap();
        let others = files_in(other.path());
        let said = |files: &Files| match files.check() {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(&files), "");
        let missing = |file: &PemFile| PemFile {
            path: directory.path().join("none"),
            ..file.clone()
        };
        let shows = |certificate: &PemFile, key: &PemFile| Files {
            shown: Shown {
                certificate: certificate.clone(),
                key: key.clone(),
            },
            ..files.clone()
        };
        let Shown { certificate, key } = &files.shown;
        let message = said(&shows(&missing(certificate), key));
        assert!(
            message.starts_with("--tls-cert: cannot read `"),
            "{message}"
        );
        let at = |path: &PemFile, of: &PemFile| PemFile {
            path: path.path.clone(),
            ..of.clone()
        };
        let message = said(&shows(certificate, &at(certificate, key)));
        let end = "holds no private key; it must be a PEM file with a private key in it";
        assert!(message.ends_with(end), "{message}");
        let message = said(&shows(&at(key, certificate), key));
        assert!(message.contains("holds no certificate"), "{message}");
        let message = said(&shows(certificate, &others.shown.key));
        let end = "cannot be used: it is not the key of the certificate in --tls-cert";
        assert!(message.ends_with(end), "{message}");
        let rubbish = directory.path().join("rubbish");
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&rubbish, text).unwrap();
        let message = said(&Files {
            client_ca: Some(PemFile {
                setting: "--tls-client-ca",
                path: rubbish,
            }),
            ..files.clone()
        });
        let begin = "--tls-client-ca: `";
        assert!(message.starts_with(begin), "{message}");
        assert!(message.contains("` cannot be used: "), "{message}");
    }
}
