//! The payments program: what each answer of the provider means, and that it may be killed anywhere.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode};
use semel_stores::sqlite::rusqlite::Connection;
use tempfile::{TempDir, tempdir};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::program::{PATIENCE, Service};
use crate::provider::Provider;

struct Shop {
    provider: Provider,
    charges: String,
    folder: TempDir,
    client: Client,
    /// Where the program is at present.
    url: Arc<Mutex<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    replayed: bool,
    text: String,
}

impl Shop {
    async fn open() -> Self {
        let provider = Provider::default();
        Self {
            charges: provider.start().await,
            provider,
            folder: tempdir().unwrap(),
            client: Client::new(),
            url: Arc::default(),
        }
    }

    fn start(&self) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quick-payments"));
        let command = command
            .current_dir(&self.folder)
            .env("PROVIDER", &self.charges);
        let (service, url) =
            Service::start(command.env("LISTEN", "127.0.0.1:0").env("LEASE", "0.3"));
        *self.url.lock().unwrap() = url;
        service
    }

    fn client(&self) -> (Client, Arc<Mutex<String>>) {
        (self.client.clone(), Arc::clone(&self.url))
    }

    async fn pay(&self, key: &str, card: &str) -> Answer {
        pay(&self.client(), key, card).await.unwrap()
    }

    /// The rows: charge by the operation's name.
    fn rows(&self) -> HashMap<String, String> {
        let database = Connection::open(self.folder.path().join("payments.db")).unwrap();
        let mut rows = database.prepare("SELECT id, charge FROM payments").unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        let rows: Vec<(String, String)> = rows.unwrap().map(Result::unwrap).collect();
        let count = rows.len();
        let rows: HashMap<_, _> = rows.into_iter().collect();
        assert_eq!(rows.len(), count, "a payment has one row");
        rows
    }

    /// Every charge has its row, and every row its charge.
    fn balances(&self) -> usize {
        let made = self.provider.made().into_iter();
        let made: HashMap<_, _> = made
            .map(|(key, charge)| (key, charge["charge"].as_str().unwrap().to_owned()))
            .collect();
        assert_eq!(self.rows(), made);
        made.len()
    }
}

async fn pay(
    (client, url): &(Client, Arc<Mutex<String>>),
    key: &str,
    card: &str,
) -> reqwest::Result<Answer> {
    let url = format!("{}/payments", url.lock().unwrap());
    let payment = serde_json::json!({ "card": card, "cents": 900 });
    let request = client
        .post(url)
        .header("x-account", "acme")
        .header("idempotency-key", key);
    let answer = request.json(&payment).send().await?;
    Ok(Answer {
        status: answer.status(),
        replayed: answer.headers().contains_key("idempotency-replayed"),
        text: answer.text().await?,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_of_the_provider_has_its_meaning() {
    let shop = Shop::open().await;
    let service = shop.start();
    let refused = Client::new().post(format!("{}/payments", shop.url.lock().unwrap()));
    let refused = refused
        .header("x-account", "acme")
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);

    // Declined: kept.
    let declined = shop.pay("k-declined", "tok_declined").await;
    assert_eq!(declined.status, StatusCode::PAYMENT_REQUIRED);
    assert!(shop.pay("k-declined", "tok_declined").await.replayed);
    assert_eq!(shop.provider.ledger().asked.values().sum::<u32>(), 1);

    // Busy: released, and the next request runs.
    shop.provider.ledger().busy = Some(1);
    let busy = shop.pay("k-busy", "tok_1").await;
    assert_eq!(busy.status, StatusCode::SERVICE_UNAVAILABLE);
    shop.provider.ledger().busy = None;
    let paid = shop.pay("k-busy", "tok_1").await;
    assert_eq!((paid.status, paid.replayed), (StatusCode::CREATED, false));

    // Silent, after it charged: unknown, and run again under the same key.
    shop.provider.ledger().silent = 1;
    let silent = shop.pay("k-silent", "tok_1").await;
    assert_eq!(silent.status, StatusCode::GATEWAY_TIMEOUT);
    let paid = shop.pay("k-silent", "tok_1").await;
    assert_eq!(paid.status, StatusCode::CREATED, "{paid:?}");
    assert_eq!(shop.balances(), 2);
    assert!(service.stop("-TERM").success());
}

/// After the charge nothing frees the key for another payment, and the row follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_whose_row_cannot_be_written_is_finished_and_not_forgotten() {
    let shop = Shop::open().await;
    let service = shop.start();
    let database = Connection::open(shop.folder.path().join("payments.db")).unwrap();
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        database.execute_batch(&sql).unwrap();
    };
    rename("payments", "away");
    let unwritten = shop.pay("k-1", "tok_1").await;
    assert_eq!(unwritten.status, StatusCode::INTERNAL_SERVER_ERROR);
    let other = shop.pay("k-1", "tok_2").await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{other:?}");
    rename("away", "payments");
    let paid = shop.pay("k-1", "tok_1").await;
    assert_eq!(paid.status, StatusCode::CREATED, "{paid:?}");
    assert_eq!(shop.balances(), 1);
    assert!(service.stop("-TERM").success());
}

