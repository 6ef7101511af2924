//! A place for objects that fails.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use semel_stores::objects::object_store::memory::InMemory;
use semel_stores::objects::object_store::path::Path;
use semel_stores::objects::object_store::{
    self, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::{Barrier, Notify};

/// A place in memory that fails as it is told.
#[derive(Debug, Default)]
pub(super) struct Faulty {
    pub(super) objects: InMemory,
    pub(super) no_put: AtomicBool,
    pub(super) denied: AtomicBool,
    /// It was.
    pub(super) refused: Notify,
    pub(super) no_get: AtomicBool,
    pub(super) no_list: AtomicBool,
    pub(super) no_removal: AtomicBool,
    /// All objects are so many seconds older than they are.
    pub(super) age: AtomicU64,
    /// Objects are removed so many at once, and not one after the other.
    pub(super) together: Mutex<Option<Arc<Barrier>>>,
    /// Says so when it has written, and answers nothing.
    pub(super) hangs: AtomicBool,
    pub(super) hung: Notify,
}

fn failed() -> object_store::Error {
    object_store::Error::Generic {
        store: "Faulty",
        source: "it is unplugged".into(),
    }
}

impl Faulty {
    fn older(&self) -> impl Fn(ObjectMeta) -> ObjectMeta + Send + use<> {
        let age = Duration::from_secs(self.age.load(SeqCst));
        move |object| ObjectMeta {
            last_modified: (SystemTime::from(object.last_modified) - age).into(),
            ..object
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if self.denied.load(SeqCst) {
            self.refused.notify_one();
            let path = location.to_string();
            let source = "no".into();
            return Err(object_store::Error::PermissionDenied { path, source });
        }
        if self.no_put.load(SeqCst) {
            return Err(failed());
        }
        let put = self.objects.put_opts(location, payload, options).await;
        if self.hangs.load(SeqCst) {
            self.hung.notify_one();
            std::future::pending::<()>().await;
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        if self.no_get.load(SeqCst) {
            return Err(failed());
        }
        let mut found = self.objects.get_opts(location, options).await?;
        if !location.as_ref().starts_with("probe") {
            found.meta = self.older()(found.meta);
        }
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        if self.no_removal.load(SeqCst) {
            return futures_util::stream::once(async { Err(failed()) }).boxed();
        }
        let Some(together) = self.together.lock().unwrap().clone() else {
            return self.objects.delete_stream(locations);
        };
        let waiting = locations.then(move |location| {
            let together = together.clone();
            async move {
                if !location.as_ref().unwrap().as_ref().starts_with("probe") {
                    together.wait().await;
                }
                location
            }
        });
        self.objects.delete_stream(waiting.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        if self.no_list.load(SeqCst) {
            return futures_util::stream::once(async { Err(failed()) }).boxed();
        }
        self.objects.list(prefix).map_ok(self.older()).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
