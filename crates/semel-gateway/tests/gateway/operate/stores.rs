//! The same on every store that is there.

use serde_json::{Value, json};

use super::{PLACED, lines, lose, said, semel};
use crate::support::{Gateway, Script, get, order};

/// Stores that need no server, and those that the environment names, as the stores' own tests do.
fn stores(directory: &std::path::Path) -> Vec<String> {
    let sqlite = format!("sqlite:{}", directory.join("records.db").display());
    let named = ["POSTGRES", "MARIADB", "REDIS", "NATS", "DYNAMODB"];
    let named = named
        .iter()
        .filter_map(|name| std::env::var(format!("SEMEL_TEST_{name}")).ok());
    [sqlite].into_iter().chain(named).collect()
}

/// What is done on a store is seen by its gateway at once.
#[tokio::test]
async fn records_are_decided_about_on_the_store_itself() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let upstream = Script::start(PLACED).await;
        // A service of its own on a store that others use.
        let service = format!("s{}", std::process::id());
        let gateway = Gateway::start(
            upstream.address,
            &["--store", &store, "--service", &service],
        );
        let on_store = |arguments: &[&str]| semel(&[arguments, &["--store", &store]].concat());
        let done = format!("done-{service}-{}", gateway.address);
        assert_eq!(order(gateway.address, &done).await.text(), "placed");
        let id = upstream.fields("idempotency-id").last().unwrap()[0].clone();

        let before = &lines(&on_store(&["records", "show", &id, "--json"]))[0];
        let extend = [
            "records",
            "extend",
            &id,
            "--ttl",
            "30d",
            "--reason",
            "a slow client",
            "--yes",
            "--json",
        ];
        let after = &lines(&on_store(&extend))[0];
        let end = |record: &Value| record["expires_at"].as_str().unwrap().to_owned();
        assert!(end(after) > end(before), "{store}");
        assert!(order(gateway.address, &done).await.is_replay(), "{store}");
        let shorter = [
            "records", "extend", &id, "--ttl", "1h", "--reason", "r", "--yes",
        ];
        assert!(
            super::failed(&on_store(&shorter)).1.contains("sooner"),
            "{store}"
        );

        let lost = lose(
            &upstream,
            &gateway,
            &format!("lost-{service}-{}", gateway.address),
        )
        .await;
        let erase = |id: &str| on_store(&["records", "erase", id, "--reason", "r", "--yes"]);
        assert!(
            super::failed(&erase(&lost)).1.contains("wrong-state"),
            "{store}"
        );
        upstream.react(PLACED);
        said(&erase(&id));
        assert_eq!(
            order(gateway.address, &done).await.problem(),
            "expired",
            "{store}"
        );
        let erased = &lines(&on_store(&["records", "show", &id, "--json"]))[0];
        assert_eq!(
            (&erased["outcome"]["kind"], &erased["outcome"]["body_bytes"]),
            (&json!("omitted"), &Value::Null)
        );

        let log = lines(&on_store(&["audit", "--json", "--limit", "4"]));
        let actions: Vec<&str> = log
            .iter()
            .map(|entry| entry["action"].as_str().unwrap())
            .collect();
        // What can be seen to be wrong at once is not entered.
        assert_eq!(actions, ["erase", "extend"], "{store}: {log:?}");
        assert!(log.iter().all(|entry| entry["result"] == "done"), "{store}");
    }
}

/// As long as the gateway keeps its entries, where that is said: one that ends sooner would hide those before it.
#[tokio::test]
async fn what_is_done_on_a_store_is_in_the_log_for_as_long_as_is_said() {
    use semel::store::Store as _;

    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("records.db").display());
    let mut options = semel_stores::OpenOptions::default();
    options.schema = semel_stores::Schema::Create;
    let store = semel_stores::open(&url, &options).await.unwrap();
    let purge = ["records", "purge", "--reason", "room", "--yes", "--json"];
    let said = ["--store", &url, "--audit-retention", "3000d"];
    let done = &lines(&semel(&[&purge[..], &said].concat()))[0];
    let (period, nth) = done["audit"].as_str().unwrap().split_once('-').unwrap();
    let key = semel::Key::new(nth).unwrap();
    let entry = semel::Identity::new(semel::Scope::new([period]), "audit@", key);
    let record = store.get(entry.digest()).await.unwrap().unwrap().record;
    let kept = record.created_at.until(record.expires_at);
    assert!(kept.as_secs() >= 3_000 * 24 * 3_600, "{kept:?}");
    store.close().await.unwrap();
}

