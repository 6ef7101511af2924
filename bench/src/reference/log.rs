//! What the disk and the hand-over allow: a preallocated file, one write and one `fdatasync` for
//! all steps that wait, and a hash map in memory. No reopening, expiry, space reuse or checks.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use bytes::Bytes;
use tokio::sync::oneshot;

const FILE: u64 = 256 << 20;
/// As much as a record with a 200-byte answer takes with its names and times.
const FRAME: usize = 400;

struct Step {
    digest: [u8; 32],
    answer: Option<Bytes>,
    done: oneshot::Sender<bool>,
}

/// The log. Ends its thread when it is dropped.
pub(crate) struct BareLog {
    steps: Option<Sender<Step>>,
    committer: Option<JoinHandle<()>>,
    syncs: Arc<AtomicU64>,
}

impl BareLog {
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let mut file = File::create(directory.join("log"))?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..FILE >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        let (steps, queue) = mpsc::channel();
        let syncs = Arc::new(AtomicU64::new(0));
        let counted = syncs.clone();
        let committer = thread::spawn(move || commit(file, &queue, &counted));
        Ok(Self {
            steps: Some(steps),
            committer: Some(committer),
            syncs,
        })
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// One durable step: a pending entry, or the answer to one. Whether it was applied.
    pub(crate) async fn step(&self, digest: &[u8; 32], answer: Option<Bytes>) -> bool {
        let (done, applied) = oneshot::channel();
        let step = Step {
            digest: *digest,
            answer,
            done,
        };
        let steps = self.steps.as_ref().expect("open until it is dropped");
        steps.send(step).is_ok() && applied.await.unwrap_or(false)
    }
}

impl Drop for BareLog {
    fn drop(&mut self) {
        drop(self.steps.take());
        if let Some(committer) = self.committer.take() {
            committer.join().expect("the disk takes what it is given");
        }
    }
}

fn commit(mut file: File, queue: &Receiver<Step>, syncs: &AtomicU64) {
    let mut map: HashMap<[u8; 32], Option<Bytes>> = HashMap::new();
    let mut frames = Vec::new();
    let mut waiting = Vec::new();
    let mut at = 0;
    while let Ok(first) = queue.recv() {
        frames.clear();
        for step in std::iter::once(first).chain(queue.try_iter()) {
            let frame = frames.len();
            frames.extend_from_slice(&step.digest);
            frames.extend_from_slice(step.answer.as_deref().unwrap_or_default());
            frames.resize(frame + FRAME, 0);
            let applied = match step.answer {
                None => map.insert(step.digest, None).is_none(),
                answer => map.insert(step.digest, answer).is_some(),
            };
            waiting.push((step.done, applied));
        }
        let len = frames.len() as u64;
        if at + len > FILE {
            file.seek(SeekFrom::Start(0)).expect("a seek");
            at = 0;
        }
        file.write_all(&frames).expect("a write");
        file.sync_data().expect("a sync");
        at += len;
        syncs.fetch_add(1, Ordering::Relaxed);
        for (done, applied) in waiting.drain(..) {
            // A caller that went away is not told.
            let _ = done.send(applied);
        }
    }
}
