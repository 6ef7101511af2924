//! What lies in the files of a store, who can read it, and what holds while keys are rotated.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::Method;
use semel_testkit::servers::{Postgres, Server as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::operate::{lines, lose, semel};
use crate::support::{
    Answer, Gateway, Reaction, Script, Shop, eventually, order, order_with, request,
};

const GONE: &str = "gone BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
const OLD: &str = "old AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";
const SECRETS: [&str; 4] = ["body-of-4711", "field-of-4711", "key-of-4", "card-of-4711"];
const PLACED: Reaction = Reaction::Send(
    "HTTP/1.1 201 Created\r\ncontent-type: text/plain\r\nx-part: field-of-4711\r\ncontent-length: 12\r\n\r\nbody-of-4711",
);

/// A file with these keys, as a flag.
fn file(directory: &Path, name: &str, lines: &[&str]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path.display().to_string()
}

/// A store, and the directory that has all its files.
struct Place {
    url: String,
    files: PathBuf,
    // Ends with this.
    _server: Option<Postgres>,
}

fn places(directory: &Path) -> Vec<Place> {
    let own = |name: &str, url: String| Place {
        url,
        files: directory.join(name),
        _server: None,
    };
    for name in ["file", "sqlite"] {
        std::fs::create_dir(directory.join(name)).unwrap();
    }
    let postgres = Postgres::start(&[]).unwrap();
    let at = |path: &str| directory.join(path).display().to_string();
    vec![
        own("file", format!("file:{}", at("file/records"))),
        own("sqlite", format!("sqlite:{}", at("sqlite/records.db"))),
        Place {
            url: postgres.url(),
            files: postgres.folder(),
            _server: Some(postgres),
        },
    ]
}

/// Which of the texts are in a file below the directory, as they are or as hexadecimal digits.
fn found(directory: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts {
        let hex = hex::encode(text);
        let mut search = Command::new("grep");
        search
            .args(["-rlaF", "-e", text, "-e", &hex])
            .arg(directory);
        let files = String::from_utf8(search.output().unwrap().stdout).unwrap();
        found.extend(files.lines().map(|file| format!("{text} in {file}")));
    }
    found
}

fn flags<'a>(store: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let note = ["--note", "header:x-card", "--service", "shop"];
    [&["--store", store], &note[..], more].concat()
}

async fn stop(mut gateway: Gateway) {
    gateway.terminate();
    assert!(gateway.ended().await.success(), "{}", gateway.log());
}

/// Completed, replayed and lost requests: of their bodies, fields, notes and keys nothing is in the files;
/// without keys, all of it is, but for the key.
#[tokio::test]
async fn the_files_of_a_store_say_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let keys = file(directory.path(), "keys", &[OLD]);
    let secrets = file(directory.path(), "secrets", &[NEW]);
    for place in places(directory.path()) {
        let upstream = Script::start(PLACED).await;
        let sealed = ["--encryption-keys", &keys, "--identity-keys", &secrets];
        let gateway = Gateway::start(upstream.address, &flags(&place.url, &sealed));
        let send = async |gateway: &Gateway, key: &str| {
            let fields = [("idempotency-key", key), ("x-card", "card-of-4711")];
            order_with(gateway.address, &fields).await
        };
        for key in ["key-of-4711", "key-of-4712"] {
            assert_eq!(send(&gateway, key).await.status, 201);
            let replayed = send(&gateway, key).await;
            assert!(replayed.is_replay());
            assert_eq!(replayed.text(), "body-of-4711");
            assert_eq!(replayed.header("x-part"), Some("field-of-4711"));
        }
        let lost = lose(&upstream, &gateway, "key-of-4713").await;
        // Who may look finds it, with the start of its key.
        let admin = format!("http://{}", gateway.admin);
        let shown = &lines(&semel(&[
            "records", "show", &lost, "--json", "--admin", &admin,
        ]))[0];
        assert_eq!(shown["key_hint"], "key-o");
        stop(gateway).await;
        assert_eq!(found(&place.files, &SECRETS), [""; 0], "{}", place.url);

        // That the search finds what is there.
        upstream.react(PLACED);
        let gateway = Gateway::start(upstream.address, &flags(&place.url, &[]));
        assert_eq!(send(&gateway, "key-of-4721-to-be-seen").await.status, 201);
        stop(gateway).await;
        let seen = found(&place.files, &SECRETS);
        for secret in SECRETS {
            let sees = |line: &String| line.starts_with(secret);
            assert!(seen.iter().any(sees), "{secret} {}: {seen:?}", place.url);
        }
    }
}

