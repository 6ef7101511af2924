//! Time and fences never go back.

use std::sync::Arc;
use std::time::Duration;

use semel::store::{Fence, Retention, StoreExt as _};
use semel::{ManualClock, Outcome, Store, Timestamp};

use super::{acquire, file, foreign, identity, open, options};

#[tokio::test]
async fn a_clock_set_back_before_the_next_start_goes_on_from_the_file() {
    let (_directory, path) = file();
    let at = |micros| Arc::new(ManualClock::new(Timestamp::from_micros(micros)));
    let first = options().clock(at(1_000_000_000)).open(&path).unwrap();
    let fence = acquire(&first, "first").await.token.fence;
    drop(first);

    let clock = at(5);
    let second = options().clock(clock.clone()).open(&path).unwrap();
    let token = acquire(&second, "second").await.token;
    assert!(token.fence > fence);
    let claimed = |entry: semel::store::Entry| entry.record.claimed_at.as_micros();
    let digest = *identity("second").digest();
    let at = claimed(second.get(&digest).await.unwrap().unwrap());
    assert_eq!(at, 1_000_000_000);
    clock.advance(Duration::from_micros(7));
    acquire(&second, "third").await;
    let at = claimed(
        second
            .get(identity("third").digest())
            .await
            .unwrap()
            .unwrap(),
    );
    assert_eq!(at, 1_000_000_007, "time goes on");
}

#[tokio::test]
async fn a_clock_that_is_behind_another_process_follows_it() {
    let (_directory, path) = file();
    let clock = |micros| Arc::new(ManualClock::new(Timestamp::from_micros(micros)));
    let ahead = options().clock(clock(9_000_000)).open(&path).unwrap();
    let behind = options().clock(clock(1_000_000)).open(&path).unwrap();
    let digest = *identity("brief").digest();
    let token = acquire(&behind, "brief").await.token;
    let retention = Retention::new(Duration::from_secs(1));
    let done = behind
        .complete(&digest, &token, &Outcome::void(), retention)
        .await;
    assert_eq!(done.unwrap(), semel::store::Fenced::Applied);
    assert!(behind.get(&digest).await.unwrap().is_some());
    acquire(&ahead, "other").await;
    assert_eq!(
        behind.get(&digest).await.unwrap(),
        None,
        "past its retention for both"
    );
}

#[tokio::test]
async fn fences_do_not_go_back_with_the_records() {
    let (_directory, path) = file();
    let high = i64::MAX - 10;
    drop(open(&path));
    foreign(&path)
        .execute("UPDATE semel_clock SET fence = ?1", [high])
        .unwrap();
    let store = open(&path);
    let fence = acquire(&store, "key").await.token.fence;
    assert_eq!(fence, Fence(high.unsigned_abs() + 1));
}
