//! Where objects are kept: a folder, or a bucket of a service that speaks S3.

use std::fmt;
use std::fs::DirEntry;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
#[cfg(feature = "objects-s3")]
use std::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use semel::store::{Nonce, Result};
use semel::{StoreError, StoreErrorKind};

/// A folder, `file:PATH`, or a bucket, `s3://BUCKET/PREFIX?region=…&endpoint=…`. There are no credentials
/// in it: they come from the environment, `AWS_ACCESS_KEY_ID` and the others that AWS's own programs read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectsUrl(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Folder(PathBuf),
    #[cfg(feature = "objects-s3")]
    Bucket(Bucket),
}

#[cfg(feature = "objects-s3")]
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bucket {
    name: String,
    prefix: Path,
    region: Option<String>,
    endpoint: Option<url::Url>,
}

impl ObjectsUrl {
    /// Reads it.
    ///
    /// # Errors
    /// [`Config`](StoreErrorKind::Config): what is wrong with it, without repeating it.
    pub fn parse(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("file", "")) => Err(config("`file:` says no folder, as in `file:./answers`")),
            Some(("file", path)) => Ok(Self(Kind::Folder(path.into()))),
            #[cfg(feature = "objects-s3")]
            Some(("s3", _)) => Bucket::parse(url).map(|bucket| Self(Kind::Bucket(bucket))),
            #[cfg(not(feature = "objects-s3"))]
            Some(("s3", _)) => Err(config(
                "`s3:` needs the feature `objects-s3` of semel-stores, which this program was built without",
            )),
            _ => Err(config(
                "it has to be `file:FOLDER`, or `s3://BUCKET/PREFIX?region=…&endpoint=…`",
            )),
        }
    }

    /// Whether it is a folder that is not there yet: [`open`](Self::open) makes it.
    pub fn is_missing(&self) -> bool {
        match &self.0 {
            Kind::Folder(path) => !path.exists(),
            #[cfg(feature = "objects-s3")]
            Kind::Bucket(_) => false,
        }
    }

    /// Opens it: makes a folder that is not there, and [tries](Objects::probe) it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub async fn open(&self) -> Result<Objects> {
        let objects = match &self.0 {
            Kind::Folder(path) => Objects::in_folder(path)?,
            #[cfg(feature = "objects-s3")]
            Kind::Bucket(bucket) => bucket.open().await?,
        };
        let objects = Objects {
            name: self.to_string(),
            ..objects
        };
        objects.probe().await?;
        Ok(objects)
    }
}

impl fmt::Display for ObjectsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Folder(path) => write!(f, "file:{}", path.display()),
            #[cfg(feature = "objects-s3")]
            Kind::Bucket(Bucket { name, prefix, .. }) => write!(f, "s3://{name}/{prefix}"),
        }
    }
}

#[cfg(feature = "objects-s3")]
impl Bucket {
    fn parse(url: &str) -> Result<Self> {
        Self::read(url).map_err(|error| config(error.to_string()))
    }

    fn read(url: &str) -> Result<Self, crate::OpenError> {
        let mut location = crate::common::Location::parse("s3", url)?;
        let endpoint = location.take::<url::Url>("endpoint", ENDPOINT)?;
        let bare = |url: &url::Url| url.username().is_empty() && url.password().is_none();
        let is_http = |url: &url::Url| matches!(url.scheme(), "http" | "https") && bare(url);
        if !endpoint.as_ref().is_none_or(is_http) {
            return Err(location.invalid(format!("parameter `endpoint` must be {ENDPOINT}")));
        }
        let region = location.take("region", "text")?;
        let invalid = |what: &str| crate::OpenError::invalid("s3", what);
        let url = location.whole("region, endpoint")?;
        if !bare(&url) || url.port().is_some() {
            return Err(invalid(
                "is followed by a bucket and a prefix alone; credentials come from the environment, \
                 another server is the parameter `endpoint`",
            ));
        }
        let name = url.host_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| invalid("names no bucket, as in `s3://answers/shop`"))?;
        let prefix = Path::from_url_path(url.path());
        Ok(Self {
            name: name.to_owned(),
            prefix: prefix.map_err(|_| invalid("has a prefix that is no path"))?,
            region,
            endpoint,
        })
    }

    async fn open(&self) -> Result<Objects> {
        use object_store::RetryConfig;
        use object_store::aws::AmazonS3Builder;
        use object_store::prefix::PrefixStore;

        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&self.name)
            .with_retry(RetryConfig {
                max_retries: 2,
                retry_timeout: RETRIED,
                ..RetryConfig::default()
            })
            // Not every service has it.
            .with_disable_bulk_delete(true);
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder
                .with_endpoint(endpoint.as_str().trim_end_matches('/'))
                .with_allow_http(endpoint.scheme() == "http");
        }
        let bucket = builder.build();
        let bucket = bucket.map_err(|error| config("the bucket's settings").with_source(error))?;
        if says_that_it_keeps_versions(&bucket).await == Some(true) {
            return Err(config(VERSIONS));
        }
        let store = PrefixStore::new(bucket, self.prefix.clone());
        Ok(Objects::new(Arc::new(store)))
    }
}

