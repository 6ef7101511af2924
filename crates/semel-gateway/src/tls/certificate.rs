//! What a certificate says of its holder.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The certificate of a client, verified against `--tls-client-ca`: an extension of each request on
/// its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate(Arc<Identity>);

/// Whom a certificate names. A renewed certificate names the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The subject, as RFC 4514 writes it: `CN=worker,O=Example`. May be empty.
    pub subject: String,
    /// The alternative names of the kinds that name somebody, in the certificate's order.
    pub uris: Vec<String>,
    /// Host names.
    pub dns_names: Vec<String>,
    /// Addresses of e-mail.
    pub emails: Vec<String>,
}

impl ClientCertificate {
    /// Of a certificate that was verified.
    pub(super) fn verified(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        Ok(Self(Arc::new(identity(&read(certificate)?)?)))
    }
}

impl std::ops::Deref for ClientCertificate {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.0
    }
}

fn read(certificate: &CertificateDer<'_>) -> Result<Certificate, String> {
    Certificate::from_der(certificate).map_err(|error| error.to_string())
}

/// When a certificate ends, since the epoch.
pub(super) fn expiry(certificate: &CertificateDer<'_>) -> Result<Duration, String> {
    let validity = read(certificate)?.tbs_certificate.validity;
    Ok(validity.not_after.to_unix_duration())
}

fn identity(certificate: &Certificate) -> Result<Identity, String> {
    let certificate = &certificate.tbs_certificate;
    let mut identity = Identity {
        subject: certificate.subject.to_string(),
        uris: Vec::new(),
        dns_names: Vec::new(),
        emails: Vec::new(),
    };
    let names = certificate
        .get::<SubjectAltName>()
        .map_err(|error| error.to_string())?;
    for name in names.into_iter().flat_map(|(_, names)| names.0) {
        match name {
            GeneralName::UniformResourceIdentifier(uri) => identity.uris.push(uri.to_string()),
            GeneralName::DnsName(name) => identity.dns_names.push(name.to_string()),
            GeneralName::Rfc822Name(address) => identity.emails.push(address.to_string()),
            _ => {}
        }
    }
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn a_certificate_names_its_holder() {
        let mut params = CertificateParams::new(vec!["worker.example".to_owned()]).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "worker, the 1st");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
        let uri = "spiffe://example/worker";
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().unwrap()));
        let email = "worker@example.com";
        let san = SanType::Rfc822Name(email.try_into().unwrap());
        params.subject_alt_names.push(san);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let certificate = ClientCertificate::verified(made.der()).unwrap();
        assert_eq!(certificate.subject, "O=Example,CN=worker\\, the 1st");
        assert_eq!(certificate.uris, [uri]);
        assert_eq!(certificate.dns_names, ["worker.example"]);
        assert_eq!(certificate.emails, [email]);
        let end = params.not_after.unix_timestamp();
        assert_eq!(expiry(made.der()).unwrap().as_secs(), end.unsigned_abs());
    }
}
