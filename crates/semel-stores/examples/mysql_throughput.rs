//! Pairs of claim and completion a second on a MySQL or MariaDB server, beside bare inserts over as
//! many connections. `mysql_throughput URL [SECONDS]`; makes tables and drops them.

#[cfg(feature = "mysql")]
mod measure {
    use std::error::Error;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Clear as _, Nonce, OnLapse, Retention, Store as _};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope};
    use semel_stores::{MysqlOptions, MysqlStore, Schema};
    use sqlx::mysql::MySqlConnectOptions;
    use sqlx::{ConnectOptions as _, Connection as _, MySqlConnection};

    type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

    const TABLE: &str = "semel_throughput";
    const CONNECTIONS: usize = 16;
    const BODY: [u8; 400] = [b'x'; 400];

    async fn pair(store: &MysqlStore, key: &str) -> Result<()> {
        let identity = Identity::new(Scope::new(["throughput"]), "pair", Key::new(key)?);
        let request = ClaimRequest {
            nonce: Nonce::random()?,
            fingerprint: Fingerprint::of(b"request"),
            lease: Duration::from_secs(30),
            on_lapse: OnLapse::Hold,
        };
        let Claim::Acquired(acquired) = store.claim(&identity, &request).await? else {
            return Err("a fresh key was not acquired".into());
        };
        let outcome = Outcome::success(&BODY);
        let done = store.complete(
            identity.digest(),
            &acquired.token,
            &outcome,
            Retention::ORDER,
        );
        match done.await? {
            semel::store::Fenced::Applied => Ok(()),
            refused => Err(format!("{refused:?}").into()),
        }
    }

    async fn replay(store: &MysqlStore, key: &str) -> Result<()> {
        let identity = Identity::new(Scope::new(["throughput"]), "pair", Key::new(key)?);
        let request = ClaimRequest {
            nonce: Nonce::random()?,
            fingerprint: Fingerprint::of(b"request"),
            lease: Duration::from_secs(30),
            on_lapse: OnLapse::Hold,
        };
        match store.claim(&identity, &request).await? {
            Claim::Completed { .. } => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }

    async fn insert(link: &mut MySqlConnection) -> Result<()> {
        let nonce = [*Nonce::random()?.as_bytes(), *Nonce::random()?.as_bytes()].concat();
        let insert = sqlx::query("INSERT INTO semel_bare (digest,body) VALUES (?,?)");
        insert.bind(nonce).bind(&BODY[..]).execute(link).await?;
        Ok(())
    }

    /// What this process has used of the processors, in hundredths of a second.
    fn used() -> u64 {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let fields = after_name.split_whitespace().skip(11).take(2);
        fields.filter_map(|f| f.parse::<u64>().ok()).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    #[expect(clippy::print_stdout, reason = "what it is for")]
    fn rate(what: &str, callers: usize, (done, took, used): (u64, Duration, u64)) {
        let rate = done as f64 / took.as_secs_f64();
        let each = used as f64 * 10_000.0 / done as f64;
        println!(
            "{what:<12} {callers:>3} callers {rate:>7.0} /s, {each:>4.0} µs of this process each"
        );
    }

    async fn measure<F>(callers: usize, one: impl Fn(usize) -> F) -> Result<(u64, Duration, u64)>
    where
        F: Future<Output = Result<u64>> + Send + 'static,
    {
        let (start, before) = (Instant::now(), used());
        let tasks: Vec<_> = (0..callers)
            .map(|caller| tokio::spawn(one(caller)))
            .collect();
        let mut done = 0;
        for task in tasks {
            done += task.await??;
        }
        Ok((done, start.elapsed(), used() - before))
    }

    pub(crate) async fn run(url: &str, time: Duration) -> Result<()> {
        let options = MysqlOptions::from_url(url)?
            .table(TABLE)?
            .connections(CONNECTIONS)
            .schema(Schema::Create)
            .for_tests();
        let store = Arc::new(options.open().await?);
        store.clear(false).await?;
        let bare: MySqlConnectOptions = url.parse()?;
        let bare = bare.disable_statement_logging();
        let mut link = bare.connect().await?;
        for sql in [
            "DROP TABLE IF EXISTS semel_bare",
            "CREATE TABLE semel_bare (digest BINARY(32) PRIMARY KEY,body LONGBLOB) ENGINE=InnoDB",
        ] {
            sqlx::raw_sql(sql).execute(&mut link).await?;
        }
        let numbers = Arc::new(AtomicU64::new(0));
        let run = std::process::id();
        for callers in [1, 64] {
            let (store, numbers) = (store.clone(), numbers.clone());
            let measured = measure(callers, move |_| {
                let (store, numbers) = (store.clone(), numbers.clone());
                async move {
                    let (start, mut done) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        pair(&store, &format!("pair-{run}-{number}")).await?;
                        done += 1;
                    }
                    Ok(done)
                }
            })
            .await?;
            rate("pairs", callers, measured);
        }
        for callers in [1, 64] {
            let (store, numbers) = (store.clone(), numbers.load(Ordering::Relaxed));
            let measured = measure(callers, move |caller| {
                let store = store.clone();
                async move {
                    let (start, mut done) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        let number = (done * 64 + caller as u64) % numbers;
                        replay(&store, &format!("pair-{run}-{number}")).await?;
                        done += 1;
                    }
                    Ok(done)
                }
            })
            .await?;
            rate("replays", callers, measured);
        }
        for callers in [1, CONNECTIONS] {
            let bare = bare.clone();
            let measured = measure(callers, move |_| {
                let bare = bare.clone();
                async move {
                    let mut link = bare.connect().await?;
                    let (start, mut done) = (Instant::now(), 0);
                    while start.elapsed() < time {
                        insert(&mut link).await?;
                        done += 1;
                    }
                    link.close().await?;
                    Ok(done)
                }
            })
            .await?;
            rate("bare inserts", callers, measured);
        }
        store.close().await?;
        let drop = "DROP TABLE semel_bare,semel_throughput,semel_throughput_schema;\
             DROP VIEW semel_throughput_readable";
        sqlx::raw_sql(drop).execute(&mut link).await?;
        Ok(())
    }
}

#[cfg(feature = "mysql")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("mysql_throughput URL [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(5), |s| s.parse())?;
    measure::run(&url, std::time::Duration::from_secs(seconds)).await
}

#[cfg(not(feature = "mysql"))]
fn main() {}
