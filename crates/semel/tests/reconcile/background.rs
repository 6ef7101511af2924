//! Without a caller: lost attempts resolve by themselves.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use semel::guard::{Background, ReconcileOptions};
use semel::record::Change;
use semel::store::{Claim, ClaimRequest, Entry, ListQuery, Page, Refusal, Result};
use semel::{IdentityDigest, StateKind, StoreError, StoreErrorKind};

use super::*;

fn background(guard: &Guard<Memory>) -> Background<Memory> {
    Background::new(guard.clone(), [("pay", policy())])
}

fn once() -> ReconcileOptions {
    ReconcileOptions::in_line().with_attempts(1)
}

#[tokio::test(start_paused = true)]
async fn lost_attempts_resolve_by_themselves() {
    for (finding, ran) in [
        (happened(), replayed()),
        (
            Finding::DidNotHappen,
            Done::Fresh("paid by attempt 2".to_owned()),
        ),
    ] {
        let (store, script) = (Memory::default(), Script::new([say(finding)]));
        let guard = guard(&store, &script);
        let (charge, fence) = lost_while_charging(&guard).await;
        let reconciling = tokio::spawn(background(&guard).run());
        // It lapsed, and no claim came since.
        sleep(Duration::from_secs(1)).await;
        let audit = record(&store).await.resolved.unwrap();
        assert!(audit.reason.contains("(question 1, in the background)"));
        assert_eq!((audit.before, audit.fence), (StateKind::InFlight, fence));
        let case = Question {
            // Nobody brought it; but what the bank was given is known.
            key: None,
            about: None,
            note: "POST".to_owned(),
            hint: identity().key().hint().to_owned(),
            operation: "pay".to_owned(),
            fence,
            attempt: 1,
            asked: 1,
            charge,
            reserved: Some("seat 12".to_owned()),
        };
        assert_eq!(script.asked(), [case]);
        assert_eq!(pay(&guard).await.unwrap(), ran);
        reconciling.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn it_looks_again_and_again() {
    let (store, script) = (Memory::default(), Script::new([say(happened())]));
    let guard = guard(&store, &script);
    let reconciling = tokio::spawn(background(&guard).run());
    sleep(Duration::from_mins(10)).await;
    let attempt = begin(&guard, &asked()).await;
    let _ = attempt.mark_unknown().await.unwrap();
    // Every 15 to 30 s.
    sleep(Duration::from_secs(31)).await;
    assert_eq!(record(&store).await.state.kind(), StateKind::Completed);
    assert_eq!(script.asked().len(), 1);
    reconciling.abort();
}

#[tokio::test(start_paused = true)]
async fn only_lost_attempts_at_its_operations() {
    let (store, script) = (Memory::default(), Script::new([say(happened())]));
    let guard = guard(&store, &script);
    let other = of_operation("refund");
    lost(&guard, other).await;
    // Running.
    let running = begin(&guard, &asked()).await;
    let mut background = background(&guard);
    let tally = background.turn().await.unwrap();
    assert_eq!((tally.resolved, tally.pending, tally.given_up), (0, 0, 0));
    assert_eq!(script.asked(), []);
    assert_eq!(record(&store).await.state.kind(), StateKind::InFlight);
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn it_asks_less_and_less_often_and_gives_up() {
    let acts = [Act::Fail, Act::Panic, say(Finding::StillUnknown)];
    let (store, script) = (Memory::default(), Script::new(acts));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let options = ReconcileOptions::background().with_attempts(6);
    let mut background = background(&guard).with_options(options);
    let mut tally = background.turn().await.unwrap();
    while tally.given_up == 0 {
        assert_eq!(tally.pending, 1);
        background.rest().await;
        tally = background.turn().await.unwrap();
    }
    let times = script.times.lock().unwrap().clone();
    for (asked, two) in times.windows(2).enumerate() {
        let (pause, most) = (two[1] - two[0], Duration::from_secs(1 << asked));
        let late = Duration::from_millis(10);
        assert!(
            (most / 2..most + late).contains(&pause),
            "{asked}: {pause:?}"
        );
    }
    let asked: Vec<_> = script.asked().iter().map(|case| case.asked).collect();
    assert_eq!(asked, [1, 2, 3, 4, 5, 6]);
    assert_eq!(script.count(Signal::ReconcileGaveUp), 1);
    assert_eq!(script.news().last().unwrap(), "6 GaveUp");

    // Left alone from now on.
    for _ in 0..10 {
        background.rest().await;
        let tally = background.turn().await.unwrap();
        assert_eq!((tally.pending, tally.given_up), (0, 1));
    }
    assert_eq!(script.asked().len(), 6);
    assert_eq!(script.count(Signal::ReconcileGaveUp), 1);
    // A caller in line asks all the same.
    pay(&guard).await.unwrap_err();
    assert_eq!(script.asked().len(), 9);

    // An operator has looked.
    resolve(&store, semel::store::Verdict::DidNotHappen).await;
    sleep(Duration::from_secs(30)).await;
    let tally = background.turn().await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn another_attempt_is_another_case() {
    let (store, script) = (Memory::default(), Script::new([say(Finding::StillUnknown)]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let options = ReconcileOptions::background().with_attempts(1);
    let mut background = background(&guard).with_options(options);
    assert_eq!(background.turn().await.unwrap().given_up, 1);
    // Taken over, and lost again.
    let retrying = Guard::new(store.clone(), policy().with_on_lost(OnLost::Retry));
    lost(&retrying, identity()).await;
    assert_eq!(background.turn().await.unwrap().given_up, 1);
    let attempts: Vec<_> = script.asked().iter().map(|case| case.attempt).collect();
    assert_eq!(attempts, [1, 2]);
}

/// While it is asked about, another attempt takes over: the answer was about the one before.
#[tokio::test(start_paused = true)]
async fn a_takeover_meanwhile_refuses_the_answer() {
    let act = Act::Late(Duration::from_secs(2), happened());
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let reconciling = tokio::spawn(background(&guard).run());
    sleep(Duration::from_secs(1)).await;
    let retrying = Guard::new(store.clone(), policy().with_on_lost(OnLost::Retry));
    let second = begin(&retrying, &asked()).await;
    let before = record(&store).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(script.news(), ["1 Refused(Superseded)"]);
    assert_eq!(record(&store).await, before);
    drop(second);
    reconciling.abort();
}

#[tokio::test(start_paused = true)]
async fn it_leaves_to_callers_in_line_what_they_ask() {
    let act = Act::Late(Duration::from_secs(2), happened());
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let caller = {
        let guard = guard.clone();
        tokio::spawn(async move { pay(&guard).await })
    };
    sleep(Duration::from_secs(1)).await;
    let tally = background(&guard).turn().await.unwrap();
    assert_eq!((tally.resolved, tally.pending), (0, 1));
    assert_eq!(caller.await.unwrap().unwrap(), replayed());
    assert_eq!(script.asked().len(), 1);
}

/// Two processes on one store.
#[tokio::test(start_paused = true)]
async fn of_two_answers_one_counts() {
    let store = Memory::default();
    let scripts = [happened(), Finding::DidNotHappen]
        .map(|finding| Script::new([Act::Late(Duration::from_secs(1), finding)]));
    let guards = [guard(&store, &scripts[0]), guard(&store, &scripts[1])];
    lost(&guards[0], identity()).await;
    let [one, two] = &guards;
    let (mut one, mut two) = (background(one), background(two));
    let (one, two) = tokio::join!(one.turn(), two.turn());
    assert_eq!(one.unwrap().resolved + two.unwrap().resolved, 1);
    let of = |signal| {
        scripts
            .iter()
            .map(|script| script.count(signal))
            .sum::<usize>()
    };
    assert_eq!((of(Signal::Resolved), of(Signal::ResolveRefused)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn many_are_asked_a_few_at_a_time() {
    struct Crowd {
        now: AtomicU32,
        most: AtomicU32,
    }
    impl Reconciler for Crowd {
        fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
            Box::pin(async {
                let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(now, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                self.now.fetch_sub(1, Ordering::SeqCst);
                Ok(Finding::DidNotHappen.into())
            })
        }
    }
    let crowd = Arc::new(Crowd {
        now: AtomicU32::new(0),
        most: AtomicU32::new(0),
    });
    let store = Memory::default();
    let guard = Guard::builder(store)
        .policy(policy())
        .reconciler(crowd.clone())
        .build();
    many_lost(guard.store(), 0..250).await;
    let background = background(&guard).with_at_once(5);
    let mut background = background.with_every(Duration::from_mins(2));
    assert_eq!(background.turn().await.unwrap().resolved, 250);
    assert_eq!(crowd.most.load(Ordering::SeqCst), 5);
}

/// Attempts that nobody settles, with these numbers in their keys.
async fn many_lost(store: &Memory, numbers: Range<u32>) {
    for number in numbers {
        assert!(matches!(claim(store, number).await, Claim::Acquired(_)));
    }
    sleep(LEASE).await;
}

async fn claim(store: &Memory, number: u32) -> Claim {
    let key = Key::new(&format!("key-{number}")).unwrap();
    let identity = Identity::new(Scope::new(["tenant"]), "pay", key);
    let mut request = ClaimRequest::new(Nonce::random().unwrap(), Fingerprint::of(b""), LEASE);
    request.on_lost = OnLost::Reconcile;
    store.claim(&identity, &request).await.unwrap()
}

/// It has 10,000 in mind; the turn of the others comes when these are done.
#[tokio::test(start_paused = true)]
async fn of_very_many_some_wait_for_their_turn() {
    let (store, script) = (Memory::default(), Script::new([say(Finding::StillUnknown)]));
    let guard = guard(&store, &script);
    let options = ReconcileOptions::background().with_attempts(2);
    let mut background = background(&guard).with_options(options);
    many_lost(&store, 0..1_000).await;
    assert_eq!(background.turn().await.unwrap().pending, 1_000);
    many_lost(&store, 1_000..12_000).await;
    // Those that were asked about first wait on, wherever they lie among the new.
    let pending = background.turn().await.unwrap().pending;
    // It looks by the page.
    assert!((9_000..9_200).contains(&pending), "{pending}");
    for _ in 0..4 {
        sleep(Duration::from_mins(1)).await;
        background.turn().await.unwrap();
    }
    let tally = background.turn().await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, 12_000));
    assert_eq!(script.asked().len(), 2 * 12_000);
}

/// A job goes on to the last, and takes none twice that becomes unknown meanwhile.
#[tokio::test(start_paused = true)]
async fn a_job_goes_through_very_many_once() {
    const LOST: u32 = 10_200;
    struct Retried {
        store: Memory,
        asked: AtomicU32,
    }
    impl Reconciler for Retried {
        fn reconcile<'a>(&'a self, _: &'a Case<'_>) -> Answered<'a> {
            Box::pin(async {
                if self.asked.fetch_add(1, Ordering::SeqCst) == 0 {
                    for number in 0..LOST {
                        assert!(matches!(
                            claim(&self.store, number).await,
                            Claim::Unknown { .. }
                        ));
                    }
                }
                Ok(Finding::StillUnknown.into())
            })
        }
    }
    let store = Memory::default();
    let retried = Arc::new(Retried {
        store: store.clone(),
        asked: AtomicU32::new(0),
    });
    let guard = Guard::builder(store.clone())
        .policy(policy())
        .reconciler(retried.clone())
        .reconcile_options(once())
        .build();
    many_lost(&store, 0..LOST).await;
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, LOST as usize));
    assert_eq!(retried.asked.load(Ordering::SeqCst), LOST);
}

#[tokio::test(start_paused = true)]
async fn all_at_once_for_a_job() {
    let acts = [Act::Fail, say(happened())];
    let (store, script) = (Memory::default(), Script::new(acts));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    lost(&guard, of_operation("refund")).await;
    lost(&guard, of_operation("other")).await;
    let tally = guard
        .reconcile_all(["pay", "refund"].map(|name| (name, policy())))
        .await
        .unwrap();
    assert_eq!((tally.resolved, tally.given_up), (2, 0));
    assert_eq!(script.asked().len(), 3);
    let Entry { record, .. } = store
        .get(of_operation("other").digest())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.state.kind(), StateKind::InFlight);
    // Nothing left to do.
    assert_eq!(
        guard
            .reconcile_all([("pay", policy())])
            .await
            .unwrap()
            .resolved,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_gives_up_within_its_bound() {
    let (store, script) = (Memory::default(), Script::new([Act::Hang]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.resolved, tally.given_up), (0, 1));
    assert_eq!(script.asked().len(), 3);
    assert_eq!(script.count(Signal::ReconcileGaveUp), 1);
}

/// A store without a clock, for which an attempt runs until it has watched it for a lease.
struct Watching {
    memory: Memory,
    since: Mutex<Option<Instant>>,
    needed: Duration,
    // The clock of who claimed went back before it renewed.
    is_skewed: bool,
}

impl Watching {
    fn new(needed: Duration) -> Self {
        Self {
            memory: Memory::default(),
            since: Mutex::default(),
            needed,
            is_skewed: false,
        }
    }
}

impl Store for Watching {
    async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        self.memory.claim(identity, request).await
    }

    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        if let Change::Resolve(_) = change {
            let since = *self.since.lock().unwrap().get_or_insert(Instant::now());
            if since.elapsed() < self.needed {
                return Ok(Fenced::Refused(Refusal::Running));
            }
        }
        self.memory.change(identity, change).await
    }

    async fn get(&self, identity: &IdentityDigest) -> Result<Option<Entry>> {
        let mut entry = self.memory.get(identity).await?;
        if let Some(Entry { record, .. }) = entry.as_mut().filter(|_| self.is_skewed) {
            record.claimed_at = record.lease_until;
        }
        Ok(entry)
    }

    semel::delegate!(memory: list, purge, wait, probe, close);
}

/// Others at its operation have a longer lease, and its own is not in the record.
#[tokio::test(start_paused = true)]
async fn an_attempt_is_watched_for_its_own_lease() {
    let long = policy().with_lease(Duration::from_hours(24));
    for (as_a_job, is_skewed, questions) in [
        (false, false, 2),
        (false, true, 12),
        (true, false, 2),
        (true, true, 12),
    ] {
        let script = Script::new([say(Finding::DidNotHappen)]);
        let store = Watching {
            is_skewed,
            ..Watching::new(LEASE)
        };
        let guard = builder(store, &script).reconcile_options(once()).build();
        lost(&guard, identity()).await;
        let begun = Instant::now();
        let operations = [("pay", policy()), ("pay", long)];
        if as_a_job {
            let done = guard.reconcile_all(operations).await;
            assert_eq!(done.unwrap().resolved, 1);
        } else {
            let mut background = Background::new(guard, operations).with_options(once());
            while background.turn().await.unwrap().resolved == 0 {
                background.rest().await;
            }
        }
        assert!(begun.elapsed() < 2 * LEASE, "{:?}", begun.elapsed());
        // Where clocks say nothing it is asked in vain, less and less often.
        assert!(script.news().len() <= questions, "{:?}", script.news());
    }
}

/// The answer that came too early is no question.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_has_to_be_watched_first_is_asked_about_again() {
    for as_a_job in [true, false] {
        let script = Script::new([say(Finding::DidNotHappen)]);
        let guard = builder(Watching::new(LEASE), &script)
            .reconcile_options(once())
            .build();
        lost(&guard, identity()).await;
        let begun = Instant::now();
        if as_a_job {
            assert_eq!(
                guard
                    .reconcile_all([("pay", policy())])
                    .await
                    .unwrap()
                    .resolved,
                1
            );
        } else {
            let mut background = Background::new(guard, [("pay", policy())]).with_options(once());
            assert_eq!(background.turn().await.unwrap().pending, 1);
            // A look at the store meanwhile forgets nothing.
            let mut turns = 0;
            while background.turn().await.unwrap().resolved == 0 {
                turns += 1;
                assert!(turns < 5, "{:?}", script.news());
                background.rest().await;
            }
        }
        assert_eq!(script.news(), ["1 Refused(Running)", "1 DidNotHappen"]);
        assert!(begun.elapsed() < 2 * LEASE);
    }
}

/// It was claimed by a policy that nobody has any more.
#[tokio::test(start_paused = true)]
async fn an_attempt_may_be_watched_for_longer_than_a_lease_is_now() {
    let script = Script::new([say(Finding::DidNotHappen)]);
    let guard = builder(Watching::new(LEASE), &script).build();
    lost(&guard, identity()).await;
    let operations = [("pay", policy().with_lease(LEASE / 2))];
    assert_eq!(guard.reconcile_all(operations).await.unwrap().resolved, 1);
    let refused = "1 Refused(Running)";
    assert_eq!(script.news(), [refused, refused, "2 DidNotHappen"]);
}

/// Nor is it longer and longer between its questions.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_for_long_is_given_up_in_time() {
    let script = Script::new([say(Finding::DidNotHappen)]);
    let options = ReconcileOptions::in_line().with_attempts(20);
    let guard = builder(Watching::new(Duration::MAX), &script).reconcile_options(options);
    let guard = guard.build();
    lost(&guard, identity()).await;
    let begun = Instant::now();
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, 1));
    assert_eq!(script.asked().len(), 21);
    assert!(begun.elapsed() <= 21 * LEASE, "{:?}", begun.elapsed());
}

