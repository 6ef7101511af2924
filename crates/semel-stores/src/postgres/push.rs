//! Pushes to who waits: one connection that listens.
//!
//! `NOTIFY` makes commits queue up behind one lock of the whole server, so a step notifies only
//! where somebody waits for its record: a waiter first marks the record (`waited_for`), and whoever
//! ends the attempt sees the mark under the row's lock. The connection is made when somebody first
//! waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel::IdentityDigest;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client};

use parking_lot::Mutex;

use super::connect::Connector;
use super::hosts::Hosts;
use crate::common::Waiters;

/// How often a silent connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(10);

/// The longest pause before the connection is made again.
const LONGEST: Duration = Duration::from_secs(5);

/// The connection that listens, once somebody waits.
pub(super) struct Push {
    connector: Arc<Connector>,
    // `None`: nobody listens.
    hosts: Option<Arc<Hosts>>,
    waiters: Arc<Waiters>,
    up: Arc<AtomicBool>,
    task: Mutex<Option<AbortHandle>>,
}

impl Push {
    pub(super) fn new(
        connector: Arc<Connector>,
        hosts: Option<Hosts>,
        waiters: Arc<Waiters>,
    ) -> Self {
        Self {
            connector,
            hosts: hosts.map(Arc::new),
            waiters,
            up: Arc::default(),
            task: Mutex::new(None),
        }
    }

    /// Whether changes are pushed now. Who waits is woken when that begins, and when it ends.
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    /// Makes the connection where there is none yet.
    pub(super) fn start(&self) {
        let Some(hosts) = &self.hosts else {
            return;
        };
        let mut task = self.task.lock();
        if task.is_none() {
            let listening = listen(
                self.connector.clone(),
                hosts.clone(),
                self.waiters.clone(),
                self.up.clone(),
            );
            *task = Some(tokio::spawn(listening).abort_handle());
        }
    }

    pub(super) fn close(&self) {
        if let Some(task) = &*self.task.lock() {
            task.abort();
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.close();
    }
}

async fn listen(
    connector: Arc<Connector>,
    hosts: Arc<Hosts>,
    waiters: Arc<Waiters>,
    up: Arc<AtomicBool>,
) {
    let mut pause = Duration::from_millis(50);
    loop {
        if let Some((client, reading)) = begin(&connector, &hosts, &waiters).await {
            pause = Duration::from_millis(50);
            up.store(true, Ordering::SeqCst);
            // What was told before is lost.
            waiters.wake_all();
            while alive(&client).await {}
            up.store(false, Ordering::SeqCst);
            drop(reading);
            waiters.wake_all();
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Ends the task that reads when the one that listens ends.
struct Reading(JoinHandle<()>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn begin(
    connector: &Connector,
    hosts: &Hosts,
    waiters: &Arc<Waiters>,
) -> Option<(Client, Reading)> {
    let begun = async {
        let (client, mut connection) = connector.dial(hosts).await.ok()?;
        let waiters = waiters.clone();
        let reading = Reading(tokio::spawn(async move {
            let mut next = async || std::future::poll_fn(|cx| connection.poll_message(cx)).await;
            while let Some(Ok(message)) = next().await {
                if let AsyncMessage::Notification(told) = message
                    && let Some(digest) = IdentityDigest::from_hex(told.payload())
                {
                    waiters.wake(&digest);
                }
            }
        }));
        let listen = format!("LISTEN \"{}\"", connector.table.channel());
        client.batch_execute(&listen).await.ok()?;
        Some((client, reading))
    };
    timeout(connector.timeout, begun).await.ok().flatten()
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
