//! Events from a file or a pipe, one a line. Nobody delivers a line again: one that fails is tried
//! again in its place.

use anyhow::Result;
use futures_util::{StreamExt as _, stream};
use semel::inbox::Event;
use semel_events::{Delivery, TellError, Verdict, until_settled};
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use crate::consumer::Consumer;

struct Line(Event);

impl Line {
    fn new(text: String) -> Self {
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        // What has no id is named by all that it says.
        let event = match serde_json::from_str(&text) {
            Ok(Named { id }) if !id.is_empty() => Event::new("lines", id, text),
            _ => Event::new("lines/unnamed", &text, text.clone()),
        };
        Self(event)
    }
}

impl Delivery for Line {
    fn event(&self) -> &Event {
        &self.0
    }

    async fn tell(&self, _: Verdict) -> Result<(), TellError> {
        Ok(())
    }
}

/// Handles all lines, so many at a time; no more of them once `stopped` is ready.
pub(crate) async fn consume(
    lines: impl AsyncBufRead + Unpin,
    consumer: &Consumer,
    workers: usize,
    stopped: impl Future<Output = ()>,
) -> Result<()> {
    let lines = stream::unfold(lines.lines(), |mut lines| async {
        let line = lines.next_line().await.transpose()?;
        Some((line, lines))
    });
    let lines = lines.filter(|line| {
        let blank = line.as_ref().is_ok_and(|line| line.trim().is_empty());
        std::future::ready(!blank)
    });
    let handled = lines
        .take_until(stopped)
        .map(|line| async {
            let line = Line::new(line?);
            let settled = until_settled(&line, || consumer.handle(line.event()));
            settled.await.answer.map(drop)?;
            anyhow::Ok(())
        })
        .buffer_unordered(workers);
    let mut handled = std::pin::pin!(handled);
    while let Some(done) = handled.next().await {
        done?;
    }
    Ok(())
}
