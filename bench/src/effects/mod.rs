//! What it costs that a handler's effects happen once: the same transaction of two statements
//! without protection, with claim and completion around it, and with the completion in it.
//!
//! All three begin and commit by way of the store, on the same connections, so that the
//! difference is the protection's alone.

mod mariadb;
mod postgres;
mod sqlite;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use semel::Fingerprint;
use semel::guard::{Done, Guard, TransactOptions};
use semel::transaction::{Isolation, Lent, Transactional};
use semel_bench_report::Measurement;
use tokio::runtime::Runtime;

use crate::callers;
use crate::inputs::identity;
use crate::run::{Run, progress};

const CALLERS: [(&str, usize); 3] = [("1-caller", 1), ("16-callers", 16), ("64-callers", 64)];
/// Whose balance changes: as many that callers seldom meet.
const ACCOUNTS: usize = 10_000;

const ALONE: &str = "the same transaction, without protection";
const APART: &str = "claim and completion outside the transaction";

/// What the bytes of an order are.
const NOTE: &str = "two boxes of green tea, to be left at the door of the house behind the mill";

pub(crate) fn measure(run: &Run) -> Result<()> {
    postgres::measure(run)?;
    sqlite::measure(run)?;
    mariadb::measure(run)
}

/// The transaction of a store.
type Tx<H> = Lent<<<H as Handler>::Store as Transactional>::Transaction>;

/// The application: a transaction that inserts an order and changes an account.
trait Handler: 'static {
    type Store: Transactional;
    type Error: StdError + Send + Sync + 'static;

    fn order(
        tx: Tx<Self>,
        index: usize,
    ) -> impl Future<Output = Result<String, Self::Error>> + Send + 'static;
}

fn account(index: usize) -> i64 {
    // So that neighbours are apart.
    (index * 7919 % ACCOUNTS) as i64
}

/// How a handler is run.
#[derive(Debug, Clone, Copy)]
enum Way {
    Alone,
    Apart,
    Transact,
}

struct Bench<S> {
    store: Arc<S>,
    guard: Guard<Arc<S>>,
}

impl<S> Clone for Bench<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            guard: self.guard.clone(),
        }
    }
}

impl<S: Transactional> Bench<S> {
    fn new(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            guard: Guard::from(Arc::clone(&store)),
            store,
        }
    }

    /// Measures the three in turn.
    fn measure<H: Handler<Store = S>>(&self, name: &str, run: &Run, on: &Runtime) -> Result<()> {
        let mut next = 0;
        for (callers_name, callers) in CALLERS {
            let name = |what| format!("effects/{name}/{what}/{callers_name}");
            let [transact, apart, beside] =
                ["transact", "apart", "transact-beside-apart"].map(name);
            if ![&transact, &apart, &beside]
                .iter()
                .any(|name| run.wants(name))
            {
                continue;
            }
            let mut rates = [Vec::new(), Vec::new(), Vec::new()];
            for round in 1..=run.rounds() {
                progress(format_args!("{transact}: round {round}"));
                for (way, rates) in [Way::Alone, Way::Apart, Way::Transact]
                    .iter()
                    .zip(&mut rates)
                {
                    let rate = self.rate::<H>(*way, callers, run.turn(), &mut next);
                    rates.push(on.block_on(rate)?);
                }
            }
            let [alone, outside, inside] = &rates;
            let unit = "transactions/s";
            for (name, value, reference, reference_value) in [
                (&transact, inside, ALONE, alone),
                (&apart, outside, ALONE, alone),
                (&beside, inside, APART, outside),
            ] {
                if run.wants(name) {
                    Measurement::new(name, unit, value.clone())
                        .against(reference, reference_value)
                        .print();
                }
            }
        }
        on.block_on(self.store.close()).context("closing the store")
    }

    /// Orders a second; `next` numbers them.
    async fn rate<H: Handler<Store = S>>(
        &self,
        way: Way,
        callers: usize,
        time: Duration,
        next: &mut usize,
    ) -> Result<f64> {
        let bench = self.clone();
        let work = move |_, index| {
            let bench = bench.clone();
            async move { bench.order::<H>(way, index).await }
        };
        callers::rate(callers, time, next, work).await
    }

    async fn order<H: Handler<Store = S>>(&self, way: Way, index: usize) -> Result<()> {
        let asked = Fingerprint::of(b"an order");
        let done = match way {
            Way::Alone => return alone::<H>(Arc::clone(&self.store), index).await.map(drop),
            Way::Apart => {
                let store = Arc::clone(&self.store);
                let work = move |_| alone::<H>(store, index);
                self.guard.run((&identity(index), asked), work).await?
            }
            Way::Transact => {
                let options = TransactOptions::default();
                let work = move |_, tx| H::order(tx, index);
                let asked = (&identity(index), asked);
                self.guard.transact(asked, options, work).await?
            }
        };
        ensure!(matches!(done, Done::Fresh(_)), "order {index} was there");
        Ok(())
    }
}

async fn alone<H: Handler>(store: Arc<H::Store>, index: usize) -> Result<String> {
    let begun = store.begin(Isolation::ReadCommitted).await?;
    let (lent, loan) = Lent::new(begun);
    let done = H::order(lent, index).await?;
    let transaction = loan.take_back().context("the handler kept it")?;
    store.commit(transaction).await?;
    Ok(done)
}
