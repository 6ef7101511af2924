//! A FIFO queue, three sandboxes, and what befalls them: they are killed, frozen until others have
//! taken over, and messages that were handled come again. Each is applied once, in its group's order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::Nonce;
use semel_stores::sqlite::rusqlite::Connection;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::stage::{Stage, batch, database, failures_of, freeze, in_group, task, thaw};

const GROUPS: usize = 8;
const OF_GROUP: usize = 10;
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

    fn left(&self) -> usize {
        self.groups.iter().map(VecDeque::len).sum()
    }
}

/// What befell sandboxes while they had work in hand.
#[derive(Debug, Default)]
struct Faults {
    kills: AtomicUsize,
    freezes: AtomicUsize,
    /// Messages in the hands of a frozen sandbox whose late completion was refused.
    fenced: AtomicUsize,
}

/// How many of each there are to be.
#[derive(Debug, Clone, Copy)]
struct Plan {
    kills: usize,
    freezes: usize,
}

impl Faults {
    /// Whether the next one is a freeze; `None` where there were enough of both.
    fn next(&self, plan: Plan) -> Option<bool> {
        let kill = self.kills.load(Ordering::SeqCst) < plan.kills;
        let freeze = self.freezes.load(Ordering::SeqCst) < plan.freezes;
        (kill || freeze).then(|| freeze && (!kill || chance(2) > 0))
    }
}

async fn poll(stage: Arc<Stage>, queue: Arc<Mutex<Queue>>, faults: Arc<Faults>, plan: Plan) {
    let mut sandbox = stage.sandbox().await;
    loop {
        let (taken, left) = {
            let mut queue = queue.lock();
            (queue.take(), queue.left())
        };
        if left == 0 {
            return;
        }
        if taken.is_empty() {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        let payload = batch(taken.iter().map(|(_, message)| message.clone()));
        // Half of the messages see no fault by chance only; the others, until there were enough.
        let fault = faults
            .next(plan)
            .filter(|_| left <= GROUPS * OF_GROUP / 2 || chance(2) > 0);
        let process = sandbox.process.id().unwrap();
        let mut invoked = Box::pin(crate::stage::invoke(&sandbox, &payload));
        let answered = tokio::select! {
            answered = &mut invoked => Some(answered),
            () = at_work(&stage, process), if fault.is_some() => None,
        };
        match (answered, fault) {
            (Some(answered), _) => queue.lock().settle(&taken, Some(&failures_of(answered))),
            // Others take over, and it is thawed. Its answer comes too late.
            (None, Some(true)) => {
                freeze(&sandbox);
                let in_hand = stage.in_hand(process);
                sleep(LEASE).await;
                queue.lock().settle(&taken, None);
                sleep(LEASE).await;
                thaw(&sandbox);
                let failed = failures_of(invoked.await);
                let fenced = in_hand.iter().filter(|name| failed.contains(name)).count();
                faults.fenced.fetch_add(fenced, Ordering::SeqCst);
                let counts = usize::from(!in_hand.is_empty());
                faults.freezes.fetch_add(counts, Ordering::SeqCst);
            }
            // Whatever it answered, nobody heard it.
            (None, _) => {
                drop(invoked);
                sandbox.kill().await;
                let counts = usize::from(!stage.in_hand(process).is_empty());
                faults.kills.fetch_add(counts, Ordering::SeqCst);
                queue.lock().settle(&taken, None);
                sandbox = stage.sandbox().await;
            }
        }
    }
}

/// Until the process handles something, and a moment longer.
async fn at_work(stage: &Stage, process: u32) {
    while stage.in_hand(process).is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(chance(10))).await;
}

/// Plays it to its end; what it calls its messages.
async fn play(stage: Stage, plan: Plan) -> (Arc<Stage>, impl Fn(usize, usize) -> String + Clone) {
    let stage = Arc::new(stage.with("LEASE_MS", &LEASE.as_millis().to_string()));
    let prefix = stage.name();
    let name = move |group: usize, number: usize| format!("{prefix}-{group}-{number}");
    let queue = Arc::new(Mutex::new(Queue::new(name.clone())));
    let faults = Arc::new(Faults::default());
    let sandboxes =
        [(); 3].map(|()| tokio::spawn(poll(stage.clone(), queue.clone(), faults.clone(), plan)));
    for sandbox in sandboxes {
        let ended = timeout(Duration::from_secs(60), sandbox).await;
        ended.expect("an empty queue within a minute").unwrap();
    }
    eprintln!("with work in hand: {faults:?}");
    assert_eq!(faults.next(plan), None, "{faults:?} of {plan:?}");
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
    let plan = Plan {
        kills: 14,
        freezes: 0,
    };
    let (stage, name) = play(Stage::new(), plan).await;
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
    let plan = Plan {
        kills: 7,
        freezes: 7,
    };
    let (_, name) = play(Stage::on(url), plan).await;
    let sql = "SELECT name FROM lambda_effects ORDER BY place";
    let applied = client.query(sql, &[]).await.unwrap();
    let applied: Vec<String> = applied.iter().map(|row| row.get(0)).collect();
    check(&applied, name);
}