/// Once, that is: a store that takes no answer after a lease is not asked for ever.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_for_ever_is_given_up() {
    let script = Script::new([say(Finding::DidNotHappen)]);
    let store = Watching::new(Duration::MAX);
    let guard = builder(store, &script).reconcile_options(once()).build();
    lost(&guard, identity()).await;
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, 1));
    let refused = "1 Refused(Running)";
    assert_eq!(script.news(), [refused, refused, "1 GaveUp"]);
}

/// It renews its lease during the first question, or the last: nobody asks again, and no operator
/// is called.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_comes_back_is_left_alone() {
    let refused = "1 Refused(Running)";
    for (after, news) in [(1, &[refused][..]), (LEASE.as_secs() + 3, &[refused; 2])] {
        let store = Watching::new(Duration::MAX);
        let memory = store.memory.clone();
        let act = Act::Late(Duration::from_secs(2), Finding::DidNotHappen);
        let script = Script::new([act]);
        let guard = builder(store, &script).reconcile_options(once()).build();
        lost(&guard, identity()).await;
        let comes_back = async {
            sleep(Duration::from_secs(after)).await;
            let token = record(&memory).await.token;
            let renewed = memory.renew(identity().digest(), &token, LEASE).await;
            assert_eq!(renewed.unwrap(), Fenced::Applied);
        };
        let began = Instant::now();
        let job = async {
            let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
            (tally, began.elapsed())
        };
        let ((tally, took), ()) = tokio::join!(job, comes_back);
        assert_eq!(tally, semel::guard::Tally::default());
        assert_eq!(script.news(), news);
        assert!(took < Duration::from_secs(after + 2), "{took:?}");
    }
}

