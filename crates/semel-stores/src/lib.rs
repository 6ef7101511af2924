//! Durable stores for [`semel`]. Each is a feature; none is on by default.
//!
//! | feature | URL | store | an acknowledged step survives |
//! |---|---|---|---|
//! | – | `memory:` | [`semel::memory::MemoryStore`] | nothing: it lives in the process |
//! | `file` | `file:PATH` | `FileStore`, embedded, for one process | a loss of power |
//! | `mysql` | `mysql://…` | `MysqlStore`, on MySQL or MariaDB | a loss of power, with the server's defaults for it |
//! | `dynamodb` | `dynamodb://TABLE` | `DynamoDbStore`, on AWS's DynamoDB | the loss of a zone, as AWS says |
//!
//! [`open`] picks by URL; each store also has a constructor of its own.

mod common;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "file")]
pub mod embedded;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use common::{Migrated, Schema};
#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoDbOptions, DynamoDbStore};
#[cfg(feature = "file")]
pub use embedded::{FileOptions, FileStore};
#[cfg(feature = "mysql")]
pub use mysql::{MysqlOptions, MysqlStore, MysqlTransaction};
#[cfg(feature = "nats")]
pub use nats::{NatsOptions, NatsStore};
pub use open::{OpenError, OpenOptions, check_url, migrate, open};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore, PostgresTransaction};
#[cfg(feature = "redis")]
pub use redis::{RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, SqliteTransaction};
