//! What stores outside the process share: how they are opened and closed, and who waits here.
//! Nothing here knows a server or a rule of the protocol.

mod driver;
#[cfg(feature = "_server")]
mod gate;
#[cfg(feature = "_server")]
mod location;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod scope;
#[cfg(feature = "_server")]
mod waiters;

#[cfg(feature = "_server")]
pub(crate) use self::{
    gate::Gate,
    location::Location,
    waiters::{Poll, Running, Waiters},
};
pub(crate) use driver::Driver;
pub use driver::{Migrated, Schema};
#[cfg(feature = "postgres")]
pub(crate) use location::unknown;