/// Each keeps what happened for as long as its own policy says.
#[tokio::test(start_paused = true)]
async fn operations_may_come_and_go() {
    let (store, script) = (Memory::default(), Script::new([say(happened())]));
    let guard = guard(&store, &script);
    lost(&guard, of_operation("refund")).await;
    let mut background = background(&guard);
    assert_eq!(background.turn().await.unwrap().resolved, 0);
    // At once, not when the next look is due. What is named twice goes by the longest.
    let longest = Retention::EVENT.with_tombstone(LEASE);
    let events = policy().with_retention(Retention::EVENT);
    let remembered = policy().with_retention(Retention::new(LEASE).with_tombstone(LEASE));
    background.set_operations([("refund", events), ("refund", remembered)]);
    assert_eq!(background.turn().await.unwrap().resolved, 1);
    let refund = store.get(of_operation("refund").digest()).await.unwrap();
    let refund = refund.unwrap().record;
    let kept =
        [refund.expires_at, refund.purge_at].map(|end| refund.settled_at.unwrap().until(end));
    let forgotten = longest.replay + longest.tombstone;
    assert_eq!(kept, [longest.replay, forgotten]);
}

/// A store that shows its records, and does not always list them.
#[derive(Default)]
struct Unlisted {
    memory: Memory,
    fails: Arc<AtomicBool>,
}

