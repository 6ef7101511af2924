//! Ready-made observers: [`Metrics`] counts what happens (feature `metrics`), [`Tracing`] writes it
//! down and opens a span around each attempt (feature `tracing`).
//!
//! ```no_run
//! # #[cfg(all(feature = "metrics", feature = "tracing"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//! use semel::guard::Guard;
//! use semel::guard::observers::{Metrics, Tracing};
//! # let store = semel::memory::MemoryStore::default();
//!
//! let recorder = PrometheusBuilder::new()
//!     .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[0.01, 0.1, 1.0, 10.0])?
//!     .install_recorder()?;
//! let guard = Guard::builder(store).observer(Arc::new(Metrics::default())).build();
//! // For each scrape:
//! Metrics::gauges(&guard);
//! let text = recorder.render();
//!
//! # let store = semel::memory::MemoryStore::default();
//! // Or both:
//! let guard = Guard::builder(store).observer(Arc::new((Metrics::default(), Tracing))).build();
//! # drop((guard, text));
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "metrics", feature = "tracing")))]
//! # fn main() {}
//! ```
//!
//! Neither shows a key (R12). What to count, and when to be woken, is in
//! [docs/observability.md](https://github.com/semel-rs/semel/blob/main/docs/observability.md).

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "tracing")]
pub use tracing::Tracing;
