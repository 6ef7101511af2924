//! A disk that is full, and gets room again.
//!
//! Each scenario runs in a process of its own, the test binary again, with a small disk that nobody
//! else sees. That needs root or namespaces of users; without both these tests fail.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::{
    HEALED, NOTICED, healed, large_order, lines, metric, of_size, order_until_refused,
    until_logged, within,
};
use crate::support::{Gateway, Shop, get, send};

const DISK: &str = "SEMEL_TEST_SMALL_DISK";

/// Runs one of the scenarios below on a disk of this size.
fn on_a_disk(size: &str, scenario: &str) {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new("unshare");
    if fs::metadata(directory.path()).unwrap().uid() != 0 {
        child.args(["--user", "--map-root-user"]);
    }
    let output = child
        .args(["--mount", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs -o size={size},mode=755 tmpfs \"$1\" && shift && exec \"$@\""
        ))
        .arg("sh")
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("shortage::disk::{scenario}"),
            "--nocapture",
        ])
        .env(DISK, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{told}"
    );
    println!("{said}");
}

fn disk() -> Option<PathBuf> {
    std::env::var_os(DISK).map(PathBuf::from)
}

/// Something else on the disk, that leaves so many bytes.
fn leave(disk: &Path, bytes: u64) {
    let name = disk.join("something-else");
    let stat = rustix::fs::statvfs(disk).unwrap();
    let free = stat.f_bavail * stat.f_frsize;
    let had = fs::metadata(&name).map_or(0, |found| found.len());
    let file = File::options()
        .create(true)
        .append(true)
        .open(&name)
        .unwrap();
    let more = free.saturating_sub(bytes);
    if more > 0 {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, had, more).unwrap();
    }
}

fn give_back(disk: &Path) {
    fs::remove_file(disk.join("something-else")).unwrap();
}

#[test]
fn a_file_store_takes_keys_again_once_there_is_room() {
    on_a_disk("320m", "file_store");
}

/// On a small disk: started by the test above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_store() {
    const BODY: usize = 10_000;
    let Some(disk) = disk() else { return };
    let shop = Arc::new(Shop::open().await);
    let store = format!("file:{}", disk.join("records").display());
    let gateway = Gateway::start(shop.address, &["--store", &store]);
    let first = large_order(&gateway, "\"first\"", BODY).await.unwrap();
    assert_eq!(first.status, 201);

    // Less than the reserve: no new keys, and the rest goes on.
    leave(&disk, 200 << 20);
    let (mut answered, refusal) = order_until_refused(&gateway, "filling", BODY, 100_000).await;
    answered.push(("\"first\"".to_owned(), first));
    assert_eq!(refusal.problem(), "capacity");
    until_logged(&gateway, "no room for new keys").await;
    let ready = get(gateway.admin, "/readyz").await;
    assert_eq!(ready.status, 200);
    assert!(
        ready.text().starts_with("ready, no room for new keys: "),
        "{}",
        ready.text()
    );
    assert!(ready.text().contains("256 MiB"), "{}", ready.text());
    assert_eq!(metric(&gateway, "semel_store_full").await, "1");
    assert_eq!(metric(&gateway, "semel_store_up").await, "1");
    assert!(
        large_order(&gateway, "\"first\"", BODY)
            .await
            .unwrap()
            .is_replay()
    );
    assert_eq!(
        lines(&gateway, "ERROR").len(),
        1,
        "{:?}",
        lines(&gateway, "ERROR")
    );
    give_back(&disk);
    // Nobody has to ask for it.
    until_logged(&gateway, "store: works again after").await;

    // Nothing at all, while an order runs.
    // Its answer is larger than what is left of a page that the log has already.
    let mut slow = of_size(&gateway, "\"running\"", BODY);
    let delay = http::HeaderValue::from_static("1500");
    slow.headers_mut().insert("x-delay", delay);
    let running = tokio::spawn(async move { send(slow).await.unwrap() });
    within(NOTICED, "the order", async || {
        shop.executions().contains_key("\"running\"")
    })
    .await;
    leave(&disk, 0);
    until_logged(&gateway, "is full").await;
    let ready = get(gateway.admin, "/readyz").await;
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert!(ready.text().contains("is full"), "{}", ready.text());
    assert_eq!(metric(&gateway, "semel_store_up").await, "0");
    let refused = large_order(&gateway, "\"first\"", BODY).await.unwrap();
    assert_eq!(refused.problem(), "capacity");
    tokio::time::sleep(NOTICED).await;
    give_back(&disk);
    healed(&gateway, &shop, &answered, BODY).await;
    let ran = running.await.unwrap();
    assert_eq!(ran.status, 201, "{ran:?}");
    let again = large_order(&gateway, "\"running\"", BODY).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.body, ran.body);
    assert_eq!(shop.executions()["\"running\""], 1);
    let told = lines(&gateway, "ERROR").join("\n");
    assert!(
        !told.contains("Fjall") && !told.contains("Poisoned"),
        "{told}"
    );
}

