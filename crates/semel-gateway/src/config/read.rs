//! From what is said to a [`Config`].

use http::uri::Authority;
use semel::store::OnLost;
use tracing::Level;

use super::sources::{Given, Sources};
use super::{Config, ConfigError, Limits, StoreUrl, values};
use crate::reconcile::Settings;
use crate::tls::PemFile;
use crate::tls::server::Files;
use crate::upstream::{Address, Protocol};

impl Sources {
    /// Understands the values.
    ///
    /// # Errors
    /// Every value that is not right, not only the first.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: self.errors.clone(),
        };
        let upstream = reader.read("upstream", values::upstream);
        if !self.given.contains_key("upstream") && !self.is_partial {
            reader.errors.push(
                "--upstream is required: where do requests go? For instance http://127.0.0.1:9000"
                    .to_owned(),
            );
        }
        let listen = reader.read("listen", values::address).unwrap_or_default();
        let admin = reader.read("admin", values::address).unwrap_or_default();
        if !listen.is_empty() && listen == admin && !listen.ends_with(":0") {
            let message = format!("--listen and --admin are the same address, {listen}");
            reader.errors.push(message);
        }
        for (flag, address) in [("--listen", &listen), ("--admin", &admin)] {
            if upstream
                .as_ref()
                .is_some_and(|upstream| values::is_same_socket(upstream, address))
            {
                let message = format!(
                    "--upstream is {flag} itself, {address}: requests would come back to the gateway"
                );
                reader.errors.push(message);
            }
        }
        let mut admin_hosts = reader
            .read("admin-host", values::host_names)
            .unwrap_or_default();
        admin_hosts.extend(admin.rsplit_once(':').map(|(host, _)| host.to_owned()));
        let max_body = reader.read("max-body", values::size).unwrap_or_default();
        let timeout = reader.read("upstream-timeout", values::limit);
        let on_lost = reader.read("on-lost", values::on_lost);
        let reconcile = reader.reconcile(on_lost);
        let upstream_ca = reader.file("upstream-ca", "--upstream-ca");
        let config = Config {
            // Whatever is missing here has its message among the errors.
            upstream: upstream.unwrap_or_else(|| Address {
                protocol: Protocol::Http,
                authority: Authority::from_static("missing"),
            }),
            upstream_ca,
            listen,
            tls: reader.tls(),
            admin,
            store: StoreUrl(reader.read("store", values::store).unwrap_or_default()),
            service: reader
                .read("service", values::service)
                .filter(|_| self.is_said("service")),
            require_key: reader
                .read("require-key", values::boolean)
                .unwrap_or_default(),
            lease: reader.read("lease", values::lease).unwrap_or_default(),
            ttl: reader.read("ttl", values::positive).unwrap_or_default(),
            wait: reader.read("wait", values::duration).unwrap_or_default(),
            on_lost: on_lost.unwrap_or_default(),
            reconcile,
            max_body,
            scope_headers: reader
                .read("scope-header", values::fields)
                .unwrap_or_default(),
            require_principal: reader
                .read("require-principal", values::boolean)
                .unwrap_or_default(),
            dispositions: self.dispositions.clone(),
            upstream_timeout: timeout.flatten(),
            trust_forwarded: reader
                .read("trust-forwarded", values::networks)
                .unwrap_or_default(),
            preserve_host: reader
                .read("preserve-host", values::boolean)
                .unwrap_or_default(),
            limits: reader.limits(max_body),
            admin_hosts,
            drain: reader.read("drain", values::duration).unwrap_or_default(),
            drain_delay: reader
                .read("drain-delay", values::duration)
                .unwrap_or_default(),
            log_json: reader
                .read("log-format", values::log_format)
                .unwrap_or_default(),
            log_level: reader
                .read("log-level", values::log_level)
                .unwrap_or(Level::INFO),
        };
        if config.upstream_ca.is_some() && reader.errors.is_empty() && !config.asks_over_tls() {
            let message = "--upstream-ca is for https:// URLs, and there is none";
            reader.errors.push(message.to_owned());
        }
        if config.upstream.protocol == Protocol::H2c && config.preserve_host {
            // Host and :authority must not differ, and the latter names the upstream.
            let message = "--preserve-host cannot be used with an h2c:// upstream";
            reader.errors.push(message.to_owned());
        }
        if reader.errors.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(reader.errors))
        }
    }

    /// Understands the store's URL alone.
    ///
    /// # Errors
    /// A URL that is not right.
    pub fn store(&self) -> Result<StoreUrl, ConfigError> {
        let mut reader = Reader {
            sources: self,
            errors: self.errors.clone(),
        };
        let url = reader.read("store", values::store);
        match url {
            Some(url) if reader.errors.is_empty() => Ok(StoreUrl(url)),
            _ => Err(ConfigError(reader.errors)),
        }
    }
}

