//! A batch of messages: what is handled when, and what is reported.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::invocation::Record;

/// Which messages of a batch are to be delivered again, as SQS wants to be told: a function with
/// `ReportBatchItemFailures` answers this.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResponse {
    batch_item_failures: Box<[ItemFailure]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemFailure {
    item_identifier: Box<str>,
}

impl BatchResponse {
    pub(crate) fn new(failed: impl IntoIterator<Item = Box<str>>) -> Self {
        Self {
            batch_item_failures: failed
                .into_iter()
                .map(|item_identifier| ItemFailure { item_identifier })
                .collect(),
        }
    }

    /// The ids of the messages that are to be delivered again, in the order of the batch.
    pub fn failures(&self) -> impl ExactSizeIterator<Item = &str> {
        let failures = self.batch_item_failures.iter();
        failures.map(|failure| &*failure.item_identifier)
    }
}

/// Messages that are handled one after the other. Each knows its place in the batch.
pub(crate) type Lane = Vec<(usize, Record)>;

/// A lane for each message group of a FIFO queue, in the order of the batch; one for each message
/// of a standard queue.
pub(crate) fn lanes(records: Vec<Record>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut groups: BTreeMap<Box<str>, usize> = BTreeMap::new();
    for (place, record) in records.into_iter().enumerate() {
        let lane = match record.group() {
            Some(group) => *groups.entry(group.into()).or_insert(lanes.len()),
            None => lanes.len(),
        };
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push((place, record));
    }
    lanes
}
