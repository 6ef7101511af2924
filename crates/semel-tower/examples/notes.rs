//! Notes that two people may edit, and neither overwrites the other's:
//! `cargo run -p semel-tower --features axum --example notes`, then
//! `curl -i -X PUT -H 'If-None-Match: *' -d hello http://127.0.0.1:3000/notes/1` and, with the `ETag`
//! of the answer, `curl -i -X PUT -H 'If-Match: "1"' -d world http://127.0.0.1:3000/notes/1`.
//! With `-H 'Idempotency-Key: "a1"'` the same request again is a replay, not 412.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use semel::Scope;
use semel::memory::MemoryStore;
use semel::versioned::{MemoryVersioned, NaturalKey, VersionedStore as _};
use semel_tower::IdempotencyLayer;
use semel_tower::precondition::{ETag, Rejection, Required};

type Notes = State<Arc<MemoryVersioned>>;

fn key(id: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["notes"]), id)
}

async fn read(State(notes): Notes, Path(id): Path<String>) -> Result<Response, Rejection> {
    Ok(match notes.read(&key(&id)).await? {
        Some(note) => (ETag(note.version), note.value).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

async fn write(
    State(notes): Notes,
    Path(id): Path<String>,
    Required(precondition): Required,
    note: Bytes,
) -> Result<ETag, Rejection> {
    Ok(ETag(precondition.write(&*notes, &key(&id), note).await?))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new()
        .route("/notes/{id}", get(read).put(write))
        .with_state(Arc::new(MemoryVersioned::default()))
        .layer(IdempotencyLayer::new(MemoryStore::default()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app).await
}