/// What the bucket itself answers to this. `None` where it does not: not every service knows the question, and
/// not every credential may ask it.
#[cfg(feature = "objects-s3")]
async fn says_that_it_keeps_versions(bucket: &object_store::aws::AmazonS3) -> Option<bool> {
    use object_store::ClientOptions;
    use object_store::client::{HttpConnector as _, HttpRequestBody, ReqwestConnector};
    use object_store::signer::{SignedUrlOptions, Signer as _};

    let question = SignedUrlOptions::new().with_query([("versioning", "")]);
    let whole = Path::default();
    let signed = bucket.signed_url_opts(http::Method::GET, &whole, RETRIED, &question);
    let url = signed.await.ok()?;
    let options = ClientOptions::new()
        .with_timeout(RETRIED)
        .with_allow_http(url.scheme() == "http");
    let client = ReqwestConnector::default().connect(&options).ok()?;
    let request = http::Request::get(url.as_str()).body(HttpRequestBody::empty());
    let answer = client.execute(request.ok()?).await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let answer = answer.into_body().bytes().await.ok()?;
    let enabled = b"<Status>Enabled</Status>";
    Some(answer.windows(enabled.len()).any(|part| part == enabled))
}

#[cfg(feature = "objects-s3")]
const ENDPOINT: &str = "a URL without credentials, as `https://minio.example:9000`";
/// A claim waits for it, and is sent again by whoever asks.
#[cfg(feature = "objects-s3")]
const RETRIED: Duration = Duration::from_secs(10);

/// What objects are kept in.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Option<PathBuf>,
    /// For people.
    name: String,
}

const VERSIONS: &str = "the bucket keeps what is removed as an old version, so an answer that is erased would \
                        stay in it: take a bucket without versioning";

