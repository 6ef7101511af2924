//! How much goes on at the same time, and what is waited for.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel::memory::MemoryStore;
use semel::record::Change;
use semel::store::{Fenced, ListQuery};
use semel::{
    Clock as _, IdentityDigest, StateKind, Store, StoreError, StoreErrorKind, SystemClock,
};
use semel_lambda::{Answer, Dispatcher, Function, Inbox};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{batch, in_group, invocation, task};

/// Handlers that count how many of them run, and the most there were.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

fn function(crowd: &Arc<Crowd>) -> Function<MemoryStore> {
    let crowd = Arc::clone(crowd);
    let dispatcher = Dispatcher::new().on("task", move |_: Value, _| {
        let crowd = Arc::clone(&crowd);
        async move {
            let now = 1 + crowd.now.fetch_add(1, Ordering::SeqCst);
            crowd.most.fetch_max(now, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            crowd.now.fetch_sub(1, Ordering::SeqCst);
            crowd.done.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(())
        }
    });
    Function::new(Inbox::new(MemoryStore::default(), "tests"), dispatcher)
}

fn tasks(count: usize) -> Vec<Value> {
    let ids = (0..count).map(|number| format!("m-{number}"));
    ids.map(|id| task(&id, "task", &id, &json!({}))).collect()
}

#[tokio::test(start_paused = true)]
async fn as_many_are_handled_at_a_time_as_allowed() {
    for (allowed, grouped, most) in [
        (1, false, 1),
        (3, false, 3),
        (100, false, 20),
        (100, true, 4),
    ] {
        let crowd = Arc::new(Crowd::default());
        let function = function(&crowd).with_concurrency(NonZeroUsize::new(allowed).unwrap());
        let messages = tasks(20).into_iter().enumerate();
        let messages = messages.map(|(number, message)| match grouped {
            true => in_group(&(number % 4).to_string(), message),
            false => message,
        });
        let answer = function.invoke(invocation(&batch(messages))).await.unwrap();
        assert_eq!(answer, Answer::Batch(Default::default()));
        assert_eq!(crowd.most.load(Ordering::SeqCst), most);
        assert_eq!(crowd.done.load(Ordering::SeqCst), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_observer_fails_the_batch_after_all_have_ended() {
    let crowd = Arc::new(Crowd::default());
    let function = function(&crowd).with_on_failure(|_| panic!("as it was told"));
    let mut messages = tasks(3);
    messages.insert(0, task("m", "unknown", "m", &json!({})));
    let error = function
        .invoke(invocation(&batch(messages)))
        .await
        .unwrap_err();
    assert_eq!(error.name(), "Panicked");
    assert_eq!(crowd.done.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_setting_after_a_clone_holds_for_the_value_it_was_made_on() {
    let crowd = Arc::new(Crowd::default());
    let one = NonZeroUsize::new(1).unwrap();
    let function = function(&crowd);
    let narrow = function.clone().with_concurrency(one);
    let whole = narrow.clone().with_whole_batches();
    let unknown = || batch([task("m", "unknown", "m", &json!({}))]);
    let failed = whole.invoke(invocation(&unknown())).await.unwrap_err();
    assert_eq!(failed.name(), "Batch");
    assert!(narrow.invoke(invocation(&unknown())).await.is_ok());
    narrow.invoke(invocation(&batch(tasks(3)))).await.unwrap();
    assert_eq!(crowd.most.load(Ordering::SeqCst), 1);
    let more = tasks(6).into_iter().skip(3);
    function.invoke(invocation(&batch(more))).await.unwrap();
    assert_eq!(crowd.most.load(Ordering::SeqCst), 3);
}

#[test]
fn the_function_runs_on_managed_instances_too() {
    fn concurrent<F: tower_service::Service<I, Future: Send> + Clone + Send + 'static, I>(_: &F) {}
    concurrent(&function(&Arc::default()));
}

/// A store that takes nothing while it is told to be away, and then one record before the others.
#[derive(Default)]
struct Away {
    memory: MemoryStore,
    is_away: AtomicBool,
    first: Mutex<Option<IdentityDigest>>,
}

impl Store for Away {
    async fn change(
        &self,
        identity: &IdentityDigest,
        change: &Change,
    ) -> semel::store::Result<Fenced> {
        let is_first = *self.first.lock().unwrap() == Some(*identity);
        if self.is_away.load(Ordering::SeqCst) && !is_first {
            return Err(StoreError::new(StoreErrorKind::NotApplied, "away"));
        }
        self.memory.change(identity, change).await
    }
    semel::delegate!(memory: claim, get, list, purge, wait, probe, close);
}

/// A sandbox that answered is frozen, and tells the store nothing more.
#[tokio::test(start_paused = true)]
async fn the_function_answers_when_the_store_knows() {
    let store = Arc::new(Away::default());
    let there = Arc::clone(&store);
    let dispatcher = Dispatcher::new().on("task", move |_: Value, _| {
        there.is_away.store(true, Ordering::SeqCst);
        ok()
    });
    let inbox = Inbox::new(Arc::clone(&store), "tests");
    let guard = inbox.guard().clone();
    let function = Function::new(inbox, dispatcher);
    let back = Arc::clone(&store);
    tokio::spawn(async move {
        sleep(Duration::from_secs(8)).await;
        back.is_away.store(false, Ordering::SeqCst);
    });
    let once = batch(tasks(1));
    function.invoke(invocation(&once)).await.unwrap();
    assert_eq!(guard.unsettled(), 0);

    // One that stays away is waited for until a second before the deadline.
    let begun = tokio::time::Instant::now();
    let mut other = invocation(&batch([task("m", "task", "other", &json!({}))]));
    let now = SystemClock::new().now().as_micros() / 1000;
    other.context.deadline = now + 60_000;
    function.invoke(other).await.unwrap();
    assert_eq!(guard.unsettled(), 1);
    // No other invocation is held up by that.
    let unknown = batch([task("m", "unknown", "m", &json!({}))]);
    let short = tokio::time::Instant::now();
    function.invoke(invocation(&unknown)).await.unwrap();
    assert_eq!(short.elapsed(), Duration::ZERO);
    assert!((30..65).contains(&begun.elapsed().as_secs()));

    // The store may learn of what is older first.
    let running = store
        .memory
        .list(&ListQuery::new(StateKind::InFlight))
        .await;
    let older = running.unwrap().entries[0].label.digest;
    let back = Arc::clone(&store);
    tokio::spawn(async move {
        sleep(Duration::from_secs(2)).await;
        *back.first.lock().unwrap() = Some(older);
        sleep(Duration::from_secs(3)).await;
        back.is_away.store(false, Ordering::SeqCst);
    });
    let newer = batch([task("n", "task", "newer", &json!({}))]);
    function.invoke(invocation(&newer)).await.unwrap();
    assert_eq!(guard.unsettled(), 0);
}

async fn ok() -> Result<(), std::io::Error> {
    Ok(())
}
