//! The orders API as its customers see it: real processes, a real PostgreSQL, and a payment service
//! that fails as it is told.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

mod shop;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use semel::store::Nonce;
use serde_json::json;
use tokio::task::JoinSet;

use crate::shop::{PATIENCE, Shop, get, tea};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_retries_at_once_make_one_order_and_one_payment() {
    let shop = Shop::open(10, &[]).await;
    shop.faults(json!({ "delay_ms": 100 })).await;
    let customer = shop.customer();
    let mut retries = JoinSet::new();
    for _ in 0..50 {
        let customer = customer.clone();
        retries.spawn(async move { customer.buy_tea("the-one-order").await });
    }
    let answers = retries.join_all().await;
    let first: Vec<_> = answers.iter().filter(|answer| !answer.replayed).collect();
    assert_eq!(first.len(), 1, "one was not replayed");
    assert_eq!(first[0].status, StatusCode::CREATED);
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_replay() == first[0].as_replay())
    );
    assert_eq!(shop.balances(10).await, 1);
    let order_at = |path: &str| format!("{}{path}", shop.api.url);
    let nowhere = get(&order_at("/orders/ord_0")).await;
    assert_eq!(nowhere["code"], "no-such-order");
    let order = get(&order_at(first[0].location.as_deref().unwrap())).await;
    assert_eq!(order, first[0].json());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_orders_for_fifty_teas_sell_fifty() {
    let shop = Shop::open(50, &[]).await;
    let mut orders = JoinSet::new();
    for n in 0..200 {
        let customer = shop.customer();
        orders.spawn(async move { customer.buy_tea(&format!("order-number-{n}")).await });
    }
    let mut refused = 0;
    for answer in orders.join_all().await {
        if answer.status != StatusCode::CREATED {
            assert_eq!(answer.status, StatusCode::CONFLICT);
            assert_eq!(answer.json()["code"], "out-of-stock");
            refused += 1;
        }
    }
    assert_eq!(refused, 150);
    // Nobody paid for nothing: payments are those of the fifty.
    assert_eq!(shop.balances(50).await, 50);
    assert_eq!(shop.orders().await.len(), 200);
}

