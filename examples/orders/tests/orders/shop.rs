//! The two programs as processes, a database of their own, and a customer.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use deadpool_postgres::tokio_postgres::{self, NoTls};
use reqwest::{Client, Response, StatusCode};
use semel::store::Nonce;
use semel_testkit::servers::{Kind, shared};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than anything here should take, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A program that listens, and is killed when this is dropped.
pub(crate) struct Program {
    process: Child,
    pub(crate) url: String,
    log: Arc<Mutex<String>>,
}

impl Program {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0"]).args(args);
        let command = command.env_clear().stdin(Stdio::null());
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let (listening, url) = mpsc::channel();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push_str(&format!("{line}\n"));
                if let Some((_, url)) = line.split_once("listening on ") {
                    listening.send(url.to_owned()).ok();
                }
            }
        });
        let Ok(url) = url.recv_timeout(PATIENCE) else {
            process.kill().ok();
            panic!("{program} did not start: {}", log.lock().unwrap());
        };
        Self { process, url, log }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// SIGTERM, and how it ended.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        let id = self.process.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it does not stop: {}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// An answer, read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) replayed: bool,
    pub(crate) location: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    async fn read(response: Response) -> reqwest::Result<Self> {
        let header = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        Ok(Self {
            status: response.status(),
            replayed: header("idempotency-replayed").is_some(),
            location: header("location"),
            body: response.bytes().await?.into(),
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Whether a client asks no more.
    fn is_final(&self) -> bool {
        let in_flight = self.status == StatusCode::CONFLICT && self.json()["code"] == "in-flight";
        !self.status.is_server_error() && !in_flight
    }

    /// The same, whoever of two got it first.
    pub(crate) fn as_replay(&self) -> Self {
        Self {
            replayed: true,
            ..self.clone()
        }
    }
}

/// A shop with its payment service and its database.
pub(crate) struct Shop {
    pub(crate) api: Program,
    pub(crate) payments: Program,
    http: Client,
    /// Where the API is at present, for customers that outlive it.
    url: Arc<Mutex<String>>,
    database: String,
    flags: Vec<String>,
    _folder: TempDir,
}

impl Shop {
    /// With so many teas at 450 each.
    pub(crate) async fn open(teas: i32, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let payments = payment_service(&folder.path().join("ledger"));
        let database = database().await;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.into()).collect();
        let api = api(&database, &payments.url, &flags);
        let shop = Self {
            http: Client::new(),
            url: Arc::new(Mutex::new(api.url.clone())),
            api,
            payments,
            database,
            flags,
            _folder: folder,
        };
        let delivered = shop
            .customer()
            .deliver_tea("the-first-delivery", teas)
            .await;
        assert_eq!(delivered.unwrap().status, StatusCode::OK);
        shop
    }

    /// SIGKILL to the API, and another one.
    pub(crate) fn kill_api(&mut self) {
        self.api.process.kill().unwrap();
        self.api.process.wait().unwrap();
        self.api = api(&self.database, &self.payments.url, &self.flags);
        *self.url.lock().unwrap() = self.api.url.clone();
    }

    pub(crate) fn customer(&self) -> Customer {
        Customer {
            http: self.http.clone(),
            url: Arc::clone(&self.url),
        }
    }

    pub(crate) async fn faults(&self, faults: Value) {
        let put = self.http.put(format!("{}/faults", self.payments.url));
        let set = put.json(&faults).send().await.unwrap();
        assert_eq!(set.status(), StatusCode::NO_CONTENT);
    }

    pub(crate) async fn stock(&self) -> i64 {
        get(&format!("{}/inventory", self.api.url)).await["tea"]["stock"]
            .as_i64()
            .unwrap()
    }

    /// What was paid: key (an order's number) and number of each payment.
    pub(crate) async fn paid(&self) -> Vec<(String, String)> {
        let charges = get(&format!("{}/charges", self.payments.url)).await;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let charges = charges.as_array().unwrap().iter();
        charges
            .filter_map(|charge| Some((text(&charge["key"])?, text(&charge["payment"])?)))
            .collect()
    }

    /// Number, state and detail of each order.
    pub(crate) async fn orders(&self) -> Vec<(String, String, Option<String>)> {
        let client = connect(&self.database).await;
        let sql = "SELECT id, state, detail FROM orders ORDER BY id";
        let rows = client.query(sql, &[]).await.unwrap();
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect()
    }

    /// Orders and payments are the same ones, and nothing else left the shelf.
    pub(crate) async fn balances(&self, teas: i64) -> usize {
        let mut paid = self.paid().await;
        paid.sort();
        let orders = self.orders().await;
        assert!(
            orders.iter().all(|(_, state, _)| state != "pending"),
            "{orders:?}"
        );
        let bought: Vec<_> = orders
            .into_iter()
            .filter(|(_, state, _)| state == "paid")
            .map(|(id, _, payment)| (id, payment.unwrap()))
            .collect();
        assert_eq!(bought, paid);
        assert_eq!(
            self.stock().await,
            teas - i64::try_from(paid.len()).unwrap()
        );
        paid.len()
    }
}

/// Somebody who does not give up.
#[derive(Clone)]
pub(crate) struct Customer {
    http: Client,
    url: Arc<Mutex<String>>,
}

impl Customer {
    /// Sends an order once.
    pub(crate) async fn ask(&self, key: &str, order: &Value) -> reqwest::Result<Answer> {
        self.post("/orders", key, order).await
    }

    /// Brings so many teas at 450 each.
    pub(crate) async fn deliver_tea(&self, key: &str, teas: i32) -> reqwest::Result<Answer> {
        let delivery = json!({ "quantity": teas, "price": 450 });
        self.post("/inventory/tea/deliveries", key, &delivery).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        key: &str,
        body: &Value,
    ) -> reqwest::Result<Answer> {
        let url = format!("{}{path}", self.url.lock().unwrap());
        let post = self.http.post(url).header("Idempotency-Key", key);
        Answer::read(post.json(body).send().await?).await
    }

    /// Orders a tea until there is an answer.
    pub(crate) async fn buy_tea(&self, key: &str) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(answer) = self.ask(key, &tea()).await
                && answer.is_final()
            {
                return answer;
            }
            assert!(Instant::now() < deadline, "no answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// An order of one tea.
pub(crate) fn tea() -> Value {
    json!({ "items": { "tea": 1 }, "card": "tok_visa" })
}

pub(crate) async fn get(url: &str) -> Value {
    let answer = Client::new().get(url).send().await.unwrap();
    answer.json().await.unwrap()
}

fn api(database: &str, payments: &str, flags: &[String]) -> Program {
    let mut args = vec!["--database", database, "--payments", payments];
    args.extend(flags.iter().map(String::as_str));
    Program::start(env!("CARGO_BIN_EXE_orders"), &args)
}

fn payment_service(ledger: &Path) -> Program {
    let ledger = ledger.to_str().unwrap();
    Program::start(env!("CARGO_BIN_EXE_payments"), &["--ledger", ledger])
}

/// A database of its own on the server that tests share.
async fn database() -> String {
    let server = tokio::task::spawn_blocking(|| shared(Kind::Postgres)).await;
    let server = server.unwrap().unwrap();
    let name: String = Nonce::random()
        .unwrap()
        .as_bytes()
        .map(|byte| format!("{byte:02x}"))
        .concat();
    let create = format!("CREATE DATABASE orders_{name}");
    connect(&server).await.batch_execute(&create).await.unwrap();
    let (address, _) = server.rsplit_once('/').unwrap();
    format!("{address}/orders_{name}")
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
