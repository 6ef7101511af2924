//! The gateway: a reverse proxy that makes the operations of any HTTP service happen once.
//!
//! There is no idempotency logic here: [`stack`] puts the layer of `semel-tower` around [`proxy`],
//! which tells it what the upstream's silence means. The program `semel` is [`command`] around that;
//! `docs/gateway.md` describes it for operators.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;
pub mod admin;
pub mod api;
pub mod at_rest;
pub mod audit;
pub mod body;
mod bounded;
pub mod claims;
pub mod command;
pub mod config;
mod connection;
mod connector;
pub mod console;
pub mod cores;
pub mod descriptors;
mod driven;
pub mod events;
mod exchange;
mod headers;
mod logged;
pub mod metrics;
mod observe;
mod openapi;
pub mod operations;
pub mod peer;
pub mod pool;
pub mod principal;
mod problem;
pub mod proxy;
mod proxy_protocol;
pub mod reconcile;
pub mod refused;
mod reload;
pub mod routing;
pub mod serve;
mod shared;
pub mod stack;
pub mod store;
pub mod telemetry;
pub mod tls;
mod upgrade;
pub mod upstream;
mod wellformed;

pub use headers::{FENCE, ID};
