//! An upstream that speaks HTTP/1 and 2, with TLS or without.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A server, until it is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Parts>>>,
    connections: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Served {
    /// Answers every request with 201 and `ok`.
    pub(crate) async fn start(tls: Option<TlsAcceptor>) -> Self {
        Self::start_with(tls, async |request| {
            // Who answers before has to close the connection.
            request.into_body().collect().await.unwrap();
            let answer = Response::builder().status(StatusCode::CREATED);
            answer.body(Body::from("ok")).unwrap()
        })
        .await
    }

    pub(crate) async fn start_with<F>(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, tls, answer)
    }

    pub(crate) fn start_on<F>(
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Parts>>>::default();
        let record = Arc::clone(&seen);
        let connections = Arc::<AtomicUsize>::default();
        let accepted = Arc::clone(&connections);
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                let (tls, answer, record) = (tls.clone(), answer.clone(), Arc::clone(&record));
                let service = service_fn(move |request: Request<Incoming>| {
                    let (head, body) = request.into_parts();
                    record.lock().unwrap().push(head.clone());
                    let answer = answer(Request::from_parts(head, body));
                    async { Ok::<_, Infallible>(answer.await) }
                });
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    match tls {
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else {
                                return;
                            };
                            let io = TokioIo::new(stream);
                            builder
                                .serve_connection_with_upgrades(io, service)
                                .await
                                .ok();
                        }
                        None => {
                            let io = TokioIo::new(stream);
                            builder
                                .serve_connection_with_upgrades(io, service)
                                .await
                                .ok();
                        }
                    }
                });
            }
        });
        Self {
            address,
            seen,
            connections,
            server,
        }
    }

    /// The headers that came.
    pub(crate) fn seen(&self) -> Vec<Parts> {
        self.seen.lock().unwrap().clone()
    }

    /// How many connections were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}
