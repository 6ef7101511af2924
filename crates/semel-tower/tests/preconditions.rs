//! `If-Match` and `ETag` before versioned records, behind the idempotency layer, in an axum app.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use semel::guard::{Policy, TransactOptions};
use semel::memory::MemoryStore;
use semel::store::Nonce;
use semel::versioned::{
    Expected, MemoryVersioned, NaturalKey, Version, Versioned, VersionedIn as _, VersionedStore,
    WriteError,
};
use semel::{Scope, Store, StoreError, StoreErrorKind};
use semel_stores::{PostgresOptions, PostgresStore, PostgresTransaction, Schema};
use semel_testkit::servers::{Kind, shared};
use semel_tower::precondition::{ETag, Precondition, Rejection, Required};
use semel_tower::{IdempotencyLayer, InTransaction};
use tower::ServiceExt as _;

fn note(name: &str) -> NaturalKey {
    NaturalKey::new(Scope::new(["notes"]), name)
}

/// Notes that are read and written, and behind `/strict` only under a precondition.
fn notes<V: VersionedStore>(notes: &Arc<V>) -> Router {
    let store = notes.clone();
    let read = move |Path(name): Path<String>| {
        let store = store.clone();
        async move {
            Ok::<_, Rejection>(match store.read(&note(&name)).await? {
                Some(found) => (ETag(found.version), found.value).into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            })
        }
    };
    let store = notes.clone();
    let write = move |Path(name): Path<String>, precondition: Precondition, body: Bytes| {
        let store = store.clone();
        async move {
            let written = precondition
                .write(&*store, &note(&name), body.clone())
                .await?;
            Ok::<_, Rejection>((ETag(written), body))
        }
    };
    let store = notes.clone();
    let delete = move |Path(name): Path<String>, precondition: Precondition| {
        let store = store.clone();
        async move {
            precondition.delete(&*store, &note(&name)).await?;
            Ok::<_, Rejection>(StatusCode::NO_CONTENT)
        }
    };
    let store = notes.clone();
    let strict = move |Path(name): Path<String>, Required(precondition): Required, body: Bytes| {
        let store = store.clone();
        async move {
            let written = precondition.write(&*store, &note(&name), body).await?;
            Ok::<_, Rejection>(ETag(written))
        }
    };
    Router::new()
        .route("/notes/{name}", get(read).put(write).delete(delete))
        .route("/strict/{name}", post(strict))
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn etag(&self) -> &str {
        self.headers["etag"].to_str().unwrap()
    }

    fn replayed(&self) -> bool {
        self.headers.contains_key("idempotency-replayed")
    }

    /// Wants a problem of this code, and that it says so as problems do.
    #[track_caller]
    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{:?}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["code"], code);
        assert_eq!(problem["status"], status);
        assert!(
            problem["type"]
                .as_str()
                .unwrap()
                .ends_with(&format!("#{code}"))
        );
        assert!(!self.replayed());
        assert_eq!(self.headers["cache-control"], "no-store");
    }
}

async fn send(app: &Router, method: Method, path: &str, fields: &[(&str, &str)]) -> Answer {
    send_body(app, method, path, fields, "text").await
}

