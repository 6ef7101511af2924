//! Whose key it is.

use crate::support::{Gateway, Shop, order, order_with};

#[tokio::test]
async fn principals_with_the_same_key_are_independent() {
    let shop = Shop::open().await;
    let gateway = Gateway::start(shop.address, &[]);
    let ask = |who: &'static str| {
        let headers = [("idempotency-key", "\"k\""), ("authorization", who)];
        async move { order_with(gateway.address, &headers).await }
    };
    let (one, two) = (ask("Bearer one").await, ask("Bearer two").await);
    let nobody = order(gateway.address, "\"k\"").await;
    assert_eq!(shop.placed(), 3);
    for answer in [&one, &two, &nobody] {
        assert_eq!(answer.status, 201);
        assert!(!answer.is_replay());
    }
    let again = ask("Bearer one").await;
    assert!(again.is_replay());
    assert_eq!(again.body, one.body);
    assert!(!gateway.log().contains("Bearer"));
}

#[tokio::test]
async fn the_principal_can_stand_in_another_field() {
    let shop = Shop::open().await;
    let flags = ["--scope-header", "X-Account", "--require-principal"];
    let gateway = Gateway::start(shop.address, &flags);
    let ask = |account: &'static str, token: &'static str| {
        let headers = [
            ("idempotency-key", "\"k\""),
            ("x-account", account),
            ("authorization", token),
        ];
        async move { order_with(gateway.address, &headers).await }
    };
    assert!(!ask("a", "t1").await.is_replay());
    assert!(
        ask("a", "t2").await.is_replay(),
        "a rotated token is the same account"
    );
    assert!(!ask("b", "t1").await.is_replay());
    let headers = [("idempotency-key", "\"k\""), ("authorization", "t1")];
    let refused = order_with(gateway.address, &headers).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (400, "missing-principal")
    );
    assert_eq!(shop.placed(), 2);
}
