//! Answers that are too large for the store, and are kept outside it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use axum::http::Method;
#[cfg(feature = "s3")]
use semel_testkit::servers::{DynamoDb, Server as _};
use serde_json::json;

use crate::operate::{lines, semel};
#[cfg(all(feature = "dynamodb", feature = "s3"))]
use crate::support::get;
use crate::support::{Answer, Gateway, Shop, eventually, order, request, send};

const CREDENTIALS: [&str; 3] = [
    "/usr/bin/env",
    "AWS_ACCESS_KEY_ID=unused",
    "AWS_SECRET_ACCESS_KEY=unused",
];

/// A gateway that may keep large answers.
fn start(shop: &Shop, flags: &[&str]) -> Gateway {
    let directory = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let flags = [flags, &["--max-body", "4MiB", "--service", "shop"]].concat();
    Gateway::start_under(&CREDENTIALS, &directory, shop.address, &flags)
}

/// An order whose answer has what it brings.
async fn place(gateway: SocketAddr, key: &str, what: &str) -> Answer {
    let fields = [("idempotency-key", key)];
    send(request(Method::POST, gateway, "/orders", &fields, what))
        .await
        .unwrap()
}

/// As JSON; it stays large when it is compressed, and is the same each time.
fn text(of: &str, bytes: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let parts = (0..bytes / 32).map(|nth| format!("{of}-{nth:010}-{:016x},", random.u64(..)));
    format!("\"{}\"", parts.collect::<String>())
}

/// The record whose key begins so.
fn id_of(admin: &str, hint: &str) -> String {
    let listed = lines(&semel(&["records", "list", "--json", "--admin", admin]));
    let has_hint = |record: &&serde_json::Value| {
        let key = record["key_hint"].as_str().unwrap();
        key.starts_with(hint)
    };
    let found = listed
        .iter()
        .find(has_hint)
        .unwrap_or_else(|| panic!("{listed:?}"));
    found["id"].as_str().unwrap().to_owned()
}

fn found(folder: &Path, text: &str) -> bool {
    let found = Command::new("grep")
        .args(["-rlaF", "-e", text])
        .arg(folder)
        .output();
    !found.unwrap().stdout.is_empty()
}

fn files_in(folder: &Path) -> Vec<String> {
    let found = Command::new("find")
        .arg(folder)
        .args(["-type", "f"])
        .output();
    let found = String::from_utf8(found.unwrap().stdout).unwrap();
    found.lines().map(str::to_owned).collect()
}

/// A folder for a store and its large answers, and the flags that name them.
struct Places {
    directory: tempfile::TempDir,
    flags: [String; 6],
}

