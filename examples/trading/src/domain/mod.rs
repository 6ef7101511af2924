//! Accounts, positions and quotes. Every function works on the transaction that it is given, and
//! checks all its rules before it writes.

mod accounts;
mod positions;
mod quotes;

use rusqlite::{Connection, OptionalExtension as _, Params, Row};
use serde::{Deserialize, Serialize};

pub use accounts::{
    Opened, Overview, Reset, open_account, overview, portfolio_of, reset, start_challenge,
};
pub use positions::{Closed, Filled, Order, Position, close_position, open_position};
pub use quotes::{quote, set_quote};

/// Money, in cents.
pub type Cents = i64;

/// The number of an account, for good: a reset gives the portfolio another account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccountId(pub i64);

/// The number of a portfolio, which outlives its accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortfolioId(pub i64);

/// The number of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PositionId(pub i64);

/// Why nothing was done: an answer, as good as any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "kebab-case")]
pub enum Refusal {
    /// The user has no such account.
    #[error("there is no such account")]
    NoAccount,
    /// The account was reset.
    #[error("the account was replaced by account {}", by.0)]
    Replaced {
        /// The account in its place.
        by: AccountId,
    },
    /// The account has no such position.
    #[error("there is no such position")]
    NoPosition,
    /// The position is closed.
    #[error("the position is closed")]
    PositionClosed,
    /// Nobody quotes the symbol.
    #[error("there is no quote of this symbol")]
    NoQuote,
    /// It costs more than there is.
    #[error("this costs {cost} cents, and there are {cash}")]
    TooDear {
        /// What it costs.
        cost: Cents,
        /// What there is.
        cash: Cents,
    },
    /// Numbers out of bounds: 1 to 1,000,000 pieces, quotes of 1 cent to 1,000,000.00.
    #[error("1 to 1000000 pieces, 1 to 100000000 cents each")]
    OutOfBounds,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is against a rule. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The database failed. The driver's error is the source, where conflicts are looked for.
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
}

/// What an operation of the domain answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes the tables that are missing, in a file that several connections use.
pub fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.execute_batch(include_str!("schema.sql"))
}

/// The one row of a query; `refusal` where there is none.
fn one<T>(
    on: &Connection,
    sql: &str,
    params: impl Params,
    refusal: Refusal,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<T> {
    let row = on.query_row(sql, params, read).optional()?;
    Ok(row.ok_or(refusal)?)
}