/// Nobody asks again: the program finds it, once it is started.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_whose_client_gave_up_is_finished() {
    let shop = Shop::open().await;
    let mut service = shop.start();
    shop.provider.ledger().silent = 1;
    let client = shop.client();
    let asked = tokio::spawn(async move { pay(&client, "k-1", "tok_1").await });
    let deadline = Instant::now() + PATIENCE;
    while shop.provider.made().is_empty() {
        assert!(Instant::now() < deadline && !asked.is_finished());
        sleep(Duration::from_millis(5)).await;
    }
    service.kill();
    assert!(shop.rows().is_empty());
    // Its lease is over before the first look.
    sleep(Duration::from_millis(400)).await;
    let service = shop.start();
    while shop.rows().is_empty() {
        assert!(Instant::now() < deadline, "nobody finished it");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shop.balances(), 1);
    assert!(service.stop("-TERM").success());
}

/// `SEED=N` runs the same kills again, as far as the machine does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_at_fifty_points_each_payment_is_charged_once() {
    let seed =
        std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let shop = Shop::open().await;
    {
        let mut ledger = shop.provider.ledger();
        ledger.busy = Some(20);
        ledger.slow = Duration::from_millis(60);
    }
    let (killing, is_over) = tokio::sync::watch::channel(false);
    let mut service = shop.start();
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let (client, is_over) = (shop.client(), is_over.clone());
        clients.spawn(async move {
            let mut answers = Vec::new();
            for n in 0.. {
                if *is_over.borrow() {
                    break;
                }
                let key = format!("payment-{number}-{n}");
                let first = until_answered(&client, &key).await;
                answers.push((key, first));
            }
            answers
        });
    }
    for _ in 0..50 {
        sleep(Duration::from_millis(chance.u64(0..400))).await;
        service.kill();
        service = shop.start();
    }
    killing.send(true).unwrap();
    let answers: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    for (key, first) in &answers {
        assert_eq!(first.status, StatusCode::CREATED, "{key}: {first:?}");
        let again = shop.pay(key, "tok_1").await;
        assert!(again.replayed, "{key}");
        assert_eq!(
            (again.status, &again.text),
            (first.status, &first.text),
            "{key}"
        );
    }
    assert_eq!(shop.balances(), answers.len());
    // The kills came in the middle of payments, too.
    let interrupted = shop
        .provider
        .ledger()
        .asked
        .values()
        .filter(|asked| **asked > 1)
        .count();
    println!("{} payments, {interrupted} asked for again", answers.len());
    assert!(
        answers.len() > 50 && interrupted > 10,
        "{} {interrupted}",
        answers.len()
    );
    assert!(service.stop("-TERM").success());
}

async fn until_answered(client: &(Client, Arc<Mutex<String>>), key: &str) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(answer) = pay(client, key, "tok_1").await
            && matches!(answer.status.as_u16(), 201 | 402 | 422)
        {
            return answer;
        }
        assert!(Instant::now() < deadline, "{key}: no answer");
        sleep(Duration::from_millis(20)).await;
    }
}
