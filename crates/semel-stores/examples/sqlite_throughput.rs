//! Pairs (a claim and its completion) a second of the SQLite store, beside bare inserts with a
//! transaction each; and how long a waiter takes to be woken.
//!
//! `cargo run --release -p semel-stores --features sqlite --example sqlite_throughput [SECONDS] [STORED]`

fn main() {
    #[cfg(feature = "sqlite")]
    sqlite::main();
}

#[cfg(feature = "sqlite")]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
mod sqlite {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use semel::store::{Acquired, Claim, ClaimRequest, Nonce, OnLapse, Retention, Token};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
    use semel_stores::{Schema, SqliteOptions, SqliteStore};

    /// The file, and how long: set for the processes that share it.
    const SHARED: &str = "SEMEL_SQLITE_SHARED";
    const SYNCS: [&str; 2] = ["full", "normal"];

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
        if let Ok(path) = std::env::var(SHARED) {
            let (steps, _) = runtime.block_on(run(&open(Path::new(&path), true), 16, seconds));
            println!("{steps}");
            return;
        }
        for threads in [1, 64] {
            let directory = tempfile::tempdir_in(".").expect("a directory");
            let rate = bare(&directory.path().join("bare.db"), threads, seconds);
            println!("bare inserts   {threads:>2} threads: {rate:>6.0} transactions/s");
        }
        for full in [true, false] {
            let directory = tempfile::tempdir_in(".").expect("a directory");
            let path = directory.path().join("semel.db");
            let store = open(&path, full);
            if stored > 0 && full {
                fill(&runtime, &store, stored);
            }
            for callers in [1, 64] {
                measure(
                    &runtime,
                    &store,
                    callers,
                    seconds,
                    SYNCS[usize::from(!full)],
                );
            }
            replays(&runtime, &store, seconds);
        }
        shared(seconds);
        wakes(&runtime);
    }

    fn open(path: &Path, full: bool) -> Arc<SqliteStore> {
        let options = SqliteOptions::new().schema(Schema::Create);
        let options = if full {
            options
        } else {
            options.without_sync()
        };
        Arc::new(options.open(path).expect("a store"))
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn fill(runtime: &tokio::runtime::Runtime, store: &Arc<SqliteStore>, stored: u64) {
        let started = Instant::now();
        let mut steps = 0;
        while steps / 2 < stored {
            steps += runtime.block_on(run(store, 512, Duration::from_secs(1))).0;
        }
        let rate = steps as f64 / 2.0 / started.elapsed().as_secs_f64();
        println!("stored {} records, {rate:.0} a second", steps / 2);
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn measure(
        runtime: &tokio::runtime::Runtime,
        store: &Arc<SqliteStore>,
        callers: u64,
        seconds: Duration,
        synchronous: &str,
    ) {
        let commits = store.commits();
        let (steps, mut took) = runtime.block_on(run(store, callers, seconds));
        let commits = store.commits() - commits;
        let pairs = steps as f64 / 2.0 / seconds.as_secs_f64();
        let group = steps as f64 / commits as f64;
        took.sort_unstable();
        println!(
            "store ({synchronous:<6}) {callers:>2} callers: {pairs:>6.0} pairs/s, {group:>5.1} steps/commit, \
             p50 {:.0?}, p99 {:.0?}, longest {:.1?}",
            at(&took, 50),
            at(&took, 99),
            at(&took, 100)
        );
    }

    fn at(sorted: &[Duration], percent: usize) -> Duration {
        sorted[(sorted.len() - 1) * percent / 100]
    }

    fn request() -> ClaimRequest {
        ClaimRequest {
            nonce: Nonce::random().expect("random bytes"),
            fingerprint: Fingerprint::of(b"request"),
            lease: Duration::from_secs(30),
            on_lapse: OnLapse::Hold,
        }
    }

    fn identity(key: &str) -> Identity {
        let key = Key::new(key).expect("a key");
        Identity::new(Scope::new(["tenant"]), "POST /orders", key)
    }

    async fn acquire(store: &SqliteStore, identity: &Identity) -> Token {
        match store.claim(identity, &request()).await.expect("a claim") {
            Claim::Acquired(Acquired { token, .. }) => token,
            other => panic!("not acquired but {other:?}"),
        }
    }

    async fn complete(store: &SqliteStore, identity: &Identity, token: &Token) {
        let outcome = Outcome::builder(semel::OutcomeKind::Success)
            .code(201)
            .field("content-type", b"application/json")
            .body(&[b'x'; 150]);
        let done = store.complete(identity.digest(), token, &outcome, Retention::ORDER);
        let _ = done.await.expect("a completion");
    }

    // Each caller claims and completes, one step after the other.
    async fn run(store: &Arc<SqliteStore>, callers: u64, time: Duration) -> (u64, Vec<Duration>) {
        static ROUND: AtomicU64 = AtomicU64::new(0);
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let started = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let store = store.clone();
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    for n in 0_u64.. {
                        if started.elapsed() >= time {
                            break;
                        }
                        let identity = identity(&format!("{process}-{round}-{caller}-{n}"));
                        let sent = Instant::now();
                        let token = acquire(&store, &identity).await;
                        let claimed = Instant::now();
                        complete(&store, &identity, &token).await;
                        took.extend([claimed - sent, claimed.elapsed()]);
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

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn replays(runtime: &tokio::runtime::Runtime, store: &Arc<SqliteStore>, time: Duration) {
        let identity = identity("replayed");
        let commits = runtime.block_on(async {
            let token = acquire(store, &identity).await;
            complete(store, &identity, &token).await;
            store.commits()
        });
        for callers in [1, 64] {
            let started = Instant::now();
            let count = runtime.block_on(async {
                let tasks: Vec<_> = (0..callers)
                    .map(|_| {
                        let (store, identity) = (store.clone(), identity.clone());
                        tokio::spawn(async move {
                            let mut count = 0_u64;
                            while started.elapsed() < time {
                                let claim = store.claim(&identity, &request()).await;
                                assert!(matches!(claim, Ok(Claim::Completed { .. })));
                                count += 1;
                            }
                            count
                        })
                    })
                    .collect();
                let mut count = 0;
                for task in tasks {
                    count += task.await.expect("a caller");
                }
                count
            });
            let rate = count as f64 / time.as_secs_f64();
            println!("replays        {callers:>2} callers: {rate:>6.0}/s");
        }
        assert_eq!(store.commits(), commits, "a replay writes nothing");
    }

    // What the file allows: one row, one transaction, one sync; as many connections as threads.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn bare(path: &Path, threads: u64, time: Duration) -> f64 {
        let connect = || {
            let connection = rusqlite::Connection::open(path).expect("a file");
            connection
                .execute_batch("PRAGMA journal_mode = wal; PRAGMA synchronous = full;")
                .expect("settings");
            connection
                .busy_timeout(Duration::from_mins(1))
                .expect("a time");
            connection
        };
        connect()
            .execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)")
            .expect("a table");
        let started = Instant::now();
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let connection = connect();
                        let mut insert = connection
                            .prepare("INSERT INTO t (value) VALUES (?1)")
                            .expect("a statement");
                        let mut count = 0;
                        while started.elapsed() < time {
                            insert.execute([[7_u8; 400]]).expect("an insert");
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|t| t.join().expect("a thread"))
                .collect()
        });
        counts.iter().sum::<u64>() as f64 / started.elapsed().as_secs_f64()
    }

    // Several processes on one file, each with 16 callers.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn shared(time: Duration) {
        for processes in [1, 2, 4, 8] {
            let directory = tempfile::tempdir_in(".").expect("a directory");
            let path = directory.path().join("semel.db");
            drop(open(&path, true));
            let children: Vec<Child> = (0..processes)
                .map(|_| {
                    Command::new(std::env::current_exe().expect("this program"))
                        .arg(time.as_secs().to_string())
                        .env(SHARED, &path)
                        .stdout(Stdio::piped())
                        .spawn()
                        .expect("a process")
                })
                .collect();
            let counts: Vec<f64> = children
                .into_iter()
                .map(|child| {
                    let output = child.wait_with_output().expect("an end");
                    assert!(output.status.success());
                    let steps: u64 = String::from_utf8_lossy(&output.stdout)
                        .trim()
                        .parse()
                        .expect("a number");
                    steps as f64 / 2.0 / time.as_secs_f64()
                })
                .collect();
            println!(
                "store (full)   {processes} processes x 16 callers: {:>6.0} pairs/s; slowest {:.0}, fastest {:.0}",
                counts.iter().sum::<f64>(),
                counts.iter().copied().fold(f64::MAX, f64::min),
                counts.iter().copied().fold(0.0, f64::max),
            );
        }
    }

    // From a completion's answer to the waiter's: through the same handle, and through another.
    fn wakes(runtime: &tokio::runtime::Runtime) {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("semel.db");
        let (here, there) = (open(&path, true), open(&path, true));
        for (name, waits) in [("the same handle", &here), ("another handle", &there)] {
            let mut took = Vec::new();
            for n in 0..200 {
                let identity = identity(&format!("{name}-{n}").replace(' ', "-"));
                took.push(runtime.block_on(async {
                    let token = acquire(&here, &identity).await;
                    let (waits, digest) = (waits.clone(), *identity.digest());
                    let waiter = tokio::spawn(async move {
                        waits
                            .wait(&digest, token.fence, Duration::from_mins(1))
                            .await
                            .expect("a wait");
                        Instant::now()
                    });
                    tokio::time::sleep(Duration::from_millis(20 + n % 7)).await;
                    complete(&here, &identity, &token).await;
                    let done = Instant::now();
                    waiter
                        .await
                        .expect("a waiter")
                        .saturating_duration_since(done)
                }));
            }
            took.sort_unstable();
            println!(
                "woken through {name}: p50 {:.0?}, p99 {:.0?}",
                at(&took, 50),
                at(&took, 99)
            );
        }
    }
}
