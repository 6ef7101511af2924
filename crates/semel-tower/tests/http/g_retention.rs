//! G. Retention (rows 69 and 70; 71 belongs to the stores and the gateway).

use std::time::Duration;

use axum::Extension;
use axum::response::IntoResponse as _;
use semel::guard::Policy;
use semel::store::Retention;
use semel_tower::IdempotencyLayer;

use crate::support::{App, Call, Clocked, clocked};

const TTL: Duration = Duration::from_secs(2);

fn layer(store: Clocked, retention: Retention) -> IdempotencyLayer<Clocked> {
    IdempotencyLayer::new(store).with_policy(Policy::default().with_retention(retention))
}

/// Counted from completion, by the store's clock.
#[tokio::test]
async fn row_69_replays_last_the_whole_window_and_do_not_prolong_it() {
    let (store, clock) = clocked();
    let app = App::orders(layer(store, Retention::new(TTL)));
    let first = app.send(Call::order()).await;
    for _ in 0..6 {
        clock.advance(TTL * 3 / 20);
        app.send(Call::order()).await.assert_replay_of(&first);
    }
    // Half-open: the last instant before, and the end itself.
    clock.advance(TTL / 10 - Duration::from_micros(1));
    app.send(Call::order()).await.assert_replay_of(&first);
    clock.advance(Duration::from_micros(1));
    app.send(Call::order()).await.assert_first(201);
    assert_eq!(app.execs(), 2);
}

#[tokio::test]
async fn row_70_after_retention_the_key_is_new() {
    let (store, clock) = clocked();
    let app = App::orders(layer(store, Retention::new(TTL)));
    app.send(Call::order()).await.assert_first(201);
    clock.advance(TTL);
    app.send(Call::order().body("other"))
        .await
        .assert_first(201);
    assert_eq!(app.execs(), 2);
}

#[tokio::test]
async fn row_70_or_expired_while_a_tombstone_says_so() {
    let (store, clock) = clocked();
    let retention = Retention::new(TTL).with_tombstone(TTL);
    let app = App::orders(layer(store, retention));
    app.send(Call::order()).await.assert_first(201);
    clock.advance(TTL);
    app.send(Call::order()).await.assert_problem(409, "expired");
    clock.advance(TTL);
    app.send(Call::order()).await.assert_first(201);
    assert_eq!(app.execs(), 2);
}

/// But no shorter than the lease (30 s), in which a duplicate may wait for it.
#[tokio::test]
async fn a_response_may_say_how_long_it_is_kept() {
    for (chosen, kept) in [(60, 60), (0, 30)].map(|(a, b)| (secs(a), secs(b))) {
        let (store, clock) = clocked();
        let app = App::answering(layer(store, Retention::new(TTL)), move |n| {
            (Extension(Retention::new(chosen)), format!("answer {n}")).into_response()
        });
        let first = app.send(Call::order()).await;
        clock.advance(kept - Duration::from_micros(1));
        app.send(Call::order()).await.assert_replay_of(&first);
        clock.advance(Duration::from_micros(1));
        app.send(Call::order()).await.assert_first(200);
        assert_eq!(app.execs(), 2);
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
