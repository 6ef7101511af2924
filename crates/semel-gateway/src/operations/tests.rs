//! Decisions on a store in this process, which fails where it is told to.

use semel::memory::MemoryStore;
use semel::record::Change;
use semel::store::{
    Claim, ClaimRequest, Cursor, Fence, Fenced, Nonce, Page, Probe, Purged, Result, Retention,
    StoreExt as _, Waited,
};
use semel::{Fingerprint, Identity, Key, Outcome, Scope};
use serde_json::json;
use tokio::time::sleep;

use super::order::{DEFAULT_TTL, Order};
use super::*;
use crate::audit::{Came, DEFAULT_RETENTION};

#[derive(Default)]
struct Odd {
    memory: MemoryStore,
    /// Nothing is removed from its files.
    keeps_files: bool,
    /// A list finds nothing at first, and goes on.
    is_slow: bool,
}

#[rustfmt::skip]
impl Store for Odd {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.memory.claim(identity, request).await
    }
    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        self.memory.change(identity, change).await
    }
    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        self.memory.get(identity).await
    }
    async fn list(&self, query: &ListQuery) -> Result<Page> {
        if self.is_slow {
            sleep(COUNTING / 3).await;
            return Ok(Page { entries: Vec::new(), next: Some(Cursor([1].as_slice().into())) });
        }
        self.memory.list(query).await
    }
    async fn purge(&self, limit: usize) -> Result<Purged> {
        if self.keeps_files {
            return Err(StoreError::new(StoreErrorKind::NotApplied, "the disk is read-only"));
        }
        self.memory.purge(limit).await
    }
    async fn wait(&self, identity: &IdentityDigest, fence: Fence, timeout: Duration) -> Result<Waited> {
        self.memory.wait(identity, fence, timeout).await
    }
    async fn probe(&self) -> Result<Probe> {
        self.memory.probe().await
    }
    async fn close(&self) -> Result<()> {
        self.memory.close().await
    }
}

fn on(store: Odd) -> Operations<Arc<Odd>> {
    let store = Arc::new(store);
    Operations::new(Arc::clone(&store), Log::new(store, DEFAULT_RETENTION))
}

/// Claims an identity, and completes it with this.
async fn complete(store: &Odd, identity: &Identity, body: &[u8]) -> IdentityDigest {
    let nonce = Nonce::random().unwrap();
    let request = ClaimRequest::new(nonce, Fingerprint::of(b"a"), Duration::from_secs(60));
    let Claim::Acquired(acquired) = store.claim(identity, &request).await.unwrap() else {
        panic!("taken");
    };
    let (digest, outcome) = (*identity.digest(), Outcome::success(body));
    let done = store.complete(&digest, &acquired.token, &outcome, Retention::PAYMENT);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    digest
}

/// A completed order, and its fence.
async fn order_placed(store: &Odd) -> (IdentityDigest, u64) {
    let identity = Identity::new(Scope::anonymous(), "http", Key::new("order-1").unwrap());
    let id = complete(store, &identity, b"placed").await;
    let entry = store.get(&id).await.unwrap().unwrap();
    (id, entry.record.token.fence.0)
}

fn by(name: &str) -> Actor {
    let [name, from] = [name, "here"].map(str::to_owned);
    Actor { name, from }
}

fn because(fence: u64) -> Order {
    Order {
        fence: Some(fence),
        reason: "as said".to_owned(),
        ..Order::default()
    }
}

/// Bytes that may still be in the store's files are not said to be gone, nor the erasure to be refused.
#[tokio::test(start_paused = true)]
async fn what_is_erased_and_not_cleaned_is_not_known() {
    let operations = on(Odd {
        keeps_files: true,
        ..Odd::default()
    });
    let (id, fence) = order_placed(operations.store()).await;
    let (ada, order) = (by("ada"), because(fence));
    let erased = operations.act(&ada, &id, "erase", order, DEFAULT_TTL).await;
    let refused = erased.unwrap_err();
    assert!(refused.is(Code::ActionUnknown), "{refused}");
    assert!(
        refused
            .detail()
            .contains("may still be in the store's files")
    );
    let log = operations.log().page(None, 1).await.unwrap();
    assert_eq!(log.entries[0].result, Came::Unknown);
    let after = log.entries[0].after.clone().unwrap();
    assert_eq!(after["outcome"]["kind"], "omitted");
}