/// What the key sealed is an error that operators can read, and does not run again.
#[tokio::test]
async fn a_lost_key_is_told_and_nothing_runs_again() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (
        file(directory.path(), "old", &[OLD]),
        file(directory.path(), "new", &[NEW]),
    );
    for place in places(directory.path()) {
        let shop = Shop::open().await;
        let first = Gateway::start(
            shop.address,
            &flags(&place.url, &["--encryption-keys", &old]),
        );
        assert_eq!(order(first.address, "lost").await.status, 201);
        let admin = format!("http://{}", first.admin);
        let listed = lines(&semel(&["records", "list", "--json", "--admin", &admin]));
        let id = listed[0]["id"].as_str().unwrap();
        stop(first).await;
        for keys in [&["--encryption-keys", &new][..], &[]] {
            let gateway = Gateway::start(shop.address, &flags(&place.url, keys));
            let refused = order(gateway.address, "lost").await;
            assert_eq!(
                (refused.status.as_u16(), &*refused.problem()),
                (503, "store-unavailable")
            );
            assert_eq!(shop.executions()["lost"], 1, "{}", place.url);
            // Others are served.
            let other = format!("other-{}", keys.len());
            assert_eq!(order(gateway.address, &other).await.status, 201);
            let admin = format!("http://{}", gateway.admin);
            let list = semel(&["records", "list", "--json", "--admin", &admin]);
            let records = lines(&list);
            assert!(
                records.iter().any(|r| r["state"] == "completed"),
                "{records:?}"
            );
            let told = "encrypted with the key `old`";
            eventually("the log", async || {
                gateway.log().contains(told).then_some(())
            })
            .await;
            // Whoever looks at it is told why there is nothing to see.
            let show = ["records", "show", id, "--admin", &admin];
            let with = |more: &[&str]| {
                let output = semel(&[&show[..], more].concat());
                String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
            };
            let reveal = ["--reveal", "--reason", "to see"];
            let page = format!("/records/{id}");
            let page = request(Method::GET, gateway.admin, &page, &[], "");
            let page = crate::support::send(page).await.unwrap();
            let (text, json) = (with(&[]), with(&["--json"]));
            for shown in [&*text, &json, &with(&reveal), page.text()] {
                assert!(shown.contains(told), "{shown}");
            }
            let json: Value = serde_json::from_str(&json).unwrap();
            assert!(json["outcome"]["unreadable"].is_string(), "{json}");
            assert!(!text.contains("Shows the whole answer"));
            stop(gateway).await;
        }
        let both = file(directory.path(), "both", &[NEW, OLD]);
        let gateway = Gateway::start(
            shop.address,
            &flags(&place.url, &["--encryption-keys", &both]),
        );
        assert!(order(gateway.address, "lost").await.is_replay());
        stop(gateway).await;
    }
}

