//! What an invocation brings: one event, or a batch of messages.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::envelope::{DETAIL_TYPE, Envelope};
use crate::error::EnvelopeError;
use crate::json::Fields;
use crate::message::{Message, PlainMessages};

/// What an invocation brings.
pub(crate) enum Invocation {
    Event(Envelope),
    Batch(Vec<Record>),
}

const SQS: &str = "aws:sqs";
const RECORD: &str = "a message of SQS";

/// One message of a batch of SQS. Fields that are not needed are not read: `aws_lambda_events`
/// refuses a batch for some of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    #[serde(default)]
    message_id: Box<str>,
    #[serde(default)]
    body: Box<str>,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    message_attributes: BTreeMap<Box<str>, MessageAttribute>,
    #[serde(default, alias = "EventSource")]
    event_source: Box<str>,
    #[serde(default, rename = "eventSourceARN")]
    event_source_arn: Box<str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Attributes {
    approximate_receive_count: Option<Box<str>>,
    message_group_id: Option<Box<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageAttribute {
    string_value: Option<Box<str>>,
}

impl Invocation {
    pub(crate) fn read(payload: &str) -> Result<Self, EnvelopeError> {
        let unknown = |found: String| EnvelopeError::UnknownShape {
            found: found.into(),
        };
        let Some(fields) = Fields::of(payload)? else {
            return Err(unknown("it is no object".to_owned()));
        };
        if fields.has(DETAIL_TYPE) {
            return Envelope::of_event_bridge(&fields).map(Self::Event);
        }
        let Some(records) = fields.raw("Records") else {
            return Err(unknown(format!("its fields are {}", fields.names())));
        };
        let records: Vec<Record> =
            serde_json::from_str(records.get()).map_err(|error| EnvelopeError::Missing {
                shape: "a batch of SQS",
                field: "Records".into(),
                kind: if error.is_data() {
                    "a list of messages"
                } else {
                    "JSON"
                },
            })?;
        for record in &records {
            if &*record.event_source != SQS {
                let source = &record.event_source;
                return Err(unknown(format!("it has records of {source:?}")));
            }
            for (field, text) in [
                ("messageId", &record.message_id),
                ("eventSourceARN", &record.event_source_arn),
            ] {
                if text.is_empty() {
                    return Err(EnvelopeError::Missing {
                        shape: RECORD,
                        field: field.into(),
                        kind: "a text",
                    });
                }
            }
        }
        Ok(Self::Batch(records))
    }
}

impl Record {
    /// How SQS calls the message.
    pub(crate) fn message_id(&self) -> &str {
        &self.message_id
    }

    /// The group whose order is kept; none in a standard queue. There too messages may have a group
    /// (for fairness between tenants), but no order.
    pub(crate) fn group(&self) -> Option<&str> {
        self.event_source_arn
            .ends_with(".fifo")
            .then(|| self.attributes.message_group_id.as_deref().unwrap_or(""))
    }

    /// The event in it.
    pub(crate) fn read(&self, plain: &PlainMessages) -> Result<Envelope, EnvelopeError> {
        let attributes = self
            .message_attributes
            .iter()
            .filter_map(|(name, attribute)| Some((name.clone(), attribute.string_value.clone()?)))
            .collect();
        let message = Message {
            text: &self.body,
            id: &self.message_id,
            source: &self.event_source_arn,
            time: None,
            attributes,
        };
        let delivery = self.attributes.approximate_receive_count.as_deref();
        let read = message.read(plain)?;
        Ok(read.with_delivery(delivery.and_then(|count| count.parse().ok())))
    }
}
