//! Where requests go: addresses, which of them can be used (`health`), and which gets a request
//! (`choice`).

mod address;
mod choice;
mod health;

pub use address::{Address, Protocol};
pub(crate) use choice::{Busy, Upstreams};
pub(crate) use health::Health;