struct Reader<'a> {
    sources: &'a Sources,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn read<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Given { value, from } = self.sources.given.get(name)?;
        match parse(value) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.errors.push(format!("{from}: {reason}"));
                None
            }
        }
    }

    fn file(&mut self, name: &'static str, flag: &'static str) -> Option<PemFile> {
        self.read(name, |path| Ok(PemFile::new(flag, path)))
    }

    fn tls(&mut self) -> Option<Files> {
        let certificate = self.file("tls-cert", "--tls-cert");
        let key = self.file("tls-key", "--tls-key");
        let client_ca = self.file("tls-client-ca", "--tls-client-ca");
        let missing = match (&certificate, &key, &client_ca) {
            (Some(_), None, _) => "--tls-cert needs --tls-key: the file of its private key",
            (None, Some(_), _) => "--tls-key needs --tls-cert: the file of its certificate",
            (None, None, Some(_)) => "--tls-client-ca needs --tls-cert and --tls-key",
            _ => {
                return Some(Files {
                    certificate: certificate?,
                    key: key?,
                    client_ca,
                });
            }
        };
        self.errors.push(missing.to_owned());
        None
    }

    fn limits(&mut self, max_body: usize) -> Limits {
        let body_memory = self.read("max-body-memory", values::memory);
        if body_memory.is_some_and(|bytes| bytes < max_body) {
            let message = "--max-body is more than --max-body-memory: it would never be taken";
            self.errors.push(message.to_owned());
        }
        let count =
            |count: Option<u32>| count.map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Limits {
            attempts: count(self.read("max-attempts", values::count)),
            connections: count(self.read("max-connections", values::count)),
            body_memory: body_memory.unwrap_or_default(),
            body_time: self.read("body-timeout", values::limit).flatten(),
        }
    }

    /// Whom to ask about lost attempts; nobody, unless that is the policy.
    fn reconcile(&mut self, on_lost: Option<OnLost>) -> Option<Settings> {
        let url = self.read("reconciler", values::endpoint);
        let attempts = self.read("reconcile.attempts", values::count);
        let pause = self.read("reconcile.pause", values::positive);
        let timeout = self.read("reconcile.timeout", values::positive);
        let every = self.read("reconcile.every", values::positive);
        let given = self.sources.given.contains_key("reconciler");
        match (on_lost, given) {
            (Some(OnLost::Reconcile), false) => self.errors.push(
                "--on-lost reconcile needs --reconciler: who is asked what happened? For instance \
                 http://127.0.0.1:9100/reconcile"
                    .to_owned(),
            ),
            (Some(OnLost::Hold | OnLost::Retry), true) => {
                let message = "--reconciler is asked with --on-lost reconcile only";
                self.errors.push(message.to_owned());
            }
            _ => {}
        }
        Some(Settings {
            url: url?,
            headers: self.sources.headers.clone(),
            attempts: attempts?,
            pause: pause?,
            timeout: timeout?,
            every: every?,
        })
    }
}
