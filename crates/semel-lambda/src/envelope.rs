//! One event, whichever way it came.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::{EnvelopeError, EventError};
use crate::json::Fields;

/// An event: who sent it, under which id, of which type, and what it brings.
#[derive(Clone)]
pub struct Envelope {
    source: Box<str>,
    id: Box<str>,
    event_type: Box<str>,
    time: Option<Box<str>>,
    delivery: Option<u32>,
    // JSON: checked when it was read.
    detail: Bytes,
}

const EVENT_BRIDGE: &str = "an event of EventBridge";
/// The field that marks an event of EventBridge: no other shape has one of this name.
pub(crate) const DETAIL_TYPE: &str = "detail-type";

impl Envelope {
    pub(crate) fn new(
        source: Box<str>,
        id: Box<str>,
        event_type: Box<str>,
        detail: &RawValue,
    ) -> Self {
        Self {
            source,
            id,
            event_type,
            time: None,
            delivery: None,
            detail: Bytes::copy_from_slice(detail.get().as_bytes()),
        }
    }

    /// Reads the fields of an event of EventBridge.
    pub(crate) fn of_event_bridge(fields: &Fields<'_>) -> Result<Self, EnvelopeError> {
        let text = |name| fields.needed_text(EVENT_BRIDGE, name);
        let detail = fields.needed_raw(EVENT_BRIDGE, "detail")?;
        let mut read = Self::new(text("source")?, text("id")?, text(DETAIL_TYPE)?, detail);
        read.time = fields.text("time");
        Ok(read)
    }

    pub(crate) fn with_time(mut self, time: Option<Box<str>>) -> Self {
        self.time = self.time.or(time);
        self
    }

    pub(crate) fn with_delivery(mut self, delivery: Option<u32>) -> Self {
        self.delivery = delivery;
        self
    }

    /// Who sent it: EventBridge's `source`, else the ARN of the queue or topic, or what the message
    /// says.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What its source calls it. Unique within the source; do not log it (R12).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its type, by which it is dispatched.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// When it was sent, as its sender wrote it.
    pub fn time(&self) -> Option<&str> {
        self.time.as_deref()
    }

    /// How often the queue has delivered it, this time included. A delivery that was refused without
    /// being handled counts too.
    pub const fn delivery(&self) -> Option<u32> {
        self.delivery
    }

    /// What it brings: JSON, as it was sent.
    pub const fn detail(&self) -> &Bytes {
        &self.detail
    }

    /// What it brings, as a value.
    ///
    /// # Errors
    /// [`WrongDetail`](EventError::WrongDetail): it is no such value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, EventError> {
        serde_json::from_slice(&self.detail).map_err(|error| EventError::WrongDetail {
            event_type: self.event_type.clone(),
            line: error.line(),
            column: error.column(),
        })
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("source", &self.source)
            .field("event_type", &self.event_type)
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}
