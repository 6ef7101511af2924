//! `kill -9` of the gateway at random instants under load, on the embedded store.
//!
//! Clients retry each key until they have an answer or are told that it is unknown, over all
//! restarts. The upstream writes each execution down, synced before it answers, and lives on. In the
//! end, under the policy `hold`:
//!
//! - no key was executed twice (R1, R7);
//! - every answer is that of the upstream's one execution of its key: none is made up;
//! - a kill costs the answers of what was in flight, one a client at most, and between kills there are
//!   as many answers as clients;
//! - every answer that a client was given is replayed, byte for byte (R5, R10);
//! - a key that is unknown was executed once at most, and never got an answer.
//!
//! `SEMEL_KILL_ROUNDS` sets how many kills there are (6 unless set), `SEMEL_KILL_SEED` which.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Method;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{Answer, Gateway, Shop, request, send};

const CLIENTS: usize = 16;
const FLAGS: [&str; 2] = ["--lease", "300ms"];

/// splitmix64: the same kills for the same seed, as far as the machine lets it.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// What the clients know.
#[derive(Debug, Default)]
struct Known {
    /// Keys with the answer that a client was given.
    answered: HashMap<String, Bytes>,
    /// Keys of which a client was told that their outcome is unknown.
    unknown: HashSet<String>,
    /// How many requests broke off or were refused on the way there.
    retries: usize,
}

impl Known {
    /// Whether the key is settled.
    fn learn(&mut self, key: &str, answer: Result<Answer, String>) -> bool {
        match answer {
            Ok(answer) if answer.status == 201 => {
                self.answered.insert(key.to_owned(), answer.body);
                return true;
            }
            Ok(answer) => match answer.problem().as_str() {
                "outcome-unknown" => return self.unknown.insert(key.to_owned()),
                "in-flight" => {}
                problem => panic!("{key}: {problem}"),
            },
            // The gateway is gone.
            Err(_) => {}
        }
        self.retries += 1;
        false
    }
}

fn body(key: &str) -> String {
    format!("{{\"order\":{key:?}}}")
}

async fn ask(gateway: SocketAddr, key: &str, delay: u64) -> Result<Answer, String> {
    let delay = delay.to_string();
    let headers = [("idempotency-key", key), ("x-delay", delay.as_str())];
    let body = body(key);
    send(request(Method::POST, gateway, "/orders", &headers, &body)).await
}

/// Takes a new key, retries it until it is settled, takes the next.
async fn client(nth: usize, gateway: watch::Receiver<SocketAddr>, known: Arc<Mutex<Known>>) {
    let mut random = Random(nth as u64);
    for turn in 0.. {
        let key = format!("client-{nth}-turn-{turn}");
        let delay = random.below(12);
        loop {
            let address = *gateway.borrow();
            let answer = ask(address, &key, delay).await;
            if known.lock().unwrap().learn(&key, answer) {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        if gateway.has_changed().is_err() {
            return;
        }
    }
}

pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_instants_nothing_acknowledged_is_lost_and_nothing_runs_twice() {
    let rounds = setting("SEMEL_KILL_ROUNDS", 6);
    let seed = setting("SEMEL_KILL_SEED", 20_261_121);
    let mut random = Random(seed);
    let shop = Shop::open().await;
    let known = Arc::new(Mutex::new(Known::default()));

    let mut gateway = Gateway::start(shop.address, &FLAGS);
    let (address, current) = watch::channel(gateway.address);
    let mut clients = JoinSet::new();
    for nth in 0..CLIENTS {
        clients.spawn(client(nth, current.clone(), Arc::clone(&known)));
    }
    let mut slowest_start = Duration::ZERO;
    for round in 1..=rounds {
        // As many answers as clients between two kills, however slow the machine is.
        answered(&known, usize::try_from(round).unwrap() * CLIENTS).await;
        sleep(Duration::from_millis(random.below(400))).await;
        let directory = gateway.directory();
        gateway.kill();
        let before = Instant::now();
        let upstream = shop.address;
        gateway =
            tokio::task::spawn_blocking(move || Gateway::start_in(&directory, upstream, &FLAGS))
                .await
                .unwrap();
        slowest_start = slowest_start.max(before.elapsed());
        address.send(gateway.address).unwrap();
    }
    drop(address);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }

    let known = std::mem::take(&mut *known.lock().unwrap());
    let executions = shop.executions();
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed twice: {twice:?}");
    assert_from_upstream(&shop, &known.answered);
    assert_replayed(gateway.address, &known.answered).await;
    for key in &known.unknown {
        let again = ask(gateway.address, key, 0).await.unwrap();
        assert_eq!(again.problem(), "outcome-unknown", "{key}");
    }
    assert_eq!(
        shop.executions(),
        executions,
        "asking again executed something"
    );
    for key in executions.keys() {
        assert!(
            known.answered.contains_key(key) || known.unknown.contains(key),
            "{key} was executed, and nobody was told anything"
        );
    }
    let happened = known
        .unknown
        .iter()
        .filter(|key| executions.contains_key(*key));
    println!(
        "kills: {rounds}, seed: {seed}; executed: {}, acknowledged: {} (all replayed), unknown: {} \
         (of them executed: {}), executed twice: 0, retries: {}, slowest start: {slowest_start:?}",
        executions.len(),
        known.answered.len(),
        known.unknown.len(),
        happened.count(),
        known.retries,
    );
    assert!(
        !known.unknown.is_empty(),
        "no kill hit an attempt in flight: the test shows nothing"
    );
    // Each client has one key in flight at a time.
    let kills = usize::try_from(rounds).unwrap();
    assert!(
        known.unknown.len() <= kills * CLIENTS,
        "more outcomes are unknown than {kills} kills explain"
    );
}

/// Waits until clients have so many answers.
async fn answered(known: &Mutex<Known>, count: usize) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let got = known.lock().unwrap().answered.len();
        if got >= count {
            return;
        }
        assert!(Instant::now() < end, "{got} answers, not {count}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Every answer is what the upstream said when it executed the key: there is none without it.
fn assert_from_upstream(shop: &Shop, answered: &HashMap<String, Bytes>) {
    let said: HashMap<_, _> = (1..)
        .zip(shop.orders())
        .map(|(id, (key, fence))| {
            let order = body(&key);
            let answer = format!("{{\"id\":{id},\"fence\":\"{fence}\",\"order\":{order}}}");
            (key, answer)
        })
        .collect();
    for (key, answer) in answered {
        let said = said.get(key).map(String::as_bytes);
        assert_eq!(
            said,
            Some(&answer[..]),
            "{key}: an answer of the gateway's own"
        );
    }
}

/// Every answer is given again, byte for byte.
async fn assert_replayed(gateway: SocketAddr, answered: &HashMap<String, Bytes>) {
    let mut asking = JoinSet::new();
    for (key, first) in answered.clone() {
        if asking.len() == CLIENTS {
            asking.join_next().await.unwrap().unwrap();
        }
        asking.spawn(async move {
            let again = ask(gateway, &key, 0).await.unwrap();
            assert!(
                again.is_replay(),
                "an acknowledged answer was lost: {key}: {again:?}"
            );
            assert_eq!((again.status.as_u16(), again.body), (201, first), "{key}");
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
}
