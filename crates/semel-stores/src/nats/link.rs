//! The connection, and single requests over it: what an answer, its absence or a refusal means.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{ContextBuilder, PublishErrorKind, RequestError};
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{DeleteMessageErrorKind, Info, RawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context, ErrorCode, context};
use async_nats::{Client, Event, ServerError};
use bytes::Bytes;
use semel::{IdentityDigest, StoreError, StoreErrorKind, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::effort::Effort;
use super::options::NatsOptions;
use crate::common::Obstacle;

/// What became of the connection.
#[derive(Debug, Clone, Default)]
struct Health {
    /// How often it was lost.
    lost: u64,
    /// What the server last said that this user may not do, and how often it said such a thing.
    denied: Arc<str>,
    denials: u64,
}

/// Why a request has no answer that could be used.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nobody took it: there is no leader now, or no such stream. Nothing was written.
    Nobody(StoreError),
    /// It may have been taken: no answer came.
    Silence(StoreError),
    /// Trying again does not help.
    Final(StoreError),
}

pub(super) type Answer<T> = std::result::Result<T, Trouble>;

fn error(kind: StoreErrorKind, message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(kind, message)
}

/// One connection and the bucket on it.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) bucket: Box<str>,
    pub(super) stream: Stream<()>,
    /// What stands before a key in its subject.
    prefix: Box<str>,
    pub(super) timeout: Duration,
    health: watch::Receiver<Health>,
}

