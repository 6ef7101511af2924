//! What the library promises, a module for each part. The suite that stores pass is `conformance.rs`.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod backend;
mod bytes;
#[cfg(feature = "conformance")]
mod document;
mod faults;
mod flaky;
mod golden;
mod guard;
mod inbox;
#[cfg(feature = "conformance")]
mod model;
#[cfg(feature = "conformance")]
mod mutants;
mod observer;
mod operation;
mod reconcile;
mod scripted;
#[cfg(feature = "sealed")]
mod sealed;
mod secrets;
mod steps;
mod transact;
#[cfg(feature = "conformance")]
mod versioned;
