//! Where a bucket is and how it is opened.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::stream::StorageType;
use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;
use url::Url;

use super::shared::Shared;
use super::{NatsStore, bucket};
use crate::common::{Location, Migrated, Schema};
use crate::{OpenError, OpenOptions};

const PARAMETERS: &str = "schema, timeout, replicas, storage, max_bytes, token, tls, ca, cert, key";
const SHORTEST: Duration = Duration::from_millis(50);

/// Who connects.
#[derive(Clone)]
enum Login {
    Nobody,
    User(Box<str>, Box<str>),
    Token(Box<str>),
}

/// How to open a [`NatsStore`].
///
/// By URL: `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST[:PORT]…]/BUCKET[?PARAMETER=…&…]`. What is
/// reserved in URLs is percent-encoded in user, password and token.
///
/// | parameter | unless given | what it does |
/// |---|---|---|
/// | `schema` | what the program asks for | `expect` a bucket, `create` it where there is none, `migrate` it |
/// | `timeout` | `5s` | how long a call may take; then it fails |
/// | `replicas` | `1` | copies of a bucket that is made or migrated: 1, 3 or 5 |
/// | `storage` | `file` | where a bucket that is made keeps records: `file`, `memory` |
/// | `max_bytes` | no limit | bytes after which a bucket that is made or migrated refuses claims |
/// | `token` | | a token, instead of one before the host |
/// | `tls` | `off` | `on` refuses a connection without TLS |
/// | `ca` | the system's | path of a PEM file with the authorities to trust; needs `tls=on` |
/// | `cert`, `key` | | paths of PEM files: the certificate to show, and its key; need `tls=on` |
#[derive(Clone)]
pub struct NatsOptions {
    pub(super) hosts: Vec<ServerAddr>,
    login: Login,
    pub(super) bucket: Box<str>,
    pub(super) timeout: Duration,
    pub(super) schema: Option<Schema>,
    pub(super) replicas: Option<usize>,
    pub(super) storage: StorageType,
    pub(super) max_bytes: Option<i64>,
    tls: bool,
    ca: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    pub(super) for_tests: bool,
}

