//! A service outside the transaction: it takes a payment once for each idempotency key.
//!
//! It lives in the parent, which nobody kills, and writes each payment down before it answers; what it took is read
//! from its ledger. A request is a line of JSON, the key and the payment; the answer is the payment's number.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::lines::{self, Lines};

/// What is paid: one step of one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Payment {
    pub(super) key: i64,
    pub(super) place: u32,
}

impl Payment {
    pub(super) const fn of(key: i64, place: u32) -> Self {
        Self { key, place }
    }
}

/// How it is called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client(SocketAddr);

impl Client {
    pub(super) const fn of(address: SocketAddr) -> Self {
        Self(address)
    }

    /// Pays, or learns that it was paid: the payment's number.
    pub(super) async fn pay(&self, key: &str, payment: &Payment) -> io::Result<String> {
        let mut link = TcpStream::connect(self.0).await?;
        let request = format!("{}\n", serde_json::to_string(&(key, payment))?);
        link.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(link).read_line(&mut answer).await?;
        match answer.strip_suffix('\n') {
            Some(number) => Ok(number.into()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The service.
#[derive(Debug)]
pub(super) struct Service {
    address: SocketAddr,
    books: Arc<Mutex<Books>>,
    path: PathBuf,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Books {
    ledger: Lines,
    taken: HashMap<String, u64>,
    repeats: usize,
}

impl Books {
    /// The number of the payment under this key, which is taken now where it was not before.
    fn take(&mut self, key: &str, payment: &Payment) -> io::Result<u64> {
        if let Some(number) = self.taken.get(key) {
            self.repeats += 1;
            return Ok(*number);
        }
        let number = self.taken.len() as u64 + 1;
        self.ledger.append(&(number, payment))?;
        self.taken.insert(key.into(), number);
        Ok(number)
    }
}

impl Service {
    /// Starts it with its ledger in `folder`.
    pub(super) async fn start(folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let path = folder.join("payments");
        let ledger = Lines::open(&path)?;
        let books = Arc::new(Mutex::new(Books {
            ledger,
            taken: HashMap::new(),
            repeats: 0,
        }));
        let address = listener.local_addr()?;
        let serving = tokio::spawn(serve(listener, books.clone()));
        Ok(Self {
            address,
            books,
            path,
            serving,
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often a payment was asked for again under its key.
    pub(super) fn repeats(&self) -> usize {
        self.books.lock().repeats
    }

    /// What was taken, by what was paid: the payments' numbers.
    pub(super) fn taken(&self) -> Result<HashMap<Payment, Vec<String>>> {
        let mut taken: HashMap<Payment, Vec<String>> = HashMap::new();
        for (number, payment) in lines::read::<(u64, _)>(&self.path)? {
            taken.entry(payment).or_default().push(number.to_string());
        }
        Ok(taken)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, books: Arc<Mutex<Books>>) {
    while let Ok((link, _)) = listener.accept().await {
        let books = books.clone();
        tokio::spawn(async move { answer(link, &books).await });
    }
}

async fn answer(link: TcpStream, books: &Mutex<Books>) -> io::Result<()> {
    let (from, mut to) = link.into_split();
    let mut request = String::new();
    BufReader::new(from).read_line(&mut request).await?;
    // A request without its end was not sent: the caller is gone.
    let Some(request) = request.strip_suffix('\n') else {
        return Ok(());
    };
    let (key, payment): (String, Payment) = serde_json::from_str(request)?;
    // A bank thinks before, and after: callers die meanwhile.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await;
    let number = books.lock().take(&key, &payment)?;
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..3))).await;
    to.write_all(format!("{number}\n").as_bytes()).await
}
