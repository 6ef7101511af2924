//! Opening a store by its URL.

use semel::memory::{Limits, MemoryStore};
use semel::{AnyStore, StoreError};

use crate::common::{Driver, Migrated, Obstacle, Schema};

/// What a URL does not say. Each store takes what concerns it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// `memory:`: how much it may hold.
    pub memory: Limits,
    /// `file:`: how much memory may hold blocks read from disk.
    pub cache_bytes: u64,
    /// `file:`: new claims are refused while the disk has less room than this.
    pub reserve_bytes: u64,
    /// On a server: what opening does where the store's tables are missing or old. A parameter
    /// `schema=expect|create|migrate` in the URL comes first.
    pub schema: Schema,
    /// Opens what is there and makes nothing: no directory, no file, and on a server no tables
    /// unless the URL says so. What is missing is an error that
    /// [is so](OpenError::is_missing).
    pub existing: bool,
}

impl Default for OpenOptions {
    /// A million records in memory; a cache of 32 MiB, a reserve of 256 MiB.
    fn default() -> Self {
        Self {
            memory: Limits::default(),
            cache_bytes: 32 << 20,
            reserve_bytes: 256 << 20,
            schema: Schema::default(),
            existing: false,
        }
    }
}

/// Why a store could not be opened. Names the scheme, never what follows it: a URL may hold a
/// password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no colon in it.
    #[error("a store's URL begins with its scheme, as in `file:./semel-data` or `memory:`")]
    NoScheme,
    /// No store has this scheme.
    #[error("there is no store `{scheme}:`; there are {}", known())]
    UnknownScheme {
        /// What stands before the colon.
        scheme: Box<str>,
    },
    /// The store is there, but not in this program.
    #[error(
        "`{scheme}:` needs the feature `{feature}` of semel-stores, which this program was built \
         without"
    )]
    FeatureOff {
        /// The URL's scheme.
        scheme: &'static str,
        /// The feature to build with.
        feature: &'static str,
    },
    /// What follows the scheme is not right.
    #[error("`{scheme}:` {reason}")]
    Invalid {
        /// The URL's scheme.
        scheme: &'static str,
        /// What would be right.
        reason: Box<str>,
    },
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenError {
    /// Whether there is nothing yet where the store should be: it has to be made first.
    pub fn is_missing(&self) -> bool {
        Obstacle::of(self) == Some(Obstacle::Missing)
    }

    pub(crate) fn invalid(scheme: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            scheme,
            reason: reason.into().into(),
        }
    }
}

/// The driver in a store's module, where its feature is on.
macro_rules! driver {
    ($feature:literal, $module:ident) => {{
        #[cfg(feature = $feature)]
        let driver = Some(crate::$module::DRIVER);
        #[cfg(not(feature = $feature))]
        let driver = None;
        driver
    }};
}

/// The schemes, the feature that each needs, and the way into its store where the feature is on. In the order in
/// which messages list them.
const SCHEMES: [(&str, &str, Option<Driver>); 10] = [
    ("memory", "", Some(MEMORY)),
    ("file", "file", driver!("file", embedded)),
    ("sqlite", "sqlite", driver!("sqlite", sqlite)),
    ("postgres", "postgres", driver!("postgres", postgres)),
    ("mysql", "mysql", driver!("mysql", mysql)),
    ("redis", "redis", driver!("redis", redis)),
    ("rediss", "redis", driver!("redis", redis)),
    ("redis-cluster", "redis", driver!("redis", redis)),
    ("dynamodb", "dynamodb", driver!("dynamodb", dynamodb)),
    ("nats", "nats", driver!("nats", nats)),
];

fn known() -> String {
    SCHEMES.map(|(scheme, ..)| scheme).join(", ")
}

/// The memory store, opened as the others are.
const MEMORY: Driver = Driver {
    check: |url| match url.split_once(':') {
        Some((_, "")) => Ok(()),
        _ => Err(OpenError::invalid(
            "memory",
            "takes nothing after the colon",
        )),
    },
    open: |_, options| {
        let store = AnyStore::new(MemoryStore::new(options.memory));
        Box::pin(async move { Ok(store) })
    },
    migrate: |_, _| Box::pin(async { Ok(Migrated::nothing()) }),
};

fn driver(url: &str) -> Result<Driver, OpenError> {
    let (name, _) = url.split_once(':').ok_or(OpenError::NoScheme)?;
    let found = SCHEMES.into_iter().find(|(scheme, ..)| *scheme == name);
    let Some((scheme, feature, driver)) = found else {
        return Err(OpenError::UnknownScheme {
            // Bounded, and not the rest: who forgets the scheme may have a password before a colon.
            scheme: name
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "+.-".contains(*c))
                .take(20)
                .collect(),
        });
    };
    let driver = driver.ok_or(OpenError::FeatureOff { scheme, feature })?;
    (driver.check)(url)?;
    Ok(driver)
}

/// Whether [`open`] understands `url`. Opens nothing, and looks at no disk or server.
///
/// # Errors
/// Those of [`open`], but for [`OpenError::Store`].
pub fn check_url(url: &str) -> Result<(), OpenError> {
    driver(url).map(drop)
}

/// Opens the store that `url` names. Which URLs there are, and their parameters, is said in
/// `docs/stores.md` and with each store's own options.
///
/// # Errors
/// [`OpenError`], which never repeats more of the URL than its scheme (and a file's path).
pub async fn open(url: &str, options: &OpenOptions) -> Result<AnyStore, OpenError> {
    let driver = driver(url)?;
    if !options.existing {
        return (driver.open)(url, options).await;
    }
    let mut options = options.clone();
    options.schema = Schema::Expect;
    (driver.open)(url, &options).await
}

/// Makes what the store that `url` names needs on its server (tables, a bucket), or brings it to
/// this version. Safe to run again, and by several at once.
///
/// # Errors
/// Those of [`open`].
pub async fn migrate(url: &str, options: &OpenOptions) -> Result<Migrated, OpenError> {
    (driver(url)?.migrate)(url, options).await
}
