//! Steps a second of the embedded store beside a bare log with the same group commit.
//!
//! `cargo run --release -p semel-stores --features file --example throughput [SECONDS] [STORED]`

fn main() {
    #[cfg(feature = "file")]
    file::main();
}

#[cfg(feature = "file")]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
mod file {
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Nonce, OnLost, Retention};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
    use semel_stores::{FileOptions, FileStore};

    pub(super) fn main() {
        let mut args = std::env::args()
            .skip(1)
            .map(|a| a.parse::<u64>().unwrap_or(0));
        let seconds = Duration::from_secs(args.next().unwrap_or(5));
        let stored = args.next().unwrap_or(0);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        for callers in [1, 64] {
            let directory = tempfile::tempdir_in(".").expect("a directory");
            let (rate, group) = runtime.block_on(bare(directory.path(), callers, seconds));
            println!(
                "bare log   {callers:>2} callers: {rate:>7.0} steps/s, {group:>5.1} steps/sync"
            );
        }
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let store = Arc::new(FileOptions::new().open(directory.path()).expect("a store"));
        if stored > 0 {
            let started = Instant::now();
            let per_caller = stored / 64;
            runtime.block_on(run(&store, 64, u64::MAX, Some(per_caller)));
            println!("stored {stored} records in {:.1?}", started.elapsed());
            runtime.block_on(store.close()).expect("closes");
            println!(
                "bytes on disk per record: {}",
                size(directory.path()) / stored
            );
            drop(store);
            let started = Instant::now();
            let store = FileOptions::new().open(directory.path()).expect("a store");
            println!("opened with them in {:.1?}", started.elapsed());
            measure(&runtime, &Arc::new(store), seconds);
        } else {
            measure(&runtime, &store, seconds);
        }
    }

    fn measure(runtime: &tokio::runtime::Runtime, store: &Arc<FileStore>, seconds: Duration) {
        for callers in [1, 64] {
            let syncs = store.syncs();
            let nanos = u64::try_from(seconds.as_nanos()).unwrap_or(u64::MAX);
            let (steps, mut pauses) = runtime.block_on(run(store, callers, nanos, None));
            let syncs = store.syncs() - syncs;
            #[expect(clippy::cast_precision_loss, reason = "rates")]
            let (rate, group) = (
                steps as f64 / seconds.as_secs_f64(),
                steps as f64 / syncs as f64,
            );
            pauses.sort_unstable();
            let at = |part: f64| {
                #[expect(
                    clippy::cast_precision_loss,
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a place in a list"
                )]
                pauses[((pauses.len() - 1) as f64 * part) as usize]
            };
            println!(
                "file store {callers:>2} callers: {rate:>7.0} steps/s, {group:>5.1} steps/sync, \
                 p50 {:.0?}, p99 {:.0?}, longest {:.1?}",
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }

    // Each caller claims and completes, one step after the other.
    async fn run(
        store: &Arc<FileStore>,
        callers: u64,
        nanos: u64,
        pairs: Option<u64>,
    ) -> (u64, Vec<Duration>) {
        static ROUND: AtomicU64 = AtomicU64::new(0);
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let store = store.clone();
                tokio::spawn(async move {
                    let outcome = Outcome::builder(semel::OutcomeKind::Success)
                        .code(201)
                        .field("content-type", b"application/json")
                        .body(&[b'x'; 150]);
                    let mut took = Vec::new();
                    let mut n = 0;
                    while pairs.is_none_or(|pairs| n < pairs)
                        && started.elapsed().as_nanos() < u128::from(nanos)
                    {
                        let key = format!("{round}-{caller}-{n}-0123456789abcdef");
                        let identity = Identity::new(
                            Scope::new(["tenant"]),
                            "POST /orders",
                            Key::new(&key).expect("a key"),
                        );
                        let request = ClaimRequest {
                            nonce: Nonce::random().expect("random bytes"),
                            fingerprint: Fingerprint::of(key.as_bytes()),
                            lease: Duration::from_secs(30),
                            on_lost: OnLost::Hold,
                        };
                        let sent = Instant::now();
                        let Claim::Acquired(acquired) =
                            store.claim(&identity, &request).await.expect("a claim")
                        else {
                            panic!("not acquired");
                        };
                        took.push(sent.elapsed());
                        let sent = Instant::now();
                        let _ = store
                            .complete(
                                identity.digest(),
                                &acquired.token,
                                &outcome,
                                Retention::ORDER,
                            )
                            .await
                            .expect("a completion");
                        took.push(sent.elapsed());
                        n += 1;
                    }
                    took
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("a caller"));
        }
        (all.len() as u64, all)
    }

    // What the disk and the hand-over allow: 400 bytes a step into a preallocated file.
    async fn bare(path: &std::path::Path, callers: u64, seconds: Duration) -> (f64, f64) {
        const LEN: u64 = 256 << 20;
        let mut file = File::create(path.join("log")).expect("a file");
        for _ in 0..LEN >> 20 {
            file.write_all(&[0; 1 << 20]).expect("room");
        }
        file.sync_all().expect("a sync");
        file.seek(SeekFrom::Start(0)).expect("a seek");
        let (send, receive) = mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
        let syncs = Arc::new(AtomicU64::new(0));
        let counted = syncs.clone();
        let thread = std::thread::spawn(move || {
            let mut at = 0;
            while let Ok(first) = receive.recv() {
                let mut group = vec![first];
                group.extend(receive.try_iter());
                let bytes = vec![7; 400 * group.len()];
                if at + bytes.len() as u64 > LEN {
                    file.seek(SeekFrom::Start(0)).expect("a seek");
                    at = 0;
                }
                file.write_all(&bytes).expect("a write");
                at += bytes.len() as u64;
                file.sync_data().expect("a sync");
                counted.fetch_add(1, Ordering::Relaxed);
                for done in group {
                    let _ = done.send(());
                }
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (send, stop) = (send.clone(), stop.clone());
                tokio::spawn(async move {
                    let mut n = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let (done, answer) = tokio::sync::oneshot::channel();
                        send.send(done).expect("the thread");
                        answer.await.expect("an answer");
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        drop(send);
        tokio::time::sleep(seconds).await;
        stop.store(true, Ordering::Relaxed);
        let mut steps = 0;
        for task in tasks {
            steps += task.await.expect("a caller");
        }
        thread.join().expect("the thread");
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let (steps, syncs) = (steps as f64, syncs.load(Ordering::Relaxed) as f64);
        (steps / seconds.as_secs_f64(), steps / syncs)
    }

    fn size(path: &std::path::Path) -> u64 {
        let Ok(entries) = std::fs::read_dir(path) else {
            return 0;
        };
        entries
            .filter_map(Result::ok)
            .map(|e| match e.metadata() {
                Ok(m) if m.is_dir() => size(&e.path()),
                #[cfg(unix)]
                Ok(m) => std::os::unix::fs::MetadataExt::blocks(&m) * 512,
                #[cfg(not(unix))]
                Ok(m) => m.len(),
                Err(_) => 0,
            })
            .sum()
    }
}
