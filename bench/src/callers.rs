//! Callers that each do one thing after the other for a while.

use std::time::{Duration, Instant};

use anyhow::Result;

/// How often a second `callers` do `work` within `time`. It gets the caller's number, and one of its
/// own, from `next` on.
pub(crate) async fn rate<W>(
    callers: usize,
    time: Duration,
    next: &mut usize,
    work: impl Fn(usize, usize) -> W + Clone + Send + 'static,
) -> Result<f64>
where
    W: Future<Output = Result<()>> + Send + 'static,
{
    let (from, started) = (*next, Instant::now());
    let running: Vec<_> = (0..callers)
        .map(|caller| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while started.elapsed() < time {
                    work(caller, from + caller + done * callers).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            })
        })
        .collect();
    let (mut all, mut most) = (0, 0);
    for caller in running {
        let done = caller.await??;
        all += done;
        most = most.max(done);
    }
    *next = from + callers * most;
    Ok(all as f64 / started.elapsed().as_secs_f64())
}