#[tokio::test]
async fn of_an_answer_that_is_erased_nothing_is_promised() {
    let operations = on(Odd::default());
    let (id, fence) = order_placed(operations.store()).await;
    let before = operations.detail(&operations.find(&id).await.unwrap());
    assert_eq!(before.summary.meaning(), "its answer is replayed");
    assert_eq!(before.actions.len(), 3);
    let ada = by("ada");
    let done = operations.act(&ada, &id, "erase", because(fence), DEFAULT_TTL);
    let after = operations.done(done.await.unwrap()).record;
    assert!(after.summary.meaning().contains("not replayed any more"));
    assert_eq!(after.actions, []);
    let again = because(after.summary.fence);
    let revealed = operations.reveal(&ada, &id, &again).await;
    assert!(revealed.unwrap_err().is(Code::WrongState));
    let ttl = Some("7d".to_owned());
    let extended = Order { ttl, ..again };
    let extended = operations
        .act(&ada, &id, "extend", extended, DEFAULT_TTL)
        .await;
    assert!(extended.unwrap_err().is(Code::WrongState));
}

/// Whoever names the attempt that they saw is shown that one's answer, or none.
#[tokio::test]
async fn another_attempts_answer_is_not_revealed() {
    let operations = on(Odd::default());
    let (id, fence) = order_placed(operations.store()).await;
    let ada = by("ada");
    let earlier = operations.reveal(&ada, &id, &because(fence - 1)).await;
    assert!(earlier.unwrap_err().is(Code::RecordChanged));
    let ttl = Some("7d".to_owned());
    let order = Order {
        ttl,
        ..because(fence)
    };
    let other = operations.reveal(&ada, &id, &order).await.unwrap_err();
    assert!(other.is(Code::InvalidRequest), "{other}");
    assert_eq!(operations.log().page(None, 9).await.unwrap().entries, []);
    let any = Order {
        fence: None,
        ..because(fence)
    };
    let revealed = operations.reveal(&ada, &id, &any).await.unwrap().unwrap();
    assert_eq!(revealed.1.body.as_deref(), Some("placed"));
}

/// None of the first says nothing about the rest.
#[tokio::test(start_paused = true)]
async fn nothing_found_in_time_is_not_counted() {
    let operations = on(Odd {
        is_slow: true,
        ..Odd::default()
    });
    assert_eq!(operations.counts().await.unknown, None);
    let empty = on(Odd::default());
    let none = Some(Count {
        records: 0,
        more: false,
    });
    assert_eq!(empty.counts().await.unknown, none);
}

/// However much was entered since, within the time that it holds.
#[tokio::test(start_paused = true)]
async fn a_proposal_is_found_among_many_entries() {
    let operations = on(Odd::default()).with_four_eyes(vec!["erase".to_owned()]);
    let (id, fence) = order_placed(operations.store()).await;
    let (ada, ben) = (by("ada"), by("ben"));
    let erase = async |actor, proposal| {
        let order = Order {
            proposal,
            ..because(fence)
        };
        operations
            .act(actor, &id, "erase", order, DEFAULT_TTL)
            .await
            .unwrap()
    };
    let proposed = erase(&ada, None).await;
    for _ in 0..=MOST {
        operations
            .reveal(&ben, &id, &because(fence))
            .await
            .unwrap()
            .unwrap();
    }
    let open = async |action: &str| {
        let found = operations.proposals(|intent| intent.action == action).await;
        let (open, is_all) = found.unwrap();
        let numbers = open.into_iter().map(|entry| entry.number);
        (numbers.collect::<Vec<_>>(), is_all)
    };
    assert_eq!(open("erase").await, (vec![proposed.number.clone()], true));
    assert_eq!(open("extend").await, (vec![], true));
    // Once.
    erase(&ben, Some(proposed.number)).await;
    assert_eq!(open("erase").await, (vec![], true));
}

#[tokio::test]
async fn a_damaged_entry_hides_no_other() {
    let operations = on(Odd::default());
    let (store, ada) = (operations.store(), by("ada"));
    let (id, fence) = order_placed(store).await;
    let reveal = async || {
        operations
            .reveal(&ada, &id, &because(fence))
            .await
            .unwrap()
            .unwrap();
    };
    reveal().await;
    let log = operations.log().page(None, 9).await.unwrap();
    let (period, nth) = log.entries[0].number.split_once('-').unwrap();
    assert_eq!(nth, "1");
    let second = Identity::new(Scope::new([period]), "audit@", Key::new("2").unwrap());
    complete(store, &second, b"no JSON").await;
    reveal().await;
    let log = operations.log().page(None, 9).await.unwrap();
    let results: Vec<_> = log.entries.iter().map(|entry| entry.result).collect();
    assert_eq!(results, [Came::Done, Came::Unknown, Came::Done]);
    let detail = log.entries[1].detail.as_deref().unwrap();
    assert!(detail.starts_with("the entry cannot be read: "), "{detail}");
    assert_eq!(json!(log.entries[1])["number"], format!("{period}-2"));
}
