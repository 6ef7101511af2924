//! The lab: breaks stores while many processes use them, and checks what they were told.
//!
//! `docs/lab.md` says how to run it and how to read what it prints.

pub mod base;
pub mod bugs;
pub mod check;
pub mod clock;
pub mod controls;
pub mod crash;
pub mod events;
pub mod gateway;
pub mod history;
pub mod ledger;
pub mod lines;
pub mod lost;
pub mod named;
pub mod nemesis;
pub mod part;
pub mod power;
mod process;
pub mod reasons;
pub mod report;
pub mod simulation;
pub mod soak;
#[cfg(test)]
mod tables;
pub mod torture;
pub mod versioned;
pub mod worker;
