//! Where keys come from (rows 3, 11, 26).

use semel::guard::{Done, RunError};
use semel::operation::{Call, CallError, Caller, KeyFrom, Operation, Part};
use semel::{KeyError, KeyRule};

use super::{Bench, Count, call, caller, first, replayed};

const STRICT: KeyFrom = KeyFrom::Client(KeyRule::STRICT);

#[tokio::test(start_paused = true)]
async fn row_3_a_clients_key_keeps_its_rule_and_is_never_told() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::TENANT, Part::SESSION], STRICT);
    let count = Count::on(&bench);
    let good = call().key(Some("order_2026-11-20:0001"));
    assert_eq!(count.run(&op, &good).await.unwrap(), first(1));
    assert_eq!(count.run(&op, &good).await.unwrap(), replayed(1));
    for bad in [
        "short-secret",
        "sixteen-or-more/slash",
        "",
        "sixteen-or-more-\n",
    ] {
        let refused = op.asked(&call().key(Some(bad))).unwrap_err();
        let CallError::Key(error) = &refused else {
            panic!("{refused:?}")
        };
        assert!(!matches!(error, KeyError::TooLong { .. }));
        assert!(bad.is_empty() || !format!("{refused} {refused:?}").contains(bad));
    }
    assert_eq!((count.runs(), bench.store.len()), (1, 1));
    assert!(!format!("{good:?}").contains("order_2026"));
}

#[tokio::test(start_paused = true)]
async fn a_clients_key_with_other_fields_is_a_mismatch() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::USER], STRICT);
    let count = Count::on(&bench);
    let of = |quantity: u32| {
        call()
            .key(Some("0123456789abcdef"))
            .field("quantity", quantity)
    };
    assert_eq!(count.run(&op, &of(3)).await.unwrap(), first(1));
    let other = count.run(&op, &of(4)).await;
    assert!(matches!(other, Err(RunError::Mismatch)));
    assert_eq!(count.run(&op, &of(3)).await.unwrap(), replayed(1));
}

#[tokio::test(start_paused = true)]
async fn equal_content_is_one_and_other_content_another() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::USER], KeyFrom::Content);
    let count = Count::on(&bench);
    let apples = call().field("what", "apples").field("cents", 300);
    let same = call().field("cents", 300).field("what", "apples");
    let more = call().field("what", "apples").field("cents", 301);
    let shifted = call().field("what", "applesc").field("ents", 300);
    assert_eq!(count.run(&op, &apples).await.unwrap(), first(1));
    assert_eq!(count.run(&op, &same).await.unwrap(), replayed(1));
    assert_eq!(count.run(&op, &more).await.unwrap(), first(2));
    assert_eq!(count.run(&op, &shifted).await.unwrap(), first(3));
    // What the client calls it does not matter here.
    let keyed = apples.key(Some("whatever"));
    assert_eq!(count.run(&op, &keyed).await.unwrap(), replayed(1));
    // Another user's equal request is another.
    let other = caller().with(Part::USER, "u-8");
    let other = Call::by(&other).field("what", "apples").field("cents", 300);
    assert_eq!(count.run(&op, &other).await.unwrap(), first(4));
}

#[tokio::test(start_paused = true)]
async fn chosen_fields_are_the_key_and_the_others_must_agree() {
    let bench = Bench::new();
    let key = KeyFrom::Fields(&["customer", "month"]);
    let invoice = Operation::new("invoice", [Part::TENANT], key);
    let count = Count::on(&bench);
    let of = |month, cents: u32| {
        call()
            .field("customer", "c-1")
            .field("month", month)
            .field("cents", cents)
    };
    assert_eq!(
        count.run(&invoice, &of("2026-11", 900)).await.unwrap(),
        first(1)
    );
    assert_eq!(
        count.run(&invoice, &of("2026-11", 900)).await.unwrap(),
        replayed(1)
    );
    let dearer = count.run(&invoice, &of("2026-11", 901)).await;
    assert!(matches!(dearer, Err(RunError::Mismatch)));
    assert_eq!(
        count.run(&invoice, &of("2026-12", 900)).await.unwrap(),
        first(2)
    );
    let none = invoice.asked(&call().field("customer", "c-1"));
    assert_eq!(none.unwrap_err(), CallError::MissingField("month"));
}

#[tokio::test(start_paused = true)]
async fn once_for_each_user_and_action() {
    let bench = Bench::new();
    let user = [Part::TENANT, Part::USER];
    let start = Operation::new("start", user, KeyFrom::Scope);
    let stop = Operation::new("stop", user, KeyFrom::Scope);
    let count = Count::on(&bench);
    let other = Call::by(&caller().with(Part::USER, "u-8"));
    assert_eq!(count.run(&start, &call()).await.unwrap(), first(1));
    assert_eq!(count.run(&start, &call()).await.unwrap(), replayed(1));
    assert_eq!(count.run(&stop, &call()).await.unwrap(), first(2));
    assert_eq!(count.run(&start, &other).await.unwrap(), first(3));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_missing_or_empty_is_never_a_wider_scope() {
    let bench = Bench::new();
    let op = Operation::new("op", [Part::TENANT, Part::new("desk")], STRICT);
    for caller in [
        caller(),
        caller().with(Part::new("desk"), ""),
        Caller::new(),
    ] {
        let call = Call::by(&caller).key(Some("0123456789abcdef"));
        let refused = op.asked(&call);
        assert!(matches!(refused, Err(CallError::MissingPart(_))));
    }
    assert!(bench.store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn row_26_a_key_is_optional_unless_it_is_required_and_void_replays_as_void() {
    let bench = Bench::new();
    let start = Operation::new("start", [Part::USER], STRICT);
    let work = |_| async { Ok::<_, std::convert::Infallible>(()) };
    let run = |op: &Operation, call: &Call| bench.guard.run(op.asked(call).unwrap(), work);
    for _ in 0..2 {
        let ran = run(&start, &call()).await.unwrap();
        assert_eq!(ran, Done::Unprotected(()));
    }
    assert!(bench.store.is_empty());
    let keyed = call().key(Some("0123456789abcdef"));
    assert_eq!(run(&start, &keyed).await.unwrap(), Done::Fresh(()));
    assert_eq!(run(&start, &keyed).await.unwrap(), Done::Replayed(()));

    let required = start.clone().with_key_required(true);
    let refused = run(&required, &call()).await;
    assert!(matches!(refused, Err(RunError::KeyRequired)));
    assert_eq!(run(&required, &keyed).await.unwrap(), Done::Replayed(()));
}
