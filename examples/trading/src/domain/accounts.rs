//! Accounts and the portfolios that they belong to.

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

use super::{AccountId, Cents, PortfolioId, Position, Refusal, Result, one, positions};

/// A portfolio with its first account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The portfolio.
    pub portfolio: PortfolioId,
    /// Its account.
    pub account: AccountId,
    /// What is in it.
    pub cash: Cents,
}

/// An account in place of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The account from now on.
    pub account: AccountId,
    /// The one before.
    pub replaced: AccountId,
    /// How many positions were closed.
    pub closed: usize,
    /// What is in the account.
    pub cash: Cents,
}

/// All about an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The account.
    pub account: AccountId,
    /// What it belongs to.
    pub portfolio: PortfolioId,
    /// What is in it.
    pub cash: Cents,
    /// The account in its place, where it was reset.
    pub replaced_by: Option<AccountId>,
    /// How many challenges its portfolio started.
    pub challenges: u32,
    /// With how much the latest began.
    pub challenge_from: Option<Cents>,
    /// Its positions, in the order of their opening.
    pub positions: Vec<Position>,
}

/// An account that is the portfolio's at present.
pub(super) struct Present {
    pub(super) portfolio: PortfolioId,
    pub(super) cash: Cents,
}

/// The account, where it is the user's and was not replaced.
pub(super) fn present(on: &Connection, owner: &str, account: AccountId) -> Result<Present> {
    let sql = "SELECT portfolio, cash, replaced_by FROM accounts
        JOIN portfolios ON portfolios.id = portfolio WHERE accounts.id = ?1 AND owner = ?2";
    let (present, replaced_by) = one(
        on,
        sql,
        params![account.0, owner],
        Refusal::NoAccount,
        |row| {
            let portfolio = PortfolioId(row.get(0)?);
            let cash = row.get(1)?;
            Ok((Present { portfolio, cash }, row.get(2)?))
        },
    )?;
    match replaced_by {
        Some(by) => Err(Refusal::Replaced { by: AccountId(by) }.into()),
        None => Ok(present),
    }
}

/// The portfolio of an account of this user's, replaced or not. An account stays with its portfolio
/// and a portfolio with its owner, so the answer is the same at any time.
///
/// # Errors
/// [`Refusal::NoAccount`].
pub fn portfolio_of(on: &Connection, owner: &str, account: AccountId) -> Result<PortfolioId> {
    let sql = "SELECT portfolio FROM accounts JOIN portfolios ON portfolios.id = portfolio
        WHERE accounts.id = ?1 AND owner = ?2";
    let key = params![account.0, owner];
    let id = one(on, sql, key, Refusal::NoAccount, |row| row.get(0))?;
    Ok(PortfolioId(id))
}

/// Adds to what is in the account; takes from it where `cents` is below zero.
pub(super) fn add_cash(on: &Connection, account: AccountId, cents: Cents) -> Result<Cents> {
    let sql = "UPDATE accounts SET cash = cash + ?2 WHERE id = ?1 RETURNING cash";
    let key = params![account.0, cents];
    one(on, sql, key, Refusal::NoAccount, |row| row.get(0))
}

fn add_account(on: &Connection, portfolio: PortfolioId, cash: Cents) -> Result<AccountId> {
    on.execute(
        "INSERT INTO accounts (portfolio, cash) VALUES (?1, ?2)",
        params![portfolio.0, cash],
    )?;
    Ok(AccountId(on.last_insert_rowid()))
}

/// Opens a portfolio with an account in which there is this much.
pub fn open_account(on: &Connection, owner: &str, cash: Cents) -> Result<Opened> {
    on.execute("INSERT INTO portfolios (owner) VALUES (?1)", [owner])?;
    let portfolio = PortfolioId(on.last_insert_rowid());
    let account = add_account(on, portfolio, cash)?;
    Ok(Opened {
        portfolio,
        account,
        cash,
    })
}

/// Begins anew: the open positions are closed for nothing, and another account takes the place of
/// this one, with this much in it.
///
/// # Errors
/// [`Refusal::NoAccount`], [`Refusal::Replaced`].
pub fn reset(on: &Connection, owner: &str, account: AccountId, cash: Cents) -> Result<Reset> {
    let Present { portfolio, .. } = present(on, owner, account)?;
    let closed = positions::write_off(on, account)?;
    // It points to itself for a moment: a portfolio has one account that points nowhere.
    on.execute(
        "UPDATE accounts SET replaced_by = id WHERE id = ?1",
        [account.0],
    )?;
    let fresh = add_account(on, portfolio, cash)?;
    on.execute(
        "UPDATE accounts SET replaced_by = ?2 WHERE id = ?1",
        params![account.0, fresh.0],
    )?;
    Ok(Reset {
        account: fresh,
        replaced: account,
        closed,
        cash,
    })
}

/// Starts a challenge: from what there is now. One that runs is ended by it.
///
/// # Errors
/// [`Refusal::NoAccount`], [`Refusal::Replaced`].
pub fn start_challenge(on: &Connection, owner: &str, account: AccountId) -> Result<()> {
    let Present { portfolio, cash } = present(on, owner, account)?;
    on.execute(
        "UPDATE portfolios SET challenges = challenges + 1, challenge_from = ?2 WHERE id = ?1",
        params![portfolio.0, cash],
    )?;
    Ok(())
}

/// All about an account of this user's, also one that was replaced.
///
/// # Errors
/// [`Refusal::NoAccount`].
pub fn overview(on: &Connection, owner: &str, account: AccountId) -> Result<Overview> {
    let sql = "SELECT portfolio, cash, replaced_by, challenges, challenge_from FROM accounts
        JOIN portfolios ON portfolios.id = portfolio WHERE accounts.id = ?1 AND owner = ?2";
    let key = params![account.0, owner];
    let mut overview = one(on, sql, key, Refusal::NoAccount, |row| {
        Ok(Overview {
            account,
            portfolio: PortfolioId(row.get(0)?),
            cash: row.get(1)?,
            replaced_by: row.get::<_, Option<i64>>(2)?.map(AccountId),
            challenges: row.get(3)?,
            challenge_from: row.get(4)?,
            positions: Vec::new(),
        })
    })?;
    overview.positions = positions::of(on, account)?;
    Ok(overview)
}
