//! Where events come from.

pub(crate) mod lines;
pub(crate) mod nats;

use std::path::PathBuf;
use std::str::FromStr;

/// A place that events come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Stdin,
    File(PathBuf),
    /// A NATS server, and a stream of its JetStream.
    Nats {
        server: String,
        stream: String,
    },
}

impl FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" {
            return Ok(Self::Stdin);
        }
        let Some(place) = text.strip_prefix("nats://") else {
            return Ok(Self::File(text.into()));
        };
        let (host, stream) = place
            .split_once('/')
            .filter(|(host, stream)| !host.is_empty() && !stream.is_empty())
            .ok_or("a NATS source is nats://HOST:PORT/STREAM")?;
        Ok(Self::Nats {
            server: format!("nats://{host}"),
            stream: stream.into(),
        })
    }
}
