//! What goes wrong, and when.

mod chosen;
mod fault;
pub mod flaky;
mod schedule;
mod wall;

pub use chosen::Chosen;
pub use fault::{Fault, Lane};
pub use schedule::{Planned, UPSTREAM_TIMEOUT, plan};
pub(crate) use schedule::{SHORTEST_REST, lasts};
pub(crate) use wall::{Wall, Wrong};
