//! `ullun-api`: one map behind one lock, swept by the claim that finds it full.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_bench_load::{Subject, answer, key};
use tokio::runtime::Handle;
use ullun::idempotency::{Begin, IdempotencyStore, MemoryStore, StoredResponse};

use crate::{KEPT, longest};

pub(crate) struct Ullun {
    store: MemoryStore,
    inputs: Arc<Vec<(String, Bytes)>>,
}

pub(crate) fn inputs(count: usize) -> Vec<(String, Bytes)> {
    let input = |index| (key(index), answer(index).into());
    (0..count).map(input).collect()
}

async fn pair(store: &MemoryStore, key: &str, body: Bytes, kept: Duration) {
    let claimed = store.begin(key, 7, KEPT).await;
    assert!(matches!(claimed, Begin::Started));
    let response = StoredResponse {
        status: 200,
        headers: Vec::new(),
        body,
    };
    store.complete(key, response, kept).await;
}

impl Subject for Ullun {
    type Inputs = Vec<(String, Bytes)>;

    fn build(inputs: Arc<Self::Inputs>, _runtime: &Handle) -> Self {
        let store = MemoryStore::new(inputs.len());
        Self { store, inputs }
    }

    async fn pair(&self, index: usize) {
        let (key, body) = &self.inputs[index];
        pair(&self.store, key, body.clone(), KEPT).await;
    }

    async fn replay(&self, index: usize) {
        let (key, body) = &self.inputs[index];
        let Begin::Replay(kept) = self.store.begin(key, 7, KEPT).await else {
            panic!("the key is completed");
        };
        assert_eq!(kept.body.len(), body.len());
    }
}

/// The first claim on a full store sweeps it, the others find it swept.
pub(crate) fn stall(count: usize) -> f64 {
    let runtime = semel_bench_load::workers();
    runtime.block_on(async {
        let store = MemoryStore::new(count);
        let body = Bytes::from(answer(0));
        for index in 0..count {
            pair(&store, &key(index), body.clone(), Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let claim = async |claims: usize| {
            let claimed = store.begin(&key(count + claims), 7, KEPT).await;
            assert!(matches!(claimed, Begin::Started));
        };
        longest(claim, |claims| claims == count / 2).await
    })
}
