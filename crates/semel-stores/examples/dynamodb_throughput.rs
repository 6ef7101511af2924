//! Pairs of claim and completion a second on a table of DynamoDB, and replays.
//! `dynamodb_throughput URL [SECONDS]`; the table must be there, or `&schema=create` in the URL.
//! On AWS each pair is paid for as two writes.

#[cfg(feature = "dynamodb")]
mod measure {
    use std::error::Error;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use semel::store::{Claim, ClaimRequest, Fenced, Nonce, Retention, Store as _, StoreExt as _};
    use semel::{AnyStore, Fingerprint, Identity, Key, Outcome, Scope};
    use semel_stores::{OpenOptions, open};

    type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

    fn identity(run: &str, caller: usize, number: u64) -> Result<Identity> {
        let key = Key::new(&format!("{run}-{caller}-{number}"))?;
        Ok(Identity::new(Scope::new(["throughput"]), "pair", key))
    }

    async fn claim(store: &AnyStore, identity: &Identity) -> Result<Claim> {
        let request = ClaimRequest::new(
            Nonce::random()?,
            Fingerprint::of(b"request"),
            Duration::from_secs(30),
        );
        Ok(store.claim(identity, &request).await?)
    }

    async fn pair(store: &AnyStore, identity: &Identity) -> Result<()> {
        let Claim::Acquired(acquired) = claim(store, identity).await? else {
            return Err("a fresh key was not acquired".into());
        };
        let (outcome, digest) = (Outcome::success(&[b'x'; 400]), identity.digest());
        let done = store.complete(digest, &acquired.token, &outcome, Retention::API);
        match done.await? {
            Fenced::Applied => Ok(()),
            refused => Err(format!("{refused:?}").into()),
        }
    }

    #[expect(clippy::print_stdout, reason = "what it is for")]
    pub(super) async fn main() -> Result<()> {
        let mut arguments = std::env::args().skip(1);
        let url = arguments
            .next()
            .ok_or("usage: dynamodb_throughput URL [SECONDS]")?;
        let seconds = arguments.next().map_or(Ok(5), |s| s.parse())?;
        let store = Arc::new(open(&url, &OpenOptions::default()).await?);
        for callers in [1, 16, 64] {
            let run = format!("{:?}", Nonce::random()?.as_bytes());
            for replay in [false, true] {
                let start = Instant::now();
                let tasks: Vec<_> = (0..callers)
                    .map(|caller| {
                        let (store, run) = (store.clone(), run.clone());
                        tokio::spawn(async move {
                            let mut done = 0;
                            while start.elapsed() < Duration::from_secs(seconds) {
                                if replay {
                                    claim(&store, &identity(&run, caller, 0)?).await?;
                                } else {
                                    pair(&store, &identity(&run, caller, done)?).await?;
                                }
                                done += 1;
                            }
                            Ok::<u64, Box<dyn Error + Send + Sync>>(done)
                        })
                    })
                    .collect();
                let mut done = 0;
                for task in tasks {
                    done += task.await??;
                }
                let what = if replay { "replays" } else { "pairs" };
                let milliseconds = start.elapsed().as_millis().max(1);
                let rate = u128::from(done) * 1_000 / milliseconds;
                println!("{what:<8} {callers:>3} callers {rate:>6} /s");
            }
        }
        store.close().await?;
        Ok(())
    }
}

#[cfg(feature = "dynamodb")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    measure::main().await
}

#[cfg(not(feature = "dynamodb"))]
fn main() {}
