//! The configuration, read again while requests come.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use http::{HeaderMap, Method};
use semel::{Identity, Key, Scope, Service};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::reconcile::{Act, Endpoint};
use crate::support::{
    Connection, Gateway, Reaction, Script, Shop, eventually, get, order, request, send,
};

/// How often the configuration is replaced under load; `SEMEL_RELOADS` says otherwise.
const RELOADS: usize = 1_000;

/// A folder for a file that changes.
struct Place(TempDir);

impl Place {
    fn new(text: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write(text);
        place
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("semel.toml")
    }

    /// As deployments do: another file takes its place at once.
    fn write(&self, text: &str) {
        let new = self.0.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

/// How often the configuration was read again, with this result.
async fn reloads(gateway: &Gateway, result: &str) -> usize {
    let metrics = get(gateway.admin, "/metrics").await;
    let name = format!("semel_config_reloads_total{{result=\"{result}\"}} ");
    let line = metrics
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

async fn is_current(gateway: &Gateway) -> bool {
    let metrics = get(gateway.admin, "/metrics").await;
    metrics.text().contains("\nsemel_config_current 1\n")
}

async fn reloaded(gateway: &Gateway, result: &str, times: usize) {
    eventually("the configuration is read", async || {
        (reloads(gateway, result).await >= times).then_some(())
    })
    .await;
}

/// An upstream that says who it is, and which fields came.
async fn open(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = |State(name): State<&'static str>, headers: HeaderMap| async move {
        let field = |name| {
            headers
                .get(name)
                .map_or("none", |value| value.to_str().unwrap())
        };
        format!("{name} {} {}", field("host"), field("idempotency-id"))
    };
    let service = Router::new().fallback(answer).with_state(name);
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    address
}

fn configuration(upstream: SocketAddr, service: &str, preserve_host: bool) -> String {
    format!(
        "[[routes]]\npath = \"/orders\"\nupstream = \"http://{upstream}\"\nservice = \"{service}\"\n\
         preserve-host = {preserve_host}\n\n[[routes]]\nupstream = \"http://{upstream}\"\n\
         protect = false\npreserve-host = {preserve_host}\n"
    )
}

/// Two configurations take turns; each has an upstream of its own, a service of its own, and says in its
/// own way what `Host` the upstream gets. Every request is answered, as one of them says in all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_dropped_or_meets_two_configurations() {
    let rounds = std::env::var("SEMEL_RELOADS").map_or(RELOADS, |text| text.parse().unwrap());
    let upstreams = [open("one").await, open("two").await];
    let texts = [
        configuration(upstreams[0], "one", true),
        configuration(upstreams[1], "two", false),
    ];
    let place = Place::new(&texts[0]);
    let gateway = Gateway::start_with(&place.path(), &["--store", "memory:"]);
    let client_host = gateway.address.to_string();
    let expected = move |service: &'static str, key: Option<&str>| {
        let host = match service {
            "one" => client_host.clone(),
            _ => upstreams[1].to_string(),
        };
        let id = key.map_or("none".to_owned(), |key| {
            let operation = Service::new(service).unwrap();
            let operation = operation.operation("http").into_owned();
            let key = Key::new(key).unwrap();
            let identity = Identity::new(Scope::anonymous(), &operation, key);
            identity.digest().to_string()
        });
        format!("{service} {host} {id}")
    };
    let expected = Arc::new(expected);
    let done = Arc::new(AtomicBool::new(false));
    let answered = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (done, answered, expected) = (done.clone(), answered.clone(), expected.clone());
            let address = gateway.address;
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut sent = 0;
                while !done.load(Ordering::Relaxed) {
                    sent += 1;
                    let key = format!("{client}-{sent}");
                    let is_keyed = sent % 2 == 0;
                    let (path, key) = match is_keyed {
                        true => ("/orders", Some(&*key)),
                        false => ("/other", None),
                    };
                    let fields = key.map(|key| ("idempotency-key", key));
                    let fields: Vec<_> = fields.into_iter().collect();
                    let asked = request(Method::POST, address, path, &fields, "{}");
                    let answer = connection.send(asked).await.unwrap();
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let which = usize::from(answer.text().starts_with("two "));
                    let of = ["one", "two"][which];
                    assert_eq!(answer.text(), expected(of, key));
                    answered[which].fetch_add(1, Ordering::Relaxed);
                }
                sent
            })
        })
        .collect();
    for round in 1..=rounds {
        place.write(&texts[round % 2]);
        gateway.hang_up();
        reloaded(&gateway, "success", round).await;
    }
    done.store(true, Ordering::Relaxed);
    let mut sent = 0;
    for client in clients {
        sent += client.await.unwrap();
    }
    let answered: Vec<usize> = answered.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    println!("{rounds} reloads, {sent} requests, answered by {answered:?}");
    assert_eq!(answered.iter().sum::<usize>(), sent);
    // Both were in use while requests came.
    assert!(
        answered.iter().all(|answers| *answers >= rounds / 10),
        "{answered:?}"
    );
    assert_eq!(reloads(&gateway, "failure").await, 0);
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}

