//! What a consumer does with an event in tables of its own: it changes the asset, and writes down
//! that it did.

use std::collections::BTreeMap;

use anyhow::Result;
use semel::transaction::Lent;

use super::consumer::Failed;
use super::plan::{ASSETS, Asset, Ends, Happening};
use crate::base::{self, Base};
use crate::crash::failpoints::Failpoints;
use crate::crash::point::Point;

/// The tables of one run.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    /// What was applied. Not unique: what happens twice is to be seen twice.
    pub(crate) applied: String,
    pub(crate) assets: String,
}

impl Tables {
    pub(crate) fn of(run: &str) -> Self {
        Self {
            applied: format!("lab_applied_{run}"),
            assets: format!("lab_assets_{run}"),
        }
    }

    /// Makes them.
    pub(crate) async fn make<B: Base>(&self, store: &B) -> Result<()> {
        let Self { applied, assets } = self;
        let mut statements = vec![
            format!(
                "CREATE TABLE {applied} (event BIGINT NOT NULL, asset BIGINT NOT NULL, \
                 version BIGINT NOT NULL)"
            ),
            format!(
                "CREATE TABLE {assets} (id BIGINT PRIMARY KEY, state BIGINT NOT NULL, \
                 last BIGINT NOT NULL, loads BIGINT NOT NULL, events BIGINT NOT NULL)"
            ),
        ];
        for id in 0..ASSETS {
            statements.push(format!("INSERT INTO {assets} VALUES ({id}, 0, 0, 0, 0)"));
        }
        base::execute(store, &statements).await
    }

    /// Removes them.
    pub(crate) async fn drop<B: Base>(&self, store: &B) -> Result<()> {
        let tables = [&self.applied, &self.assets].map(|name| format!("DROP TABLE {name}"));
        base::execute(store, &tables).await
    }

    /// The row that says that an event was applied, and which version of its asset that made.
    pub(crate) fn record(&self, event: &Happening, version: u64) -> String {
        let Happening { number, asset, .. } = event;
        let applied = &self.applied;
        format!("INSERT INTO {applied} VALUES ({number}, {asset}, {version})")
    }

    fn change(&self, event: &Happening) -> String {
        let Happening {
            number,
            asset,
            state,
            load,
            ..
        } = event;
        // `last` comes last: MySQL uses what it has set already.
        format!(
            "UPDATE {} SET loads = loads + {load}, events = events + 1, \
             state = CASE WHEN last <= {number} THEN {state} ELSE state END, \
             last = CASE WHEN last <= {number} THEN {number} + 1 ELSE last END WHERE id = {asset}",
            self.assets
        )
    }

    /// Every event that was applied, as often as it was: its number, its asset, the asset's version.
    pub(crate) async fn applied<B: Base>(&self, store: &B) -> Result<Vec<[u64; 3]>> {
        let sql = format!("SELECT event, asset, version FROM {}", self.applied);
        let rows = base::numbers(store, &sql).await?;
        let row = |row: Vec<i64>| [row[0], row[1], row[2]].map(i64::cast_unsigned);
        Ok(rows.into_iter().map(row).collect())
    }

    /// What became of the assets.
    pub(crate) async fn read<B: Base>(&self, store: &B) -> Result<BTreeMap<u64, Asset>> {
        let sql = format!("SELECT id, state, last, loads, events FROM {}", self.assets);
        let rows = base::numbers(store, &sql).await?;
        let asset = |row: Vec<i64>| {
            let [id, state, last, loads, events] =
                [row[0], row[1], row[2], row[3], row[4]].map(i64::cast_unsigned);
            let asset = Asset {
                state,
                last,
                loads,
                events,
            };
            (id, asset)
        };
        Ok(rows.into_iter().map(asset).collect())
    }
}

/// Applies events, all of them in this transaction.
pub(crate) async fn apply<B: Base>(
    mut tx: Lent<B::Transaction>,
    tables: Tables,
    events: Vec<Happening>,
    points: &Failpoints,
) -> Result<(), Failed<B::Error>> {
    for event in &events {
        for (place, sql) in [tables.change(event), tables.record(event, 0)]
            .into_iter()
            .enumerate()
        {
            if place > 0 {
                points.pass(Point::BetweenStatements).await;
            }
            B::execute(&mut tx, sql).await.map_err(Failed::Driver)?;
        }
        match event.ends {
            Ends::Well => {}
            Ends::Fails => return Err(Failed::Poisonous),
            Ends::Kills => points.stand(Point::Poisonous).await,
        }
    }
    Ok(())
}
