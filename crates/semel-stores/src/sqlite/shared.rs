//! What a store's handle and its threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::clock::Time;
use super::connect::Place;
use super::queue::Queue;
use super::reader::Read;
use super::step::Step;
use crate::common::Waiters;

pub(super) struct Shared {
    pub(super) place: Place,
    pub(super) time: Time,
    /// To the writer.
    pub(super) steps: Queue<Step>,
    /// To the reader of single records.
    pub(super) lookups: Queue<Read>,
    /// To the reader of everything that takes longer; it also looks out for other processes.
    pub(super) scans: Queue<Read>,
    pub(super) waiters: Arc<Waiters>,
    /// How many wait.
    pub(super) waiting: AtomicUsize,
    /// Whether the writer waits for somebody else's lock.
    pub(super) locked: AtomicBool,
    /// Whether something was erased that lies in the log.
    pub(super) erased: AtomicBool,
    /// How many transactions were committed.
    pub(super) commits: AtomicU64,
}

impl Shared {
    pub(super) fn close(&self) {
        // Readers hand claims on to the writer: it is told last.
        self.lookups.close();
        self.scans.close();
        self.steps.close();
    }
}