impl Places {
    /// `store`: a URL, up to the path.
    fn new(store: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name).display().to_string();
        let (store, large) = (
            store.to_owned() + &at("records"),
            format!("file:{}", at("answers")),
        );
        let flags = [
            "--store",
            &store,
            "--large-answers",
            &large,
            "--large-answers-above",
            "1KiB",
        ];
        Self {
            flags: flags.map(str::to_owned),
            directory,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn flags<'a>(&'a self, others: &[&'a str]) -> Vec<&'a str> {
        let flags = self.flags.iter().map(String::as_str);
        flags.chain(others.iter().copied()).collect()
    }

    /// The files of the answers.
    fn objects(&self) -> Vec<String> {
        let mut found = files_in(self.path("answers").as_ref());
        found.retain(|path| !path.ends_with("/mark"));
        found
    }
}

async fn stop(mut gateway: Gateway) {
    gateway.terminate();
    assert!(gateway.ended().await.success(), "{}", gateway.log());
}

/// DynamoDB takes 400 kB: without the setting the answer is not kept, and nothing runs again either; with it
/// it is, in a bucket, for all gateways.
#[cfg(all(feature = "dynamodb", feature = "s3"))]
#[tokio::test]
async fn a_large_answer_replays_on_a_store_with_a_small_limit() {
    let server = DynamoDb::start().unwrap();
    let (store, bucket) = (server.url(), server.bucket("answers", false).unwrap());
    let bucket = bucket.replace("answers?", "answers/of/shop?");
    let shop = Shop::open().await;
    let body = text("large", 3 << 20);

    let gateway = start(&shop, &["--store", &store]);
    assert_eq!(place(gateway.address, "omitted", &body).await.status, 201);
    let again = place(gateway.address, "omitted", &body).await;
    assert!(again.body.len() < 1_000, "{again:?}");
    stop(gateway).await;

    let flags = ["--store", &store, "--large-answers", &bucket];
    let gateways = [start(&shop, &flags), start(&shop, &flags)];
    let first = place(gateways[0].address, "kept-in-a-bucket", &body).await;
    assert_eq!(first.status, 201);
    assert!(first.body.len() > 3_000_000);
    for gateway in &gateways {
        let again = place(gateway.address, "kept-in-a-bucket", &body).await;
        assert!(again.is_replay() && again.status == 201);
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("etag"), first.header("etag"));
    }
    assert_eq!(
        shop.executions(),
        [("omitted".into(), 1), ("kept-in-a-bucket".into(), 1)].into()
    );

    // Operators see it, and erase it from the bucket.
    let admin = format!("http://{}", gateways[0].admin);
    let id = id_of(&admin, "kep");
    let shown = &lines(&semel(&[
        "records", "show", &id, "--json", "--admin", &admin,
    ]))[0];
    assert_eq!(shown["outcome"]["status"], 201);
    assert_eq!(shown["outcome"]["body_bytes"], first.body.len());
    let listed = async || {
        let listed = get(server.address(), "/answers?list-type=2").await;
        listed.text().matches("<Key>").count()
    };
    // One of them is the mark.
    assert_eq!(listed().await, 2);
    let erase = [
        "records", "erase", &id, "--yes", "--reason", "asked", "--admin", &admin,
    ];
    assert!(semel(&erase).status.success());
    assert_eq!(listed().await, 1);
    assert_eq!(
        place(gateways[1].address, "kept-in-a-bucket", &body)
            .await
            .problem(),
        "expired"
    );
    assert_eq!(shop.placed(), 2);
}

/// In a folder: encrypted where the store is, written anew under another key, and erased by scope.
#[tokio::test]
async fn objects_are_encrypted_and_erased_as_records_are() {
    let places = Places::new("file:");
    let at = |name: &str| places.directory.path().join(name);
    let lines_of_keys = [
        "old AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "new //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=",
    ];
    std::fs::write(at("old"), lines_of_keys[0]).unwrap();
    std::fs::write(at("both"), [lines_of_keys[1], lines_of_keys[0]].join("\n")).unwrap();
    std::fs::write(at("new"), lines_of_keys[1]).unwrap();
    let shop = Shop::open().await;
    let with = |keys: Option<&str>| {
        let keys = keys.map(|name| places.path(name));
        let mut flags = places.flags(&["--scope-header", "x-account"]);
        if let Some(keys) = &keys {
            flags.extend(["--encryption-keys", keys]);
        }
        start(&shop, &flags)
    };
    let send_as = async |gateway: &Gateway, account: &str, key: &str| {
        let fields = [("idempotency-key", key), ("x-account", account)];
        let body = text(account, 64 << 10);
        let request = request(Method::POST, gateway.address, "/orders", &fields, &body);
        send(request).await.unwrap()
    };
    let gateway = with(None);
    let plain = send_as(&gateway, "bob", "plain").await;
    assert!(found(&at("answers"), "bob-0000000007"));
    assert!(!found(&at("records"), "bob-0000000007"));
    stop(gateway).await;

    let gateway = with(Some("old"));
    for account in ["ada", "bob"] {
        assert_eq!(send_as(&gateway, account, "sealed").await.status, 201);
    }
    assert!(!found(places.directory.path(), "ada-0000000007"));
    stop(gateway).await;

    // All of them are under the new key afterwards. The objects before stay for a day.
    let gateway = with(Some("both"));
    let admin = format!("http://{}", gateway.admin);
    let again = [
        "records",
        "reencrypt",
        "--reason",
        "rotation",
        "--yes",
        "--json",
        "--admin",
        &admin,
    ];
    assert_eq!(lines(&semel(&again))[0]["records"], 3);
    assert_eq!(places.objects().len(), 6);
    stop(gateway).await;
    let gateway = with(Some("new"));
    let replayed = send_as(&gateway, "bob", "plain").await;
    assert!(replayed.is_replay());
    assert_eq!(replayed.body, plain.body);
    assert!(send_as(&gateway, "ada", "sealed").await.is_replay());

    let admin = format!("http://{}", gateway.admin);
    let listed = lines(&semel(&["records", "list", "--json", "--admin", &admin]));
    let of_ada = listed.iter().find(|record| {
        let scope = record["scope"].as_array().unwrap();
        scope.contains(&json!("ada"))
    });
    let scope: Vec<_> = of_ada.unwrap()["scope"].as_array().unwrap().clone();
    let mut erase = vec![
        "records", "erase", "--yes", "--json", "--admin", &admin, "--reason", "asked",
    ];
    for segment in &scope {
        erase.extend(["--scope", segment.as_str().unwrap()]);
    }
    assert_eq!(lines(&semel(&erase))[0]["records"], 1);
    assert_eq!(places.objects().len(), 4);
    assert_eq!(
        send_as(&gateway, "ada", "sealed").await.problem(),
        "expired"
    );
    assert!(send_as(&gateway, "bob", "sealed").await.is_replay());
    assert_eq!(shop.placed(), 3);
    stop(gateway).await;
}

/// Refused with what is known of it, shown, and erased; nothing runs again. So where a gateway is not told
/// where large answers are.
#[tokio::test]
async fn a_lost_object_is_told_and_nothing_runs_again() {
    let places = Places::new("file:");
    let (shop, flags) = (Shop::open().await, places.flags(&[]));
    let gateway = start(&shop, &flags);
    let body = text("lost", 8 << 10);
    let first = place(gateway.address, "lost-object", &body).await;
    assert_eq!(first.status, 201);
    let id = id_of(&format!("http://{}", gateway.admin), "los");
    stop(gateway).await;
    let refused = async |gateway: &Gateway, told: &str| {
        let answer = place(gateway.address, "lost-object", &body).await;
        assert_eq!(
            (answer.status.as_u16(), &*answer.problem()),
            (503, "store-unavailable")
        );
        eventually("the log", async || {
            gateway.log().contains(told).then_some(())
        })
        .await;
        // Others are served.
        let other = format!("other-{}", told.len());
        assert_eq!(order(gateway.address, &other).await.status, 201);
    };
    let gateway = start(&shop, &flags[..2]);
    refused(&gateway, "kept as an object outside the store").await;
    let admin = format!("http://{}", gateway.admin);
    let erase = |of: &[&str], admin: &str| {
        let order = [
            "records", "erase", "--yes", "--reason", "gone", "--admin", admin,
        ];
        semel(&[&order, of].concat())
    };
    // It would say that it is done, and leave the object.
    let unreached = erase(&[&id], &admin);
    let told = String::from_utf8(unreached.stderr).unwrap();
    assert_eq!(unreached.status.code(), Some(1), "{told}");
    assert!(told.contains("--large-answers"), "{told}");
    stop(gateway).await;

    // Missing altogether, they are somewhere else.
    let [answers, elsewhere] = ["answers", "elsewhere"].map(|name| places.path(name));
    std::fs::rename(&answers, &elsewhere).unwrap();
    for is_there in [false, true] {
        let check = [&["check", "--upstream", "http://127.0.0.1:9"], &flags[..]].concat();
        let told = String::from_utf8(semel(&check).stderr).unwrap();
        let why = ["this store has large answers in it", "Is it mounted"][usize::from(is_there)];
        assert!(
            told.contains("--large-answers: ") && told.contains(why),
            "{told}"
        );
        assert_eq!(Path::new(&answers).exists(), is_there);
        if !is_there {
            std::fs::create_dir(&answers).unwrap();
        }
    }
    std::fs::remove_dir(&answers).unwrap();
    std::fs::rename(&elsewhere, &answers).unwrap();
    for object in places.objects() {
        std::fs::remove_file(object).unwrap();
    }
    let gateway = start(&shop, &flags);
    refused(&gateway, "which cannot be read").await;
    let admin = format!("http://{}", gateway.admin);
    let shown = &lines(&semel(&[
        "records", "show", &id, "--json", "--admin", &admin,
    ]))[0];
    assert_eq!(
        (&shown["state"], &shown["outcome"]["status"]),
        (&json!("completed"), &json!(201))
    );
    let reveal = [
        "records", "show", &id, "--reveal", "--reason", "looking", "--admin", &admin,
    ];
    let reveal = semel(&reveal);
    let told = String::from_utf8(reveal.stderr).unwrap();
    assert_eq!(reveal.status.code(), Some(1), "{told}");
    assert!(told.contains("cannot be read from there"), "{told}");
    assert!(erase(&[&id], &admin).status.success());
    assert_eq!(
        place(gateway.address, "lost-object", &body).await.problem(),
        "expired"
    );
    assert_eq!(shop.executions()["lost-object"], 1);
    stop(gateway).await;
}

/// What nobody needs any more goes when an operator purges.
#[tokio::test]
async fn a_purge_takes_the_objects_of_what_is_past_its_retention() {
    let places = Places::new("sqlite:");
    let shop = Shop::open().await;
    let gateway = start(&shop, &places.flags(&["--ttl", "1s"]));
    assert_eq!(
        place(gateway.address, "k", &text("k", 8 << 10))
            .await
            .status,
        201
    );
    let [object] = &places.objects()[..] else {
        panic!("{:?}", places.objects());
    };
    let admin = format!("http://{}", gateway.admin);
    let purge = [
        "records", "purge", "--yes", "--json", "--reason", "tidy", "--admin", &admin,
    ];
    eventually("the end of its retention", async || {
        let listed = lines(&semel(&["records", "list", "--json", "--admin", &admin]));
        listed.is_empty().then_some(())
    })
    .await;
    assert!(semel(&purge).status.success());
    // It is not a day old.
    assert_eq!(places.objects().len(), 1);
    let touched = Command::new("touch")
        .args(["-d", "2 days ago", object])
        .status();
    assert!(touched.unwrap().success());
    assert!(semel(&purge).status.success());
    assert_eq!(places.objects(), [""; 0]);

    // A sweep that cannot be made does not hide what was purged.
    for mark in files_in(places.path("answers").as_ref()) {
        std::fs::remove_file(mark).unwrap();
    }
    let told = String::from_utf8(semel(&purge).stderr).unwrap();
    assert!(
        told.contains("0 records were removed, and not all"),
        "{told}"
    );
    assert!(told.contains("Is it mounted"), "{told}");
    stop(gateway).await;
}

/// It is nobody's operation: a gateway that is not told of large answers neither shows nor changes it.
#[tokio::test]
async fn the_record_of_where_they_are_is_left_alone() {
    let places = Places::new("file:");
    let (shop, flags, keys) = (Shop::open().await, places.flags(&[]), places.path("keys"));
    let line = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    std::fs::write(&keys, line).unwrap();
    let gateway = start(&shop, &flags);
    eventually("the mark", async || {
        (files_in(places.path("answers").as_ref()).len() == 1).then_some(())
    })
    .await;
    assert_eq!(order(gateway.address, "small").await.status, 201);
    stop(gateway).await;

    let sealing = ["--encryption-keys", &keys];
    let gateway = start(&shop, &[&flags[..2], &sealing].concat());
    let admin = format!("http://{}", gateway.admin);
    let listed = lines(&semel(&["records", "list", "--json", "--admin", &admin]));
    assert_eq!(listed.len(), 1, "{listed:?}");
    let many = |what: &[&str]| {
        let because = ["--yes", "--json", "--reason", "asked", "--admin", &admin];
        let done = semel(&[&["records"], what, &because].concat());
        lines(&done)[0]["records"].clone()
    };
    assert_eq!(many(&["reencrypt"]), 1);
    assert_eq!(many(&["erase", "--scope", "semel"]), 0);
    stop(gateway).await;

    let gateway = start(&shop, &[&flags[..], &sealing].concat());
    let body = text("large", 8 << 10);
    assert_eq!(place(gateway.address, "large", &body).await.status, 201);
    assert!(place(gateway.address, "large", &body).await.is_replay());
    stop(gateway).await;
}

/// A job's output, on a store itself.
#[test]
fn the_output_of_a_job_is_kept_outside_its_store() {
    let places = Places::new("sqlite:");
    let script = format!("echo ran >> {}; seq 1 20000", places.path("effects"));
    let run = || {
        let job = ["--key", "k", "--", "/bin/sh", "-c", &script];
        semel(&[&["run"], &places.flags(&job)[..]].concat())
    };
    let (first, again) = (run(), run());
    assert!(first.status.success(), "{first:?}");
    assert_eq!(first.stdout, again.stdout);
    assert_eq!(
        std::fs::read_to_string(places.path("effects")).unwrap(),
        "ran\n"
    );
    assert!(found(Path::new(&places.path("answers")), "19999"));
}

/// A way to a server that speaks S3 on which answers to uploads do not say which version was made.
#[cfg(feature = "s3")]
fn hushed(server: SocketAddr) -> SocketAddr {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    fn pass(mut client: &TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let mut reader = BufReader::new(client);
        let (mut head, mut length) = (String::new(), 0);
        while reader.read_line(&mut head)? > 2 {
            let line = head.lines().last().unwrap_or_default().to_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let head = head.trim_end().to_owned() + "\r\nconnection: close\r\n\r\n";
        let mut server = TcpStream::connect(server)?;
        server.write_all(&[head.as_bytes(), &body].concat())?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
        let (head, rest) = answer.split_at(end.unwrap_or_default());
        let head = String::from_utf8_lossy(head).replace("x-amz-version-id", "x-hushed");
        let head = head + "\r\nconnection: close";
        client.write_all(&[head.as_bytes(), rest].concat())
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            pass(&client, server).ok();
        }
    });
    address
}

