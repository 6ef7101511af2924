//! The transaction as an argument of axum's handlers.

use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::Empty;
use semel::guard::AttemptInfo;
use semel::transaction::{Lent, TransactionError};

use crate::config::Echo;
use crate::transact::{TransactionHandle, Unkeyed};

/// A transaction `T` (as `PostgresTransaction`) that the handler takes as an argument, with axum: begun when the handler is
/// called, and given back when this is dropped. `Option<InTransaction<T>>` where requests come
/// without a key.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, http::StatusCode, routing::post};
/// use semel::guard::Policy;
/// use semel::guard::TransactOptions;
/// use semel_stores::{PostgresOptions, PostgresTransaction};
/// use semel_tower::{IdempotencyLayer, InTransaction};
///
/// async fn order(tx: InTransaction<PostgresTransaction>) -> (StatusCode, String) {
///     let sql = "INSERT INTO orders (what) VALUES ($1) RETURNING id";
///     match tx.query_one(sql, &[&"apples"]).await {
///         Ok(row) => (StatusCode::CREATED, format!("order {}", row.get::<_, i64>(0))),
///         // Rolled back, and not recorded.
///         Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
///     }
/// }
///
/// let store = PostgresOptions::from_url("postgres://app@localhost/app")?.open().await?;
/// let layer = IdempotencyLayer::new(store)
///     .with_policy(Policy::default().with_key_required(true))
///     .with_transactions(TransactOptions::default());
/// let app: Router = Router::new().route("/orders", post(order)).layer(layer);
/// # Ok(()) }
/// ```
pub struct InTransaction<T> {
    transaction: Lent<T>,
    info: AttemptInfo,
}

impl<T: Send> InTransaction<T> {
    /// What the handler may know of its attempt.
    pub const fn info(&self) -> &AttemptInfo {
        &self.info
    }

    async fn of(handle: &TransactionHandle<T>) -> Result<Self, TransactionError> {
        Ok(Self {
            transaction: handle.begin().await?,
            info: handle.info().clone(),
        })
    }
}

impl<T> Deref for InTransaction<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.transaction
    }
}

impl<T> DerefMut for InTransaction<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.transaction
    }
}

impl<T> fmt::Debug for InTransaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").finish_non_exhaustive()
    }
}

/// Why there is no [`InTransaction`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionRejection {
    /// 500: there is no layer with transactions.
    #[error("the request has no transaction: no layer offers one")]
    Missing,
    /// 400 `missing-key`: the request has no key, and therefore no transaction.
    #[error("the request has no transaction: it has no key")]
    MissingKey(Box<Response>),
    /// 503: it could not be begun.
    #[error("the transaction could not be begun")]
    Failed(#[from] TransactionError),
}

impl IntoResponse for TransactionRejection {
    fn into_response(self) -> Response {
        let status = match self {
            Self::MissingKey(response) => return *response,
            Self::Missing => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, self.to_string()).into_response()
    }
}

fn handle<T: Send + 'static>(parts: &Parts) -> Result<TransactionHandle<T>, TransactionRejection> {
    if let Some(handle) = parts.extensions.get::<TransactionHandle<T>>() {
        return Ok(handle.clone());
    }
    Err(match parts.extensions.get::<Unkeyed>() {
        Some(Unkeyed(config)) => {
            let problem = config.problem::<Empty<Bytes>>(config.missing_key(), &Echo::default());
            TransactionRejection::MissingKey(Box::new(problem.map(Body::new)))
        }
        None => TransactionRejection::Missing,
    })
}

impl<T: Send + 'static, State: Sync> FromRequestParts<State> for InTransaction<T> {
    type Rejection = TransactionRejection;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Self::Rejection> {
        let handle = handle(parts)?;
        Ok(Self::of(&handle).await?)
    }
}

impl<T: Send + 'static, State: Sync> OptionalFromRequestParts<State> for InTransaction<T> {
    type Rejection = TransactionRejection;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &State,
    ) -> Result<Option<Self>, Self::Rejection> {
        match parts.extensions.get::<TransactionHandle<T>>().cloned() {
            Some(handle) => Ok(Some(Self::of(&handle).await?)),
            None => Ok(None),
        }
    }
}

impl<T: Send + 'static, State: Sync> FromRequestParts<State> for TransactionHandle<T> {
    type Rejection = TransactionRejection;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Self::Rejection> {
        handle(parts)
    }
}

impl<T: Send + 'static, State: Sync> OptionalFromRequestParts<State> for TransactionHandle<T> {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}
