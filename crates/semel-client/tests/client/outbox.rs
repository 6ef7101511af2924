//! The outbox on disk.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use semel_client::decide::{Effect, Reason};
use semel_client::{ErrorKind, Intent, Outbox, OutboxError, Retry};
use tower::ServiceExt as _;

use crate::support::{Service, status};

async fn begin(outbox: &Outbox, name: &str) -> Result<Intent, OutboxError> {
    let order = |_: &_| {
        let post =
            Request::post("http://shop.example/orders?of=me").header("content-type", "text/plain");
        post.body(format!("the body of {name}\n"))
    };
    outbox.begin(name, order).await
}

async fn body_of(intent: &Intent) -> String {
    let body = intent
        .request()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    String::from_utf8(body.into()).unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "intent"))
        .collect()
}

#[tokio::test]
async fn what_was_begun_is_found_by_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b");
    let outbox = Outbox::open(&path).await.unwrap();
    let intent = begin(&outbox, "invoice-4711/charge").await.unwrap();
    begin(&outbox, "finished")
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    let (key, sent) = (intent.key().clone(), intent.request());
    drop((intent, outbox));

    let outbox = Outbox::open(&path).await.unwrap();
    let pending = outbox.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!(
        (pending[0].name(), pending[0].key()),
        ("invoice-4711/charge", &key)
    );
    let request = pending[0].request();
    assert_eq!(
        (request.method(), request.uri()),
        (sent.method(), sent.uri())
    );
    assert_eq!(request.headers(), sent.headers());
    assert_eq!(
        body_of(&pending[0]).await,
        "the body of invoice-4711/charge\n"
    );
    assert_eq!(
        begin(&outbox, "invoice-4711/charge").await.unwrap().key(),
        &key
    );

    // It may have been sent before.
    let service = Service::new([status(401)]);
    let error = service
        .behind(&Retry::new())
        .oneshot(pending[0].request())
        .await
        .unwrap_err();
    assert_eq!(error.effect(), Effect::Possible);
}

#[cfg(unix)]
#[tokio::test]
async fn it_is_for_this_user_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outbox");
    let outbox = Outbox::open(&path).await.unwrap();
    begin(&outbox, "order 1").await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&files(&path)[0]), 0o600);
}

#[tokio::test]
async fn a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, mut lines) = child(directory.path());
    // It has it open once it has said something.
    lines.next().unwrap();
    let error = Outbox::open(directory.path()).await.unwrap_err();
    assert!(
        matches!(&error, OutboxError::InUse { path } if path == directory.path()),
        "{error}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    Outbox::open(directory.path()).await.unwrap();
}

#[tokio::test]
async fn damage_anywhere_is_an_error_that_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(directory.path()).await.unwrap();
    begin(&outbox, "order 1").await.unwrap();
    begin(&outbox, "order 2").await.unwrap();
    drop(outbox);
    let files = files(directory.path());
    let whole = std::fs::read(&files[0]).unwrap();
    let mut damaged = Vec::new();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        damaged.push(flipped);
        damaged.push(whole[..at].to_vec());
    }
    damaged.push([&whole[..], b"x"].concat());
    damaged.push(std::fs::read(&files[1]).unwrap());
    for content in damaged {
        std::fs::write(&files[0], &content).unwrap();
        let error = Outbox::open(directory.path()).await.unwrap_err();
        assert!(
            matches!(&error, OutboxError::Damaged { path, .. } if *path == files[0]),
            "{error}"
        );
        assert!(error.to_string().contains(files[0].to_str().unwrap()));
    }
    std::fs::write(&files[0], &whole).unwrap();
    assert_eq!(
        Outbox::open(directory.path())
            .await
            .unwrap()
            .pending()
            .len(),
        2
    );
}

#[tokio::test]
async fn version_1_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let golden = include_bytes!("../golden/1.intent");
    // The SHA-256 of its name.
    let name = "f6f5f0302667109cfead5deba9ef7d4e53e28d1f5c6722294c4e35c2a201f219.intent";
    std::fs::write(directory.path().join(name), golden).unwrap();
    let outbox = Outbox::open(directory.path()).await.unwrap();
    let intent = outbox.get("invoice-4711/charge").unwrap();
    assert_eq!(
        intent.key().as_str(),
        "0192f5a0-7c1e-7abc-8def-0123456789ab"
    );
    assert_eq!(body_of(&intent).await, "the body of invoice-4711/charge\n");
}

