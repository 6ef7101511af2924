//! A run: workers, faults, and what the checker says of them.

pub mod local;