#[cfg(feature = "file")]
#[test]
fn a_disk_too_small_is_told_at_the_start() {
    on_a_disk("8m", "too_small");
}

/// On a small disk: started by the test above.
#[tokio::test]
async fn too_small() {
    let Some(disk) = disk() else { return };
    let shop = Shop::open().await;
    let store = format!("file:{}", disk.join("records").display());
    let gateway = Gateway::start(shop.address, &["--store", &store]);
    let warned = lines(&gateway, "WARN");
    assert!(warned[0].contains("nearly full"), "{warned:?}");
    let refused = large_order(&gateway, "\"k\"", 10).await.unwrap();
    assert_eq!(refused.problem(), "capacity");
    until_logged(&gateway, "no room for new keys").await;
}

#[cfg(feature = "sqlite")]
#[test]
fn an_sqlite_file_takes_keys_again_once_there_is_room() {
    on_a_disk("24m", "sqlite_file");
}

/// On a small disk: started by the test above.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_file() {
    const BODY: usize = 100_000;
    let Some(disk) = disk() else { return };
    let shop = Arc::new(Shop::open().await);
    let store = format!(
        "sqlite:{}?reserve_bytes=1",
        disk.join("records.db").display()
    );
    let gateway = Gateway::start(shop.address, &["--store", &store]);
    until_full_and_back(&gateway, &shop, &disk, BODY).await;
}

/// Fills the disk, by orders and otherwise, and gives it back.
async fn until_full_and_back(gateway: &Gateway, shop: &Shop, disk: &Path, bytes: usize) {
    leave(disk, 2 << 20);
    let (answered, refusal) = order_until_refused(gateway, "filling", bytes, 10_000).await;
    assert!(!answered.is_empty());
    // A claim may fit where its answer does not.
    let refused = refusal.problem();
    assert!(
        refused == "capacity" || refused == "store-unavailable",
        "{refused}"
    );
    until_logged(gateway, "no room for new keys").await;
    let told = lines(gateway, "ERROR");
    assert!(
        told[0].contains("full") || told[0].contains("room"),
        "{told:?}"
    );
    // Its own question may fit where an answer does not: then it takes keys until the next is refused.
    let mut nth = 0;
    within(NOTICED, "/readyz and the metrics say it", async || {
        nth += 1;
        let key = format!("\"full-{nth}\"");
        large_order(gateway, &key, bytes).await.unwrap();
        let answer = get(gateway.admin, "/readyz").await;
        let ready = answer.text();
        (ready.contains("full") || ready.contains("room"))
            && metric(gateway, "semel_store_full").await == "1"
    })
    .await;
    let (key, first) = &answered[0];
    let again = large_order(gateway, key, bytes).await.unwrap();
    assert!(again.is_replay(), "{again:?}");
    assert_eq!(again.body, first.body);
    give_back(disk);
    healed(gateway, shop, &answered, bytes).await;
    let refused = format!("\"filling-{}\"", answered.len());
    within(HEALED, "the order that was refused", async || {
        let again = large_order(gateway, &refused, bytes).await;
        again.is_ok_and(|answer| answer.status == 201)
    })
    .await;
    assert_eq!(shop.executions()[&refused], 1);
}

#[cfg(feature = "postgres")]
#[test]
fn a_postgres_takes_keys_again_once_there_is_room() {
    on_a_disk("24m", "postgres_tablespace");
}

/// On a small disk: started by the test above.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_tablespace() {
    use semel_testkit::servers::{Postgres, Server as _};
    const BODY: usize = 100_000;
    let Some(disk) = disk() else { return };
    let server = Postgres::start(&[]).unwrap();
    let tables = disk.join("tables");
    fs::create_dir(&tables).unwrap();
    if rustix::process::geteuid().is_root() {
        let owned = Command::new("chown").arg("postgres").arg(&tables).status();
        assert!(owned.unwrap().success());
    }
    for sql in [
        format!("CREATE TABLESPACE small LOCATION '{}'", tables.display()),
        "ALTER DATABASE postgres SET default_tablespace = small".to_owned(),
    ] {
        let done = Command::new(Postgres::program("psql").unwrap())
            .args([&*server.url(), "-c", &sql])
            .status();
        assert!(done.unwrap().success());
    }
    let shop = Arc::new(Shop::open().await);
    let gateway = Gateway::start(shop.address, &["--store", &server.url()]);
    until_full_and_back(&gateway, &shop, &disk, BODY).await;
}
