//! Durable stores for [`semel`]. Each is a feature; none is on by default.
//!
//! | feature | URL | store | an acknowledged step survives |
//! |---|---|---|---|
//! | – | `memory:` | [`semel::memory::MemoryStore`] | nothing: it lives in the process |
//! | `file` | `file:PATH` | `FileStore`, embedded, for one process | a loss of power |
//! | `sqlite` | `sqlite:PATH` | `SqliteStore`, for the processes of one machine; transactions | a loss of power |
//! | `postgres` | `postgres://…` | `PostgresStore`; transactions | what the server's commits survive: by default a loss of power |
//! | `postgres-sqlx` | | `postgres::SqlxSteps`, on an application's own sqlx connections | the same |
//! | `mysql` | `mysql://…` | `MysqlStore`, on MySQL or MariaDB; transactions | the same |
//! | `redis` | `redis://…`, `rediss://…`, `redis-cluster://…` | `RedisStore`, on Redis or Valkey | what its settings promise: from nothing to a loss of power |
//! | `nats` | `nats://HOST/BUCKET` | `NatsStore`, on NATS JetStream | a crash; with three copies the loss of a node |
//! | `dynamodb` | `dynamodb://TABLE` | `DynamoDbStore`, on AWS's DynamoDB | the loss of a zone, as AWS says |
//!
//! `objects` and `objects-s3`: `Offloaded` is put around any of them, and keeps large answers outside it, in
//! a folder or in a bucket.
//!
//! [`open`] picks by URL; each store also has a constructor of its own.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod common;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "file")]
pub mod embedded;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "objects")]
pub mod objects;
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
