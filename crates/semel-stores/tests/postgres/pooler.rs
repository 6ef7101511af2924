//! Behind PgBouncer in transaction mode.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Durability, Fenced, Store as _, Waited};
use semel_stores::{OpenOptions, PostgresStore};
use semel_testkit::servers::{PgBouncer, Postgres, Server as _};

use super::{acquire, complete, identity, open, replayed};

async fn many(store: &Arc<PostgresStore>, name: &str) {
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (store, key) = (store.clone(), format!("{name}-{n}"));
            tokio::spawn(async move {
                let token = acquire(&store, &key).await.token;
                assert_eq!(complete(&store, &key, &token).await, Fenced::Applied);
                assert_eq!(replayed(&store, &key).await, key.as_bytes());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unnamed_statements_go_through() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}?prepared=off&listen=off", pooler.url());
    let store = Arc::new(open(&url).await);
    many(&store, "first").await;
    assert_eq!(store.probe().await.unwrap().durability, Durability::Power);
    // The server's connections change under the pooler's.
    server.restart_immediately().unwrap();
    for _ in 0..100 {
        if store.get(identity("anything").digest()).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    many(&store, "second").await;
    pooler.node().kill();
    pooler.node().start().unwrap();
    many(&store, "third").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_come_around_the_pooler() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}?prepared=off&listen={}", pooler.url(), server.url());
    let (one, two) = (open(&url).await, open(&url).await);
    let token = acquire(&one, "a-key").await.token;
    let waiting = tokio::spawn(async move {
        let id = identity("a-key");
        two.wait(id.digest(), token.fence, Duration::from_secs(30))
            .await
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(complete(&one, "a-key", &token).await, Fenced::Applied);
    assert_eq!(waiting.await.unwrap().unwrap(), Waited::Changed);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_switch_it_says_so() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}?schema=create", pooler.url());
    let error = semel_stores::open(&url, &OpenOptions::default()).await;
    let error = error.err().unwrap().to_string();
    assert!(error.contains("prepared=off"), "{error}");
}
