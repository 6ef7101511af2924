//! Requests: time-outs, repetition, and what an error means.
//!
//! The SDK's own retries are off: they hide what happened to the attempts before the last, and an
//! attempt that was refused says nothing about one before it that was lost. Repeating here is safe
//! for the same reason as there: every write carries its nonce or token.

use std::error::Error as StdError;
use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use semel::store::Result;
use semel::{IdentityDigest, StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use super::errors::{Meaning, Refused, failure, kind, meaning};
use super::item::{self, Item, PK};
use super::update::Update;

/// How often one step is sent, if need be.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// What a request does if it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    /// Changes something: a lost answer leaves it open whether.
    Write,
    /// Changes nothing.
    Read,
}

/// What became of a conditional write.
pub(super) enum Written {
    /// It is written; with what was asked to be returned.
    Yes(Item),
    /// The condition did not hold; the item as it is, if there is one.
    No(Option<Item>),
}

/// The table, and how to reach it.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) client: aws_sdk_dynamodb::Client,
    pub(super) name: String,
    /// Where it is, unless the SDK knows by the region.
    pub(super) endpoint: Option<String>,
    pub(super) timeout: Duration,
}

impl Table {
    /// Sends a request until it is carried out, at most [`ATTEMPTS`] times and until the time-out.
    pub(super) async fn send<T, E, F>(&self, does: Does, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let answered = self.answered(does, request).await?;
        answered.map_err(|refused| self.refusal(&refused, does))
    }

    /// As [`send`](Self::send); `None` where it is refused for the reason that `expected` knows.
    pub(super) async fn send_unless<T, E, F>(
        &self,
        does: Does,
        expected: impl Fn(&E) -> bool,
        request: impl Fn() -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        match self.answered(does, request).await? {
            Ok(output) => Ok(Some(output)),
            Err(refused) if expected(&refused.error) => Ok(None),
            Err(refused) => Err(self.refusal(&refused, does)),
        }
    }

    /// The inner error is one that sending again does not help against.
    async fn answered<T, E, F>(
        &self,
        does: Does,
        request: impl Fn() -> F,
    ) -> Result<Result<T, Refused<E>>>
    where
        F: Future<Output = Result<T, SdkError<E>>>,
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let deadline = Instant::now() + self.timeout;
        // Whether an attempt may have had its effect.
        let mut open = false;
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let Ok(answer) = timeout_at(deadline, request()).await else {
                let message = format!("no answer from DynamoDB within {:?}", self.timeout);
                return Err(StoreError::new(kind(does, true), message));
            };
            let error = match answer {
                Ok(answered) => return Ok(Ok(answered)),
                Err(error) => error,
            };
            let (error, again, reached) = match (meaning(&error), error) {
                (Meaning::Final, SdkError::ServiceError(service)) => {
                    let error = service.into_err();
                    return Ok(Err(Refused { error, open }));
                }
                (Meaning::Again { reached }, error) => (error, true, reached),
                (_, error) => (error, false, false),
            };
            open |= reached;
            if !again || attempt == ATTEMPTS || Instant::now() + pause >= deadline {
                let kind = match again || open {
                    true => kind(does, open),
                    false => StoreErrorKind::Config,
                };
                return Err(failure(error, kind));
            }
            attempt += 1;
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// The table of this name with `suffix` behind it.
    pub(super) fn beside(&self, suffix: &str) -> Self {
        Self {
            name: format!("{}{suffix}", self.name),
            ..self.clone()
        }
    }

    /// One conditional write. `in_doubt` becomes true where a sending before the one that was answered
    /// may have had its effect.
    pub(super) async fn update(
        &self,
        digest: &IdentityDigest,
        update: Update,
        returns: ReturnValue,
        in_doubt: &mut bool,
    ) -> Result<Written> {
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key(PK, item::pk(digest))
            .update_expression(update.expression())
            .condition_expression(update.condition)
            .set_expression_attribute_names(Some(update.names))
            .set_expression_attribute_values(Some(update.values))
            .return_values(returns)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match self
            .answered(Does::Write, || request.clone().send())
            .await?
        {
            Ok(output) => Ok(Written::Yes(output.attributes.unwrap_or_default())),
            Err(Refused {
                error: UpdateItemError::ConditionalCheckFailedException(failed),
                open,
            }) => {
                *in_doubt |= open;
                // An item that is not there comes as none, or as one without attributes.
                Ok(Written::No(failed.item.filter(|item| !item.is_empty())))
            }
            Err(refused) => Err(self.refusal(&refused, Does::Write)),
        }
    }

    /// Reads one item, strongly consistent; all of it, or the attributes of an expression.
    pub(super) async fn read(
        &self,
        key: impl Into<String>,
        only: Option<(&str, &[&str])>,
    ) -> Result<Option<Item>> {
        let mut request = self
            .client
            .get_item()
            .table_name(&self.name)
            .key(PK, item::text(key))
            .consistent_read(true);
        if let Some((expression, names)) = only {
            request = request.projection_expression(expression);
            for name in names {
                request = request.expression_attribute_names(format!("#{name}"), *name);
            }
        }
        let output = self.send(Does::Read, || request.clone().send()).await?;
        Ok(output.item)
    }
}
