//! A job that runs once a day, whichever machine's timer fires first: `quick-job 2026-11-22`.

use std::time::Duration;

use semel::prelude::*;
use semel_stores::SqliteStore;

/// A day's report is kept for a month.
fn report() -> Operation {
    let once_a_day = KeyFrom::Fields(&["day"]);
    Operation::new("report", [], once_a_day)
        .with_retention(Retention::new(Duration::from_hours(24 * 31)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let day = std::env::args().nth(1).ok_or("which day?")?;
    let guard = Guard::from(SqliteStore::open("sqlite:jobs.db?schema=create").await?);
    let asked = report().asked(&Call::by(&Caller::new()).field("day", &day))?;
    let write = move |_| async move { Ok::<_, std::io::Error>(format!("the report of {day}")) };
    match guard.run(asked, write).await? {
        Done::Fresh(report) => println!("wrote {report}"),
        done => println!("somebody wrote {}", done.into_inner()),
    }
    Ok(guard.close().await?)
}
