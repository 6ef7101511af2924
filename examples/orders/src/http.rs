//! The API. Orders are placed once; reading needs no key, and filling a shelf twice is filling it
//! once.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use deadpool_postgres::Pool;
use semel_stores::{PostgresStore, PostgresTransaction};
use semel_tower::{CommitFailure, IdempotencyLayer, TransactionHandle};

use crate::inventory::{self, Shelf, Shelves};
use crate::orders::{self, NewOrder, Order, OrderId, Reason};
use crate::payment::Payments;
use crate::problem::Problem;

/// What the handlers share.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) pool: Pool,
    pub(crate) payments: Payments,
}

pub(crate) fn router(shop: Shop, once: IdempotencyLayer<PostgresStore>) -> Router {
    Router::new()
        .route("/orders", post(place).layer(once))
        .route("/orders/{id}", get(order))
        .route("/inventory", get(inventory))
        .route("/inventory/{sku}", put(fill))
        .with_state(shop)
}

/// Places an order: accepts it, has it paid, and settles it together with the answer.
///
/// A crash anywhere in it loses and doubles nothing: asked again with the same key it comes to the
/// same order, asks for the same payment, and settles once. README.md has the cases.
async fn place(
    State(shop): State<Shop>,
    transaction: TransactionHandle<PostgresTransaction>,
    new: Result<Json<NewOrder>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(new) = new?;
    let id = OrderId::from_digest(transaction.info().id.as_bytes());
    let order = orders::accept(&mut **shop.pool.get().await?, &id, &new).await?;
    if order.state != orders::State::Pending {
        return Ok(answer(&order));
    }
    // No transaction is open, and no lock is held, while the payment service takes its time.
    let charge = shop.payments.charge(id.as_str(), order.total, &order.card);
    let charge = charge.await?;
    let tx = transaction.begin().await?;
    let order = orders::settle(&**tx, &id, &charge).await?;
    // Committed by the layer, with this answer in it.
    Ok(answer(&order))
}

/// What is answered depends on the order alone, whoever settled it.
fn answer(order: &Order) -> Response {
    let orders::State::Refused { reason } = order.state else {
        let location = [(header::LOCATION, format!("/orders/{}", order.id))];
        return (StatusCode::CREATED, location, Json(order)).into_response();
    };
    let (status, detail) = match reason {
        Reason::OutOfStock => (StatusCode::CONFLICT, "There is not enough left"),
        Reason::CardDeclined => (StatusCode::PAYMENT_REQUIRED, "The card was declined"),
    };
    let detail = format!("{detail}; nothing was paid.");
    let problem = Problem::new(status, reason.as_str(), detail);
    // That the order is refused is written down too, and its goods are given back.
    (Extension(CommitFailure), problem).into_response()
}

async fn order(State(shop): State<Shop>, Path(id): Path<String>) -> Result<Json<Order>, Problem> {
    let client = shop.pool.get().await?;
    Ok(Json(orders::find(&**client, &id.into()).await?))
}

async fn inventory(State(shop): State<Shop>) -> Result<Json<Shelves>, Problem> {
    Ok(Json(inventory::list(&**shop.pool.get().await?).await?))
}

async fn fill(
    State(shop): State<Shop>,
    Path(sku): Path<String>,
    shelf: Result<Json<Shelf>, JsonRejection>,
) -> Result<StatusCode, Problem> {
    let Json(shelf) = shelf?;
    if shelf.stock < 0 || shelf.price < 0 {
        let detail = "Stock and price are zero or more.";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail));
    }
    inventory::put(&**shop.pool.get().await?, &sku, &shelf).await?;
    Ok(StatusCode::NO_CONTENT)
}
