//! The programs, run as they are.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod clock;
mod payments;
mod program;
mod programs;
mod provider;
