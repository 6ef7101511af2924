//! A client that retries without doing things twice.

pub mod decide;
