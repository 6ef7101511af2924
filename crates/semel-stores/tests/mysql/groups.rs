//! Steps that wait share a packet and a commit, and stay what each is by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::record::Change;
use semel::store::{Claim, Fenced, Nonce, OnLost, Refusal, Retention, StoreExt as _, Token};
use semel::transaction::{Isolation, Transactional as _};
use semel::{Outcome, Store as _, StoreErrorKind};
use semel_stores::{MysqlOptions, MysqlStore, Schema};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::Server as _;
use sqlx::Row as _;
use tokio::task::JoinHandle;

use super::{
    LONG, acquire, acquired, ask, claim, common, complete, identity, link, open, options, own,
    request, table,
};

type Store = Arc<MysqlStore>;

/// Runs `work` for so many at once, on a runtime whose first connections are busy by then.
fn all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    store: &Store,
    count: usize,
    work: impl Fn(Store, usize) -> F,
) -> Vec<JoinHandle<T>> {
    let spawn = |n| tokio::spawn(work(Arc::clone(store), n));
    (0..count).map(spawn).collect()
}

async fn done<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut all = Vec::with_capacity(tasks.len());
    for task in tasks {
        all.push(task.await.unwrap());
    }
    all
}

async fn tokens(store: &Store, count: usize) -> Vec<Token> {
    let acquire = |store: Store, n: usize| async move { acquire(&store, &n.to_string()).await };
    done(all(store, count, acquire)).await
}

/// How often the server did this.
async fn status(url: &str, name: &str) -> i64 {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let count: String = ask(&mut link(url).await, sql).await[0].get(1);
    count.parse().unwrap()
}

/// Claims of new and known identities, replays, renewals, steps of all kinds and reads at once.
#[tokio::test(flavor = "multi_thread")]
async fn each_gets_its_own_answer() {
    let server = own(&[]).await;
    let store: Store = Arc::new(open(&server.url()).await);
    // Two claims on each of 100 identities: one wins, and the other learns its fence.
    let claims = done(all(&store, 200, |store, n| async move {
        (n / 2, claim(&store, &(n / 2).to_string()).await.unwrap())
    }))
    .await;
    let mut won = vec![None; 100];
    for (n, claim) in &claims {
        if let Claim::Acquired(acquired) = claim {
            assert!(!acquired.is_repeated && acquired.attempt == 1);
            assert!(won[*n].replace(*acquired).is_none(), "two winners");
        }
    }
    for (n, claim) in &claims {
        if let Claim::InFlight { fence, .. } = claim {
            assert_eq!(Some(*fence), won[*n].as_ref().map(|won| won.token.fence));
        }
    }
    let won: Vec<_> = won.into_iter().map(Option::unwrap).collect();
    let fences: std::collections::HashSet<_> = won.iter().map(|won| won.token.fence).collect();
    assert_eq!(fences.len(), 100);
    let tokens: Vec<_> = won.iter().map(|won| won.token).collect();
    let shared = tokens.clone();
    let changed = all(&store, 100, move |store, n| {
        let token = shared[n];
        async move {
            let key = n.to_string();
            let digest = *identity(&key).digest();
            match n % 4 {
                0 => store.renew(&digest, &token, 2 * LONG).await,
                1 => store.abandon(&digest, &token).await,
                2 => store.mark_unknown(&digest, &token).await,
                _ => complete(&store, &key, &token).await,
            }
        }
    });
    assert!(
        done(changed)
            .await
            .iter()
            .all(|d| *d.as_ref().unwrap() == Fenced::Applied)
    );
    let read = all(&store, 100, |store, n| async move {
        let digest = *identity(&n.to_string()).digest();
        store.get(&digest).await.unwrap().unwrap()
    });
    for (n, entry) in done(read).await.into_iter().enumerate() {
        let (record, won) = (entry.record, &won[n]);
        assert_eq!(
            (record.token, record.created_at),
            (won.token, won.since),
            "{n}"
        );
        let kind = ["in-flight", "released", "unknown", "completed"][n % 4];
        assert_eq!(record.state.kind().as_str(), kind);
        if n % 4 == 0 {
            assert!(record.lease_until > record.claimed_at.after(LONG + LONG / 2));
        }
    }
    let replayed = all(&store, 100, |store, n| async move {
        (n, claim(&store, &n.to_string()).await.unwrap())
    });
    for (n, claim) in done(replayed).await {
        match (n % 4, claim) {
            (0, Claim::InFlight { fence, .. }) => assert_eq!(fence, tokens[n].fence),
            (1, Claim::Acquired(again)) => assert_eq!(again.attempt, 2),
            (2, Claim::Unknown { fence }) => assert_eq!(fence, tokens[n].fence),
            (3, Claim::Completed { outcome, .. }) => {
                assert_eq!(outcome.body().unwrap(), n.to_string().as_bytes());
            }
            (_, other) => panic!("{n}: {other:?}"),
        }
    }
    let groups = status(&server.url(), "Com_commit").await;
    println!("{groups} groups");
    assert!((3..150).contains(&groups));
}

