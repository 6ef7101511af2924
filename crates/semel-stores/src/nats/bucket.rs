//! The bucket: a stream of JetStream's, made as key-value buckets are but for the count of messages
//! per key, and what must be true of one so that it forgets nothing.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType,
};
use semel::store::Durability;
use semel::{StoreError, StoreErrorKind};

use super::effort::Effort;
use super::link::{Link, Trouble};
use super::options::NatsOptions;
use crate::common::{Migrated, Obstacle, Schema};

/// The layout of keys and values; said in the stream's description.
const VERSION: u32 = 1;
const DESCRIPTION: &str = "semel: idempotency records, version ";

/// Messages per key, of which a limit may remove none: what it removes is not removed for good (see
/// `removal`). Tools for key-value buckets want a number, and this is the largest that each of them
/// can read.
const NEVER_REACHED: i64 = (1 << 53) - 1;

/// Before 2.9.21 the leader checked the expected revision against what was applied, not against
/// what was under way: of 64 takeovers at once up to 38 won here (2.9.10). Before 2.11 a new leader
/// took writes before it had applied what it had.
const TOO_OLD: &str = "with more than 1 copy it needs NATS server 2.11 or later on every node: \
                       earlier ones let two writes of one revision through";

fn config_error(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

fn description(version: u32) -> String {
    format!("{DESCRIPTION}{version}")
}

/// The layout's version, where the stream is one of ours.
fn version(config: &Config) -> Option<u32> {
    let said = config.description.as_deref()?;
    said.strip_prefix(DESCRIPTION)?.parse().ok()
}

/// A bucket as it should be.
fn wanted(link: &Link, options: &NatsOptions) -> Config {
    Config {
        name: format!("KV_{}", link.bucket),
        subjects: vec![link.subjects()],
        description: Some(description(VERSION)),
        storage: options.storage,
        num_replicas: options.replicas.unwrap_or(1),
        max_bytes: options.max_bytes.unwrap_or(-1),
        max_messages: -1,
        max_message_size: -1,
        max_consumers: -1,
        max_messages_per_subject: NEVER_REACHED,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        // Reads that decide anything are the leader's.
        allow_direct: false,
        // Purging deletes single messages by their sequence.
        deny_delete: false,
        deny_purge: false,
        ..Config::default()
    }
}

/// What makes this stream unfit: it could forget, or refuse what the protocol needs.
fn unfit(link: &Link, config: &Config) -> Vec<&'static str> {
    let one_key_space = config.subjects == [link.subjects()];
    let checks = [
        (!one_key_space, "subjects must be `$KV.BUCKET.>` alone"),
        (
            (1..NEVER_REACHED).contains(&config.max_messages_per_subject),
            "max_msgs_per_subject must be -1, or never reached: what a server removes by it can \
             come back after the server is killed",
        ),
        (
            config.discard != DiscardPolicy::New,
            "discard must be `new`: `old` forgets records",
        ),
        (
            config.discard_new_per_subject,
            "discard_new_per_subject must be off: records change",
        ),
        (
            !config.max_age.is_zero(),
            "max_age must be 0: it forgets records, also in flight",
        ),
        (
            config.retention != RetentionPolicy::Limits,
            "retention must be `limits`",
        ),
        (
            config.deny_delete,
            "deny_delete must be off: purging needs it",
        ),
        (
            config.no_ack,
            "no_ack must be off: a step counts once it is acknowledged",
        ),
        (config.sealed, "it is sealed"),
        (
            config.mirror.is_some(),
            "it is a mirror: a mirror takes no writes",
        ),
        (
            config.sources.is_some(),
            "it has sources: others write its records",
        ),
        (config.subject_transform.is_some(), "it transforms subjects"),
    ];
    let failed = checks.into_iter().filter(|(failed, _)| *failed);
    failed.map(|(_, reason)| reason).collect()
}

/// Refuses a stream that is not ours or unfit.
///
/// # Errors
/// [`Config`](StoreErrorKind::Config) with all that is wrong.
pub(super) fn check(link: &Link, info: &Info) -> Result<(), StoreError> {
    let bucket = &link.bucket;
    match version(&info.config) {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => {
            return Err(config_error(format!(
                "the bucket `{bucket}` has version {newer}, this program knows {VERSION}: use a \
                 newer one"
            )));
        }
        _ => {
            return Err(config_error(format!(
                "the bucket `{bucket}` is something else's (its description is not semel's): name \
                 another, and run `semel migrate --store …`"
            )));
        }
    }
    let mut reasons = unfit(link, &info.config);
    if info.config.num_replicas > 1 && !link.client.is_server_compatible(2, 11, 0) {
        reasons.push(TOO_OLD);
    }
    if reasons.is_empty() {
        return Ok(());
    }
    Err(config_error(format!(
        "the bucket `{bucket}` cannot keep records safely: {}",
        reasons.join("; ")
    )))
}

