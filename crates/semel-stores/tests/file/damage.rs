//! Damaged files: whatever is flipped, cut or removed, acknowledged records are either all there or
//! their loss is reported.

use std::fs;
use std::path::{Path, PathBuf};

use semel::{Store, StoreErrorKind};
use semel_stores::FileOptions;

use super::{identity, open, replayed, settle};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.metadata().unwrap().len() > 32 << 20 {
            // The log: its end is room that was set aside. Copied without it.
            let bytes = fs::read(entry.path()).unwrap();
            let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
            fs::write(to, &bytes[..end]).unwrap();
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn files(path: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, all);
        } else {
            all.push(path);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Damage {
    Flip(usize),
    Cut(usize),
    Zero(usize),
    Remove,
}

impl Damage {
    fn put(&self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        match *self {
            Self::Flip(at) => bytes[at] ^= 0x10,
            Self::Cut(at) => bytes.truncate(at),
            Self::Zero(at) => {
                let end = (at + 64).min(bytes.len());
                bytes[at..end].fill(0);
            }
            Self::Remove => return fs::remove_file(path).unwrap(),
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Whether the damage was reported, rather than harmless. Anything else fails the test.
/// Bodies are the keys, filled up to `len`.
async fn reported(directory: &Path, keys: &[String], what: &str, len: usize) -> bool {
    // Twice: what is reported once must not be forgotten by the second attempt (though what the
    // engine could put right in the first may be harmless in the second).
    for attempt in 0..2 {
        let store = match FileOptions::new().open(directory) {
            Err(e) => {
                let kind = e.kind();
                let told = matches!(kind, StoreErrorKind::Corrupt | StoreErrorKind::Config);
                assert!(told, "{what}: {kind:?} {e}");
                if attempt == 1 {
                    return true;
                }
                continue;
            }
            Ok(store) => store,
        };
        for key in keys {
            match store.get(identity(key).digest()).await {
                Ok(Some(_)) => {
                    let mut body = key.clone().into_bytes();
                    body.resize(len.max(body.len()), b'.');
                    let kept = replayed(&store, key).await;
                    assert!(kept == body, "{what}: {key} is another");
                }
                Ok(None) => panic!("{what}: {key} is gone, and nobody said so"),
                Err(e) => {
                    assert_eq!(e.kind(), StoreErrorKind::Corrupt, "{what}: {e}");
                    return true;
                }
            }
        }
        return false;
    }
    true
}

/// What was found of damage in copies of a directory.
#[derive(Default)]
struct Found {
    total: usize,
    reports: usize,
    in_tables: usize,
}

/// Damages each file in turn, in each of the ways that `damages` says for its number and length.
async fn matrix(
    original: &Path,
    keys: &[String],
    len: usize,
    damages: impl Fn(usize, usize) -> Vec<Damage>,
) -> Found {
    let scratch = tempfile::tempdir().unwrap();
    let (pristine, victim) = (
        scratch.path().join("pristine"),
        scratch.path().join("victim"),
    );
    copy(original, &pristine);
    copy(&pristine, &victim);
    assert!(!reported(&victim, keys, "no damage", len).await);
    let mut all = Vec::new();
    files(&pristine, &mut all);
    let mut found = Found::default();
    for (n, file) in all.iter().enumerate() {
        let name = file.strip_prefix(&pristine).unwrap();
        let size = usize::try_from(fs::metadata(file).unwrap().len()).unwrap();
        for damage in damages(n, size) {
            if size == 0 && damage != Damage::Remove {
                continue;
            }
            let _ = fs::remove_dir_all(&victim);
            copy(&pristine, &victim);
            damage.put(&victim.join(name));
            let what = format!("{}: {damage:?}", name.display());
            found.reports += usize::from(reported(&victim, keys, &what, len).await);
            found.in_tables += usize::from(name.components().any(|c| c.as_os_str() == "tables"));
            found.total += 1;
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_tables_is_harmless_or_reported() {
    tables_and_logs(20).await;
}

/// Logs that are not the last one, too: a loss there has newer records after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "100 MB, minutes without optimisation"]
async fn damage_in_earlier_logs_is_harmless_or_reported() {
    tables_and_logs(96).await;
}

async fn tables_and_logs(records: usize) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut keys = Vec::new();
    for n in 0..records {
        // Large, so that a few steps fill write buffers and a log.
        let key = format!("key-{n}");
        let token = super::acquire(&store, &key).await.token;
        let mut body = key.clone().into_bytes();
        body.resize(1 << 20, b'.');
        super::complete(&store, &key, &token, &body).await;
        keys.push(key);
    }
    store.close().await.unwrap();
    let found = matrix(directory.path(), &keys, 1 << 20, |n, size| {
        let at = (size / 3 + n * 7919) % size.max(1);
        vec![Damage::Flip(at), Damage::Cut(at), Damage::Remove]
    });
    let found = found.await;
    assert!(found.in_tables > 0, "nothing was flushed");
    assert!(found.reports > 0, "no damage was reported");
}

#[tokio::test]
async fn damage_in_the_log_is_harmless_or_reported() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut keys = Vec::new();
    for n in 0..40 {
        let key = format!("key-{n}");
        settle(&store, &key).await;
        keys.push(key);
    }
    store.close().await.unwrap();
    let found = matrix(directory.path(), &keys, 0, |_, size| {
        // Not only round places: spread, and shifted with each.
        let places = (0..12.min(size)).map(|n| (n * size / 12 + n * 7) % size);
        let damages = places.flat_map(|at| [Damage::Flip(at), Damage::Cut(at), Damage::Zero(at)]);
        damages.chain([Damage::Remove]).collect()
    });
    let Found { reports, total, .. } = found.await;
    assert!(reports > total / 4, "{reports} of {total} were reported");
}
