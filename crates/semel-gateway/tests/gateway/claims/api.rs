//! A client of the claim API that holds every answer against the description.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::described::described;
use crate::support::{Answer, get, send};

/// A client, with a token where it has one.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
    pub(crate) document: Arc<Value>,
}

impl Api {
    pub(crate) async fn of(address: SocketAddr) -> Self {
        let answer = get(address, "/openapi.json").await;
        assert_eq!(answer.status, 200);
        Self {
            address,
            token: None,
            document: Arc::new(serde_json::from_slice(&answer.body).unwrap()),
        }
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        let token = Some(token.to_owned());
        Self {
            token,
            ..self.clone()
        }
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json");
        let request = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let body = Full::new(Bytes::from(body.to_owned()));
        let answer = send(request.body(body).unwrap()).await.unwrap();
        assert_eq!(
            answer.header("cache-control"),
            Some("no-store"),
            "{answer:?}"
        );
        described(&self.document, method, path, &answer);
        answer
    }

    /// A claim of this key in the operation `job`, with more members.
    pub(crate) async fn claim(&self, key: &str, more: Value) -> Answer {
        let mut body = json!({"operation": "job", "key": key});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.ask("POST", "/v1/claims", &body.to_string()).await
    }

    pub(crate) async fn acquire(&self, key: &str, more: Value) -> Held {
        let answer = self.claim(key, more).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        Held {
            api: self.clone(),
            said: said(&answer),
        }
    }

    pub(crate) async fn show(&self, id: &str) -> Value {
        let answer = self.ask("GET", &format!("/v1/claims/{id}"), "").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        said(&answer)
    }
}

/// A claim that was acquired.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) api: Api,
    pub(crate) said: Value,
}

impl Held {
    pub(crate) fn id(&self) -> &str {
        self.said["id"].as_str().unwrap()
    }

    pub(crate) fn token(&self) -> &str {
        self.said["token"].as_str().unwrap()
    }

    pub(crate) async fn tell(&self, endpoint: &str, more: Value) -> Answer {
        let mut body = json!({"token": self.token()});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let path = format!("/v1/claims/{}/{endpoint}", self.id());
        self.api.ask("POST", &path, &body.to_string()).await
    }

    /// Tells, and is told that it was done.
    pub(crate) async fn told(&self, endpoint: &str, more: Value) -> Value {
        let answer = self.tell(endpoint, more).await;
        assert_eq!(answer.status, 200, "{endpoint}: {}", answer.text());
        said(&answer)
    }
}

pub(crate) fn said(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}
