//! Orders, and the two transactions of each: one accepts it, one settles it.
//!
//! The row of an order decides. Whoever writes it first says whether there were enough goods;
//! whoever takes it out of `pending` first says whether it was paid. Everybody else reads what was
//! decided, so that each of the two may be done again at any time.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use deadpool_postgres::tokio_postgres::types::ToSql;
use deadpool_postgres::tokio_postgres::{self, Client, GenericClient, Row};
use serde::{Deserialize, Serialize};

use crate::inventory::{self, Cart, Offer};
use crate::payment::Charge;

/// The number of an order, and the key of its payment. Made from what names the request, so that
/// every attempt at it comes to the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct OrderId(String);

impl OrderId {
    /// From a digest that is the same in every attempt.
    pub(crate) fn from_digest(digest: &[u8; 32]) -> Self {
        let mut id = String::from("ord_");
        for byte in &digest[..16] {
            // Writing to a String does not fail.
            write!(id, "{byte:02x}").ok();
        }
        Self(id)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for OrderId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

impl Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a customer asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewOrder {
    pub(crate) items: Cart,
    /// What the payment service knows the card by.
    pub(crate) card: String,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum State {
    /// Its goods are set aside; whether it is paid is not known yet.
    Pending,
    Paid {
        payment: String,
    },
    /// Nothing is set aside, and nothing was paid.
    Refused {
        reason: Reason,
    },
}

/// Why an order is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reason {
    OutOfStock,
    CardDeclined,
}

impl Reason {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::OutOfStock => "out-of-stock",
            Self::CardDeclined => "card-declined",
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Order {
    pub(crate) id: OrderId,
    #[serde(flatten)]
    pub(crate) state: State,
    pub(crate) items: Cart,
    /// In cents.
    pub(crate) total: i64,
    #[serde(skip)]
    pub(crate) card: String,
}

/// Why there is no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("there is nothing called {0:?}")]
    UnknownItem(String),
    #[error("there is no such order")]
    NoSuchOrder,
    #[error("this order was placed before, with other items or another card")]
    AnotherOrder,
    #[error("the database failed")]
    Database(#[from] tokio_postgres::Error),
}

/// Accepts an order, or refuses it where there are too few goods, in a transaction of its own:
/// the goods are set aside before anything is paid. Done before, it answers what was decided then.
pub(crate) async fn accept(
    client: &mut Client,
    id: &OrderId,
    new: &NewOrder,
) -> Result<Order, Error> {
    let tx = client.transaction().await?;
    let shelves = inventory::lock(&tx, &new.items.skus()).await?;
    let (state, reason, total) = match inventory::offer(&shelves, &new.items) {
        Offer::Total(total) => ("pending", None, total),
        Offer::TooFew => ("refused", Some(Reason::OutOfStock.as_str()), 0),
        Offer::NeverHeardOf(sku) => return Err(Error::UnknownItem(sku)),
    };
    let insert = "INSERT INTO orders (id, state, detail, card, total) VALUES ($1, $2, $3, $4, $5)
                  ON CONFLICT (id) DO NOTHING";
    let order: [&(dyn ToSql + Sync); 5] = [&id.as_str(), &state, &reason, &new.card, &total];
    if tx.execute(insert, &order).await? == 1 {
        let items = "INSERT INTO items (order_id, sku, quantity)
                     SELECT $1, sku, quantity
                     FROM unnest($2::text[], $3::integer[]) AS item (sku, quantity)";
        let (skus, quantities) = (new.items.skus(), new.items.quantities());
        tx.execute(items, &[&id.as_str(), &skus, &quantities])
            .await?;
        if reason.is_none() {
            inventory::change(&tx, &new.items, -1).await?;
        }
    }
    // Inserted just now, or committed before: the insertion waited for whoever was at it.
    let order = find(&tx, id).await?;
    tx.commit().await?;
    if order.items != new.items || order.card != new.card {
        return Err(Error::AnotherOrder);
    }
    Ok(order)
}

/// Writes down what became of the payment of a pending order, and gives the goods back where it
/// was declined. Of an order that was settled before nothing is changed.
pub(crate) async fn settle(
    tx: &impl GenericClient,
    id: &OrderId,
    charge: &Charge,
) -> Result<Order, Error> {
    let (state, detail) = match charge {
        Charge::Paid(payment) => ("paid", payment.as_str()),
        Charge::Declined => ("refused", Reason::CardDeclined.as_str()),
    };
    let sql = "UPDATE orders SET state = $2, detail = $3 WHERE id = $1 AND state = 'pending'";
    let changed = tx.execute(sql, &[&id.as_str(), &state, &detail]).await?;
    let order = find(tx, id).await?;
    if changed == 1 && matches!(charge, Charge::Declined) {
        inventory::lock(tx, &order.items.skus()).await?;
        inventory::change(tx, &order.items, 1).await?;
    }
    Ok(order)
}

/// An order with its items.
pub(crate) async fn find(client: &impl GenericClient, id: &OrderId) -> Result<Order, Error> {
    let sql = "SELECT state, detail, card, total, sku, quantity
               FROM orders JOIN items ON items.order_id = orders.id
               WHERE orders.id = $1";
    let rows = client.query(sql, &[&id.as_str()]).await?;
    let first = rows.first().ok_or(Error::NoSuchOrder)?;
    let items = rows.iter().map(|row| (row.get(4), row.get(5)));
    Ok(Order {
        id: id.clone(),
        state: state(first),
        items: items.collect(),
        card: first.get(2),
        total: first.get(3),
    })
}

fn state(row: &Row) -> State {
    let detail: &str = row.get::<_, Option<_>>(1).unwrap_or_default();
    match row.get(0) {
        "paid" => State::Paid {
            payment: detail.into(),
        },
        "refused" if detail == Reason::CardDeclined.as_str() => State::Refused {
            reason: Reason::CardDeclined,
        },
        "refused" => State::Refused {
            reason: Reason::OutOfStock,
        },
        _ => State::Pending,
    }
}

/// Orders that have been pending for this long: whoever was at them is gone.
pub(crate) async fn left_behind(
    client: &impl GenericClient,
    age: Duration,
) -> Result<Vec<OrderId>, tokio_postgres::Error> {
    let sql = "SELECT id FROM orders
               WHERE state = 'pending' AND created_at < now() - make_interval(secs => $1)
               ORDER BY created_at LIMIT 100";
    let rows = client.query(sql, &[&age.as_secs_f64()]).await?;
    Ok(rows
        .iter()
        .map(|row| row.get::<_, String>(0).into())
        .collect())
}
