//! The pool that steps share, before PostgreSQL or a simulated server: [`crate::common::pool`] says how.

#[cfg(test)]
mod simulation;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel::IdentityDigest;
use semel::store::Result;

use super::PostgresOptions;
use super::connect::{Connector, Link};
use super::error::Failed;
use super::group;
use super::row::{Columns, Param};
use super::sql::Kind;
use super::step::{self, Step};
use crate::common::exchange::{Recorder, Reply, Request};
pub(super) use crate::common::pool::Sent;
use crate::common::pool::{self, Limits, Open, Queued};

/// The connections of one store.
pub(super) type Pool<W = Connector> = pool::Pool<W>;

/// What makes connections and sends on them: to PostgreSQL, or to a simulated server.
pub(crate) trait Wire: Send + Sync + 'static {
    type Link: Open + Send + Sync + 'static;
    type Row: Columns + Send + 'static;

    /// A connection, ready for steps.
    fn connect(&self) -> impl Future<Output = Result<Self::Link>> + Send;

    /// Runs one statement. On its first poll it is sent.
    fn run(
        &self,
        link: &Self::Link,
        step: &Step,
    ) -> impl Future<Output = Result<Vec<Self::Row>, Failed>> + Send;

    /// Runs a statement without parameters or rows. On its first poll it is sent.
    fn simple(
        &self,
        link: &Self::Link,
        text: &str,
    ) -> impl Future<Output = Result<(), Failed>> + Send;
}

impl<W: Wire> pool::Wire for W {
    const SERVER: &str = "PostgreSQL";
    const STORE: &str = "postgres";

    type Link = W::Link;
    type Step = Step;
    type Answer = Vec<W::Row>;

    async fn connect(&self) -> Result<W::Link> {
        Wire::connect(self).await
    }

    async fn run(&self, link: &mut W::Link, step: &Step) -> Result<Vec<W::Row>, Failed> {
        Wire::run(self, link, step).await
    }

    async fn run_together(
        &self,
        link: &mut W::Link,
        steps: &[Arc<Step>],
        timeout: Duration,
    ) -> Result<Vec<Vec<W::Row>>, Failed> {
        group::run(self, link, steps, timeout).await
    }
}

impl<W: Wire> Recorder for W {
    fn step(&self, request: &Request<'_>, _: u32) -> Step {
        step::of(request)
    }

    fn reply(&self, request: &Request<'_>, rows: &Vec<W::Row>) -> Result<Reply> {
        step::reply(request, rows)
    }
}

impl Queued for Step {
    fn digest(&self) -> Option<IdentityDigest> {
        self.digest
    }

    fn inserts(&self) -> bool {
        self.kind == Kind::ClaimNew
    }

    fn alone(&self) -> bool {
        self.kind.alone()
    }

    fn is_forgettable(&self) -> bool {
        self.kind == Kind::ClaimNew && matches!(self.params.last(), Some(Param::Bool(true)))
    }

    fn reads(&self) -> bool {
        self.kind.reads()
    }
}

impl From<&PostgresOptions> for Limits {
    fn from(options: &PostgresOptions) -> Self {
        Self {
            connections: options.connections,
            group: options.group,
            timeout: options.timeout,
        }
    }
}

impl Pool {
    pub(super) fn connector(&self) -> &Connector {
        self.wire()
    }

    /// A connection for whoever needs more than a step.
    pub(super) async fn link(&self) -> Result<Link> {
        self.wire().connect_bare().await
    }
}

pub(super) fn closed() -> semel::StoreError {
    pool::closed::<Connector>()
}