impl Link {
    /// Connects. The driver connects again by itself after that, for as long as it takes.
    pub(super) async fn connect(options: &NatsOptions) -> Result<Self, StoreError> {
        let (noted, health) = watch::channel(Health::default());
        let noted = Arc::new(noted);
        let connect = options.driver().event_callback(move |event| {
            let noted = noted.clone();
            async move { note(&noted, &event) }
        });
        let connecting = connect.connect(options.hosts.clone());
        let client = match timeout(options.timeout, connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(e)) => return Err(not_connected(&e)),
            Err(_) => {
                return Err(error(
                    StoreErrorKind::NotApplied,
                    format!("no NATS server answered within {:?}", options.timeout),
                ));
            }
        };
        let context = ContextBuilder::new()
            .timeout(options.timeout)
            .build(client.clone());
        let name = format!("KV_{}", options.bucket);
        let stream = context.get_stream_no_info(&name).await.map_err(|e| {
            error(StoreErrorKind::Config, "the bucket's name is not one").with_source(e)
        })?;
        Ok(Self {
            client,
            context,
            bucket: options.bucket.clone(),
            stream,
            prefix: format!("$KV.{}.", options.bucket).into(),
            timeout: options.timeout,
            health,
        })
    }

    /// The subjects of all keys.
    pub(super) fn subjects(&self) -> String {
        format!("{}>", self.prefix)
    }

    /// The subject of a key.
    pub(super) fn subject(&self, identity: &IdentityDigest) -> String {
        format!("{}{identity}", self.prefix)
    }

    /// Whose key a subject is.
    pub(super) fn identity(&self, subject: &str) -> Option<IdentityDigest> {
        IdentityDigest::from_hex(subject.strip_prefix(&*self.prefix)?)
    }

    /// Waits for the connection, and fails where it is not there in time: nothing was sent.
    pub(super) async fn connected(&self, until: Instant) -> Result<(), StoreError> {
        // The driver's own notice; events come later and may be dropped.
        while self.client.connection_state() != State::Connected {
            if Instant::now() >= until {
                return Err(error(
                    StoreErrorKind::NotApplied,
                    "there is no connection to a NATS server; nothing was sent",
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Asks until there is an answer, the server refuses, or the call's time is over.
    pub(super) async fn ask<T, F: Future<Output = Answer<T>>>(
        &self,
        effort: &mut Effort,
        request: impl Fn(Duration) -> F,
    ) -> Result<T, StoreError> {
        loop {
            let connected = self.connected(effort.until).await;
            connected.map_err(|e| effort.failed(e))?;
            match request(effort.patience()).await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Nobody(e) | Trouble::Silence(e)) => effort.pause(e).await?,
                Err(Trouble::Final(e)) => return Err(effort.failed(e)),
            }
        }
    }

    /// Writes a key whose last message is `expected` (0: there is none), and says under which sequence.
    /// `None`: the last message is another; nothing was written.
    pub(super) async fn put(
        &self,
        identity: &IdentityDigest,
        expected: u64,
        value: Bytes,
        patience: Duration,
    ) -> Answer<Option<u64>> {
        let message = PublishMessage::build()
            .payload(value)
            .expected_last_subject_sequence(expected);
        let asked = async {
            let sent = self.context.send_publish(self.subject(identity), message);
            sent.await?.await
        };
        match self.answered(patience, asked).await? {
            Ok(ack) => Ok(Some(ack.sequence)),
            Err(e) => match e.kind() {
                PublishErrorKind::WrongLastSequence => Ok(None),
                PublishErrorKind::StreamNotFound => Err(Trouble::Nobody(self.nobody())),
                PublishErrorKind::MaxPayloadExceeded => Err(Trouble::Final(self.too_large())),
                _ => match cause::<jetstream::Error>(&e) {
                    Some(said) => refused_write(said),
                    None => Err(Trouble::Silence(self.silence().with_source(e))),
                },
            },
        }
    }

    /// How long a message may be, with its headers.
    pub(super) fn most(&self) -> usize {
        self.client.max_payload()
    }

    pub(super) fn too_large(&self) -> StoreError {
        error(
            StoreErrorKind::TooLarge,
            format!(
                "the record is larger than this NATS server takes (max_payload is {} bytes): raise \
                 that, or keep less",
                self.most()
            ),
        )
    }

    /// The last message of a key, from the leader.
    pub(super) async fn read(
        &self,
        identity: &IdentityDigest,
        patience: Duration,
    ) -> Answer<Option<StreamMessage>> {
        let subject = self.subject(identity);
        let asked = self.stream.get_last_raw_message_by_subject(&subject);
        self.message(patience, asked).await
    }

    /// The first message of a key, or of all, from `sequence` on, from the leader.
    pub(super) async fn first(
        &self,
        subject: &str,
        sequence: u64,
        patience: Duration,
    ) -> Answer<Option<StreamMessage>> {
        let asked = self
            .stream
            .get_first_raw_message_by_subject(subject, sequence);
        self.message(patience, asked).await
    }

    async fn message(
        &self,
        patience: Duration,
        asked: impl Future<Output = Result<StreamMessage, jetstream::stream::RawMessageError>>,
    ) -> Answer<Option<StreamMessage>> {
        match self.answered(patience, asked).await? {
            Ok(message) => Ok(Some(message)),
            Err(e) => match e.kind() {
                RawMessageErrorKind::NoMessageFound => Ok(None),
                RawMessageErrorKind::JetStream(said) => Err(self.refused(said)),
                _ => Err(self.unanswered(&e)),
            },
        }
    }

    /// Removes exactly the message with this sequence. `false` where it is not there any more.
    pub(super) async fn delete(&self, sequence: u64, patience: Duration) -> Answer<bool> {
        let deleted = self.answered(patience, self.stream.delete_message(sequence));
        let e = match deleted.await? {
            Ok(deleted) => return Ok(deleted),
            Err(e) => e,
        };
        let DeleteMessageErrorKind::JetStream(said) = e.kind() else {
            return Err(self.unanswered(&e));
        };
        match said.error_code() {
            ErrorCode::NO_MESSAGE_FOUND | ErrorCode::SEQUENCE_NOT_FOUND => Ok(false),
            // It is not there, or the server is busy with something else.
            ErrorCode::STREAM_MESSAGE_DELETE_FAILED => {
                let asked = self.stream.get_raw_message(sequence);
                if self.message(patience, asked).await?.is_none() {
                    return Ok(false);
                }
                let stays = "the NATS server did not remove a message";
                let stays = error(StoreErrorKind::NotApplied, stays).with_source(said);
                Err(Trouble::Nobody(stays))
            }
            _ => Err(self.refused(said)),
        }
    }

    /// The stream as it is now.
    pub(super) async fn info(&self, patience: Duration) -> Answer<Info> {
        match self.answered(patience, self.stream.get_info()).await? {
            Ok(info) => Ok(info),
            Err(e) => match cause::<jetstream::Error>(&e) {
                Some(said) => Err(self.refused(said.clone())),
                None => Err(self.unanswered(&e)),
            },
        }
    }

    /// Waits for an answer, no longer than the connection lasts: what was asked on a lost one is
    /// not answered any more.
    pub(super) async fn answered<T>(
        &self,
        patience: Duration,
        asked: impl Future<Output = T>,
    ) -> Answer<T> {
        let mut health = self.health.clone();
        let before = health.borrow_and_update().clone();
        let broken = health.wait_for(|now| now.lost > before.lost || now.denials > before.denials);
        let event = tokio::select! {
            biased;
            answered = timeout(patience, asked) => {
                return answered.map_err(|_| Trouble::Silence(self.silence()));
            }
            health = broken => health.map(|now| now.clone()).unwrap_or_default(),
        };
        if event.denials > before.denials {
            return Err(Trouble::Final(error(
                StoreErrorKind::Config,
                format!(
                    "the NATS user may not do what the store needs: {}; allow it to publish to \
                     `$KV.{bucket}.>`, `$JS.API.>` and to subscribe to `_INBOX.>`",
                    event.denied,
                    bucket = self.bucket,
                ),
            )));
        }
        Err(Trouble::Silence(error(
            StoreErrorKind::Unknown,
            "the connection to the NATS server was lost before it answered",
        )))
    }

    /// How often the connection was lost.
    pub(super) fn losses(&self) -> u64 {
        self.health.borrow().lost
    }

    fn silence(&self) -> StoreError {
        error(
            StoreErrorKind::Unknown,
            format!(
                "the NATS server did not answer (timeout {:?})",
                self.timeout
            ),
        )
    }

    fn nobody(&self) -> StoreError {
        let why = if self.client.server_info().jetstream {
            "there is no bucket of this name, or it has no leader now"
        } else {
            "JetStream is not enabled on this server: start it with `--jetstream`"
        };
        error(
            StoreErrorKind::NotApplied,
            format!("no server answers for the bucket `{}`: {why}", self.bucket),
        )
    }

    /// An API request without an answer of its own.
    pub(super) fn unanswered(&self, e: &(dyn std::error::Error + 'static)) -> Trouble {
        let kind = cause::<RequestError>(e).map(async_nats::error::Error::kind);
        match kind {
            Some(context::RequestErrorKind::NoResponders) => Trouble::Nobody(self.nobody()),
            _ => Trouble::Silence(self.silence().with_source(e.to_string())),
        }
    }

    /// An API request that the server refused.
    pub(super) fn refused(&self, said: jetstream::Error) -> Trouble {
        let bucket = &self.bucket;
        let (kind, message) = match said.error_code() {
            ErrorCode::STREAM_NOT_FOUND => {
                let missing = format!(
                    "there is no bucket `{bucket}`: run `semel migrate --store …`, or open with \
                     schema=create"
                );
                let missing = error(StoreErrorKind::Config, missing);
                return Trouble::Final(missing.with_source(Obstacle::Missing));
            }
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => (
                StoreErrorKind::Config,
                "JetStream is not enabled for this account".into(),
            ),
            // No leader now, or not yet ready.
            _ if said.code() == 503 => (
                StoreErrorKind::NotApplied,
                format!("the bucket `{bucket}` has no leader now"),
            ),
            _ => (
                StoreErrorKind::Config,
                format!("the NATS server refused a request about the bucket `{bucket}`"),
            ),
        };
        let refused = error(kind, message).with_source(said);
        match kind {
            StoreErrorKind::NotApplied => Trouble::Nobody(refused),
            _ => Trouble::Final(refused),
        }
    }
}

fn refused_write(said: &jetstream::Error) -> Answer<Option<u64>> {
    let text = said.to_string().to_lowercase();
    let full = ["maximum", "insufficient", "resource", "exceed"];
    let kind = match said.error_code() {
        // Another writer is just ahead.
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => return Ok(None),
        ErrorCode::STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY => {
            let what = "the bucket's leader is not ready yet";
            let early = error(StoreErrorKind::NotApplied, what).with_source(said.clone());
            return Err(Trouble::Nobody(early));
        }
        ErrorCode::STREAM_SEALED | ErrorCode::STREAM_NOT_MATCH => StoreErrorKind::Config,
        _ if text.contains("message size") => StoreErrorKind::TooLarge,
        _ if full.iter().any(|word| text.contains(word)) => StoreErrorKind::Capacity,
        _ => StoreErrorKind::Unknown,
    };
    let message = match kind {
        StoreErrorKind::Capacity => {
            "the NATS server has no room for another record: raise max_bytes of the bucket, or the \
             limits of the account or server"
        }
        StoreErrorKind::TooLarge => "the record is larger than the bucket takes (max_msg_size)",
        _ => "the NATS server did not store the record",
    };
    let failed = error(kind, message).with_source(said.clone());
    if kind == StoreErrorKind::Unknown {
        // A leader that steps down may answer so about what its followers already have.
        return Err(Trouble::Silence(failed));
    }
    Err(Trouble::Final(failed))
}

/// The first error of type `E` among an error and its causes.
fn cause<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn note(health: &watch::Sender<Health>, event: &Event) {
    match event {
        Event::Disconnected => health.send_modify(|health| health.lost += 1),
        Event::ServerError(ServerError::Other(said))
            if said.to_lowercase().contains("permissions violation") =>
        {
            // What follows is a subject: no key is in it, and the digest is of no use.
            let said: Box<str> = said.split(" to ").next().unwrap_or_default().into();
            health.send_modify(|health| {
                health.denied = said.into();
                health.denials += 1;
            });
        }
        _ => {}
    }
}

fn not_connected(e: &async_nats::ConnectError) -> StoreError {
    use async_nats::ConnectErrorKind as Kind;
    let (kind, message) = match e.kind() {
        Kind::Authentication | Kind::AuthorizationViolation => (
            StoreErrorKind::Config,
            "the NATS server refused the user, password or token",
        ),
        // The driver calls a certificate that does not fit a failure of the connection.
        kind if kind == Kind::Tls || format!("{e:?}").contains("Certificate") => (
            StoreErrorKind::Config,
            "TLS with the NATS server failed: is its certificate signed by a known authority (`ca=`), \
             and does it want one from here (`cert=`, `key=`)?",
        ),
        Kind::ServerParse => (
            StoreErrorKind::Config,
            "the NATS server's address is not one",
        ),
        Kind::Dns => (
            StoreErrorKind::NotApplied,
            "the NATS server's name has no address",
        ),
        _ => (
            StoreErrorKind::NotApplied,
            "no NATS server could be reached",
        ),
    };
    // The driver's own text is dropped: it may repeat the address with what stands before it.
    error(kind, message)
}

/// An instant as the server writes it.
pub(super) fn timestamp(at: async_nats::datetime::DateTime) -> Timestamp {
    let micros = at.unix_timestamp_nanos() / 1_000;
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}
