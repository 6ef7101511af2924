//! On MariaDB, and on MySQL where `SEMEL_TEST_MYSQL` has a URL.

use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;
use semel::conformance::{Bench, Factory, Failure};
use semel_stores::{MysqlOptions, MysqlStore, Schema};
use semel_testkit::servers::{Kind, shared};
use tempfile::TempDir;

use super::trials;
use super::versioned::trials_in;

pub(super) fn all() -> Vec<Trial> {
    let mut all = trials("mysql/mariadb", Server(None));
    all.extend(trials_in("mysql/mariadb", || versioned(Server(None))));
    // No package of MySQL fits the tests' machines: whoever has a server names it.
    if let Ok(url) = std::env::var("SEMEL_TEST_MYSQL") {
        all.extend(trials("mysql/mysql", Server(Some(url.leak()))));
        all.extend(trials_in("mysql/mysql", || {
            let url = std::env::var("SEMEL_TEST_MYSQL").ok();
            versioned(Server(url.map(|url| &*url.leak())))
        }));
    }
    all
}

#[derive(Clone, Copy)]
struct Server(Option<&'static str>);

async fn versioned(server: Server) -> Result<(MysqlStore, Option<TempDir>), Failure> {
    Ok((server.options().await?.open().await?, None))
}

impl Server {
    async fn options(self) -> Result<MysqlOptions, Failure> {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        let said = |e: &dyn std::fmt::Display| Failure::new(e.to_string());
        let url = match self.0 {
            Some(url) => url.to_owned(),
            None => tokio::task::spawn_blocking(|| shared(Kind::MariaDb))
                .await
                .map_err(|e| said(&e))?
                .map_err(|e| said(&format!("{e:#}")))?,
        };
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let table = format!("suite_{}_{number}", std::process::id());
        let options = MysqlOptions::from_url(&url)
            .and_then(|options| options.table(&table))
            .map_err(|e| said(&e))?;
        Ok(options.schema(Schema::Create).for_tests())
    }
}

impl Factory for Server {
    async fn open(&self) -> Result<Bench, Failure> {
        let options = self.options().await?;
        let store = options.clone().open().await?;
        let other = options.open().await?;
        Ok(Bench::new(store).with_other(other).exclusive())
    }

    async fn clean(&self, _bench: Bench) -> Result<(), Failure> {
        Ok(())
    }
}
