//! Buying and selling.

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::accounts::{add_cash, present};
use super::{AccountId, Cents, PositionId, Refusal, Result, one, quote};

/// What somebody wants to buy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Of what.
    pub symbol: String,
    /// How many pieces, 1 to 1,000,000.
    pub quantity: i64,
}

/// A position that was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// The position.
    pub position: PositionId,
    /// What it cost.
    pub cost: Cents,
    /// What is left in the account.
    pub cash: Cents,
}

/// A position that was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// What it brought.
    pub proceeds: Cents,
    /// What is in the account now.
    pub cash: Cents,
}

/// A position as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The position.
    pub position: PositionId,
    /// Of what.
    pub symbol: String,
    /// How many pieces.
    pub quantity: i64,
    /// What it cost.
    pub cost: Cents,
    /// What it brought; none while it is open.
    pub proceeds: Option<Cents>,
}

const MOST: i64 = 1_000_000;

/// Buys at the present quote.
///
/// # Errors
/// [`Refusal::TooDear`] where there is not enough; [`Refusal::NoQuote`], [`Refusal::OutOfBounds`],
/// [`Refusal::NoAccount`], [`Refusal::Replaced`].
pub fn open_position(
    on: &Connection,
    owner: &str,
    account: AccountId,
    order: &Order,
) -> Result<Filled> {
    let cash = present(on, owner, account)?.cash;
    if !(1..=MOST).contains(&order.quantity) {
        return Err(Refusal::OutOfBounds.into());
    }
    // Both are bounded: the product fits.
    let cost = quote(on, &order.symbol)? * order.quantity;
    if cost > cash {
        return Err(Refusal::TooDear { cost, cash }.into());
    }
    let cash = add_cash(on, account, -cost)?;
    on.execute(
        "INSERT INTO positions (account, symbol, quantity, cost) VALUES (?1, ?2, ?3, ?4)",
        params![account.0, order.symbol, order.quantity, cost],
    )?;
    let position = PositionId(on.last_insert_rowid());
    Ok(Filled {
        position,
        cost,
        cash,
    })
}

/// Sells at the present quote.
///
/// # Errors
/// [`Refusal::PositionClosed`], [`Refusal::NoPosition`], [`Refusal::NoAccount`],
/// [`Refusal::Replaced`]; [`Refusal::OutOfBounds`] where the account cannot hold more.
pub fn close_position(
    on: &Connection,
    owner: &str,
    account: AccountId,
    position: PositionId,
) -> Result<Closed> {
    let cash = present(on, owner, account)?.cash;
    let sql = "SELECT symbol, quantity, proceeds FROM positions WHERE id = ?1 AND account = ?2";
    let key = params![position.0, account.0];
    let (symbol, quantity, proceeds): (String, i64, Option<Cents>) =
        one(on, sql, key, Refusal::NoPosition, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if proceeds.is_some() {
        return Err(Refusal::PositionClosed.into());
    }
    let proceeds = quote(on, &symbol)? * quantity;
    cash.checked_add(proceeds).ok_or(Refusal::OutOfBounds)?;
    on.execute(
        "UPDATE positions SET proceeds = ?2 WHERE id = ?1",
        params![position.0, proceeds],
    )?;
    let cash = add_cash(on, account, proceeds)?;
    Ok(Closed { proceeds, cash })
}

/// Closes what is open for nothing; how many there were.
pub(super) fn write_off(on: &Connection, account: AccountId) -> Result<usize> {
    let closed = on.execute(
        "UPDATE positions SET proceeds = 0 WHERE account = ?1 AND proceeds IS NULL",
        [account.0],
    )?;
    Ok(closed)
}

pub(super) fn of(on: &Connection, account: AccountId) -> Result<Vec<Position>> {
    let sql = "SELECT id, symbol, quantity, cost, proceeds FROM positions WHERE account = ?1
        ORDER BY id";
    let mut rows = on.prepare(sql)?;
    let positions = rows.query_map([account.0], |row| {
        Ok(Position {
            position: PositionId(row.get(0)?),
            symbol: row.get(1)?,
            quantity: row.get(2)?,
            cost: row.get(3)?,
            proceeds: row.get(4)?,
        })
    })?;
    Ok(positions.collect::<rusqlite::Result<_>>()?)
}
