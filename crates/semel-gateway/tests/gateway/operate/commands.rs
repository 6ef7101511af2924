//! `semel records` and `semel audit`.

use serde_json::{Value, json};

use super::{PLACED, admin, failed, lines, lose, said, semel, semel_with};
use crate::support::{Gateway, Reaction, Script, order};

#[tokio::test]
async fn somebody_is_paged_at_three() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let id = lose(&upstream, &gateway, "order-4711").await;
    upstream.react(PLACED);
    let at = admin(&gateway);
    let run = |arguments: &[&str]| semel(&[arguments, &[&at[0], &at[1]]].concat());

    let table = said(&run(&["records", "list", "--stuck"]));
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("STATE") && rows.len() == 2, "{table}");
    assert!(
        rows[1].starts_with("unknown") && rows[1].ends_with(&id) && rows[1].contains("order…"),
        "{table}"
    );

    let shown = said(&run(&["records", "show", &id]));
    assert!(
        shown.contains("unknown: it may have had its effect")
            && shown.contains("resolve --happened"),
        "{shown}"
    );

    // Nobody can be asked here.
    let release = [
        "records",
        "resolve",
        &id,
        "--did-not-happen",
        "--reason",
        "no charge in the books",
    ];
    let (code, why) = failed(&run(&release));
    assert!(code == 2 && why.contains("--yes"), "{why}");
    assert_eq!(
        order(gateway.address, "order-4711").await.problem(),
        "outcome-unknown"
    );
    let done = said(&run(&[&release[..], &["--yes"]].concat()));
    assert!(done.contains("is released now; audit entry"), "{done}");
    assert_eq!(order(gateway.address, "order-4711").await.text(), "placed");

    let log = said(&run(&["audit"]));
    assert!(
        log.lines()
            .nth(1)
            .unwrap()
            .contains("no charge in the books"),
        "{log}"
    );
    let entries = lines(&run(&["audit", "--json"]));
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (&entries[0]["by"], &entries[0]["result"]),
        (&json!("local"), &json!("done"))
    );
}

#[tokio::test]
async fn a_gateway_and_its_store_say_the_same() {
    let upstream = Script::start(PLACED).await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("records.db").display());
    let gateway = Gateway::start(upstream.address, &["--store", &store]);
    for nth in 0..3 {
        assert_eq!(
            order(gateway.address, &format!("order-{nth}")).await.status,
            201
        );
    }
    let id = lose(&upstream, &gateway, "lost-order").await;
    let at = admin(&gateway);
    let by_gateway = |arguments: &[&str]| semel(&[arguments, &[&at[0], &at[1]]].concat());
    let on_store = |arguments: &[&str]| semel(&[arguments, &["--store", &store]].concat());
    // Ages go on.
    let same = |mut records: Vec<Value>| {
        for record in &mut records {
            record["age_seconds"] = Value::Null;
        }
        records
    };
    for command in [
        &["records", "list", "--json"][..],
        &["records", "show", &id, "--json"],
    ] {
        let (one, other) = (lines(&by_gateway(command)), lines(&on_store(command)));
        assert!(!one.is_empty());
        assert_eq!(same(one), same(other), "{command:?}");
    }
    let outcome = directory.path().join("answer.json");
    std::fs::write(&outcome, r#"{"status": 201, "body": "by hand"}"#).unwrap();
    let outcome = outcome.to_str().unwrap();
    let resolve = [
        "records",
        "resolve",
        &id,
        "--happened",
        "--outcome",
        outcome,
        "--reason",
        "seen in the books",
        "--yes",
        "--json",
    ];
    let done = &lines(&on_store(&resolve))[0];
    assert_eq!(
        (&done["state"], &done["resolved"]["by"]),
        (&json!("completed"), &json!("ada"))
    );
    assert_eq!(order(gateway.address, "lost-order").await.text(), "by hand");
    let (one, other) = (
        lines(&by_gateway(&["audit", "--json"])),
        lines(&on_store(&["audit", "--json"])),
    );
    assert_eq!(one, other);
    assert_eq!(
        (&one[0]["by"], &one[0]["reason"]),
        (&json!("ada"), &json!("seen in the books"))
    );

    let found = semel_with(
        &[
            "records",
            "show",
            "--key-stdin",
            "--json",
            "--store",
            &store,
        ],
        "lost-order\n",
    );
    assert_eq!(lines(&found)[0]["id"], id);
    let revealed = on_store(&[
        "records", "show", &id, "--reveal", "--reason", "asked", "--json",
    ]);
    assert_eq!(lines(&revealed)[0]["outcome"]["body"], "by hand");
    assert_eq!(
        lines(&on_store(&["audit", "--json"]))[0]["action"],
        "reveal"
    );
}

