//! Buckets: made, migrated, refused; what a probe says; who may use one.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use semel::store::{Claim, Clear as _, Durability, Fenced, Store as _, StoreExt as _};
use semel::{FinishedStep, Outcome, StoreErrorKind};
use semel_stores::{NatsOptions, OpenError, Schema};
use semel_testkit::servers::{Kind, Nats, NatsRelease, Server as _, shared};

use super::{LONG, Own, acquire, complete, identity, open, options, request, unique, with_bucket};
use crate::certificates::Authority;

fn server() -> String {
    shared(Kind::Nats).unwrap()
}

fn kind(e: &OpenError) -> StoreErrorKind {
    match e {
        OpenError::Store(e) => e.kind(),
        other => panic!("{other}"),
    }
}

async fn context(url: &str) -> async_nats::jetstream::Context {
    let host = url.split('/').nth(2).unwrap();
    async_nats::jetstream::new(async_nats::connect(host).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expected_created_migrated() {
    let url = with_bucket(&server(), &unique("schema"));
    let expect = NatsOptions::from_url(&url).unwrap();
    let error = expect.open().await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Config);
    assert!(error.to_string().contains("semel migrate"), "{error}");

    // Two at once: one makes it, both are content.
    let (one, two) = tokio::join!(expect.migrate(), expect.migrate());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.to, two.to), (1, 1));
    let again = expect.migrate().await.unwrap();
    assert_eq!((again.from, again.done.len()), (Some(1), 0));
    let store = expect.open().await.unwrap();
    acquire(&store, &identity("schema"), LONG).await;

    let limited = format!("{url}&max_bytes=5000000");
    let changed = NatsOptions::from_url(&limited)
        .unwrap()
        .migrate()
        .await
        .unwrap();
    assert_eq!(changed.done, ["max_bytes: -1 before, 5000000 now"]);
    let warnings = store.probe().await.unwrap().warnings;
    assert!(
        warnings.iter().any(|w| w.contains("5000000")),
        "{warnings:?}"
    );
    // Records stay.
    let found = store.get(identity("schema").digest()).await.unwrap();
    assert!(found.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_that_could_forget_are_refused() {
    let url = server();
    let context = context(&url).await;
    let good = |bucket: &str| Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        description: Some("semel: idempotency records, version 1".into()),
        max_messages_per_subject: -1,
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    type Change = fn(&mut Config);
    let cases: [(&str, Change); 6] = [
        ("max_age", |c| c.max_age = Duration::from_hours(1)),
        ("discard", |c| c.discard = DiscardPolicy::Old),
        ("deny_delete", |c| c.deny_delete = true),
        ("max_msgs_per_subject", |c| c.max_messages_per_subject = 5),
        ("version 2", |c| {
            c.description = Some("semel: idempotency records, version 2".into());
        }),
        ("something else's", |c| {
            c.description = Some("settings".into());
        }),
    ];
    for (wanted, change) in cases {
        let bucket = unique("bad");
        let mut config = good(&bucket);
        change(&mut config);
        context.create_stream(config).await.unwrap();
        for schema in [Schema::Expect, Schema::Create, Schema::Migrate] {
            let options = NatsOptions::from_url(&with_bucket(&url, &bucket)).unwrap();
            let error = options.schema(schema).open().await.unwrap_err();
            assert_eq!(kind(&error), StoreErrorKind::Config);
            assert!(error.to_string().contains(wanted), "{wanted}: {error}");
        }
    }
    // And one that is changed while it is used is found by a probe.
    let bucket = unique("turned");
    let store = open(&with_bucket(&url, &bucket)).await;
    let mut config = good(&bucket);
    config.max_age = Duration::from_hours(1);
    config.duplicate_window = Duration::from_mins(1);
    context.update_stream(config).await.unwrap();
    let error = store.probe().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("max_age"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_says_what_is_promised() {
    let url = server();
    let file = open(&with_bucket(&url, &unique("file"))).await;
    let probe = file.probe().await.unwrap();
    assert_eq!((probe.store, probe.durability), ("nats", Durability::Crash));
    assert!(
        probe.warnings[0].contains("sync_interval"),
        "{:?}",
        probe.warnings
    );

    let memory = format!("{}&storage=memory", with_bucket(&url, &unique("memory")));
    let memory = open(&memory).await;
    assert_eq!(
        memory.probe().await.unwrap().durability,
        Durability::Process
    );

    let cluster = shared(Kind::NatsCluster).unwrap();
    let cluster = open(&with_bucket(&cluster, &unique("cluster"))).await;
    let probe = cluster.probe().await.unwrap();
    assert_eq!(probe.durability, Durability::Replicated);
    assert!(
        probe.warnings[0].contains("at the same time"),
        "{:?}",
        probe.warnings
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_of_an_old_release_are_refused() {
    let cluster = Nats::start_nodes(NatsRelease::Debian, 3).unwrap();
    let url = with_bucket(&cluster.url(), &unique("old"));
    let error = options(&url).open().await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Config);
    assert!(error.to_string().contains("2.11"), "{error}");
    // One copy is checked by one node.
    let url = with_bucket(&cluster.url(), &unique("one")).replace("replicas=3", "replicas=1");
    let store = open(&url).await;
    acquire(&store, &identity("old"), LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_jetstream_it_says_so() {
    let own = Own::start("");
    let url = format!("nats://{}/semel?timeout=1s", own.address);
    let error = options(&url).open().await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Config);
    assert!(
        error.to_string().contains("JetStream is not enabled"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_is_told() {
    let own = Own::start(
        r#"jetstream { store_dir: "DATA" }
        authorization { users: [
            { user: all, password: "se/same" }
            { user: reader, password: "se/same", permissions: {
                publish: ["$JS.API.>"], subscribe: ["_INBOX.>"]
            } }
        ] }"#,
    );
    let url = |login: &str| format!("nats://{login}{}/semel?timeout=2s", own.address);
    let store = open(&url("all:se%2Fsame@")).await;
    store.probe().await.unwrap();

    for login in ["all:wrong-sesame@", "nobody:sesame@", "sesame@", ""] {
        let error = options(&url(login)).open().await.unwrap_err();
        assert_eq!(kind(&error), StoreErrorKind::Config, "{login}: {error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("refused the user"), "{text}");
        assert!(!text.contains("sesame"), "{text}");
    }

    let reader = open(&url("reader:se%2Fsame@")).await;
    let error = reader.probe().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("$KV.semel.>"), "{error}");
    let claimed = reader.claim(&identity("reader"), &request(LONG)).await;
    assert_eq!(claimed.unwrap_err().kind(), StoreErrorKind::Config);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_work_too() {
    let own = Own::start("jetstream { store_dir: \"DATA\" }\nauthorization { token: \"t&ken\" }");
    for url in [
        format!("nats://t%26ken@{}/semel", own.address),
        format!("nats://{}/semel?token=t%26ken", own.address),
    ] {
        open(&url).await.probe().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_checked_and_may_be_required() {
    let authority = Authority::new();
    let signed = authority.sign(&["127.0.0.1"]);
    let own = Own::start(&format!(
        "jetstream {{ store_dir: \"DATA\" }}\ntls {{ cert_file: \"{}\", key_file: \"{}\" }}",
        signed.certificate, signed.key
    ));
    let url = format!("nats://{}/semel?timeout=2s", own.address);
    let trusted = format!("{url}&tls=on&ca={}", authority.file());
    open(&trusted).await.probe().await.unwrap();
    let error = options(&url).open().await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Config, "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");

    let plain = server();
    let required = format!("{}&tls=on", with_bucket(&plain, &unique("tls")));
    assert!(options(&required).open().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bucket_refuses_and_forgets_nothing() {
    let url = format!(
        "{}&max_bytes=20000",
        with_bucket(&server(), &unique("full"))
    );
    let store = open(&url).await;
    let mut held = Vec::new();
    let error = loop {
        let identity = identity(&format!("full-{}", held.len()));
        match store.claim(&identity, &request(LONG)).await {
            Ok(Claim::Acquired(acquired)) => held.push((identity, acquired.token)),
            Ok(other) => panic!("{other:?}"),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Capacity, "{error}");
    assert!(held.len() > 10, "{}", held.len());
    for (identity, _) in &held {
        assert!(store.get(identity.digest()).await.unwrap().is_some());
    }
    store.clear(false).await.unwrap();
    acquire(&store, &held[0].0, LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_outcomes() {
    let store = open(&with_bucket(&server(), &unique("large"))).await;
    let identity = identity("large");
    let token = acquire(&store, &identity, LONG).await;
    let keep = async |len: usize| {
        let outcome = Outcome::success(&vec![7; len]);
        let retention = semel::store::Retention::new(LONG);
        store
            .complete(identity.digest(), &token, &outcome, retention)
            .await
    };
    // The server's max_payload is 1 MiB.
    let error = keep(1 << 20).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLarge);
    assert!(error.to_string().contains("max_payload"), "{error}");
    assert_eq!(keep((1 << 20) - 2_000).await.unwrap(), Fenced::Applied);
    let other = request(LONG);
    let Claim::Completed { outcome, .. } = store.claim(&identity, &other).await.unwrap() else {
        panic!("not replayed");
    };
    assert_eq!(outcome.body().map(|b| b.len()), Some((1 << 20) - 2_000));
}

/// Later messages of an attempt are a little longer: what is kept leaves room for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_with_as_many_steps_as_fit_is_held_on() {
    let own = Own::start("jetstream { store_dir: \"DATA\" }\nmax_payload: 8192");
    let mut kept = Vec::new();
    for size in [7600].into_iter().chain(7925..7945) {
        let store = open(&format!("nats://{}/b{size}", own.address)).await;
        let identity = identity("held on");
        let token = acquire(&store, &identity, LONG).await;
        let step = FinishedStep::new("s", &vec![7; size]).unwrap();
        let keeping = store.keep_step(identity.digest(), &token, &step, 0);
        match keeping.await {
            Ok(_) => kept.push(size),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::TooLarge, "{error}"),
        }
        // The header with the revision gets a digit more.
        for n in 2..12 {
            let renewed = store.renew(identity.digest(), &token, n * LONG).await;
            assert_eq!(renewed.unwrap(), Fenced::Applied, "{size}");
        }
        let marked = store.mark_unknown(identity.digest(), &token).await;
        assert_eq!(marked.unwrap(), Fenced::Applied, "{size}");
        store.close().await.unwrap();
    }
    assert!(kept.contains(&7600), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_across_a_bucket_made_anew() {
    let url = server();
    let bucket = unique("anew");
    let store = open(&with_bucket(&url, &bucket)).await;
    let identity = identity("anew");
    let before = acquire(&store, &identity, LONG).await;
    let context = context(&url).await;
    context.delete_stream(format!("KV_{bucket}")).await.unwrap();
    // The handle finds nobody, then the new one.
    let lost = store.renew(identity.digest(), &before, LONG * 2).await;
    assert_ne!(lost.unwrap_err().kind(), StoreErrorKind::Unknown);
    open(&with_bucket(&url, &bucket))
        .await
        .close()
        .await
        .unwrap();
    let after = acquire(&store, &identity, LONG).await;
    assert!(after.fence > before.fence, "{before:?} {after:?}");
    let done = complete(&store, &identity, &before).await.unwrap();
    assert!(matches!(done, Fenced::Refused(_)), "{done:?}");
    assert_eq!(
        complete(&store, &identity, &after).await.unwrap(),
        Fenced::Applied
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_other_programs_are_no_records() {
    let url = server();
    let bucket = unique("marks");
    let store = open(&with_bucket(&url, &bucket)).await;
    let identity = identity("marks");
    let before = acquire(&store, &identity, LONG).await;
    let kv = context(&url).await.get_key_value(&bucket).await.unwrap();
    assert!(
        kv.get(identity.digest().to_string())
            .await
            .unwrap()
            .is_some()
    );
    kv.delete(identity.digest().to_string()).await.unwrap();
    assert_eq!(store.get(identity.digest()).await.unwrap(), None);
    let after = acquire(&store, &identity, LONG).await;
    assert!(after.fence > before.fence);
    kv.delete(identity.digest().to_string()).await.unwrap();
    let context = context(&url).await;
    let mut stream = context.get_stream(format!("KV_{bucket}")).await.unwrap();
    // The mark itself is swept, and is no record: not by a purge that began as it came.
    let swept = async {
        loop {
            assert_eq!(store.purge(10).await.unwrap().removed, 0);
            if stream.info().await.unwrap().state.messages == 0 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), swept)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_leaves_one_message_for_each_record() {
    let url = server();
    let bucket = unique("one");
    let url = with_bucket(&url, &bucket);
    let (store, other) = (open(&url).await, open(&url).await);
    let context = context(&url).await;
    let mut stream = context.get_stream(format!("KV_{bucket}")).await.unwrap();
    for round in 0..3 {
        for n in 0..20 {
            let identity = identity(&format!("one-{n}-{}", n % 2 * round));
            let Claim::Acquired(won) = store.claim(&identity, &request(LONG)).await.unwrap() else {
                continue;
            };
            if n % 4 == 0 {
                // Met by a purge in between.
                let _ = other.purge(10).await.unwrap();
            }
            let renewed = store.renew(identity.digest(), &won.token, LONG * 2).await;
            assert_eq!(renewed.unwrap(), Fenced::Applied);
            if n % 3 > 0 {
                let _ = complete(&store, &identity, &won.token).await.unwrap();
            }
        }
        // Of those that were purged before and of those that were not.
        let purging = if round == 1 { &store } else { &other };
        // What came in the instant before a purge is the next one's.
        let one_each = async {
            loop {
                assert_eq!(purging.purge(10).await.unwrap().removed, 0);
                let state = &stream.info().await.unwrap().state;
                assert_eq!(state.subjects_count, 20 + 10 * round);
                if state.messages == state.subjects_count {
                    return;
                }
            }
        };
        let one_each = tokio::time::timeout(Duration::from_secs(10), one_each);
        one_each.await.expect("one message each");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_stores_for_tests_are_emptied() {
    let url = with_bucket(&server(), &unique("clear"));
    let store = open(&url).await;
    acquire(&store, &identity("clear"), LONG).await;
    let careful = NatsOptions::from_url(&url).unwrap().open().await.unwrap();
    let error = careful.clear(false).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config);
    store.clear(false).await.unwrap();
    assert_eq!(store.get(identity("clear").digest()).await.unwrap(), None);
}
