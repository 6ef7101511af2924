//! The counters and histograms of `observers::Metrics`, as Prometheus reads them.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use semel::guard::GuardBuilder;
use semel::guard::observers::Metrics;

use super::*;

/// The page for operators, whose rules name metrics.
const DOCUMENT: &str = include_str!("../../../../docs/observability.md");

fn recorder() -> (PrometheusRecorder, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    (recorder, handle)
}

fn observed(metrics: Metrics) -> GuardBuilder<Arc<Flaky>> {
    Guard::builder(Arc::<Flaky>::default()).observer(Arc::new(metrics))
}

fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map(|value| value.trim().parse().unwrap())
}

/// A value for each metric, after a life with a little of everything.
async fn a_little_of_everything(handle: &PrometheusHandle) -> String {
    let script = Script(Mutex::new([Some(Finding::DidNotHappen)].into()));
    let guard = observed(Metrics::default())
        .reconciler(Arc::new(script))
        .build();
    guard.run(asked(), |_| ok(())).await.unwrap();
    guard.run(asked(), |_| ok(())).await.unwrap();
    let unkeyed = Asked::unkeyed(Fingerprint::of(b""));
    guard.run(unkeyed, |_| ok(())).await.unwrap();
    let other = Identity::new(Scope::anonymous(), "refund", Key::new(KEY).unwrap());
    let lost = held(&guard, Asked::new(other, Fingerprint::of(b""))).await;
    applied(lost.mark_unknown().await);
    guard
        .reconcile_all([("refund", Policy::default())])
        .await
        .unwrap();
    Metrics::gauges(&guard);
    handle.render()
}

#[tokio::test(start_paused = true)]
async fn it_counts_and_times_what_happens() {
    let (recorder, handle) = recorder();
    let _recorder = ::metrics::set_default_local_recorder(&recorder);
    let text = a_little_of_everything(&handle).await;
    for (name, expected) in [
        (r#"semel_events_total{event="new",operation="pay"}"#, 1.0),
        (
            r#"semel_events_total{event="completed",operation="pay"}"#,
            1.0,
        ),
        (
            r#"semel_events_total{event="replayed",operation="pay"}"#,
            1.0,
        ),
        (r#"semel_events_total{event="unkeyed",operation=""}"#, 1.0),
        (
            r#"semel_events_total{event="marked_unknown",operation="refund"}"#,
            1.0,
        ),
        // There from the start.
        (r#"semel_events_total{event="stale",operation="pay"}"#, 0.0),
        (
            r#"semel_claim_duration_seconds_count{operation="pay"}"#,
            2.0,
        ),
        (
            r#"semel_attempt_duration_seconds_count{operation="pay"}"#,
            1.0,
        ),
        (
            r#"semel_attempt_duration_seconds_count{operation="refund"}"#,
            1.0,
        ),
        (
            r#"semel_reconcile_questions_total{answer="did_not_happen"}"#,
            1.0,
        ),
        ("semel_reconcile_duration_seconds_sum", 2.0),
        ("semel_attempts_running", 0.0),
        ("semel_unsettled", 0.0),
    ] {
        assert_eq!(value(&text, name), Some(expected), "{name} in {text}");
    }
    assert!(!text.contains("key-"), "{text}");
    // Each says what it is.
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in names.filter_map(|line| line.split(' ').next()) {
        assert!(
            text.contains(&format!("# HELP {name} ")),
            "{name} in {text}"
        );
    }
}

/// Names of operations may be made of what callers send: they have no label without end.
#[tokio::test(start_paused = true)]
async fn operations_beyond_the_bound_are_counted_together() {
    let (recorder, handle) = recorder();
    let _recorder = ::metrics::set_default_local_recorder(&recorder);
    let guard = observed(Metrics::default().with_max_operations(2)).build();
    for name in ["a", "b", "c", "d", "a"] {
        let key = Key::new(KEY).unwrap();
        let identity = Identity::new(Scope::anonymous(), name, key);
        let asked = Asked::new(identity, Fingerprint::of(b""));
        guard.run(asked, |_| ok(())).await.unwrap();
    }
    let text = handle.render();
    let new = |operation| {
        let name = format!(r#"semel_events_total{{event="new",operation="{operation}"}}"#);
        value(&text, &name)
    };
    assert_eq!(
        ["a", "b", "other"].map(new),
        [Some(1.0), Some(1.0), Some(2.0)]
    );
    assert_eq!(["c", "d"].map(new), [None, None]);
}

/// Every metric and event that the page names is there; what only the gateway has is left to its own
/// test.
#[tokio::test(start_paused = true)]
async fn the_page_names_metrics_that_exist() {
    let (recorder, handle) = recorder();
    let _recorder = ::metrics::set_default_local_recorder(&recorder);
    let text = a_little_of_everything(&handle).await;
    let (_, library) = DOCUMENT.split_once("## In a library").unwrap();
    let (library, _) = library.split_once("\n## ").unwrap();
    let rules = include_str!("../../../../docs/semel.alerts.yaml");
    let (rules, _) = rules.split_once("# The gateway alone:").unwrap();
    let mut named = 0;
    for page in [library, rules] {
        for word in page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_metric = word.starts_with("semel_") && word != "semel_tower";
            named += usize::from(is_metric);
            assert!(!is_metric || text.contains(word), "{word}");
        }
    }
    assert!(named > 5, "{named}");
}
