//! A directory with a file for each intent.
//!
//! A file is written under another name, synced, and renamed; then the directory is synced. So it is there
//! whole or not at all, and an acknowledged one outlives a loss of power. A lock on `lock` keeps other
//! processes out, and ends with this process however it ends. One file each, and not a log: intents are few
//! and short-lived, a damaged file is named and can be moved away from the others, and many are synced at once.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use semel::Key;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::OutboxError;
use super::intent::Kept;
use crate::call::Keyed;

const EXTENSION: &str = "intent";
const UNFINISHED: &str = ".unfinished-";

/// Holds the lock.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) directory: PathBuf,
    _lock: File,
}

impl Disk {
    /// Opens the directory and reads what is in it.
    pub(super) fn open(directory: PathBuf) -> Result<(Self, Vec<Kept>), OutboxError> {
        make(&directory)?;
        let path = directory.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let lock = lock.map_err(|e| io_error("open", &path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OutboxError::InUse { path: directory }),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &path, error)),
        }
        let mut found = Vec::new();
        let reading = |error| io_error("read", &directory, error);
        for entry in fs::read_dir(&directory).map_err(reading)? {
            let path = entry.map_err(reading)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path
                .extension()
                .is_some_and(|extension| extension == EXTENSION)
            {
                found.push(read(&path)?);
            } else if name.starts_with(UNFINISHED) {
                // Never acknowledged, so nothing of it was sent.
                fs::remove_file(&path).map_err(|e| io_error("remove", &path, e))?;
            }
        }
        let _lock = lock;
        Ok((Self { directory, _lock }, found))
    }

    /// When this returns, it is on the disk.
    pub(super) fn write(&self, kept: &Kept) -> Result<(), OutboxError> {
        let path = self.directory.join(file_name(&kept.name));
        let failed = |error| io_error("write", &path, error);
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(&self.directory)
            .map_err(failed)?;
        file.write_all(&encode(kept)).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        // The index knows of no such file: whoever made it, its request may have been sent.
        file.persist_noclobber(&path).map_err(|e| failed(e.error))?;
        sync_directory(&self.directory).map_err(|error| {
            // It is as if it had not been begun. Should the file stay, it is found as pending.
            fs::remove_file(&path).ok();
            failed(error)
        })
    }

    /// When this returns, it does not come back.
    pub(super) fn remove(&self, kept: &Kept) -> Result<(), OutboxError> {
        let path = self.directory.join(file_name(&kept.name));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &path, error))
            }
            _ => sync_directory(&self.directory).map_err(|e| io_error("sync", &self.directory, e)),
        }
    }
}

/// For this user only: requests and keys are nobody else's business.
fn make(directory: &Path) -> Result<(), OutboxError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let missing = directory.ancestors().take_while(|path| !path.exists());
    let missing = missing.filter(|path| !path.as_os_str().is_empty()).count();
    if missing > 0 {
        let made = builder.create(directory);
        made.map_err(|error| io_error("make", directory, error))?;
        let path = fs::canonicalize(directory).map_err(|e| io_error("open", directory, e))?;
        for parent in path.ancestors().skip(1).take(missing) {
            sync_directory(parent).map_err(|error| io_error("sync", parent, error))?;
        }
    }
    Ok(())
}

/// Names of files in it are on the disk then. Only Unix has it.
fn sync_directory(path: &Path) -> io::Result<()> {
    match cfg!(unix) {
        true => File::open(path)?.sync_all(),
        false => Ok(()),
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> OutboxError {
    let path = path.to_owned();
    OutboxError::Io { what, path, source }
}

/// Names may have any characters, and be long.
fn file_name(name: &str) -> String {
    format!("{}.{EXTENSION}", hex::encode(Sha256::digest(name)))
}

/// The first line of a file: its form, and the SHA-256 of all that follows. Then a line of JSON, and the body.
const FORM: &str = "semel-intent 1 ";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: Box<str>,
    key: String,
    /// Milliseconds since 1970.
    begun: u64,
    method: String,
    uri: String,
    headers: Vec<(String, String)>,
}

fn encode(kept: &Kept) -> Vec<u8> {
    let since = kept
        .keyed
        .begun
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let fields = kept.headers.iter();
    let head = Head {
        name: kept.name.clone(),
        key: kept.key.as_str().to_owned(),
        begun: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        method: kept.method.to_string(),
        uri: kept.uri.to_string(),
        headers: fields
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect(),
    };
    let mut content = serde_json::json!(head).to_string().into_bytes();
    content.push(b'\n');
    content.extend_from_slice(&kept.body);
    let mut file = format!("{FORM}{}\n", hex::encode(Sha256::digest(&content))).into_bytes();
    file.append(&mut content);
    file
}

fn read(path: &Path) -> Result<Kept, OutboxError> {
    let file = fs::read(path).map_err(|error| io_error("read", path, error))?;
    let kept = decode(Bytes::from(file)).and_then(|kept| {
        let is_its_name = path
            .file_name()
            .is_some_and(|file| *file == *file_name(&kept.name));
        is_its_name
            .then_some(kept)
            .ok_or_else(|| "it has the name of another".to_owned())
    });
    let path = path.to_owned();
    kept.map_err(|what| OutboxError::Damaged { path, what })
}

fn decode(mut file: Bytes) -> Result<Kept, String> {
    let line = |bytes: &mut Bytes| {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let line = bytes.split_to(end + 1);
        Some(line.slice(..end))
    };
    let first = line(&mut file).ok_or("it breaks off in its first line")?;
    let digest = first.strip_prefix(FORM.as_bytes());
    let digest = digest.ok_or("its first line is not that of an intent of version 1")?;
    if digest != hex::encode(Sha256::digest(&file)).as_bytes() {
        return Err("its content is not what was written".into());
    }
    let head = line(&mut file).ok_or("it has no head")?;
    // What follows fails only if another program wrote it.
    let head: Head = serde_json::from_slice(&head).map_err(|error| error.to_string())?;
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for (name, value) in &head.headers {
        let name: HeaderName = name.parse().map_err(|_| "a field's name cannot be read")?;
        let value: HeaderValue = value
            .parse()
            .map_err(|_| "a field's value cannot be read")?;
        headers.append(name, value);
    }
    Ok(Kept {
        name: head.name,
        key: Key::new(&head.key).map_err(|error| error.to_string())?,
        keyed: Keyed {
            begun: UNIX_EPOCH + Duration::from_millis(head.begun),
            // It may have been sent.
            possible: Arc::new(1.into()),
            happened: Arc::default(),
        },
        method: head
            .method
            .parse()
            .map_err(|_| "its method cannot be read")?,
        uri: head.uri.parse().map_err(|_| "its target cannot be read")?,
        headers,
        body: file,
    })
}
