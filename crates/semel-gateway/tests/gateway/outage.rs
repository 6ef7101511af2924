//! A store that is away while operations finish, and comes back (protocol rule R14).
//!
//! `SEMEL_TEST_OUTAGE=30s` makes it an outage of 30 s.

use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Kind, shared};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{Answer, Gateway, Shop, eventually, get, order_with};

const ORDERS: usize = 50;

async fn order_all(gateway: &Gateway, run: u128) -> Vec<Answer> {
    let mut asking = JoinSet::new();
    for n in 0..ORDERS {
        let (address, key) = (gateway.address, format!("\"outage-{run}-{n}\""));
        asking.spawn(async move {
            order_with(address, &[("idempotency-key", &*key), ("x-delay", "1000")]).await
        });
    }
    asking.join_all().await
}

async fn metric(gateway: &Gateway, name: &str) -> f64 {
    let answer = get(gateway.admin, "/metrics").await;
    let line = answer
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_finish_while_the_store_is_away_replay_afterwards() {
    let outage = std::env::var("SEMEL_TEST_OUTAGE").unwrap_or_else(|_| "7s".to_owned());
    let outage = humantime::parse_duration(&outage).unwrap();
    let redis = shared(Kind::Redis).unwrap();
    let target = redis
        .strip_prefix("redis://")
        .and_then(|rest| rest.split('/').next());
    let target = target.unwrap();
    let proxy = Proxy::start(target.parse().unwrap()).unwrap();
    let store = redis.replace(target, &proxy.address().to_string());

    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--store", &store, "--lease", "60s"]);
    let nonce = semel::store::Nonce::random().unwrap();
    let run = u128::from_ne_bytes(*nonce.as_bytes());
    let away = async {
        let all = async || (shop.received() == ORDERS).then_some(());
        eventually("the orders", all).await;
        proxy.set(Fault::Refuse);
        let since = Instant::now();
        sleep(outage).await;
        proxy.set(Fault::None);
        since
    };
    let asked = async {
        let answers = order_all(&gateway, run).await;
        let unsettled = metric(&gateway, "semel_unsettled").await;
        (answers, unsettled)
    };
    let (since, (answers, unsettled)) = tokio::join!(away, asked);
    let told = answers.iter().filter(|answer| answer.status == 503).count();
    assert!(
        told > 0,
        "the store was away for {:?}, and nobody noticed",
        since.elapsed()
    );
    assert!(unsettled > 0.0);
    assert_eq!(shop.placed(), ORDERS);

    eventually("the store to be told", async || {
        (metric(&gateway, "semel_unsettled").await == 0.0).then_some(())
    })
    .await;
    for answer in order_all(&gateway, run).await {
        assert_eq!(
            (answer.status.as_u16(), answer.is_replay()),
            (201, true),
            "{answer:?}"
        );
    }
    assert_eq!(shop.placed(), ORDERS);
}
