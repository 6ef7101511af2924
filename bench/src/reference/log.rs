//! What the disk and the hand-over allow: a preallocated file, one write and one `fdatasync` for
//! all steps that wait, and a hash map in memory. No reopening, expiry, space reuse or checks.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use bytes::Bytes;

use super::group::Group;

const FILE: u64 = 256 << 20;
/// As much as a record with a 200-byte answer takes with its names and times.
const FRAME: usize = 400;

struct Step {
    digest: [u8; 32],
    answer: Option<Bytes>,
}

/// The log.
pub(crate) struct BareLog {
    group: Group<Step>,
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
        let syncs = Arc::new(AtomicU64::new(0));
        let counted = syncs.clone();
        let mut map: HashMap<[u8; 32], Option<Bytes>> = HashMap::new();
        let mut frames = Vec::new();
        let mut at = 0;
        let group = Group::start(move |steps: &[Step]| {
            frames.clear();
            for Step { digest, answer } in steps {
                let frame = frames.len();
                frames.extend_from_slice(digest);
                frames.extend_from_slice(answer.as_deref().unwrap_or_default());
                frames.resize(frame + FRAME, 0);
                let known = map.insert(*digest, answer.clone()).is_some();
                ensure!(known == answer.is_some(), "a free key, then a pending one");
            }
            let len = frames.len() as u64;
            if at + len > FILE {
                file.seek(SeekFrom::Start(0))?;
                at = 0;
            }
            file.write_all(&frames)?;
            file.sync_data()?;
            at += len;
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        Ok(Self { group, syncs })
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// One durable step: a pending entry, or the answer to one. Whether it was applied.
    pub(crate) async fn step(&self, digest: &[u8; 32], answer: Option<Bytes>) -> bool {
        let digest = *digest;
        self.group.step(Step { digest, answer }).await
    }
}
