//! A Cluster whose slots move and whose masters fail, under load.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ::redis::from_redis_value;
use semel::store::{ClaimRequest, ListQuery, OnLost, StoreExt as _};
use semel::{AnyStore, StateKind, Store as _};
use semel_testkit::servers::{RedisCluster, Server as _};
use tokio::time::sleep;

use super::{acquired, claim, identity, options, request, tell};
use crate::servers::{Load, eventually};

/// The masters, by their ids, with their addresses and slots.
async fn masters(address: SocketAddr) -> BTreeMap<String, (SocketAddr, Vec<u16>)> {
    let nodes: String = from_redis_value(tell(address, &["CLUSTER", "NODES"]).await).unwrap();
    let master = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        if !words[2].contains("master") || words[2].contains("fail") {
            return None;
        }
        let address = words[1].split('@').next().unwrap().parse().unwrap();
        let slots = words[8..].iter().filter(|slots| !slots.starts_with('['));
        let slots = slots.flat_map(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            first.parse::<u16>().unwrap()..=last.parse().unwrap()
        });
        Some((words[0].to_owned(), (address, slots.collect())))
    };
    let masters = nodes.lines().filter_map(master);
    // A node that has just become a replica is not known as one everywhere yet.
    let masters = masters.filter(|(_, (_, slots))| !Vec::is_empty(slots));
    masters.collect()
}

/// Moves a slot with all its keys, as `redis-cli --cluster reshard` does.
async fn migrate(slot: u16, from: (&str, SocketAddr), to: (&str, SocketAddr), pause: Duration) {
    let slot = slot.to_string();
    let set = ["CLUSTER", "SETSLOT", &slot];
    tell(to.1, &[&set[..], &["IMPORTING", from.0]].concat()).await;
    tell(from.1, &[&set[..], &["MIGRATING", to.0]].concat()).await;
    sleep(pause).await;
    loop {
        let keys = tell(from.1, &["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        let keys: Vec<String> = from_redis_value(keys).unwrap();
        if keys.is_empty() {
            break;
        }
        let port = to.1.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        tell(from.1, &command).await;
    }
    for address in [to.1, from.1] {
        tell(address, &[&set[..], &["NODE", to.0]].concat()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_lose_nothing() {
    let cluster = RedisCluster::start().unwrap();
    // A busy machine must not look like a failure.
    for node in cluster.nodes() {
        let set = ["CONFIG", "SET", "cluster-node-timeout", "30000"];
        tell(node.address(), &set).await;
    }
    let store = options().open(&cluster.url()).await.unwrap();
    // Records that are in flight while their slots move.
    let mut standing = Vec::new();
    for _ in 0..20 {
        let identity = identity("a-key-of-some-length");
        standing.push((claim(&store, &identity).await, identity));
    }
    let any = AnyStore::new(store.clone());
    let load = Load::start(&any, 16);
    let masters = masters(cluster.address()).await;
    let ids: Vec<_> = masters.iter().collect();
    let mut moved = 0;
    for (n, (id, (address, slots))) in ids.iter().enumerate() {
        let (to, (target, _)) = ids[(n + 1) % ids.len()];
        for slot in slots.iter().step_by(600) {
            migrate(
                *slot,
                (id, *address),
                (to, *target),
                Duration::from_millis(20),
            )
            .await;
            moved += 1;
        }
        load.more(50).await;
    }
    assert!(moved > 20, "{moved} slots moved");
    // Its own slot, with the record in it.
    for (own, identity) in &standing {
        let done = store.abandon(identity.digest(), &own.token);
        assert_eq!(done.await.unwrap(), semel::store::Fenced::Applied);
    }
    load.check(&any).await;
    cluster.wait_until_agreed().unwrap();
    // A page looks at some of many keys only.
    let mut query = ListQuery::new(StateKind::Released);
    let mut listed = 0;
    loop {
        let page = store.list(&query).await.unwrap();
        listed += page.entries.len();
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_one_wherever_its_slot_is_while_it_moves() {
    let cluster = RedisCluster::start().unwrap();
    let store = options().open(&cluster.url()).await.unwrap();
    let masters = masters(cluster.address()).await;
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    // Which slot it is in is the server's to say.
    let mut found = None;
    for (id, (address, _)) in &masters {
        let keys = tell(*address, &["KEYS", &format!("*{}", identity.digest())]).await;
        let keys: Vec<String> = from_redis_value(keys).unwrap();
        if let [key] = &keys[..] {
            let slot = tell(*address, &["CLUSTER", "KEYSLOT", key]).await;
            found = Some((id.clone(), *address, from_redis_value::<u16>(slot).unwrap()));
        }
    }
    let (id, address, slot) = found.expect("the record's node");
    let (to, (target, _)) = masters.iter().find(|(other, _)| **other != id).unwrap();
    let moving = migrate(
        slot,
        (&id, address),
        (to, *target),
        Duration::from_millis(500),
    );
    let rivals = async {
        for _ in 0..50 {
            let asked = ClaimRequest {
                on_lost: OnLost::Retry,
                ..request()
            };
            let answer = store.claim(&identity, &asked).await.unwrap();
            let semel::store::Claim::InFlight { fence, .. } = answer else {
                panic!("a second winner: {answer:?}");
            };
            assert_eq!(fence, own.token.fence);
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(moving, rivals);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_fails_under_load_is_replaced() {
    let cluster = RedisCluster::start().unwrap();
    let store = options()
        .wait_replicas(1)
        .open(&cluster.url())
        .await
        .unwrap();
    let any = AnyStore::new(store.clone());
    let load = Load::start(&any, 8);
    load.more(50).await;
    let nodes = cluster.nodes();
    let masters = masters(cluster.address()).await;
    let victim = masters.values().next().unwrap().0;
    let victim = nodes.iter().find(|node| node.address() == victim).unwrap();
    victim.kill();
    sleep(Duration::from_secs(6)).await;
    // The replica took its place, with nobody behind it: claims on its slots are unknown until
    // somebody is.
    victim.start().unwrap();
    cluster.wait_until_agreed().unwrap();
    load.more(100).await;
    let kept = load.check(&any).await;
    assert!(kept >= 150, "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_paused_and_replaced_is_left() {
    let cluster = RedisCluster::start().unwrap();
    let options = options().timeout(Duration::from_secs(1));
    let store = options.open(&cluster.url()).await.unwrap();
    let any = AnyStore::new(store.clone());
    let load = Load::start(&any, 8);
    load.more(50).await;
    let nodes = cluster.nodes();
    let masters = masters(cluster.address()).await;
    let victim = masters.values().last().unwrap().0;
    let victim = nodes.iter().find(|node| node.address() == victim).unwrap();
    victim.pause();
    sleep(Duration::from_secs(6)).await;
    let fresh = identity("a-key-of-some-length");
    let asked = request();
    acquired(eventually(async || store.claim(&fresh, &asked).await).await);
    load.more(100).await;
    victim.resume();
    load.more(100).await;
    // Not `check`: without `wait_replicas` a failover may forget what was acknowledged last.
    drop(load);
}
