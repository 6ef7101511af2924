//! Brings the database to the version that this program knows.

use deadpool_postgres::Pool;

/// In their order; one that was released is never changed.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/1-shop.sql")];

/// What two programs that start at once must not both do.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtext('orders/schema'))";

/// Runs the migrations that this database has not seen, all or none.
pub(crate) async fn migrate(pool: &Pool) -> anyhow::Result<()> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    tx.query_one(LOCK, &[]).await?;
    tx.batch_execute("CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY)")
        .await?;
    let seen = tx.query_one("SELECT count(*) FROM migrations", &[]).await?;
    let seen = usize::try_from(seen.get::<_, i64>(0))?;
    for (version, sql) in (1_i32..).zip(MIGRATIONS).skip(seen) {
        tx.batch_execute(sql).await?;
        let done = "INSERT INTO migrations VALUES ($1)";
        tx.execute(done, &[&version]).await?;
    }
    Ok(tx.commit().await?)
}
