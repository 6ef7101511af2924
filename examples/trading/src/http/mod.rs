//! The service over HTTP.

mod problem;

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use semel::guard::Done;
use serde::{Deserialize, Serialize};

use self::problem::Problem;
use crate::domain::{AccountId, Cents, Order, PositionId};
use crate::once::{Answered, Asking, Error, Trading};

type Service = State<Arc<Trading>>;

/// The routes.
pub fn router(trading: Arc<Trading>) -> Router {
    Router::new()
        .route("/accounts", post(open_account))
        .route("/accounts/{account}", get(overview))
        .route("/accounts/{account}/positions", post(open_position))
        .route(
            "/accounts/{account}/positions/{position}/close",
            post(close_position),
        )
        .route("/accounts/{account}/reset", post(reset))
        .route("/accounts/{account}/challenge", post(start_challenge))
        .route("/quotes/{symbol}", put(set_quote))
        .with_state(trading)
}

/// The user, from `X-User`, which whatever authenticates in front of the service sets; and the
/// client's key, from `Idempotency-Key`.
struct Requester {
    user: String,
    key: Option<String>,
}

impl Requester {
    fn asking(&self) -> Asking<'_> {
        Asking {
            user: &self.user,
            key: self.key.as_deref(),
        }
    }
}

fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(bad_header(name)),
        },
        (Some(_), Some(_)) => Err(bad_header(name)),
    }
}

fn bad_header(name: &str) -> Problem {
    let detail = format!("{name} is sent once, in visible ASCII");
    Problem::new(StatusCode::BAD_REQUEST, "bad-header", detail)
}

impl<S: Sync> FromRequestParts<S> for Requester {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let user = text(&parts.headers, "x-user")?.filter(|user| !user.is_empty());
        let user = user.ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "no-user", "X-User says who asks")
        })?;
        let key = text(&parts.headers, "idempotency-key")?;
        Ok(Self { user, key })
    }
}

async fn open_account(State(trading): Service, from: Requester) -> Response {
    respond(
        StatusCode::CREATED,
        trading.open_account(from.asking()).await,
    )
}

async fn open_position(
    State(trading): Service,
    from: Requester,
    Path(account): Path<AccountId>,
    Json(order): Json<Order>,
) -> Response {
    let done = trading.open_position(from.asking(), account, order).await;
    respond(StatusCode::CREATED, done)
}

async fn close_position(
    State(trading): Service,
    from: Requester,
    Path((account, position)): Path<(AccountId, PositionId)>,
) -> Response {
    let done = trading
        .close_position(from.asking(), account, position)
        .await;
    respond(StatusCode::OK, done)
}

async fn reset(
    State(trading): Service,
    from: Requester,
    Path(account): Path<AccountId>,
) -> Response {
    respond(
        StatusCode::CREATED,
        trading.reset(from.asking(), account).await,
    )
}

async fn start_challenge(
    State(trading): Service,
    from: Requester,
    Path(account): Path<AccountId>,
) -> Response {
    let done = trading.start_challenge(from.asking(), account).await;
    respond(StatusCode::NO_CONTENT, done)
}

async fn overview(
    State(trading): Service,
    from: Requester,
    Path(account): Path<AccountId>,
) -> Result<Response, Problem> {
    let overview = trading.overview(&from.user, account).await?;
    Ok(Json(overview).into_response())
}

#[derive(Deserialize)]
struct Quote {
    cents: Cents,
}

async fn set_quote(
    State(trading): Service,
    Path(symbol): Path<String>,
    Json(quote): Json<Quote>,
) -> Result<StatusCode, Problem> {
    trading.set_quote(symbol, quote.cents).await?;
    Ok(StatusCode::NO_CONTENT)
}

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An answer; the same for the first call and for its retries, but for the mark.
fn respond<T: Serialize>(success: StatusCode, answered: Answered<T>) -> Response {
    let replayed = matches!(
        answered,
        Ok(Done::Replayed(_)) | Err(Error::Refused { replayed: true, .. })
    );
    let mut response = match answered {
        Ok(_) if success == StatusCode::NO_CONTENT => success.into_response(),
        Ok(done) => (success, Json(done.into_inner())).into_response(),
        Err(error) => Problem::from(error).into_response(),
    };
    if replayed {
        let mark = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, mark);
    }
    response
}
