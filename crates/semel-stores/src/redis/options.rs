//! What a store on Redis is opened with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::ClientTlsConfig;
use semel::{StoreError, StoreErrorKind};

use super::RedisStore;
use super::error;
use super::probe;
use super::target::Target;
use crate::OpenError;
use crate::common::Location;

/// How a store on Redis is opened. [`open`](Self::open) takes them from a URL too, which comes first:
///
/// `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE][?PARAMETERS]`, `rediss://…` with TLS, and
/// `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][?PARAMETERS]`.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    pub(super) prefix: String,
    pub(super) timeout: Duration,
    pub(super) connections: usize,
    pub(super) wait_replicas: u32,
    pub(super) wait_disk: bool,
    pub(super) wait_timeout: Option<Duration>,
    pub(super) accept_unsafe: bool,
    pub(super) for_tests: bool,
    tls: bool,
    authority: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: "semel:".into(),
            timeout: Duration::from_secs(5),
            connections: 1,
            wait_replicas: 0,
            wait_disk: false,
            wait_timeout: None,
            accept_unsafe: false,
            for_tests: false,
            tls: false,
            authority: None,
            certificate: None,
        }
    }
}

const PARAMETERS: &str = "`prefix`, `timeout`, `connections`, `wait_replicas`, `wait_aof`, `wait_timeout`, \
     `unsafe`, `tls`, `ca`, `cert`, `key`";

impl RedisOptions {
    /// Keys begin with `semel:`; 5 s for a step; one connection; no waiting for replicas; a server
    /// that may forget records is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// What keys begin with: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Stores with different prefixes share
    /// nothing. URL: `prefix=`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a step may take, connecting included; afterwards it is
    /// [`Unknown`](StoreErrorKind::Unknown) whether it happened. URL: `timeout=`.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many connections to a single server share the steps, 1 to 64. Each carries many steps at
    /// once; more than one helps where outcomes are large, or replicas are waited for. A Cluster has
    /// one to each node. URL: `connections=`.
    #[must_use]
    pub const fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How many replicas must have a claim, a completion or a resolution before it is acknowledged
    /// (`WAIT`). Where they are fewer the step is [`Unknown`](StoreErrorKind::Unknown): it was
    /// written on the master. URL: `wait_replicas=`.
    #[must_use]
    pub const fn wait_replicas(mut self, replicas: u32) -> Self {
        self.wait_replicas = replicas;
        self
    }

    /// Whether a claim, a completion or a resolution must be on the master's disk, and on that of
    /// as many replicas as [`wait_replicas`](Self::wait_replicas) says, before it is acknowledged
    /// (`WAITAOF`; Redis 7.2 or Valkey, with `appendonly yes`). URL: `wait_aof=yes`.
    #[must_use]
    pub const fn wait_disk(mut self, wait: bool) -> Self {
        self.wait_disk = wait;
        self
    }

