//! Consumers of real brokers, with a ledger in the database that the records are in.

#![cfg_attr(
    any(feature = "kafka", feature = "nats", feature = "rabbitmq"),
    allow(clippy::unwrap_used, reason = "a failed test is a panic")
)]

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod ledger;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