/// The same claim again is the same attempt, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_claim_says_so() {
    let store: Store = Arc::new(open(&common().await).await);
    let requests: Vec<_> = (0..64).map(|_| request(LONG, OnLost::Hold)).collect();
    let mut before: Option<Vec<Token>> = None;
    for repeated in [false, true] {
        let requests = requests.clone();
        let claims = all(&store, 64, move |store, n| {
            let request = requests[n].clone();
            async move { store.claim(&identity(&n.to_string()), &request).await }
        });
        let claims = done(claims).await.into_iter().map(|c| acquired(c.unwrap()));
        let claims: Vec<_> = claims.collect();
        assert!(claims.iter().all(|claim| claim.is_repeated == repeated));
        let tokens: Vec<_> = claims.iter().map(|claim| claim.token).collect();
        assert_eq!(*before.get_or_insert_with(|| tokens.clone()), tokens);
    }
}

/// Those of a group that are refused are told so, and the others are done.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_step_is_refused_by_itself() {
    let store: Store = Arc::new(open(&common().await).await);
    let tokens = tokens(&store, 64).await;
    let completed = all(&store, 64, move |store, n| {
        let mut token = tokens[n];
        if n % 8 == 3 {
            token.nonce = Nonce::random().unwrap();
        }
        async move { (n, complete(&store, &n.to_string(), &token).await.unwrap()) }
    });
    for (n, done) in done(completed).await {
        let expected = match n % 8 {
            3 => Fenced::Refused(Refusal::Superseded),
            _ => Fenced::Applied,
        };
        assert_eq!(done, expected, "{n}");
    }
}

/// A transaction completes a record, and stands there. Who renews it, or claims it again, holds up
/// nobody else meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn one_locked_record_stalls_nobody_else() {
    // A lock is waited for up to three quarters of this.
    let patient = options(&common().await).timeout(Duration::from_secs(20));
    let store: Store = Arc::new(patient.open().await.unwrap());
    let held = acquire(&store, "held").await;
    let id = identity("held");
    let mut transaction = store.begin(Isolation::ReadCommitted).await.unwrap();
    let (outcome, retention) = (Outcome::success(b"held"), Retention::ORDER);
    let change = Change::complete(&held, &outcome, retention);
    let completed = store.change_in(&mut transaction, id.digest(), &change);
    assert_eq!(completed.await.unwrap(), Fenced::Applied);

    let renewing = all(&store, 6, move |store, _| async move {
        let renewed = store.renew(identity("held").digest(), &held, LONG).await;
        renewed.map_err(|error| error.kind())
    });
    let others = all(&store, 300, |store, n| async move {
        let begun = Instant::now();
        let duplicate = claim(&store, "held").await.unwrap();
        assert!(matches!(duplicate, Claim::InFlight { .. }), "{duplicate:?}");
        let key = format!("other-{n}");
        let token = acquire(&store, &key).await;
        assert_eq!(
            complete(&store, &key, &token).await.unwrap(),
            Fenced::Applied
        );
        begun.elapsed()
    });
    let slowest = done(others).await.into_iter().max().unwrap();
    println!("slowest: {slowest:?}");
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    assert!(!renewing.iter().all(JoinHandle::is_finished));
    store.commit(transaction).await.unwrap();
    for renewed in done(renewing).await {
        // By now it is completed; or the lock was waited for too long.
        let refused = Fenced::Refused(Refusal::Settled(semel::StateKind::Completed));
        assert!(
            renewed == Ok(refused) || renewed == Err(StoreErrorKind::Contended),
            "{renewed:?}"
        );
    }
}

