//! The API. Orders are placed once and deliveries put on their shelves once, each under its key.
//! Reading needs none.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use deadpool_postgres::Pool;
use semel_stores::{PostgresStore, PostgresTransaction};
use semel_tower::{CommitFailure, IdempotencyLayer, InTransaction, TransactionHandle};

use crate::inventory::{self, Delivery, Shelf, Shelves};
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
        .route("/orders", post(place).layer(once.clone()))
        .route("/orders/{id}", get(order))
        .route("/inventory", get(inventory))
        .route("/inventory/{sku}/deliveries", post(receive).layer(once))
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

/// Puts a delivery on its shelf. The retry of a delivery whose answer was lost is a replay, however
/// many were sold in between; to *set* the stock again would sell those twice.
async fn receive(
    Path(sku): Path<String>,
    tx: InTransaction<PostgresTransaction>,
    delivery: Result<Json<Delivery>, JsonRejection>,
) -> Result<Json<Shelf>, Problem> {
    let Json(delivery) = delivery?;
    if !(1..=1_000_000).contains(&delivery.quantity) || delivery.price < 0 {
        let detail = "A delivery has 1 to 1000000 items, and their price is zero or more.";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail));
    }
    // Committed by the layer, together with this answer.
    let shelf = inventory::receive(&**tx, &sku, &delivery).await?;
    let full = || {
        Problem::new(
            StatusCode::CONFLICT,
            "shelf-full",
            "The shelf cannot hold it.",
        )
    };
    shelf.map(Json).ok_or_else(full)
}