impl Store for Unlisted {
    async fn list(&self, query: &ListQuery) -> Result<Page> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(StoreError::new(StoreErrorKind::NotApplied, "too slow")),
            false => self.memory.list(query).await,
        }
    }

    semel::delegate!(memory: claim, change, get, purge, wait, probe, close);
}

/// What waits for its next question is not asked about any more, however it is with the listing.
#[tokio::test(start_paused = true)]
async fn an_operation_that_goes_is_left_alone_at_once() {
    let script = Script::new([say(Finding::StillUnknown), say(happened())]);
    let store = Unlisted::default();
    let fails = store.fails.clone();
    let guard = builder(store, &script).build();
    lost(&guard, identity()).await;
    let mut background = Background::new(guard, [("pay", policy())]);
    assert_eq!(background.turn().await.unwrap().pending, 1);
    fails.store(true, Ordering::SeqCst);
    background.set_operations([("refund", policy())]);
    sleep(LEASE).await;
    background.turn().await.unwrap_err();
    assert_eq!(script.asked().len(), 1);
}

/// Others' lost attempts are looked for meanwhile, and other settings taken; and nobody is asked about
/// twice before everybody was once.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_when_the_next_look_is_due() {
    let act = Act::Late(Duration::from_secs(1), Finding::StillUnknown);
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    many_lost(&store, 0..300).await;
    let mut background = background(&guard).with_at_once(5);
    while script.asked().len() < 300 {
        let begun = Instant::now();
        background.turn().await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(31));
        background.rest().await;
    }
    let first: HashSet<_> = script.asked()[..300].iter().map(|q| q.fence).collect();
    assert_eq!(first.len(), 300);
    // Some at least, however short the time is.
    let mut hasty = Background::new(guard, [("pay", policy())]).with_every(Duration::ZERO);
    let asked = script.asked().len();
    hasty.turn().await.unwrap();
    assert!(script.asked().len() > asked);
}

