//! What is on the shelves. It never goes below zero: `accept` in `orders.rs` decides under the
//! shelves' locks, and the table's own check stands behind it.

use std::collections::BTreeMap;

use deadpool_postgres::tokio_postgres::{Error, GenericClient, Row};
use serde::{Deserialize, Serialize};

/// How many of what. Sorted, so that everybody locks shelves in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, i32>")]
pub(crate) struct Cart(BTreeMap<String, i32>);

/// Why something is no cart.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CartError {
    #[error("an order has 1 to 100 items")]
    Size,
    #[error("the quantity of each item is 1 to 1000")]
    Quantity,
}

impl TryFrom<BTreeMap<String, i32>> for Cart {
    type Error = CartError;

    fn try_from(items: BTreeMap<String, i32>) -> Result<Self, CartError> {
        if !(1..=100).contains(&items.len()) {
            return Err(CartError::Size);
        }
        if items
            .values()
            .any(|quantity| !(1..=1000).contains(quantity))
        {
            return Err(CartError::Quantity);
        }
        Ok(Self(items))
    }
}

/// Of what was a cart before.
impl FromIterator<(String, i32)> for Cart {
    fn from_iter<I: IntoIterator<Item = (String, i32)>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

impl Cart {
    pub(crate) fn skus(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn quantities(&self) -> Vec<i32> {
        self.0.values().copied().collect()
    }
}

/// What there is of one thing.
#[derive(Debug, Serialize)]
pub(crate) struct Shelf {
    pub(crate) stock: i32,
    /// In cents.
    pub(crate) price: i32,
}

/// The shelves of a shop, by what is on them.
pub(crate) type Shelves = BTreeMap<String, Shelf>;

/// Whether a cart can be filled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// For so many cents.
    Total(i64),
    TooFew,
    NeverHeardOf(String),
}

/// Looks whether the shelves have all of a cart.
pub(crate) fn offer(shelves: &Shelves, cart: &Cart) -> Offer {
    let (mut total, mut enough) = (0, true);
    for (sku, &quantity) in &cart.0 {
        let Some(shelf) = shelves.get(sku) else {
            return Offer::NeverHeardOf(sku.clone());
        };
        total += i64::from(shelf.price) * i64::from(quantity);
        enough &= shelf.stock >= quantity;
    }
    if enough {
        Offer::Total(total)
    } else {
        Offer::TooFew
    }
}

/// The shelves of these things, locked until the transaction ends.
pub(crate) async fn lock(tx: &impl GenericClient, skus: &[&str]) -> Result<Shelves, Error> {
    let sql = "SELECT sku, stock, price FROM inventory WHERE sku = ANY($1) ORDER BY sku FOR UPDATE";
    Ok(shelves(&tx.query(sql, &[&skus]).await?))
}

/// All shelves.
pub(crate) async fn list(client: &impl GenericClient) -> Result<Shelves, Error> {
    let sql = "SELECT sku, stock, price FROM inventory";
    Ok(shelves(&client.query(sql, &[]).await?))
}

fn shelves(rows: &[Row]) -> Shelves {
    let shelf = |row: &Row| Shelf {
        stock: row.get(1),
        price: row.get(2),
    };
    rows.iter().map(|row| (row.get(0), shelf(row))).collect()
}

/// Takes a cart's things off the shelves, or puts them back.
pub(crate) async fn change(tx: &impl GenericClient, cart: &Cart, sign: i32) -> Result<(), Error> {
    let sql = "UPDATE inventory SET stock = stock + change.quantity * $3
               FROM unnest($1::text[], $2::integer[]) AS change (sku, quantity)
               WHERE inventory.sku = change.sku";
    let (skus, quantities) = (cart.skus(), cart.quantities());
    tx.execute(sql, &[&skus, &quantities, &sign]).await?;
    Ok(())
}

/// What was brought of one thing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delivery {
    pub(crate) quantity: i32,
    /// What one costs from now on, in cents.
    pub(crate) price: i32,
}

/// Puts a delivery on its shelf: **adds** to what is there, since orders take from it meanwhile. Not to
/// be done twice, and in the transaction of a key it is not. `None` where the shelf cannot hold it.
pub(crate) async fn receive(
    tx: &impl GenericClient,
    sku: &str,
    delivery: &Delivery,
) -> Result<Option<Shelf>, Error> {
    let sql = "INSERT INTO inventory (sku, stock, price) VALUES ($1, $2, $3)
               ON CONFLICT (sku) DO UPDATE SET stock = inventory.stock + $2, price = $3
               WHERE inventory.stock <= 2147483647 - $2
               RETURNING stock, price";
    let row = tx
        .query_opt(sql, &[&sku, &delivery.quantity, &delivery.price])
        .await?;
    Ok(row.map(|row| Shelf {
        stock: row.get(0),
        price: row.get(1),
    }))
}