impl Objects {
    /// Any that the crate [`object_store`] knows.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            name: store.to_string(),
            store,
            folder: None,
        }
    }

    fn in_folder(path: &FilePath) -> Result<Self> {
        let made = std::fs::create_dir_all(path);
        made.map_err(|error| config("the folder cannot be made").with_source(error))?;
        let store = LocalFileSystem::new_with_prefix(path);
        let store =
            store.map_err(|error| config("the folder cannot be opened").with_source(error))?;
        // What is acknowledged is to be as durable as it would be in the store.
        let store = store.with_fsync(true).with_automatic_cleanup(true);
        Ok(Self {
            store: Arc::new(store),
            folder: Some(path.to_owned()),
            name: String::new(),
        })
    }

    /// Writes an object, reads it and removes it. The time is that of the place where it was.
    ///
    /// # Errors
    /// What failed. Also where a bucket gives what is written a version: it keeps what is removed.
    pub async fn probe(&self) -> Result<SystemTime> {
        let failed = |what: &'static str| {
            move |error: Error| {
                let what = format!("an object cannot be {what}");
                StoreError::new(StoreErrorKind::Config, what).with_source(error)
            }
        };
        let bytes = Bytes::copy_from_slice(Nonce::random()?.as_bytes());
        let path = Path::from_iter(["probe", &hex::encode(&bytes)]);
        let put = self.store.put(&path, bytes.clone().into()).await;
        let put = put.map_err(failed("written"))?;
        let found = self.store.get(&path).await.map_err(failed("read"))?;
        let now = found.meta.last_modified.into();
        let read = found.bytes().await.map_err(failed("read"))?;
        let removed = self.store.delete(&path).await;
        removed.map_err(failed("removed"))?;
        if read != bytes {
            return Err(config("an object that is read is not what was written"));
        }
        match put.version.as_deref() {
            None | Some("null") => Ok(now),
            Some(_) => Err(config(VERSIONS)),
        }
    }

    /// Marks a folder in it as one that is in use.
    pub(super) async fn mark(&self, folder: &str) -> Result<()> {
        let why = "semel keeps large answers here. Without this file it takes the folder for another one.\n";
        self.put(&mark_of(folder), why.into()).await
    }

    /// That the folder is there: below a mount point that nothing is mounted on there is none, and in
    /// another bucket neither.
    pub(super) async fn check_mark(&self, folder: &str) -> Result<()> {
        let mark = mark_of(folder);
        match self.store.head(&mark).await {
            Ok(_) => Ok(()),
            Err(Error::NotFound { .. }) => Err(config(format!(
                "the large answers of this store are not in `{}`: there is no `{mark}` in it. Is it mounted, and \
                 the same place as before? If these answers are lost for good, make that file: what they \
                 answered is refused then, and runs no more",
                self.name
            ))),
            Err(error) => Err(not_done("the place of large answers cannot be read", error)),
        }
    }

    /// Whether it may be away without saying so.
    pub(super) const fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    pub(super) async fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let put = self.store.put(path, bytes.into()).await;
        put.map(drop)
            .map_err(|error| not_done("an object cannot be written", error))
    }

    pub(super) async fn get(&self, path: &Path) -> Result<GetResult, Error> {
        self.store.get(path).await
    }

    /// Whether it is there, and was written by then.
    pub(super) async fn is_from(&self, path: &Path, then: SystemTime) -> Result<bool> {
        match self.store.head(path).await {
            Ok(found) => Ok(SystemTime::from(found.last_modified) <= then),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(not_done("an object cannot be read", error)),
        }
    }

    /// Whether it was there or not.
    pub(super) async fn remove(&self, path: &Path) -> Result<()> {
        match self.store.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(not_done("an object cannot be removed", error)),
        }
    }

    pub(super) fn list(&self, below: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.store.list(Some(below));
        listed
            .map(|found| found.map_err(|error| not_done("objects cannot be listed", error)))
            .boxed()
    }

    /// Removes what was not written to its end, by `before` where that is given: in a folder it is a file
    /// of its own, which `object_store` does not list. An upload under way fails then, and is sent again.
    pub(super) async fn remove_partial(
        &self,
        below: &Path,
        before: Option<SystemTime>,
    ) -> Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let folder = folder.join(below.as_ref());
        let removed = tokio::task::spawn_blocking(move || remove_partial(&folder, before)).await;
        let removed = removed.unwrap_or_else(|error| Err(io::Error::other(error)));
        removed
            .map_err(|error| not_done("what was not written to its end cannot be removed", error))
    }
}

fn mark_of(folder: &str) -> Path {
    Path::from_iter([folder, "mark"])
}

fn remove_partial(folder: &FilePath, before: Option<SystemTime>) -> io::Result<()> {
    let is_old = |entry: &DirEntry| match before {
        Some(before) => Ok::<_, io::Error>(entry.metadata()?.modified()? <= before),
        None => Ok(true),
    };
    let entries = ignore_missing(std::fs::read_dir(folder))?;
    for entry in entries.into_iter().flatten() {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_partial(&entry.path(), before)?;
        } else if entry.file_name().to_string_lossy().contains('#')
            && ignore_missing(is_old(&entry))? == Some(true)
        {
            ignore_missing(std::fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// It was written to its end meanwhile.
fn ignore_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

fn config(what: impl Into<Box<str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, what)
}

fn not_done(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(StoreErrorKind::NotApplied, what).with_source(error)
}
