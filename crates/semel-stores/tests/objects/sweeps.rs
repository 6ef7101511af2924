//! What the sweep removes, and what it never does.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use semel::purge::Purger;
use semel::record::Change;
use semel::transaction::{Isolation, Transactional as _};
use semel::{Clock as _, SystemClock};
use semel_stores::SqliteStore;
use tokio::sync::Barrier;

use super::*;

/// As programs have it, which wait for a day.
fn patient(bench: &Bench) -> Offloaded<Clocked> {
    let place = Objects::new(bench.objects.clone());
    Offloaded::new(bench.inner.clone(), place, ABOVE)
}

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
    assert_eq!(patient(&bench).sweep().await.unwrap(), 0);
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
}

/// A store that loses its latest writes has the record again that names the object before: that is kept for a
/// day, however old it is itself.
#[tokio::test]
async fn what_an_amendment_replaced_stays_for_a_day() {
    const DAY: u64 = 24 * 3600;
    for (days, is_kept) in [(0, true), (2, false)] {
        let bench = Bench::new();
        let now = Duration::from_micros(SystemClock::default().now().as_micros());
        bench.clock.advance(now - Duration::from_secs(days * DAY));
        let store = patient(&bench);
        completed(&store, "k", &large("k")).await;
        let before = outcome(&entry(&bench.inner, "k").await).clone();
        assert_eq!(kept(&store, "k", large("k")).await, Fenced::Applied);
        bench.objects.age.store(10 * DAY, SeqCst);
        assert_eq!(store.sweep().await.unwrap(), usize::from(!is_kept));
        if is_kept {
            assert_eq!(kept(&bench.inner, "k", before).await, Fenced::Applied);
        }
        assert_eq!(replayed(&store, "k").await, large("k"));
    }
}

/// Those of attempts that were released, lost or still run, and of records that are gone; of others nothing.
#[tokio::test]
async fn an_erased_scope_leaves_nothing_of_its_attempts() {
    let bench = Bench::new();
    let store = patient(&bench);
    completed(&store, "kept", &large("kept")).await;
    completed(&store, "purged", &large("purged")).await;
    bench.clock.advance(Duration::from_hours(1_000));
    assert_eq!(bench.inner.purge(10).await.unwrap().removed, 2);
    completed(&store, "kept", &large("kept")).await;
    let bob = Identity::new(Scope::new(["bob"]), "pay", Key::new("k").unwrap());
    for identity in [&identity("released"), &bob] {
        let token = begun(&store, identity).await;
        crashed(&bench, identity, &token, &large("released")).await;
        let released = store.abandon(identity.digest(), &token).await;
        assert_eq!(released.unwrap(), Fenced::Applied);
    }
    let (lost, runs) = (identity("lost"), identity("runs"));
    let token = begun(&store, &lost).await;
    crashed(&bench, &lost, &token, &large("lost")).await;
    let is_lost = store.mark_unknown(lost.digest(), &token).await;
    assert_eq!(is_lost.unwrap(), Fenced::Applied);
    let token = begun(&store, &runs).await;
    crashed(&bench, &runs, &token, &large("runs")).await;
    assert_eq!(bench.paths().await.len(), 7);

    assert_eq!(store.sweep().await.unwrap(), 0);
    let erase = async || {
        let is_of_acme = |label: &Label| label.scope.segments().eq(["acme"]);
        store.sweep_erased(is_of_acme).await.unwrap()
    };
    // The purged ones, which might have been of the scope, and what was released.
    assert_eq!(erase().await, 3);
    // A minute later nobody is about to complete what was written before; who does, writes it again.
    bench.objects.age.store(120, SeqCst);
    assert_eq!(erase().await, 2);
    assert_eq!(bench.paths().await.len(), 2);
    assert_eq!(
        complete(&store, &runs, &token, &large("runs")).await,
        Fenced::Applied
    );
    for key in ["runs", "kept"] {
        assert_eq!(replayed(&store, key).await, large(key));
    }
}

/// What an attempt wrote that was released is not needed, though no later attempt came.
#[tokio::test]
async fn what_was_released_is_swept() {
    let bench = Bench::new();
    let mine = identity("k");
    let token = begun(&bench.store, &mine).await;
    completed(&bench.store, "other", &large("other")).await;
    crashed(&bench, &mine, &token, &large("k")).await;
    assert_eq!(bench.store.sweep().await.unwrap(), 0);
    let released = bench.store.abandon(mine.digest(), &token).await;
    assert_eq!(released.unwrap(), Fenced::Applied);
    assert_eq!(bench.store.sweep().await.unwrap(), 1);
}

/// A sweep that fails does not hide how many records were purged.
#[tokio::test]
async fn a_purge_counts_though_its_sweep_fails() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let bench = Bench::new();
    let store = patient(&bench).with_report(|error| {
        assert!(error.to_string().contains("cannot be listed"), "{error}");
        TOLD.fetch_add(1, SeqCst);
    });
    completed(&store, "k", &large("k")).await;
    bench.clock.advance(Duration::from_hours(1_000));
    bench.objects.no_list.store(true, SeqCst);
    assert_eq!(store.purge(10).await.unwrap().removed, 1);
    assert_eq!(TOLD.load(SeqCst), 1);
}

/// A place may take long for each.
#[tokio::test]
async fn a_sweep_removes_several_objects_at_once() {
    let bench = Bench::new();
    for nth in 0..16 {
        completed(&bench.store, &nth.to_string(), &large("old")).await;
    }
    bench.clock.advance(Duration::from_hours(1_000));
    *bench.objects.together.lock().unwrap() = Some(Arc::new(Barrier::new(16)));
    let swept = tokio::time::timeout(Duration::from_secs(30), bench.store.sweep()).await;
    assert_eq!(swept.unwrap().unwrap(), 16);
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
    let retention = Retention::ORDER;
    let resolution = resolution(&entry, Verdict::Amended { outcome, retention });
    let done = store.resolve(&entry.label.digest, &resolution).await;
    done.unwrap()
}

/// Others wait for its locks: nothing is uploaded meanwhile, whatever the place would say to it.
#[tokio::test]
async fn what_is_completed_in_a_transaction_is_in_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("records.db");
    let url = format!("sqlite:{}?schema=create", records.display());
    let inner = Arc::new(SqliteStore::open(&url).await.unwrap());
    let objects = Arc::new(Faulty::default());
    let store = Offloaded::new(inner, Objects::new(objects.clone()), ABOVE);
    let mine = identity("k");
    let token = begun(&store, &mine).await;
    objects.hangs.store(true, SeqCst);
    let change = Change::complete(&token, &large("committed"), Retention::ORDER);
    let mut transaction = store.begin(Isolation::default()).await.unwrap();
    let done = store.change_in(&mut transaction, mine.digest(), &change);
    let done = tokio::time::timeout(Duration::from_secs(30), done).await;
    assert_eq!(done.unwrap().unwrap(), Fenced::Applied);
    store.commit(transaction).await.unwrap();
    assert_eq!(replayed(&store, "k").await, large("committed"));
    assert_eq!(paths(&*objects).await, []);
}
