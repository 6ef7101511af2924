//! Finishes orders that nobody asks about any more: their client gave up, and so did the process
//! that was at them.

use std::time::Duration;

use deadpool_postgres::Pool;

use crate::orders::{self, OrderId};
use crate::payment::Payments;

const SHORTEST: Duration = Duration::from_millis(50);

/// Looks for orders pending for longer than `age`, again and again. Any number of processes may: the
/// payment has its key, and the order's row is settled once.
pub(crate) async fn run(pool: Pool, payments: Payments, age: Duration) {
    loop {
        tokio::time::sleep((age / 2).max(SHORTEST)).await;
        if let Err(error) = round(&pool, &payments, age).await {
            tracing::warn!("orders left behind: {error:#}");
        }
    }
}

async fn round(pool: &Pool, payments: &Payments, age: Duration) -> anyhow::Result<()> {
    let left = orders::left_behind(&**pool.get().await?, age).await?;
    for id in left {
        match settle(pool, payments, &id).await {
            Ok(()) => tracing::info!(%id, "settled an order that was left behind"),
            // The next one may go better, and so may this one later.
            Err(error) => tracing::warn!(%id, "{error:#}"),
        }
    }
    Ok(())
}

async fn settle(pool: &Pool, payments: &Payments, id: &OrderId) -> anyhow::Result<()> {
    let order = orders::find(&**pool.get().await?, id).await?;
    let charge = payments
        .charge(id.as_str(), order.total, &order.card)
        .await?;
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    orders::settle(&*tx, id, &charge).await?;
    Ok(tx.commit().await?)
}
