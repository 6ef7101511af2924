//! The stores, from outside.

#![cfg_attr(
    feature = "file",
    expect(
        clippy::unwrap_used,
        reason = "helpers of tests, which panic where something fails"
    )
)]

#[cfg(feature = "file")]
mod file;
mod open;
