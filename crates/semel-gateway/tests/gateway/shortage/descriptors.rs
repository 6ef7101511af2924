//! No more files can be opened.

use std::time::Duration;

use http::Method;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{HEALED, healed, large_order, lines, of_size, shop_and, until_logged, within};
use crate::support::{Connection, Gateway, Shop, get, request};

/// More idle connections than there are descriptors, while a client orders: once they are gone
/// everything works, without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_close_the_store() {
    const BODY: usize = 600_000;
    let shop = Shop::open().await;
    let gateway = Gateway::start_with_files(256, shop.address, &[]);
    // Enough for the store to need a new file, on a connection that it has already.
    let ordering = async {
        let mut client = Connection::open(gateway.address).await;
        let mut answered = Vec::new();
        for n in 0..80 {
            let key = format!("\"during-{n}\"");
            let order = of_size(&gateway, &key, BODY);
            if let Ok(answer) = client.send(order).await {
                answered.push((key, answer));
            }
        }
        answered
    };
    let idle = async {
        let mut connecting = JoinSet::new();
        for _ in 0..400 {
            let connect = TcpStream::connect(gateway.address);
            connecting.spawn(timeout(Duration::from_secs(2), connect));
        }
        let connected = connecting.join_all().await;
        let idle: Vec<TcpStream> = connected.into_iter().flatten().flatten().collect();
        idle
    };
    let (mut answered, idle) = tokio::join!(ordering, idle);
    // Those let in, and those that wait to be.
    assert!(idle.len() > 150, "{}", idle.len());
    drop(idle);
    within(HEALED, "an order", async || {
        large_order(&gateway, "\"after\"", BODY)
            .await
            .is_ok_and(|answer| answer.status == 201)
    })
    .await;
    within(HEALED, "/readyz", async || {
        get(gateway.admin, "/readyz").await.text() == "ready\n"
    })
    .await;
    answered.retain(|(_, answer)| answer.status == 201);
    println!(
        "{} of 80 answered with 400 idle connections",
        answered.len()
    );
    for (key, first) in &answered {
        let again = large_order(&gateway, key, BODY).await.unwrap();
        assert!(again.is_replay(), "{key}: {}", again.status);
        assert_eq!(again.body, first.body, "{key}");
    }
    for (key, times) in shop.executions() {
        assert_eq!(times, 1, "{key} ran {times} times");
    }
}

/// The store's own files cannot be opened any more: it says so, and opens itself again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_may_open_no_files_opens_again() {
    const BODY: usize = 900_000;
    let (shop, gateway) = shop_and(&[]).await;
    let mut client = Connection::open(gateway.address).await;
    let mut operator = Connection::open(gateway.admin).await;
    let mut ask = async |what: &str| {
        let request = request(Method::GET, gateway.admin, what, &[], "");
        operator.send(request).await.unwrap()
    };
    assert_eq!(ask("/readyz").await.status, 200);
    let mut answered = Vec::new();
    let refusal = loop {
        let key = format!("\"filling-{}\"", answered.len());
        let answer = client.send(of_size(&gateway, &key, BODY)).await.unwrap();
        if answer.status != 201 {
            break answer;
        }
        // What is open stays open: the connections that this test needs among it.
        gateway.limit_files(3);
        answered.push((key, answer));
        assert!(answered.len() < 200, "nothing had to be opened");
    };
    assert_eq!(refusal.problem(), "store-unavailable");
    until_logged(&gateway, "may open no more files").await;
    let told = lines(&gateway, "ERROR");
    assert!(told[0].contains("LimitNOFILE"), "{told:?}");
    assert!(
        !told[0].contains("Fjall") && !told[0].contains("Poisoned"),
        "{told:?}"
    );
    let ready = ask("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("LimitNOFILE"), "{}", ready.text());
    assert!(ask("/metrics").await.text().contains("semel_store_up 0"));
    gateway.limit_files(1024);
    healed(&gateway, &shop, &answered, BODY).await;
}