    /// How long replicas and disks are waited for, during which nothing else comes over that
    /// connection. A fifth of [`timeout`](Self::timeout) unless set. URL: `wait_timeout=`.
    #[must_use]
    pub const fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.wait_timeout = Some(timeout);
        self
    }

    /// Accepts a server that evicts keys: the store warns where it would refuse. URL:
    /// `unsafe=warn`, or `unsafe=refuse`.
    #[must_use]
    pub const fn accept_unsafe(mut self, accept: bool) -> Self {
        self.accept_unsafe = accept;
        self
    }

    /// Lets the store be [cleared](semel::store::Clear).
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Opens the store that `url` names: connects, and looks at the server's settings.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where the URL is not right, [`OpenError::Store`] where the server
    /// cannot be reached, or would forget records.
    pub async fn open(self, url: &str) -> Result<RedisStore, OpenError> {
        let (options, mut target) = self.read(url)?;
        if options.authority.is_some() || options.certificate.is_some() {
            let authority = match &options.authority {
                Some(path) => Some(file("certificate", path).await?),
                None => None,
            };
            let own = match &options.certificate {
                Some((certificate, key)) => Some(ClientTlsConfig {
                    client_cert: file("certificate", certificate).await?,
                    client_key: file("key", key).await?,
                }),
                None => None,
            };
            target.certify(authority, own).map_err(|error| {
                let message = format!("`ca`, `cert` and `key` must name PEM files: {error}");
                StoreError::new(StoreErrorKind::Config, message).with_source(error)
            })?;
        }
        if options.tls {
            // The program's own choice comes first.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let store = RedisStore::new(options, target);
        match semel::Store::probe(&store).await {
            Ok(_) => Ok(store),
            // While a store is open a replica may be one for a moment; here it is what was asked for.
            Err(error) if error::is_replica(&error) => Err(probe::replica().into()),
            Err(error) => Err(error.into()),
        }
    }

    /// These options with what `url` says, and where the server is. Reaches nothing.
    pub(super) fn read(mut self, url: &str) -> Result<(Self, Target), OpenError> {
        let name = url.split(':').next().unwrap_or_default();
        let scheme = SCHEMES.into_iter().find(|known| *known == name);
        let scheme = scheme.unwrap_or("redis");
        let rest = url.strip_prefix(scheme);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix("://")) else {
            return Err(OpenError::invalid(
                scheme,
                "is followed by `//HOST`, as in `redis://127.0.0.1:6379`",
            ));
        };
        let cluster = scheme == "redis-cluster";
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.len() > 1 && !cluster {
            return Err(OpenError::invalid(
                scheme,
                "takes one host; several are nodes of a `redis-cluster:`",
            ));
        }
        // A URL has one host: the first stands for all.
        let mut location =
            Location::parse(scheme, &format!("{scheme}://{login}{}{rest}", hosts[0]))?;
        self.take(&mut location)?;
        self.tls |= scheme == "rediss";
        let invalid = |reason: &str| OpenError::invalid(scheme, reason);
        self.check().map_err(|reason| invalid(&reason))?;
        let whole = location.whole(PARAMETERS)?;
        let path = whole.path().trim_start_matches('/').to_owned();
        if cluster && !path.is_empty() {
            return Err(invalid(
                "has no databases: nothing follows the hosts but parameters",
            ));
        }
        let plain = if self.tls { "rediss" } else { "redis" };
        let urls: Vec<_> = hosts
            .iter()
            .map(|host| format!("{plain}://{login}{host}/{path}"))
            .collect();
        let target = Target::new(&urls, cluster, self.timeout).map_err(|_| {
            // Its text may repeat a part of the URL.
            invalid("is followed by `//[USER:PASSWORD@]HOST[:PORT][/NUMBER]`")
        })?;
        Ok((self, target))
    }

    fn take(&mut self, location: &mut Location) -> Result<(), OpenError> {
        // There is nothing to make; the word is understood as everywhere.
        location.schema()?;
        if let Some(prefix) = location.take("prefix", "text")? {
            self.prefix = prefix;
        }
        self.timeout = location.duration("timeout")?.unwrap_or(self.timeout);
        let connections = location.take("connections", "a number from 1 to 64")?;
        self.connections = connections.unwrap_or(self.connections);
        let replicas = location.take("wait_replicas", "a number")?;
        self.wait_replicas = replicas.unwrap_or(self.wait_replicas);
        let wait = location.choice("wait_aof", &YES_OR_NO)?;
        self.wait_disk = wait.unwrap_or(self.wait_disk);
        self.wait_timeout = location.duration("wait_timeout")?.or(self.wait_timeout);
        let accept = location.choice("unsafe", &[("refuse", false), ("warn", true)])?;
        self.accept_unsafe = accept.unwrap_or(self.accept_unsafe);
        self.tls = location.choice("tls", &YES_OR_NO)?.unwrap_or(self.tls);
        let authority = location.take("ca", "a file's path")?;
        self.authority = authority.or_else(|| self.authority.take());
        let files = location.certificate(["cert", "key"])?;
        self.certificate = files.or_else(|| self.certificate.take());
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.chars().all(plain) {
            return Err("takes a prefix of 1 to 64 characters of `A-Z a-z 0-9 _ . : -`".into());
        }
        if !(1..=64).contains(&self.connections) {
            return Err("takes 1 to 64 connections".into());
        }
        if !self.tls && (self.authority.is_some() || self.certificate.is_some()) {
            return Err(
                "has parameters `ca`, `cert` and `key`, which need TLS: `rediss://`, or `tls=yes` for \
                 a Cluster"
                    .into(),
            );
        }
        let sane = Duration::from_millis(10)..=Duration::from_hours(1);
        if !sane.contains(&self.timeout) {
            return Err("takes a timeout of 10ms to 1h".into());
        }
        if self
            .wait_timeout
            .is_some_and(|wait| wait.is_zero() || wait >= self.timeout)
        {
            return Err("takes a wait_timeout above zero and below the timeout".into());
        }
        Ok(())
    }

    /// The command behind a step that must be on replicas or on disk before it is acknowledged.
    pub(super) fn wait(&self) -> Option<redis::Cmd> {
        if self.wait_replicas == 0 && !self.wait_disk {
            return None;
        }
        let time = self.wait_timeout.unwrap_or(self.timeout / 5);
        // Zero would be "for ever".
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut wait = redis::cmd(if self.wait_disk { "WAITAOF" } else { "WAIT" });
        if self.wait_disk {
            wait.arg(1);
        }
        wait.arg(self.wait_replicas).arg(millis);
        Some(wait)
    }
}

async fn file(what: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
    let read = tokio::task::spawn_blocking({
        let path = path.to_owned();
        move || std::fs::read(path)
    });
    read.await.unwrap_or_else(|e| Err(e.into())).map_err(|e| {
        let message = format!("cannot read the {what} `{}`", path.display());
        StoreError::new(StoreErrorKind::Config, message).with_source(e)
    })
}

const YES_OR_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
const SCHEMES: [&str; 3] = ["redis", "rediss", "redis-cluster"];
