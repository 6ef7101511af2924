//! The published conventions: the matrix that the layer is held to, through the gateway.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use axum::http::Method;
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::conventions::{Afterwards, Got, ROWS, Row, Sent, System, Upstream, check};
use crate::support::{Answer, Gateway, Recorder, eventually, request, send};

/// A gateway with these flags in front of the service.
pub(crate) struct Behind {
    gateway: Gateway,
    pub(crate) upstream: Upstream,
    server: JoinHandle<()>,
}

impl Behind {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let upstream = Upstream::new();
        let (address, server) = serve(&upstream).await;
        Self {
            gateway: Gateway::start(address, flags),
            upstream,
            server,
        }
    }
}

async fn serve(upstream: &Upstream) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = upstream.router();
    let server = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    (address, server)
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl System for Behind {
    async fn send(&self, sent: Sent) -> Got {
        let fields: Vec<_> = sent.fields.iter().map(|(n, v)| (&**n, &**v)).collect();
        let method = Method::from_bytes(sent.method.as_bytes()).unwrap();
        let request = request(
            method,
            self.gateway.address,
            &sent.path,
            &fields,
            &sent.body,
        );
        let Answer {
            status,
            headers,
            body,
        } = send_patiently(request).await;
        Got {
            status: status.as_u16(),
            headers,
            body,
        }
    }

    fn upstream(&self) -> &Upstream {
        &self.upstream
    }
}

async fn send_patiently(request: http::Request<Full<Bytes>>) -> Answer {
    send(request).await.unwrap()
}

async fn holds(preset: &str) {
    let row = ROWS.iter().find(|row| row.preset == preset).unwrap();
    let behind = Behind::start(&["--preset", preset]).await;
    let faults = check(&behind, row).await;
    assert!(faults.0.is_empty(), "{preset}: {:#?}", faults.0);
}

macro_rules! rows {
    ($($name:ident $preset:literal)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                holds($preset).await;
            }
        )+

        #[test]
        fn no_row_is_left_out() {
            assert_eq!(ROWS.map(|row| row.preset), [$($preset),+]);
        }
    };
}

rows! {
    ietf "ietf"
    ietf_strict "ietf-strict"
    stripe_v1 "stripe-v1"
    stripe_v2 "stripe-v2"
    adcp "adcp"
    acp "acp"
    iceberg "iceberg"
    oasis "oasis"
}

/// The rows tell the presets apart in the gateway, too.
#[tokio::test]
async fn without_a_preset_no_other_row_holds() {
    for row in &ROWS[1..] {
        let behind = Behind::start(&[]).await;
        let faults = check(&behind, row).await;
        assert!(!faults.0.is_empty(), "{}", row.preset);
    }
}

fn row(preset: &str) -> &'static Row {
    ROWS.iter().find(|row| row.preset == preset).unwrap()
}

/// A replay has the present request's context, and nothing says of a first answer that it is one.
#[tokio::test]
async fn the_retry_s_own_context_comes_back() {
    let behind = Behind::start(&["--preset", "adcp"]).await;
    let asks = |path: &str, trace: u32| {
        let mut sent = row("adcp").post(path, 1, 1);
        let mut body: Value = serde_json::from_str(&sent.body).unwrap();
        body["context"] = json!({"trace": trace});
        sent.body = body.to_string();
        sent
    };
    let first = behind.send(asks("/replayed", 1)).await.json();
    assert_eq!(first, json!({"id": 1, "context": {"trace": 1}}));
    let replay = behind.send(asks("/replayed", 2)).await.json();
    assert_eq!(
        replay,
        json!({"id": 1, "context": {"trace": 2}, "replayed": true})
    );
    let conflict = behind.send(asks("/other", 3)).await.json();
    assert_eq!(conflict["error"]["code"], "IDEMPOTENCY_CONFLICT");
    assert_eq!(conflict["context"], json!({"trace": 3}));
}

