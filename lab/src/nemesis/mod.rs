//! What goes wrong, and when.

mod fault;
pub mod flaky;
mod schedule;

pub use fault::{Fault, Lane};
pub use schedule::{Planned, plan};
