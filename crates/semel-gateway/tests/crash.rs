//! `kill -9` of the gateway at random instants under load, on the embedded store.
//!
//! Clients retry each key until they have an answer; the upstream writes each execution down, synced
//! before it answers, and lives on while the gateway is killed. After every kill the gateway is
//! started again on the same records. In the end:
//!
//! - no key was executed twice (R1, R7 under `hold`);
//! - every answer that a client was given is replayed, byte for byte (R5, R10);
//! - a key without an answer is replayed, unknown, or was never claimed and runs now, once.
//!
//! `SEMEL_KILL_ROUNDS` sets how many kills there are (6 unless set), `SEMEL_KILL_SEED` which.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, sleep, timeout};

const CLIENTS: usize = 16;
const LEASE: Duration = Duration::from_secs(1);

/// The upstream's own record of what it did.
struct Ledger(Mutex<File>);

impl Ledger {
    fn create(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(path);
        Self(Mutex::new(file.unwrap()))
    }

    fn write(&self, key: &str) {
        let mut file = self.0.lock().unwrap();
        file.write_all(format!("{key}\n").as_bytes()).unwrap();
        file.sync_data().unwrap();
    }

    fn executions(&self) -> HashMap<String, usize> {
        let mut text = String::new();
        let mut file = self.0.lock().unwrap();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        let mut executions = HashMap::new();
        for key in text.lines() {
            *executions.entry(key.to_owned()).or_default() += 1;
        }
        executions
    }
}

async fn place_order(
    State((ledger, random)): State<(Arc<Ledger>, Arc<Random>)>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    // Both sides of the effect take their time, so that kills hit before and after it.
    sleep(Duration::from_millis(random.below(6))).await;
    tokio::task::spawn_blocking({
        let (ledger, key) = (ledger.clone(), key.clone());
        move || ledger.write(&key)
    })
    .await
    .unwrap();
    sleep(Duration::from_millis(random.below(6))).await;
    let body = format!("{key} {:x}", random.next());
    (StatusCode::CREATED, body)
}

/// splitmix64: the same kills for the same seed, as far as the machine lets it.
struct Random(AtomicU64);

impl Random {
    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&self, end: u64) -> u64 {
        self.next() % end
    }
}

struct Gateway {
    process: Child,
    address: SocketAddr,
}

