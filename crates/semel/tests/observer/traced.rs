//! The events and spans of `observers::Tracing`, as a subscriber writes them.

use std::io::{self, Write};

use semel::guard::observers::Tracing;
use semel::guard::{AttemptInfo, TransactOptions};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::scripted::{Fate, Scripted};
use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Lines {
    fn subscribe(&self) -> ::tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .without_time()
            .with_writer(self.clone())
            .finish();
        ::tracing::subscriber::set_default(subscriber)
    }

    /// What was written since the last time.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("key-01234"), "{text}");
        let text = text.replace(&identity().digest().to_string(), "ID");
        let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(line).collect()
    }
}

fn traced() -> Guard<Arc<Flaky>> {
    Guard::builder(Arc::<Flaky>::default())
        .policy(policy())
        .observer(Arc::new(Tracing))
        .build()
}

#[tokio::test(start_paused = true)]
async fn the_work_runs_in_a_span_that_says_how_it_ended() {
    let lines = Lines::default();
    let _subscriber = lines.subscribe();
    let guard = traced();
    let fence = Arc::new(Mutex::new(Fence(0)));
    let known = fence.clone();
    let work = |attempt: Attempt<_>| async move {
        *known.lock().unwrap() = attempt.fence;
        sleep(SECOND).await;
        ::tracing::info!("charging");
        Err::<(), _>("busy")
    };
    let request = ::tracing::info_span!("request");
    let running = ::tracing::Instrument::instrument(guard.run(asked(), work), request);
    running.await.unwrap_err();
    // The renewals' task has its part of the attempt until it is dropped.
    sleep(SECOND).await;
    let written = lines.take();
    let fence = *fence.lock().unwrap();
    let known = format!(r#"operation="pay" id=ID key_hint="key-0123" attempt=1 fence={fence}"#);
    let span = format!("request:attempt{{{known}}}");
    let ended = format!(r#"request:attempt{{{known} ended="released"}}"#);
    for line in [
        format!(r#"DEBUG request: semel: event="new" {known} waited_ms=0"#),
        format!("INFO {span}: observer::traced: charging"),
        format!(r#"DEBUG {ended}: semel: event="released" {known} ran_ms=1000"#),
        format!("INFO {ended}: semel: close"),
    ] {
        assert!(written.contains(&line), "{line} in {written:#?}");
    }
}

/// In a transaction as well, and as often as it runs.
#[tokio::test(start_paused = true)]
async fn work_that_runs_again_is_in_the_same_span() {
    let lines = Lines::default();
    let _subscriber = lines.subscribe();
    let store = Arc::new(Scripted::new(&[Fate::Conflicts]));
    let guard = Guard::builder(store).observer(Arc::new(Tracing)).build();
    let work = |attempt: AttemptInfo, _| async move {
        ::tracing::info!("charging {}", attempt.retry);
        Ok::<_, Infallible>(())
    };
    let charged = guard.transact(asked(), TransactOptions::default(), work);
    charged.await.unwrap();
    let written = lines.take();
    for retry in 0..2 {
        let end = format!("observer::traced: charging {retry}");
        let inside = |line: &String| line.starts_with("INFO attempt{") && line.ends_with(&end);
        assert!(written.iter().any(inside), "{written:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_somebody_should_look_at_is_a_warning() {
    let lines = Lines::default();
    let _subscriber = lines.subscribe();
    let guard = traced();
    applied(held(&guard, asked()).await.mark_unknown().await);
    guard.run(asked(), |_| ok(())).await.unwrap_err();
    let written = lines.take();
    let level = |event: &str| {
        let event = format!("event=\"{event}\"");
        let line = written.iter().find(|line| line.contains(&event));
        line.unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!(
        ["new", "marked_unknown", "unknown"].map(level),
        ["DEBUG", "WARN", "DEBUG"]
    );
    // The last time the store goes away while the question is asked.
    for (finding, answer, why) in [
        (None, "failed", "the bank is closed"),
        (
            Some(Finding::DidNotHappen),
            "store_error",
            "the connection broke",
        ),
    ] {
        let goes_away = finding.is_some();
        let script = Script(Mutex::new([finding].into()));
        let asking = Guard::builder(guard.store().clone())
            .observer(Arc::new(Tracing))
            .reconciler(Arc::new(script))
            .reconcile_options(ReconcileOptions::in_line().with_attempts(1))
            .build();
        let away = async {
            sleep(SECOND).await;
            guard.store().down.store(goes_away, SeqCst);
        };
        let (asked, ()) = tokio::join!(asking.reconcile_all([("pay", Policy::default())]), away);
        asked.unwrap();
        let written = lines.take();
        let answered = format!(r#"answer="{answer}" operation="pay" id=ID"#);
        // Only an operator can settle it now; or the store, when it comes back.
        let given_up = ("ERROR", r#"event="reconcile_gave_up""#.to_owned(), "id=ID");
        let is_told = written.iter().any(|line| line.contains(&given_up.1));
        assert_eq!(is_told, !goes_away, "{written:#?}");
        let given_up = is_told.then_some(given_up);
        for (level, what, why) in [("WARN", answered, why)].into_iter().chain(given_up) {
            let line = written.iter().find(|line| line.contains(&what));
            let line = line.unwrap_or_else(|| panic!("{what} in {written:#?}"));
            assert!(
                line.starts_with(&format!("{level} semel:")) && line.contains(why),
                "{line}"
            );
        }
    }
}

/// A renewal is not the end of an attempt; and a call without a key has a name of its own.
#[tokio::test(start_paused = true)]
async fn a_span_names_its_attempt_and_ends_once() {
    let lines = Lines::default();
    let _subscriber = lines.subscribe();
    let guard = traced();
    guard
        .run(asked(), |_| async {
            sleep(11 * SECOND).await;
            ok(()).await
        })
        .await
        .unwrap();
    sleep(SECOND).await;
    let written = lines.take();
    let renewed = written
        .iter()
        .find(|line| line.contains(r#"event="renewed""#));
    assert!(!renewed.unwrap().contains("ended"), "{written:#?}");
    let closed = written.iter().find(|line| line.ends_with("semel: close"));
    assert_eq!(closed.unwrap().matches("ended").count(), 1, "{written:#?}");

    let unkeyed = Asked::unkeyed(Fingerprint::of(b""));
    let work = |attempt: Attempt<_>| async move {
        ::tracing::info!("charging");
        ok(attempt.id.to_string()).await
    };
    let id = guard.run(unkeyed, work).await.unwrap().into_inner();
    let span = format!("INFO attempt{{id={id} attempt=1}}: observer::traced: charging");
    let written = lines.take();
    assert!(written.contains(&span), "{span} in {written:#?}");
}

/// Of a pair the one that has spans gives them.
#[tokio::test(start_paused = true)]
async fn a_pair_has_the_span_of_either() {
    let observers: [Arc<dyn Observer>; 2] =
        [Arc::new((Tracing, Quiet)), Arc::new((Quiet, Tracing))];
    for observer in observers {
        let lines = Lines::default();
        let _subscriber = lines.subscribe();
        let guard = Guard::builder(MemoryStore::default())
            .observer(observer)
            .build();
        let work = |_: Attempt<_>| async {
            ::tracing::info!("charging");
            ok(()).await
        };
        guard.run(asked(), work).await.unwrap();
        let written = lines.take();
        let inside =
            |line: &String| line.starts_with("INFO attempt{") && line.ends_with("charging");
        assert!(written.iter().any(inside), "{written:#?}");
    }
}

/// Has no spans.
struct Quiet;

impl Observer for Quiet {
    fn on_event(&self, _: &Seen<'_>) {}
}
