//! The embedded store. Its files are the engine's own: records are made one by one.

use anyhow::Result;
use semel::Store as _;
use semel_bench_load::workers;
use tempfile::TempDir;

use super::copies::RETENTION;
use super::{Place, label};
use crate::disk::{self, size};
use crate::stores::{open, pair};

/// Many, so that a sync is for many steps.
const CALLERS: usize = 1024;

struct Folder(TempDir);

pub(super) fn start() -> Result<Box<dyn Place>> {
    Ok(Box::new(Folder(disk::directory()?)))
}

impl Place for Folder {
    fn url(&self, records: usize) -> String {
        format!("file:{}", self.0.path().join(label(records)).display())
    }

    fn fill(&self, records: usize) -> Result<f64> {
        workers().block_on(async {
            let store = open(&self.url(records)).await?;
            let running: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let store = store.clone();
                    tokio::spawn(async move {
                        for index in (1 + caller..records).step_by(CALLERS) {
                            pair(&store, index, RETENTION).await?;
                        }
                        anyhow::Ok(())
                    })
                })
                .collect();
            for caller in running {
                caller.await??;
            }
            store.close().await?;
            anyhow::Ok(())
        })?;
        Ok(size(&self.0.path().join(label(records)))? / records as f64)
    }

    fn process(&self) -> u32 {
        std::process::id()
    }
}
