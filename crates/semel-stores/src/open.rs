//! Opening a store by its URL.

use semel::memory::{Limits, MemoryStore};
use semel::{AnyStore, StoreError};

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
}

impl Default for OpenOptions {
    /// A million records in memory; a cache of 32 MiB, a reserve of 256 MiB.
    fn default() -> Self {
        Self {
            memory: Limits::default(),
            cache_bytes: 32 << 20,
            reserve_bytes: 256 << 20,
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
    /// A store that later versions have.
    #[error("this version has no store `{scheme}:` (feature `{feature}`)")]
    NotYet {
        /// The URL's scheme.
        scheme: &'static str,
        /// The feature that it will have.
        feature: &'static str,
    },
    /// What follows the scheme is not right.
    #[error("`{scheme}:` {reason}")]
    Invalid {
        /// The URL's scheme.
        scheme: &'static str,
        /// What would be right.
        reason: &'static str,
    },
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Schemes and their features, in the order in which messages list them.
const SCHEMES: [(&str, &str); 10] = [
    ("memory", ""),
    ("file", "file"),
    ("sqlite", "sqlite"),
    ("postgres", "postgres"),
    ("mysql", "mysql"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis-cluster", "redis"),
    ("dynamodb", "dynamodb"),
    ("nats", "nats"),
];

fn known() -> String {
    SCHEMES.map(|(scheme, _)| scheme).join(", ")
}

/// A URL that was understood.
enum Target<'a> {
    Memory,
    File(&'a str),
}

fn parse(url: &str) -> Result<Target<'_>, OpenError> {
    let (scheme, rest) = url.split_once(':').ok_or(OpenError::NoScheme)?;
    let Some(&(scheme, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) else {
        return Err(OpenError::UnknownScheme {
            // Bounded, and not the rest: who forgets the scheme may have a password before a colon.
            scheme: scheme
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "+.-".contains(*c))
                .take(20)
                .collect(),
        });
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Target::Memory),
        "memory" => Err(OpenError::Invalid {
            scheme,
            reason: "takes nothing after the colon",
        }),
        "file" if cfg!(not(feature = "file")) => Err(OpenError::FeatureOff { scheme, feature }),
        "file" if rest.is_empty() => Err(OpenError::Invalid {
            scheme,
            reason: "needs the path of a directory, as in `file:./semel-data`",
        }),
        "file" => Ok(Target::File(rest)),
        _ => Err(OpenError::NotYet { scheme, feature }),
    }
}

/// Whether [`open`] understands `url`. Opens nothing, and looks at no disk or server.
///
/// # Errors
/// Those of [`open`], but for [`OpenError::Store`].
pub fn check_url(url: &str) -> Result<(), OpenError> {
    parse(url).map(drop)
}

/// Opens the store that `url` names: `memory:`, `file:PATH`.
///
/// # Errors
/// [`OpenError`], which never repeats more of the URL than its scheme (and a file's path).
pub async fn open(url: &str, options: &OpenOptions) -> Result<AnyStore, OpenError> {
    match parse(url)? {
        Target::Memory => Ok(AnyStore::new(MemoryStore::new(options.memory))),
        Target::File(path) => open_file(path, options).await,
    }
}

#[cfg(feature = "file")]
async fn open_file(path: &str, options: &OpenOptions) -> Result<AnyStore, OpenError> {
    let path = path.to_owned();
    let (done, opened) = tokio::sync::oneshot::channel();
    // Opening reads from disk: not on a thread that serves others.
    let file = crate::FileOptions::new()
        .cache_bytes(options.cache_bytes)
        .reserve_bytes(options.reserve_bytes);
    let opening = move || drop(done.send(file.open(&path)));
    let interrupted = || {
        StoreError::new(
            semel::StoreErrorKind::Config,
            "the thread that opens the store could not run",
        )
    };
    std::thread::Builder::new()
        .name("semel-open".into())
        .spawn(opening)
        .map_err(|e| interrupted().with_source(e))?;
    let store = opened.await.map_err(|_| interrupted())??;
    Ok(AnyStore::new(store))
}

#[cfg(not(feature = "file"))]
async fn open_file(_: &str, _: &OpenOptions) -> Result<AnyStore, OpenError> {
    Err(OpenError::FeatureOff {
        scheme: "file",
        feature: "file",
    })
}
