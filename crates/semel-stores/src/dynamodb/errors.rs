//! What an error of the SDK means: whether it is worth another attempt, whether the request may have
//! been carried out, and what to tell the caller.

use std::error::Error as StdError;
use std::io;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use semel::{StoreError, StoreErrorKind};

use super::call::{Does, Table};
use crate::common::Obstacle;

/// An answer that sending again would not change.
pub(super) struct Refused<E> {
    pub(super) error: E,
    /// Whether an attempt before it may have had its effect.
    pub(super) open: bool,
}

pub(super) enum Meaning {
    /// Answered: no.
    Final,
    /// Worth another attempt.
    Again {
        /// Whether the request may have been carried out.
        reached: bool,
    },
    /// Nothing could be sent as things are: no credentials, no region.
    Local,
}

pub(super) fn kind(does: Does, open: bool) -> StoreErrorKind {
    if open && does == Does::Write {
        StoreErrorKind::Unknown
    } else {
        StoreErrorKind::NotApplied
    }
}

pub(super) fn meaning<E: ProvideErrorMetadata>(error: &SdkError<E>) -> Meaning {
    match error {
        SdkError::ConstructionFailure(_) => Meaning::Local,
        SdkError::DispatchFailure(failure) if failure.is_user() => Meaning::Local,
        SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
            Some(connector) => Meaning::Again {
                reached: !never_connected(connector) && !is_credentials(connector),
            },
            None => Meaning::Again { reached: true },
        },
        // Also where the process stood still between signing and sending.
        SdkError::ServiceError(service) if is_clock(service.err()) || is_rival(service.err()) => {
            Meaning::Again { reached: false }
        }
        SdkError::ServiceError(service) => match service.err().code() {
            Some(
                "ProvisionedThroughputExceededException"
                | "ThrottlingException"
                | "ThrottledException"
                | "RequestLimitExceeded"
                | "LimitExceededException",
            ) => Meaning::Again { reached: false },
            Some(_) if !service.raw().status().is_server_error() => Meaning::Final,
            // It failed inside, or what came is not an answer of DynamoDB's.
            _ => Meaning::Again { reached: true },
        },
        // Time-outs, and answers that could not be read.
        _ => Meaning::Again { reached: true },
    }
}

/// Whether the request's time was too far from AWS's.
fn is_clock(error: &impl ProvideErrorMetadata) -> bool {
    let named = matches!(
        error.code(),
        Some("RequestTimeTooSkewed" | "RequestExpired" | "RequestInTheFuture")
    );
    let message = error.message().unwrap_or_default();
    named
        || ["Signature expired", "Signature not yet current"]
            .iter()
            .any(|said| message.contains(said))
}

/// Whether others were just writing the item.
fn is_rival(error: &impl ProvideErrorMetadata) -> bool {
    matches!(
        error.code(),
        Some(
            "TransactionConflictException"
                | "TransactionInProgressException"
                | "ReplicatedWriteConflictException"
        )
    )
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Whether it failed before anything was sent.
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    chain(error).any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | AddrNotAvailable
            )
        })
    })
}

// The SDK shows its credentials' errors here, of a type that it does not give by name.
fn is_credentials(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|cause| cause.to_string().contains("credential"))
}

pub(super) fn failure<E>(error: SdkError<E>, kind: StoreErrorKind) -> StoreError
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    let kind = match &error {
        SdkError::ServiceError(service)
            if kind == StoreErrorKind::NotApplied && is_rival(service.err()) =>
        {
            StoreErrorKind::Contended
        }
        _ => kind,
    };
    let message = match (kind, &error) {
        (_, SdkError::ServiceError(service)) if is_clock(service.err()) => {
            "this machine's clock is more than five minutes from AWS's, which refuses it"
        }
        (StoreErrorKind::Config, _) => {
            "DynamoDB cannot be asked: is there a region, and are there credentials?"
        }
        (StoreErrorKind::Contended, _) => "others wrote the record whenever it was to be written",
        (StoreErrorKind::Unknown, _) => "a request to DynamoDB was lost: it may have been done",
        (_, SdkError::ServiceError(service)) if service.raw().status().as_u16() == 400 => {
            "DynamoDB takes no more requests for now"
        }
        (_, SdkError::ServiceError(_)) => "DynamoDB did not answer as it should",
        _ => "DynamoDB cannot be reached",
    };
    let causes: Vec<String> = chain(&error).take(6).map(ToString::to_string).collect();
    StoreError::new(kind, format!("{message}: {}", causes.join(": "))).with_source(error)
}

/// A mistake in how the store is used.
pub(super) fn config(message: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

impl Table {
    /// An answer that refuses, as an error for the caller.
    pub(super) fn refusal(
        &self,
        Refused { error, open }: &Refused<impl ProvideErrorMetadata>,
        does: Does,
    ) -> StoreError {
        let code = error.code().unwrap_or("an error without a code");
        let message = error.message().unwrap_or("(no message)");
        let table = &self.name;
        let missing = ["ResourceNotFoundException", "TableNotFoundException"].contains(&code);
        let (kind, said) = match code {
            _ if missing => (
                StoreErrorKind::Config,
                format!(
                    "there is no table `{table}` here: make it with `semel migrate --store \
                     dynamodb://{table}…`, or open with schema=create; or another region or \
                     account is meant"
                ),
            ),
            "ValidationException" if message.contains("size") && message.contains("xceeded") => (
                StoreErrorKind::TooLarge,
                format!("an item of DynamoDB holds 400 KB at most: {message}"),
            ),
            "ItemCollectionSizeLimitExceededException" => {
                (StoreErrorKind::TooLarge, message.to_owned())
            }
            "AccessDeniedException" => (
                StoreErrorKind::Config,
                format!(
                    "these credentials may not do that (docs/stores/dynamodb.md lists the \
                     permissions needed): {message}"
                ),
            ),
            "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "InvalidClientTokenId"
            | "IncompleteSignatureException"
            | "MissingAuthenticationTokenException"
            | "ExpiredTokenException" => (
                StoreErrorKind::Config,
                format!("DynamoDB does not accept the credentials: {code}: {message}"),
            ),
            _ => (
                StoreErrorKind::Config,
                format!("DynamoDB refused a request on table `{table}`: {code}: {message}"),
            ),
        };
        if *open && does == Does::Write {
            return StoreError::new(
                StoreErrorKind::Unknown,
                format!("a request was lost, and its repetition refused: {said}"),
            );
        }
        let refused = StoreError::new(kind, said);
        if missing {
            return refused.with_source(Obstacle::Missing);
        }
        refused
    }
}
