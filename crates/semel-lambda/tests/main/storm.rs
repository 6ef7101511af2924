//! A FIFO queue, three sandboxes, and what befalls them: they are killed, frozen until others have
//! taken over, and messages that were handled come again. Each is applied once, in its group's order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Nonce;
use semel_stores::sqlite::rusqlite::Connection;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::stage::{
    Sandbox, Stage, TIMEOUT, batch, database, failures_of, freeze, in_group, task, thaw,
};

const GROUPS: usize = 8;
const OF_GROUP: usize = 10;
const FAULTS: i32 = 14;
const LEASE: Duration = Duration::from_millis(600);

/// A number below `bound`.
fn chance(bound: u64) -> u64 {
    let nonce = Nonce::random().unwrap();
    u64::from_le_bytes(nonce.as_bytes()[..8].try_into().unwrap()) % bound
}

/// The queue. As in SQS, nobody gets messages of a group of which others are out.
struct Queue {
    groups: Vec<VecDeque<Value>>,
    out: Vec<bool>,
}

type Taken = Vec<(usize, Value)>;

impl Queue {
    fn new(name: impl Fn(usize, usize) -> String) -> Self {
        let message = |group: usize, number: usize| {
            let name = name(group, number);
            // Some fail before they succeed.
            let more = json!({"takes_ms": chance(30), "fails_before": 1 + chance(4) / 3});
            in_group(&group.to_string(), task(&name, "write", &name, &more))
        };
        let groups = (0..GROUPS).map(|group| (0..OF_GROUP).map(|n| message(group, n)).collect());
        Self {
            groups: groups.collect(),
            out: vec![false; GROUPS],
        }
    }

    fn take(&mut self) -> Taken {
        let mut taken = Vec::new();
        for group in 0..GROUPS {
            if !self.out[group]
                && !self.groups[group].is_empty()
                && taken.len() < 10
                && chance(2) > 0
            {
                self.out[group] = true;
                let first = self.groups[group].iter().take(4);
                taken.extend(first.map(|message| (group, message.clone())));
            }
        }
        taken
    }

    /// The batch was answered; or it was not, in the time for which it was out.
    fn settle(&mut self, taken: &Taken, failures: Option<&[String]>) {
        for (group, message) in taken {
            self.out[*group] = false;
            let Some(failures) = failures else { continue };
            let id = &message["messageId"];
            // Now and then the queue forgets that it was told.
            if !failures.iter().any(|failed| id == failed) && chance(10) > 0 {
                self.groups[*group].retain(|kept| kept["messageId"] != *id);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.groups.iter().all(VecDeque::is_empty)
    }
}

/// What befalls a sandbox during an invocation, until there were enough faults.
async fn poll(stage: Arc<Stage>, queue: Arc<Mutex<Queue>>, faults: Arc<AtomicI32>, freezes: bool) {
    let mut sandbox = stage.sandbox().await;
    while !queue.lock().is_empty() {
        let taken = queue.lock().take();
        if taken.is_empty() {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        let payload = batch(taken.iter().map(|(_, message)| message.clone()));
        if chance(3) > 0 || faults.fetch_sub(1, Ordering::SeqCst) <= 0 {
            let answered = crate::stage::invoke(&sandbox, &payload).await;
            queue.lock().settle(&taken, Some(&failures_of(answered)));
        } else if freezes && chance(2) > 0 {
            frozen(&sandbox, &payload, || queue.lock().settle(&taken, None)).await;
        } else {
            tokio::select! {
                _ = sandbox.invoke(&payload, TIMEOUT) => {}
                () = sleep(Duration::from_millis(chance(60))) => {}
            }
            // Whatever it answered, nobody heard it.
            sandbox.kill().await;
            queue.lock().settle(&taken, None);
            sandbox = stage.sandbox().await;
        }
    }
}

/// Frozen in the middle, while others take over, and thawed. Its answer comes too late.
async fn frozen(sandbox: &Sandbox, payload: &Value, give_back: impl FnOnce()) {
    let freezing = async {
        sleep(Duration::from_millis(chance(60))).await;
        freeze(sandbox);
        sleep(LEASE).await;
        give_back();
        sleep(LEASE).await;
        thaw(sandbox);
    };
    let (answered, ()) = tokio::join!(crate::stage::invoke(sandbox, payload), freezing);
    failures_of(answered);
}

/// Plays it to its end; what it calls its messages.
async fn play(
    stage: Stage,
    freezes: bool,
) -> (Arc<Stage>, impl Fn(usize, usize) -> String + Clone) {
    let stage = Arc::new(stage.with("LEASE_MS", &LEASE.as_millis().to_string()));
    let prefix = stage.name();
    let name = move |group: usize, number: usize| format!("{prefix}-{group}-{number}");
    let queue = Arc::new(Mutex::new(Queue::new(name.clone())));
    let faults = Arc::new(AtomicI32::new(FAULTS));
    let sandboxes =
        [(); 3].map(|()| tokio::spawn(poll(stage.clone(), queue.clone(), faults.clone(), freezes)));
    for sandbox in sandboxes {
        let ended = timeout(Duration::from_secs(60), sandbox).await;
        ended.expect("an empty queue within a minute").unwrap();
    }
    assert!(faults.load(Ordering::SeqCst) < FAULTS);
    (stage, name)
}

/// Of each group all messages were applied, each once, in their order.
fn check(applied: &[String], name: impl Fn(usize, usize) -> String) {
    for group in 0..GROUPS {
        let expected: Vec<String> = (0..OF_GROUP).map(|number| name(group, number)).collect();
        let of_group: Vec<&String> = applied
            .iter()
            .filter(|applied| expected.contains(applied))
            .collect();
        assert!(
            of_group.into_iter().eq(&expected),
            "group {group} of {applied:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_through_kills() {
    let (stage, name) = play(Stage::new(), false).await;
    let store = Connection::open(stage.path().join("store.db")).unwrap();
    let mut all = store
        .prepare("SELECT name FROM effects ORDER BY rowid")
        .unwrap();
    let applied = all.query_map((), |row| row.get(0)).unwrap();
    let applied: Vec<String> = applied.map(Result::unwrap).collect();
    assert_eq!(applied.len(), GROUPS * OF_GROUP);
    check(&applied, name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_through_kills_and_freezes() {
    let (url, client) = database("storm").await;
    let (_, name) = play(Stage::on(url), true).await;
    let sql = "SELECT name FROM lambda_effects ORDER BY place";
    let applied = client.query(sql, &[]).await.unwrap();
    let applied: Vec<String> = applied.iter().map(|row| row.get(0)).collect();
    check(&applied, name);
}
