//! The retrying client before the gateway: on a bad network, and killed again and again.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use semel_client::{AnswerInfo, Intent, Outbox, Retry};
use semel_testkit::proxy::{Fault, Proxy};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _};

use crate::support::{Gateway, Shop};

const WORKERS: usize = 16;

/// `SEMEL_CLIENT_INTENTS=10000`: more than in each run of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_intent_happens_once_across_drops_delays_duplicates_and_kills() {
    let intents = std::env::var("SEMEL_CLIENT_INTENTS").map_or(400, |n| n.parse().unwrap());
    let began = Instant::now();
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let proxy = Proxy::start(gateway.address).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let book = Book(directory.path().join("book"));

    let mut kills = 0;
    let mut faults = Faults {
        swallows: intents >= 1000,
        ..Faults::default()
    };
    loop {
        let mut child = start(&proxy, directory.path(), intents);
        // It is killed after so many more answers, unless it ends before.
        let some = (intents / 5).min(100);
        let at = book.lines().len() + some + fastrand::usize(..=some / 2);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                break true;
            }
            if book.lines().len() >= at {
                sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
                child.kill().unwrap();
                child.wait().unwrap();
                break false;
            }
            faults.meet(&proxy);
            sleep(Duration::from_millis(2)).await;
        };
        if ended {
            break;
        }
        kills += 1;
    }

    // None was abandoned: each has an answer, and the outbox is empty.
    let answers = book.answers();
    assert_eq!(answers.len(), intents);
    let outbox = Outbox::open(directory.path().join("outbox")).await.unwrap();
    assert!(outbox.pending().is_empty());
    // Each had its effect once, and each time the same answer.
    let executions = shop.executions();
    assert_eq!((shop.placed(), executions.len()), (intents, intents));
    let mut ids: Vec<&str> = answers.values().map(|answer| &*answer.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), intents);
    for answer in answers.values() {
        assert_eq!(executions.get(&answer.key), Some(&1));
    }
    // Each answer that was taken needs one request. All others that were made for it are retries, but for those
    // whose process was killed meanwhile.
    let requests = usize::try_from(proxy.round_trips()).unwrap();
    let taken = book.taken();
    let tries: usize = taken.iter().map(|taken| taken.tries).sum();
    let most = taken.iter().map(|taken| taken.tries).max().unwrap();
    let (taken, lost) = (taken.len(), requests.saturating_sub(tries));
    println!(
        "{intents} intents, {kills} kills, {taken} answers taken after {tries} requests ({:.3}, at most {most}), and \
         {lost} requests of killed processes: {:.3} requests for an intent; {faults:?}; {:?}",
        tries as f64 / taken as f64,
        requests as f64 / intents as f64,
        began.elapsed(),
    );
    assert!(
        tries * 10 <= taken * 13,
        "{tries} requests for {taken} answers"
    );
    // Few of those that were on their way when their process was killed had been sent before.
    assert!(
        lost <= 2 * kills * WORKERS,
        "{lost} requests of {kills} killed processes"
    );
    assert!(kills > 0 && faults.lost > 0 && faults.delayed > 0 && faults.duplicated > 0);
}

/// One request in ten meets one.
#[derive(Default)]
struct Faults {
    round_trips: u64,
    met: u64,
    present: Option<Fault>,
    next: usize,
    swallows: bool,
    lost: usize,
    delayed: usize,
    duplicated: usize,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            lost,
            delayed,
            duplicated,
            ..
        } = self;
        write!(
            f,
            "{lost} answers lost, {delayed} delayed, {duplicated} requests duplicated"
        )
    }
}

impl Faults {
    fn meet(&mut self, proxy: &Proxy) {
        let hits = proxy.hits();
        if let Some(fault) = self.present {
            if hits == self.met {
                return;
            }
            self.present = None;
            match fault {
                Fault::Delay(_) => self.delayed += 1,
                Fault::Duplicate => self.duplicated += 1,
                _ => self.lost += 1,
            }
        }
        if proxy.round_trips() < self.round_trips + 8 {
            return;
        }
        self.round_trips = proxy.round_trips();
        self.next += 1;
        let fault = match self.next % 4 {
            0 => Fault::CutAnswers,
            1 => Fault::HalveAnswers,
            2 => Fault::Duplicate,
            // A client waits for it until its try is over.
            _ if self.swallows && self.next % 100 == 3 => Fault::SwallowAnswers,
            _ => Fault::Delay(Duration::from_millis(fastrand::u64(..200))),
        };
        self.met = hits;
        self.present = Some(fault);
        proxy.once(fault);
    }
}

