//! What is under the user's cache: the programs that scripts/setup installs, among others.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// What is kept here from run to run.
///
/// # Errors
/// Where the user has no cache.
pub(super) fn folder() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let cache = cache.context("neither HOME nor XDG_CACHE_HOME is set")?;
    Ok(cache.join("semel-testkit"))
}

/// The path of a program.
///
/// # Errors
/// Where the user has no cache.
pub(super) fn installed(program: &str) -> Result<String> {
    Ok(folder()?.join(program).display().to_string())
}