#[test]
fn shells_and_the_manual_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&semel(&["completions", shell]));
        for word in [
            "records",
            "resolve",
            "did-not-happen",
            "audit-retention",
            "top",
        ] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    said(&semel(&["man", directory.path().to_str().unwrap()]));
    let page = std::fs::read_to_string(directory.path().join("semel-records-resolve.1")).unwrap();
    assert!(page.contains("happened"), "{page}");
    for page in ["semel.1", "semel-top.1"] {
        assert!(directory.path().join(page).exists(), "{page}");
    }
}

/// What was not sent was not done; of the rest nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_not_answered_may_have_been_done() {
    let broken = Script::start(Reaction::Close).await;
    let ill = Script::start(Reaction::Send(
        "HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n",
    ))
    .await;
    let purge = ["records", "purge", "--reason", "r", "--yes"];
    let list = ["records", "list"];
    for (address, command, is_open) in [
        (broken.address.to_string(), &purge[..], true),
        (ill.address.to_string(), &purge, true),
        (broken.address.to_string(), &list, false),
        ("127.0.0.1:1".to_owned(), &purge, false),
    ] {
        let (code, why) = failed(&semel(&[command, &["--admin", &address]].concat()));
        assert_eq!(code, 1, "{why}");
        let is_said = why.contains("may have been done");
        assert_eq!(is_said, is_open, "{address} {command:?}: {why}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let id = lose(&upstream, &gateway, "order-1").await;
    let at = admin(&gateway);
    let zeros = "0".repeat(64);
    let file = crate::support::store_in(gateway.directory().path());
    for (arguments, code, part) in [
        (
            &["records", "show", "4711", &at[0], &at[1]][..],
            2,
            "64 hexadecimal digits",
        ),
        (&["records", "show", &zeros, &at[0], &at[1]], 1, "no-record"),
        (&["records", "show", &at[0], &at[1]], 2, "--key-stdin"),
        (
            &["records", "list", "--state", "lost", &at[0], &at[1]],
            1,
            "there are in-flight",
        ),
        (
            &["records", "list", "--state", "lost", "--store", "memory:"],
            2,
            "--state: there is no state",
        ),
        (
            &["records", "list", "--admin", "ftp://x"],
            2,
            "--admin: `ftp://x`",
        ),
        (
            &["records", "list", "--admin", "http://127.0.0.1:1"],
            1,
            "no gateway answers there",
        ),
        (
            &["records", "list", "--store", "mongodb://x"],
            2,
            "no store `mongodb:`",
        ),
        // The gateway has it open.
        (
            &["records", "list", "--store", &file],
            1,
            "ask the gateway: --admin",
        ),
        (
            &[
                "records", "release", &id, "--reason", "r", "--fence", "7", "--yes", &at[0], &at[1],
            ],
            1,
            "record-changed",
        ),
        (
            &[
                "records", "resolve", &id, "--reason", "r", "--yes", &at[0], &at[1],
            ],
            2,
            "--did-not-happen",
        ),
        (
            &[
                "records",
                "resolve",
                &id,
                "--happened",
                "--outcome",
                "/nowhere",
                "--reason",
                "r",
                "--yes",
                &at[0],
                &at[1],
            ],
            2,
            "/nowhere",
        ),
    ] {
        let (found, why) = failed(&semel(arguments));
        assert!(
            why.contains(part) && found == code,
            "{arguments:?}: {found} {why}"
        );
    }
}
