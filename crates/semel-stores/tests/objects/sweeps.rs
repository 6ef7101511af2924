//! What the sweep removes, and what it never does.

use std::sync::atomic::Ordering::SeqCst;

use semel::purge::Purger;
use semel::record::Change;
use semel::transaction::{Isolation, Transactional as _};
use semel_stores::SqliteStore;

use super::*;

/// Writes the object, and ends before the record is changed.
async fn crashed(bench: &Bench, identity: &Identity, token: &Token, outcome: &Outcome) {
    bench.objects.hangs.store(true, SeqCst);
    tokio::select! {
        _ = complete(&bench.store, identity, token, outcome) => panic!("it does not end"),
        () = bench.objects.hung.notified() => {}
    }
    bench.objects.hangs.store(false, SeqCst);
}

/// It stays while the attempt may still be completed, and goes when another took over.
#[tokio::test]
async fn an_object_that_no_record_names_is_removed_once_none_can() {
    let bench = Bench::new();
    let mine = identity("crashed");
    let token = begun(&bench.store, &mine).await;
    // Where the objects are is known by now.
    completed(&bench.store, "other", &large("other")).await;
    crashed(&bench, &mine, &token, &large("before the crash")).await;
    assert_eq!(bench.paths().await.len(), 2);
    assert_eq!(bench.store.sweep().await.unwrap(), 0);
    bench.clock.advance(LEASE * 2);
    assert_eq!(bench.store.sweep().await.unwrap(), 0);
    let next = begun(&bench.store, &mine).await;
    let after = large("after it");
    crashed(&bench, &mine, &next, &after).await;
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
    assert_eq!(
        complete(&bench.store, &mine, &next, &after).await,
        Fenced::Applied
    );
    assert_eq!(bench.store.sweep().await.unwrap(), 0);
    for (key, kept) in [("crashed", after), ("other", large("other"))] {
        assert_eq!(replayed(&bench.store, key).await, kept);
    }
}

/// What is not old enough is not looked at.
#[tokio::test]
async fn what_is_new_is_left_alone() {
    let bench = Bench::new();
    completed(&bench.store, "k", &large("k")).await;
    bench.clock.advance(Duration::from_hours(1_000));
    let day = Offloaded::new(
        bench.inner.clone(),
        Objects::new(bench.objects.clone()),
        ABOVE,
    );
    assert_eq!(day.sweep().await.unwrap(), 0);
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
}

/// Objects of purged records go with the purges, part by part; those that are replayed stay, and those of
/// another store in the same place, which knows nothing of these records.
#[tokio::test]
async fn purged_records_leave_no_objects_and_others_keep_theirs() {
    let bench = Bench::new();
    let neighbour = Bench::on(bench.objects.clone());
    for nth in 0..20 {
        completed(&bench.store, &format!("old-{nth}"), &large("old")).await;
        completed(&neighbour.store, &format!("old-{nth}"), &large("neighbour")).await;
    }
    bench.clock.advance(Duration::from_hours(1_000));
    for nth in 0..20 {
        completed(&bench.store, &format!("new-{nth}"), &large("new")).await;
    }
    assert_eq!(bench.paths().await.len(), 60);
    let purger = Purger::new(bench.store.clone());
    for _ in 0..256 {
        purger.once().await.unwrap();
    }
    assert_eq!(bench.paths().await.len(), 40);
    assert_eq!(bench.store.sweep().await.unwrap(), 0);
    for nth in 0..20 {
        assert_eq!(
            replayed(&bench.store, &format!("new-{nth}")).await,
            large("new")
        );
        let key = format!("old-{nth}");
        assert_eq!(replayed(&neighbour.store, &key).await, large("neighbour"));
    }
}

/// While attempts are taken over, completed, extended and erased all the time, a sweep that runs all the
/// time, and looks at the newest too, removes nothing that is replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_beside_the_traffic_takes_nothing_that_is_needed() {
    let bench = Arc::new(Bench::new());
    // As a guard does, which holds a lease for a minute at least.
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let bench = bench.clone();
        tasks.spawn(async move {
            for nth in 0..100 {
                let key = format!("{task}-{nth}");
                let long = large(&key);
                completed(&bench.store, &key, &long).await;
                assert_eq!(replayed(&bench.store, &key).await, long);
                match nth % 3 {
                    0 => drop(amended(&bench.store, &key, erased()).await.unwrap()),
                    1 => {
                        let read = outcome(&entry(&bench.store, &key).await).clone();
                        assert_eq!(read, long);
                        assert_eq!(kept(&bench.store, &key, read).await, Fenced::Applied);
                        assert_eq!(replayed(&bench.store, &key).await, long);
                    }
                    _ => assert_eq!(replayed(&bench.store, &key).await, long),
                }
            }
        });
    }
    let sweeping = tokio::spawn({
        let bench = bench.clone();
        async move {
            loop {
                bench.store.sweep().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    sweeping.abort();
    for task in 0..4 {
        for nth in (0..100).filter(|nth| nth % 3 != 0) {
            let key = format!("{task}-{nth}");
            assert_eq!(replayed(&bench.store, &key).await, large(&key));
        }
    }
    bench.store.sweep().await.unwrap();
    assert_eq!(bench.paths().await.len(), 4 * 66);
}

/// Amended, and replayed for a day more.
async fn kept(store: &impl Store, key: &str, outcome: Outcome) -> Fenced {
    let entry = entry(store, key).await;
    let resolution = Resolution {
        verdict: Verdict::Amended {
            outcome,
            retention: Retention::ORDER,
        },
        by: "ada".into(),
        reason: "asked".into(),
        fence: entry.record.token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let done = store.resolve(&entry.label.digest, &resolution).await;
    done.unwrap()
}

/// A completion in a transaction that is rolled back leaves an object, which goes with its record.
#[tokio::test]
async fn what_a_transaction_left_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!(
        "sqlite:{}?schema=create",
        directory.path().join("records.db").display()
    );
    let inner = Arc::new(SqliteStore::open(&url).await.unwrap());
    let objects = Arc::new(InMemory::new());
    let place = Objects::new(objects.clone());
    let store = Offloaded::new(inner.clone(), place, ABOVE).with_age(Duration::ZERO);
    let mine = identity("k");
    let token = begun(&store, &mine).await;
    let day = Retention::ORDER;
    let written = async |text: &str| {
        let change = Change::complete(&token, &large(text), day);
        let mut transaction = store.begin(Isolation::default()).await.unwrap();
        let done = store.change_in(&mut transaction, mine.digest(), &change);
        assert_eq!(done.await.unwrap(), Fenced::Applied);
        transaction
    };
    let back = written("rolled back").await;
    store.rollback(back).await;
    assert_eq!(entry(&store, "k").await.record.state, State::InFlight);
    let committed = written("committed").await;
    store.commit(committed).await.unwrap();
    assert_eq!(replayed(&store, "k").await, large("committed"));
    assert_eq!(paths(&*objects).await.len(), 2);
    // The attempt that wrote it is the record's still.
    assert_eq!(store.sweep().await.unwrap(), 0);
    assert_eq!(
        kept(&store, "k", Outcome::success(b"short")).await,
        Fenced::Applied
    );
    assert_eq!(paths(&*objects).await, []);
}
