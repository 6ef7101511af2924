//! A store, or a gateway, that is away when the command ends.

use std::net::SocketAddr;

use rustix::process::Signal;
use semel_testkit::proxy::{Fault, Proxy};

use super::job::{EFFECT, Way};

/// A key that no other run has: records on a server stay.
fn key(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn away_and_back(way: &Way, proxy: &Proxy) {
    // Nothing runs without it.
    proxy.set(Fault::Refuse);
    let down = way.job(&key("down"), EFFECT).run();
    assert_eq!(
        (down.code(), down.result(), way.ran()),
        (113, "unavailable", 0),
        "{down:?}"
    );
    proxy.set(Fault::None);

    // What ended meanwhile is recorded as soon as it is back.
    let script = format!("{EFFECT} echo begun; while [ ! -e go ]; do sleep 0.01; done; echo done");
    let job = way.job(&key("back"), &script);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    proxy.set(Fault::Refuse);
    std::fs::write(way.path("go"), "").unwrap();
    assert_eq!(running.line(), "done\n");
    let told = running.error_line();
    assert!(told.contains("not recorded yet"), "{told}");
    proxy.set(Fault::None);
    let (status, _, err) = running.end();
    assert_eq!((status.code(), &*err), (Some(0), ""));
    let again = job.run();
    assert_eq!(
        (again.result(), again.stdout()),
        ("replayed", "begun\ndone\n")
    );
    assert_eq!(way.ran(), 1);

    // Whoever does not want to wait for it is told what that means.
    std::fs::remove_file(way.path("go")).unwrap();
    let job = way.job(&key("gone"), &script).with(&["--lease", "1s"]);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    proxy.set(Fault::Refuse);
    std::fs::write(way.path("go"), "").unwrap();
    assert!(running.error_line().contains("not recorded yet"));
    running.signal(Signal::TERM);
    let (status, _, err) = running.end();
    assert_eq!(status.code(), Some(119), "{err}");
    assert!(err.contains("ended with status 0"), "{err}");
    proxy.set(Fault::None);
    let next = job.with(&["--wait", "10m"]).run();
    assert_eq!((next.code(), next.result(), way.ran()), (115, "unknown", 2));

    // What was stopped for want of it is no outcome, though it ends with 0.
    let script = "if [ $SEMEL_ATTEMPT = 2 ]; then echo second; exit 0; fi
        trap 'echo stopped; exit 0' TERM; echo begun; while :; do sleep 0.05; done";
    let job = way.job(&key("stopped"), script);
    let job = job.with(&["--lease", "1s", "--on-lost", "retry"]);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    proxy.set(Fault::Refuse);
    assert_eq!(running.line(), "stopped\n");
    proxy.set(Fault::None);
    let (status, _, err) = running.end();
    assert_eq!(status.code(), Some(118), "{err}");
    assert_eq!(job.run().stdout(), "second\n");
}

#[cfg(feature = "postgres")]
#[test]
fn an_outcome_outlives_an_outage_of_the_store() {
    use semel_testkit::servers::{Kind, shared};
    let postgres = shared(Kind::Postgres).unwrap();
    let address = postgres
        .split(['@', '/'])
        .find(|part| part.parse::<SocketAddr>().is_ok());
    let address = address.unwrap();
    let proxy = Proxy::start(address.parse().unwrap()).unwrap();
    let way = Way::at(&postgres.replace(address, &proxy.address().to_string()));
    away_and_back(&way, &proxy);
}

#[test]
fn an_outcome_outlives_an_outage_of_the_gateway() {
    let behind = Way::gateway_with(&[]);
    let proxy = Proxy::start(behind.admin()).unwrap();
    away_and_back(&behind.proxied(proxy.address()), &proxy);
}
