//! Files that are not right: each has one message of its own, which names the line, what is wrong and what
//! is allowed.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::routes::file;

/// A file and its message, without the path in front.
const BROKEN: [(&str, &str); 65] = [
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-header = \"Accept-Encoding\"",
        "3: route 1: key-header: `accept-encoding` has another meaning; a field that says nothing else is allowed, like Idempotency-Key or X-Key",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-header = \"Expect\"",
        "3: route 1: key-header: `expect` has another meaning; a field that says nothing else is allowed, like Idempotency-Key or X-Key",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nreplay-header = \"Set-Cookie\"",
        "3: route 1: replay-header: `set-cookie` has another meaning; a field that says nothing else is allowed, like Idempotency-Replayed, or none",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nreplay-header = \"Repeatability-Result\"",
        "3: route 1: replay-header: `repeatability-result` has another meaning; a field that says nothing else is allowed, like Idempotency-Replayed, or none",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nreplay-header = \"X-Key\"\nkey-header = \"X-Key\"",
        "3: route 1: replay-header: `x-key` is the field of the key; another one is allowed, or none",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npreset = \"adcp\"\ndialect = \"problem\"",
        "4: route 1: dialect: the preset adcp has a dialect of its own, `adcp`, and no other can be said",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npreset = \"oasis\"\nkey-member = \"op\"",
        "4: route 1: key-member: the preset oasis has keys in a field, beside that of their date: say key-header",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nfingerprint-header = \"X-Version,Authorization\"",
        "3: route 1: fingerprint-header: `authorization` differs from one transmission to another; fields are allowed that say the same in each retry of an operation",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkept-header = \"Content-Length\"",
        "3: route 1: kept-header: `content-length` is made anew for each answer; all fields of answers are allowed that do not end with a connection",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-syntax = \"strict\"\nkey-member = \"op\"",
        "3: route 1: key-syntax: has no meaning where the key is in the body; key-rule and key-max have one",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-rule = \"uuid\"",
        "3: route 1: key-rule: `uuid` is none of general, strict, uuid-v7",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-syntax = \"quoted\"",
        "3: route 1: key-syntax: `quoted` is none of lenient, strict",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\ndialect = \"rfc9457\"",
        "3: route 1: dialect: `rfc9457` is none of problem, stripe, adcp, acp, iceberg, odata",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nbody-form = \"text\"",
        "3: route 1: body-form: `text` is none of json, raw",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-header = \"X-Request-Id\"",
        "3: route 1: key-header: `x-request-id` has another meaning; a field that says nothing else is allowed, like Idempotency-Key or X-Key",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nreplay-header = \"Content-Type\"",
        "3: route 1: replay-header: `content-type` has another meaning; a field that says nothing else is allowed, like Idempotency-Replayed, or none",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-member = \"\"",
        "3: route 1: key-member: a member's name is missing",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-max = 256",
        "3: route 1: key-max: `256` is too long: no key has more than 255 bytes",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-rule = \"strict\"\nkey-max = 15",
        "4: route 1: key-max: `15` is too short: the shortest key of this rule has 16 bytes",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkey-methods = [\"POST\", \"GET\"]",
        "3: route 1: key-methods: `GET` changes nothing: keys never count there",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npreset = \"acp\"\nscope-target = false",
        "4: route 1: scope-target: the preset acp compares bodies only: method and path have to belong to the scope",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npreset = \"adcp\"\nfingerprint-header = \"X-Version\"",
        "4: route 1: fingerprint-header: the preset adcp says itself what makes two requests the same",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nkept-header = \"Set Cookie\"",
        "3: route 1: kept-header: `Set Cookie` cannot be the name of a header field",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\ntombstone = \"a week\"",
        "3: route 1: tombstone: `a week` is not a duration; write it like 500ms, 30s, 24h or 7d",
    ),
    (
        "[[routes]]\npath = \"/a\"",
        "1: route 1: `upstream` is required in each route, or at the top for all",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nmax-bdoy = \"1KiB\"",
        "3: route 1: there is no setting `max-bdoy`; did you mean `max-body`?",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nrequire_key = true",
        "3: route 1: there is no setting `require_key`; did you mean `require-key`?",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nscope-header = \"X-Account\"",
        "3: route 1: there is no setting `scope-header`; did you mean `scope`?",
    ),
    (
        "upstream = \"http://a\"\nscope = \"X-Account\"",
        "2: there is no setting `scope`; did you mean `scope-header`?",
    ),
    (
        "upstream = \"http://a\"\n[[route]]\npath = \"/a\"",
        "2: there is no setting `route`; did you mean `routes`?",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nlisten = \"127.0.0.1:80\"",
        "3: route 1: there is no setting `listen`; known are name, host, path, methods, protect, upstream,",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nname = \"n\"\npath = \"/x\"\n[[routes]]\nname = \"n\"",
        "5: route 2: route 1 is called `n` as well",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nttl = \"payments\"",
        "3: route 1: ttl: `payments` is not a duration, nor one of payment, order, email, api and webhook",
    ),
    (
        "upstream = \"http://a\"\nlease = \"1s\"\n\n[[routes]]\nlease = \"1ms\"",
        "5: route 1: lease: `1ms` is too short: a lease is 30ms at least",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\non-lost = \"maybe\"",
        "3: route 1: on-lost: `maybe` is none of hold, retry and reconcile",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nmax-body = \"big\"",
        "3: route 1: max-body: `big` is not a size; write it like 64KiB or 1MiB",
    ),
    (
        "[[routes]]\nupstream = \"a:1\"",
        "2: route 1: upstream: the scheme is missing; write it like http://127.0.0.1:9000",
    ),
    (
        "[[routes]]\nupstream = [\"http://a\", \"http://b/c\"]",
        "2: route 1: upstream: a path is not supported, since requests keep theirs",
    ),
    (
        "[[routes]]\nupstream = \"http://127.0.0.1:8080\"",
        "2: route 1: upstream is --listen itself, 127.0.0.1:8080: requests would come back",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nhost = \"a:80\"",
        "3: route 1: host: `a:80` is not a host; write it like shop.example.com or *.example.com",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"v1\"",
        "3: route 1: path: `v1` does not begin with a slash; write it like /v1/orders",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/v1/*/lines\"",
        "3: route 1: path: `/v1/*/lines` has a `*` that is not its last segment",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/v1/pay-{id}\"",
        "3: route 1: path: `/v1/pay-{id}` has a brace that is not around a whole segment",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/v1/../x\"",
        "3: route 1: path: `/v1/../x` has `.`, `..`, `;`, `\\` or an encoded slash",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/v1?a=1\"",
        "3: route 1: path: `/v1?a=1` is more than a path: queries do not count",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nmethods = [\"post\"]",
        "3: route 1: methods: `post` is not a method; write it like POST or PATCH",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nmethod = \"POST\"",
        "3: route 1: there is no setting `method`; did you mean `methods`?",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nmethods = [1]",
        "3: route 1: `methods` must be a text, a number or true or false, or a list of texts",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nprotect = \"no\"",
        "3: route 1: protect: `no` is neither true nor false",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nprotect = false\nttl = \"1h\"",
        "4: route 1: ttl: has no meaning with `protect = false`",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nservice = \"a@b\"",
        "3: route 1: service: `a@b` cannot name a service",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\nscope = [\"X Account\"]",
        "3: route 1: scope: `X Account` cannot be the name of a header field",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\ndispositions = { 99 = \"keep\" }",
        "3: route 1: dispositions: `99` is not a status from 200 to 599, nor 2xx to 5xx",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\ndispositions = { 502 = \"retry\" }",
        "3: route 1: dispositions: `retry` is none of keep, release and unknown",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\ndispositions = 502",
        "3: route 1: `dispositions` must be a section",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\n[[routes]]\npath = \"/a\"",
        "3: route 2: is never reached: route 1 before it takes all its requests",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/v1/*\"\n[[routes]]\npath = \"/v1/a\"\nmethods = \"POST\"",
        "4: route 2: is never reached: route 1 before it takes all its requests",
    ),
    (
        "upstream = \"http://a\"\nroutes = 1",
        "2: `routes` must be sections: [[routes]]",
    ),
    (
        "upstream = \"http://a\"\nroutes = [1]",
        "2: route 1: a route must be a section: [[routes]]",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\npath = \"/a\"\npath = \"/b\"",
        "4: duplicate key",
    ),
    ("upstream = \"http://a\"\n[[routes]\n", "2: "),
    (
        "upstream = \"http://a\"\n[reconcile]\nevrey = \"1s\"",
        "3: there is no setting `reconcile.evrey`; did you mean `reconcile.every`?",
    ),
    (
        "upstream = \"http://a\"\nmax-body-memory = \"1MiB\"\n[[routes]]\nmax-body = \"2MiB\"",
        "--max-body is more than --max-body-memory",
    ),
    (
        "upstream = \"http://a\"\n[[routes]]\non-lost = \"reconcile\"",
        "--on-lost reconcile needs --reconciler",
    ),
    (
        "[[routes]]\nupstream = \"h2c://a\"\npreserve-host = true",
        "2: route 1: upstream: an h2c:// upstream cannot be used with --preserve-host",
    ),
];

fn check(text: &str, flags: &[&str]) -> (String, Output) {
    let file = file(text, &[]);
    let path = file.path().to_str().unwrap().to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["check", "--no-open", "--config", &path])
        .args(flags)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (path, output)
}

#[test]
fn each_broken_file_has_one_message_of_its_own() {
    let mut messages = BTreeSet::new();
    for (text, expected) in BROKEN {
        let (path, output) = check(text, &[]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(output.stdout.is_empty(), "{text}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{text}\n{said}");
        let said = said.trim_end().strip_prefix("error: ").unwrap();
        // What belongs to no line is about flags as well.
        let expected = match expected.starts_with("--") {
            true => expected.to_owned(),
            false => format!("{path}:{expected}"),
        };
        assert!(said.starts_with(&expected), "{said}\nand not\n{expected}");
        messages.insert(said.replace(&path, ""));
    }
    assert_eq!(messages.len(), BROKEN.len(), "{messages:#?}");
}

/// Whether a value is as the schema says, of the keywords that it uses.
fn fits(schema: &Value, value: &Value) -> bool {
    let fits_word = |(keyword, said): (&String, &Value)| match (&**keyword, value) {
        ("$schema" | "title" | "description" | "default", _) => true,
        ("type", _) => match said {
            Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
            kind => is_a(kind, value),
        },
        ("enum", _) => said.as_array().unwrap().contains(value),
        ("minimum", Value::Number(number)) => number.as_f64() >= said.as_f64(),
        ("items", Value::Array(items)) => items.iter().all(|item| fits(said, item)),
        ("additionalProperties", Value::Object(members)) => {
            let other = |name: &str| {
                let is_named = schema["properties"].get(name).is_some();
                !is_named && pattern(schema).is_none_or(|_| !is_status(name))
            };
            let mut others = members.iter().filter(|(name, _)| other(name));
            others.all(|(_, member)| match said {
                Value::Bool(is_allowed) => *is_allowed,
                schema => fits(schema, member),
            })
        }
        ("properties", Value::Object(members)) => members
            .iter()
            .all(|(name, member)| said.get(name).is_none_or(|schema| fits(schema, member))),
        ("patternProperties", Value::Object(members)) => {
            let of_pattern = pattern(schema).unwrap();
            let mut named = members.iter().filter(|(name, _)| is_status(name));
            named.all(|(_, member)| fits(of_pattern, member))
        }
        ("minimum" | "items" | "additionalProperties" | "properties" | "patternProperties", _) => {
            true
        }
        (other, _) => panic!("{other} is not known here"),
    };
    schema.as_object().unwrap().iter().all(fits_word)
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is not known here"),
    }
}

/// What holds for names of the one pattern that there is.
fn pattern(schema: &Value) -> Option<&Value> {
    let patterns = schema.get("patternProperties")?.as_object().unwrap();
    assert_eq!(
        patterns.keys().collect::<Vec<_>>(),
        ["^([2-5]xx|[2-5][0-9][0-9])$"]
    );
    patterns.values().next()
}

fn is_status(name: &str) -> bool {
    let (class, rest) = name.split_at(1);
    name.len() == 3
        && ["2", "3", "4", "5"].contains(&class)
        && (rest == "xx" || rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// An editor with the schema takes the sample, and marks names and words that there are not.
#[test]
fn the_schema_tells_right_from_wrong() {
    let schema = include_str!("../../../../docs/semel.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let read = |text: &str| toml::from_str::<Value>(text);
    assert!(fits(&schema, &read(sample()).unwrap()));
    let mut refused = 0;
    for (text, message) in BROKEN {
        let is_for_schema = [
            "there is no setting",
            "is none of ",
            "must be",
            "neither true nor",
        ]
        .iter()
        .any(|what| message.contains(what));
        if let Ok(file) = read(text)
            && is_for_schema
        {
            assert!(!fits(&schema, &file), "{text}");
            refused += 1;
        }
    }
    assert!(refused >= 19, "{refused}");
}

#[test]
fn all_errors_of_a_file_are_told_at_once_and_in_order() {
    let text = "ttl = \"soon\"\n[[routes]]\nleese = 1\nwait = \"x\"\n[[routes]]\npath = \"b\"\n";
    let (path, output) = check(text, &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    let starts = [
        "3: route 1: there is",
        "1: ttl:",
        "2: route 1: `upstream`",
        "4: route 1: wait:",
        "5: route 2: `upstream`",
        "6: route 2: path:",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{said}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(
            line.starts_with(&format!("error: {path}:{start}")),
            "{said}"
        );
    }
}

/// The sample of the documentation, and what it says of requests.
const SAMPLE: &str = include_str!("../../../../docs/gateway.md");

fn sample() -> &'static str {
    let blocks = SAMPLE.split("```toml\n").skip(1);
    let mut blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    blocks
        .find(|block| block.matches("[[routes]]").count() == 10)
        .unwrap()
}

#[test]
fn what_holds_in_each_route_is_shown_with_where_it_comes_from() {
    let (path, output) = check(sample(), &["--wait", "1s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let routes: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(routes.len(), 12, "{text}");
    for (nth, route) in routes[1..11].iter().enumerate() {
        assert!(route.starts_with(&path), "{route}");
        assert!(
            route.contains(&format!(": route {}:\n", nth + 1)),
            "{route}"
        );
    }
    assert_eq!(routes[11], "all others: as at the top\n");
    let holds = |nth: usize, name: &str, value: &str| {
        let lines = routes[nth]
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut lines = lines.filter(|words| words[0] == name);
        lines.any(|words| words.join(" ").contains(value))
    };
    // Said by the route, by the top, by a flag, by nobody.
    assert!(holds(2, "ttl", "payment"));
    assert!(holds(3, "ttl", &format!("order ({path}:3: ttl)")));
    assert!(holds(3, "wait", "1s (--wait)"));
    assert!(holds(4, "wait", &format!("5s ({path}:29: route 4: wait)")));
    assert!(holds(3, "lease", "30s (default)"));
    assert!(holds(10, "dispositions", "5xx: unknown"));
    // Nothing about keys where they are not looked at.
    assert!(!routes[1].contains("ttl"), "{}", routes[1]);
}

#[test]
fn a_request_is_explained() {
    let explain = |flags: &[&str]| {
        let (_, output) = check(sample(), flags);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("secret"), "{text}");
        text
    };
    let key = "Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324";
    let paying = [
        "--request",
        "POST /v1/payments/7",
        "--header",
        key,
        "--header",
        "X-Account: secret",
    ];
    let text = explain(&paying);
    for line in [
        "request            POST /v1/payments/7 for 127.0.0.1",
        "not route 1        another path: any /healthz,/static/*",
        "scope              x-account … x-forwarded-host …",
        "operation          http@payments",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    assert!(text.contains(
        "\nroute              route 2: POST,PATCH /v1/payments/* to http://127.0.0.1:9001"
    ));
    assert!(text.contains("\n  ttl                payment  ("), "{text}");
    let identity = |text: &str| {
        text.rsplit_once("identity")
            .map(|(_, id)| id.trim().to_owned())
    };
    assert_eq!(identity(&text).unwrap().len(), 64);
    let other = explain(&[&paying[..5], &["X-Account: secret too"]].concat());
    assert_ne!(identity(&text), identity(&other));

    for (request, answer) in [
        ("POST /v1/payments", "400 missing-key"),
        (
            "GET /v1/payments",
            "the upstream's: there is no key to look at",
        ),
        ("POST /v1/%2e/payments", "400 ambiguous-path"),
        (
            "POST /static/a",
            "the upstream's: keys are not looked at (protect)",
        ),
        ("CONNECT a:80", "501 not-supported"),
    ] {
        let text = explain(&["--request", request]);
        assert!(
            text.contains(&format!("\nanswer             {answer}")),
            "{text}"
        );
    }
    // By its host; and by what the key is refused for.
    let text = explain(&["--request", "POST http://a.reports.example.com/x"]);
    assert!(text.contains("\nroute              route 9: "), "{text}");
    let text = explain(&["--request", "POST /x", "--header", "Host: mail.example.com"]);
    assert!(text.contains("\nroute              route 6: "), "{text}");
    let text = explain(&[
        "--request",
        "POST /x",
        "--header",
        "Idempotency-Key: secret secret \"",
    ]);
    assert!(text.contains("400 invalid-key"), "{text}");
    // Of a preset that has the key in the body.
    let body = r#"{"idempotency_key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}"#;
    let json = "Content-Type: application/json";
    let flags = ["--request", "POST /x", "--header", json, "--body", body];
    let (_, output) = check("upstream = \"http://a\"\npreset = \"adcp\"\n", &flags);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nkey                8e03978e…\n"), "{text}");
    for (request, header) in [
        ("/x", "a: b"),
        ("POST", "a: b"),
        ("P@ST /", "a: b"),
        ("POST /", "secret"),
    ] {
        let (_, output) = check(sample(), &["--request", request, "--header", header]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("write it like") && !said.contains("secret"),
            "{said}"
        );
    }
}

#[test]
fn other_commands_take_a_file_with_routes() {
    let file = file(sample(), &[]);
    let output = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["migrate", "--store", "memory:", "--config"])
        .arg(file.path())
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