/// Whatever becomes of a group's answer, nobody is told that a step was not done which was, and none
/// is done twice.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_groups_are_in_doubt() {
    let server = own(&[]).await;
    let table = table();
    let named = |url: &str| {
        let options = MysqlOptions::from_url(url).unwrap().table(&table).unwrap();
        options.schema(Schema::Create)
    };
    let store: Store = Arc::new(named(&server.url()).open().await.unwrap());
    let proxy = Proxy::start(server.address()).unwrap();
    let through = server.url_through(proxy.address());
    for fault in [
        Fault::CutAnswers,
        Fault::HalveAnswers,
        Fault::SwallowAnswers,
    ] {
        let name = format!("{fault:?}");
        let broken = named(&through).timeout(Duration::from_secs(3));
        let broken: Store = Arc::new(broken.open().await.unwrap());
        // Connections that stand.
        done(all(&broken, 16, |store, n| async move {
            claim(&store, &format!("warm-{n}")).await
        }))
        .await;
        let requests: Vec<_> = (0..48).map(|_| request(LONG, OnLost::Hold)).collect();
        proxy.set(fault);
        let lost = all(&broken, 48, {
            let (requests, name) = (requests.clone(), name.clone());
            move |store, n| {
                let (request, key) = (requests[n].clone(), format!("{name}-{n}"));
                async move { store.claim(&identity(&key), &request).await }
            }
        });
        let lost = done(lost).await;
        proxy.set(Fault::None);
        let mut unknown = 0;
        let mut tokens = Vec::new();
        for (n, lost) in lost.into_iter().enumerate() {
            let key = identity(&format!("{name}-{n}"));
            let there = store.get(key.digest()).await.unwrap();
            match lost {
                Err(error) if error.kind() == StoreErrorKind::Unknown => unknown += 1,
                Err(error) => assert!(there.is_none(), "{n}: {error}, and it was done"),
                Ok(claim) => assert_eq!(acquired(claim).token, there.unwrap().record.token),
            }
            // The same claim again is the same attempt.
            let again = acquired(store.claim(&key, &requests[n]).await.unwrap());
            assert_eq!(again.attempt, 1);
            tokens.push(again.token);
        }
        println!("{name}: {unknown} claims unknown");
        assert!(unknown > 0);
        proxy.set(fault);
        let lost = all(&broken, 48, {
            let (tokens, name) = (tokens.clone(), name.clone());
            move |store, n| {
                let (token, key) = (tokens[n], format!("{name}-{n}"));
                async move { complete(&store, &key, &token).await }
            }
        });
        let lost = done(lost).await;
        proxy.set(Fault::None);
        for (n, lost) in lost.into_iter().enumerate() {
            let key = format!("{name}-{n}");
            let there = store.get(identity(&key).digest()).await.unwrap().unwrap();
            let is_done = there.record.state.kind() == semel::StateKind::Completed;
            match lost {
                Err(error) if error.kind() == StoreErrorKind::Unknown => {}
                Err(error) => assert!(!is_done, "{n}: {error}, and it was done"),
                Ok(answer) => assert!(is_done && answer == Fenced::Applied, "{answer:?}"),
            }
            assert_eq!(
                complete(&store, &key, &tokens[n]).await.unwrap(),
                Fenced::Applied
            );
        }
    }
}

/// A group takes no more than the server's packet, and large outcomes hold up no small ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_fits_into_a_packet() {
    let server = own(&["max-allowed-packet=1M"]).await;
    let store: Store = Arc::new(open(&server.url()).await);
    let tokens = tokens(&store, 48).await;
    let body = |n: usize| vec![b'a'; if n.is_multiple_of(3) { 200_000 } else { 20_000 }];
    let completed = all(&store, 48, move |store, n| {
        let token = tokens[n];
        async move {
            let outcome = Outcome::success(&body(n));
            let key = identity(&n.to_string());
            let done = store.complete(key.digest(), &token, &outcome, Retention::ORDER);
            (n, done.await)
        }
    });
    for (n, done) in done(completed).await {
        assert_eq!(done.unwrap(), Fenced::Applied, "{n}");
        let Claim::Completed { outcome, .. } = claim(&store, &n.to_string()).await.unwrap() else {
            panic!("{n}")
        };
        assert_eq!(outcome.body().unwrap().len(), body(n).len());
    }
}

/// A group in which one step cannot be done is rolled back, and each is sent by itself.
#[tokio::test(flavor = "multi_thread")]
async fn one_step_that_fails_takes_no_other_with_it() {
    let url = common().await;
    let table = table();
    let mine = MysqlOptions::from_url(&url).unwrap().table(&table).unwrap();
    let mine = mine.schema(Schema::Create).open().await.unwrap();
    let store: Store = Arc::new(mine);
    let tokens = tokens(&store, 48).await;
    let mut foreign = link(&url).await;
    let trigger = format!(
        "CREATE TRIGGER {table}_no BEFORE UPDATE ON {table} FOR EACH ROW \
         IF NEW.outcome LIKE '%poison%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT='no'; END IF"
    );
    ask(&mut foreign, trigger).await;
    let completed = all(&store, 48, move |store, n| {
        let token = tokens[n];
        async move {
            let key = identity(&n.to_string());
            let outcome = Outcome::success(if n == 30 { b"poison" } else { b"sound" });
            let done = store.complete(key.digest(), &token, &outcome, Retention::ORDER);
            (n, done.await)
        }
    });
    for (n, done) in done(completed).await {
        match done {
            Ok(done) => assert_eq!((n == 30, done), (false, Fenced::Applied)),
            Err(error) => assert_eq!(n, 30, "{error}"),
        }
    }
}
