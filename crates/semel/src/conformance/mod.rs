//! The suite that every store passes, as data: a test harness, a command and a document are made
//! from [`CASES`].
//!
//! A store's author writes a [`Factory`] and runs every case with [`run`]. Each case has a
//! [`Bench`] of its own and uses identities that nobody else has, so that cases run at the same
//! time and on a server that others use too.
//!
//! ```
//! use semel::conformance::{Bench, CASES, Failure, Factory, run};
//! use semel::memory::MemoryStore;
//!
//! struct Memory;
//!
//! impl Factory for Memory {
//!     async fn open(&self) -> Result<Bench, Failure> {
//!         Ok(Bench::new(MemoryStore::default()).exclusive())
//!     }
//!
//!     async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap().block_on(async {
//! for case in CASES.iter().filter(|case| case.rules.contains(&"R3")) {
//!     run(case, &Memory).await.unwrap_or_else(|e| panic!("{}: {e}", case.name));
//! }
//! # });
//! ```
//!
//! Run it on a runtime with several threads, or the races are no races.

mod bench;
mod claim;
mod close;
mod complete;
mod expect;
mod expiry;
mod identity;
mod lease;
mod listing;
pub mod model;
mod note;
mod races;
mod release;
mod resolve;
mod steps;
mod tokens;
mod unknown;
mod waiting;

use std::fmt;
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

pub use bench::Bench;

use crate::StoreError;

/// One promise of the protocol, and the code that checks it on a store.
#[derive(Clone, Copy)]
pub struct Case {
    /// `group::case`, as a harness shows it.
    pub name: &'static str,
    /// What is promised, as a sentence.
    pub promise: &'static str,
    /// The rules of `docs/protocol.md` that the case checks.
    pub rules: &'static [&'static str],
    /// Checks it.
    pub run: Run,
}

/// The code of a [`Case`].
pub type Run =
    for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("promise", &self.promise)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// Makes stores for cases.
pub trait Factory: Sync {
    /// A store for one case, on records that may be shared with other cases.
    fn open(&self) -> impl Future<Output = Result<Bench, Failure>> + Send;

    /// Removes what [`open`](Self::open) made. Called after every case, failed or not; the case
    /// may have closed the store.
    fn clean(&self, bench: Bench) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What a store did wrong, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    message: Box<str>,
    at: &'static Location<'static>,
}

impl Failure {
    /// A failure noticed by the caller's line.
    #[track_caller]
    pub fn new(message: impl Into<Box<str>>) -> Self {
        Self {
            message: message.into(),
            at: Location::caller(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}:{})",
            self.message,
            self.at.file(),
            self.at.line()
        )
    }
}

impl std::error::Error for Failure {}

impl From<StoreError> for Failure {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        let mut message = format!("the store failed ({:?}): {error}", error.kind());
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            message.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self::new(message)
    }
}

/// Runs one case on a store of its own.
///
/// # Errors
/// [`Failure`] says what the store answered and what it should have, or that it took too long.
pub async fn run(case: &Case, factory: &impl Factory) -> Result<(), Failure> {
    let bench = factory.open().await?;
    let limit = bench.limit();
    let result = tokio::time::timeout(limit, (case.run)(&bench))
        .await
        .unwrap_or_else(|_| Err(Failure::new(format!("not done after {limit:?}"))));
    let cleaned = factory.clean(bench).await;
    result.and(cleaned)
}

/// Fails with a formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::new(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Fails unless both are equal.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($what:tt)+) => {{
        let (found, wanted) = (&$found, &$wanted);
        if found != wanted {
            let what = format!($($what)+);
            return Err($crate::conformance::Failure::new(format!(
                "{what}: found {found:?}, wanted {wanted:?}"
            )));
        }
    }};
}
pub(crate) use ensure_eq;

/// Lists the cases of one file.
macro_rules! cases {
    ($group:literal; $($run:ident [$($rule:ident)+] $promise:literal;)+) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            name: concat!($group, "::", stringify!($run)),
            promise: $promise,
            rules: &[$(stringify!($rule)),+],
            run: |bench| Box::pin($run(bench)),
        }),+];
    };
}
use cases;

const GROUPS: &[&[Case]] = &[
    claim::CASES,
    identity::CASES,
    lease::CASES,
    complete::CASES,
    release::CASES,
    unknown::CASES,
    resolve::CASES,
    steps::CASES,
    note::CASES,
    tokens::CASES,
    expiry::CASES,
    listing::CASES,
    waiting::CASES,
    races::CASES,
    close::CASES,
];

const COUNT: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].len();
        group += 1;
    }
    count
};

const ALL: [Case; COUNT] = {
    let mut all = [GROUPS[0][0]; COUNT];
    let (mut at, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut case = 0;
        while case < GROUPS[group].len() {
            all[at] = GROUPS[group][case];
            at += 1;
            case += 1;
        }
        group += 1;
    }
    all
};

/// Every case, grouped by what it is about.
pub const CASES: &[Case] = &ALL;

// Leases that are not meant to lapse, and retention that is not meant to end, while a case runs.
const LONG: Duration = Duration::from_hours(1);
