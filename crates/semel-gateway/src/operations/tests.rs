//! Decisions on a store in this process, which fails where it is told to.

use std::sync::Mutex;

use semel::memory::{Limits, MemoryStore};
use semel::record::Change;
use semel::sealed::Keys;
use semel::store::{
    Claim, ClaimRequest, Cursor, Fenced, Nonce, Page, Purged, Result, Retention, StoreExt as _,
    Token, Verdict,
};
use semel::{Clock, Fingerprint, Identity, Key, Outcome, Scope, State, Timestamp};
use serde_json::json;
use tokio::time::sleep;

use super::act::is_made;
use super::order::{Many, OUTCOME_RETENTION, Order};
use super::*;
use crate::audit::{Came, DEFAULT_RETENTION};

#[derive(Default)]
struct Odd {
    memory: MemoryStore,
    /// Nothing is removed from its files.
    keeps_files: bool,
    /// A list finds nothing at first, and goes on.
    is_slow: bool,
    /// Its lists look at all records, so that those of few take many calls.
    has_no_index: bool,
    /// The answer to the next decision is lost, and this is claimed before it is sent again.
    claimed: Mutex<Option<Identity>>,
}

#[rustfmt::skip]
impl Store for Odd {
    semel::delegate!(memory: claim, get, wait, probe, close);

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let done = self.memory.change(identity, change).await?;
        let taken = self.claimed.lock().unwrap().take_if(|_| matches!(change, Change::Resolve(_)));
        let Some(taken) = taken else { return Ok(done) };
        hold(&self.memory, &taken).await;
        Err(StoreError::new(StoreErrorKind::Unknown, "the connection was lost"))
    }
    async fn list(&self, query: &ListQuery) -> Result<Page> {
        if self.is_slow {
            sleep(COUNTING / 3).await;
            return Ok(Page { entries: Vec::new(), next: Some(Cursor([1].as_slice().into())) });
        }
        let calls = query.after.as_ref().map_or(0, |Cursor(bytes)| bytes[0]);
        if self.has_no_index && query.state != StateKind::Completed && calls < 3 {
            sleep(Duration::from_millis(25)).await;
            return Ok(Page { entries: Vec::new(), next: Some(Cursor([calls + 1].as_slice().into())) });
        }
        let after = query.after.clone().filter(|Cursor(bytes)| bytes.len() > 1);
        self.memory.list(&ListQuery { after, ..query.clone() }).await
    }
    async fn purge(&self, limit: usize) -> Result<Purged> {
        if self.keeps_files {
            return Err(StoreError::new(StoreErrorKind::NotApplied, "the disk is read-only"));
        }
        self.memory.purge(limit).await
    }
}

fn on(store: Odd) -> Operations<Arc<Odd>> {
    let store = Arc::new(store);
    Operations::new(Arc::clone(&store), Log::new(store, DEFAULT_RETENTION))
}

/// Claims an identity.
async fn hold(store: &impl Store, identity: &Identity) -> Token {
    let nonce = Nonce::random().unwrap();
    let request = ClaimRequest::new(nonce, Fingerprint::of(b"a"), Duration::from_secs(60));
    match store.claim(identity, &request).await.unwrap() {
        Claim::Acquired(acquired) => acquired.token,
        _ => panic!("taken"),
    }
}

/// Claims an identity, and says that nobody knows what came of it; its fence.
async fn lose(store: &impl Store, identity: &Identity) -> u64 {
    let token = hold(store, identity).await;
    let marked = store.mark_unknown(identity.digest(), &token).await;
    assert_eq!(marked.unwrap(), Fenced::Applied);
    token.fence.0
}

/// Claims an identity, and completes it with this.
async fn complete(store: &impl Store, identity: &Identity, body: &[u8]) -> IdentityDigest {
    let token = hold(store, identity).await;
    let (digest, outcome) = (*identity.digest(), Outcome::success(body));
    let done = store.complete(&digest, &token, &outcome, Retention::PAYMENT);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    digest
}

fn order_named(key: &str) -> Identity {
    Identity::new(Scope::anonymous(), "http", Key::new(key).unwrap())
}

