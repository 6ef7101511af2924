//! Where requests go.

mod address;

pub use address::{Address, Protocol};
