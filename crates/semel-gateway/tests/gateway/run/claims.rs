//! What only a gateway brings: tokens, answers that are lost on the way, and the record behind both ways.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use semel_testkit::proxy::{Fault, Proxy};

use super::job::{EFFECT, Way, sqlite};

/// Both ways lead to one record.
#[test]
fn a_run_through_the_gateway_is_replayed_from_the_store_and_back() {
    let way = Way::gateway_with(&[]);
    let store = sqlite(way.folder.path());
    let script = format!("{EFFECT} printf 'a\\000\\377'; echo err >&2; exit 3");
    for (key, ways) in [
        ("there", [&[][..], &["--store", &store]]),
        ("back", [&["--store", &store], &[]]),
    ] {
        let before = way.ran();
        let flags = [
            "--service",
            "books",
            "--operation",
            "close",
            "--scope",
            "a",
            "--scope",
            "b",
            "--on-exit",
            "3=keep",
        ];
        let [first, second] =
            ways.map(|way_flags| way.job(key, &script).with(way_flags).with(&flags).run());
        assert_eq!((first.code(), first.result()), (3, "ran"), "{first:?}");
        assert_eq!(
            (second.code(), second.result()),
            (3, "replayed"),
            "{second:?}"
        );
        assert_eq!(second.output, first.output);
        assert_eq!(second.report["id"], first.report["id"]);
        assert_eq!(way.ran(), before + 1);
        // So do the command and its words.
        let other = way.job(key, "other").with(ways[1]).with(&flags).run();
        assert_eq!(other.code(), 116);
    }
}

#[test]
fn a_token_is_shown_where_the_gateway_asks_for_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (token, other) = (
        "a-token-of-sixteen-and-more",
        "another-one-of-sixteen-and-more",
    );
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), format!("{token}\n")).unwrap();
    let tokens = format!(
        "[[tokens]]\nname = \"jobs\"\ntoken-file = \"{}\"\nclaims = [\"default/settle-*\"]\n",
        secret.path().display()
    );
    std::fs::write(file.path(), tokens).unwrap();
    let way = Way::gateway_with(&["--config", file.path().to_str().unwrap()]);
    let by_file = ["--token-file", secret.path().to_str().unwrap()];
    for (variable, flags, operation, told) in [
        (None, &[][..], "settle-day", "unauthorized"),
        (Some(other), &[], "settle-day", "unauthorized"),
        (Some(token), &[], "deploy", "forbidden"),
        (
            Some(token),
            &["--token-file", "/nowhere"],
            "settle-day",
            "--token-file",
        ),
        (Some("two words"), &[], "settle-day", "SEMEL_TOKEN"),
        (Some(token), &[], "settle-day", ""),
        (None, &by_file, "settle-day", ""),
    ] {
        let job = way
            .job("day", EFFECT)
            .with(&["--operation", operation])
            .with(flags);
        let mut command = job.command();
        command.envs(variable.map(|token| ("SEMEL_TOKEN", token)));
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        let expected = match told {
            "" => 0,
            "unauthorized" | "forbidden" => 113,
            _ => 112,
        };
        assert_eq!(output.status.code(), Some(expected), "{message}");
        assert!(message.contains(told), "{told}: {message}");
        assert!(!message.contains(token), "{message}");
        assert_eq!(way.ran(), usize::from(told.is_empty()), "{told}");
    }
}

#[test]
fn a_gateway_that_is_none_is_said_so() {
    let way = Way::gateway_with(&[]);
    // Something else that speaks HTTP.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_url = format!("http://{}", other.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in other.incoming() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
            stream.write_all(answer).ok();
        }
    });
    let nobody = "http://127.0.0.1:1";
    let elsewhere = format!("http://{}/elsewhere", way.admin());
    for (url, told) in [
        (nobody, "not reached"),
        (&other_url, "--admin address"),
        (&elsewhere, "404"),
    ] {
        let ran = way.job("k", EFFECT).with(&["--gateway", url]).run();
        assert_eq!((ran.code(), ran.result()), (113, "unavailable"), "{ran:?}");
        assert!(ran.stderr().contains(told), "{ran:?}");
    }
    let both = ["--gateway", nobody, "--store", "sqlite:/tmp/x.db"];
    assert_eq!(way.job("k", EFFECT).with(&both).run().code(), 112);
    assert_eq!(way.ran(), 0);
}

/// In base64, one is as long as a request of the claim API may be, and the other is not.
#[test]
fn output_that_no_request_has_room_for_is_not_kept() {
    let way = Way::gateway_with(&[]);
    for (bytes, output) in [(1_500_000, "kept"), (1_600_000, "omitted")] {
        let script = format!("{EFFECT} head -c {bytes} /dev/zero | tr '\\0' a");
        let job = way.job(output, &script).with(&["--max-output", "8MiB"]);
        for result in ["ran", "replayed"] {
            let ran = job.run();
            assert_eq!((ran.code(), ran.result()), (0, result));
            assert_eq!(ran.report["output"], output);
        }
    }
    assert_eq!(way.ran(), 2);
}

/// The answer to a claim is lost: it is sent again under its nonce, and the claim is this run's own. The
/// answer to its end is lost: it is told again.
#[test]
fn an_answer_that_is_lost_is_asked_for_again() {
    let behind = Way::gateway_with(&[]);
    let proxy = Proxy::start(behind.admin()).unwrap();
    let way = behind.proxied(proxy.address());
    proxy.once(Fault::CutAnswers);
    let ran = way
        .job("claim", &format!("{EFFECT} echo $SEMEL_ATTEMPT"))
        .run();
    assert_eq!((ran.code(), ran.stdout(), ran.stderr()), (0, "1\n", ""));
    assert_eq!((proxy.hits(), way.ran()), (1, 1));

    let script = format!("{EFFECT} echo begun; while [ ! -e go ]; do sleep 0.01; done");
    let job = way.job("end", &script);
    let mut running = job.start();
    assert_eq!(running.line(), "begun\n");
    proxy.once(Fault::CutAnswers);
    std::fs::write(way.path("go"), "").unwrap();
    let (status, _, err) = running.end();
    assert_eq!((status.code(), &*err), (Some(0), ""));
    assert_eq!((proxy.hits(), job.run().result()), (2, "replayed"));
    assert_eq!(way.ran(), 2);
}
