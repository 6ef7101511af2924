//! TLS as libpq's `sslmode` names it, on rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What is checked of the server's certificate, and which one is shown to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Tls {
    pub(super) verify: Verify,
    /// The files of a certificate and of its key.
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
}

/// What is checked of the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Verify {
    /// Nothing: `prefer`, `require`. Keeps out who listens, not who answers.
    #[default]
    Nothing,
    /// That a trusted root signed it: `verify-ca`.
    Chain(Roots),
    /// That, and the host's name: `verify-full`.
    Name(Roots),
}

impl Verify {
    /// Whether nobody else can answer in the server's place. Who is on the way can have a certificate
    /// from public roots too, for another name.
    pub(super) fn authenticates(&self) -> bool {
        matches!(self, Self::Name(_) | Self::Chain(Roots::File(_)))
    }
}

/// The root certificates to trust.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Roots {
    /// Mozilla's, as they were when this program was built.
    #[default]
    Mozilla,
    /// Those of the system.
    System,
    /// Those in a PEM file.
    File(PathBuf),
}

/// A connector that checks and shows this much.
pub(super) fn connector(tls: &Tls) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| config("TLS cannot be set up").with_source(error))?;
    let verifier = |chain| -> Result<Arc<Checked>> {
        Ok(Arc::new(Checked {
            provider: provider.clone(),
            chain,
        }))
    };
    let roots = |roots: &Roots| -> Result<Arc<WebPkiServerVerifier>> {
        let roots = Arc::new(roots.read()?);
        WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| config("no root certificate can be used").with_source(error))
    };
    let builder = match &tls.verify {
        Verify::Nothing => builder
            .dangerous()
            .with_custom_certificate_verifier(verifier(None)?),
        Verify::Chain(trusted) => builder
            .dangerous()
            .with_custom_certificate_verifier(verifier(Some(roots(trusted)?))?),
        Verify::Name(trusted) => builder.with_webpki_verifier(roots(trusted)?),
    };
    let config = match &tls.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates("sslcert", certificate)?;
            let bad = || {
                config(format!(
                    "`sslkey` must name a PEM file with the key of `sslcert`, without a \
                     passphrase: {}",
                    key.display()
                ))
            };
            let key =
                PrivateKeyDer::from_pem_file(key).map_err(|error| bad().with_source(error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| bad().with_source(error))?
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn config(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

impl Roots {
    fn read(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        match self {
            Self::Mozilla => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Self::System => {
                let found = rustls_native_certs::load_native_certs();
                // Systems have some that no library reads.
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(config(
                        "`sslrootcert=system`: this system has no root certificates, or they \
                         cannot be read",
                    ));
                }
            }
            Self::File(path) => {
                for certificate in certificates("sslrootcert", path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unreadable("sslrootcert", path).with_source(error))?;
                }
            }
        }
        Ok(roots)
    }
}

/// The certificates in the file that this parameter names, of which there is one at least.
fn certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bad = |error| unreadable(parameter, path).with_source(error);
    let all = CertificateDer::pem_file_iter(path).map_err(bad)?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(bad)?;
    match all.is_empty() {
        true => Err(unreadable(parameter, path)),
        false => Ok(all),
    }
}

fn unreadable(parameter: &str, path: &Path) -> StoreError {
    config(format!(
        "`{parameter}` must name a PEM file of certificates: {}",
        path.display()
    ))
}

/// Checks the chain where there is a verifier for it, and the host's name never.
#[derive(Debug)]
struct Checked {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Checked {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name is looked at last: this error means that all else was right.
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