/// What was counted of a route goes with it; others count on.
#[tokio::test]
async fn a_route_that_is_removed_has_no_metrics() {
    let shop = Shop::open().await;
    let top = format!("upstream = \"http://{}\"\n", shop.address);
    let stays = "[[routes]]\nname = \"stays\"\npath = \"/orders\"\n";
    let goes = "[[routes]]\nname = \"goes\"\npath = \"/old\"\nmode = \"observe\"\nrequire-key = true\n\
                [[routes]]\nname = \"refuses\"\npath = \"/refuses\"\nrequire-key = true\n";
    let place = Place::new(&format!("{top}{stays}{goes}"));
    let gateway = Gateway::start_with(&place.path(), &[]);
    for path in ["/orders", "/old", "/refuses"] {
        send(request(Method::POST, gateway.address, path, &[], "{}"))
            .await
            .unwrap();
    }
    let has = |metrics: &str, what: &str| metrics.lines().any(|line| line.contains(what));
    let before = gateway.metrics().await;
    for route in [
        "route=\"goes\"",
        "route=\"refuses\",operation=\"http\",event=\"missing-key\"} 1",
    ] {
        assert!(has(&before, route), "{before}");
    }
    place.write(&format!("{top}{stays}"));
    reloaded(&gateway, "success", 1).await;
    let after = gateway.metrics().await;
    for route in ["route=\"goes\"", "route=\"refuses\""] {
        assert!(!has(&after, route), "{after}");
    }
    assert!(
        has(
            &after,
            "route=\"stays\",operation=\"http\",event=\"passed_on\"} 1"
        ),
        "{after}"
    );
}

#[tokio::test]
async fn a_file_that_is_replaced_is_noticed() {
    let shops = [Shop::open().await, Shop::open().await];
    let text = |shop: &Shop, more: &str| format!("upstream = \"http://{}\"\n{more}", shop.address);
    let place = Place::new(&text(&shops[0], ""));
    let gateway = Gateway::start_with(&place.path(), &[]);
    assert!(order(gateway.address, "a").await.status.is_success());
    assert_eq!(shops[0].placed(), 1);

    place.write(&text(&shops[1], ""));
    reloaded(&gateway, "success", 1).await;
    assert!(order(gateway.address, "b").await.status.is_success());
    assert_eq!(shops[1].placed(), 1);
    // What was done before is known still.
    assert!(order(gateway.address, "a").await.is_replay());

    // A policy alone.
    place.write(&text(&shops[1], "require-key = true\n"));
    reloaded(&gateway, "success", 2).await;
    let asked = request(Method::POST, gateway.address, "/orders", &[], "{}");
    assert_eq!(
        crate::support::send(asked).await.unwrap().problem(),
        "missing-key"
    );
}

