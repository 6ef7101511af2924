//! Round trips per step, counted by a proxy before the server.

use std::time::Duration;

use semel::store::{Claim, Fenced, OnLost, Retention, Store as _, StoreExt as _};
use semel::{FinishedStep, Outcome};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Nats, Server as _};

use super::{LONG, acquire, complete, identity, open, request, unique, with_bucket};

/// Round trips of what is done, by the one connection through the proxy.
async fn trips<T>(proxy: &Proxy, step: impl Future<Output = T>) -> (u64, T) {
    let before = proxy.round_trips();
    let done = step.await;
    (proxy.round_trips() - before, done)
}

/// The median: now and then a ping of the driver is among them.
fn usual(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_takes_what_the_documentation_says() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bucket = unique("trips");
    let url = with_bucket(&server.url_through(proxy.address()), &bucket);
    let store = open(&url).await;
    let other = open(&with_bucket(&server.url(), &bucket)).await;

    let mut counts: [Vec<u64>; 11] = Default::default();
    for round in 0..15 {
        let new = identity(&format!("new-{round}"));
        let (n, claim) = trips(&proxy, store.claim(&new, &request(LONG))).await;
        counts[0].push(n);
        let Claim::Acquired(won) = claim.unwrap() else {
            panic!()
        };
        let (n, done) = trips(&proxy, store.renew(new.digest(), &won.token, LONG * 2)).await;
        counts[1].push(n);
        assert_eq!(done.unwrap(), Fenced::Applied);
        let step = FinishedStep::new("charged", b"42").unwrap();
        let kept = store.keep_step(new.digest(), &won.token, &step, 0);
        let (n, done) = trips(&proxy, kept).await;
        counts[2].push(n);
        assert_eq!(done.unwrap(), Fenced::Applied);
        let (n, done) = trips(&proxy, complete(&store, &new, &won.token)).await;
        counts[3].push(n);
        assert_eq!(done.unwrap(), Fenced::Applied);
        let (n, replay) = trips(&proxy, store.claim(&new, &request(LONG))).await;
        counts[4].push(n);
        assert!(matches!(replay.unwrap(), Claim::Completed { .. }));

        let freed = identity(&format!("freed-{round}"));
        let token = acquire(&store, &freed, LONG).await;
        let (n, done) = trips(&proxy, store.abandon(freed.digest(), &token)).await;
        counts[5].push(n);
        assert_eq!(done.unwrap(), Fenced::Applied);

        // Records that this handle has not met.
        let met = identity(&format!("met-{round}"));
        let token = acquire(&other, &met, LONG).await;
        let (n, rival) = trips(&proxy, store.claim(&met, &request(LONG))).await;
        counts[6].push(n);
        assert!(matches!(rival.unwrap(), Claim::InFlight { .. }));
        let (n, done) = trips(&proxy, complete(&store, &met, &token)).await;
        counts[7].push(n);
        assert_eq!(done.unwrap(), Fenced::Applied);

        let replayed = identity(&format!("replayed-{round}"));
        let token = acquire(&other, &replayed, LONG).await;
        let _ = complete(&other, &replayed, &token).await.unwrap();
        let (n, replay) = trips(&proxy, store.claim(&replayed, &request(LONG))).await;
        counts[8].push(n);
        assert!(matches!(replay.unwrap(), Claim::Completed { .. }));
        let (n, _) = trips(&proxy, store.get(replayed.digest())).await;
        counts[9].push(n);

        let lapsed = identity(&format!("lapsed-{round}"));
        acquire(&store, &lapsed, Duration::ZERO).await;
        let (n, taken) = trips(&proxy, store.claim(&lapsed, &request(LONG))).await;
        counts[10].push(n);
        assert!(matches!(taken.unwrap(), Claim::Acquired(_)));
    }
    let names = [
        ("claim, new", 1),
        ("renew", 1),
        ("keep a step", 1),
        ("complete", 1),
        ("replay, known", 1),
        ("abandon", 1),
        ("in flight, not met before", 1),
        ("complete what another handle claimed", 2),
        ("replay, not met before", 1),
        ("get", 1),
        ("takeover", 2),
    ];
    for ((name, wanted), counts) in names.into_iter().zip(counts) {
        println!("{name}: {counts:?}");
        // Where two requests are under way at once, the driver may send them in two pieces, and the
        // proxy sees an answer between.
        let found = if name.contains("not met") {
            counts.into_iter().min().unwrap()
        } else {
            usual(counts)
        };
        assert_eq!(found, wanted, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purging_reads_what_is_due_and_no_more() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let bucket = unique("purge");
    let url = with_bucket(&server.url_through(proxy.address()), &bucket);
    let writer = open(&with_bucket(&server.url(), &bucket)).await;
    let store = open(&url).await;
    for n in 0..3_000 {
        let identity = identity(&format!("kept-{n}"));
        let token = acquire(&writer, &identity, LONG).await;
        let _ = complete(&writer, &identity, &token).await.unwrap();
    }
    let mut costs = Vec::new();
    for _ in 0..2 {
        let before = proxy.answered_bytes();
        let (trips, purged) = trips(&proxy, store.purge(1_000)).await;
        assert_eq!(purged.unwrap().removed, 0);
        costs.push((trips, proxy.answered_bytes() - before));
    }
    println!(
        "round trips and bytes of a purge among 3,000 records that stay, and of the next: {costs:?}"
    );
    // A busy machine takes what comes in more pieces, and counts more round trips.
    let (first, again) = (costs[0].1, costs[1].1);
    assert!(
        again * 20 < first,
        "{again} bytes to read nothing, {first} to read all"
    );

    let (brief, void) = (Retention::new(Duration::ZERO), Outcome::void());
    for n in 0..40 {
        let identity = identity(&format!("brief-{n}"));
        let token = acquire(&writer, &identity, LONG).await;
        let done = writer.complete(identity.digest(), &token, &void, brief);
        let _ = done.await.unwrap();
    }
    // The two handles know the server's time to within a round trip.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let purged = store.purge(1_000).await.unwrap();
    assert_eq!((purged.removed, purged.more), (40, false));
}

/// A purge deletes by sequence, a claim writes at a revision: whatever the order, no claim is lost
/// and no identity has two holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_lost_to_a_purge() {
    let server = Nats::start().unwrap();
    let url = with_bucket(&server.url(), &unique("race"));
    let stores = [open(&url).await, open(&url).await];
    let stores: &'static [_; 2] = Box::leak(Box::new(stores));
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    let purging = [0, 1].map(|n| {
        tokio::spawn(async move {
            let mut removed = 0;
            while tokio::time::Instant::now() < until {
                removed += stores[n].purge(10).await.unwrap().removed;
            }
            removed
        })
    });
    let claiming: Vec<_> = (0..16)
        .map(|caller| {
            tokio::spawn(async move {
                let identity = identity(&format!("shared-{}", caller % 8));
                let (mut won, mut fence, void) = (0, 0, Outcome::void());
                while tokio::time::Instant::now() < until {
                    let store = &stores[caller % 2];
                    let hold = semel::store::ClaimRequest {
                        on_lost: OnLost::Hold,
                        ..request(LONG)
                    };
                    match store.claim(&identity, &hold).await.unwrap() {
                        Claim::Acquired(acquired) => {
                            assert!(acquired.token.fence.0 > fence, "a fence went back");
                            fence = acquired.token.fence.0;
                            won += 1;
                            let done = store.complete(
                                identity.digest(),
                                &acquired.token,
                                &void,
                                Retention::new(Duration::ZERO),
                            );
                            // Nobody else may have come between.
                            assert_eq!(done.await.unwrap(), Fenced::Applied);
                        }
                        Claim::InFlight { .. } => {}
                        other => panic!("{other:?}"),
                    }
                    // So that a purge finds what was completed.
                    tokio::time::sleep(Duration::from_millis(caller as u64 % 7 * 3)).await;
                }
                won
            })
        })
        .collect();
    let (mut won, mut removed) = (0, 0);
    for task in claiming {
        won += task.await.unwrap();
    }
    for task in purging {
        removed += task.await.unwrap();
    }
    println!("{won} claims won, {removed} records purged meanwhile");
    assert!(won > 50 && removed > 10, "{won} won, {removed} removed");
}

/// A duplicate in the same process that is refused takes nothing from the attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempts_steps_take_one_beside_a_rival_of_its_own_handle() {
    let server = Nats::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = with_bucket(&server.url_through(proxy.address()), &unique("rivals"));
    let store = open(&url).await;
    let mut counts = Vec::new();
    for round in 0..25 {
        let one = identity(&format!("one-{round}"));
        let requests = [request(LONG), request(LONG)];
        let [first, second] = requests.each_ref().map(|asked| store.claim(&one, asked));
        let (first, second) = tokio::join!(first, second);
        let claims = [first.unwrap(), second.unwrap()];
        let won = claims.iter().find_map(|claim| match claim {
            Claim::Acquired(won) => Some(won.token),
            _ => None,
        });
        let (n, done) = trips(&proxy, complete(&store, &one, &won.unwrap())).await;
        assert_eq!(done.unwrap(), Fenced::Applied);
        counts.push(n);
    }
    assert_eq!(usual(counts), 1);
}
