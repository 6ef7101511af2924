//! A caller who finds a lost attempt has it asked about, and waits for the answer.

use semel::StateKind;
use semel::guard::ReconcileOptions;
use semel::record::Resolved;
use semel::store::Verdict;

use super::scripted::Scripted;
use super::*;

/// Asked once about a lost attempt: what the caller gets, and what the record says then.
async fn one(
    act: Act,
) -> (
    Result<Done<String>, RunError<Infallible>>,
    Record,
    Arc<Script>,
) {
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let ran = pay(&guard).await;
    (ran, record(&store).await, script)
}

fn audit(record: &Record) -> Resolved {
    *record.resolved.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_happened() {
    let because = happened().because("charge ch_1");
    let (ran, record, script) = one(Act::Say(because)).await;
    assert_eq!(ran.unwrap(), replayed());
    let audit = audit(&record);
    assert_eq!(&*audit.by, "reconciler");
    assert_eq!(
        &*audit.reason,
        "the reconciler said that it happened (question 1, in line): charge ch_1"
    );
    assert_eq!(
        (audit.before, audit.after),
        (StateKind::Unknown, StateKind::Completed)
    );
    assert!(audit.fence < record.token.fence);
    // Replayed as long as an outcome of the operation's own.
    let retention = record.settled_at.unwrap().until(record.expires_at);
    assert_eq!(retention, Retention::PAYMENT.replay);
    assert_eq!(script.count(Signal::Resolved), 1);
    assert_eq!(script.news(), ["1 Happened"]);
}

#[tokio::test(start_paused = true)]
async fn it_did_not_happen() {
    let (ran, record, script) = one(say(Finding::DidNotHappen)).await;
    assert_eq!(ran.unwrap(), Done::Fresh("paid by attempt 2".to_owned()));
    let audit = audit(&record);
    assert_eq!(
        &*audit.reason,
        "the reconciler said that it did not happen (question 1, in line)"
    );
    assert_eq!(audit.after, StateKind::Released);
    assert_eq!(script.news(), ["1 DidNotHappen"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_knows_within_the_bound() {
    let acts = [
        (say(Finding::StillUnknown), "StillUnknown", 0),
        (Act::Fail, "Failed(\"the bank is closed\")", 3),
        (Act::Panic, "Panicked", 3),
        (Act::Hang, "TimedOut", 3),
    ];
    for (act, news, failures) in acts {
        let hangs = matches!(act, Act::Hang);
        let (store, script) = (Memory::default(), Script::new([act]));
        let guard = guard(&store, &script);
        lost(&guard, identity()).await;
        let begun = Instant::now();
        assert!(
            matches!(pay(&guard).await, Err(RunError::Unknown)),
            "{news}"
        );
        let took = begun.elapsed() - Duration::from_secs(if hangs { 15 } else { 0 });
        // 100 to 200 ms, then 200 to 400 ms.
        let pauses = Duration::from_millis(300)..Duration::from_millis(610);
        assert!(pauses.contains(&took), "{news}: {took:?}");
        assert_eq!(script.news(), [1, 2, 3].map(|n| format!("{n} {news}")));
        assert_eq!(script.count(Signal::ReconcileAsked), 3);
        assert_eq!(script.count(Signal::StillUnknown), 3);
        assert_eq!(script.count(Signal::ReconcilerFailed), failures);
        assert_eq!(script.count(Signal::Unknown), 1);
        assert_eq!(record(&store).await.state.kind(), StateKind::Unknown);
        // The next caller asks again.
        pay(&guard).await.unwrap_err();
        assert_eq!(script.asked().len(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_first_may_answer_then() {
    let acts = [Act::Panic, Act::Hang, say(happened())];
    let (store, script) = (Memory::default(), Script::new(acts));
    let options = ReconcileOptions::in_line()
        .with_timeout(Duration::from_secs(1))
        .with_by("ledger of the bank");
    let guard = builder(store.clone(), &script)
        .reconcile_options(options)
        .build();
    lost(&guard, identity()).await;
    assert_eq!(pay(&guard).await.unwrap(), replayed());
    let audit = audit(&record(&store).await);
    assert_eq!(&*audit.by, "ledger of the bank");
    assert!(audit.reason.contains("question 3"), "{audit:?}");
    assert_eq!(script.news(), ["1 Panicked", "2 TimedOut", "3 Happened"]);
}

#[tokio::test(start_paused = true)]
async fn callers_share_one_question_and_one_of_them_runs() {
    for (finding, runs) in [(Finding::DidNotHappen, 1), (happened(), 0)] {
        let act = Act::Late(Duration::from_secs(1), finding);
        let (store, script) = (Memory::default(), Script::new([act]));
        let guard = guard(&store, &script);
        lost(&guard, identity()).await;
        let ran = Runs::default();
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let (guard, ran) = (guard.clone(), ran.clone());
                tokio::spawn(async move {
                    let work = move |_| async move {
                        ran.0.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, Infallible>("paid".to_owned())
                    };
                    guard.run(asked(), work).await
                })
            })
            .collect();
        for caller in callers {
            match caller.await.unwrap() {
                Ok(ran) => assert_eq!(ran.into_inner(), "paid"),
                Err(RunError::InFlight { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(ran.count(), runs);
        assert_eq!(script.asked().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_began_a_question_may_go_away() {
    let act = Act::Late(Duration::from_secs(3), happened());
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let first = {
        let guard = guard.clone();
        tokio::spawn(async move { guard.begin(&asked()).await.map(drop) })
    };
    sleep(Duration::from_secs(1)).await;
    first.abort();
    assert_eq!(pay(&guard).await.unwrap(), replayed());
    assert_eq!(script.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_case_has_all_that_is_known() {
    let (store, script) = (Memory::default(), Script::new([say(happened())]));
    let guard = guard(&store, &script);
    let (charge, fence) = lost_while_charging(&guard).await;
    assert_eq!(pay(&guard).await.unwrap(), replayed());
    let case = Question {
        key: Some(KEY.to_owned()),
        about: Some("7 EUR for a seat".to_owned()),
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
}

/// Between two questions an operator has looked.
#[tokio::test(start_paused = true)]
async fn what_somebody_else_resolved_is_not_asked_about() {
    let (store, script) = (Memory::default(), Script::new([Act::Fail]));
    let guard = guard(&store, &script);
    lost(&guard, identity()).await;
    let resolves = async {
        sleep(Duration::from_millis(50)).await;
        let outcome = Outcome::success(b"paid");
        let retention = Retention::PAYMENT;
        let verdict = Verdict::Happened { outcome, retention };
        resolve(&store, verdict).await;
    };
    let (paid, ()) = tokio::join!(pay(&guard), resolves);
    assert_eq!(paid.unwrap(), replayed());
    assert_eq!(script.asked().len(), 1);
}

/// Between two questions another attempt takes over, or the one that was lost goes on.
#[tokio::test(start_paused = true)]
async fn what_moved_on_is_not_asked_about() {
    for taken_over in [true, false] {
        let (store, script) = (Memory::default(), Script::new([Act::Fail]));
        let guard = guard(&store, &script);
        let slow = begin(&guard, &asked()).await;
        slow.stop_renewing();
        sleep(LEASE).await;
        let moves_on = async {
            sleep(Duration::from_millis(50)).await;
            if taken_over {
                let retrying = Guard::new(store.clone(), policy().with_on_lost(OnLost::Retry));
                return Some(begin(&retrying, &asked()).await);
            }
            let settled = slow.complete(&Outcome::success(b"paid")).await;
            assert_eq!(settled.unwrap(), semel::guard::Settled::Applied);
            None
        };
        let (answer, second) = tokio::join!(pay(&guard), moves_on);
        match answer {
            Ok(paid) => assert_eq!((paid, taken_over), (replayed(), false)),
            Err(RunError::InFlight { .. }) => assert!(taken_over),
            Err(other) => panic!("{taken_over}: {other}"),
        }
        assert_eq!(script.asked().len(), 1);
        drop(second);
    }
}

/// While it is asked about, another attempt takes over: the answer was about the one before.
#[tokio::test(start_paused = true)]
async fn a_takeover_meanwhile_refuses_the_answer() {
    for finding in [happened(), Finding::DidNotHappen] {
        let act = Act::Late(Duration::from_secs(2), finding);
        let (store, script) = (Memory::default(), Script::new([act]));
        let guard = guard(&store, &script);
        lost(&guard, identity()).await;
        let caller = {
            let guard = guard.clone();
            tokio::spawn(async move { pay(&guard).await })
        };
        sleep(Duration::from_secs(1)).await;
        let retrying = Guard::new(store.clone(), policy().with_on_lost(OnLost::Retry));
        let mut second = begin(&retrying, &asked()).await;
        let (fence, before) = (second.info().fence, record(&store).await);
        let answer = caller.await.unwrap();
        assert!(
            matches!(answer, Err(RunError::InFlight { .. })),
            "{answer:?}"
        );
        assert_eq!(script.news(), ["1 Refused(Superseded)"]);
        assert_eq!(script.count(Signal::ResolveRefused), 1);
        assert_eq!(record(&store).await, before);
        // The second attempt is none the worse for it.
        let outcome = Outcome::success(b"paid by the second");
        let settled = second.complete(&outcome).await.unwrap();
        assert_eq!(settled, semel::guard::Settled::Applied);
        assert!(fence > script.asked()[0].fence);
    }
}

/// The lost attempt was only slow: its own word counts, as long as nobody else's was taken.
#[tokio::test(start_paused = true)]
async fn the_attempt_itself_may_come_first() {
    let act = Act::Late(Duration::from_secs(2), Finding::DidNotHappen);
    let (store, script) = (Memory::default(), Script::new([act]));
    let guard = guard(&store, &script);
    let slow = begin(&guard, &asked()).await;
    slow.stop_renewing();
    sleep(LEASE).await;
    let caller = {
        let guard = guard.clone();
        tokio::spawn(async move { pay(&guard).await })
    };
    sleep(Duration::from_secs(1)).await;
    let outcome = Outcome::success(b"paid");
    let settled = slow.complete(&outcome).await.unwrap();
    assert_eq!(settled, semel::guard::Settled::Applied);
    assert_eq!(caller.await.unwrap().unwrap(), replayed());
    assert_eq!(script.news(), ["1 Refused(Settled(Completed))"]);
    assert!(record(&store).await.resolved.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_late_attempt_is_refused_after_the_answer() {
    for finding in [happened(), Finding::DidNotHappen] {
        let (store, script) = (Memory::default(), Script::new([say(finding)]));
        let guard = guard(&store, &script);
        let slow = begin(&guard, &asked()).await;
        slow.stop_renewing();
        sleep(LEASE).await;
        let kept = pay(&guard).await.unwrap().into_inner();
        let outcome = Outcome::success(b"paid late");
        let settled = slow.complete(&outcome).await.unwrap();
        assert!(matches!(settled, semel::guard::Settled::Refused(_)));
        assert_eq!(pay(&guard).await.unwrap(), Done::Replayed(kept));
    }
}

/// The store has no room for the answer: that it happened is recorded without it.
#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_too_large_is_left_out() {
    let large = Finding::Happened(Outcome::success(&[0; 2000]));
    let script = Script::new([say(large)]);
    let guard = Guard::builder(Scripted::new(&[]))
        .policy(policy())
        .reconciler(script.clone())
        .build();
    lost(&guard, identity()).await;
    for _ in 0..2 {
        let answer = pay(&guard).await;
        assert!(matches!(answer, Err(RunError::Omitted)), "{answer:?}");
    }
    assert_eq!(script.asked().len(), 1);
}

/// A runtime that shuts down takes its question along; who waits for it in another one is told.
#[test]
fn a_question_that_breaks_off_leaves_nobody_waiting() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (store, script) = (Memory::default(), Script::new([Act::Hang]));
    let guard = guard(&store, &script);
    let pays = || {
        let guard = guard.clone();
        async move { pay(&guard).await }
    };
    let moment = Duration::from_secs(1);
    first.block_on(async {
        let lost = begin(&guard, &asked()).await;
        let _ = lost.mark_unknown().await.unwrap();
        tokio::spawn(pays());
        sleep(moment).await;
    });
    let waiting = second.spawn(pays());
    second.block_on(async { sleep(moment).await });
    assert_eq!(script.asked().len(), 1);
    drop(first);
    let told = second.block_on(async { tokio::time::timeout(moment, waiting).await });
    let told = told.expect("it waits for ever").unwrap();
    assert!(matches!(told, Err(RunError::Unknown)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_under_hold_and_retry() {
    for on_lost in [OnLost::Hold, OnLost::Retry] {
        let (store, script) = (Memory::default(), Script::new([say(happened())]));
        let guard = builder(store.clone(), &script)
            .policy(policy().with_on_lost(on_lost))
            .build();
        lost(&guard, identity()).await;
        let ran = pay(&guard).await;
        assert_eq!(ran.is_ok(), on_lost == OnLost::Retry);
        assert_eq!(script.asked(), []);
    }
}
