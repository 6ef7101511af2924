//! What stands between a process and its server, and what happens there.

use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::proxy::{Fault, Proxy};
use tokio::sync::RwLockReadGuard;
use tokio::time::{sleep, timeout};

use super::point::{Point, Strike};
use crate::base::Place;

const PATIENCE: Duration = Duration::from_secs(60);
/// Without an answer for so long, all that was sent together is done. The first may have been the answer to
/// something else that was under way.
const QUIET: Duration = Duration::from_millis(150);
/// So long at most: whoever gets no answer asks again.
const ALL_DONE: Duration = Duration::from_secs(2);

/// The way of one process to its server: a proxy, or nothing before a file.
#[derive(Debug)]
pub(crate) struct Wire(Option<Proxy>);

/// What came of a strike.
#[derive(Debug)]
pub(crate) enum Struck<'a> {
    /// It is to be killed. What it sent is to arrive: until then nobody kills the server.
    Dies(#[expect(dead_code, reason = "held, not read")] Option<RwLockReadGuard<'a, ()>>),
    /// It lives, and must find out.
    Lives,
    /// The server was killed before, and with it the connection that this was about; or the attempt's
    /// lease had ended, and another did the work. It is to be killed, and nothing follows from that.
    TooLate,
}

impl Wire {
    /// One to this place, and the URL by which the store is opened through it.
    pub(crate) fn to(place: &Place) -> Result<(Self, String)> {
        Ok(match place.proxy()? {
            Some((proxy, url)) => (Self(Some(proxy)), url),
            None => (Self(None), place.url().to_owned()),
        })
    }

    fn proxy(&self) -> Result<&Proxy> {
        self.0.as_ref().context("there is no wire")
    }

    /// What happens to a process that stands at this point, on a connection that it made after so
    /// many restarts of the server. `go` lets it go on; where its answers are lost, `done` is there once
    /// the server has done what it was sent, and says whether that was the process's.
    pub(crate) async fn strike<'a>(
        &self,
        place: &'a Place,
        restarts: u64,
        at: Point,
        chance: &mut fastrand::Rng,
        go: impl AsyncFnOnce() -> Result<()>,
        done: impl AsyncFnOnce() -> Result<bool>,
    ) -> Result<Struck<'a>> {
        let fault = match at.strike() {
            Strike::Stand => return Ok(Struck::Dies(None)),
            Strike::Race => {
                let most = if at == Point::Random { 15_000 } else { 3_000 };
                sleep(Duration::from_micros(chance.u64(..most))).await;
                return Ok(Struck::Dies(None));
            }
            Strike::Restart => return self.restart(place, restarts, chance, go).await,
            Strike::Hold => Fault::Blackhole,
            Strike::Swallow | Strike::Cut | Strike::CutThenStand => Fault::SwallowAnswers,
        };
        let up = place.stays_up().await;
        if place.restarts() != restarts {
            return Ok(Struck::TooLate);
        }
        self.meet(fault, go).await?;
        // Not at the first answer to several statements: the server gives up the others where it cannot send it.
        if at.strike() != Strike::Hold && !done().await? {
            return Ok(Struck::TooLate);
        }
        if let Strike::Cut | Strike::CutThenStand = at.strike() {
            self.proxy()?.cut();
            self.proxy()?.set(Fault::None);
            return Ok(Struck::Lives);
        }
        Ok(Struck::Dies(Some(up)))
    }

    /// Until this fault has met what the process sent.
    async fn meet(&self, fault: Fault, go: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let proxy = self.proxy()?;
        let before = proxy.hits();
        proxy.set(fault);
        go().await?;
        let met = async {
            while proxy.hits() == before {
                sleep(Duration::from_micros(200)).await;
            }
        };
        timeout(PATIENCE, met)
            .await
            .context("a fault on the wire met nothing")
    }

    /// Until the server has done what it was sent, as far as one can see from here.
    pub(crate) async fn all_done(&self) -> Result<()> {
        let proxy = self.proxy()?;
        let quiet = async {
            let mut answers = 0;
            while answers != proxy.hits() {
                answers = proxy.hits();
                sleep(QUIET).await;
            }
        };
        timeout(ALL_DONE, quiet).await.ok();
        Ok(())
    }

    /// Kills the server while it commits: at some moment, or once it has and before anybody knows.
    async fn restart(
        &self,
        place: &Place,
        restarts: u64,
        chance: &mut fastrand::Rng,
        go: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Struck<'static>> {
        let alone = place.goes_down().await;
        if place.restarts() != restarts {
            return Ok(Struck::TooLate);
        }
        if chance.bool() {
            self.meet(Fault::SwallowAnswers, go).await?;
            self.all_done().await?;
        } else {
            go().await?;
            sleep(Duration::from_micros(chance.u64(..3_000))).await;
        }
        place.restart(&alone)?;
        self.proxy()?.set(Fault::None);
        Ok(Struck::Lives)
    }

    /// The process was killed. What was held on the way arrives later.
    pub(crate) fn end(&mut self, strike: Strike, chance: &mut fastrand::Rng) {
        if let Some(proxy) = self.0.take()
            && strike == Strike::Hold
        {
            let later = Duration::from_millis(chance.u64(..1000));
            tokio::spawn(async move {
                sleep(later).await;
                proxy.set(Fault::None);
                // What was held arrives before the connection ends.
                sleep(Duration::from_millis(500)).await;
                drop(proxy);
            });
        }
    }
}
