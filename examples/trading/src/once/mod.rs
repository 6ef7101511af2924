//! The service: each operation of the domain, once for each key.
//!
//! This is the only room, beside the HTTP one, that knows of retries. It says which calls are the same,
//! and runs each operation in one transaction with its record: after a crash both are there, or
//! neither. What is not recorded did not happen, and runs again.

mod answer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use semel::StoreError;
use semel::prelude::{Call, Caller, Guard, KeyFrom, KeyRule, Operation, Part, Policy, Retention};
use semel_stores::{Schema, SqliteOptions, SqliteStore};

use self::answer::once;
use crate::domain::{
    self, AccountId, Cents, Closed, Filled, Opened, Order, Overview, PositionId, Reset,
};

pub use answer::{Answered, Error, Failure};

type Store = Arc<SqliteStore>;

/// What outlives an account that is replaced.
const PORTFOLIO: Part = Part::new("portfolio");
/// What somebody who asks again waits for the attempt that runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// What can be set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What is in a new account.
    pub balance: Cents,
    /// After which time without a sign of life an attempt is taken to be dead.
    pub lease: Duration,
}

/// Who asks, and under which key.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// The user, authenticated.
    pub user: &'a str,
    /// The client's key.
    pub key: Option<&'a str>,
}

/// The service.
pub struct Trading {
    open_account: Operation,
    open_position: Operation,
    close_position: Operation,
    reset: Operation,
    start_challenge: Operation,
    guard: Guard<Store>,
    // For what needs no protection.
    own: Arc<Mutex<Connection>>,
    balance: Cents,
}

impl Trading {
    /// Opens the service on a file, which is made where there is none. Blocks for a while.
    ///
    /// # Errors
    /// The database's and the store's.
    pub fn open(path: &Path, settings: &Settings) -> anyhow::Result<Self> {
        let own = Connection::open(path)?;
        own.busy_timeout(PATIENCE)?;
        domain::prepare(&own)?;
        let store = SqliteOptions::new().schema(Schema::Create).open(path)?;
        let policy = Policy::order()
            .with_lease(settings.lease)
            .with_wait(PATIENCE);
        let guard = Guard::new(Arc::new(store), policy);

        let client = KeyFrom::Client(KeyRule::GENERAL);
        let on_account = [Part::USER, Part::ACCOUNT];
        // These replace the account, or are about what outlives it.
        let on_portfolio = [Part::USER, PORTFOLIO];
        Ok(Self {
            open_account: Operation::new("open_account", [Part::USER], client),
            open_position: Operation::new("open_position", on_account, client),
            close_position: Operation::new("close_position", on_account, client),
            reset: Operation::new("reset", on_portfolio, client).with_retention(Retention::PAYMENT),
            start_challenge: Operation::new("start_challenge", on_portfolio, client)
                .with_key_required(false),
            guard,
            own: Arc::new(Mutex::new(own)),
            balance: settings.balance,
        })
    }

    /// Opens a portfolio with its first account.
    pub async fn open_account(&self, asking: Asking<'_>) -> Answered<Opened> {
        let call = Call::by(&Caller::new().with(Part::USER, asking.user)).key(asking.key);
        let (user, balance) = (asking.user.to_owned(), self.balance);
        once(&self.guard, self.open_account.asked(&call)?, move |on| {
            domain::open_account(on, &user, balance)
        })
        .await
    }

    /// Buys.
    pub async fn open_position(
        &self,
        asking: Asking<'_>,
        account: AccountId,
        order: Order,
    ) -> Answered<Filled> {
        let call = self.call(asking, account).await?;
        let call = call
            .field("symbol", &order.symbol)
            .field("quantity", order.quantity);
        let user = asking.user.to_owned();
        once(&self.guard, self.open_position.asked(&call)?, move |on| {
            domain::open_position(on, &user, account, &order)
        })
        .await
    }

    /// Sells.
    pub async fn close_position(
        &self,
        asking: Asking<'_>,
        account: AccountId,
        position: PositionId,
    ) -> Answered<Closed> {
        let call = self.call(asking, account).await?;
        let call = call.field("position", position.0);
        let user = asking.user.to_owned();
        once(&self.guard, self.close_position.asked(&call)?, move |on| {
            domain::close_position(on, &user, account, position)
        })
        .await
    }

    /// Replaces the account. A retry may name it, or the one in its place: the account is neither
    /// among the parts of the operation's scope nor among the fields.
    pub async fn reset(&self, asking: Asking<'_>, account: AccountId) -> Answered<Reset> {
        let call = self.call(asking, account).await?;
        let (user, balance) = (asking.user.to_owned(), self.balance);
        once(&self.guard, self.reset.asked(&call)?, move |on| {
            domain::reset(on, &user, account, balance)
        })
        .await
    }

    /// Starts a challenge. The key may be left out: then it starts as often as it is asked for.
    pub async fn start_challenge(&self, asking: Asking<'_>, account: AccountId) -> Answered<()> {
        let call = self.call(asking, account).await?;
        let user = asking.user.to_owned();
        once(&self.guard, self.start_challenge.asked(&call)?, move |on| {
            domain::start_challenge(on, &user, account)
        })
        .await
    }

    /// All about an account.
    pub async fn overview(&self, user: &str, account: AccountId) -> domain::Result<Overview> {
        let user = user.to_owned();
        self.plainly(move |on| domain::overview(on, &user, account))
            .await
    }

    /// Sets a quote. The last one to come holds: a feed sends the present quote, never an old one again.
    pub async fn set_quote(&self, symbol: String, cents: Cents) -> domain::Result<()> {
        self.plainly(move |on| domain::set_quote(on, &symbol, cents))
            .await
    }

    /// Removes answers that are no longer kept, until it is closed.
    pub fn spawn_purger(&self) {
        self.guard.spawn_purger();
    }

    /// Waits for what runs, and closes the file.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.guard.close().await
    }

    /// A call about an account of the user's. Which portfolio it belongs to never changes, so that
    /// it may be read before the claim.
    async fn call(&self, asking: Asking<'_>, account: AccountId) -> Result<Call, Error> {
        let user = asking.user.to_owned();
        let portfolio = self
            .plainly(move |on| domain::portfolio_of(on, &user, account))
            .await?;
        let caller = Caller::new()
            .with(Part::USER, asking.user)
            .with(Part::ACCOUNT, account.0.to_string())
            .with(PORTFOLIO, portfolio.0.to_string());
        Ok(Call::by(&caller).key(asking.key))
    }

    /// Runs `work` in a transaction on the service's own connection, on a thread where it may block: what
    /// it reads is of one moment, whatever is committed meanwhile.
    async fn plainly<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> domain::Result<T> + Send + 'static,
    ) -> domain::Result<T> {
        let own = Arc::clone(&self.own);
        let task = tokio::task::spawn_blocking(move || {
            let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = own.transaction()?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        match task.await {
            Ok(done) => done,
            Err(ended) => std::panic::resume_unwind(ended.into_panic()),
        }
    }
}
