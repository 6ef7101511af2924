//! Steps a second of the PostgreSQL store beside pgbench's one-row inserts, on the same server.
//!
//! `cargo run --release -p semel-stores --features postgres --example postgres_throughput
//! [SECONDS] [CALLERS,CALLERS…] [PARAMETERS…]`, where each of PARAMETERS is what follows `?` in a
//! URL, for instance `connections=2&group=1`.

fn main() {
    #[cfg(feature = "postgres")]
    postgres::main();
}

#[cfg(feature = "postgres")]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
mod postgres {
    use std::process::Command;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Nonce, OnLapse, Retention};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope, Store};
    use semel_stores::{PostgresOptions, PostgresStore, Schema};
    use semel_testkit::servers::{Postgres, Server};

    pub(super) fn main() {
        let mut args = std::env::args().skip(1);
        let seconds = args.next().and_then(|a| a.parse().ok()).unwrap_or(5);
        let callers: Vec<u64> = args
            .next()
            .unwrap_or_else(|| "1,64".into())
            .split(',')
            .filter_map(|n| n.parse().ok())
            .collect();
        let mut parameters: Vec<String> = args.collect();
        if parameters.is_empty() {
            parameters.push(String::new());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = Postgres::start(&[]).expect("a server");
        // Rates swing with the machine's other load: each measurement has its own yardstick.
        for (number, parameters) in parameters.iter().enumerate() {
            for &callers in &callers {
                let before = cpu(&server);
                let bench = pgbench(&server, callers, seconds);
                let between = settled(&server);
                let url = format!("{}?table=records_{number}&{parameters}", server.url());
                let commits = committed(&server);
                let (steps, longest) = runtime.block_on(measure(&url, callers, seconds));
                let commits = committed(&server) - commits;
                let after = settled(&server);
                #[expect(clippy::cast_precision_loss, reason = "a rate")]
                let each = |ticks: u64, rate: f64| ticks as f64 * 10_000.0 / rate / seconds as f64;
                #[expect(clippy::cast_precision_loss, reason = "a count")]
                let taken = steps * seconds as f64;
                println!(
                    "{callers:>3} callers {parameters}: {steps:>6.0} steps/s ({:.0} pairs/s), \
                     pgbench {bench:>6.0} inserts/s: {:.2}; p50 {:.1?} p99 {:.1?} longest {:.1?}; \
                     processor {:.0} µs a step, {:.0} µs an insert; {:.1} steps a transaction",
                    steps / 2.0,
                    steps / bench,
                    longest[0],
                    longest[1],
                    longest[2],
                    each(after - between, steps),
                    each(between - before, bench),
                    taken / commits,
                );
            }
        }
    }

    /// The processor's time of this process, its children and the server's, in ticks of 10 ms: on
    /// a machine with other load it says more than a rate.
    fn cpu(server: &Postgres) -> u64 {
        let stat = |path: String| -> Option<Vec<u64>> {
            let text = std::fs::read_to_string(path).ok()?;
            let fields = text.rsplit(')').next()?.split_whitespace().skip(1);
            Some(fields.map(|f| f.parse().unwrap_or(0)).collect())
        };
        let own = |fields: &[u64]| fields[10] + fields[11];
        let reaped = |fields: &[u64]| fields[12] + fields[13];
        let postmaster = u64::from(server.nodes()[0].pid().expect("it runs"));
        let mut sum = 0;
        for entry in std::fs::read_dir("/proc")
            .expect("there is /proc")
            .flatten()
        {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            let Some(fields) = stat(format!("/proc/{pid}/stat")) else {
                continue;
            };
            if pid == postmaster || pid == u64::from(std::process::id()) {
                sum += own(&fields) + reaped(&fields);
            } else if fields[0] == postmaster {
                sum += own(&fields);
            }
        }
        sum
    }

    // Backends end a moment after their clients.
    fn settled(server: &Postgres) -> u64 {
        std::thread::sleep(Duration::from_millis(500));
        cpu(server)
    }

    /// Transactions of the database, a few of them not the store's. Backends report when they end.
    fn committed(server: &Postgres) -> f64 {
        std::thread::sleep(Duration::from_millis(500));
        let mut psql = Command::new(Postgres::program("psql").expect("psql"));
        let output = psql
            .args(["-h", "127.0.0.1", "-U", "semel", "-d", "postgres", "-Atp"])
            .arg(server.address().port().to_string())
            .args([
                "-c",
                "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'",
            ])
            .output();
        let text = String::from_utf8(output.expect("psql runs").stdout).expect("a number");
        text.trim().parse().expect("a number")
    }

    // A row as large as a record, and as many indexes.
    fn pgbench(server: &Postgres, callers: u64, seconds: u64) -> f64 {
        let address = server.address();
        let common = |command: &mut Command| {
            command
                .args(["-h", "127.0.0.1", "-U", "semel", "-p"])
                .arg(address.port().to_string());
        };
        let mut psql = Command::new(Postgres::program("psql").expect("psql"));
        common(&mut psql);
        let made = psql
            .args(["-q", "-d", "postgres", "-c"])
            .arg("CREATE TABLE IF NOT EXISTS plain (id uuid PRIMARY KEY, body bytea)")
            .output();
        assert!(made.expect("psql runs").status.success());
        let script = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(
            script.path(),
            "INSERT INTO plain VALUES (gen_random_uuid(), decode(repeat('ab', 300), 'hex'));\n",
        )
        .expect("written");
        let mut bench = Command::new(Postgres::program("pgbench").expect("pgbench"));
        common(&mut bench);
        let output = bench
            .args(["-n", "-M", "prepared", "-c", &callers.to_string()])
            .args(["-j", "2", "-T", &seconds.to_string(), "-f"])
            .arg(script.path())
            .arg("postgres")
            .output()
            .expect("pgbench runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rate = text.lines().find_map(|line| {
            let rest = line.strip_prefix("tps = ")?;
            rest.split(' ').next()?.parse().ok()
        });
        rate.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }

    async fn measure(url: &str, callers: u64, seconds: u64) -> (f64, [Duration; 3]) {
        let options = PostgresOptions::from_url(url).expect("a URL");
        let store = options.schema(Schema::Create).open().await.expect("opens");
        let store = Arc::new(store);
        // Connections are made, and the table is no longer empty.
        run(&store, callers, Duration::from_millis(300)).await;
        let time = Duration::from_secs(seconds);
        let mut took = run(&store, callers, time).await;
        took.sort_unstable();
        let at = |part: usize| took[(took.len() - 1) * part / 100];
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = took.len() as f64 / time.as_secs_f64();
        store.close().await.expect("closes");
        (rate, [at(50), at(99), at(100)])
    }

    // Each caller claims and completes, one step after the other.
    async fn run(store: &Arc<PostgresStore>, callers: u64, time: Duration) -> Vec<Duration> {
        let end = Instant::now() + time;
        let tasks: Vec<_> = (0..callers)
            .map(|_| tokio::spawn(caller(store.clone(), end)))
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("no panic"));
        }
        all
    }

    async fn caller(store: Arc<PostgresStore>, end: Instant) -> Vec<Duration> {
        let outcome = Outcome::success(&[7; 200]);
        let mut took = Vec::new();
        while Instant::now() < end {
            let nonce = Nonce::random().expect("random bytes");
            let key: String = nonce
                .as_bytes()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            let key = Key::new(&key).expect("a key");
            let identity = Identity::new(Scope::new(["tenant-1"]), "place_order", key);
            let request = ClaimRequest {
                nonce,
                fingerprint: Fingerprint::of(b"request"),
                lease: Duration::from_secs(30),
                on_lapse: OnLapse::Hold,
            };
            let from = Instant::now();
            let Claim::Acquired(acquired) = store.claim(&identity, &request).await.expect("claims")
            else {
                panic!("not acquired");
            };
            took.push(from.elapsed());
            let from = Instant::now();
            let done = store.complete(
                identity.digest(),
                &acquired.token,
                &outcome,
                Retention::ORDER,
            );
            let _applied = done.await.expect("completes");
            took.push(from.elapsed());
        }
        took
    }
}
