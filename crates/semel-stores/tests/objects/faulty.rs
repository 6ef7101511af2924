//! A place for objects that fails.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use semel_stores::objects::object_store::memory::InMemory;
use semel_stores::objects::object_store::path::Path;
use semel_stores::objects::object_store::{
    self, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::Notify;

/// A place in memory that fails as it is told.
#[derive(Debug, Default)]
pub(super) struct Faulty {
    pub(super) objects: InMemory,
    pub(super) no_put: AtomicBool,
    pub(super) denied: AtomicBool,
    pub(super) no_get: AtomicBool,
    pub(super) no_removal: AtomicBool,
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
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        if self.no_removal.load(SeqCst) {
            return futures_util::stream::once(async { Err(failed()) }).boxed();
        }
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
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
