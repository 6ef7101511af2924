//! The program `semel`, run as a process in front of real sockets.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]
#![allow(
    clippy::print_stdout,
    reason = "measurements are for whoever runs the test"
)]

mod access;
mod admin;
#[cfg(all(feature = "file", feature = "sqlite", feature = "postgres"))]
mod at_rest;
mod bodies;
mod broken;
mod claims;
mod clients;
mod commands;
mod configuration;
mod console;
#[path = "../../../semel-tower/tests/http/conventions/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with tests that use the rest"
)]
mod conventions;
mod crash;
mod crowd;
mod demo;
mod dispositions;
mod documentation;
mod forwarded;
mod grpc;
mod https;
mod knobs;
mod large;
mod lifecycle;
mod limits;
mod log;
mod malformed;
mod note;
mod observe;
mod once;
mod operate;
#[cfg(feature = "redis")]
mod outage;
mod presets;
mod principal;
mod quotas;
mod reconcile;
mod reload;
mod routes;
mod run;
mod scope;
#[cfg(feature = "sqlite")]
mod services;
#[cfg(unix)]
mod shortage;
mod stores;
mod streams;
mod support;
mod tls;
mod traces;
mod tunnels;
mod upstream;
mod upstreams;
mod wire;
