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
async fn reported(directory: &Path, keys: &[String], what: &str) -> bool {
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
                    assert_eq!(replayed(&store, key).await.as_deref(), Some(key.as_bytes()));
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

async fn matrix(original: &Path, keys: &[String], places: usize) -> (usize, usize) {
    let scratch = tempfile::tempdir().unwrap();
    let pristine = scratch.path().join("pristine");
    copy(original, &pristine);
    let mut all = Vec::new();
    files(&pristine, &mut all);
    let (mut reports, mut total) = (0, 0);
    for file in all {
        let len = usize::try_from(fs::metadata(&file).unwrap().len()).unwrap();
        let mut damages = vec![Damage::Remove];
        for n in 0..places.min(len) {
            // Not only round places: spread, and shifted with each.
            let at = (n * len / places + n * 7) % len;
            damages.extend([Damage::Flip(at), Damage::Cut(at), Damage::Zero(at)]);
        }
        for (n, damage) in damages.iter().enumerate() {
            let victim = scratch.path().join("victim");
            let _ = fs::remove_dir_all(&victim);
            copy(&pristine, &victim);
            let name = file.strip_prefix(&pristine).unwrap();
            damage.put(&victim.join(name));
            let what = format!("{} damage {n}", name.display());
            reports += usize::from(reported(&victim, keys, &what).await);
            total += 1;
        }
    }
    (reports, total)
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
    let (reports, total) = matrix(directory.path(), &keys, 12).await;
    assert!(reports > total / 4, "{reports} of {total} were reported");
}
