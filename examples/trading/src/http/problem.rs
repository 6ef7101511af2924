//! Why there is no other answer, as the client is told.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel::guard::RunError;
use serde_json::json;

use crate::domain::{self, Refusal};
use crate::once::Error;

/// `application/problem+json`.
pub(super) struct Problem {
    status: StatusCode,
    retry_after: Option<u64>,
    body: serde_json::Value,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            status,
            retry_after: None,
            body: json!({ "code": code, "detail": detail.into() }),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, self.body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let status = match refusal {
            Refusal::NoAccount | Refusal::NoPosition | Refusal::NoQuote => StatusCode::NOT_FOUND,
            Refusal::Replaced { .. } | Refusal::PositionClosed => StatusCode::CONFLICT,
            Refusal::TooDear { .. } => StatusCode::PAYMENT_REQUIRED,
            Refusal::OutOfBounds => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let mut problem = Self::new(status, "", refusal.to_string());
        // Its code, and the numbers that it has.
        if let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(refusal)
            && let Some(body) = problem.body.as_object_mut()
        {
            body.extend(fields);
        }
        problem
    }
}

impl From<domain::Error> for Problem {
    fn from(error: domain::Error) -> Self {
        match error {
            domain::Error::Refused(refusal) => Self::from(&refusal),
            domain::Error::Database(_) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "database", error.to_string())
            }
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        let error = match error {
            Error::Refused { refusal, .. } => return Self::from(&refusal),
            Error::Domain(error) => return error.into(),
            Error::Call(_) => return Self::new(StatusCode::BAD_REQUEST, "invalid-key", detail),
            Error::Once(error) => error,
        };
        let (status, code) = match error {
            RunError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "database"),
            RunError::InFlight { retry_after } => {
                let mut problem = Self::new(StatusCode::CONFLICT, "in-flight", detail);
                problem.retry_after = Some(retry_after.as_secs().max(1));
                return problem;
            }
            RunError::KeyRequired => (StatusCode::BAD_REQUEST, "missing-key"),
            RunError::Mismatch => (StatusCode::UNPROCESSABLE_ENTITY, "mismatch"),
            RunError::Expired => (StatusCode::CONFLICT, "expired"),
            // Ask again with the same key.
            RunError::Store { .. } | RunError::Superseded { .. } | RunError::Unknown => {
                (StatusCode::SERVICE_UNAVAILABLE, "ask-again")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "no-answer"),
        };
        Self::new(status, code, detail)
    }
}
