//! The event in a message of a queue: of EventBridge, of SNS, or plain.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::envelope::{DETAIL_TYPE, Envelope};
use crate::error::EnvelopeError;
use crate::json::Fields;

/// How plain messages are read: those that are neither an event of EventBridge nor a notification
/// of SNS that has one in it.
///
/// Unless told otherwise the type is in the message attribute `type`, or else in the field `type`;
/// the id is the message's own; the source is the ARN of the queue, or of the topic of SNS; and the
/// whole message is what the event brings.
///
/// The message's own id is the same in each redelivery, but a producer that sends twice makes two.
/// Where it writes an id of its own into the message, name the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainMessages {
    fixed_type: Option<Box<str>>,
    type_attribute: Box<str>,
    type_field: Box<str>,
    id_field: Option<Box<str>>,
    source_field: Option<Box<str>>,
    detail_field: Option<Box<str>>,
}

impl PlainMessages {
    /// As CloudEvents writes them in JSON: `type`, `id`, `source`, `data`.
    pub fn cloud_events() -> Self {
        Self::default()
            .with_id_field("id")
            .with_source_field("source")
            .with_detail_field("data")
    }

    /// All are of this type. They may then be any JSON.
    #[must_use]
    pub fn with_type(mut self, event_type: &str) -> Self {
        self.fixed_type = Some(event_type.into());
        self
    }

    /// The message attribute that holds the type. `type` unless set.
    #[must_use]
    pub fn with_type_attribute(mut self, name: &str) -> Self {
        self.type_attribute = name.into();
        self
    }

    /// The field that holds the type, where the attribute is not there. `type` unless set.
    #[must_use]
    pub fn with_type_field(mut self, name: &str) -> Self {
        self.type_field = name.into();
        self
    }

    /// The field that holds the producer's id. A message without it is not read.
    #[must_use]
    pub fn with_id_field(mut self, name: &str) -> Self {
        self.id_field = Some(name.into());
        self
    }

    /// The field that holds the source. A message without it is not read.
    #[must_use]
    pub fn with_source_field(mut self, name: &str) -> Self {
        self.source_field = Some(name.into());
        self
    }

    /// The field that holds what the event brings. A message without it is not read.
    #[must_use]
    pub fn with_detail_field(mut self, name: &str) -> Self {
        self.detail_field = Some(name.into());
        self
    }
}

impl Default for PlainMessages {
    fn default() -> Self {
        Self {
            fixed_type: None,
            type_attribute: "type".into(),
            type_field: "type".into(),
            id_field: None,
            source_field: None,
            detail_field: None,
        }
    }
}

/// What is known of a message beside its text.
pub(crate) struct Message<'a> {
    pub(crate) text: &'a str,
    pub(crate) id: &'a str,
    pub(crate) source: &'a str,
    pub(crate) time: Option<Box<str>>,
    /// By name; only those that are texts.
    pub(crate) attributes: BTreeMap<Box<str>, Box<str>>,
}

const SNS: &str = "a notification of SNS";
const PLAIN: &str = "a plain message";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SnsAttribute {
    value: Option<Box<str>>,
}

impl Message<'_> {
    /// The event in it.
    pub(crate) fn read(self, plain: &PlainMessages) -> Result<Envelope, EnvelopeError> {
        let fields = Fields::of(self.text)?;
        if let Some(fields) = &fields {
            if fields.has(DETAIL_TYPE) {
                return Envelope::of_event_bridge(fields);
            }
            if fields.text("Type").as_deref() == Some("Notification") && fields.has("TopicArn") {
                return notified(fields, plain);
            }
        }
        self.plain(fields.as_ref(), plain)
    }

    fn plain(
        self,
        fields: Option<&Fields<'_>>,
        plain: &PlainMessages,
    ) -> Result<Envelope, EnvelopeError> {
        let event_type = plain
            .fixed_type
            .clone()
            .or_else(|| self.attributes.get(&plain.type_attribute).cloned())
            .or_else(|| fields?.text(&plain.type_field))
            .ok_or_else(|| EnvelopeError::NoType {
                expected: format!(
                    "the message attribute `{}` or the field `{}`",
                    plain.type_attribute, plain.type_field
                )
                .into(),
            })?;
        let named = |name: &Option<Box<str>>, otherwise: &str| match (name, fields) {
            (None, _) => Ok(otherwise.into()),
            (Some(name), Some(fields)) => fields.needed_text(PLAIN, name),
            (Some(name), None) => Err(missing(name, "a text")),
        };
        let id = named(&plain.id_field, self.id)?;
        let source = named(&plain.source_field, self.source)?;
        let detail: &RawValue = match (&plain.detail_field, fields) {
            (None, _) => serde_json::from_str(self.text).map_err(EnvelopeError::NotJson)?,
            (Some(name), Some(fields)) => fields.needed_raw(PLAIN, name)?,
            (Some(name), None) => return Err(missing(name, "a value")),
        };
        Ok(Envelope::new(source, id, event_type, detail).with_time(self.time))
    }
}

/// What was published to a topic that the queue is subscribed to.
fn notified(fields: &Fields<'_>, plain: &PlainMessages) -> Result<Envelope, EnvelopeError> {
    let text = |name| fields.needed_text(SNS, name);
    let attributes: BTreeMap<Box<str>, SnsAttribute> = fields
        .raw("MessageAttributes")
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    let (published, id, topic) = (text("Message")?, text("MessageId")?, text("TopicArn")?);
    let message = Message {
        text: &published,
        id: &id,
        source: &topic,
        time: fields.text("Timestamp"),
        attributes: attributes
            .into_iter()
            .filter_map(|(name, attribute)| Some((name, attribute.value?)))
            .collect(),
    };
    // One wrapping, not two: a notification in a notification is a plain message.
    let inner = Fields::of(message.text)?;
    match &inner {
        Some(inner) if inner.has(DETAIL_TYPE) => Envelope::of_event_bridge(inner),
        _ => message.plain(inner.as_ref(), plain),
    }
}

fn missing(field: &str, kind: &'static str) -> EnvelopeError {
    EnvelopeError::Missing {
        shape: PLAIN,
        field: field.into(),
        kind,
    }
}
