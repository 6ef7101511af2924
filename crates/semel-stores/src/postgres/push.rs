//! Pushes to who waits: one connection that listens.
//!
//! `NOTIFY` makes commits queue up behind one lock of the whole server, so a step notifies only
//! where somebody waits for its record: a waiter first marks the record (`waited_for`), and whoever
//! ends the attempt sees the mark under the row's lock. The connection is made when somebody first
//! waits.

use std::sync::Arc;
use std::time::Duration;

use semel::IdentityDigest;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client};

use super::connect::Connector;
use super::hosts::Hosts;
use crate::common::Waiters;
use crate::common::subscription::{Listen, Up};

/// How often a silent connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(10);

/// What listens, and where.
#[derive(Clone)]
pub(super) struct Push {
    pub(super) connector: Arc<Connector>,
    pub(super) hosts: Arc<Hosts>,
    pub(super) waiters: Arc<Waiters>,
}

impl Listen for Push {
    async fn listen(&self, up: &Up, _times: usize) {
        if let Some((client, _reading)) = self.begin().await {
            up.begins();
            while alive(&client).await {}
        }
    }
}

/// Ends the task that reads when the one that listens ends.
struct Reading(JoinHandle<()>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Push {
    async fn begin(&self) -> Option<(Client, Reading)> {
        let begun = async {
            let (client, mut connection) = self.connector.dial(&self.hosts).await.ok()?;
            let waiters = self.waiters.clone();
            let reading = Reading(tokio::spawn(async move {
                let mut next =
                    async || std::future::poll_fn(|cx| connection.poll_message(cx)).await;
                while let Some(Ok(message)) = next().await {
                    if let AsyncMessage::Notification(told) = message
                        && let Some(digest) = IdentityDigest::from_hex(told.payload())
                    {
                        waiters.wake(&digest);
                    }
                }
            }));
            let listen = format!("LISTEN \"{}\"", self.connector.table.channel());
            client.batch_execute(&listen).await.ok()?;
            Some((client, reading))
        };
        timeout(self.connector.timeout, begun).await.ok().flatten()
    }
}

/// Waits a while, and says whether the connection is still there.
async fn alive(client: &Client) -> bool {
    for _ in 0..40 {
        sleep(PING / 40).await;
        if client.is_closed() {
            return false;
        }
    }
    matches!(timeout(PING, client.batch_execute("")).await, Ok(Ok(())))
}