/// The answer to a delivery is lost, teas are sold, and it is sent again: those sold stay sold.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_sent_again_is_not_sold_twice() {
    let shop = Shop::open(10, &[]).await;
    let customer = shop.customer();
    for n in 0..3 {
        customer.buy_tea(&format!("order-number-{n}")).await;
    }
    let again = customer.deliver_tea("the-first-delivery", 10).await;
    let again = again.unwrap();
    assert!(again.replayed);
    assert_eq!(again.json(), json!({ "stock": 10, "price": 450 }));
    for n in 3..20 {
        customer.buy_tea(&format!("order-number-{n}")).await;
    }
    assert_eq!(shop.balances(10).await, 10);
    // The next delivery is another one, and is added.
    let next = customer.deliver_tea("the-next-delivery", 5).await.unwrap();
    assert_eq!(next.json()["stock"], 5);
    assert_eq!(shop.balances(15).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_at_once_and_their_retries_are_each_added_once() {
    let shop = Shop::open(1, &[]).await;
    let mut deliveries = JoinSet::new();
    for n in 0..40 {
        let customer = shop.customer();
        let key = format!("delivery-number-{}", n / 4);
        deliveries.spawn(async move { customer.deliver_tea(&key, 3).await.unwrap() });
    }
    for answer in deliveries.join_all().await {
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(shop.stock().await, 31);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_delivery_is_refused_and_its_key_stays_free() {
    let shop = Shop::open(1, &[]).await;
    let customer = shop.customer();
    let tea = "/inventory/tea/deliveries";
    for (quantity, price) in [(0, 1), (-1, 1), (1_000_001, 1), (1, -1)] {
        let bad = json!({ "quantity": quantity, "price": price });
        let refused = customer.post(tea, "a-good-key", &bad).await.unwrap();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{bad}");
    }
    assert_eq!(
        customer.deliver_tea("a-good-key", 2).await.unwrap().status,
        StatusCode::OK
    );
    assert_eq!(shop.stock().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_fifteen_times_under_load_it_loses_and_doubles_nothing() {
    const TEAS: i32 = 100_000;
    let mut shop = Shop::open(TEAS, &["--lease", "300ms"]).await;
    shop.faults(json!({ "delay_ms": 5 })).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut customers = JoinSet::new();
    for who in 0..24 {
        let (customer, over) = (shop.customer(), Arc::clone(&over));
        customers.spawn(async move {
            let mut answers = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let key = format!("customer-{who}-order-{}", answers.len());
                answers.push((customer.buy_tea(&key).await, key));
            }
            answers
        });
    }
    for _ in 0..15 {
        let chance = Nonce::random().unwrap().as_bytes()[0];
        tokio::time::sleep(Duration::from_millis(30 + u64::from(chance) / 2)).await;
        tokio::task::block_in_place(|| shop.kill_api());
    }
    over.store(true, Ordering::Relaxed);
    let answers = customers.join_all().await.concat();
    let keys: HashSet<_> = answers
        .iter()
        .map(|(answer, _)| answer.json()["id"].to_string())
        .collect();
    assert_eq!(keys.len(), answers.len());
    for (answer, key) in &answers {
        assert_eq!(answer.status, StatusCode::CREATED);
        assert_eq!(shop.customer().buy_tea(key).await, answer.as_replay());
    }
    assert_eq!(shop.balances(TEAS.into()).await, answers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_whose_answer_is_lost_is_paid_once() {
    let shop = Shop::open(10, &[]).await;
    // Asked again within the attempt.
    shop.faults(json!({ "drop": 1 })).await;
    let answer = shop
        .customer()
        .ask("an-answer-is-lost", &tea())
        .await
        .unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(shop.balances(10).await, 1);
    // Not even that helps; the next attempt with the key goes on.
    shop.faults(json!({ "fail": 3 })).await;
    let failed = shop
        .customer()
        .ask("all-answers-are-lost", &tea())
        .await
        .unwrap();
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(failed.json()["code"], "payment-service");
    // The order stands, and is not another one's.
    let other = json!({ "items": { "tea": 2 }, "card": "tok_visa" });
    let other = shop
        .customer()
        .ask("all-answers-are-lost", &other)
        .await
        .unwrap();
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!((shop.stock().await, shop.paid().await.len()), (8, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_nobody_asks_about_any_more_is_settled() {
    let shop = Shop::open(10, &["--settle-after", "200ms"]).await;
    shop.faults(json!({ "fail": 1_000_000 })).await;
    let failed = shop.customer().ask("left-behind", &tea()).await.unwrap();
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    shop.faults(json!({})).await;
    let settled = async {
        while shop.orders().await[0].1 == "pending" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.unwrap();
    assert_eq!(shop.balances(10).await, 1);
    let answer = shop.customer().ask("left-behind", &tea()).await.unwrap();
    assert_eq!(
        (answer.status, answer.replayed),
        (StatusCode::CREATED, false)
    );
    assert_eq!(shop.balances(10).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_the_same_the_second_time() {
    let shop = Shop::open(3, &[]).await;
    let order = |teas: i32, card: &str| json!({ "items": { "tea": teas }, "card": card });
    let customer = shop.customer();
    for (key, order, status) in [
        ("paid", order(2, "tok_visa"), StatusCode::CREATED),
        (
            "no-money",
            order(1, "tok_declined"),
            StatusCode::PAYMENT_REQUIRED,
        ),
        ("too-many", order(2, "tok_visa"), StatusCode::CONFLICT),
    ] {
        let first = customer.ask(key, &order).await.unwrap();
        assert_eq!((first.status, first.replayed), (status, false), "{key}");
        assert_eq!(customer.ask(key, &order).await.unwrap(), first.as_replay());
    }
    // Declined and refused orders leave all where it was.
    assert_eq!((shop.stock().await, shop.paid().await.len()), (1, 1));
    let mismatch = customer.ask("paid", &order(1, "tok_visa")).await.unwrap();
    assert_eq!(mismatch.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(mismatch.json()["code"], "mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_order_is_refused_and_its_key_stays_free() {
    let shop = Shop::open(1, &[]).await;
    let customer = shop.customer();
    for bad in [
        json!({ "items": {}, "card": "tok_visa" }),
        json!({ "items": { "tea": 0 }, "card": "tok_visa" }),
        json!({ "items": { "coffee": 1 }, "card": "tok_visa" }),
        json!("tea"),
    ] {
        let refused = customer.ask("a-good-key", &bad).await.unwrap();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(refused.json()["detail"].is_string());
    }
    let placed = customer.ask("a-good-key", &tea()).await.unwrap();
    assert_eq!(placed.status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_finishes_what_it_is_at() {
    let mut shop = Shop::open(1, &[]).await;
    shop.faults(json!({ "delay_ms": 500 })).await;
    let customer = shop.customer();
    let order = tokio::spawn(async move { customer.ask("the-last-order", &tea()).await });
    while shop.orders().await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(shop.api.stop().await.success(), "{}", shop.api.log());
    assert_eq!(order.await.unwrap().unwrap().status, StatusCode::CREATED);
    assert_eq!(shop.orders().await[0].1, "paid");
}
