//! One execution, whoever asks how often.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{
    Answer, Gateway, Reaction, Script, Shop, eventually, order, order_with, send_raw,
};

async fn at_once(gateway: &Gateway, times: usize, key: &'static str) -> Vec<Answer> {
    let mut asking = JoinSet::new();
    for _ in 0..times {
        let address = gateway.address;
        let headers = [("idempotency-key", key), ("x-delay", "200")];
        asking.spawn(async move { order_with(address, &headers).await });
    }
    asking.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_64_duplicates_one_runs_and_63_get_its_answer() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--wait", "30s"]);
    let answers = at_once(&gateway, 64, "\"many\"").await;
    assert_eq!(shop.placed(), 1);
    assert_eq!(answers.len(), 64);
    for answer in &answers {
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.body, answers[0].body);
        assert_eq!(answer.header("location"), Some("/orders/1"));
        assert_eq!(answer.header("etag"), Some("\"v1\""));
    }
    assert_eq!(answers.iter().filter(|a| a.is_replay()).count(), 63);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_63_are_told_that_it_is_in_flight() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let answers = at_once(&gateway, 64, "\"many\"").await;
    assert_eq!(shop.placed(), 1);
    let first = |a: &&Answer| a.status == 201 && !a.is_replay();
    assert_eq!(answers.iter().filter(first).count(), 1);
    for answer in answers.iter().filter(|a| a.status != 201) {
        assert_eq!(answer.status, 409);
        assert_eq!(answer.problem(), "in-flight");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
}

/// `SEMEL_TEST_LEASE=1s` makes it a lease of 1 s and a call of 4 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_four_times_as_long_as_its_lease_keeps_it() {
    let lease = std::env::var("SEMEL_TEST_LEASE").unwrap_or_else(|_| "300ms".to_owned());
    let delay = 4 * humantime::parse_duration(&lease).unwrap().as_millis();
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &["--lease", &lease]);
    let address = gateway.address;
    let first = tokio::spawn(async move {
        let delay = delay.to_string();
        order_with(
            address,
            &[("idempotency-key", "\"slow\""), ("x-delay", &delay)],
        )
        .await
    });
    eventually("the first attempt", || async {
        (shop.received() == 1).then_some(())
    })
    .await;
    let mut in_flight = 0;
    while !first.is_finished() {
        let again = order(address, "\"slow\"").await;
        if again.status == 201 {
            break;
        }
        assert_eq!(
            (again.status.as_u16(), again.problem().as_str()),
            (409, "in-flight")
        );
        assert_eq!(again.header("retry-after"), Some("1"));
        in_flight += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let first = first.await.unwrap();
    assert_eq!(first.status, 201);
    assert!(!first.is_replay());
    assert!(
        in_flight > 5,
        "only {in_flight} duplicates came while it ran"
    );
    let again = order(address, "\"slow\"").await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(shop.placed(), 1);
    println!("lease {lease}, call {delay} ms: {in_flight} duplicates in flight, 1 execution");
}

#[tokio::test]
async fn a_client_that_goes_away_loses_nothing() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let stream = send_raw(
        gateway.address,
        "POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\nidempotency-key: \"gone\"\r\nx-delay: 300\r\n\
         content-length: 10\r\n\r\n{\"item\":1}",
    )
    .await;
    eventually("the attempt", || async {
        (shop.received() == 1).then_some(())
    })
    .await;
    drop(stream);
    let answer = eventually("the answer", || async {
        let answer = order(gateway.address, "\"gone\"").await;
        (answer.status != 409).then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 201);
    assert!(answer.is_replay());
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn a_key_with_another_request_is_refused_and_nothing_changes() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let first = order(gateway.address, "\"k\"").await;
    let key = [("idempotency-key", "\"k\"")];
    let other = crate::support::request(
        axum::http::Method::POST,
        gateway.address,
        "/orders?express",
        &key,
        "{\"item\":1}",
    );
    let other = crate::support::send(other).await.unwrap();
    assert_eq!(
        (other.status.as_u16(), other.problem().as_str()),
        (422, "mismatch")
    );
    let again = order(gateway.address, "\"k\"").await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(shop.placed(), 1);
}

#[tokio::test]
async fn without_a_key_every_request_runs() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    for n in 1..=3 {
        let answer = order_with(gateway.address, &[]).await;
        assert_eq!(
            answer.header("location"),
            Some(format!("/orders/{n}").as_str())
        );
        assert!(!answer.is_replay());
    }
    let strict = Gateway::start(shop.address, &["--require-key"]);
    let refused = order_with(strict.address, &[]).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (400, "missing-key")
    );
    assert_eq!(shop.placed(), 3);
}

#[tokio::test]
async fn every_attempt_goes_to_the_upstream_under_the_operations_own_name() {
    const KEY: (&str, &str) = ("idempotency-key", "\"k\"");
    const MINE: (&str, &str) = ("idempotency-id", "mine");
    let busy = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    let upstream = Script::start(Reaction::Send(busy)).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let requests: [&[_]; 6] = [
        &[KEY],
        &[KEY],
        // Only the gateway gives names.
        &[KEY, MINE, ("Idempotency-Id", "again")],
        &[("idempotency-key", "\"l\"")],
        &[KEY, ("authorization", "Bearer somebody")],
        &[MINE],
    ];
    for headers in requests {
        let answer = order_with(gateway.address, headers).await;
        assert_eq!(answer.status, 503);
    }
    let mut ids = upstream.fields("idempotency-id");
    assert_eq!(ids.pop().unwrap(), [""; 0], "a request without a key");
    let ids: Vec<String> = ids
        .into_iter()
        .map(|mut lines| {
            assert_eq!(lines.len(), 1, "{lines:?}");
            lines.remove(0)
        })
        .collect();
    for id in &ids {
        assert!(
            id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()),
            "{id}"
        );
    }
    assert_eq!((&ids[1], &ids[2]), (&ids[0], &ids[0]));
    assert_ne!(ids[3], ids[0]);
    assert_ne!(ids[4], ids[0]);
    assert_ne!(ids[4], ids[3]);
    let fences = upstream.fields("idempotency-fence");
    assert!(fences[0] != fences[1], "another attempt");
}
