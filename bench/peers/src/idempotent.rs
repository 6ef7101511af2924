//! `idempotent` 2: one task owns the map, callers send it commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use idempotent::memory::MemoryStore;
use idempotent::{
    CachedResponse, FencedOutcome, Fingerprint, IdempotencyEntry, IdempotencyKey, IdempotencyStore,
    InsertResult, Metadata,
};
use semel_bench_load::{Subject, answer, key};
use tokio::runtime::Handle;

use crate::{KEPT, longest};

// Its default of 64 makes 64 callers wait for room.
const BUFFER: usize = 1024;

pub(crate) struct Idempotent {
    store: MemoryStore,
    inputs: Arc<Vec<(IdempotencyKey, Bytes)>>,
}

pub(crate) fn inputs(count: usize) -> Vec<(IdempotencyKey, Bytes)> {
    let input = |index| (name(key(index)), answer(index).into());
    (0..count).map(input).collect()
}

fn name(key: String) -> IdempotencyKey {
    IdempotencyKey::new(key).expect("a valid key")
}

const ENTRY: IdempotencyEntry<idempotent::entry::Processing> =
    IdempotencyEntry::new(Fingerprint::new(7), KEPT);

async fn pair(store: &MemoryStore, key: &IdempotencyKey, body: Bytes, kept: Duration) {
    let claimed = store.try_insert(key, ENTRY).await.expect("the task runs");
    let InsertResult::Claimed { fencing_token } = claimed else {
        panic!("the key is free");
    };
    let completed = ENTRY.complete(CachedResponse::new(200, Metadata::new(), body), kept);
    let done = store.complete(key, completed, fencing_token).await;
    assert!(matches!(done, Ok(FencedOutcome::Applied)));
}

impl Subject for Idempotent {
    type Inputs = Vec<(IdempotencyKey, Bytes)>;

    fn build(inputs: Arc<Self::Inputs>, runtime: &Handle) -> Self {
        let store = MemoryStore::builder()
            .buffer(BUFFER)
            .sweep_interval(KEPT)
            .runtime(runtime.clone())
            .try_build()
            .expect("the settings are valid");
        Self { store, inputs }
    }

    async fn pair(&self, index: usize) {
        let (key, body) = &self.inputs[index];
        pair(&self.store, key, body.clone(), KEPT).await;
    }

    async fn replay(&self, index: usize) {
        let (key, body) = &self.inputs[index];
        let claimed = self.store.try_insert(key, ENTRY).await;
        let Ok(InsertResult::Exists(idempotent::entry::ExistingEntry::Completed(kept))) = claimed
        else {
            panic!("the key is completed");
        };
        assert_eq!(kept.response().body.len(), body.len());
    }
}

/// Its sweep comes at an interval: one long enough to fill the store before it. Callers and the task
/// share one thread, which is when its steps are shortest.
pub(crate) fn stall(count: usize) -> f64 {
    let filling = Duration::from_micros(10 * count as u64) + Duration::from_secs(2);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let store = MemoryStore::builder()
            .buffer(BUFFER)
            .sweep_interval(filling)
            .try_build()
            .expect("the settings are valid");
        let started = Instant::now();
        let body = Bytes::from(answer(0));
        for index in 0..count {
            pair(
                &store,
                &name(key(index)),
                body.clone(),
                Duration::from_millis(1),
            )
            .await;
        }
        assert!(started.elapsed() < filling, "filled after the sweep");
        let mut until = started + filling + Duration::from_secs(1);
        let (mut claimed_keys, mut stall) = (0, 0.0_f64);
        loop {
            let claim = async |_| {
                let key = name(key(count + claimed_keys));
                claimed_keys += 1;
                let claimed = store.try_insert(&key, ENTRY).await;
                assert!(matches!(claimed, Ok(InsertResult::Claimed { .. })));
            };
            stall = stall.max(longest(claim, |_| Instant::now() >= until).await);
            if store.len().await.expect("the task runs") == claimed_keys {
                return stall;
            }
            // Its sweep is late now and then.
            until += Duration::from_secs(1);
            assert!(until < started + 3 * filling, "what expired is gone");
        }
    })
}
