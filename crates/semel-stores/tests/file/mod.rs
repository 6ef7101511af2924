//! The embedded store.

mod crash;
mod damage;
mod engine;
mod fake;
mod life;
mod place;
mod reopen;

use semel::store::Token;
use semel_stores::{FileOptions, FileStore};

use crate::steps::{LONG, acquire, complete, identity, replayed, request};

fn open(path: &std::path::Path) -> FileStore {
    FileOptions::new().open(path).unwrap()
}

async fn settle(store: &FileStore, key: &str) -> Token {
    let token = acquire(store, key).await.token;
    complete(store, key, &token, key.as_bytes()).await;
    token
}
