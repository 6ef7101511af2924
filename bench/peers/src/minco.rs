//! `minco-plugin-idempotency`: one ordered map behind one asynchronous lock; nothing expires.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use minco_plugin_idempotency::{
    BeginOutcome, IdempotencyKey, IdempotencyStore as _, MemoryIdempotencyStore, RequestFingerprint,
};
use semel_bench_load::{Subject, answer, key};
use serde_json::Value;
use tokio::runtime::Handle;

pub(crate) struct Minco {
    store: MemoryIdempotencyStore,
    inputs: Arc<Inputs>,
}

pub(crate) struct Inputs {
    fingerprint: RequestFingerprint,
    // Read once: its service would ask the system's clock at every step.
    now: DateTime<Utc>,
    // It takes keys and answers by value, so that each step clones what semel's shares: some tens
    // of nanoseconds of its microseconds.
    keyed: Vec<(IdempotencyKey, Value)>,
}

pub(crate) fn inputs(count: usize) -> Inputs {
    let input = |index| {
        let body = String::from_utf8(answer(index)).expect("answers are text");
        let key = IdempotencyKey::parse(key(index)).expect("a valid key");
        (key, Value::String(body))
    };
    Inputs {
        fingerprint: RequestFingerprint::parse("7".repeat(64)).expect("64 digits"),
        now: DateTime::from_timestamp_nanos(1_800_000_000_000_000_000),
        keyed: (0..count).map(input).collect(),
    }
}

impl Minco {
    async fn begin(&self, key: &IdempotencyKey) -> BeginOutcome {
        let Inputs {
            fingerprint, now, ..
        } = &*self.inputs;
        let lease = TimeDelta::minutes(5);
        let began = self
            .store
            .begin(key.clone(), fingerprint.clone(), *now, lease);
        began.await.expect("a valid lease")
    }
}

impl Subject for Minco {
    type Inputs = Inputs;

    fn build(inputs: Arc<Inputs>, _runtime: &Handle) -> Self {
        let store = MemoryIdempotencyStore::default();
        Self { store, inputs }
    }

    async fn pair(&self, index: usize) {
        let (key, body) = &self.inputs.keyed[index];
        let BeginOutcome::Started(lease) = self.begin(key).await else {
            panic!("the key is free");
        };
        let done = self.store.complete(lease, body.clone(), self.inputs.now);
        done.await.expect("the lease is current");
    }

    async fn replay(&self, index: usize) {
        let (key, _) = &self.inputs.keyed[index];
        let BeginOutcome::Replay(kept) = self.begin(key).await else {
            panic!("the key is completed");
        };
        assert!(kept.response.is_string());
    }
}
