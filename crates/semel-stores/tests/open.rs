//! Opening by URL.

use semel_stores::{OpenError, OpenOptions, open};

async fn refused(url: &str) -> OpenError {
    match open(url, &OpenOptions::default()).await {
        Ok(_) => panic!("{url} opened"),
        Err(e) => e,
    }
}

#[tokio::test]
async fn memory_opens() {
    use semel::Store as _;
    let store = open("memory:", &OpenOptions::default()).await.unwrap();
    assert_eq!(store.probe().await.unwrap().store, "memory");
}

#[tokio::test]
async fn what_is_not_there_is_said_without_repeating_the_url() {
    for (url, says) in [
        ("hunter2@host", "begins with its scheme"),
        (
            "mongodb://me:hunter2@host/",
            "no store `mongodb:`; there are memory, file",
        ),
        ("memory:hunter2", "takes nothing after the colon"),
    ] {
        let message = refused(url).await.to_string();
        assert!(message.contains(says), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[tokio::test]
async fn a_feature_that_is_off_is_named() {
    for (url, scheme, feature, on) in [
        ("file:./data", "file", "file", cfg!(feature = "file")),
        (
            "sqlite:./x.db",
            "sqlite",
            "sqlite",
            cfg!(feature = "sqlite"),
        ),
        (
            "postgres://me:hunter2@host/db",
            "postgres",
            "postgres",
            cfg!(feature = "postgres"),
        ),
        (
            "mysql://me:hunter2@host/db",
            "mysql",
            "mysql",
            cfg!(feature = "mysql"),
        ),
        (
            "rediss://me:hunter2@host",
            "rediss",
            "redis",
            cfg!(feature = "redis"),
        ),
        (
            "redis-cluster://me:hunter2@host",
            "redis-cluster",
            "redis",
            cfg!(feature = "redis"),
        ),
        (
            "dynamodb://hunter2",
            "dynamodb",
            "dynamodb",
            cfg!(feature = "dynamodb"),
        ),
        (
            "nats://me:hunter2@host/bucket",
            "nats",
            "nats",
            cfg!(feature = "nats"),
        ),
    ] {
        if on {
            continue;
        }
        let message = refused(url).await.to_string();
        let says = format!("`{scheme}:` needs the feature `{feature}`");
        assert!(message.contains(&says), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_file_store_opens_and_says_where_it_cannot() {
    use semel::{Store as _, StoreErrorKind};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/data");
    let url = format!("file:{}", path.display());
    let store = open(&url, &OpenOptions::default()).await.unwrap();
    assert_eq!(store.probe().await.unwrap().store, "file");
    store.close().await.unwrap();

    assert!(
        refused("file:")
            .await
            .to_string()
            .contains("path of a directory")
    );
    let file = directory.path().join("a-file");
    std::fs::write(&file, b"x").unwrap();
    match refused(&format!("file:{}", file.display())).await {
        OpenError::Store(e) => {
            assert_eq!(e.kind(), StoreErrorKind::Config);
            assert!(e.to_string().contains("a-file"), "{e}");
        }
        other => panic!("{other}"),
    }
}