impl Gateway {
    async fn start(upstream: SocketAddr, data: &Path, client: &Http) -> Self {
        let free = || {
            TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
        };
        let (address, admin) = (free(), free());
        let process = Command::new(env!("CARGO_BIN_EXE_semel"))
            .arg("serve")
            .args(["--upstream", &format!("http://{upstream}")])
            .args(["--listen", &address.to_string()])
            .args(["--admin", &admin.to_string()])
            .args(["--store", &format!("file:{}", data.display())])
            .args(["--lease", "1s"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut gateway = Self { process, address };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let ready = Request::get(format!("http://{admin}/readyz")).body(Full::default());
            if let Ok(answer) = client.request(ready.unwrap()).await
                && answer.status() == StatusCode::OK
            {
                return gateway;
            }
            assert_eq!(
                gateway.process.try_wait().unwrap(),
                None,
                "the gateway ended"
            );
            assert!(
                Instant::now() < deadline,
                "the gateway is not ready after 30 s"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

type Http = Client<HttpConnector, Full<Bytes>>;

struct Answer {
    status: StatusCode,
    replayed: bool,
    body: Bytes,
}

async fn ask(client: &Http, gateway: SocketAddr, key: &str) -> Option<Answer> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{gateway}/orders"))
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::from(format!("{{\"order\":\"{key}\"}}")))
        .unwrap();
    let answer = timeout(Duration::from_secs(10), async {
        let answer = client.request(request).await.ok()?;
        let (head, body) = answer.into_parts();
        Some(Answer {
            status: head.status,
            replayed: head.headers.contains_key("idempotency-replayed"),
            body: body.collect().await.ok()?.to_bytes(),
        })
    });
    answer.await.ok()?
}

/// What the clients know.
#[derive(Default)]
struct Known {
    /// Keys with the answer that a client was given.
    answered: HashMap<String, Bytes>,
    /// Keys that clients gave up: unknown, or not answered when the round ended.
    open: Vec<String>,
}

/// One client: takes a new key, retries it until it is answered, takes the next.
async fn client(
    nth: usize,
    round: usize,
    client: Http,
    gateway: SocketAddr,
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
) {
    for turn in 0.. {
        let key = format!("round-{round}-client-{nth}-turn-{turn}");
        let answered = loop {
            match ask(&client, gateway, &key).await {
                Some(answer) if answer.status == StatusCode::CREATED => break Some(answer.body),
                // In flight, released, or the gateway is gone.
                _ if stop.load(Ordering::Relaxed) => break None,
                _ => sleep(Duration::from_millis(2)).await,
            }
        };
        let mut known = known.lock().unwrap();
        match answered {
            Some(body) => drop(known.answered.insert(key, body)),
            None => known.open.push(key),
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_instants_nothing_acknowledged_is_lost_and_nothing_runs_twice() {
    let rounds = usize::try_from(setting("SEMEL_KILL_ROUNDS", 6)).unwrap();
    let seed = setting("SEMEL_KILL_SEED", 20_261_121);
    let random = Arc::new(Random(AtomicU64::new(seed)));
    let directory = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::create(&directory.path().join("ledger")));
    let data = directory.path().join("records");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let app = axum::Router::new()
        .route("/orders", post(place_order))
        .with_state((ledger.clone(), random.clone()));
    tokio::spawn(async { axum::serve(listener, app).await.unwrap() });

    let http: Http = Client::builder(TokioExecutor::new()).build_http();
    let known = Arc::new(Mutex::new(Known::default()));
    for round in 0..rounds {
        let gateway = Gateway::start(upstream, &data, &http).await;
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let (known, stop) = (known.clone(), stop.clone());
                tokio::spawn(client(
                    nth,
                    round,
                    http.clone(),
                    gateway.address,
                    known,
                    stop,
                ))
            })
            .collect();
        sleep(Duration::from_millis(100 + random.below(300))).await;
        stop.store(true, Ordering::Relaxed);
        gateway.kill();
        for client in clients {
            client.await.unwrap();
        }
    }

    let Known { answered, open } = std::mem::take(&mut *known.lock().unwrap());
    let before = ledger.executions();
    assert!(
        answered.len() > rounds * CLIENTS,
        "too little was answered: {}",
        answered.len()
    );

    let gateway = Gateway::start(upstream, &data, &http).await;
    for (key, first) in &answered {
        let again = ask(&http, gateway.address, key).await.unwrap();
        assert_eq!(
            again.status,
            StatusCode::CREATED,
            "an acknowledged answer was lost: {key}"
        );
        assert!(again.replayed, "{key} ran again");
        assert_eq!(&again.body, first, "{key}");
    }
    // What was in flight when its gateway was killed lapses by the store's clock.
    sleep(LEASE).await;
    let (mut unknown, mut replayed, mut ran) = (0, 0, 0);
    for key in &open {
        let answer = ask(&http, gateway.address, key).await.unwrap();
        match answer.status {
            StatusCode::CONFLICT => {
                let body = String::from_utf8_lossy(&answer.body);
                assert!(body.contains("\"outcome-unknown\""), "{key}: {body}");
                unknown += 1;
            }
            StatusCode::CREATED if answer.replayed => replayed += 1,
            StatusCode::CREATED => {
                assert!(!before.contains_key(key), "{key} ran again");
                ran += 1;
            }
            status => panic!("{key}: {status}"),
        }
    }
    gateway.kill();

    let executions = ledger.executions();
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed twice: {twice:?}");
    assert!(
        unknown > 0,
        "no kill hit an attempt in flight: the test shows nothing"
    );
    println!(
        "kills: {rounds}, seed: {seed}, executed: {}, acknowledged: {} (all replayed), \
         not acknowledged: {} (unknown {unknown}, replayed {replayed}, run later {ran}), twice: 0",
        executions.len(),
        answered.len(),
        open.len(),
    );
}
