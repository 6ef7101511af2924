//! Work in a transaction: money goes from one account to another, and a ledger says so.
//!
//! The accounts are few and taken in either order, so that transactions wait for each other,
//! conflict, and run into deadlocks. Ledger and accounts say the same thing twice: one without the
//! other is half an effect.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use semel::guard::{Done, RunError, TransactOptions};
use semel::transaction::{Isolation, Lent};

use super::failpoints::Failpoints;
use super::point::Point;
use super::worker::Worker;
use crate::base::{self, Base};

/// Of one effect: from, ledger, to.
pub(super) const STATEMENTS: u32 = 3;

pub(super) const ACCOUNTS: i64 = 8;
pub(super) const BALANCE: i64 = 1_000_000;

/// What a key's effect is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    pub(super) key: i64,
    pub(super) amount: i64,
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Effect {
    pub(super) const fn of(key: i64) -> Self {
        let from = key * 7 % ACCOUNTS;
        Self {
            key,
            amount: 1 + key % 97,
            from,
            to: (from + 1 + key % (ACCOUNTS - 1)) % ACCOUNTS,
        }
    }

    /// What its caller is answered: with the fence, which tells two effects of one key apart.
    pub(super) fn answer(&self, fence: i64) -> String {
        format!("{} {} {fence}", self.key, self.amount)
    }
}

/// The tables of one run.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) ledger: String,
    pub(super) accounts: String,
}

impl Tables {
    pub(super) fn of(run: &str) -> Self {
        Self {
            ledger: format!("lab_ledger_{run}"),
            accounts: format!("lab_accounts_{run}"),
        }
    }

    /// Makes them.
    pub(super) async fn make<B: Base>(&self, store: &B) -> Result<()> {
        let Self { ledger, accounts } = self;
        let mut statements = vec![
            // Not unique: what happens twice is to be seen twice.
            format!(
                "CREATE TABLE {ledger} (k BIGINT NOT NULL, fence BIGINT NOT NULL, \
                 attempt BIGINT NOT NULL, amount BIGINT NOT NULL)"
            ),
            format!("CREATE TABLE {accounts} (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)"),
        ];
        for id in 0..ACCOUNTS {
            statements.push(format!("INSERT INTO {accounts} VALUES ({id}, {BALANCE})"));
        }
        base::execute(store, &statements).await
    }

    /// Removes them.
    pub(super) async fn drop<B: Base>(&self, store: &B) -> Result<()> {
        let tables = [&self.ledger, &self.accounts].map(|name| format!("DROP TABLE {name}"));
        base::execute(store, &tables).await
    }

    pub(super) fn statements(&self, effect: &Effect, fence: u64, attempt: u32) -> [String; 3] {
        let Self { ledger, accounts } = self;
        let Effect {
            key,
            amount,
            from,
            to,
        } = effect;
        [
            format!("UPDATE {accounts} SET balance = balance - {amount} WHERE id = {from}"),
            format!("INSERT INTO {ledger} VALUES ({key}, {fence}, {attempt}, {amount})"),
            format!("UPDATE {accounts} SET balance = balance + {amount} WHERE id = {to}"),
        ]
    }
}

/// Every isolation level gets its share of the keys.
pub(super) const fn isolation(key: i64) -> Isolation {
    match key % 4 {
        0 | 1 => Isolation::ReadCommitted,
        2 => Isolation::RepeatableRead,
        _ => Isolation::Serializable,
    }
}

/// Asks for one key.
pub(super) async fn ask<B: Base>(
    worker: &Worker<B>,
    key: i64,
) -> Result<Done<String>, RunError<B::Error>> {
    let identity = worker.identity(key);
    let options = TransactOptions::default().with_isolation(isolation(key));
    let (tables, points) = (worker.tables.clone(), worker.points.clone());
    let effect = Effect::of(key);
    let asked = (&identity, worker.fingerprint(key));
    let again = worker.again.clone();
    let transact = worker.guard.transact(asked, options, move |info, tx| {
        let statements = tables.statements(&effect, info.fence.0, info.number);
        let points = points.clone();
        again.store(info.retry, Ordering::Relaxed);
        points.attempt(info.fence.0);
        async move {
            write::<B>(tx, statements, &points).await?;
            Ok(effect.answer(info.fence.0.cast_signed()))
        }
    });
    transact.await
}

pub(super) async fn write<B: Base>(
    mut tx: Lent<B::Transaction>,
    statements: [String; 3],
    points: &Arc<Failpoints>,
) -> Result<(), B::Error> {
    for (place, sql) in statements.into_iter().enumerate() {
        if place > 0 {
            points.pass(Point::BetweenStatements).await;
        }
        B::execute(&mut tx, sql).await?;
    }
    Ok(())
}