/// A completed order, and its fence.
async fn order_placed(store: &Odd) -> (IdentityDigest, u64) {
    let id = complete(store, &order_named("order-1"), b"placed").await;
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
    let erased = operations
        .act(&ada, &id, "erase", order, OUTCOME_RETENTION)
        .await;
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
    let done = operations.act(&ada, &id, "erase", because(fence), OUTCOME_RETENTION);
    let after = operations.done(done.await.unwrap()).record;
    assert!(after.summary.meaning().contains("not replayed any more"));
    assert_eq!(after.actions, []);
    let again = because(after.summary.fence);
    let revealed = operations.reveal(&ada, &id, &again).await;
    assert!(revealed.unwrap_err().is(Code::WrongState));
    let ttl = Some("7d".to_owned());
    let extended = Order { ttl, ..again };
    let extended = operations
        .act(&ada, &id, "extend", extended, OUTCOME_RETENTION)
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
            .act(actor, &id, "erase", order, OUTCOME_RETENTION)
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

/// A store that looks through all records for those of a state shows what is there on the first page, and all of
/// them once in the end.
#[tokio::test(start_paused = true)]
async fn what_is_rare_does_not_hide_what_is_there() {
    let operations = on(Odd {
        has_no_index: true,
        ..Odd::default()
    });
    let (placed, _) = order_placed(operations.store()).await;
    let lost = order_named("order-2");
    lose(operations.store(), &lost).await;

    let (mut pages, mut from) = (Vec::new(), Position::default());
    loop {
        let page = operations
            .list(&Filter::default(), &from, 10)
            .await
            .unwrap();
        let ids = page.entries.iter().map(|entry| entry.label.digest);
        pages.push(ids.collect::<Vec<_>>());
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(pages[0], [placed]);
    assert_eq!(pages.concat(), [placed, *lost.digest()]);
}

/// The answer to a release was lost, and the client's retry was quicker than asking again.
#[tokio::test(start_paused = true)]
async fn a_decision_is_known_as_made_whatever_was_claimed_since() {
    let order = order_named("order-1");
    let operations = on(Odd {
        claimed: Mutex::new(Some(order.clone())),
        ..Odd::default()
    });
    let fence = lose(operations.store(), &order).await;
    let (ada, id) = (by("ada"), order.digest());
    let done = operations.act(&ada, id, "release", because(fence), OUTCOME_RETENTION);
    assert_eq!(done.await.unwrap().entry.record.state, State::InFlight);
    let log = operations.log().page(None, 1).await.unwrap();
    assert_eq!(log.entries[0].result, Came::Done);
}

/// Two who share a token and a reason decide about one attempt.
#[tokio::test(start_paused = true)]
async fn a_decision_of_another_kind_is_not_taken_for_it() {
    let operations = on(Odd::default());
    let order = order_named("order-1");
    let fence = lose(operations.store(), &order).await;
    let (ada, id) = (by("ada"), order.digest());
    let done = operations.act(&ada, id, "release", because(fence), OUTCOME_RETENTION);
    let record = done.await.unwrap().entry.record;
    let happened = Verdict::Happened {
        outcome: Outcome::success(b"placed"),
        retention: Retention::PAYMENT,
    };
    for (verdict, is_it) in [(Verdict::DidNotHappen, true), (happened, false)] {
        let resolution = ada.decides(verdict, "as said", semel::store::Fence(fence));
        let before = Timestamp::from_micros(0);
        assert_eq!(is_made(&record, &resolution.unwrap(), before), is_it);
    }
}

/// The store's clock, an hour behind this machine's.
struct Behind;

impl Clock for Behind {
    fn now(&self) -> Timestamp {
        about_now().before(Duration::from_hours(1))
    }
}

fn sealing(store: &AnyStore) -> Operations<AnyStore> {
    let keys = Keys::parse("a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    let log = Log::new(store.clone(), DEFAULT_RETENTION);
    let mut operations = Operations::new(store.clone(), log);
    operations.sealed = Some(Sealed::new(store.clone(), keys.unwrap()));
    operations
}

fn rotation() -> Many {
    Many {
        reason: "rotation".to_owned(),
        ..Many::default()
    }
}

/// Whoever took it for done would remove the key of an answer that is only out of reach.
#[tokio::test]
async fn encrypting_anew_is_not_done_while_answers_cannot_be_read() {
    let store = AnyStore::new(MemoryStore::default());
    let order = order_named("order-1");
    let outcome = Outcome::success(b"a large answer").stand_in(b"in a bucket");
    let token = hold(&store, &order).await;
    let done = store.complete(order.digest(), &token, &outcome, Retention::PAYMENT);
    assert_eq!(done.await.unwrap(), Fenced::Applied);
    complete(&store, &order_named("order-2"), b"placed").await;
    let operations = sealing(&store);
    let (ada, all) = (by("ada"), rotation());
    let done = operations.many(&ada, "reencrypt", &all, |_| ());
    let refused = done.await.unwrap_err();
    assert!(
        refused.detail().contains("1 answers outside the store"),
        "{refused}"
    );
    let log = operations.log().page(None, 1).await.unwrap();
    let entry = &log.entries[0];
    assert_eq!(entry.result, Came::Unknown);
    assert_eq!(entry.after, Some(json!({ "records": 1, "left": 1 })));
}

#[tokio::test]
async fn encrypting_anew_ends_no_retention_sooner() {
    let store = AnyStore::new(MemoryStore::with_clock(Limits::default(), Behind));
    let id = complete(&store, &order_named("order-1"), b"placed").await;
    let operations = sealing(&store);
    let ends = async || store.get(&id).await.unwrap().unwrap().record.expires_at;
    let before = ends().await;
    let (ada, all) = (by("ada"), rotation());
    let done = operations.many(&ada, "reencrypt", &all, |_| ());
    assert_eq!(done.await.unwrap().records, 1);
    let after = ends().await;
    assert!(after >= before, "{after:?} {before:?}");
    assert!(before.until(after) < Duration::from_mins(1));
}

#[tokio::test]
async fn a_page_does_not_hold_what_it_does_not_show() {
    let operations = on(Odd::default());
    let long = vec![b'x'; 1 << 20];
    complete(operations.store(), &order_named("order-1"), &long).await;
    let (all, start) = (Filter::default(), Position::default());
    let found = operations.list(&all, &start, 10).await.unwrap();
    let record = &found.entries[0].record;
    let State::Completed(outcome) = &record.state else {
        panic!("{record:?}");
    };
    assert!(outcome.as_bytes().len() < 100);
}
