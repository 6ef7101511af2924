//! What goes wrong, and when.

pub mod flaky;
