//! On MariaDB.

use anyhow::Result;
use semel_stores::mysql::sqlx::{self, Connection as _, Error, MySqlConnection};
use semel_stores::{MysqlOptions, MysqlStore, Schema};
use semel_testkit::servers::{MariaDb, Server as _};

use super::{ACCOUNTS, Bench, Handler, NOTE, Tx, account};
use crate::run::Run;

struct Shop;

impl Handler for Shop {
    type Store = MysqlStore;
    type Error = Error;

    async fn order(mut tx: Tx<Self>, index: usize) -> Result<String, Error> {
        let account = account(index);
        let insert = sqlx::query("INSERT INTO orders (account, note) VALUES (?, ?)");
        let inserted = insert.bind(account).bind(NOTE).execute(&mut ***tx).await?;
        let update = sqlx::query("UPDATE accounts SET balance = balance - 1 WHERE id = ?");
        update.bind(account).execute(&mut ***tx).await?;
        Ok(inserted.last_insert_id().to_string())
    }
}

const TABLES: [&str; 2] = [
    "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, account bigint, note text)",
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
];

pub(super) fn measure(run: &Run) -> Result<()> {
    let server = MariaDb::start(&[])?;
    let runtime = semel_bench_load::workers();
    let bench = runtime.block_on(async {
        let mut link = MySqlConnection::connect(&server.url()).await?;
        for table in TABLES {
            sqlx::query(table).execute(&mut link).await?;
        }
        let fill =
            sqlx::query("INSERT INTO accounts SELECT seq, 0 FROM seq_0_to_1000000 WHERE seq < ?");
        fill.bind(ACCOUNTS as u64).execute(&mut link).await?;
        let options = MysqlOptions::from_url(&server.url())?;
        let store = options.schema(Schema::Create).open().await?;
        anyhow::Ok(Bench::new(store))
    })?;
    bench.measure::<Shop>("mariadb", run, &runtime)
}
