//! How soon who waits is woken.

use std::sync::Arc;
use std::time::Duration;

use semel_testkit::servers::{Nats, Server as _};

use super::{open, unique, with_bucket};
use crate::servers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_by_another_handle_wakes() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("wake"));
    let (store, other) = (open(&url).await, Arc::new(open(&url).await));
    let took = servers::woken(&store, &other, 41, Duration::from_millis(20)).await;
    println!(
        "woken after the completion's answer: median {:?}, longest {:?}",
        took[20], took[40]
    );
    // By the push, not by the look that comes after half a second.
    assert!(
        took[20] < Duration::from_millis(300),
        "median {:?}",
        took[20]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_waits() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("close"));
    servers::closing_ends_waits(open(&url).await).await;
}
