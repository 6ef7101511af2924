//! One connection, or the client of a Cluster, and what goes over it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::Instant;

use super::scripts::Script;

/// A script on one key, and what to wait for after it.
pub(super) struct Call<'a> {
    pub(super) script: &'a Script,
    pub(super) key: &'a str,
    pub(super) args: &'a [Arg<'a>],
    /// `WAIT` or `WAITAOF`, sent behind the script in the same packet.
    pub(super) wait: Option<&'a Cmd>,
    /// When it is given up.
    pub(super) until: Instant,
}

/// An argument of a script.
pub(super) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

impl Arg<'_> {
    pub(super) fn flag(flag: bool) -> Self {
        Self::Number(flag.into())
    }

    pub(super) fn count(count: usize) -> Self {
        Self::Number(u64::try_from(count).unwrap_or(u64::MAX))
    }

    pub(super) fn micros(duration: Duration) -> Self {
        Self::Number(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    // At least what it takes.
    const fn room(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => 20,
        }
    }
}

impl Call<'_> {
    fn command(&self, as_text: bool) -> Cmd {
        let (name, script) = match as_text {
            true => ("EVAL", &self.script.code),
            false => ("EVALSHA", &self.script.hash),
        };
        // Room for all, at once.
        let bytes: usize = self.args.iter().map(Arg::room).sum();
        let bytes = name.len() + script.len() + 1 + self.key.len() + bytes;
        let mut command = Cmd::with_capacity(4 + self.args.len(), bytes);
        command.arg(name).arg(script).arg(1).arg(self.key);
        for arg in self.args {
            match arg {
                Arg::Bytes(bytes) => command.arg(*bytes),
                Arg::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

/// What a script answered, and `WAIT` behind it.
pub(super) type Answer = (Value, Option<Value>);

/// A node of a Cluster by its address; `None` is the one server that there is.
pub(super) type Node = Option<(String, u16)>;

/// A connection that can be shared: clones send over the same one.
#[derive(Clone)]
pub(super) enum Wire {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Wire {
    /// `as_text`: whether the script is sent as such, and not by its digest.
    pub(super) async fn call(&mut self, call: &Call<'_>, as_text: bool) -> RedisResult<Answer> {
        let command = call.command(as_text);
        let to = || {
            let route = Route::with_key(call.key, SlotAddr::Master);
            SingleNodeRoutingInfo::SpecificNode(route)
        };
        let Some(wait) = call.wait else {
            let answer = match self {
                Self::Single(wire) => wire.send_packed_command(&command).await,
                Self::Cluster(wire) => {
                    let to = RoutingInfo::SingleNode(to());
                    wire.route_command(command, to).await
                }
            };
            return Ok((checked(answer?)?, None));
        };
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(command).add_command(wait.clone());
        let mut answers = self.pipeline(pipeline, to).await?.into_iter();
        let answer = checked(answers.next().unwrap_or_default())?;
        Ok((answer, answers.next()))
    }

    /// The answers one by one: an error is one of them.
    pub(super) async fn pipeline(
        &mut self,
        pipeline: Pipeline,
        to: impl FnOnce() -> SingleNodeRoutingInfo,
    ) -> RedisResult<Vec<Value>> {
        let count = pipeline.len();
        match self {
            Self::Single(wire) => wire.send_packed_commands(&pipeline, 0, count).await,
            Self::Cluster(wire) => wire.route_pipeline(pipeline, 0, count, to()).await,
        }
    }
}

// Errors may come as values, also within lists.
pub(super) fn checked(value: Value) -> RedisResult<Value> {
    value.extract_error()
}

/// Where in a Cluster a command for a node goes.
pub(super) fn on(node: &Node) -> SingleNodeRoutingInfo {
    match node {
        Some((host, port)) => SingleNodeRoutingInfo::ByAddress {
            host: host.clone(),
            port: *port,
        },
        None => SingleNodeRoutingInfo::RandomPrimary,
    }
}
