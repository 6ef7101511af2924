//! TLS by rustls: towards clients in [`server`], towards upstreams in [`client`].

mod certificate;
pub mod client;
pub mod server;
pub(crate) mod stream;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, SupportedProtocolVersion};

pub use certificate::{ClientCertificate, Identity};

/// HTTP/2 and HTTP/1.1, as ALPN names them.
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// What is wrong with TLS as it is configured. Names the setting.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("{setting}: cannot read `{}`: {source}", path.display())]
    Read {
        /// Which setting names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file without what it is to hold.
    #[error("{setting}: `{}` holds no {what}; it must be a PEM file with a {what} in it", path.display())]
    Missing {
        /// Which setting names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is not in it.
        what: &'static str,
    },
    /// What is in a file cannot be used.
    #[error("{setting}: `{}` cannot be used: {why}", path.display())]
    Unusable {
        /// Which setting names the file.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Nobody to trust.
    #[error(
        "the system has no root certificates for https:// URLs: install them (ca-certificates), or name \
         a PEM file with --upstream-ca"
    )]
    NoRoots,
    /// What cannot be, with the versions that rustls has.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// A PEM file that a setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFile {
    /// The flag.
    pub(crate) setting: &'static str,
    pub(crate) path: PathBuf,
}

impl PemFile {
    pub(crate) fn new(setting: &'static str, path: &str) -> Self {
        let path = Path::new(path).to_owned();
        Self { setting, path }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        std::fs::read(&self.path).map_err(|source| Error::Read {
            setting: self.setting,
            path: self.path.clone(),
            source,
        })
    }

    fn certificates(&self, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
        let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        match all {
            Ok(all) if all.is_empty() => Err(self.missing("certificate")),
            Ok(all) => Ok(all),
            Err(error) => Err(self.unusable(error)),
        }
    }

    fn key(&self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
        match PrivateKeyDer::from_pem_slice(pem) {
            Ok(key) => Ok(key),
            Err(rustls::pki_types::pem::Error::NoItemsFound) => Err(self.missing("private key")),
            Err(error) => Err(self.unusable(error)),
        }
    }

    fn roots(&self, pem: &[u8]) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(pem)? {
            roots
                .add(certificate)
                .map_err(|error| self.unusable(error))?;
        }
        Ok(roots)
    }

    fn missing(&self, what: &'static str) -> Error {
        Error::Missing {
            setting: self.setting,
            path: self.path.clone(),
            what,
        }
    }

    fn unusable(&self, why: impl std::fmt::Display) -> Error {
        Error::Unusable {
            setting: self.setting,
            path: self.path.clone(),
            why: why.to_string(),
        }
    }
}

/// What one end shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The certificate, and those between it and a root.
    pub certificate: PemFile,
    /// Its private key.
    pub key: PemFile,
}

/// What its files held.
#[derive(PartialEq, Eq)]
struct ShownContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Shown {
    fn read(&self) -> Result<ShownContents, Error> {
        Ok(ShownContents {
            certificate: self.certificate.read()?,
            key: self.key.read()?,
        })
    }

    fn parse(
        &self,
        contents: &ShownContents,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let chain = self.certificate.certificates(&contents.certificate)?;
        Ok((chain, self.key.key(&contents.key)?))
    }

    /// Which of the files rustls does not take.
    fn refused(&self, error: rustls::Error) -> Error {
        match error {
            rustls::Error::InconsistentKeys(_) => self.key.unusable(format_args!(
                "it is not the key of the certificate in {}",
                self.certificate.setting
            )),
            error => self.certificate.unusable(error),
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// TLS 1.3 and 1.2: what rustls takes to be safe.
const VERSIONS: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;