/// What the body says of who asks belongs to the scope.
#[tokio::test]
async fn accounts_and_sessions_are_apart() {
    let behind = Behind::start(&["--preset", "adcp"]).await;
    let whose = [
        json!({"account": {"account_id": "a"}}),
        json!({"account": {"account_id": "b"}}),
        json!({"account": {"brand": {"domain": "a.example"}, "operator": "o"}}),
        json!({"account_id": "c"}),
        json!({"account": {"account_id": "a"}, "session_id": "s"}),
        json!({"session_id": "s"}),
        json!({}),
    ];
    let ask = |members: &Value| {
        let mut sent = row("adcp").post("/orders", 1, 1);
        let mut body: Value = serde_json::from_str(&sent.body).unwrap();
        for (name, value) in members.as_object().unwrap() {
            body[name] = value.clone();
        }
        sent.body = body.to_string();
        behind.send(sent)
    };
    for (nth, members) in whose.iter().enumerate() {
        assert_eq!(ask(members).await.json()["id"], nth + 1, "{members}");
    }
    for (nth, members) in whose.iter().enumerate() {
        let again = ask(members).await.json();
        assert_eq!(
            (&again["id"], &again["replayed"]),
            (&json!(nth + 1), &json!(true))
        );
    }
    assert_eq!(behind.upstream.runs(), whose.len());
}

/// The life of a key: it runs, it is in flight, it is replayed with the retry's own context, another
/// request is a conflict, and it expires. No answer may expire so soon under AdCP: that one was kept by a
/// gateway with other settings, whose records are the same.
#[tokio::test]
async fn the_life_of_a_key_under_adcp() {
    let upstream = Upstream::new();
    let (address, server) = serve(&upstream).await;
    let short = [
        "--key-member=idempotency_key",
        "--dialect=adcp",
        "--ttl=1s",
        "--tombstone=1h",
    ];
    let mut before = Behind {
        gateway: Gateway::start(address, &short),
        upstream: upstream.clone(),
        server,
    };
    let asks = |path: &str, n: usize, trace: u32| {
        let mut sent = row("adcp").post(path, n, 1);
        let mut body: Value = serde_json::from_str(&sent.body).unwrap();
        body["context"] = json!({"trace": trace});
        sent.body = body.to_string();
        sent
    };
    assert_eq!(before.send(asks("/old", 1, 1)).await.status, 201);
    before.gateway.terminate();
    assert!(before.gateway.ended().await.success());
    let (address, server) = serve(&upstream).await;
    let directory = before.gateway.directory();
    let behind = Behind {
        gateway: Gateway::start_in(&directory, address, &["--preset", "adcp"]),
        upstream,
        server,
    };
    let says = |got: &Got| {
        let body = got.json();
        let code = body["error"]["code"].as_str().map(str::to_owned);
        (got.status, code, body["context"]["trace"].as_u64())
    };

    let (slow, duplicate) = tokio::join!(behind.send(asks("/slow", 2, 1)), async {
        eventually("it runs", || {
            std::future::ready((behind.upstream.runs() == 2).then_some(()))
        })
        .await;
        let duplicate = behind.send(asks("/slow", 2, 2)).await;
        behind.upstream.gate.add_permits(1);
        duplicate
    });
    let in_flight = Some("IDEMPOTENCY_IN_FLIGHT".to_owned());
    assert_eq!(says(&duplicate), (409, in_flight, Some(2)));
    assert_eq!(
        (says(&slow), slow.json()["replayed"] == true),
        ((201, None, Some(1)), false)
    );
    let replay = behind.send(asks("/slow", 2, 3)).await;
    assert_eq!(
        (says(&replay), &replay.json()["replayed"]),
        ((201, None, Some(3)), &json!(true))
    );
    let conflict = behind.send(asks("/other", 2, 4)).await;
    let code = Some("IDEMPOTENCY_CONFLICT".to_owned());
    assert_eq!(says(&conflict), (422, code, Some(4)));
    let expired = eventually("it expires", async || {
        let got = behind.send(asks("/old", 1, 5)).await;
        (got.status == 409).then_some(got)
    })
    .await;
    let code = Some("IDEMPOTENCY_EXPIRED".to_owned());
    assert_eq!(says(&expired), (409, code, Some(5)));
    assert_eq!(behind.upstream.runs(), 2);
}

/// What comes after an answer's time, where a convention lets that be short.
#[tokio::test]
async fn a_key_is_new_after_its_time() {
    for row in ROWS.iter().filter(|row| row.bounds.0 == 0) {
        assert_eq!(row.then, Afterwards::New, "{}", row.preset);
        let behind = Behind::start(&["--preset", row.preset, "--ttl", "1s"]).await;
        let first = behind.send(row.post("/orders", 1, 1)).await;
        assert_eq!(first.json()["id"], 1);
        eventually("the key is new", async || {
            // Another request would be a mismatch until then.
            let next = behind.send(row.post("/orders", 1, 2)).await;
            (next.json()["id"] == 2).then_some(())
        })
        .await;
    }
}

