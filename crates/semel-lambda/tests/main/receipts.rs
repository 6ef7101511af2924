//! What the inbox makes of events that fail again and again, and of ids that are used twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::memory::MemoryStore;
use semel_lambda::{Answer, Dispatcher, EventError, Function, FunctionError, Inbox, Receipt};
use serde_json::{Value, json};

use crate::stage::{event, invocation};

type Invoked = Result<Answer, FunctionError>;

fn receipt(answer: Invoked) -> Receipt {
    match answer {
        Ok(Answer::Event { receipt }) => receipt,
        other => panic!("{other:?}"),
    }
}

fn name(answer: Invoked) -> &'static str {
    answer.expect_err("no receipt").name()
}

#[tokio::test]
async fn an_event_that_fails_too_often_is_set_aside() {
    let (runs, taken) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (ran, took) = (runs.clone(), taken.clone());
    let inbox = Inbox::new(MemoryStore::default(), "tests")
        .with_max_attempts(2)
        .with_dead_letters(move |poison| {
            took.fetch_add(poison.attempts, Ordering::SeqCst);
            async { Ok::<_, std::io::Error>(()) }
        });
    let dispatcher = Dispatcher::new().on("task", move |_: Value, context| {
        assert_eq!(ran.fetch_add(1, Ordering::SeqCst) + 1, context.attempt());
        async { Err::<(), _>("it always fails") }
    });
    let function = Function::new(inbox, dispatcher);
    let event = event("e-1", "task", &json!({}));
    assert_eq!(name(function.invoke(invocation(&event)).await), "Failed");
    for _ in 0..2 {
        let answer = function.invoke(invocation(&event)).await;
        assert_eq!(receipt(answer), Receipt::DeadLettered);
    }
    assert_eq!(
        (runs.load(Ordering::SeqCst), taken.load(Ordering::SeqCst)),
        (2, 2)
    );
}

#[tokio::test]
async fn an_id_with_another_detail_is_a_mismatch_and_a_panic_has_a_name() {
    let dispatcher = Dispatcher::new().on("task", |panics: bool, _| async move {
        assert!(!panics, "as it was told");
        Ok::<_, std::io::Error>(())
    });
    let function = Function::new(Inbox::new(MemoryStore::default(), "tests"), dispatcher);
    let event = |id: &str, panics: bool| invocation(&event(id, "task", &json!(panics)));
    assert_eq!(
        receipt(function.invoke(event("e-1", false)).await),
        Receipt::Handled
    );
    assert_eq!(name(function.invoke(event("e-1", true)).await), "Mismatch");
    assert_eq!(name(function.invoke(event("e-2", true)).await), "Panicked");
}

#[tokio::test]
async fn a_handler_s_own_error_is_within_reach() {
    let dispatcher = Dispatcher::new().on("task", |_: Value, _| async {
        Err::<(), _>(std::io::Error::from_raw_os_error(7))
    });
    let function = Function::new(Inbox::new(MemoryStore::default(), "tests"), dispatcher);
    let answer = function
        .invoke(invocation(&event("e-1", "task", &json!({}))))
        .await;
    let Err(FunctionError::Event(EventError::Inbox(semel::inbox::InboxError::Failed {
        failed,
        attempt: 1,
        ..
    }))) = answer
    else {
        panic!("{answer:?}");
    };
    let error = failed
        .into_error()
        .unwrap()
        .into_inner()
        .downcast::<std::io::Error>()
        .unwrap();
    assert_eq!(error.raw_os_error(), Some(7));
}
