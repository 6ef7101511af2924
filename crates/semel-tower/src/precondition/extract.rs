//! Preconditions as arguments of axum's handlers, and entity tags as parts of their answers.

use std::convert::Infallible;

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use http::header::ETAG;
use http::request::Parts;

use super::{ETag, Precondition, Rejection, Required, etag};

impl<State: Sync> FromRequestParts<State> for Precondition {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Rejection> {
        Self::from_headers(&parts.headers)
    }
}

impl<State: Sync> FromRequestParts<State> for Required {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Rejection> {
        Precondition::from_headers(&parts.headers)?
            .required()
            .map(Self)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.to_response().map(Body::from)
    }
}

impl IntoResponseParts for ETag {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.headers_mut().insert(ETAG, etag(self.0));
        Ok(parts)
    }
}

impl IntoResponse for ETag {
    fn into_response(self) -> Response {
        (self, ()).into_response()
    }
}
