//! Certificates that are replaced while the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval_at};

use super::Error;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What uses what is in files.
pub(crate) trait Replaceable: Send + Sync + 'static {
    /// What the files hold.
    type Contents: PartialEq + Send;

    /// For whom it is, in the log.
    fn whose(&self) -> &'static str;

    fn read(&self) -> Result<Self::Contents, Error>;

    /// Uses this from now on. If it cannot be used, nothing changes.
    fn replace(&self, contents: &Self::Contents) -> Result<(), Error>;
}

/// Reads files again.
pub(crate) struct Watch<R: Replaceable> {
    used: Arc<R>,
    seen: Result<R::Contents, String>,
}

impl<R: Replaceable> Watch<R> {
    pub(super) const fn new(used: Arc<R>, seen: R::Contents) -> Self {
        Self {
            used,
            seen: Ok(seen),
        }
    }

    /// Reads the files again when they change and at SIGHUP, for ever. What cannot be used is told once,
    /// and changes nothing.
    pub(crate) async fn run(mut self) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            return tracing::error!("TLS: no signals come: certificates are not read again");
        };
        let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        loop {
            let asked = tokio::select! {
                _ = look.tick() => false,
                _ = hangup.recv() => true,
            };
            let used = Arc::clone(&self.used);
            let read = move || used.read().map_err(|error| error.to_string());
            let Ok(read) = tokio::task::spawn_blocking(read).await else {
                continue;
            };
            if asked || read != self.seen {
                self.seen = read;
                self.take();
            }
        }
    }

    fn take(&self) {
        let replaced = match &self.seen {
            Ok(contents) => self
                .used
                .replace(contents)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        match replaced {
            Ok(()) => {
                let whose = self.used.whose();
                tracing::info!("TLS: new certificates for {whose} are in use");
            }
            Err(error) => tracing::error!("TLS: {error}; the old certificates stay in use"),
        }
    }
}
