//! Read, change, write; and again where somebody else was first.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::{Expected, NaturalKey, Version, Versioned, VersionedStore, WriteError, rule};
use crate::store::Nonce;
use crate::{StoreError, StoreErrorKind};

/// How often, and after what pauses, an [`update`] is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// At most so many tries, the first among them; at least one.
    pub tries: u32,
    /// The pause after the first try is up to this long, after each further one up to twice as long.
    /// How long within that is left to chance, so that writers who met do not meet again.
    pub pause: Duration,
    /// No pause is longer.
    pub longest: Duration,
}

impl Default for Retries {
    /// 32 tries, up to 5 ms at first and up to 1 s at most. Enough for 32 writers who do nothing but
    /// write the same record.
    fn default() -> Self {
        Self {
            tries: 32,
            pause: Duration::from_millis(5),
            longest: Duration::from_secs(1),
        }
    }
}

/// Why an [`update`] came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError<E> {
    /// The caller's function refused to change it. Nothing was written.
    #[error("the change was refused")]
    Refused(#[source] E),
    /// Others were first whenever it was tried. Nothing was written.
    #[error("concurrent modification: others wrote first in each of {tries} tries")]
    Contended {
        /// How often it was tried.
        tries: u32,
        /// What the last one found.
        found: Option<Version>,
    },
    /// The store failed. Of kind [`Unknown`](StoreErrorKind::Unknown): it may have been written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Changes a record by what it is: reads it, asks `change` for the new value, and writes that where
/// the record is still as it was read. Where it is not, all of it is done again after a pause, as
/// often as `retries` says. The answer is what was written.
///
/// `change` may be asked several times, each time with what is there then (`None`: nothing), and must
/// have no effect of its own.
///
/// A lost answer is asked for again under the same nonce, so that one update changes the record once.
/// Where others changed it since, and it cannot be told, the error is of kind
/// [`Unknown`](StoreErrorKind::Unknown).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use semel::Scope;
/// use semel::versioned::{MemoryVersioned, NaturalKey, Retries, UpdateError, update};
///
/// let store = MemoryVersioned::default();
/// let stock = NaturalKey::new(Scope::new(["shop"]), "apples");
/// let take = |count: u64| {
///     update(&store, &stock, Retries::default(), move |found| {
///         let left: u64 = match found {
///             Some(found) => String::from_utf8_lossy(&found.value).parse().map_err(|_| "no number")?,
///             None => 10,
///         };
///         let left = left.checked_sub(count).ok_or("not so many left")?;
///         Ok::<_, &str>(left.to_string().into())
///     })
/// };
/// assert_eq!(take(3).await.unwrap().value, "7");
/// assert_eq!(take(7).await.unwrap().value, "0");
/// assert!(matches!(take(1).await, Err(UpdateError::Refused("not so many left"))));
/// # Ok(()) }
/// ```
///
/// # Errors
/// See [`UpdateError`].
pub async fn update<S, E, F>(
    store: &S,
    key: &NaturalKey,
    retries: Retries,
    mut change: F,
) -> Result<Versioned, UpdateError<E>>
where
    S: VersionedStore,
    F: FnMut(Option<&Versioned>) -> Result<Bytes, E>,
{
    let mut tried = 0;
    loop {
        let found = store.read(key).await?;
        let value = change(found.as_ref()).map_err(UpdateError::Refused)?;
        let expected = found.map_or(Expected::Absent, |found| Expected::Version(found.version));
        let writer = Nonce::random()?;
        tried += 1;
        match write(store, key, expected, &value, writer).await {
            Ok(version) => return Ok(Versioned { version, value }),
            Err(WriteError::ConcurrentModification { found, .. }) => {
                if tried >= retries.tries {
                    return Err(UpdateError::Contended {
                        tries: tried,
                        found,
                    });
                }
            }
            Err(WriteError::Store(error)) => return Err(UpdateError::Store(error)),
        }
        sleep(retries.pause_after(tried)).await;
    }
}

/// Writes, and asks once more where the answer was lost.
async fn write<S: VersionedStore>(
    store: &S,
    key: &NaturalKey,
    expected: Expected,
    value: &Bytes,
    writer: Nonce,
) -> Result<Version, WriteError> {
    let written = store.write_as(key, expected, value.clone(), writer).await;
    let lost = match written {
        Err(WriteError::Store(error)) if error.kind() == StoreErrorKind::Unknown => error,
        other => return other,
    };
    match store.write_as(key, expected, value.clone(), writer).await {
        Err(WriteError::ConcurrentModification { expected, found }) => {
            if rule::never_happened(expected, found) {
                Err(WriteError::ConcurrentModification { expected, found })
            } else {
                Err(WriteError::Store(lost))
            }
        }
        // Refused for certain this time; the first is still an open question.
        Err(WriteError::Store(_)) => Err(WriteError::Store(lost)),
        Ok(version) => Ok(version),
    }
}

impl Retries {
    /// Up to `pause`, then up to twice as long, … and not all for the same time.
    fn pause_after(&self, tried: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(tried.saturating_sub(1));
        let most = self.pause.saturating_mul(doubled).min(self.longest);
        let chance = Nonce::random().map_or(u16::MAX, |nonce| {
            let bytes = nonce.as_bytes();
            u16::from_be_bytes([bytes[0], bytes[1]])
        });
        most.saturating_mul(u32::from(chance)) / u32::from(u16::MAX)
    }
}
