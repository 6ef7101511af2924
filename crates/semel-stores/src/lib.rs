//! Durable stores for [`semel`]. Each is a feature; none is on by default.
//!
//! | feature | URL | store | an acknowledged step survives |
//! |---|---|---|---|
//! | – | `memory:` | [`semel::memory::MemoryStore`] | nothing: it lives in the process |
//! | `file` | `file:PATH` | `FileStore`, embedded, for one process | a loss of power |
//!
//! [`open`] picks by URL; each store also has a constructor of its own.

#[cfg(feature = "file")]
pub mod embedded;
mod open;

#[cfg(feature = "file")]
pub use embedded::{FileOptions, FileStore};
pub use open::{OpenError, OpenOptions, check_url, open};
