//! What a step costs and leaves.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Claim, Fenced, Nonce, OnLost, StoreExt as _, Token};
use semel::store::{ListQuery, Refusal, Resolution, Retention, Store as _, Verdict};
use semel::{Identity, Key, Outcome, Scope, StateKind, StoreErrorKind};
use semel_stores::PostgresStore;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{Postgres, Server as _};

use super::{acquire, acquire_as, client, complete, forged, identity, open, replayed, request};
use super::{table, url};

async fn counted<T>(proxy: &Proxy, what: &str, wanted: u64, step: impl Future<Output = T>) -> T {
    let before = proxy.round_trips();
    let done = step.await;
    let taken = proxy.round_trips() - before;
    assert_eq!(taken, wanted, "round trips of {what}");
    done
}

async fn each_step_is_one_round_trip(parameters: &str) {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let through = server.url_through(proxy.address());
    let store = open(&format!("{through}?{parameters}&connections=1&listen=off")).await;
    // The connection is made.
    let key = "the-key-of-a-record";
    store.get(identity(key).digest()).await.unwrap();

    let (id, again) = (identity(key), identity("another-key"));
    let token = counted(&proxy, "claim", 1, acquire(&store, key))
        .await
        .token;
    let renewed = store.renew(id.digest(), &token, Duration::from_secs(90));
    let renewed = counted(&proxy, "renew", 1, renewed).await;
    assert_eq!(renewed.unwrap(), Fenced::Applied);
    let rival = counted(&proxy, "claim in flight", 1, store.claim(&id, &request())).await;
    assert!(matches!(rival.unwrap(), Claim::InFlight { .. }));
    counted(&proxy, "get", 1, store.get(id.digest()))
        .await
        .unwrap();
    let done = counted(&proxy, "complete", 1, complete(&store, key, &token)).await;
    assert_eq!(done, Fenced::Applied);
    counted(&proxy, "replay", 1, replayed(&store, key)).await;
    let forged = forged(u64::MAX);
    let stale = complete(&store, key, &forged);
    let stale = counted(&proxy, "a stale complete", 2, stale).await;
    assert_eq!(stale, Fenced::Refused(Refusal::Superseded));

    let token = acquire(&store, "another-key").await.token;
    let step = semel::FinishedStep::new("charge", b"ch_1").unwrap();
    let kept = store.keep_step(again.digest(), &token, &step, 0);
    let kept = counted(&proxy, "keep step", 1, kept).await;
    assert_eq!(kept.unwrap(), Fenced::Applied);
    let marked = store.mark_unknown(again.digest(), &token);
    let marked = counted(&proxy, "mark unknown", 1, marked).await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    let resolution = Resolution {
        verdict: Verdict::DidNotHappen,
        by: "operator".into(),
        reason: "asked".into(),
        fence: token.fence,
        nonce: Nonce::random().unwrap(),
    };
    let resolved = store.resolve(again.digest(), &resolution);
    let resolved = counted(&proxy, "resolve", 2, resolved).await;
    assert_eq!(resolved.unwrap(), Fenced::Applied);
    let token = counted(&proxy, "claim again", 2, acquire(&store, "another-key"))
        .await
        .token;
    let abandoned = store.abandon(again.digest(), &token);
    let abandoned = counted(&proxy, "abandon", 1, abandoned).await;
    assert_eq!(abandoned.unwrap(), Fenced::Applied);
    let query = ListQuery::new(StateKind::Completed);
    let listed = store.list(&query);
    let listed = counted(&proxy, "list", 1, listed).await.unwrap();
    assert_eq!(listed.entries.len(), 1);
    counted(&proxy, "purge", 1, store.purge(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_is_one_round_trip_with_named_statements() {
    each_step_is_one_round_trip("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_is_one_round_trip_with_unnamed_statements() {
    each_step_is_one_round_trip("prepared=off").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_and_rivals_write_nothing() {
    let server = Postgres::start(&["autovacuum=off"]).unwrap();
    let store = open(&server.url()).await;
    let token = acquire(&store, "done").await.token;
    assert_eq!(complete(&store, "done", &token).await, Fenced::Applied);
    acquire(&store, "running").await;
    let client = client(&server.url()).await;
    let written = async || -> String {
        let query = "SELECT pg_current_wal_insert_lsn()::text";
        client.query_one(query, &[]).await.unwrap().get(0)
    };
    let before = written().await;
    for _ in 0..50 {
        replayed(&store, "done").await;
        store.claim(&identity("running"), &request()).await.unwrap();
    }
    let after = written().await;
    // A checkpoint or the background writer may add a record of their own; fifty locks would not fit.
    let size: i64 = client
        .query_one(
            "SELECT ($1::text::pg_lsn - $2::text::pg_lsn)::bigint",
            &[&after, &before],
        )
        .await
        .unwrap()
        .get(0);
    assert!(size < 1000, "{size} bytes of log");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_are_heap_only() {
    let server = Postgres::start(&["autovacuum=off"]).unwrap();
    let store = open(&server.url()).await;
    let token = acquire(&store, "a-key").await.token;
    for seconds in 100..120 {
        let id = identity("a-key");
        let lease = Duration::from_secs(seconds);
        let renewed = store.renew(id.digest(), &token, lease).await.unwrap();
        assert_eq!(renewed, Fenced::Applied);
    }
    store.close().await.unwrap();
    let client = client(&server.url()).await;
    let query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
        WHERE relname = 'semel_records'";
    // Backends report when they end.
    for _ in 0..100 {
        let row = client.query_one(query, &[]).await.unwrap();
        let (updates, hot): (i64, i64) = (row.get(0), row.get(1));
        if updates >= 20 {
            assert_eq!(updates, hot);
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the server counted no updates");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_can_read_the_rows() {
    let url = url();
    let store = open(&url).await;
    let token = acquire(&store, "a-key-of-some-length").await.token;
    let outcome = Outcome::builder(semel::OutcomeKind::Success)
        .code(201)
        .body(b"made");
    let id = identity("a-key-of-some-length");
    let done = store.complete(id.digest(), &token, &outcome, Retention::ORDER);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let table = url.split("table=").nth(1).unwrap();
    let row = client(&url)
        .await
        .query_one(
            &format!(
                "SELECT state, code, scope, operation, key_hint, encode(digest, 'hex'),
                   expires_at - settled_at = interval '24 hours', position('made' IN outcome) > 0
                 FROM {table}"
            ),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "completed");
    assert_eq!(row.get::<_, i32>(1), 201);
    assert_eq!(row.get::<_, Vec<&str>>(2), ["tenant", "7"]);
    assert_eq!(
        (row.get::<_, &str>(3), row.get::<_, &str>(4)),
        ("order", "a-key-of")
    );
    assert_eq!(row.get::<_, &str>(5), id.digest().to_string());
    assert!(row.get::<_, bool>(6) && row.get::<_, bool>(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn any_text_comes_back() {
    let store = open(&url()).await;
    let scope = Scope::new(["", "a\0b", "line\nline", "\\0", "{\"x\"}", "ü"]);
    let id = Identity::new(scope, "op\0\\", Key::new("k\\0-and-so-on").unwrap());
    store.claim(&id, &request()).await.unwrap();
    let entry = store.get(id.digest()).await.unwrap().unwrap();
    assert_eq!(entry.label, semel::store::Label::from(&id));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_end_has_none() {
    let store = open(&url()).await;
    let forever = semel::store::ClaimRequest {
        lease: Duration::MAX,
        ..request()
    };
    let token = acquire_as(&store, "a-key", &forever).await.token;
    let id = identity("a-key");
    let record = store.get(id.digest()).await.unwrap().unwrap().record;
    assert_eq!(record.lease_until, semel::Timestamp::MAX);
    let keep = Retention::new(Duration::MAX).with_tombstone(Duration::MAX);
    let nothing = Outcome::void();
    let done = store.complete(id.digest(), &token, &nothing, keep);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    let record = store.get(id.digest()).await.unwrap().unwrap().record;
    assert_eq!(record.purge_at, semel::Timestamp::MAX);
    assert_eq!(store.purge(10).await.unwrap().removed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_is_too_large_is_refused_and_changes_nothing() {
    let store = open(&url()).await;
    let token = acquire(&store, "a-key").await.token;
    let id = identity("a-key");
    let large = Outcome::success(&vec![0; 32 << 20]);
    let refused = store.complete(id.digest(), &token, &large, Retention::ORDER);
    assert_eq!(refused.await.unwrap_err().kind(), StoreErrorKind::TooLarge);
    let large = Outcome::success(&vec![7; 8 << 20]);
    let done = store.complete(id.digest(), &token, &large, Retention::ORDER);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    assert_eq!(replayed(&store, "a-key").await.len(), 8 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn clearing_is_for_tests() {
    use semel::store::Clear as _;
    let url = url();
    let store = open(&url).await;
    acquire(&store, "a-key").await;
    let plain: PostgresStore = semel_stores::PostgresOptions::from_url(&url)
        .unwrap()
        .open()
        .await
        .unwrap();
    let refused = plain.clear(false).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Config);
    let id = identity("a-key");
    assert!(store.get(id.digest()).await.unwrap().is_some());
    store.clear(false).await.unwrap();
    assert!(store.get(id.digest()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn settled_records_are_listed_past_a_stretch() {
    let url = url();
    let store = open(&url).await;
    let table = url.split("table=").nth(1).unwrap();
    // Few released ones among many completed ones: pages may be empty, and go on.
    client(&url)
        .await
        .batch_execute(&format!(
            "INSERT INTO {table} (digest, state, fence, nonce, attempt, fingerprint, created_at,
               claimed_at, lease_until, settled_at, expires_at, purge_at, scope, operation,
               key_hint, outcome)
             SELECT sha256(n::text::bytea), CASE n % 1000 WHEN 0 THEN 'released' ELSE 'completed' END,
               1, sha256('x')::bytea, 1, sha256('y'), now(), now(), now(), now(), now() + '1 day',
               now() + '1 day', '{{}}', '', '', '\\x010100000000' || '\\x00'::bytea
             FROM generate_series(1, 5000) AS n;
             UPDATE {table} SET nonce = substring(nonce FOR 16), fingerprint = '\\x01' || fingerprint"
        ))
        .await
        .unwrap();
    for (state, wanted) in [(StateKind::Released, 5), (StateKind::Completed, 4995)] {
        let mut query = ListQuery::new(state);
        let (mut found, mut pages) = (0, 0);
        loop {
            let page = store.list(&query).await.unwrap();
            (found, pages) = (found + page.entries.len(), pages + 1);
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!(found, wanted, "in {pages} pages");
    }
    let _ = (table, OnLost::Hold);
}

#[test]
fn a_table_has_a_name_of_its_own() {
    assert_ne!(table(), table());
}

/// Many records take a while to remove: completions that come meanwhile share no transaction with that.
#[tokio::test]
async fn a_purge_holds_up_no_completions() {
    let url = url();
    let table = url.split("table=").nth(1).unwrap();
    let store = Arc::new(open(&format!("{url}&connections=1&listen=off")).await);
    let admin = client(&url).await;
    let gone = acquire(&store, "gone").await.token;
    let (done, none) = (Outcome::success(b"done"), Retention::new(Duration::ZERO));
    let id = identity("gone");
    let ended = store.complete(id.digest(), &gone, &done, none);
    assert_eq!(ended.await.unwrap(), Fenced::Applied);
    let (held, one, two) = (
        acquire(&store, "held").await.token,
        acquire(&store, "one").await.token,
        acquire(&store, "two").await.token,
    );
    let log = format!(
        "CREATE TABLE {table}_log (purged xid);
         CREATE FUNCTION {table}_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO {table}_log VALUES (pg_current_xact_id()::xid); RETURN old; END $$;
         CREATE TRIGGER log BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_log()"
    );
    admin.batch_execute(&log).await.unwrap();
    let lock = format!("BEGIN; SELECT FROM {table} FOR UPDATE");
    admin.batch_execute(&lock).await.unwrap();
    let ends = |key: &'static str, token: Token| {
        let store = store.clone();
        tokio::spawn(async move { complete(&store, key, &token).await })
    };
    // The one connection waits for the lock, and the others for the connection.
    let first = ends("held", held);
    let waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'";
    while admin.query(waits, &[&table]).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (one, purging, two) = (
        ends("one", one),
        tokio::spawn({
            let store = store.clone();
            async move { store.purge(10).await }
        }),
        ends("two", two),
    );
    tokio::task::yield_now().await;
    admin.batch_execute("COMMIT").await.unwrap();
    for ended in [first, one, two] {
        assert_eq!(ended.await.unwrap(), Fenced::Applied);
    }
    assert_eq!(purging.await.unwrap().unwrap().removed, 1);
    let together = format!(
        "SELECT count(DISTINCT r.xmin::text), count(l.purged) FROM {table} AS r
         LEFT JOIN {table}_log AS l ON l.purged = r.xmin WHERE r.state = 'completed'"
    );
    let row = admin.query_one(&together, &[]).await.unwrap();
    let (transactions, with_purge): (i64, i64) = (row.get(0), row.get(1));
    // That of `held`, and the one of both others.
    assert_eq!((transactions, with_purge), (2, 0));
}
