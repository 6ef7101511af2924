//! What pages load: compressed once, and kept by browsers for good under a name that changes with it.

use std::io::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use sha2::{Digest as _, Sha256};

struct Asset {
    name: &'static str,
    kind: &'static str,
    plain: &'static str,
    compressed: Option<Bytes>,
}

/// Name, type, text. `uplot.js` is uPlot 1.6.32 as its authors publish it (`uplot.LICENSE`).
const FILES: [(&str, &str, &str); 4] = [
    (
        "style.css",
        "text/css; charset=utf-8",
        include_str!("assets/style.css"),
    ),
    (
        "console.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/console.js"),
    ),
    (
        "uplot.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/uplot.js"),
    ),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let assets = FILES.map(|(name, kind, plain)| Asset {
        name,
        kind,
        plain,
        compressed: compressed(plain),
    });
    assets.into()
});

/// The folder of their names: another one where any of them is another.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all = FILES
        .iter()
        .fold(Sha256::new(), |all, (_, _, text)| all.chain_update(text));
    hex::encode(&all.finalize()[..8])
});

fn compressed(text: &str) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

pub(super) async fn serve(
    Path((version, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let found = ASSETS.iter().find(|asset| asset.name == name);
    let Some(asset) = found.filter(|_| version == *VERSION) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let accepts = headers
        .get(ACCEPT_ENCODING)
        .and_then(|field| field.to_str().ok());
    let accepts = accepts.is_some_and(|field| field.contains("gzip"));
    let mut response = match &asset.compressed {
        Some(bytes) if accepts => ([(CONTENT_ENCODING, "gzip")], bytes.clone()).into_response(),
        _ => asset.plain.into_response(),
    };
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    let for_good = HeaderValue::from_static("public, max-age=31536000, immutable");
    fields.insert(CACHE_CONTROL, for_good);
    fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}
