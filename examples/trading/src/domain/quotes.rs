//! What things cost at present.

use rusqlite::{Connection, params};

use super::{Cents, Refusal, Result, one};

const DEAREST: Cents = 100_000_000;

/// What one piece costs.
///
/// # Errors
/// [`Refusal::NoQuote`].
pub fn quote(on: &Connection, symbol: &str) -> Result<Cents> {
    let sql = "SELECT cents FROM quotes WHERE symbol = ?1";
    one(on, sql, [symbol], Refusal::NoQuote, |row| row.get(0))
}

/// Sets what one piece costs from now on. The same again changes nothing.
///
/// # Errors
/// [`Refusal::OutOfBounds`].
pub fn set_quote(on: &Connection, symbol: &str, cents: Cents) -> Result<()> {
    if !(1..=DEAREST).contains(&cents) {
        return Err(Refusal::OutOfBounds.into());
    }
    on.execute(
        "INSERT INTO quotes VALUES (?1, ?2) ON CONFLICT DO UPDATE SET cents = excluded.cents",
        params![symbol, cents],
    )?;
    Ok(())
}