/// What its settings promise, and what an operator should know.
pub(super) fn promise(info: &Info) -> (Durability, Vec<String>) {
    let config = &info.config;
    let mut warnings = Vec::new();
    let replicas = config.num_replicas.max(1);
    let buffered = config.persist_mode == Some(PersistenceMode::Async);
    let durability = if config.storage == StorageType::Memory {
        warnings.push("The bucket is kept in memory: its records are lost with the server.".into());
        Durability::Process
    } else if replicas == 1 && buffered {
        warnings.push(
            "The bucket's persist_mode is async: acknowledged records are lost in a crash of the \
             server."
                .into(),
        );
        Durability::Process
    } else if replicas == 1 {
        warnings.push(
            "A NATS server syncs its files every 2 minutes unless `sync_interval: always` is \
             set (2.10 and later): a loss of power can lose the steps acknowledged since. The \
             setting cannot be seen from here."
                .into(),
        );
        Durability::Crash
    } else {
        warnings.push(
            "Nodes that lose power at the same time can lose acknowledged steps unless \
             `sync_interval: always` is set on each (2.10 and later). The setting cannot be \
             seen from here."
                .into(),
        );
        Durability::Replicated
    };
    if replicas == 2 {
        warnings.push("With 2 copies the bucket cannot be used while either node is down.".into());
    }
    if let Some(cluster) = &info.cluster {
        let behind = cluster.replicas.iter().filter(|r| r.offline || !r.current);
        let behind: Vec<&str> = behind.map(|replica| replica.name.as_str()).collect();
        if !behind.is_empty() {
            warnings.push(format!(
                "Copies are behind or offline: {}.",
                behind.join(", ")
            ));
        }
    }
    if config.max_bytes > 0 {
        warnings.push(format!(
            "At {} bytes the bucket is full: claims are refused then, and completions too.",
            config.max_bytes
        ));
    }
    (durability, warnings)
}

/// The stream, made or brought to this version where `schema` says so; `None` where it is not
/// there and shall not be made.
async fn prepare(
    link: &Link,
    options: &NatsOptions,
    schema: Schema,
) -> Result<(Info, Migrated), StoreError> {
    let mut migrated = Migrated::nothing();
    let mut effort = Effort::new(link.timeout);
    let mut info = loop {
        // A cluster that starts has no leader for a while.
        match link.ask(&mut effort, |patience| link.info(patience)).await {
            Ok(info) => break info,
            Err(e) if is_missing(&e) && schema != Schema::Expect && effort.lasts() => {
                create(link, options, &mut effort).await?;
                migrated.from = None;
                migrated.done = vec![format!("made the bucket `{}`", link.bucket)];
            }
            Err(e) if !link.client.server_info().jetstream => {
                return Err(config_error(e.to_string()));
            }
            Err(e) => return Err(e),
        }
    };
    if schema == Schema::Migrate && version(&info.config) == Some(VERSION) {
        let done = bring_up(link, options, &info.config).await?;
        if !done.is_empty() {
            migrated.done.extend(done);
            let mut effort = Effort::new(link.timeout);
            let changed = link.ask(&mut effort, |patience| link.info(patience));
            info = changed.await?;
        }
    }
    Ok((info, migrated))
}

fn is_missing(e: &StoreError) -> bool {
    Obstacle::of(e) == Some(Obstacle::Missing)
}

/// Asks for the stream once. It may not be there after that.
async fn create(link: &Link, options: &NatsOptions, effort: &mut Effort) -> Result<(), StoreError> {
    let asked = link.context.create_stream(wanted(link, options));
    let e = match link.answered(effort.patience(), asked).await {
        Ok(Err(e)) => e,
        Err(Trouble::Final(e)) => return Err(e),
        _ => return Ok(()),
    };
    let refused = config_error(format!(
        "the NATS server did not make the bucket `{}`: {}",
        link.bucket,
        e.kind()
    ));
    match e.kind() {
        // Somebody else makes it at the same time: what they made is looked at next.
        CreateStreamErrorKind::JetStream(said)
            if said.error_code() == ErrorCode::STREAM_NAME_EXIST =>
        {
            Ok(())
        }
        CreateStreamErrorKind::TimedOut | CreateStreamErrorKind::JetStreamUnavailable => Ok(()),
        // Nodes that start are offline for a while.
        CreateStreamErrorKind::JetStream(said)
            if said.code() == 503 || said.error_code() == ErrorCode::CLUSTER_NO_PEERS =>
        {
            effort.pause(refused).await
        }
        _ => Err(refused),
    }
}

/// Changes what is asked for and may be changed on a living bucket.
async fn bring_up(
    link: &Link,
    options: &NatsOptions,
    now: &Config,
) -> Result<Vec<String>, StoreError> {
    let mut next = now.clone();
    let mut done = Vec::new();
    if let Some(replicas) = options.replicas.filter(|n| *n != now.num_replicas) {
        next.num_replicas = replicas;
        done.push(format!(
            "copies: {} before, {replicas} now",
            now.num_replicas
        ));
    }
    if let Some(bytes) = options.max_bytes.filter(|n| *n != now.max_bytes) {
        next.max_bytes = bytes;
        done.push(format!("max_bytes: {} before, {bytes} now", now.max_bytes));
    }
    if now.allow_direct {
        next.allow_direct = false;
        done.push("reads by followers: off".into());
    }
    if done.is_empty() {
        return Ok(done);
    }
    match link.context.update_stream(next).await {
        Ok(_) => Ok(done),
        Err(e) => Err(config_error(format!(
            "the NATS server did not change the bucket `{}`: {}",
            link.bucket,
            e.kind()
        ))),
    }
}

/// The bucket to work with.
///
/// # Errors
/// [`Config`](StoreErrorKind::Config) where it is missing or unfit.
pub(super) async fn open(link: &Link, options: &NatsOptions) -> Result<Info, StoreError> {
    let (info, _) = prepare(link, options, options.schema.unwrap_or_default()).await?;
    check(link, &info)?;
    Ok(info)
}

/// Makes the bucket or brings it to this version.
///
/// # Errors
/// [`Config`](StoreErrorKind::Config) where the server refuses, or the bucket is not ours.
pub(super) async fn migrate(options: &NatsOptions) -> Result<Migrated, StoreError> {
    let link = Link::connect(options).await?;
    let (info, migrated) = prepare(&link, options, Schema::Migrate).await?;
    check(&link, &info)?;
    Ok(migrated)
}
