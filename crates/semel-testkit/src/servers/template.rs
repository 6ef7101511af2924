//! Data folders as a server's installer makes them. An installer syncs file after file, which takes
//! seconds on a busy disk: it runs once for each release, and what it made is copied after that.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{cache, guarded};

/// Makes `data` by `install`, or by copying what that made before. `program` is the server: another
/// version of it has other data. `install` must do the same each time.
///
/// # Errors
/// Those of `install`.
pub(super) fn make(program: &str, data: &Path, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let template = of(program)?;
    if template.is_dir() {
        return copy(&template, data);
    }
    install()?;
    let parent = template.parent().context("a template has a folder")?;
    std::fs::create_dir_all(parent)?;
    let mine = tempfile::tempdir_in(parent)?;
    let whole = mine.path().join("data");
    copy(data, &whole)?;
    // Whoever comes second finds it there.
    std::fs::rename(whole, template).ok();
    Ok(())
}

fn of(program: &str) -> Result<PathBuf> {
    let said = guarded::run(program, &["--version".into()], None)?.stdout;
    let said = String::from_utf8_lossy(&said);
    // The first word is where the program lies.
    let words = said.split_whitespace().skip(1);
    let kept = |c: &char| c.is_ascii_alphanumeric() || *c == '.';
    let version: String = words.flat_map(str::chars).filter(kept).collect();
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = format!("{}-{version}", name.to_string_lossy());
    Ok(cache::folder()?.join("templates").join(name))
}

/// With owners and rights; what is empty in a file takes no room.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let paths = [from, to].map(|path| path.display().to_string());
    let [from, to] = paths;
    let arguments = ["-aT".into(), "--sparse=always".into(), from, to];
    guarded::run("cp", &arguments, None)?;
    Ok(())
}
