//! Refusals, as problem details (RFC 9457).

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use deadpool_postgres::{PoolError, tokio_postgres};
use semel::transaction::TransactionError;
use serde_json::json;

use crate::{orders, payment};

#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
        }
    }

    /// Nothing is decided: asked again with the same key it goes on where it stopped.
    fn try_again(code: &'static str, error: &dyn std::error::Error) -> Self {
        tracing::error!(code, "{error}: {:?}", error.source());
        let detail = "Ask again with the same key.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("/problems/{}", self.code),
            "title": self.code.replace('-', " "),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let mut answer = (self.status, Json(body)).into_response();
        let fields = answer.headers_mut();
        fields.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/problem+json"),
        );
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            fields.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            rejection.body_text(),
        )
    }
}

impl From<orders::Error> for Problem {
    fn from(error: orders::Error) -> Self {
        match error {
            orders::Error::NoSuchOrder => {
                Self::new(StatusCode::NOT_FOUND, "no-such-order", error.to_string())
            }
            orders::Error::UnknownItem(_) => {
                Self::new(StatusCode::BAD_REQUEST, "unknown-item", error.to_string())
            }
            orders::Error::AnotherOrder => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "another-order",
                error.to_string(),
            ),
            orders::Error::Database(error) => error.into(),
        }
    }
}

impl From<tokio_postgres::Error> for Problem {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::try_again("database", &error)
    }
}

impl From<PoolError> for Problem {
    fn from(error: PoolError) -> Self {
        Self::try_again("database", &error)
    }
}

impl From<TransactionError> for Problem {
    fn from(error: TransactionError) -> Self {
        Self::try_again("database", &error)
    }
}

impl From<payment::Error> for Problem {
    fn from(error: payment::Error) -> Self {
        Self::try_again("payment-service", &error)
    }
}
