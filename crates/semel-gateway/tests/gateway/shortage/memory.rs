//! A Redis without memory left.

use std::process::Command;

use semel_testkit::servers::{Redis, Server as _};

use super::{healed, large_order, lines, metric, order_until_refused, shop_and, until_logged};
use crate::support::get;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_takes_keys_again_once_there_is_room() {
    const BODY: usize = 200_000;
    let server = Redis::start(&[]).unwrap();
    let may_use = |memory: &str| {
        let port = server.address().port().to_string();
        let set = Command::new("redis-cli")
            .args(["-p", &port, "config", "set", "maxmemory", memory])
            .output();
        assert!(set.unwrap().status.success());
    };
    let (shop, gateway) = shop_and(&["--store", &server.url()]).await;
    may_use("6mb");
    let (answered, refusal) = order_until_refused(&gateway, "filling", BODY, 1_000).await;
    assert!(!answered.is_empty());
    assert_eq!(refusal.problem(), "capacity");
    until_logged(&gateway, "no room for new keys").await;
    assert!(
        lines(&gateway, "ERROR")[0].contains("maxmemory"),
        "{:?}",
        lines(&gateway, "ERROR")
    );
    let ready = get(gateway.admin, "/readyz").await;
    assert!(ready.text().contains("maxmemory"), "{}", ready.text());
    assert_eq!(metric(&gateway, "semel_store_full").await, "1");
    let again = large_order(&gateway, &answered[0].0, BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    may_use("0");
    healed(&gateway, &shop, &answered, BODY).await;
}
