//! The Rust that the documents show, compiled; `scripts/check-docs` holds the documents to it. What can be
//! run without a server is run by the tests.

#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "it is shown, and only some of it is run"
)]

mod clients;
mod events;
mod jobs;
mod keys;
mod serverless;
mod steps;
mod transactions;
mod unknown;
mod versioned;
