//! Versioned records: what they cost, what a broken connection does, and inside transactions.

use std::sync::Arc;
use std::time::Duration;

use semel::guard::{Done, Guard, RunError, TransactOptions};
use semel::store::{Nonce, Store as _};
use semel::transaction::{Isolation, Transactional as _};
use semel::versioned::{
    Expected, NaturalKey, Retries, Version, Versioned, VersionedIn as _, VersionedStore as _,
    WriteError, update,
};
use semel::{Fingerprint, Scope, StoreErrorKind};
use semel_stores::{OpenError, OpenOptions, PostgresOptions, Schema, migrate};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::{Kind, Postgres, Server as _, shared};
use tokio::sync::Barrier;

use super::{acquire, client, complete, identity, open, replayed, table, url};

fn key(name: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["tests"]), name)
}

fn number(found: Option<&Versioned>) -> u64 {
    found.map_or(0, |found| {
        String::from_utf8_lossy(&found.value).parse().unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_one_round_trip() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    for parameters in ["listen=off", "listen=off&prepared=off"] {
        let store = open(&format!(
            "{url}?table={}&connections=1&{parameters}",
            table()
        ))
        .await;
        let key = key("a");
        store.read(&key).await.unwrap();
        macro_rules! trips {
            ($step:expr) => {{
                let before = proxy.round_trips();
                let answer = $step.await;
                let taken = proxy.round_trips() - before;
                assert_eq!(taken, 1, "{}", stringify!($step));
                answer
            }};
        }
        let at = |version| Expected::Version(Version(version));
        trips!(store.write(&key, Expected::Absent, "1".into())).unwrap();
        trips!(store.write(&key, at(1), "2".into())).unwrap();
        trips!(store.write(&key, Expected::Any, "3".into())).unwrap();
        trips!(store.write(&key, at(1), "no".into())).unwrap_err();
        trips!(store.write(&key, Expected::Absent, "no".into())).unwrap_err();
        assert_eq!(
            trips!(store.read(&key)).unwrap().unwrap().version,
            Version(3)
        );
        trips!(store.delete(&key, at(3))).unwrap();
        trips!(store.delete(&key, Expected::Any)).unwrap();

        let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
        trips!(store.write_in(&mut tx, &key, Expected::Absent, "5".into())).unwrap();
        trips!(store.read_in(&mut tx, &key)).unwrap();
        trips!(store.write_in(&mut tx, &key, at(1), "no".into())).unwrap_err();
        store.commit(tx).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_is_seen_writes_nothing() {
    let server = Postgres::start(&["autovacuum=off"]).unwrap();
    let store = open(&server.url()).await;
    let key = key("a");
    store.write(&key, Expected::Any, "1".into()).await.unwrap();
    let client = client(&server.url()).await;
    let row = async || -> String {
        let sql = "SELECT ctid::text FROM semel_records_versioned";
        client.query_one(sql, &[]).await.unwrap().get(0)
    };
    let before = row().await;
    for expected in [Expected::Absent, Expected::Version(Version(7))] {
        store.write(&key, expected, "no".into()).await.unwrap_err();
        store.delete(&key, expected).await.unwrap_err();
    }
    assert_eq!(row().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_asked_for_again_and_found() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = server.url_through(proxy.address());
    let store = open(&format!("{url}?connections=1&listen=off")).await;
    let key = key("a");
    store
        .write(&key, Expected::Absent, "0".into())
        .await
        .unwrap();
    for version in 2..10 {
        let expected = match version % 2 {
            0 => Expected::Version(Version(version - 1)),
            _ => Expected::Any,
        };
        let before = proxy.hits();
        proxy.once(Fault::CutAnswers);
        let written = store.write(&key, expected, "again".into()).await;
        assert_eq!(written.unwrap(), Version(version));
        assert_eq!(proxy.hits(), before + 1);
    }
    // Under the caller's own nonce after an error that says that nobody knows.
    let writer = Nonce::random().unwrap();
    let expected = Expected::Version(Version(9));
    proxy.set(Fault::SwallowAnswers);
    let impatient = tokio::time::timeout(
        Duration::from_millis(300),
        store.write_as(&key, expected, "10".into(), writer),
    );
    impatient.await.unwrap_err();
    proxy.set(Fault::Refuse);
    proxy.set(Fault::None);
    let version = store.write_as(&key, expected, "10".into(), writer).await;
    assert_eq!(version.unwrap(), Version(10));
    // Another writer is a rival.
    let rival = store.write(&key, expected, "10".into()).await;
    assert!(
        matches!(rival, Err(WriteError::ConcurrentModification { .. })),
        "{rival:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_versioned_record_keeps_nobody_else_waiting() {
    // Who waits for a lock gives up after half of that.
    let store = Arc::new(open(&format!("{}&timeout=60s", url())).await);
    let key = key("locked");
    store.write(&key, Expected::Any, "0".into()).await.unwrap();
    let mut tx = store.begin(Isolation::ReadCommitted).await.unwrap();
    store.read_in(&mut tx, &key).await.unwrap();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (store, key) = (store.clone(), key.clone());
            tokio::spawn(async move { store.write(&key, Expected::Any, "1".into()).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    for n in 0..10 {
        let key = format!("claim-{n}");
        let token = acquire(&store, &key).await.token;
        let _ = complete(&store, &key, &token).await;
    }
    assert!(waiting.iter().all(|one| !one.is_finished()));
    store.commit(tx).await.unwrap();
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    assert_eq!(store.read(&key).await.unwrap().unwrap().version, Version(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_committed_with_its_operation() {
    let store = Arc::new(open(&url()).await);
    let guard = Guard::from(store.clone());
    let account = key("account");
    let deposit = |refuse: bool| {
        let (store, account) = (store.clone(), account.clone());
        move |_, mut tx: semel::transaction::Lent<semel_stores::PostgresTransaction>| {
            let (store, account) = (store.clone(), account.clone());
            async move {
                let found = store.read_in(&mut tx, &account).await?;
                let expected = found
                    .as_ref()
                    .map_or(Expected::Absent, |found| Expected::Version(found.version));
                let sum = (number(found.as_ref()) + 100).to_string();
                store
                    .write_in(&mut tx, &account, expected, sum.into())
                    .await?;
                if refuse {
                    // A stale write that the work does not want to live with.
                    store
                        .write_in(&mut tx, &account, Expected::Absent, "no".into())
                        .await?;
                }
                Ok::<_, WriteError>("deposited".to_owned())
            }
        }
    };
    let (asked, options) = (Fingerprint::of(b"100"), TransactOptions::default());
    let id = identity("deposit-1");
    let refused = guard.transact((&id, asked), options, deposit(true)).await;
    let Err(RunError::Failed(refused)) = refused else {
        panic!("{refused:?}");
    };
    let stale = refused.into_error();
    assert!(matches!(
        stale,
        Some(WriteError::ConcurrentModification { .. })
    ));
    assert_eq!(store.read(&account).await.unwrap(), None);
    for turn in 0..3 {
        let ran = guard
            .transact((&id, asked), options, deposit(false))
            .await
            .unwrap();
        assert_eq!(ran == Done::Fresh("deposited".to_owned()), turn == 0);
    }
    let found = store.read(&account).await.unwrap().unwrap();
    assert_eq!((found.version, &*found.value), (Version(1), &b"100"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_writers_lose_nothing_within_the_default_bound() {
    const CROWD: usize = 32;
    const EACH: usize = 5;
    let store = Arc::new(open(&url()).await);
    let start = Arc::new(Barrier::new(CROWD));
    let writers: Vec<_> = (0..CROWD)
        .map(|_| {
            let (store, start) = (store.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                let mut most = 0;
                for _ in 0..EACH {
                    let mut tries = 0;
                    let add = |found: Option<&Versioned>| {
                        tries += 1;
                        Ok::<_, WriteError>((number(found) + 1).to_string().into())
                    };
                    update(&*store, &key("sum"), Retries::default(), add)
                        .await
                        .unwrap();
                    most = most.max(tries);
                }
                most
            })
        })
        .collect();
    let mut most = 0;
    for writer in writers {
        most = most.max(writer.await.unwrap());
    }
    println!("{} updates by {CROWD}: {most} tries at most", CROWD * EACH);
    let found = store.read(&key("sum")).await.unwrap().unwrap();
    let updates = (CROWD * EACH) as u64;
    assert_eq!(number(Some(&found)), updates);
    assert_eq!(found.version, Version(updates));
}

/// Transfers between two records in either direction, in transactions that meet: what the database
/// rolls back is run again, and nothing is lost.
async fn transfers(isolation: Isolation) {
    // Else a deadlock is looked for after a second.
    let url = format!("{}&options=-c%20deadlock_timeout%3D20ms", url());
    let store = Arc::new(open(&url).await);
    let options = TransactOptions::default()
        .with_isolation(isolation)
        .with_retries(50);
    let (a, b) = (key("a"), key("b"));
    for one in [&a, &b] {
        store
            .write(one, Expected::Absent, "1000".into())
            .await
            .unwrap();
    }
    const CROWD: usize = 6;
    let start = Arc::new(Barrier::new(CROWD));
    let tasks: Vec<_> = (0..CROWD)
        .map(|n| {
            let (store, start) = (store.clone(), start.clone());
            let (from, to) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let (from, to) = (from.clone(), to.clone());
            tokio::spawn(async move {
                let guard = Guard::from(store.clone());
                start.wait().await;
                let work = move |_, mut tx: semel::transaction::Lent<_>| {
                    let (store, from, to) = (store.clone(), from.clone(), to.clone());
                    async move {
                        for (key, more) in [(&from, false), (&to, true)] {
                            let found = store.read_in(&mut tx, key).await?;
                            let sum = number(found.as_ref());
                            let sum = if more { sum + 10 } else { sum - 10 };
                            let expected = Expected::Version(found.unwrap().version);
                            let value = sum.to_string().into();
                            store.write_in(&mut tx, key, expected, value).await?;
                            // Others come in between.
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Ok::<_, WriteError>(())
                    }
                };
                let id = identity(&format!("transfer-{n}"));
                guard
                    .transact((&id, Fingerprint::of(b"10")), options, work)
                    .await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    for one in [&a, &b] {
        let found = store.read(one).await.unwrap().unwrap();
        assert_eq!(number(Some(&found)), 1000);
        assert_eq!(found.version, Version(1 + CROWD as u64));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_meet_lose_nothing() {
    transfers(Isolation::ReadCommitted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serializable_transactions_that_meet_lose_nothing() {
    transfers(Isolation::Serializable).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_table_is_told_to_migrate() {
    let url = url();
    let store = open(&url).await;
    let token = acquire(&store, "kept").await.token;
    let _ = complete(&store, "kept", &token).await;
    store.close().await.unwrap();
    let table = url.split("table=").nth(1).unwrap();
    let drop = format!("DROP TABLE {table}_versioned");
    client(&url).await.batch_execute(&drop).await.unwrap();
    for schema in [Schema::Expect, Schema::Create] {
        let options = PostgresOptions::from_url(&url).unwrap();
        let error = options.schema(schema).open().await.unwrap_err();
        assert!(matches!(&error, OpenError::Store(e) if e.kind() == StoreErrorKind::Config));
        let told = error.to_string();
        assert!(told.contains(&format!("{table}_versioned")), "{told}");
        assert!(told.contains("semel migrate"), "{told}");
    }
    let done = migrate(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!((done.from, done.to), (Some(0), 2));
    let store = open(&url).await;
    assert_eq!(replayed(&store, "kept").await, "kept".as_bytes());
    store
        .write(&key("a"), Expected::Absent, "1".into())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_is_told_what_to_grant() {
    let server = shared(Kind::Postgres).unwrap();
    let (table, role) = (table(), table());
    open(&format!("{server}?table={table}")).await;
    let admin = client(&server).await;
    admin
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT ON {table}_versions, {table}_versioned TO {role}"
        ))
        .await
        .unwrap();
    let guest = server.replacen("semel@", &format!("{role}@"), 1);
    let options = PostgresOptions::from_url(&format!("{guest}?table={table}")).unwrap();
    let store = options.open().await.unwrap();
    assert_eq!(store.read(&key("a")).await.unwrap(), None);
    match store.write(&key("a"), Expected::Any, "1".into()).await {
        Err(WriteError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
            assert!(error.to_string().contains("grant"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Or the server keeps the role, and what it was granted, for whoever shares it.
    let gone = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    admin.batch_execute(&gone).await.unwrap();
}
