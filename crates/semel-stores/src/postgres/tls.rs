//! TLS as libpq's `sslmode` names it, on rustls.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use semel::store::Result;
use semel::{StoreError, StoreErrorKind};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What is checked of the server's certificate. A path is that of a PEM file with the roots to
/// trust; without one they are Mozilla's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verify {
    /// Nothing: `prefer`, `require`. Keeps out who listens, not who answers.
    Nothing,
    /// That a trusted root signed it: `verify-ca`.
    Chain(Option<String>),
    /// That, and the host's name: `verify-full`.
    Name(Option<String>),
}

/// A connector that checks this much.
pub(super) fn connector(verify: &Verify) -> Result<MakeRustlsConnect> {
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
    let roots = |path: &Option<String>| -> Result<Arc<WebPkiServerVerifier>> {
        let roots = Arc::new(roots(path.as_deref())?);
        WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| config("no root certificate can be used").with_source(error))
    };
    let config = match verify {
        Verify::Nothing => builder
            .dangerous()
            .with_custom_certificate_verifier(verifier(None)?),
        Verify::Chain(path) => builder
            .dangerous()
            .with_custom_certificate_verifier(verifier(Some(roots(path)?))?),
        Verify::Name(path) => builder.with_webpki_verifier(roots(path)?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn config(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

fn roots(path: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(roots);
    };
    let bad = || {
        config(format!(
            "`sslrootcert` must name a PEM file of certificates: {path}"
        ))
    };
    let all = CertificateDer::pem_file_iter(path).map_err(|error| bad().with_source(error))?;
    for certificate in all {
        let certificate = certificate.map_err(|error| bad().with_source(error))?;
        roots
            .add(certificate)
            .map_err(|error| bad().with_source(error))?;
    }
    if roots.is_empty() {
        return Err(bad());
    }
    Ok(roots)
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