#[tokio::test]
async fn what_was_not_begun_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(directory.path()).await.unwrap();
    std::fs::write(directory.path().join(".unfinished-1"), "half of").unwrap();
    // Its files have nowhere to go.
    let gone = directory.path().with_extension("gone");
    std::fs::rename(directory.path(), &gone).unwrap();
    let error = begin(&outbox, "order 1").await.unwrap_err();
    assert!(
        matches!(error, OutboxError::Io { what: "write", .. }),
        "{error}"
    );
    assert!(outbox.pending().is_empty());
    std::fs::rename(&gone, directory.path()).unwrap();
    begin(&outbox, "order 1").await.unwrap();
    drop(outbox);
    assert_eq!(
        Outbox::open(directory.path())
            .await
            .unwrap()
            .pending()
            .len(),
        1
    );
    assert!(!directory.path().join(".unfinished-1").exists());
}

/// `SEMEL_KILL_ROUNDS` prolongs it.
#[tokio::test]
async fn a_process_killed_anywhere_leaves_what_it_has_begun() {
    let rounds = std::env::var("SEMEL_KILL_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mut killed_with_pending = 0;
    for round in 0..rounds {
        let (mut child, lines) = child(directory.path());
        // The process is killed after it has said this much, in the middle of what comes then.
        let mut said: Vec<String> = Vec::new();
        for line in lines {
            said.push(line);
            if said.len() == 20 + round % 17 {
                std::thread::sleep(Duration::from_micros(
                    u64::try_from(round * 137 % 2000).unwrap(),
                ));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        // What it said: an intent was begun, it is about to be finished, it is finished.
        let mut states = HashMap::new();
        for line in &said {
            let mut words = line.splitn(3, ' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap());
            let key = words.next().map(str::to_owned);
            states.entry(name.to_owned()).or_insert((key, "")).1 = what;
        }
        let outbox = Outbox::open(directory.path()).await.unwrap();
        let found: HashMap<String, Intent> = outbox
            .pending()
            .into_iter()
            .map(|i| (i.name().to_owned(), i))
            .collect();
        for (name, (key, state)) in &states {
            let found = found.get(name);
            match *state {
                "begun" => {
                    let found = found.unwrap_or_else(|| panic!("{name} is lost in round {round}"));
                    assert_eq!(Some(found.key().as_str()), key.as_deref());
                    assert_eq!(body_of(found).await, format!("the body of {name}\n"));
                    killed_with_pending += 1;
                }
                "finished" => assert!(found.is_none(), "{name} came back in round {round}"),
                "finishing" => {}
                state => panic!("{state}"),
            }
        }
        for intent in found.values() {
            intent.finish().await.unwrap();
        }
    }
    assert!(killed_with_pending > rounds, "{killed_with_pending}");
}

const CHILD: &str = "SEMEL_TEST_OUTBOX";

fn child(directory: &Path) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "outbox::child_that_begins_and_finishes",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD, directory)
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines = lines.map_while(Result::ok);
    // What the test runner says is not for us, and a last line may be cut.
    let said = |line: String| {
        let line = line.strip_prefix("said: ")?.strip_suffix(" .")?;
        Some(line.to_owned())
    };
    (child, lines.filter_map(said))
}

#[test]
#[ignore = "a process that other tests kill"]
fn child_that_begins_and_finishes() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let outbox = Outbox::open(PathBuf::from(directory)).await.unwrap();
        println!("\nsaid: finishing nothing .");
        let worker = async |worker: usize| {
            for n in 0.. {
                let name = format!("{worker}/{n}");
                let intent = begin(&outbox, &name).await.unwrap();
                println!("said: begun {name} {} .", intent.key().as_str());
                if n % 3 < 2 {
                    println!("said: finishing {name} .");
                    intent.finish().await.unwrap();
                    println!("said: finished {name} .");
                }
            }
        };
        tokio::join!(worker(0), worker(1), worker(2), worker(3));
    });
}

#[tokio::test]
async fn one_begun_in_the_future_is_not_sent() {
    use sha2::Digest as _;
    let directory = tempfile::tempdir().unwrap();
    let outbox = Outbox::open(directory.path()).await.unwrap();
    begin(&outbox, "order 1").await.unwrap();
    drop(outbox);
    let file = files(directory.path()).remove(0);
    let whole = std::fs::read_to_string(&file).unwrap();
    let (_, content) = whole.split_once('\n').unwrap();
    // Since then the clock was set back by years.
    let content = content.replacen("\"begun\":", "\"begun\":9", 1);
    let digest = sha2::Sha256::digest(&content);
    let digest = hex::encode(digest);
    std::fs::write(&file, format!("semel-intent 1 {digest}\n{content}")).unwrap();
    let outbox = Outbox::open(directory.path()).await.unwrap();
    let service = Service::new([status(201)]);
    let client = service.behind(&Retry::new());
    let error = client
        .oneshot(outbox.pending()[0].request())
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.tries()),
        (ErrorKind::Stopped(Reason::Expired), 0)
    );
    assert!(service.seen().is_empty());
}
