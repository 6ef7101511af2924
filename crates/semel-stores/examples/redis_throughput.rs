//! Steps a second of the Redis store beside plain `SET`s over a connection of the same kind.
//!
//! `cargo run --release -p semel-stores --features redis --example redis_throughput URL [SECONDS]`

fn main() {
    #[cfg(feature = "redis")]
    redis_store::main();
}

#[cfg(feature = "redis")]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
mod redis_store {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Nonce, OnLapse, Retention};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
    use semel_stores::{RedisOptions, RedisStore};

    pub(super) fn main() {
        let mut args = std::env::args().skip(1);
        let url = args
            .next()
            .unwrap_or_else(|| "redis://127.0.0.1:6379".into());
        let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(3);
        let time = Duration::from_secs(seconds);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for callers in [1, 64] {
                if !url.starts_with("redis-cluster") {
                    let plain = url.split('?').next().unwrap_or_default();
                    report("SET  ", callers, time, sets(plain, callers, time).await);
                }
                let store = Arc::new(RedisOptions::new().open(&url).await.expect("a store"));
                report(
                    "steps",
                    callers,
                    time,
                    pairs(&store, callers, time, 150).await,
                );
            }
        });
    }

    fn report(what: &str, callers: u64, time: Duration, mut took: Vec<Duration>) {
        took.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let rate = took.len() as f64 / time.as_secs_f64();
        println!(
            "{what} {callers:>2} callers: {rate:>7.0} a second, p50 {:.0?}, p99 {:.0?}",
            took[took.len() / 2],
            took[took.len() * 99 / 100],
        );
    }

    async fn all(tasks: Vec<tokio::task::JoinHandle<Vec<Duration>>>) -> Vec<Duration> {
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("a caller"));
        }
        all
    }

    // 400 bytes with a TTL, as a step writes.
    async fn sets(url: &str, callers: u64, time: Duration) -> Vec<Duration> {
        let client = redis::Client::open(url).expect("a URL");
        let connection = client
            .get_multiplexed_async_connection()
            .await
            .expect("a connection");
        let started = Instant::now();
        let tasks = (0..callers).map(|caller| {
            let mut connection = connection.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while started.elapsed() < time {
                    let key = format!("set:{caller}:{}", took.len());
                    let sent = Instant::now();
                    let mut set = redis::cmd("SET");
                    set.arg(key).arg(&[b'x'; 400]).arg("EX").arg(60);
                    set.exec_async(&mut connection).await.expect("a SET");
                    took.push(sent.elapsed());
                }
                took
            })
        });
        all(tasks.collect()).await
    }

    // Each caller claims and completes, one step after the other.
    async fn pairs(
        store: &Arc<RedisStore>,
        callers: u64,
        time: Duration,
        body: usize,
    ) -> Vec<Duration> {
        let started = Instant::now();
        let tasks = (0..callers).map(|caller| {
            let store = store.clone();
            tokio::spawn(async move {
                let run = Nonce::random().expect("random bytes");
                let run = u128::from_be_bytes(*run.as_bytes());
                let outcome = Outcome::builder(semel::OutcomeKind::Success)
                    .code(201)
                    .field("content-type", b"application/json")
                    .body(&vec![b'x'; body]);
                let mut took = Vec::new();
                while started.elapsed() < time {
                    let key = format!("{run:032x}-{caller}-{}", took.len());
                    let identity = Identity::new(
                        Scope::new(["tenant"]),
                        "POST /orders",
                        Key::new(&key).expect("a key"),
                    );
                    let request = ClaimRequest {
                        nonce: Nonce::random().expect("random bytes"),
                        fingerprint: Fingerprint::of(key.as_bytes()),
                        lease: Duration::from_secs(30),
                        on_lapse: OnLapse::Hold,
                    };
                    let sent = Instant::now();
                    let claim = store.claim(&identity, &request).await.expect("a claim");
                    let Claim::Acquired(acquired) = claim else {
                        panic!("not acquired");
                    };
                    took.push(sent.elapsed());
                    let sent = Instant::now();
                    let _ = store
                        .complete(
                            identity.digest(),
                            &acquired.token,
                            &outcome,
                            Retention::new(Duration::from_secs(60)),
                        )
                        .await
                        .expect("a completion");
                    took.push(sent.elapsed());
                }
                took
            })
        });
        all(tasks.collect()).await
    }
}
