//! What the probe finds in a server's settings.

use semel::store::{Durability, Probe, StoreExt as _};
use semel::{Store as _, StoreErrorKind};
use semel_stores::{OpenError, RedisOptions, RedisStore};
use semel_testkit::servers::{Redis, RedisCluster, Server as _};

use super::{claim, identity, options, tell};

async fn probe(settings: &[&str], options: RedisOptions) -> Probe {
    let server = Redis::start(settings).unwrap();
    let store = options.open(&server.url()).await.unwrap();
    store.probe().await.unwrap()
}

async fn refused(url: &str, options: RedisOptions) -> String {
    match options.open(url).await {
        Err(OpenError::Store(error)) if error.kind() == StoreErrorKind::Config => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn warned(probe: &Probe, of: &str) -> bool {
    probe.warnings.iter().any(|warning| warning.contains(of))
}

#[tokio::test(flavor = "multi_thread")]
async fn durability_is_what_the_settings_reach() {
    let always = probe(
        &["--appendonly", "yes", "--appendfsync", "always"],
        options(),
    )
    .await;
    assert_eq!(always.durability, Durability::Power);
    assert!(always.warnings.is_empty(), "{always:?}");
    let often = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let often = probe(&often, options()).await;
    assert_eq!(often.durability, Durability::Crash);
    assert!(warned(&often, "appendfsync is everysec"), "{often:?}");
    let none = probe(&["--appendonly", "no"], options()).await;
    assert_eq!(none.durability, Durability::Process);
    assert!(warned(&none, "appendonly is no"), "{none:?}");
    let alone = probe(&["--appendonly", "yes"], options().wait_replicas(1)).await;
    assert_eq!(alone.durability, Durability::Replicated);
    assert!(
        warned(&alone, "wait_replicas is 1 and the server has 0"),
        "{alone:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_is_refused() {
    for policy in [
        "allkeys-lru",
        "allkeys-random",
        "volatile-ttl",
        "volatile-lfu",
    ] {
        let server = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", policy]).unwrap();
        let message = refused(&server.url(), options()).await;
        assert!(
            message.contains(policy) && message.contains("noeviction"),
            "{message}"
        );
        let store = options()
            .open(&format!("{}?unsafe=warn", server.url()))
            .await
            .unwrap();
        assert!(warned(&store.probe().await.unwrap(), policy));
        // Without a limit nothing is evicted, yet.
        tell(server.address(), &["CONFIG", "SET", "maxmemory", "0"]).await;
        let store = options().open(&server.url()).await.unwrap();
        assert!(warned(&store.probe().await.unwrap(), policy));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused_and_an_unwaited_one_warned_of() {
    let master = Redis::start(&[]).unwrap();
    let port = master.address().port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let message = refused(&replica.url(), options()).await;
    assert!(message.contains("is a replica"), "{message}");
    let store = options().open(&master.url()).await.unwrap();
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !warned(
        &store.probe().await.unwrap(),
        "1 replicas, which are not waited for",
    ) {
        assert!(
            tokio::time::Instant::now() < end,
            "the replica does not come"
        );
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_the_disk_needs_a_server_that_can() {
    let server = Redis::start(&[]).unwrap();
    let version = tell(server.address(), &["INFO", "server"]).await;
    let version: String = ::redis::from_redis_value(version).unwrap();
    let url = format!("{}?wait_aof=yes", server.url());
    let opened = options().open(&url);
    // Debian 12 ships 7.0.
    if version.contains("redis_version:7.0.") {
        match opened.await {
            Err(OpenError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Config);
                assert!(error.to_string().contains("is 7.0"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    } else {
        let store = opened.await.unwrap();
        claim(&store, &identity("a-key-of-some-length")).await;
        tell(server.address(), &["CONFIG", "SET", "appendonly", "no"]).await;
        let refused = store.probe().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Config);
    }
}

// What a managed service may allow, and less.
async fn restricted(rules: &[&str]) -> (Redis, Result<RedisStore, OpenError>) {
    let server = Redis::start(&[]).unwrap();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">hunter2", "~*"];
    user.extend(rules);
    tell(server.address(), &user).await;
    let url = format!("redis://app:hunter2@{}", server.address());
    let store = options().open(&url).await;
    (server, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_read_is_warned_of() {
    let (_server, store) = restricted(&["&*", "+@all", "-config"]).await;
    let probe = store.unwrap().probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Crash);
    assert!(warned(&probe, "may not read appendfsync"), "{probe:?}");

    let (_server, store) = restricted(&["&*", "+@all", "-@dangerous"]).await;
    let store = store.unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Process);
    assert!(warned(&probe, "may not run INFO"), "{probe:?}");
    claim(&store, &identity("a-key-of-some-length")).await;

    // Without a channel: steps are done, and waiters poll.
    let (_server, store) = restricted(&["resetchannels", "+@all"]).await;
    let store = store.unwrap();
    assert!(warned(&store.probe().await.unwrap(), "may not publish"));
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    let done = super::complete(&store, identity.digest(), &own.token);
    assert_eq!(done.await.unwrap(), semel::store::Fenced::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_needed_is_in_the_documentation() {
    let page = include_str!("../../../../docs/stores/redis.md");
    let rules = page
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER semel on >secret ~semel:* "))
        .expect("the rules of a user");
    let rules: Vec<&str> = rules.split(' ').collect();
    let server = Redis::start(&[]).unwrap();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">hunter2", "~semel:*"];
    user.extend(rules);
    tell(server.address(), &user).await;
    let url = format!("redis://app:hunter2@{}", server.address());
    let store = RedisOptions::new().for_tests().open(&url).await.unwrap();
    let probe = store.probe().await.unwrap();
    assert!(probe.warnings.is_empty(), "{probe:?}");
    let identity = identity("a-key-of-some-length");
    let own = claim(&store, &identity).await;
    let wait = store.wait(
        identity.digest(),
        own.token.fence,
        std::time::Duration::from_millis(50),
    );
    wait.await.unwrap();
    let _ = store.abandon(identity.digest(), &own.token).await.unwrap();
    let own = claim(&store, &identity).await;
    let done = super::complete(&store, identity.digest(), &own.token);
    assert_eq!(done.await.unwrap(), semel::store::Fenced::Applied);
    let query = semel::store::ListQuery::new(semel::StateKind::Completed);
    assert_eq!(store.list(&query).await.unwrap().entries.len(), 1);
    semel::store::Clear::clear(&store, false).await.unwrap();

    // What is not allowed is a setting to mend.
    let other = options().open(&url).await.unwrap();
    let (next, asked) = (super::identity("a-key-of-some-length"), super::request());
    super::failed(other.claim(&next, &asked).await, StoreErrorKind::Config);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_a_single_server_are_not_taken_for_each_other() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("redis://{}", cluster.address());
    assert!(refused(&url, options()).await.contains("redis-cluster://"));
    let store = options().open(&cluster.url()).await.unwrap();
    let probe = store.probe().await.unwrap();
    assert_eq!(probe.store, "redis-cluster");
    assert_eq!(probe.durability, Durability::Power);
    assert!(warned(&probe, "not waited for"), "{probe:?}");
    let server = Redis::start(&[]).unwrap();
    let single = options()
        .open(&format!("redis-cluster://{}", server.address()))
        .await;
    assert!(single.is_err());
}
