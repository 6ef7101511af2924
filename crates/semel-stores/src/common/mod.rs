//! What stores share: how they are opened and closed, who waits here, the way to a store's own
//! thread and the disk under it, and how large an outcome may be. Nothing here knows a server or a rule of the protocol.

#[cfg(any(feature = "_server", feature = "file"))]
mod clear;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) mod disk;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
pub(crate) mod doubt;
mod driver;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod exchange;
#[cfg(feature = "_server")]
mod gate;
#[cfg(feature = "_location")]
mod location;
mod obstacle;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod pool;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod privacy;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) mod queue;
#[cfg(any(feature = "dynamodb", feature = "nats"))]
pub(crate) mod recent;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod scope;
#[cfg(any(
    feature = "dynamodb",
    feature = "file",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod size;
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
pub(crate) mod subscription;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) mod thread;
#[cfg(any(feature = "dynamodb", feature = "mysql", feature = "postgres"))]
pub(crate) mod versioned;
#[cfg(any(feature = "_server", feature = "file"))]
mod waiters;

#[cfg(feature = "_server")]
pub(crate) use self::gate::Gate;
#[cfg(any(feature = "_server", feature = "file"))]
pub(crate) use self::waiters::{Poll, Running, Waiters};
#[cfg(any(feature = "_server", feature = "file"))]
pub(crate) use clear::may_clear;
pub(crate) use driver::Driver;
pub use driver::{Migrated, Schema};
#[cfg(feature = "_location")]
pub(crate) use location::Location;
#[cfg(feature = "postgres")]
pub(crate) use location::unknown;
pub(crate) use obstacle::Obstacle;
#[cfg(any(
    feature = "dynamodb",
    feature = "file",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
pub(crate) use size::fits;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use size::fitting;
