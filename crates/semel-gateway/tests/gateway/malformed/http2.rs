//! Sends a case of HTTP/2, a script of frames, and reads what comes.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use super::Reply;
use super::case::{Case, Outcome, unescape};
use super::frames::{fields, frame, status};
use crate::support::PATIENCE;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Of the PING that asks whether the connection still works.
const LAST: &[u8] = b"the-last";

/// What comes of a script.
#[derive(Debug)]
enum Event {
    Answered(Reply),
    Reset,
    GoAway,
    Ended,
    Pong,
}

/// Sends the frames of a case on a connection of its own, and then a PING.
pub(super) async fn send(case: &Case, gateway: SocketAddr) -> Result<Vec<Reply>, String> {
    let (mut reader, mut writer) = TcpStream::connect(gateway).await.unwrap().into_split();
    let bytes = script(case);
    let sending = tokio::spawn(async move {
        // The gateway may have enough of it before all is sent.
        let sent = writer.write_all(&bytes).await;
        (writer, sent)
    });
    let [outcome] = case.outcomes[..] else {
        return Err("has more than one outcome".to_owned());
    };
    let event = timeout(PATIENCE, read(&mut reader, outcome))
        .await
        .map_err(|_| "no answer")??;
    drop(sending);
    match (outcome, event) {
        (Outcome::Plain | Outcome::Once | Outcome::Refused(_), Event::Answered(reply)) => {
            Ok(vec![reply])
        }
        (Outcome::Reset, Event::Reset)
        | (Outcome::GoAway, Event::GoAway)
        | (Outcome::Closed, Event::Ended)
        | (Outcome::Borne, Event::Pong) => Ok(Vec::new()),
        (_, event) => Err(format!("{event:?}")),
    }
}

/// Reads until it is clear what comes of the case.
async fn read(reader: &mut OwnedReadHalf, outcome: Outcome) -> Result<Event, String> {
    let mut answer = None;
    loop {
        let mut head = [0; 9];
        if reader.read_exact(&mut head).await.is_err() {
            return Ok(Event::Ended);
        }
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
        if reader.read_exact(&mut payload).await.is_err() {
            return Ok(Event::Ended);
        }
        match (kind, u32::from_be_bytes(stream)) {
            (GO_AWAY, _) if payload[4..8] != [0; 4] => return Ok(Event::GoAway),
            (PING, _) if payload == LAST && outcome == Outcome::Borne => return Ok(Event::Pong),
            _ if outcome == Outcome::Borne => {}
            (RST_STREAM, 1) => return Ok(Event::Reset),
            (HEADERS, 1) if answer.is_none() => {
                answer = Some(Reply {
                    status: status(&payload).ok_or_else(|| format!("status in {payload:?}"))?,
                    replayed: None,
                    body: String::new(),
                });
            }
            (DATA, 1) => {
                let text = String::from_utf8_lossy(&payload);
                answer
                    .as_mut()
                    .ok_or("a body without a header")?
                    .body
                    .push_str(&text);
            }
            _ => {}
        }
        let ends = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if let Some(answer) = answer.take_if(|_| ends) {
            return Ok(Event::Answered(answer));
        }
    }
}

/// The frames that a script stands for.
fn script(case: &Case) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    // SETTINGS_HEADER_TABLE_SIZE: 0.
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
    for command in case.text.split(" ; ") {
        match command.split_once(' ').filter(|(word, _)| *word == "flood") {
            None => bytes.extend(run(command, &case.name)),
            Some((_, flood)) => {
                let (times, commands) = flood.split_once(' ').unwrap();
                for nth in 0..times.parse::<u32>().unwrap() {
                    let stream = (nth * 2 + 1).to_string();
                    for command in commands.split(" & ") {
                        bytes.extend(run(&command.replace('$', &stream), &case.name));
                    }
                }
            }
        }
    }
    bytes.extend(frame(PING, 0, 0, LAST));
    bytes
}

/// One command of a script.
fn run(command: &str, name: &str) -> Vec<u8> {
    // `-` stands for nothing.
    let mut words = command
        .split_whitespace()
        .map(|word| if word == "-" { "" } else { word });
    let what = words.next().unwrap();
    let number = |word: Option<&str>| word.unwrap().parse::<u32>().unwrap();
    let block = |given: &mut dyn Iterator<Item = &str>, mut list: Vec<(Vec<u8>, Vec<u8>)>| {
        let mut flags = END_HEADERS;
        for word in given {
            match word.split_once('=') {
                None if word == "end" => flags |= END_STREAM,
                None if word == "more" => flags &= !END_HEADERS,
                None => panic!("{word} in {command}"),
                Some((field, value)) => list.push((unescape(field, name), unescape(value, name))),
            }
        }
        (flags, fields(&list))
    };
    match what {
        "request" | "headers" | "continuation" => {
            let stream = number(words.next());
            let mut list = Vec::new();
            if what == "request" {
                let path = format!("/{name}");
                for (field, value) in [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":authority", "a"),
                    (":path", &path),
                ] {
                    list.push((field.into(), value.into()));
                }
            }
            let kind = if what == "continuation" {
                CONTINUATION
            } else {
                HEADERS
            };
            let (flags, block) = block(&mut words, list);
            frame(kind, flags, stream, &block)
        }
        "data" => {
            let stream = number(words.next());
            let text = words.next().unwrap_or_default();
            let flags = if words.next() == Some("end") {
                END_STREAM
            } else {
                0
            };
            frame(DATA, flags, stream, &unescape(text, name))
        }
        "rst" => frame(
            RST_STREAM,
            0,
            number(words.next()),
            &number(words.next()).to_be_bytes(),
        ),
        "window" => {
            let stream = number(words.next());
            frame(
                WINDOW_UPDATE,
                0,
                stream,
                &number(words.next()).to_be_bytes(),
            )
        }
        "priority" => {
            let (stream, on) = (number(words.next()), number(words.next()));
            frame(PRIORITY, 0, stream, &[&on.to_be_bytes()[..], &[1]].concat())
        }
        "ping" => frame(PING, 0, 0, b"whatever"),
        "settings" => {
            let payload: Vec<u8> = words
                .flat_map(|word| {
                    let (id, value) = word.split_once('=').unwrap();
                    let (id, value) = (id.parse::<u16>().unwrap(), value.parse::<u32>().unwrap());
                    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
                })
                .collect();
            frame(SETTINGS, 0, 0, &payload)
        }
        "promise" => frame(
            PUSH_PROMISE,
            END_HEADERS,
            number(words.next()),
            &[0, 0, 0, 2],
        ),
        // Kind, flags, stream, payload.
        "frame" => {
            let byte = |word: Option<&str>| u8::try_from(number(word)).unwrap();
            let (kind, flags) = (byte(words.next()), byte(words.next()));
            let stream = number(words.next());
            frame(
                kind,
                flags,
                stream,
                &unescape(words.next().unwrap_or_default(), name),
            )
        }
        "raw" => unescape(words.next().unwrap(), name),
        _ => panic!("{command}"),
    }
}
