//! The stores, from outside.

#![cfg_attr(
    any(feature = "_server", feature = "file"),
    allow(
        clippy::unwrap_used,
        reason = "helpers of tests, which panic where something fails"
    )
)]
#![allow(
    clippy::print_stdout,
    reason = "measurements are for whoever runs the test"
)]

#[cfg(any(
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
mod certificates;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod crash;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "file")]
mod file;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod inbox;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(all(feature = "objects-s3", feature = "sqlite"))]
mod objects;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod runtimes;
#[cfg(any(feature = "dynamodb", feature = "nats", feature = "redis"))]
mod servers;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod steps;
