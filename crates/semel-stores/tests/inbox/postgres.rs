//! On PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use semel::guard::Policy;
use semel::inbox::Receipt;
use semel::transaction::Lent;
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction, Schema};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Postgres, Server as _};
use tokio_postgres::{Client, Error};

use super::{Database, event, inbox, one};
use crate::postgres::{client, table, url};

#[derive(Clone)]
struct Here {
    url: Arc<str>,
    ledger: Arc<str>,
    look: Arc<Client>,
}

impl Here {
    async fn new() -> Self {
        let url = url();
        Self::through(&url, &url).await
    }

    async fn through(url: &str, direct: &str) -> Self {
        let (look, ledger) = (client(direct).await, table());
        let sql = format!("CREATE TABLE {ledger} (id text NOT NULL CHECK (id <> 'poison'))");
        look.batch_execute(&sql).await.unwrap();
        let here = Self {
            url: url.into(),
            ledger: ledger.into(),
            look: Arc::new(look),
        };
        here.open().await;
        here
    }
}

impl Database for Here {
    type Store = PostgresStore;
    type Error = Error;

    async fn open(&self) -> PostgresStore {
        let options = PostgresOptions::from_url(&self.url).unwrap();
        options.schema(Schema::Create).open().await.unwrap()
    }

    async fn write(&self, tx: Lent<PostgresTransaction>, ids: Vec<String>) -> Result<(), Error> {
        let sql = format!("INSERT INTO {} SELECT unnest($1::text[])", self.ledger);
        tx.execute(&sql, &[&ids]).await.map(drop)
    }

    async fn ledger(&self) -> Vec<String> {
        let sql = format!("SELECT id FROM {}", self.ledger);
        let rows = self.look.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[test]
fn deliveries_race_and_consumers_die() {
    let looking = tokio::runtime::Runtime::new().unwrap();
    let here = looking.block_on(Here::new());
    super::deliveries_race_and_consumers_die(&here);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_the_database_refuses_holds_up_nobody() {
    super::one_that_the_database_refuses_holds_up_nobody(&Here::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_overlap_end() {
    super::batches_that_overlap_end(&Here::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_costs_what_a_transaction_costs_and_a_batch_little_more() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let through = format!(
        "{}?connections=1&listen=off",
        server.url_through(proxy.address())
    );
    let here = Here::through(&through, &server.url()).await;
    // No renewal is to come between.
    let long = Policy::default().with_lease(Duration::from_secs(300));
    let inbox = inbox(here.open().await).with_policy(long);
    let trips = async |ids: &[&str], receipt: Receipt| {
        let before = proxy.round_trips();
        if let [id] = ids {
            assert_eq!(one(&here, &inbox, &event(id)).await.unwrap(), receipt);
        } else {
            let events: Vec<_> = ids.iter().map(|id| event(id)).collect();
            let answers = super::batch(&here, &inbox, &events, super::options()).await;
            assert!(answers.into_iter().all(|answer| answer.unwrap() == receipt));
        }
        proxy.round_trips() - before
    };
    // The first makes the connections.
    trips(&["warm"], Receipt::Handled).await;
    trips(&["warmer"], Receipt::Handled).await;
    // Claim; begin; the ledger's statement (prepared and executed); completion and commit.
    assert_eq!(trips(&["a"], Receipt::Handled).await, 5);
    assert_eq!(trips(&["a"], Receipt::Duplicate).await, 1);
    // Ten claims are one or two groups; ten completions go with the commit.
    let ten = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let fresh = trips(&ten, Receipt::Handled).await;
    assert!((5..=7).contains(&fresh), "{fresh}");
    let duplicates = trips(&ten, Receipt::Duplicate).await;
    assert!(duplicates <= 2, "{duplicates}");
}
