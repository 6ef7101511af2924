//! The stores, from outside.

#[cfg(feature = "file")]
mod file;
mod open;
