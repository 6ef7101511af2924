//! Ports and folders that nobody else uses.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use tempfile::TempDir;

/// A port that nothing listens on, and that this process gives out once.
///
/// Below the ports from which connections are made, so that no client takes it before the server.
pub(super) fn free() -> Result<u16> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    for attempt in 0..1000_u64 {
        let dice = RandomState::new().hash_one(attempt) % 20_000;
        let port = u16::try_from(12_000 + dice)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && given.insert(port) {
            return Ok(port);
        }
    }
    bail!("no free port was found")
}

/// A folder for a server's data, which a server that runs as another user may enter.
pub(super) fn folder(name: &str) -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix(&format!("semel-{name}-"))
        .tempdir()?;
    open_to_all(folder.path())?;
    remove_at_the_end(folder.path());
    Ok(folder)
}

/// Folders go with their handles. A process that is killed, or keeps a server to its end, drops no
/// handle: a shell that reads from it removes what is left once nobody writes any more.
fn remove_at_the_end(folder: &Path) {
    static REMOVER: Mutex<Option<Child>> = Mutex::new(None);
    let mut remover = REMOVER.lock().unwrap_or_else(PoisonError::into_inner);
    if remover.is_none() {
        // The servers are killed at the same time, and may write a moment longer.
        let script = "all=$(cat); sleep 1; echo \"$all\" | xargs -d '\\n' rm -rf --";
        *remover = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok();
    }
    // Without it the folder stays: no reason to fail a test.
    if let Some(input) = remover.as_mut().and_then(|child| child.stdin.as_mut()) {
        writeln!(input, "{}", folder.display()).ok();
    }
}

fn open_to_all(path: &Path) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