/// Kubernetes mounts a file as a link through `..data` to a folder, and replaces that link.
#[tokio::test]
async fn a_link_that_is_swapped_is_noticed() {
    let shops = [Shop::open().await, Shop::open().await];
    let folder = tempfile::tempdir().unwrap();
    let mount = |version: &str, shop: &Shop| {
        let at = folder.path().join(version);
        std::fs::create_dir(&at).unwrap();
        let text = format!("upstream = \"http://{}\"\n", shop.address);
        std::fs::write(at.join("semel.toml"), text).unwrap();
        symlink(version, folder.path().join("..data_tmp")).unwrap();
        std::fs::rename(
            folder.path().join("..data_tmp"),
            folder.path().join("..data"),
        )
        .unwrap();
    };
    mount("..1", &shops[0]);
    let path = folder.path().join("semel.toml");
    symlink(Path::new("..data/semel.toml"), &path).unwrap();
    let gateway = Gateway::start_with(&path, &[]);
    order(gateway.address, "a").await;
    mount("..2", &shops[1]);
    reloaded(&gateway, "success", 1).await;
    order(gateway.address, "b").await;
    assert_eq!([shops[0].placed(), shops[1].placed()], [1, 1]);
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_is_told() {
    let shop = Shop::open().await;
    let right = format!("upstream = \"http://{}\"\n", shop.address);
    let place = Place::new(&right);
    let gateway = Gateway::start_with(&place.path(), &[]);
    assert!(is_current(&gateway).await);
    let wrong = [
        (
            "upstream = \"nowhere\"\n",
            "1: upstream: the scheme is missing",
        ),
        (
            "upsteam = \"http://127.0.0.1:1\"\n",
            "1: there is no setting `upsteam`; did you mean `upstream`?",
        ),
        ("[[routes]\n", "1: "),
    ];
    for (nth, (text, message)) in wrong.into_iter().enumerate() {
        place.write(text);
        gateway.hang_up();
        reloaded(&gateway, "failure", nth + 1).await;
        assert!(!is_current(&gateway).await);
        let message = format!("configuration: {}:{message}", place.path().display());
        let log = gateway.log().replace("\\\"", "\"");
        assert!(log.contains(&message), "{message} in {log}");
        assert!(
            order(gateway.address, &format!("{nth}"))
                .await
                .status
                .is_success()
        );
    }
    std::fs::remove_file(place.path()).unwrap();
    gateway.hang_up();
    reloaded(&gateway, "failure", wrong.len() + 1).await;
    assert!(order(gateway.address, "gone").await.status.is_success());
    assert!(
        gateway.log().contains("the old one stays in use"),
        "{}",
        gateway.log()
    );

    place.write(&right);
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    assert!(is_current(&gateway).await);
    assert_eq!(shop.placed(), wrong.len() + 1);
}

#[tokio::test]
async fn what_changes_with_a_restart_only_is_told_and_stays() {
    let shop = Shop::open().await;
    let text = |more: &str| format!("upstream = \"http://{}\"\n{more}", shop.address);
    let place = Place::new(&text("max-attempts = 10\n"));
    let gateway = Gateway::start_with(&place.path(), &[]);
    place.write(&text(
        "max-attempts = 20\nmax-connections = 1\nlog-level = \"error\"\nrequire-key = true\n",
    ));
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    for (line, name) in [
        (2, "max-attempts"),
        (3, "max-connections"),
        (4, "log-level"),
    ] {
        let path = place.path();
        let message = format!(
            "configuration: {}:{line}: {name}: `{name}` changes with a restart only",
            path.display()
        );
        eventually(&message, async || {
            gateway.log().contains(&message).then_some(())
        })
        .await;
    }
    // The rest of it holds, and more than one connection is open.
    let mut connections = BTreeMap::new();
    for nth in 0..3 {
        let mut connection = Connection::open(gateway.address).await;
        let asked = request(Method::POST, gateway.address, "/orders", &[], "{}");
        assert_eq!(
            connection.send(asked).await.unwrap().problem(),
            "missing-key"
        );
        connections.insert(nth, connection);
    }
}

/// Whom to ask is said at the start; that nobody has to be asked any more is no mistake.
#[tokio::test]
async fn a_reconciler_that_no_route_needs_any_more_is_left() {
    let shop = Shop::open().await;
    let upstream = format!("upstream = \"http://{}\"\n", shop.address);
    let asking = "on-lost = \"reconcile\"\nreconciler = \"http://127.0.0.1:1/\"\n";
    let place = Place::new(&format!("{upstream}{asking}"));
    let gateway = Gateway::start_with(&place.path(), &[]);
    place.write(&format!("{upstream}require-key = true\n"));
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    let asked = request(Method::POST, gateway.address, "/orders", &[], "{}");
    assert_eq!(send(asked).await.unwrap().problem(), "missing-key");
}

/// What a caller has used stays used on a route that stays, whatever else changes.
#[tokio::test]
async fn limits_per_caller_are_counted_on() {
    let shop = Shop::open().await;
    let text = |limit: u32, ttl: &str| {
        format!(
            "upstream = \"http://{}\"\nttl = \"{ttl}\"\nlimits-new-keys = \"{limit}/d\"\n",
            shop.address
        )
    };
    let place = Place::new(&text(2, "1h"));
    let gateway = Gateway::start_with(&place.path(), &["--store", "memory:"]);
    for key in ["a", "b"] {
        assert!(order(gateway.address, key).await.status.is_success());
    }
    assert_eq!(order(gateway.address, "c").await.problem(), "limit");
    place.write(&text(2, "2h"));
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    assert_eq!(order(gateway.address, "c").await.problem(), "limit");
    // Another limit is counted anew.
    place.write(&text(3, "2h"));
    gateway.hang_up();
    reloaded(&gateway, "success", 2).await;
    assert!(order(gateway.address, "c").await.status.is_success());
}

/// Lost attempts of every service are asked about whose route says so, also of one that came later.
#[tokio::test]
async fn the_lost_attempts_of_all_routes_are_asked_about() {
    let upstream = Script::start(Reaction::Close).await;
    let answer = serde_json::json!({"finding": "did-not-happen"});
    let endpoint = Endpoint::open(Act::Say(answer)).await;
    let route = |service: &str, on_lost: &str| {
        format!(
            "[[routes]]\npath = \"/{service}\"\nservice = \"{service}\"\non-lost = \"{on_lost}\"\n"
        )
    };
    let top = format!(
        "upstream = \"http://{}\"\n[reconcile]\nurl = \"{}\"\nevery = \"100ms\"\npause = \"50ms\"\n",
        upstream.address,
        endpoint.url()
    );
    let one = top + &route("a", "reconcile") + &route("b", "reconcile") + &route("held", "hold");
    let place = Place::new(&one);
    let gateway = Gateway::start_with(&place.path(), &[]);
    let lose = async |service: &str| {
        let path = format!("/{service}");
        let asked = request(
            Method::POST,
            gateway.address,
            &path,
            &[("idempotency-key", service)],
            "",
        );
        assert_eq!(
            crate::support::send(asked).await.unwrap().problem(),
            "upstream-failed"
        );
    };
    let asked = || -> Vec<String> {
        let questions = endpoint.questions();
        let services = questions
            .iter()
            .map(|question| question["service"].as_str().unwrap());
        services.map(str::to_owned).collect()
    };
    for service in ["held", "a", "b"] {
        lose(service).await;
    }
    let knows = async |service: &str| {
        eventually(service, async || {
            asked().contains(&service.to_owned()).then_some(())
        })
        .await;
    };
    knows("a").await;
    knows("b").await;

    place.write(&(one + &route("later", "reconcile")));
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    lose("later").await;
    knows("later").await;
    assert!(!asked().contains(&"held".to_owned()));
}

/// The end waits for what began under a table that was replaced since.
#[tokio::test]
async fn attempts_that_began_before_are_waited_for_at_the_end() {
    let shops = [Shop::open().await, Shop::open().await];
    let text = |shop: &Shop| format!("upstream = \"http://{}\"\n", shop.address);
    let place = Place::new(&text(&shops[0]));
    let mut gateway = Gateway::start_with(&place.path(), &[]);
    let fields = [("idempotency-key", "slow"), ("x-delay", "2000")];
    let address = gateway.address;
    let slow = tokio::spawn(async move { crate::support::order_with(address, &fields).await });
    eventually("the order arrives", async || {
        (shops[0].received() == 1).then_some(())
    })
    .await;
    place.write(&text(&shops[1]));
    gateway.hang_up();
    reloaded(&gateway, "success", 1).await;
    assert!(order(gateway.address, "quick").await.status.is_success());
    assert_eq!(shops[1].placed(), 1);
    gateway.terminate();
    assert!(slow.await.unwrap().status.is_success());
    assert!(gateway.ended().await.success());
    assert_eq!(shops[0].placed(), 1);
}
