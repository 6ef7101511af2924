//! `--store` alone is enough, on every store; and gateways on one store share its records.

use std::net::SocketAddr;

use semel_testkit::servers::{Kind, shared};
use tokio::task::JoinSet;

use crate::support::{Answer, Gateway, Shop, order, order_with};

/// A key that no other run has: records on a server stay.
fn key(name: &str) -> String {
    let nonce = semel::store::Nonce::random().unwrap();
    format!("\"{name}-{}\"", hex::encode(nonce.as_bytes()))
}

async fn spread(gateways: &[SocketAddr], times: usize, key: &str) -> Vec<Answer> {
    let mut asking = JoinSet::new();
    for n in 0..times {
        let (address, key) = (gateways[n % gateways.len()], key.to_owned());
        asking.spawn(async move {
            let headers = [("idempotency-key", &*key), ("x-delay", "200")];
            order_with(address, &headers).await
        });
    }
    asking.join_all().await
}

/// Two gateways that start at the same time where nothing is prepared: 64 duplicates over both run
/// once; the answer is replayed by a third that starts later; a key that was used for another
/// request is refused by whichever is asked.
async fn gateways_share(store: &str) {
    let shop = Shop::open().await;
    let flags = ["--store", store, "--wait", "30s"];
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| Gateway::start(shop.address, &flags));
        (first.join(), Gateway::start(shop.address, &flags))
    });
    let gateways = [first.unwrap(), second];
    let addresses = [gateways[0].address, gateways[1].address];

    let key = key("shared");
    let answers = spread(&addresses, 64, &key).await;
    assert_eq!(shop.placed(), 1);
    for answer in &answers {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.body, answers[0].body);
    }
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 63);

    drop(gateways);
    let later = Gateway::start(shop.address, &flags);
    let again = order(later.address, &key).await;
    assert!(again.is_replay());
    assert_eq!(again.body, answers[0].body);
    let other = crate::support::request(
        axum::http::Method::POST,
        later.address,
        "/orders?express",
        &[("idempotency-key", &*key)],
        "{\"item\":1}",
    );
    let other = crate::support::send(other).await.unwrap();
    assert_eq!(other.problem(), "mismatch");
    assert_eq!(shop.placed(), 1);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_postgres() {
    gateways_share(&shared(Kind::Postgres).unwrap()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_mariadb() {
    gateways_share(&shared(Kind::MariaDb).unwrap()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_redis() {
    gateways_share(&shared(Kind::Redis).unwrap()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_redis_cluster() {
    gateways_share(&shared(Kind::RedisCluster).unwrap()).await;
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_nats() {
    gateways_share(&shared(Kind::Nats).unwrap()).await;
}

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_nats_cluster() {
    gateways_share(&shared(Kind::NatsCluster).unwrap()).await;
}

#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_dynamodb() {
    gateways_share(&shared(Kind::DynamoDb).unwrap()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_share_a_sqlite_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("records.db");
    gateways_share(&format!("sqlite:{}", file.display())).await;
}