/// Told before anything is served, with the setting's name, and nothing that may be a password.
#[tokio::test]
async fn a_place_that_cannot_be_used_is_told_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("taken"), "").unwrap();
    let store = format!("sqlite:{}", path("records.db"));
    let check = |large: &str| -> Output {
        Command::new(env!("CARGO_BIN_EXE_semel"))
            .args([
                "check",
                "--upstream",
                "http://127.0.0.1:9",
                "--store",
                &store,
            ])
            .args(["--large-answers", large])
            .env_clear()
            .envs([
                ("AWS_ACCESS_KEY_ID", "unused"),
                ("AWS_SECRET_ACCESS_KEY", "unused"),
            ])
            .output()
            .unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    // Nothing is made.
    let fresh = check(&format!("file:{}", path("answers")));
    assert!(fresh.status.success(), "{fresh:?}");
    assert!(text(&fresh.stdout).contains("is not there yet; `semel serve` makes it"));
    assert!(!Path::new(&path("answers")).exists());
    std::fs::create_dir(path("answers")).unwrap();
    let there = text(&check(&format!("file:{}", path("answers"))).stdout);
    assert!(
        there.contains("answers above 256.0 KiB are in `file:"),
        "{there}"
    );

    let taken = format!("file:{}", path("taken"));
    let mut wrong = vec![
        (taken, "cannot be made: File exists"),
        ("gs://answers".to_owned(), "it has to be `file:FOLDER`"),
        ("answers".to_owned(), "it has to be `file:FOLDER`"),
    ];
    #[cfg(feature = "s3")]
    let server = {
        let server = DynamoDb::start().unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let versions = server.bucket("versions", true).unwrap();
        let absent = versions.replace("versions", "absent");
        let hushed = hushed(server.address());
        let hushed = versions.replace(&server.address().to_string(), &hushed.to_string());
        let nobody = format!("s3://answers?endpoint=http://{closed}");
        let key = "s3://key:hunter2@answers".to_owned();
        wrong.push((versions, "take a bucket without versioning"));
        wrong.push((hushed, "take a bucket without versioning"));
        wrong.push((absent, "an object cannot be written"));
        wrong.push((nobody, "an object cannot be written"));
        wrong.push((key, "credentials come from the environment"));
        wrong.push(("s3://answers?hunter2".to_owned(), "no such parameter"));
        server
    };
    #[cfg(not(feature = "s3"))]
    wrong.push(("s3://answers".to_owned(), "needs the feature"));
    for (large, why) in wrong {
        let output = check(&large);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{large}: {told}");
        assert!(
            told.contains("--large-answers: ") && told.contains(why),
            "{large}: {told}"
        );
        assert!(!told.contains("hunter2") && !text(&output.stdout).contains("hunter2"));
    }
    #[cfg(feature = "s3")]
    drop(server);
}