#[tokio::test(start_paused = true)]
async fn without_a_reconciler_it_rests() {
    let guard = Guard::new(Memory::default(), policy());
    let mut background = background(&guard);
    background.turn().await.unwrap();
    let begun = Instant::now();
    background.rest().await;
    assert!(begun.elapsed() >= Duration::from_secs(15));
}

/// A store that shows its records, and cannot be told what became of them until then.
struct Deaf {
    memory: Memory,
    until: Instant,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Refuses,
    Panics,
}

impl Store for Deaf {
    async fn change(&self, identity: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let hears = !matches!(change, Change::Resolve(_)) || Instant::now() >= self.until;
        match self.how {
            _ if hears => self.memory.change(identity, change).await,
            How::Panics => panic!("on purpose"),
            How::Refuses => Err(StoreError::new(StoreErrorKind::Capacity, "full")),
        }
    }

    semel::delegate!(memory: claim, get, list, purge, wait, probe, close);
}

/// Cannot be told for two hours.
fn deaf(how: How) -> Deaf {
    Deaf {
        memory: Memory::default(),
        until: Instant::now() + Duration::from_hours(2),
        how,
    }
}

/// R14: what is known is not given up because the store cannot be told of it.
#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_told_is_told_when_it_can() {
    for attempts in [1, 3] {
        let script = Script::new([say(happened())]);
        let store = deaf(How::Refuses);
        let memory = store.memory.clone();
        let guard = builder(store, &script).build();
        lost(&guard, identity()).await;
        let options = ReconcileOptions::background().with_attempts(attempts);
        let background = Background::new(guard, [("pay", policy())]).with_options(options);
        let reconciling = tokio::spawn(background.run());
        sleep(Duration::from_mins(119)).await;
        let news = script.news();
        let untold = |news: &String| news.starts_with("1 Store(");
        assert!(news.iter().all(untold), "{news:?}");
        // Less and less often.
        assert!((20..60).contains(&news.len()), "{}", news.len());
        sleep(Duration::from_mins(7)).await;
        assert_eq!(script.news().last().unwrap(), "1 Happened");
        assert_eq!(record(&memory).await.state.kind(), StateKind::Completed);
        reconciling.abort();
    }
}

