//! Lambda's runtime API on this machine, and a sandbox: a function's process that asks it for work.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path as Segment, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use semel::{Clock as _, SystemClock};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

/// What a function answered to an invocation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answered {
    /// Its response.
    Response(Value),
    /// Its error: `errorType` and `errorMessage`.
    Error(Value),
}

struct Invocation {
    id: String,
    payload: String,
    deadline_ms: u64,
}

struct Shared {
    invocations: tokio::sync::Mutex<mpsc::UnboundedReceiver<Invocation>>,
    in_flight: Mutex<HashMap<String, oneshot::Sender<Answered>>>,
    init_error: Mutex<Option<Value>>,
}

/// One function's process, with a runtime API of its own, as in Lambda.
pub(crate) struct Sandbox {
    shared: Arc<Shared>,
    invocations: mpsc::UnboundedSender<Invocation>,
    count: AtomicU64,
    pub(crate) process: Child,
}

const INVOCATION: &str = "/2018-06-01/runtime/invocation";

impl Sandbox {
    /// Starts `program` with these variables in its environment.
    pub(crate) async fn start<V: AsRef<OsStr>>(
        program: &Path,
        variables: &[(&str, V)],
    ) -> std::io::Result<Self> {
        let (invocations, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            invocations: waiting.into(),
            in_flight: Mutex::default(),
            init_error: Mutex::default(),
        });
        let api = Router::new()
            .route(&format!("{INVOCATION}/next"), get(next))
            .route(&format!("{INVOCATION}/{{id}}/response"), post(response))
            .route(&format!("{INVOCATION}/{{id}}/error"), post(error))
            .route("/2018-06-01/runtime/init/error", post(init_error))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, api).await });
        let process = Command::new(program)
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "function")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            shared,
            invocations,
            count: AtomicU64::new(1),
            process,
        })
    }

    /// Invokes the function, which has `timeout` for it, and returns its answer.
    ///
    /// # Errors
    /// The process ended without one.
    pub(crate) async fn invoke(
        &self,
        payload: &Value,
        timeout: Duration,
    ) -> Result<Answered, String> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("8476a536-e9f4-11e8-9739-{number:012x}");
        let (answer, answered) = oneshot::channel();
        self.shared.in_flight.lock().insert(id.clone(), answer);
        let deadline_ms = SystemClock::new().now().after(timeout).as_micros() / 1000;
        let invocation = Invocation {
            id,
            payload: payload.to_string(),
            deadline_ms,
        };
        self.invocations
            .send(invocation)
            .map_err(|_| "the runtime API has ended".to_owned())?;
        answered.await.map_err(|_| {
            let said = self.shared.init_error.lock().take();
            format!("the sandbox ended without an answer; initialisation: {said:?}")
        })
    }

    /// Kills the process; what it was asked remains without an answer.
    pub(crate) async fn kill(&mut self) {
        self.process.kill().await.ok();
        self.shared.in_flight.lock().clear();
    }
}

async fn next(State(shared): State<Arc<Shared>>) -> Response {
    let Some(invocation) = shared.invocations.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let headers = [
        ("lambda-runtime-aws-request-id", invocation.id.clone()),
        (
            "lambda-runtime-invocation-id",
            format!("i-{}", invocation.id),
        ),
        (
            "lambda-runtime-deadline-ms",
            invocation.deadline_ms.to_string(),
        ),
        (
            "lambda-runtime-invoked-function-arn",
            "arn:aws:lambda:eu-central-1:000000000000:function:function".to_owned(),
        ),
        (
            "lambda-runtime-trace-id",
            "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=0".to_owned(),
        ),
        ("content-type", "application/json".to_owned()),
    ];
    (
        headers.map(|(name, value)| (name, value)),
        invocation.payload,
    )
        .into_response()
}

async fn response(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(&shared, &id, &headers, &body, Answered::Response)
}

async fn error(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(&shared, &id, &headers, &body, Answered::Error)
}

async fn init_error(State(shared): State<Arc<Shared>>, body: Bytes) -> StatusCode {
    *shared.init_error.lock() = serde_json::from_slice(&body).ok();
    StatusCode::ACCEPTED
}

/// One answer to an invocation, from the process that has it.
fn answer(
    shared: &Shared,
    id: &str,
    headers: &HeaderMap,
    body: &[u8],
    answered: fn(Value) -> Answered,
) -> Response {
    let echoed = headers.get("lambda-runtime-invocation-id");
    let Ok(value) = serde_json::from_slice(body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    if echoed.is_none_or(|echoed| *echoed != *format!("i-{id}")) {
        return StatusCode::BAD_REQUEST.into_response();
    }
    match shared.in_flight.lock().remove(id) {
        Some(waiting) => {
            waiting.send(answered(value)).ok();
            (
                StatusCode::ACCEPTED,
                Json(serde_json::json!({"status": "OK"})),
            )
                .into_response()
        }
        None => StatusCode::BAD_REQUEST.into_response(),
    }
}