async fn send_body(
    app: &Router,
    method: Method,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response: Response = app.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    Answer {
        status: head.status,
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

async fn put(app: &Router, fields: &[(&str, &str)]) -> Answer {
    send(app, Method::PUT, "/notes/a", fields).await
}

const KEY: &str = "idempotency-key";
const MATCH: &str = "if-match";
const NONE_MATCH: &str = "if-none-match";

async fn preconditions(app: &Router) {
    assert_eq!(send(app, Method::GET, "/notes/a", &[]).await.status, 404);
    put(app, &[(MATCH, "*")])
        .await
        .is_problem(412, "precondition-failed");
    put(app, &[(MATCH, "\"1\"")])
        .await
        .is_problem(412, "precondition-failed");
    let made = put(app, &[(NONE_MATCH, "*")]).await;
    assert_eq!((made.status, made.etag()), (StatusCode::OK, "\"1\""));
    put(app, &[(NONE_MATCH, "*")])
        .await
        .is_problem(412, "precondition-failed");
    let read = send(app, Method::GET, "/notes/a", &[]).await;
    assert_eq!((read.etag(), &*read.body), ("\"1\"", &b"text"[..]));

    assert_eq!(put(app, &[(MATCH, "\"1\"")]).await.etag(), "\"2\"");
    put(app, &[(MATCH, "\"1\"")])
        .await
        .is_problem(412, "precondition-failed");
    put(app, &[(MATCH, "W/\"2\"")])
        .await
        .is_problem(412, "precondition-failed");
    put(app, &[(NONE_MATCH, "W/\"2\"")])
        .await
        .is_problem(412, "precondition-failed");
    assert_eq!(put(app, &[(MATCH, "\"x\", \"2\"")]).await.etag(), "\"3\"");
    assert_eq!(
        put(app, &[(MATCH, "\"9\""), (MATCH, "\"3\"")]).await.etag(),
        "\"4\""
    );
    assert_eq!(put(app, &[(MATCH, "*")]).await.etag(), "\"5\"");
    assert_eq!(put(app, &[]).await.etag(), "\"6\"");

    for malformed in ["6", "\"6", "*, \"6\"", "", "\"6\" x"] {
        put(app, &[(MATCH, malformed)])
            .await
            .is_problem(400, "invalid-precondition");
    }
    put(app, &[(NONE_MATCH, "none")])
        .await
        .is_problem(400, "invalid-precondition");
    let strict = async |fields: &[(&str, &str)]| send(app, Method::POST, "/strict/a", fields).await;
    strict(&[]).await.is_problem(428, "precondition-required");
    assert_eq!(strict(&[(MATCH, "\"6\"")]).await.etag(), "\"7\"");

    let delete = async |tag: &str| send(app, Method::DELETE, "/notes/a", &[(MATCH, tag)]).await;
    delete("\"6\"").await.is_problem(412, "precondition-failed");
    assert_eq!(delete("\"7\"").await.status, 204);
    delete("\"7\"").await.is_problem(412, "precondition-failed");
    // Made anew it is not what it was.
    let again = put(app, &[(NONE_MATCH, "*")]).await;
    assert_eq!(again.etag(), "\"9\"");
    put(app, &[(MATCH, "\"7\"")])
        .await
        .is_problem(412, "precondition-failed");
}

async fn replays_come_first(app: &Router) {
    put(app, &[(NONE_MATCH, "*")]).await;
    let first = put(app, &[(KEY, "\"one\""), (MATCH, "\"1\"")]).await;
    assert_eq!((first.status, first.etag()), (StatusCode::OK, "\"2\""));
    assert_eq!(put(app, &[(MATCH, "\"2\"")]).await.etag(), "\"3\"");
    // The retry has the tag that its own first attempt has made stale.
    let retry = put(app, &[(KEY, "\"one\""), (MATCH, "\"1\"")]).await;
    assert_eq!((retry.status, retry.etag()), (StatusCode::OK, "\"2\""));
    assert!(retry.replayed());
    put(app, &[(KEY, "\"two\""), (MATCH, "\"1\"")])
        .await
        .is_problem(412, "precondition-failed");
    assert_eq!(
        send(app, Method::GET, "/notes/a", &[]).await.etag(),
        "\"3\""
    );

    // 412 is the lasting answer to its key: what was asked for happens under no later circumstances.
    let make = [(KEY, "\"make\""), (NONE_MATCH, "*")];
    put(app, &make).await.is_problem(412, "precondition-failed");
    assert_eq!(send(app, Method::DELETE, "/notes/a", &[]).await.status, 204);
    let late = put(app, &make).await;
    assert_eq!(late.status, 412);
    assert!(late.replayed());
    assert_eq!(send(app, Method::GET, "/notes/a", &[]).await.status, 404);

    // 400 and 428 are corrected under the same key.
    let key = (KEY, "\"three\"");
    put(app, &[key, (MATCH, "oops")])
        .await
        .is_problem(400, "invalid-precondition");
    let corrected = put(app, &[key, (NONE_MATCH, "*")]).await;
    assert_eq!(
        (corrected.status, corrected.replayed()),
        (StatusCode::OK, false)
    );
    let strict = async |fields: &[(&str, &str)]| send(app, Method::POST, "/strict/a", fields).await;
    let key = (KEY, "\"four\"");
    strict(&[key])
        .await
        .is_problem(428, "precondition-required");
    let corrected = strict(&[key, (MATCH, corrected.etag())]).await;
    assert_eq!(
        (corrected.status, corrected.replayed()),
        (StatusCode::OK, false)
    );
}

/// Clients that read, add, and write back; each write under a key of its own, and sent twice.
async fn no_update_is_lost(app: &Router) {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 3;
    send_body(app, Method::PUT, "/notes/sum", &[(NONE_MATCH, "*")], "0").await;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let app = app.clone();
            tokio::spawn(async move {
                let (mut done, mut tries) = (0, 0);
                while done < EACH {
                    tries += 1;
                    assert!(tries < 200, "client {client} never gets through");
                    let read = send(&app, Method::GET, "/notes/sum", &[]).await;
                    let sum: u64 = std::str::from_utf8(&read.body).unwrap().parse().unwrap();
                    let key = format!("\"{client}-{tries}\"");
                    let fields = [(KEY, &*key), (MATCH, read.etag())];
                    let value = (sum + 1).to_string();
                    for _ in 0..2 {
                        let put = send_body(&app, Method::PUT, "/notes/sum", &fields, &value);
                        let wrote = put.await;
                        assert!(
                            [200, 412].contains(&wrote.status.as_u16()),
                            "{}",
                            wrote.status
                        );
                        done += u64::from(wrote.status == 200 && !wrote.replayed());
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let sum = send(app, Method::GET, "/notes/sum", &[]).await;
    assert_eq!(&*sum.body, (CLIENTS * EACH).to_string().as_bytes());
    assert_eq!(sum.etag(), format!("\"{}\"", CLIENTS * EACH + 1));
}

fn behind<S: Store>(store: S, app: Router) -> Router {
    app.layer(IdempotencyLayer::new(store))
}

fn in_memory() -> Router {
    behind(
        MemoryStore::default(),
        notes(&Arc::new(MemoryVersioned::default())),
    )
}

async fn postgres() -> Arc<PostgresStore> {
    let nonce = Nonce::random().unwrap();
    let hex = hex::encode(nonce.as_bytes());
    let server = tokio::task::spawn_blocking(|| shared(Kind::Postgres)).await;
    let url = format!("{}?table=t_{hex}", server.unwrap().unwrap());
    let options = PostgresOptions::from_url(&url).unwrap();
    Arc::new(options.schema(Schema::Create).open().await.unwrap())
}

async fn on_postgres() -> Router {
    let store = postgres().await;
    behind(store.clone(), notes(&store))
}

#[tokio::test]
async fn preconditions_in_memory() {
    preconditions(&in_memory()).await;
}

#[tokio::test]
async fn preconditions_on_postgres() {
    preconditions(&on_postgres().await).await;
}

#[tokio::test]
async fn replays_come_before_preconditions_in_memory() {
    replays_come_first(&in_memory()).await;
}

#[tokio::test]
async fn replays_come_before_preconditions_on_postgres() {
    replays_come_first(&on_postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_in_memory() {
    no_update_is_lost(&in_memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_on_postgres() {
    no_update_is_lost(&on_postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_the_requests_transaction() {
    let store = postgres().await;
    let write = {
        let store = store.clone();
        move |precondition: Precondition, mut tx: InTransaction<PostgresTransaction>| async move {
            let key = note("in a transaction");
            let expected = precondition.expected(&*store, &key).await?;
            let written = store
                .write_in(&mut tx, &key, expected, "text".into())
                .await?;
            Ok::<_, Rejection>(ETag(written))
        }
    };
    let layer = IdempotencyLayer::new(store.clone())
        .with_policy(Policy::default().with_key_required(true))
        .with_transactions(TransactOptions::default());
    let app = Router::new().route("/notes", post(write)).layer(layer);
    let post = async |fields: &[(&str, &str)]| send(&app, Method::POST, "/notes", fields).await;
    for replayed in [false, true] {
        let made = post(&[(KEY, "\"one\""), (NONE_MATCH, "*")]).await;
        assert_eq!((made.status, made.etag()), (StatusCode::OK, "\"1\""));
        assert_eq!(made.replayed(), replayed);
    }
    post(&[(KEY, "\"two\""), (NONE_MATCH, "*")])
        .await
        .is_problem(412, "precondition-failed");
    assert!(
        post(&[(KEY, "\"two\""), (NONE_MATCH, "*")])
            .await
            .replayed()
    );
    let next = post(&[(KEY, "\"three\""), (MATCH, "\"1\"")]).await;
    assert_eq!(next.etag(), "\"2\"");
    assert_eq!(
        store
            .read(&note("in a transaction"))
            .await
            .unwrap()
            .unwrap()
            .version,
        Version(2)
    );
}

/// Notes that somebody else writes between each look and the write after it, `rivals` times.
struct Contended {
    notes: MemoryVersioned,
    rivals: AtomicUsize,
}

impl VersionedStore for Contended {
    async fn read(&self, key: &NaturalKey) -> Result<Option<Versioned>, StoreError> {
        let found = self.notes.read(key).await?;
        let left = |rivals: usize| rivals.checked_sub(1);
        let order = Ordering::SeqCst;
        if found.is_some() && self.rivals.fetch_update(order, order, left).is_ok() {
            let rival = self.notes.write(key, Expected::Any, "rival".into());
            rival.await.unwrap();
        }
        Ok(found)
    }

    async fn alter(
        &self,
        key: &NaturalKey,
        expected: Expected,
        value: Option<Bytes>,
        writer: Nonce,
    ) -> Result<Version, WriteError> {
        self.notes.alter(key, expected, value, writer).await
    }
}

/// Whatever the precondition, it held at each look: a 412 would be false, and kept.
#[tokio::test(start_paused = true)]
async fn a_record_that_others_keep_writing_is_503_and_the_key_is_released() {
    for (field, tags) in [(MATCH, "*"), (NONE_MATCH, "\"99\"")] {
        for method in [Method::PUT, Method::DELETE] {
            let store = Arc::new(Contended {
                notes: MemoryVersioned::default(),
                rivals: AtomicUsize::new(0),
            });
            let app = behind(MemoryStore::default(), notes(&store));
            put(&app, &[]).await;
            store.rivals.store(1000, Ordering::SeqCst);
            let fields = [(KEY, "\"one\""), (field, tags)];
            let refused = send(&app, method.clone(), "/notes/a", &fields).await;
            refused.is_problem(503, "contended");
            assert_eq!(refused.headers["retry-after"], "1");
            // A few rivals are outlasted, under the same key.
            store.rivals.store(3, Ordering::SeqCst);
            let again = send(&app, method.clone(), "/notes/a", &fields).await;
            assert!(again.status.is_success(), "{}", again.status);
            assert!(!again.replayed());
        }
    }
}

/// A record that goes while it is looked at does not meet `*` any more.
#[tokio::test(start_paused = true)]
async fn a_condition_that_fails_at_a_later_look_is_412() {
    let store = Arc::new(Contended {
        notes: MemoryVersioned::default(),
        rivals: AtomicUsize::new(0),
    });
    let app = behind(MemoryStore::default(), notes(&store));
    put(&app, &[]).await;
    store.rivals.store(1, Ordering::SeqCst);
    // The rival makes version 2, which the second look finds.
    put(&app, &[(MATCH, "\"1\", \"9\"")])
        .await
        .is_problem(412, "precondition-failed");
}

/// A store whose answers are lost.
struct Lost;

impl VersionedStore for Lost {
    async fn read(&self, _: &NaturalKey) -> Result<Option<Versioned>, StoreError> {
        Err(StoreError::new(StoreErrorKind::NotApplied, "not reached"))
    }

    async fn alter(
        &self,
        _: &NaturalKey,
        _: Expected,
        value: Option<Bytes>,
        _: Nonce,
    ) -> Result<Version, WriteError> {
        let error = match value {
            Some(_) => StoreError::new(StoreErrorKind::Unknown, "lost"),
            None => StoreError::new(StoreErrorKind::Capacity, "full"),
        };
        Err(error.into())
    }
}

#[tokio::test]
async fn a_write_that_may_have_happened_is_not_run_again() {
    let app = behind(MemoryStore::default(), notes(&Arc::new(Lost)));
    for _ in 0..2 {
        let answer = put(&app, &[(KEY, "\"one\""), (MATCH, "\"1\"")]).await;
        assert_eq!(answer.status, 409);
        let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(problem["code"], "outcome-unknown");
    }
    let deleted = send(&app, Method::DELETE, "/notes/a", &[]).await;
    deleted.is_problem(503, "capacity");
    assert_eq!(deleted.headers["retry-after"], "1");
    let looked = put(&app, &[(MATCH, "*")]).await;
    looked.is_problem(503, "store-unavailable");
}