/// What its client was not told of is sent again to a gateway where another key is first. One that has not the
/// key says which it is, and keeps nothing behind what it cannot read.
#[tokio::test]
async fn a_completion_is_known_whichever_key_is_first() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let shop = Shop::open().await;
    let start = |name: &str, lines: &[&str]| {
        let keys = file(directory.path(), name, lines);
        Gateway::start(shop.address, &flags(&store, &["--encryption-keys", &keys]))
    };
    let ask = async |method: Method, gateway: &Gateway, path: &str, body: Value| {
        let json = [("content-type", "application/json")];
        let request = request(method, gateway.admin, path, &json, &body.to_string());
        crate::support::send(request).await.unwrap()
    };
    let (old, new) = (start("old", &[OLD, NEW]), start("new", &[NEW, OLD]));
    let mut claims = Vec::new();
    for key in ["done", "begun"] {
        let claim = json!({"operation": "job", "key": key});
        let claimed = ask(Method::POST, &old, "/v1/claims", claim).await;
        let claimed: Value = serde_json::from_str(claimed.text()).unwrap();
        let path = format!("/v1/claims/{}", claimed["id"].as_str().unwrap());
        claims.push((path, claimed["token"].clone(), claimed["id"].clone()));
    }
    let (done, token, id) = &claims[0];
    let complete = json!({"token": token, "outcome": {"text": "paid"}});
    for gateway in [&old, &new, &old] {
        let path = format!("{done}/complete");
        let done = ask(Method::POST, gateway, &path, complete.clone()).await;
        assert_eq!(done.status, 200, "{}", done.text());
    }
    let (begun, token, _) = &claims[1];
    let (path, step) = (
        format!("{begun}/steps"),
        |name: &str| json!({"token": token, "name": name}),
    );
    let kept = ask(Method::POST, &old, &path, step("charge")).await;
    assert_eq!(kept.status, 200, "{}", kept.text());
    let reveal = format!("/api/v1/records/{}/reveal", id.as_str().unwrap());
    let revealed = ask(Method::POST, &old, &reveal, json!({"reason": "to see"})).await;
    assert_eq!(revealed.status, 200, "{}", revealed.text());

    let without = start("without", &[NEW]);
    let told = "encrypted with the key `old`";
    for (method, path, body) in [
        (Method::GET, done, json!({})),
        (Method::GET, begun, json!({})),
        (Method::POST, &path, step("ship")),
    ] {
        let refused = ask(method, &without, path, body).await;
        assert_eq!(refused.problem(), "store-unavailable", "{path}");
        assert!(refused.text().contains(told), "{}", refused.text());
    }
    for path in [
        begun.replace("/v1/claims", "/api/v1/records"),
        "/api/v1/audit".to_owned(),
    ] {
        let shown = ask(Method::GET, &without, &path, json!({})).await;
        assert!(shown.text().contains(told), "{}", shown.text());
    }
    for gateway in [old, new, without] {
        stop(gateway).await;
    }
}

/// Sends each key to all of the gateways at once, until one says it is done, and then once more to each.
async fn load(gateways: &[&Gateway], keys: impl Iterator<Item = String>) -> Vec<(String, Answer)> {
    let mut tasks = JoinSet::new();
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.address).collect();
    let room = Arc::new(tokio::sync::Semaphore::new(8));
    for key in keys {
        let (addresses, room) = (addresses.clone(), room.clone());
        tasks.spawn(async move {
            let _room = room.acquire().await.unwrap();
            let mut racing = JoinSet::new();
            for address in [&addresses[..], &addresses].concat() {
                let key = key.clone();
                racing.spawn(async move {
                    eventually("an answer", async || {
                        let answer = order(address, &key).await;
                        match answer.status.as_u16() {
                            201 => Some(answer),
                            409 if answer.problem() == "in-flight" => None,
                            _ => panic!("{answer:?}"),
                        }
                    })
                    .await
                });
            }
            let answers = racing.join_all().await;
            for answer in &answers {
                assert_eq!(answer.body, answers[0].body, "{key}");
            }
            (key, answers.into_iter().next().unwrap())
        });
    }
    tasks.join_all().await
}

async fn replayed(gateways: &[&Gateway], answers: &[(String, Answer)]) {
    for (key, answer) in answers {
        for gateway in gateways {
            let again = order(gateway.address, key).await;
            assert!(again.is_replay(), "{key}: {again:?}");
            assert_eq!(again.body, answer.body, "{key}");
        }
    }
}