/// It is asked about as often as may be, and an operator is called.
#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_not_told_for_ever() {
    let script = Script::new([say(happened())]);
    let guard = builder(deaf(How::Panics), &script).build();
    lost(&guard, identity()).await;
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (0, 1));
    let news = script.news();
    let panicked = news[2].starts_with("3 Store(") && news[2].contains("panicked");
    assert!(panicked, "{news:?}");
    assert_eq!(news[3..], ["3 GaveUp"]);
}

/// However many wait at those that go.
#[tokio::test(start_paused = true)]
async fn operations_that_go_make_room_for_others() {
    let (store, script) = (Memory::default(), Script::new([say(Finding::StillUnknown)]));
    let guard = guard(&store, &script);
    many_lost(&store, 0..10_000).await;
    lost(&guard, of_operation("refund")).await;
    let mut background = background(&guard);
    assert_eq!(background.turn().await.unwrap().pending, 10_000);
    background.set_operations([("refund", policy())]);
    assert_eq!(background.turn().await.unwrap().pending, 1);
    assert_eq!(script.asked().last().unwrap().operation, "refund");
}

/// A job asks nobody again about what it had its turn with, and reads no record again.
#[tokio::test(start_paused = true)]
async fn a_job_has_each_once_where_nobody_can_be_asked() {
    const LOST: u32 = 21_000;
    let script = Script::new([say(happened())]);
    let store = Unread::default();
    let reads = store.reads.clone();
    let guard = builder(store, &script).reconcile_options(once()).build();
    many_lost(&guard.store().memory, 0..LOST).await;
    let tally = guard.reconcile_all([("pay", policy())]).await.unwrap();
    assert_eq!((tally.pending, tally.given_up), (LOST as usize, 0));
    assert_eq!(reads.load(Ordering::SeqCst), LOST);
    assert_eq!(script.asked(), []);
}

