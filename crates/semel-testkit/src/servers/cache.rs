//! Programs that scripts/setup installs under the user's cache.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The path of one.
///
/// # Errors
/// Where the user has no cache.
pub(super) fn installed(program: &str) -> Result<String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let program = cache
        .context("neither HOME nor XDG_CACHE_HOME is set")?
        .join("semel-testkit")
        .join(program);
    Ok(program.display().to_string())
}