/// Each key is for its own route, and each route has its own convention.
#[tokio::test]
async fn a_route_can_have_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let routes = "preset = \"stripe-v1\"\n\
                  [[routes]]\npath = \"/adcp/*\"\npreset = \"adcp\"\n\
                  [[routes]]\npath = \"/repeatable/*\"\npreset = \"oasis\"\nprotect = true\n";
    std::fs::write(&file, routes).unwrap();
    let behind = Behind::start(&["--config", file.to_str().unwrap()]).await;
    for (preset, path) in [
        ("adcp", "/adcp/orders"),
        ("oasis", "/repeatable/orders"),
        ("stripe-v1", "/orders"),
    ] {
        let row = row(preset);
        let first = behind.send(row.post(path, 1, 1)).await;
        let second = behind.send(row.post(path, 1, 1)).await;
        assert!(row.is_replay(&second, &first), "{preset}: {second:?}");
        let other = behind.send(row.post(path, 1, 2)).await;
        let (status, code) = row.says(&other);
        assert_eq!((status, &*code), row.mismatch, "{preset}");
    }
    assert_eq!(behind.upstream.runs(), 3);
}

/// A server that knows repeatable requests does not run one that it does not make repeatable.
#[tokio::test]
async fn a_plain_route_refuses_what_asks_to_be_repeatable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("semel.toml");
    let text = "preset = \"oasis\"\n[[routes]]\npath = \"/plain\"\nprotect = false\n";
    std::fs::write(&file, text).unwrap();
    let behind = Behind::start(&["--config", file.to_str().unwrap()]).await;
    let refused = behind.send(row("oasis").post("/plain", 1, 1)).await;
    assert_eq!(
        row("oasis").says(&refused),
        (501, "NotSupported".to_owned())
    );
    assert_eq!(refused.field("repeatability-result"), Some("rejected"));
    let plain = behind.send(row("oasis").post("/plain", 0, 1)).await;
    assert_eq!((plain.status, behind.upstream.runs()), (201, 1));
}

/// The fields of a convention reach the service, and what could be taken for them does not.
#[tokio::test]
async fn the_service_gets_what_the_convention_reads() {
    let recorder = Recorder::start().await;
    let gateway = Gateway::start(recorder.address, &["--preset", "oasis"]);
    let mut sent = row("oasis").post("/", 1, 1);
    for (name, value) in [
        ("repeatability-client-id", "c1"),
        ("repeatability_client_id", "another"),
        ("connection", "repeatability-first-sent"),
    ] {
        sent = sent.field(name, value);
    }
    let fields: Vec<_> = sent.fields.iter().map(|(n, v)| (&**n, &**v)).collect();
    let got = send(request(Method::POST, gateway.address, "/", &fields, "{}")).await;
    assert_eq!(
        got.unwrap().header("repeatability-result"),
        Some("accepted")
    );
    let seen = recorder.seen();
    let [seen] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(seen.values("repeatability-client-id"), ["c1"]);
    assert!(seen.values("repeatability_client_id").is_empty());
    for name in [
        "repeatability-request-id",
        "repeatability-first-sent",
        "idempotency-fence",
    ] {
        assert_eq!(seen.values(name).len(), 1, "{name}");
    }
}

fn semel_check(flags: &[&str], file: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("semel.toml"), file).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["check", "--no-open", "--upstream", "http://127.0.0.1:9"])
        .args(["--config", "semel.toml"])
        .args(flags)
        .current_dir(&directory)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Row 73: out of its bounds nothing starts, and what is to be declared is what holds.
