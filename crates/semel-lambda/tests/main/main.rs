//! The function as a process of its own, on a runtime API that is emulated here.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod batches;
mod broken;
mod envelopes;
mod limits;
mod receipts;
mod repeated;
mod requests;
mod stage;
mod storm;
