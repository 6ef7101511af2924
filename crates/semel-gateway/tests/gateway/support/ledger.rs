//! The service behind the gateway, with a ledger on disk.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Takes orders: `POST /orders` writes a line into the ledger, syncs it, and answers. The field
/// `x-delay` says how many milliseconds that takes; with `x-held` it waits until it is let go.
pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
    books: Arc<Books>,
    server: JoinHandle<()>,
}

struct Books {
    ledger: Mutex<(File, usize)>,
    received: AtomicUsize,
    held: Semaphore,
    _directory: TempDir,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::open_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn open_at(address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(directory.path().join("ledger"))
            .unwrap();
        let books = Arc::new(Books {
            ledger: Mutex::new((ledger, 0)),
            received: AtomicUsize::new(0),
            held: Semaphore::new(0),
            _directory: directory,
        });
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/orders", post(place))
            .fallback(echo)
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&books));
        let server = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            books,
            server,
        }
    }

    /// How many orders were begun.
    pub(crate) fn received(&self) -> usize {
        self.books.received.load(Ordering::SeqCst)
    }

    /// Lets an order go that is held, or will be.
    pub(crate) fn let_go(&self) {
        self.books.held.add_permits(1);
    }

    /// How often each key was executed.
    pub(crate) fn executions(&self) -> HashMap<String, usize> {
        let mut executions = HashMap::new();
        for (key, _) in self.orders() {
            *executions.entry(key).or_default() += 1;
        }
        executions
    }

    /// Key and fence of each order, in the order in which they were placed.
    pub(crate) fn orders(&self) -> Vec<(String, String)> {
        let ledger = self.books.read();
        let lines = ledger.lines().map(|line| line.split_once('\t').unwrap());
        lines
            .map(|(key, fence)| (key.into(), fence.into()))
            .collect()
    }

    /// How many orders were placed.
    pub(crate) fn placed(&self) -> usize {
        self.books.read().lines().count()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Books {
    fn read(&self) -> String {
        let mut text = String::new();
        let (file, _) = &mut *self.ledger.lock().unwrap();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    fn write(&self, key: &str, fence: &str) -> usize {
        let (file, orders) = &mut *self.ledger.lock().unwrap();
        file.write_all(format!("{key}\t{fence}\n").as_bytes())
            .unwrap();
        file.sync_data().unwrap();
        *orders += 1;
        *orders
    }
}

async fn place(
    State(books): State<Arc<Books>>,
    headers: HeaderMap,
    body: String,
) -> impl IntoResponse {
    books.received.fetch_add(1, Ordering::SeqCst);
    let field = |name| {
        headers
            .get(name)
            .map_or("", |v| v.to_str().unwrap())
            .to_owned()
    };
    if !field("x-held").is_empty() {
        books.held.acquire().await.unwrap().forget();
    }
    let delay = field("x-delay").parse().unwrap_or(0);
    // Both sides of the effect take their time.
    sleep(Duration::from_millis(delay / 2)).await;
    let (key, fence) = (field("idempotency-key"), field("idempotency-fence"));
    let n = tokio::task::spawn_blocking(move || books.write(&key, &fence))
        .await
        .unwrap();
    sleep(Duration::from_millis(delay - delay / 2)).await;
    let fence = field("idempotency-fence");
    (
        StatusCode::CREATED,
        [
            ("content-type", "application/json".to_owned()),
            ("location", format!("/orders/{n}")),
            ("etag", format!("\"v{n}\"")),
        ],
        format!("{{\"id\":{n},\"fence\":\"{fence}\",\"order\":{body}}}"),
    )
}

/// Every other path: says what arrived, one line per field, then the body as it came.
async fn echo(request: Request) -> impl IntoResponse {
    let (head, body) = request.into_parts();
    let mut lines = vec![format!("{} {}", head.method, head.uri)];
    for (name, value) in &head.headers {
        lines.push(format!("{name}: {}", value.to_str().unwrap()));
    }
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    lines.push(format!("{} bytes", body.len()));
    lines.join("\n")
}
