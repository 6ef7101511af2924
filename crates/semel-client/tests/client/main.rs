//! The client, before services that do what goes wrong.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]
#![allow(
    clippy::print_stdout,
    reason = "processes tell the tests that kill them what they have done"
)]

mod answers;
mod budget;
mod cases;
mod intents;
#[cfg(feature = "reqwest")]
mod middleware;
#[cfg(feature = "file")]
mod outbox;
mod retrying;
mod support;
