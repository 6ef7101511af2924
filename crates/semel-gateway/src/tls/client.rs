//! TLS towards upstreams and the reconciler: whom the gateway trusts.

use std::sync::{Arc, OnceLock};

use rustls::{ClientConfig, RootCertStore};

use super::{Error, H2, HTTP1, PemFile, VERSIONS, provider};

/// Who signs the certificates of upstreams: those in a file, or whom the system trusts.
#[derive(Debug, Default)]
pub struct Trust {
    ca: Option<PemFile>,
    // Nothing is read where no URL is `https://`.
    read: OnceLock<Configs>,
}

#[derive(Debug)]
struct Configs {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Trust {
    /// In those in this file; without one in whom the system trusts.
    pub fn new(ca: Option<PemFile>) -> Self {
        let read = OnceLock::new();
        Self { ca, read }
    }

    /// Reads the roots, unless that is done. Before it no connection is made.
    ///
    /// # Errors
    /// A file that cannot be read or used, or a system without roots.
    pub fn read(&self) -> Result<(), Error> {
        if self.read.get().is_none() {
            let configs = self.configs(Arc::new(self.roots()?))?;
            self.read.get_or_init(|| configs);
        }
        Ok(())
    }

    /// For a connection; `None` before the roots were read.
    pub(crate) fn config(&self, speaks: Speaks) -> Option<Arc<ClientConfig>> {
        let configs = self.read.get()?;
        Some(Arc::clone(match speaks {
            Speaks::Any => &configs.any,
            Speaks::Http1 => &configs.http1,
        }))
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        if let Some(file) = &self.ca {
            return file.roots(&file.read()?);
        }
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        // Systems have some that no library reads.
        roots.add_parsable_certificates(found.certs);
        match roots.is_empty() {
            true => Err(Error::NoRoots),
            false => Ok(roots),
        }
    }

    fn configs(&self, roots: Arc<RootCertStore>) -> Result<Configs, Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(Error::Setup)?;
        let mut http1 = builder.with_root_certificates(roots).with_no_client_auth();
        http1.alpn_protocols = vec![HTTP1.to_vec()];
        let mut any = http1.clone();
        any.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
        Ok(Configs {
            any: Arc::new(any),
            http1: Arc::new(http1),
        })
    }
}

/// Which HTTP a connection may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP/2 where the upstream has it.
    Any,
    /// HTTP/1.1 only.
    Http1,
}