/// A store that lists its records, and shows none of them.
#[derive(Default)]
struct Unread {
    memory: Memory,
    reads: Arc<AtomicU32>,
}

impl Store for Unread {
    async fn get(&self, _: &IdentityDigest) -> Result<Option<Entry>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Err(StoreError::new(StoreErrorKind::NotApplied, "too slow"))
    }

    semel::delegate!(memory: claim, change, list, purge, wait, probe, close);
}

/// While one has to be watched for a lease, the others are asked about.
#[tokio::test(start_paused = true)]
async fn a_job_waits_for_none_longer_than_for_its_next_question() {
    let script = Script::new([say(Finding::StillUnknown), say(happened())]);
    let guard = builder(Watching::new(LEASE), &script).build();
    lost(&guard, identity()).await;
    lost(&guard, of_operation("refund")).await;
    let operations = ["pay", "refund"].map(|name| (name, policy()));
    assert_eq!(guard.reconcile_all(operations).await.unwrap().resolved, 2);
    let times = script.times.lock().unwrap().clone();
    assert!(times[2] - times[0] < Duration::from_secs(1), "{times:?}");
}

/// No operator is called for what somebody else resolved during the last question.
#[tokio::test(start_paused = true)]
async fn what_is_resolved_meanwhile_is_not_given_up() {
    let (store, script) = (Memory::default(), Script::new([Act::Hang]));
    let guard = builder(store.clone(), &script).reconcile_options(once());
    let guard = guard.build();
    lost(&guard, identity()).await;
    let looks = async {
        sleep(Duration::from_secs(1)).await;
        resolve(&store, semel::store::Verdict::DidNotHappen).await;
    };
    let (tally, ()) = tokio::join!(guard.reconcile_all([("pay", policy())]), looks);
    assert_eq!(tally.unwrap(), semel::guard::Tally::default());
    assert_eq!(script.news(), ["1 TimedOut"]);
}
