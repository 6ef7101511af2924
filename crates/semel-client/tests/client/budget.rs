//! All calls together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use semel_client::Retry;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::support::order;

#[tokio::test(start_paused = true)]
async fn an_outage_makes_no_storm_and_no_call_is_abandoned() {
    // A thousand calls begin over ten seconds of an outage that lasts a minute.
    let calls = 1000;
    let began = Instant::now();
    let outage = Duration::from_mins(1);
    let (during, after) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (during.clone(), after.clone());
    let service = service_fn(move |_: Request<Full<Bytes>>| {
        let down = began.elapsed() < outage;
        let count = if down { &counts.0 } else { &counts.1 };
        count.fetch_add(1, Ordering::SeqCst);
        let mut answer = Response::new(Full::<Bytes>::default());
        if down {
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        std::future::ready(Ok::<_, std::io::Error>(answer))
    });
    let retry = Retry::new()
        .with_budget(20, 5)
        .with_deadline(Duration::from_mins(30));
    let client = retry.layer(service);
    let mut running = JoinSet::new();
    for call in 0..calls {
        let client = client.clone();
        running.spawn(async move {
            sleep(Duration::from_millis(10 * call)).await;
            client.oneshot(order()).await.map(|answer| answer.status())
        });
    }
    while let Some(ended) = running.join_next().await {
        assert_eq!(ended.unwrap().unwrap(), StatusCode::OK);
    }
    // One for each call, 20 in 100 more, and five a second: without a budget these calls make thousands.
    let (during, after) = (during.load(Ordering::SeqCst), after.load(Ordering::SeqCst));
    let allowed = 1000 + 200 + 5 * (60 + 10);
    assert!((1000..=allowed).contains(&during), "{during}");
    assert_eq!(after, 1000);
}

#[tokio::test(start_paused = true)]
async fn clones_share_a_budget_and_others_have_their_own() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let service = service_fn(move |_: Request<Full<Bytes>>| {
        count.fetch_add(1, Ordering::SeqCst);
        let mut answer = Response::new(Full::<Bytes>::default());
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        std::future::ready(Ok::<_, std::io::Error>(answer))
    });
    let none = || {
        Retry::new()
            .with_budget(0, 1)
            .with_deadline(Duration::from_secs(9))
    };
    let calls = |retry: &Retry| {
        let client = retry.clone().layer(service.clone());
        let calls = std::iter::repeat_with(move || client.clone().oneshot(order())).take(20);
        async {
            let mut running = calls.map(tokio::spawn).collect::<Vec<_>>();
            for call in running.drain(..) {
                call.await.unwrap().unwrap_err();
            }
        }
    };
    let shared = none();
    tokio::join!(calls(&shared), calls(&shared));
    // What ten seconds bring is there at the start, and one comes with each second.
    let shared = sent.swap(0, Ordering::SeqCst);
    assert!((40 + 10..40 + 20).contains(&shared), "{shared}");
    tokio::join!(calls(&none()), calls(&none()));
    let own = sent.load(Ordering::SeqCst);
    assert!((40 + 20..40 + 40).contains(&own), "{own}");
}