/// Gateways with the lists before and after each step of a rotation serve the same keys at the same time:
/// each runs once, and all that was answered is replayed by both.
async fn rotated(store: &str, setting: &str, directory: &Path, steps: &[&[&str]]) {
    let shop = Shop::open().await;
    let start = |nth: usize, lines: &[&str]| {
        let keys = file(directory, &format!("step-{nth}"), lines);
        let flag = [format!("--{setting}"), keys];
        let flag = flag.each_ref().map(String::as_str);
        Gateway::start(shop.address, &flags(store, &flag))
    };
    let mut answers = Vec::new();
    let mut before = start(0, steps[0]);
    for (nth, lines) in steps.iter().enumerate().skip(1) {
        let after = start(nth, lines);
        let both = [&before, &after];
        let port = shop.address.port();
        let keys = (0..16).map(|key| format!("{setting}-{port}-{nth}-{key}"));
        // What is done while it is replayed.
        let (done, ()) = tokio::join!(load(&both, keys), replayed(&both, &answers));
        answers.extend(done);
        assert_eq!(shop.placed(), answers.len(), "{setting} {nth}");
        replayed(&both, &answers).await;
        before = after;
    }
    assert!(shop.executions().values().all(|times| *times == 1));
}

fn shared_places(directory: &Path) -> Vec<Place> {
    let mut places = places(directory);
    // A file store is open in one process.
    places.retain(|place| !place.url.starts_with("file:"));
    places
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_answers_are_rotated_under_load() {
    let directory = tempfile::tempdir().unwrap();
    for place in shared_places(directory.path()) {
        // One that only reads what it did not seal comes first.
        let steps: [&[&str]; 3] = [&[OLD], &[OLD, NEW], &[NEW, OLD]];
        rotated(&place.url, "encryption-keys", directory.path(), &steps).await;
    }
}

/// A client that sends one new order after the other to both gateways at once, wherever they are now,
/// until each has it, and then once more to each. How many it has done.
async fn order_on(nth: usize, at: watch::Receiver<[SocketAddr; 2]>, done: Arc<AtomicUsize>) {
    for order in 0.. {
        let key = format!("client-{nth}-order-{order}");
        let placed = async |gateway: usize| {
            eventually("an answer", async || {
                let address = at.borrow()[gateway];
                let fields = [("idempotency-key", &*key)];
                let request = request(Method::POST, address, "/orders", &fields, "{}");
                // One that stops does not answer.
                let answer = crate::support::send(request).await.ok()?;
                match answer.status.as_u16() {
                    201 => Some(answer),
                    409 if answer.problem() == "in-flight" => None,
                    _ => panic!("{key}: {answer:?}"),
                }
            })
            .await
        };
        let (one, other) = tokio::join!(placed(0), placed(1));
        assert_eq!(one.body, other.body, "{key}");
        for gateway in [0, 1] {
            let again = placed(gateway).await;
            assert!(
                again.is_replay() && again.body == one.body,
                "{key}: {again:?}"
            );
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Two gateways are restarted, one after the other, with each list of a rotation, while clients go on: each
/// order is placed once, and replayed by both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_of_identities_are_rotated_under_load() {
    let directory = tempfile::tempdir().unwrap();
    for place in shared_places(directory.path()) {
        let shop = Shop::open().await;
        let start = |lines: &[&str]| {
            let keys = file(directory.path(), "rotated", lines);
            Gateway::start(
                shop.address,
                &flags(&place.url, &["--identity-keys", &keys]),
            )
        };
        let mut gateways = [start(&["plain"]), start(&["plain"])];
        let (told, at) = watch::channel(gateways.each_ref().map(|gateway| gateway.address));
        let done: Vec<Arc<AtomicUsize>> = (0..3).map(|_| Arc::default()).collect();
        let mut clients = JoinSet::new();
        for (nth, done) in done.iter().enumerate() {
            clients.spawn(order_on(nth, at.clone(), done.clone()));
        }
        let steps: [&[&str]; 6] = [
            &["plain", OLD],
            &[OLD, "plain"],
            &[OLD],
            &[OLD, NEW],
            &[NEW, OLD],
            &[NEW],
        ];
        for lines in steps {
            // What was begun before the last step is done: nothing is asked for that was made before it.
            for done in &done {
                let before = done.load(Ordering::SeqCst);
                eventually("orders", async || {
                    (done.load(Ordering::SeqCst) > before + 2).then_some(())
                })
                .await;
            }
            for (nth, gateway) in gateways.iter_mut().enumerate() {
                let before = std::mem::replace(gateway, start(lines));
                told.send_modify(|at| at[nth] = gateway.address);
                stop(before).await;
            }
        }
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
        clients.shutdown().await;
        assert!(
            shop.executions().values().all(|times| *times == 1),
            "{}",
            place.url
        );
        let orders: usize = done.iter().map(|done| done.load(Ordering::SeqCst)).sum();
        assert!(shop.placed() >= orders && orders >= 3 * 2 * steps.len());
    }
}

/// Keys come from a variable or a command as well; what is wrong is told before anything is opened.
#[tokio::test]
async fn keys_come_from_where_they_are_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let keys = file(directory.path(), "keys", &[NEW, OLD]);
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let shop = Shop::open().await;
    let command = format!("exec:cat {keys}");
    let gateway = Gateway::start(
        shop.address,
        &flags(&store, &["--encryption-keys", &command]),
    );
    assert_eq!(order(gateway.address, "k").await.status, 201);
    assert!(
        gateway
            .log()
            .contains("encrypted with the key `new`; `old` too are read")
    );
    stop(gateway).await;
    let check = |keys: &str| {
        let upstream = format!("http://{}", shop.address);
        let output = semel(&[
            "check",
            "--upstream",
            &upstream,
            "--store",
            &store,
            "--encryption-keys",
            keys,
        ]);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(check(&keys).0, Some(0));
    let wrong = file(directory.path(), "wrong", &[OLD, "new c2hvcnQ="]);
    for (keys, why) in [
        (
            "env:NO_SUCH_KEYS",
            "--encryption-keys: the variable `NO_SUCH_KEYS`: environment variable not found",
        ),
        (
            "exec:false",
            "the command `false`: ended with exit status: 1",
        ),
        (&*wrong, "line 2: expected a name of 1 to 8 letters"),
        ("env:", "does not say which variable"),
    ] {
        let (code, told) = check(keys);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(why) && !told.contains("c2hvcnQ"), "{told}");
    }
    // Arguments may be secrets.
    let check = ["check", "--no-open", "--upstream", "http://localhost:9"];
    let sources = ["--encryption-keys", &command, "--identity-keys", &command];
    let shown = String::from_utf8(semel(&[&check[..], &sources].concat()).stdout).unwrap();
    assert_eq!(shown.matches("exec:cat …").count(), 2, "{shown}");
    assert!(!shown.contains(&keys), "{shown}");
    // The same records, on the store itself.
    let shown = semel(&[
        "records",
        "list",
        "--json",
        "--store",
        &store,
        "--encryption-keys",
        &keys,
    ]);
    assert_eq!(lines(&shown)[0]["state"], "completed");
}

/// After a scope is erased no byte of its answers is in the files, retries are told so, and the log says who
/// did it and why. Others' answers are there still.
#[tokio::test]
async fn erased_answers_leave_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut places = places(directory.path());
    places.retain(|place| !place.url.starts_with("postgres"));
    for place in places {
        // The body is what the request brings.
        let shop = Shop::open().await;
        let flags = ["--store", &place.url, "--scope-header", "x-account"];
        let gateway = Gateway::start(shop.address, &flags);
        let send = async |account: &str, nth: usize| {
            let key = format!("order-{nth}");
            let fields = [("x-account", account), ("idempotency-key", &key)];
            // Some answers are long: they have pages of their own.
            let body = format!("\"by-{account}-{nth:03} {}\"", "x".repeat(nth * 300));
            let request = request(Method::POST, gateway.address, "/orders", &fields, &body);
            crate::support::send(request).await.unwrap()
        };
        for nth in 0..60 {
            for account in ["ada", "bob"] {
                assert_eq!(send(account, nth).await.status, 201);
            }
        }
        let answers = ["by-ada-0", "by-bob-0"];
        let seen = found(&place.files, &answers);
        assert!(
            answers
                .iter()
                .all(|a| seen.iter().any(|line| line.starts_with(a))),
            "{seen:?}"
        );

        let admin = format!("http://{}", gateway.admin);
        let listed = lines(&semel(&["records", "list", "--json", "--admin", &admin]));
        let of_ada = listed
            .iter()
            .map(|record| record["scope"].as_array().unwrap());
        let of_ada = of_ada.map(|scope| {
            scope
                .iter()
                .map(|s| s.as_str().unwrap())
                .collect::<Vec<_>>()
        });
        let scope = of_ada
            .into_iter()
            .find(|scope| scope.contains(&"ada"))
            .unwrap();
        let mut erase = vec!["records", "erase", "--yes", "--json", "--admin", &admin];
        erase.extend(["--reason", "asked by Ada"]);
        scope
            .iter()
            .for_each(|segment| erase.extend(["--scope", segment]));
        assert_eq!(lines(&semel(&erase))[0]["records"], 60);

        let left = found(&place.files, &answers[..1]);
        assert_eq!(left, [""; 0], "{}", place.url);
        assert!(!found(&place.files, &answers[1..]).is_empty());
        for nth in [0, 7, 59] {
            assert_eq!(send("ada", nth).await.problem(), "expired");
            assert!(send("bob", nth).await.is_replay());
        }
        let log = lines(&semel(&["audit", "--json", "--admin", &admin]));
        assert_eq!(
            (&log[0]["action"], &log[0]["reason"], &log[0]["result"]),
            (
                &json!("erase-scope"),
                &json!("asked by Ada"),
                &json!("done")
            )
        );
        assert!(log[0]["by"].as_str().is_some_and(|by| !by.is_empty()));
        stop(gateway).await;
        // And after what happens at the end.
        assert_eq!(found(&place.files, &answers[..1]), [""; 0], "{}", place.url);
    }
}

/// Afterwards the old key is needed for nothing but what is still open, and what was kept without a key is
/// encrypted. An answer whose key is lost holds nothing up.
#[tokio::test]
async fn answers_are_encrypted_anew() {
    let directory = tempfile::tempdir().unwrap();
    let keys = |name: &str, lines: &[&str]| file(directory.path(), name, lines);
    let (gone, old, both, new) = (
        keys("gone", &[GONE]),
        keys("old", &[OLD]),
        keys("both", &[NEW, OLD]),
        keys("new", &[NEW]),
    );
    for place in places(directory.path()) {
        let upstream = Script::start(PLACED).await;
        let start = |keys: &[&str]| Gateway::start(upstream.address, &flags(&place.url, keys));
        for (keys, key) in [
            (&["--encryption-keys", &*gone][..], "lost"),
            (&[], "plain"),
            (&["--encryption-keys", &old], "sealed"),
        ] {
            let gateway = start(keys);
            assert_eq!(order(gateway.address, key).await.status, 201);
            stop(gateway).await;
        }
        let gateway = start(&["--encryption-keys", &both]);
        let admin = format!("http://{}", gateway.admin);
        let again = [
            "records",
            "reencrypt",
            "--reason",
            "rotation",
            "--yes",
            "--json",
        ];
        let again = [&again[..], &["--admin", &admin]].concat();
        let done = &lines(&semel(&again))[0];
        assert_eq!(
            (&done["records"], &done["left"]),
            (&json!(2), &json!(1)),
            "{}",
            place.url
        );
        // Only what the audit log has of it, which was written after it was looked at, or not at all.
        let done = &lines(&semel(&again))[0];
        assert_eq!(done["records"], 0, "{}", place.url);
        stop(gateway).await;
        let gateway = start(&["--encryption-keys", &new]);
        for key in ["plain", "sealed"] {
            let replayed = order(gateway.address, key).await;
            assert!(replayed.is_replay(), "{key}: {replayed:?}");
            assert_eq!(replayed.text(), "body-of-4711");
        }
        let admin = format!("http://{}", gateway.admin);
        let log = lines(&semel(&["audit", "--json", "--admin", &admin]));
        assert_eq!(
            (&log[1]["action"], &log[1]["result"]),
            (&json!("reencrypt"), &json!("done"))
        );
        stop(gateway).await;
    }
}
