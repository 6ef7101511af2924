//! Pairs a second (claim and complete) of the NATS store beside bare puts into a bucket.
//!
//! `cargo run --release -p semel-stores --features nats --example nats_throughput URL [SECONDS]`

fn main() {
    #[cfg(feature = "nats")]
    nats::main();
}

#[cfg(feature = "nats")]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
mod nats {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Nonce, Retention, StoreExt as _};
    use semel::{Fingerprint, Identity, Key, Outcome, OutcomeKind, Scope, Store};
    use semel_stores::{NatsOptions, NatsStore, Schema};

    pub(super) fn main() {
        let mut args = std::env::args().skip(1);
        let url = args
            .next()
            .expect("a URL, as in nats://localhost/bench?replicas=1");
        let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(5);
        let time = Duration::from_secs(seconds);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let options = NatsOptions::from_url(&url).expect("a URL");
            let options = options.schema(Schema::Create).for_tests();
            let store = Arc::new(options.open().await.expect("a store"));
            let host = url.split('/').nth(2).expect("a host").split(',').next();
            let client = async_nats::connect(host.expect("a host")).await.expect("a server");
            for callers in [1, 64] {
                let (pairs, mut took) = pairs(&store, callers, time).await;
                took.sort_unstable();
                println!(
                    "semel   {callers:>2} callers: {:>7.0} pairs/s, {:>7.0} steps/s, p50 {:.0?}, p99 {:.0?}",
                    rate(pairs, time),
                    2.0 * rate(pairs, time),
                    took[took.len() / 2],
                    took[took.len() * 99 / 100],
                );
                let (replays, _) = replays(&store, callers, time).await;
                println!("replays {callers:>2} callers: {:>7.0} a second", rate(replays, time));
                let puts = bare(&client, &url, callers, time).await;
                println!("bare    {callers:>2} callers: {:>7.0} puts/s", rate(puts, time));
            }
        });
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn rate(count: usize, time: Duration) -> f64 {
        count as f64 / time.as_secs_f64()
    }

    fn identity(name: &str) -> Identity {
        let key = Key::new(&format!("{name}-0123456789abcdef")).expect("a key");
        Identity::new(Scope::new(["tenant"]), "POST /orders", key)
    }

    fn request() -> ClaimRequest {
        ClaimRequest::new(
            Nonce::random().expect("random bytes"),
            Fingerprint::of(b"request"),
            Duration::from_secs(30),
        )
    }

    fn outcome() -> Outcome {
        Outcome::builder(OutcomeKind::Success)
            .code(201)
            .field("content-type", b"application/json")
            .body(&[b'x'; 150])
    }

    async fn pair(store: &NatsStore, identity: &Identity, outcome: &Outcome) {
        let claim = store.claim(identity, &request()).await.expect("a claim");
        let Claim::Acquired(won) = claim else {
            panic!("not acquired")
        };
        let done = store.complete(identity.digest(), &won.token, outcome, Retention::ORDER);
        let _ = done.await.expect("a completion");
    }

    async fn callers<F, W>(count: usize, work: W) -> (usize, Vec<Duration>)
    where
        F: Future<Output = (usize, Vec<Duration>)> + Send + 'static,
        W: Fn(usize) -> F,
    {
        let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(work(n))).collect();
        let mut all = (0, Vec::new());
        for task in tasks {
            let (count, took) = task.await.expect("a caller");
            all.0 += count;
            all.1.extend(took);
        }
        all
    }

    async fn pairs(store: &Arc<NatsStore>, count: usize, time: Duration) -> (usize, Vec<Duration>) {
        let round: [u8; 16] = *Nonce::random().expect("random bytes").as_bytes();
        callers(count, |caller| {
            let store = store.clone();
            async move {
                let (started, outcome) = (Instant::now(), outcome());
                let (mut done, mut took) = (0, Vec::new());
                while started.elapsed() < time {
                    let identity = identity(&format!("{}-{caller}-{done}", round[0]));
                    let sent = Instant::now();
                    pair(&store, &identity, &outcome).await;
                    took.push(sent.elapsed() / 2);
                    done += 1;
                }
                (done, took)
            }
        })
        .await
    }

    async fn replays(
        store: &Arc<NatsStore>,
        count: usize,
        time: Duration,
    ) -> (usize, Vec<Duration>) {
        let same = identity("replayed");
        if let Ok(Claim::Acquired(won)) = store.claim(&same, &request()).await {
            let outcome = outcome();
            let done = store.complete(same.digest(), &won.token, &outcome, Retention::ORDER);
            let _ = done.await.expect("a completion");
        }
        callers(count, |_| {
            let (store, same) = (store.clone(), same.clone());
            async move {
                let (started, mut done) = (Instant::now(), 0);
                while started.elapsed() < time {
                    let claim = store.claim(&same, &request()).await.expect("a claim");
                    assert!(matches!(claim, Claim::Completed { .. }));
                    done += 1;
                }
                (done, Vec::new())
            }
        })
        .await
    }

    async fn bare(client: &async_nats::Client, url: &str, count: usize, time: Duration) -> usize {
        let context = async_nats::jetstream::new(client.clone());
        let replicas = if url.contains("replicas=3") { 3 } else { 1 };
        // A bucket's put is a publish that is acknowledged.
        let config = async_nats::jetstream::stream::Config {
            name: "bare".into(),
            subjects: vec!["bare.>".into()],
            max_messages_per_subject: 1,
            num_replicas: replicas,
            ..Default::default()
        };
        context.create_stream(config).await.expect("a stream");
        callers(count, |caller| {
            let context = context.clone();
            async move {
                let (started, mut done) = (Instant::now(), 0);
                while started.elapsed() < time {
                    let subject = format!("bare.{caller}-{done}-{:064}", 7);
                    let put = context.publish(subject, vec![7; 400].into()).await;
                    put.expect("a put").await.expect("an answer");
                    done += 1;
                }
                (done, Vec::new())
            }
        })
        .await
        .0
    }
}
