//! TLS towards upstreams and the reconciler: whom the gateway trusts, and what it shows of itself.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::watch::{Replaceable, Watch};
use super::{Error, H2, HTTP1, PemFile, Shown, ShownContents, VERSIONS, provider};

/// Who signs the certificates of upstreams: those in a file, or whom the system trusts. And the certificate
/// for upstreams that ask for one.
#[derive(Debug, Default)]
pub struct Trust {
    ca: Option<PemFile>,
    shown: Option<Shown>,
    // Nothing is read where no URL is `https://`.
    used: ArcSwapOption<Configs>,
}

#[derive(Debug)]
struct Configs {
    showing: Config,
    /// For all who are no upstreams.
    nameless: Config,
}

#[derive(Debug, Clone)]
struct Config {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

/// What the files held.
#[derive(PartialEq, Eq)]
pub(crate) struct Contents {
    ca: Option<Vec<u8>>,
    shown: Option<ShownContents>,
}

impl Trust {
    /// In those in this file; without one in whom the system trusts.
    pub fn new(ca: Option<PemFile>) -> Self {
        Self {
            ca,
            ..Self::default()
        }
    }

    /// The same, with what upstreams are shown that ask for a certificate.
    #[must_use]
    pub fn showing(self, shown: Option<Shown>) -> Self {
        Self { shown, ..self }
    }

    /// Reads the files and the roots, unless that is done. Before it no connection is made.
    ///
    /// # Errors
    /// A file that cannot be read or used, or a system without roots.
    pub fn read(&self) -> Result<(), Error> {
        match self.used.load().is_some() {
            true => Ok(()),
            false => self.replace(&Replaceable::read(self)?),
        }
    }

    /// What reads the files again, if there are any.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Option<Watch<Self>>, Error> {
        if self.ca.is_none() && self.shown.is_none() {
            return Ok(None);
        }
        let contents = Replaceable::read(&**self)?;
        self.replace(&contents)?;
        Ok(Some(Watch::new(Arc::clone(self), contents)))
    }

    /// For a connection; `None` before the roots were read. Upstreams are shown a certificate if they ask
    /// for one.
    pub(crate) fn config(&self, speaks: Speaks, is_upstream: bool) -> Option<Arc<ClientConfig>> {
        let used = self.used.load();
        let configs = used.as_ref()?;
        let config = match is_upstream {
            true => &configs.showing,
            false => &configs.nameless,
        };
        Some(Arc::clone(match speaks {
            Speaks::Any => &config.any,
            Speaks::Http1 => &config.http1,
        }))
    }

    fn roots(&self, contents: &Contents) -> Result<RootCertStore, Error> {
        if let (Some(file), Some(pem)) = (&self.ca, &contents.ca) {
            return file.roots(pem);
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
}

impl Replaceable for Trust {
    type Contents = Contents;

    fn whose(&self) -> &'static str {
        "upstreams"
    }

    fn read(&self) -> Result<Contents, Error> {
        Ok(Contents {
            ca: self.ca.as_ref().map(PemFile::read).transpose()?,
            shown: self.shown.as_ref().map(Shown::read).transpose()?,
        })
    }

    fn replace(&self, contents: &Contents) -> Result<(), Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(Error::Setup)?
            .with_root_certificates(self.roots(contents)?);
        let nameless = Config::new(builder.clone().with_no_client_auth());
        let showing = match (&self.shown, &contents.shown) {
            (Some(shown), Some(contents)) => Config::new(show(builder, shown, contents)?),
            _ => nameless.clone(),
        };
        let configs = Configs { showing, nameless };
        self.used.store(Some(Arc::new(configs)));
        Ok(())
    }
}

fn show(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    shown: &Shown,
    contents: &ShownContents,
) -> Result<ClientConfig, Error> {
    let (chain, key) = shown.parse(contents)?;
    let made = builder.with_client_auth_cert(chain, key);
    made.map_err(|error| shown.refused(error))
}

impl Config {
    fn new(mut http1: ClientConfig) -> Self {
        http1.alpn_protocols = vec![HTTP1.to_vec()];
        let mut any = http1.clone();
        any.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
        Self {
            any: Arc::new(any),
            http1: Arc::new(http1),
        }
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