impl std::fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsOptions")
            .field("bucket", &self.bucket)
            .field("timeout", &self.timeout)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl NatsOptions {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] says what would be right, and repeats nothing that may be secret.
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let (first, others) = split_hosts(url).ok_or_else(|| {
            OpenError::invalid(
                "nats",
                "takes one user before its hosts, as in `nats://USER:PASSWORD@HOST,HOST/BUCKET`; an \
                 `@` in a password is written `%40`",
            )
        })?;
        let mut from = Location::parse("nats", &first)?;
        let schema = from.schema()?;
        let timeout = from.duration("timeout")?;
        let replicas = from.take::<usize>("replicas", "1, 3 or 5")?;
        let kinds = [("file", StorageType::File), ("memory", StorageType::Memory)];
        let storage = from.choice("storage", &kinds)?;
        let max_bytes = from.take::<i64>("max_bytes", "a number of bytes")?;
        let token = from.take::<String>("token", "text")?;
        let tls = from.choice("tls", &[("on", true), ("off", false)])?;
        let ca = from.take::<PathBuf>("ca", "a path")?;
        let certificate = from.certificate(["cert", "key"])?;
        let wrong = |reason: &str| OpenError::invalid("nats", reason);
        if tls != Some(true) && (ca.is_some() || certificate.is_some()) {
            return Err(wrong(
                "has parameters `ca`, `cert` and `key`, which need `tls=on`",
            ));
        }
        if replicas.is_some_and(|n| !matches!(n, 1 | 3 | 5)) {
            return Err(wrong("parameter `replicas` must be 1, 3 or 5"));
        }
        if max_bytes.is_some_and(|n| n < 1) {
            return Err(wrong("parameter `max_bytes` must be above 0"));
        }
        let timeout = timeout.unwrap_or(Duration::from_secs(5));
        if timeout < SHORTEST {
            return Err(wrong("parameter `timeout` must be at least 50ms"));
        }
        let url = from.whole(PARAMETERS)?;
        let bucket = url.path().strip_prefix('/').unwrap_or_default();
        if !is_bucket(bucket) {
            return Err(wrong(
                "needs a bucket after the host, of letters, digits, `_` and `-`, as in \
                 `nats://localhost/semel`",
            ));
        }
        let mut hosts = vec![address(&url).ok_or_else(|| wrong("needs a host"))?];
        for host in others {
            let host = Url::parse(&format!("nats://{host}")).ok();
            let host = host.as_ref().and_then(address);
            hosts.push(
                host.ok_or_else(|| wrong("takes several hosts as `HOST[:PORT],HOST[:PORT]`"))?,
            );
        }
        let login = login(&url, token).ok_or_else(|| {
            wrong("takes either a user and password, or a token, percent-encoded where needed")
        })?;
        Ok(Self {
            hosts,
            login,
            bucket: bucket.into(),
            timeout,
            schema,
            replicas,
            storage: storage.unwrap_or_default(),
            max_bytes,
            tls: tls.unwrap_or_default(),
            ca,
            certificate,
            for_tests: false,
        })
    }

    /// The same from a URL, where what the URL does not say comes from `options`.
    pub(super) fn with_defaults(url: &str, options: &OpenOptions) -> Result<Self, OpenError> {
        let mut this = Self::from_url(url)?;
        this.schema.get_or_insert(options.schema);
        Ok(this)
    }

    /// What to do about a bucket that is not there.
    #[must_use]
    pub const fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// How long a call may take. 5 s unless set.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many copies a bucket that is made or migrated has: 1, 3 or 5.
    #[must_use]
    pub const fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Lets [`Clear`](semel::store::Clear) empty the bucket.
    #[must_use]
    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    /// Connects, looks at the bucket, and makes it where [`Schema`] says so.
    ///
    /// # Errors
    /// [`Config`](semel::StoreErrorKind::Config) says what to change;
    /// [`NotApplied`](semel::StoreErrorKind::NotApplied): no server was reached.
    pub async fn open(&self) -> Result<NatsStore, OpenError> {
        Ok(NatsStore(Shared::open(self).await?))
    }

    /// Makes the bucket, or brings it to this version and to the copies and limit asked for.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn migrate(&self) -> Result<Migrated, OpenError> {
        Ok(bucket::migrate(self).await?)
    }

    pub(super) fn driver(&self) -> ConnectOptions {
        let mut driver = ConnectOptions::new()
            .name("semel")
            .connection_timeout(self.timeout)
            .request_timeout(Some(self.timeout))
            // A server that is gone without a word is noticed within two of them.
            .ping_interval(Duration::from_secs(5))
            .reconnect_delay_callback(|attempt| match attempt {
                0 | 1 => Duration::ZERO,
                n => Duration::from_millis(50 * n.min(10) as u64),
            });
        match &self.login {
            Login::Nobody => {}
            Login::User(user, password) => {
                driver = driver.user_and_password(user.to_string(), password.to_string());
            }
            Login::Token(token) => driver = driver.token(token.to_string()),
        }
        if let Some(ca) = &self.ca {
            driver = driver.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = &self.certificate {
            driver = driver.add_client_certificate(certificate.clone(), key.clone());
        }
        driver.require_tls(self.tls)
    }
}

/// The URL with its first host alone, and the other hosts: several are no URL.
/// `None` where more than one part of it is before an `@`.
fn split_hosts(url: &str) -> Option<(String, Vec<&str>)> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Some((url.into(), Vec::new()));
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, _)) if user.contains('@') => return None,
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let mut hosts = hosts.split(',');
    let first = hosts.next().unwrap_or_default();
    Some((format!("{scheme}://{user}{first}{tail}"), hosts.collect()))
}

fn address(url: &Url) -> Option<ServerAddr> {
    let host = url.host_str().filter(|host| !host.is_empty())?;
    let port = url.port().unwrap_or(4222);
    let bare = Url::parse(&format!("nats://{host}:{port}")).ok()?;
    ServerAddr::from_url(bare).ok()
}

fn login(url: &Url, token: Option<String>) -> Option<Login> {
    let user = decoded(url.username())?;
    let password = url.password().map(decoded);
    match (user, password, token) {
        (user, None, None) if user.is_empty() => Some(Login::Nobody),
        (user, None, Some(token)) if user.is_empty() => Some(Login::Token(token.into())),
        // As NATS has it: a name without a password is a token.
        (token, None, None) => Some(Login::Token(token.into())),
        (user, Some(password), None) => Some(Login::User(user.into(), password?.into())),
        _ => None,
    }
}

/// Text without its percent-encoding; `None` where that is not whole.
fn decoded(text: &str) -> Option<String> {
    let is_byte = |code: &str| {
        let digits = code.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_byte) {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

fn is_bucket(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !name.is_empty() && name.len() <= 200 && name.chars().all(fits)
}