#[test]
fn retention_is_bounded_and_declared() {
    for row in &ROWS {
        let preset = ["--preset", row.preset];
        let ttl = |seconds: u64| {
            semel_check(
                &[&preset[..], &["--ttl", &format!("{seconds}s")]].concat(),
                "",
            )
        };
        let (least, most) = row.bounds;
        assert_eq!(ttl(least.max(1)).0, Some(0), "{}", row.preset);
        if least > 0 {
            let (code, text) = ttl(least - 1);
            assert_eq!(code, Some(2));
            let message = format!(
                "error: --ttl: the preset {} replays answers for {least} s at least",
                row.preset
            );
            assert!(text.starts_with(&message), "{text}");
        }
        if let Some(most) = most {
            assert_eq!(ttl(most).0, Some(0));
            assert_eq!(ttl(most + 1).0, Some(2));
        }
        let (_, text) = semel_check(&preset, "");
        let declared = text.lines().find(|line| line.starts_with("to declare"));
        match row.preset {
            "adcp" => assert!(
                declared
                    .unwrap()
                    .contains(r#"{"replay_ttl_seconds":86400,"supported":true}"#),
                "{text}"
            ),
            "iceberg" => assert!(
                declared
                    .unwrap()
                    .contains(r#"{"idempotency-key-lifetime":"PT24H"}"#),
                "{text}"
            ),
            _ => assert_eq!(declared, None),
        }
    }
}

/// What is only observed is promised to nobody.
#[test]
fn what_is_observed_is_not_declared() {
    for preset in ["adcp", "iceberg"] {
        let (code, text) = semel_check(&["--preset", preset, "--mode", "observe"], "");
        assert_eq!(code, Some(0), "{text}");
        assert!(!text.contains("to declare"), "{text}");
    }
}

/// What is said counts before what a preset says, wherever it is said.
#[test]
fn what_is_said_counts_before_the_preset() {
    let lines = |flags: &[&str], file: &str| {
        let (code, text) = semel_check(flags, file);
        assert_eq!(code, Some(0), "{text}");
        let mut lines: Vec<_> = text
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        lines.retain(|line| {
            ["ttl", "require-key", "preset", "key-header", "key-member"]
                .iter()
                .any(|name| line.starts_with(name))
        });
        lines
    };
    assert_eq!(
        lines(&["--preset", "stripe-v2"], ""),
        [
            "preset stripe-v2 (--preset)",
            "key-header idempotency-key (preset stripe-v2)",
            "ttl 720h (preset stripe-v2)"
        ]
    );
    assert_eq!(
        lines(&["--preset", "acp"], "ttl = \"7d\"\nrequire-key = false\n"),
        [
            "preset acp (--preset)",
            "key-header idempotency-key (preset acp)",
            "require-key false (semel.toml:2: require-key)",
            "ttl 7d (semel.toml:1: ttl)",
        ]
    );
    let routes = "[[routes]]\npath = \"/a\"\npreset = \"adcp\"\n\
                  [[routes]]\npath = \"/b\"\npreset = \"iceberg\"\nttl = \"1h\"\n";
    assert_eq!(
        lines(&[], routes),
        [
            "preset ietf (default)",
            "key-header idempotency-key (default)",
            "ttl 24h (default)",
            "preset adcp (semel.toml:3: route 1: preset)",
            "key-member idempotency_key (preset adcp)",
            "require-key true (preset adcp)",
            "ttl 24h (preset adcp)",
            "preset iceberg (semel.toml:6: route 2: preset)",
            "key-header idempotency-key (preset iceberg)",
            "ttl 1h (semel.toml:7: route 2: ttl)",
        ]
    );
    // A place that is said takes the other one's place, and a stronger one a weaker one's.
    let places = "key-member = \"id\"\n[[routes]]\npath = \"/a\"\nkey-header = \"X-Key\"\n\
                  [[routes]]\npath = \"/b\"\n";
    assert_eq!(
        lines(&["--preset", "adcp"], places)[1..],
        [
            "key-member id (semel.toml:1: key-member)",
            "require-key true (preset adcp)",
            "ttl 24h (preset adcp)",
            "preset adcp (--preset)",
            "key-header X-Key (semel.toml:4: route 1: key-header)",
            "require-key true (preset adcp)",
            "ttl 24h (preset adcp)",
            "preset adcp (--preset)",
            "key-member id (semel.toml:1: key-member)",
            "require-key true (preset adcp)",
            "ttl 24h (preset adcp)",
        ]
    );
    assert_eq!(
        lines(&["--key-header", "X-Key"], "key-member = \"id\"\n")[1],
        "key-header X-Key (--key-header)"
    );
    let (code, text) = semel_check(&["--preset", "stripe"], "");
    assert_eq!(code, Some(2));
    let message = "error: --preset: `stripe`: no such preset; there are ietf, ietf-strict, stripe-v1, \
                   stripe-v2, adcp, acp, iceberg, oasis";
    assert_eq!(text.trim_end(), message);
}
