//! Asking over HTTP for what says who callers are.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::connector::Connector;
use crate::tls::client::{Speaks, Trust};

/// Idle connections are closed after this.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A client for one URL.
pub(super) struct Get {
    client: Client<Connector, Empty<Bytes>>,
    uri: Uri,
    within: Duration,
}

impl Get {
    pub(super) fn new(uri: &Uri, within: Duration, trust: &Arc<Trust>) -> Self {
        let connector = Connector::new(within, Arc::clone(trust), Speaks::Http1);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self {
            client,
            uri: uri.clone(),
            within,
        }
    }

    /// The answer to a GET with these fields, read whole.
    pub(super) async fn get(
        &self,
        headers: HeaderMap,
        most: usize,
    ) -> Result<Response<Bytes>, Box<dyn StdError + Send + Sync>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        let agent = HeaderValue::from_static("semel");
        request.headers_mut().insert(USER_AGENT, agent);
        let answer = async {
            let (head, body) = self.client.request(request).await?.into_parts();
            let body = Limited::new(body, most).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        match timeout(self.within, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {:?}", self.within).into()),
        }
    }
}
