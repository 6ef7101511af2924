//! Sends a case of HTTP/1.1, and reads what comes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use super::Reply;
use super::case::{Case, Outcome, Want};
use crate::support::PATIENCE;

/// How long a client waits that expects no answer.
const WAIT: Duration = Duration::from_millis(400);

/// Sends the bytes of a case on a connection of its own, and then a well-formed request, which must
/// be read as that or not at all.
pub(super) async fn send(case: &Case, gateway: SocketAddr) -> Result<Vec<Reply>, String> {
    let (reader, mut writer) = TcpStream::connect(gateway).await.unwrap().into_split();
    let mut reader = BufReader::new(reader);
    let bytes = case.bytes();
    // The gateway may refuse it and close before all of it is sent.
    let sending = tokio::spawn(async move {
        writer.write_all(&bytes).await.ok();
        writer
    });
    let head_only = case.text.starts_with("HEAD ");
    let mut replies = Vec::new();
    for outcome in &case.outcomes {
        match outcome {
            Outcome::Waits => {
                if let Ok(reply) = timeout(WAIT, read(&mut reader, head_only)).await {
                    return Err(format!("should wait: {reply:?}"));
                }
                return Ok(replies);
            }
            Outcome::Closed => {
                let end = timeout(PATIENCE, reader.read_u8()).await;
                return match end.map_err(|_| "is not closed")? {
                    Ok(byte) => Err(format!("should be closed, but there is {byte}")),
                    Err(_) => Ok(replies),
                };
            }
            _ => {
                let reply = timeout(PATIENCE, read(&mut reader, head_only)).await;
                replies.push(reply.map_err(|_| "no answer")??);
            }
        }
    }
    let mut writer = sending.await.unwrap();
    let probe = format!(
        "GET /probe-{} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n",
        case.name
    );
    writer.write_all(probe.as_bytes()).await.ok();
    // Either the connection ended with the last answer, or this is the answer to the probe alone.
    let after = timeout(PATIENCE, read(&mut reader, false)).await;
    if let Ok(probe) = after.map_err(|_| "no end")? {
        let rest = timeout(PATIENCE, reader.read_u8()).await;
        if case.wants.iter().any(|want| matches!(want, Want::Closes)) {
            return Err(format!("the connection goes on: {probe:?}"));
        }
        if probe.status != 200 || !matches!(rest, Ok(Err(_))) {
            return Err(format!("after it: {probe:?}, {rest:?}"));
        }
    }
    Ok(replies)
}

/// Reads a final answer.
pub(super) async fn read(
    reader: &mut BufReader<OwnedReadHalf>,
    head_only: bool,
) -> Result<Reply, String> {
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = reader.read_line(&mut head).await;
            if !matches!(read, Ok(1..)) {
                return Err(format!("ends with {head:?}"));
            }
        }
        let head = head.to_lowercase();
        let field = |name: &str| {
            let value = |line: &str| Some(line.strip_prefix(name)?.trim().to_owned());
            head.lines().find_map(value)
        };
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("not an answer: {head:?}"))?;
        if status < 200 {
            continue;
        }
        let length = field("content-length:").map_or(Ok(0), |length| length.parse());
        let length = length.map_err(|_| format!("the length in {head:?}"))?;
        let mut body = vec![0; if head_only { 0 } else { length }];
        let read = reader.read_exact(&mut body).await;
        read.map_err(|error| format!("body of {head:?}: {error}"))?;
        return Ok(Reply {
            status,
            replayed: Some(field("idempotency-replayed:").is_some()),
            body: String::from_utf8_lossy(&body).into_owned(),
        });
    }
}
