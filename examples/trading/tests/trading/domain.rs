//! The rules, without any retries.

use rusqlite::Connection;
use trading::domain::{
    self, AccountId, Error, Order, Refusal, close_position, open_account, open_position, overview,
    reset, set_quote, start_challenge,
};

use super::{BALANCE, NOBODYS};

fn tables() -> (Connection, AccountId) {
    let on = Connection::open_in_memory().unwrap();
    domain::prepare(&on).unwrap();
    let account = open_account(&on, "ann", BALANCE).unwrap().account;
    (on, account)
}

fn order(symbol: &str, quantity: i64) -> Order {
    Order {
        symbol: symbol.to_owned(),
        quantity,
    }
}

fn refusal<T>(done: domain::Result<T>) -> Refusal {
    match done {
        Err(Error::Refused(refusal)) => refusal,
        Err(Error::Database(error)) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn money_is_moved_and_never_made() {
    let (on, account) = tables();
    let filled = open_position(&on, "ann", account, &order("ACME", 3)).unwrap();
    assert_eq!((filled.cost, filled.cash), (37_500, BALANCE - 37_500));
    set_quote(&on, "ACME", 12_600).unwrap();
    let closed = close_position(&on, "ann", account, filled.position).unwrap();
    assert_eq!((closed.proceeds, closed.cash), (37_800, BALANCE + 300));
    let again = close_position(&on, "ann", account, filled.position);
    assert_eq!(refusal(again), Refusal::PositionClosed);
}

#[test]
fn nothing_is_bought_that_is_not_paid_for() {
    let (on, account) = tables();
    let buy = |quantity| open_position(&on, "ann", account, &order("INITECH", quantity));
    let all = BALANCE / 990;
    let (cost, cash) = ((all + 1) * 990, BALANCE);
    assert_eq!(refusal(buy(all + 1)), Refusal::TooDear { cost, cash });
    assert_eq!(buy(all).unwrap().cash, BALANCE % 990);
    for quantity in [0, -1, 1_000_001, i64::MAX, i64::MIN] {
        assert_eq!(refusal(buy(quantity)), Refusal::OutOfBounds);
    }
    let unknown = open_position(&on, "ann", account, &order("NONE", 1));
    assert_eq!(refusal(unknown), Refusal::NoQuote);
    // The table refuses what the code would let through.
    let below = on.execute("UPDATE accounts SET cash = -1", []);
    assert!(below.is_err());
}

#[test]
fn a_reset_replaces_the_account_and_nothing_is_done_on_the_old_one() {
    let (on, old) = tables();
    let filled = open_position(&on, "ann", old, &order("ACME", 3)).unwrap();
    start_challenge(&on, "ann", old).unwrap();
    let fresh = reset(&on, "ann", old, BALANCE).unwrap();
    assert_eq!(
        (fresh.replaced, fresh.closed, fresh.cash),
        (old, 1, BALANCE)
    );
    let by = fresh.account;
    let replaced = Refusal::Replaced { by };
    assert_eq!(refusal(reset(&on, "ann", old, BALANCE)), replaced);
    let close = close_position(&on, "ann", old, filled.position);
    assert_eq!(refusal(close), replaced);
    let close = close_position(&on, "ann", by, filled.position);
    assert_eq!(refusal(close), Refusal::NoPosition);
    let (before, after) = (
        overview(&on, "ann", old).unwrap(),
        overview(&on, "ann", by).unwrap(),
    );
    assert_eq!(before.replaced_by, Some(by));
    assert_eq!(before.positions[0].proceeds, Some(0));
    assert_eq!((after.cash, after.positions.len()), (BALANCE, 0));
    // What the portfolio has stays.
    assert_eq!((after.portfolio, after.challenges), (before.portfolio, 1));
}

#[test]
fn nobody_sees_or_moves_what_is_not_theirs() {
    let (on, account) = tables();
    for (user, account) in [("bob", account), ("ann", NOBODYS)] {
        let order = order("ACME", 1);
        for refused in [
            refusal(overview(&on, user, account)),
            refusal(open_position(&on, user, account, &order)),
            refusal(reset(&on, user, account, BALANCE)),
            refusal(start_challenge(&on, user, account)),
        ] {
            assert_eq!(refused, Refusal::NoAccount);
        }
    }
}