/// Afterwards nobody of the scope gets an answer any more, and the others go on getting theirs.
#[tokio::test]
async fn a_scope_is_erased() {
    let upstream = Script::start(PLACED).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("records.db");
    let store = format!("sqlite:{}", path.display());
    let gateway = Gateway::start(
        upstream.address,
        &["--store", &store, "--scope-header", "x-account"],
    );
    let by = async |account: &str, key: &str| {
        let fields = [("x-account", account), ("idempotency-key", key)];
        crate::support::order_with(gateway.address, &fields).await
    };
    for nth in 0..20 {
        by("ada", &format!("order-{nth}")).await;
        by("bob", &format!("order-{nth}")).await;
    }
    let scope = lines(&semel(&["records", "list", "--json", "--store", &store]));
    let scopes = scope
        .iter()
        .map(|record| record["scope"].as_array().unwrap());
    let ada = scopes.map(|scope| {
        scope
            .iter()
            .map(|s| s.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    });
    let ada = ada
        .into_iter()
        .find(|scope| scope.iter().any(|segment| segment == "ada"))
        .unwrap();
    let mut erase = vec![
        "records",
        "erase",
        "--reason",
        "asked by the customer",
        "--yes",
        "--json",
        "--store",
        &store,
    ];
    for segment in &ada {
        erase.extend(["--scope", segment]);
    }
    assert_eq!(lines(&semel(&erase))[0]["records"], 20);
    for nth in 0..20 {
        assert_eq!(
            by("ada", &format!("order-{nth}")).await.problem(),
            "expired"
        );
        assert!(by("bob", &format!("order-{nth}")).await.is_replay());
    }
    // Again: there is nothing left.
    assert_eq!(lines(&semel(&erase))[0]["records"], 0);
    let log = lines(&semel(&["audit", "--json", "--store", &store]));
    assert_eq!(log.len(), 2);
    let entry = &log[1];
    assert_eq!(
        (&entry["action"], &entry["reason"], &entry["by"]),
        (
            &json!("erase-scope"),
            &json!("asked by the customer"),
            &json!("ada")
        )
    );
    assert_eq!(
        (&entry["before"]["scope"], &entry["after"]["records"]),
        (&json!(ada), &json!(20))
    );
}

#[tokio::test]
async fn what_is_past_its_retention_is_purged_at_once() {
    let upstream = Script::start(PLACED).await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let gateway = Gateway::start(upstream.address, &["--store", &store, "--ttl", "1ms"]);
    for nth in 0..3 {
        order(gateway.address, &format!("order-{nth}")).await;
    }
    let admin = format!("http://{}", gateway.admin);
    // Its retention ends while this is asked.
    let mut purged = 0;
    for _ in 0..3 {
        let done = semel(&[
            "records", "purge", "--reason", "room", "--yes", "--json", "--admin", &admin,
        ]);
        purged += lines(&done)[0]["records"].as_u64().unwrap();
    }
    let metrics = get(gateway.admin, "/metrics").await.text().to_owned();
    let own = metrics
        .lines()
        .find_map(|line| line.strip_prefix("semel_purged_records_total "));
    assert_eq!(purged + own.unwrap().parse::<u64>().unwrap(), 3);
    assert_eq!(
        lines(&semel(&["audit", "--json", "--admin", &admin])).len(),
        3
    );
}

/// Among many records a page is bounded, and each record is on one of them. `SEMEL_RECORDS` says how many there
/// are, `SEMEL_RECORDS_STORE` where (a store of its own); what a page and a look-up take is printed.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_bounded_among_many_records() {
    use semel::store::{Claim, ClaimRequest, Nonce, Retention, Store as _, StoreExt as _};
    use semel::{Fingerprint, Identity, Key, Outcome, Scope, Service};
    use semel_gateway::audit::{DEFAULT_RETENTION, Log};
    use semel_gateway::operations::{Filter, Operations, Position};

    // One of so many is unknown.
    const UNKNOWN: usize = 1_000;
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let many = number("SEMEL_RECORDS").unwrap_or(3_000);
    let directory = tempfile::tempdir().unwrap();
    let own = format!("sqlite:{}", directory.path().join("records.db").display());
    let url = std::env::var("SEMEL_RECORDS_STORE").unwrap_or(own);
    // DynamoDB's emulator answers one after the other.
    let at_once = if url.starts_with("dynamodb:") { 4 } else { 256 };
    let mut options = semel_stores::OpenOptions::default();
    options.schema = semel_stores::Schema::Create;
    let store = semel_stores::open(&url, &options).await.unwrap();
    let identity = |nth: usize| {
        let service = Service::new(if nth.is_multiple_of(10) {
            "rare"
        } else {
            "shop"
        })
        .unwrap();
        let key = Key::new(&format!("order-{nth}")).unwrap();
        Identity::new(
            Scope::new(["account", &(nth % 100).to_string()]),
            &service.operation("http"),
            key,
        )
    };
    let filling = std::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    // A store that was filled before is measured again.
    let last = store.get(identity(many - 1).digest()).await.unwrap();
    for first in (0..at_once).filter(|_| last.is_none()) {
        let store = store.clone();
        tasks.spawn(async move {
            for nth in (first..many).step_by(at_once) {
                let lease = std::time::Duration::from_secs(600);
                let nonce = Nonce::random().unwrap();
                let request = ClaimRequest::new(nonce, Fingerprint::of(b"one"), lease);
                let identity = identity(nth);
                let Claim::Acquired(acquired) = store.claim(&identity, &request).await.unwrap()
                else {
                    panic!("{nth}");
                };
                let (digest, token) = (identity.digest(), acquired.token);
                let settled = match nth % UNKNOWN {
                    7 => store.mark_unknown(digest, &token).await,
                    _ => {
                        store
                            .complete(
                                digest,
                                &token,
                                &Outcome::success(b"placed"),
                                Retention::PAYMENT,
                            )
                            .await
                    }
                };
                assert_eq!(settled.unwrap(), semel::store::Fenced::Applied);
            }
        });
    }
    tasks.join_all().await;
    println!("{url}: {many} records after {:.1?}", filling.elapsed());
    let operations = Operations::new(store.clone(), Log::new(store.clone(), DEFAULT_RETENTION));
    for (name, filter) in [
        ("all", &[][..]),
        ("stuck", &[("stuck", "true")]),
        (
            "unknown of a service",
            &[("state", "unknown"), ("service", "shop")],
        ),
        ("completed", &[("state", "completed")]),
        (
            "completed, one in ten",
            &[("state", "completed"), ("service", "rare")],
        ),
        (
            "completed, none",
            &[("state", "completed"), ("service", "nobody")],
        ),
    ] {
        let filter = Filter::of(filter.iter().copied()).unwrap();
        let (mut from, mut seen, mut pages) = (
            Some(Position::default()),
            std::collections::HashSet::new(),
            0,
        );
        let (mut slowest, begun) = (std::time::Duration::ZERO, std::time::Instant::now());
        while let Some(position) = from {
            let asked = std::time::Instant::now();
            let found = operations.list(&filter, &position, 100).await.unwrap();
            slowest = slowest.max(asked.elapsed());
            pages += 1;
            // Each of four sections may go over it by a page of the store's.
            assert!(found.looked_at <= 2_400, "{}", found.looked_at);
            assert!(name != "all" || pages > 1 || !found.entries.is_empty());
            for entry in found.entries {
                assert!(seen.insert(entry.label.digest), "twice");
            }
            // Not all pages of a million, each time.
            from = found.next.filter(|_| many < 10_000 || pages < 50);
        }
        let each = begun.elapsed() / pages;
        println!(
            "{name}: {pages} pages, {each:.1?} each, the slowest {slowest:.1?}, {} records",
            seen.len()
        );
        if many < 10_000 {
            let is_unknown = |nth: &usize| nth % UNKNOWN == 7;
            let all = 0..many;
            let expected = match name {
                "stuck" | "unknown of a service" => all.filter(is_unknown).count(),
                "all" => many,
                "completed" => all.filter(|nth| !is_unknown(nth)).count(),
                "completed, none" => 0,
                _ => all
                    .filter(|nth| !is_unknown(nth) && nth.is_multiple_of(10))
                    .count(),
            };
            assert_eq!(seen.len(), expected, "{name}");
            // More than a page looks at.
            assert!(name != "completed, none" || pages > 1);
        }
    }
    let begun = std::time::Instant::now();
    for nth in 0..100 {
        operations
            .find(identity(nth * 13 % many).digest())
            .await
            .unwrap();
    }
    println!("a look-up: {:.1?}", begun.elapsed() / 100);
    store.close().await.unwrap();
}
