//! Events from a stream of NATS JetStream, acknowledged after the commit.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use semel_events::Delivery as _;
use semel_events::nats::Delivery;
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use crate::consumer::{Consumer, NAME};

async fn stream(server: &str, stream: &str) -> Result<(jetstream::Context, Stream)> {
    let jetstream = jetstream::new(async_nats::connect(server).await?);
    let settings = stream::Config {
        name: stream.into(),
        ..stream::Config::default()
    };
    let stream = jetstream.get_or_create_stream(settings).await?;
    Ok((jetstream, stream))
}

/// Handles events as they come, so many at a time, until `stopped` is ready. The server delivers
/// again what is not acknowledged in `patience`.
pub(crate) async fn consume(
    (server, name): (&str, &str),
    consumer: &Consumer,
    workers: usize,
    patience: Duration,
    stopped: impl Future<Output = ()>,
) -> Result<()> {
    let (_, stream) = stream(server, name).await?;
    let settings = pull::Config {
        durable_name: Some(NAME.into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: patience,
        ..pull::Config::default()
    };
    let messages = stream.create_consumer(settings).await?.messages().await?;
    let settled = messages
        .take_until(stopped)
        .map(|message| async {
            let delivery = Delivery::new(message?)?.with_progress_every(patience / 3);
            let settled = delivery.settle(|| consumer.handle(delivery.event())).await;
            // One that could not be told is delivered again, as a duplicate.
            if let Err(error) = settled.answer {
                writeln!(std::io::stderr(), "to be delivered again: {error}").ok();
            }
            anyhow::Ok(())
        })
        .buffer_unordered(workers);
    let mut settled = std::pin::pin!(settled);
    while let Some(done) = settled.next().await {
        done?;
    }
    Ok(())
}

/// Publishes each line under the id of its event. A line that has none is an event of its own each
/// time that it is published.
pub(crate) async fn publish(
    lines: impl AsyncBufRead + Unpin,
    (server, name): (&str, &str),
) -> Result<usize> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    let (jetstream, _) = stream(server, name).await?;
    let (mut lines, mut count) = (lines.lines(), 0);
    while let Some(line) = lines.next_line().await? {
        let mut message = PublishMessage::build();
        if let Ok(Named { id }) = serde_json::from_str(&line) {
            message = message.message_id(id);
        }
        let message = message.payload(line.into());
        let stored = jetstream.send_publish(name.to_owned(), message).await?;
        stored.await.context("the stream did not take an event")?;
        count += 1;
    }
    Ok(count)
}