/// What the client made of the answers: one line for each, written before its intent is finished.
struct Book(PathBuf);

struct Taken {
    name: String,
    key: String,
    id: String,
    tries: usize,
}

impl Book {
    fn write(&self, line: &str) {
        let file = OpenOptions::new().append(true).create(true).open(&self.0);
        file.unwrap()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Those of intents that were sent again, because their process was killed before it finished them, twice.
    fn taken(&self) -> Vec<Taken> {
        let taken = |line: &String| {
            let words: Vec<&str> = line.split('\t').collect();
            let [name, key, id, tries] = words[..] else {
                panic!("{line}");
            };
            Taken {
                name: name.to_owned(),
                key: key.to_owned(),
                id: id.to_owned(),
                tries: tries.parse().unwrap(),
            }
        };
        self.lines().iter().map(taken).collect()
    }

    fn answers(&self) -> HashMap<String, Taken> {
        let mut answers = HashMap::new();
        for taken in self.taken() {
            let (key, id) = (taken.key.clone(), taken.id.clone());
            let first = answers.entry(taken.name.clone()).or_insert(taken);
            assert_eq!(
                (&first.key, &first.id),
                (&key, &id),
                "{} got another answer",
                first.name
            );
        }
        answers
    }
}

const CHILD: &str = "SEMEL_TEST_CLIENT";

fn start(proxy: &Proxy, directory: &Path, intents: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "clients::child_that_orders",
            "--ignored",
            "--nocapture",
        ])
        .env(
            CHILD,
            format!("{} {intents} {}", proxy.address(), directory.display()),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Orders all that is not in the book yet.
#[tokio::test]
#[ignore = "a process that another test kills"]
async fn child_that_orders() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = told.splitn(3, ' ').collect();
    let service: SocketAddr = words[0].parse().unwrap();
    let intents: usize = words[1].parse().unwrap();
    let directory = PathBuf::from(words[2]);

    let mut http = Client::builder(TokioExecutor::new());
    http.retry_canceled_requests(false);
    let retry = Retry::new()
        .with_try_timeout(Duration::from_secs(10))
        .with_budget(20, 5);
    let client = retry.layer(http.build_http());
    let outbox = Outbox::open(directory.join("outbox")).await.unwrap();
    let book = Book(directory.join("book"));

    // Begun by a process that was killed: these first.
    let pending = outbox.pending().into_iter();
    let known: HashMap<String, Intent> = pending.map(|i| (i.name().to_owned(), i)).collect();
    let taken = book.answers();
    let new = (0..intents).map(|n| format!("order-{n}"));
    let new = new.filter(|name| !known.contains_key(name) && !taken.contains_key(name));
    let mut names: Vec<String> = new.chain(known.keys().cloned()).collect();

    let mut workers = JoinSet::new();
    loop {
        while workers.len() < WORKERS
            && let Some(name) = names.pop()
        {
            let (client, outbox, book) = (client.clone(), outbox.clone(), Book(book.0.clone()));
            let known = known.get(&name).cloned();
            workers.spawn(async move {
                let order = |_: &_| {
                    let post = Request::post(format!("http://{service}/orders"));
                    post.body(format!("{{\"name\":\"{name}\"}}"))
                };
                let intent = match known {
                    Some(intent) => intent,
                    None => outbox.begin(&name, order).await.unwrap(),
                };
                let answer = client.oneshot(intent.request()).await.unwrap();
                let info = *answer.extensions().get::<AnswerInfo>().unwrap();
                assert_eq!(answer.status().as_u16(), 201);
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(body["order"]["name"], *name);
                let (key, id, tries) = (intent.key().as_str(), &body["id"], info.tries);
                book.write(&format!("{name}\t{key}\t{id}\t{tries}"));
                intent.finish().await.unwrap();
            });
        }
        match workers.join_next().await {
            None => break,
            Some(done) => done.unwrap(),
        }
    }
}
