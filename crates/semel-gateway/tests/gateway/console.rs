//! The console without a browser: what its pages are sent with, and whose forms do anything. In a browser:
//! `tests/console/`.

use axum::http::Method;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::operate::PLACED;
use crate::support::{
    Answer, Gateway, PATIENCE, Reaction, Script, get, order, read_head, request, send, send_raw,
};

const TOKEN: &str = "0123456789abcdef-ops";

async fn form(gateway: &Gateway, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let fields = [&[kind], fields].concat();
    send(request(Method::POST, gateway.admin, path, &fields, body))
        .await
        .unwrap()
}

/// The number that forms of a page carry.
fn number(page: &Answer) -> String {
    let text = page.text();
    let (_, rest) = text.split_once("name=\"form\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn field<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers[name].to_str().unwrap()
}

#[tokio::test]
async fn pages_run_nothing_of_others_and_are_not_kept() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    for path in [
        "/",
        "/records",
        "/audit",
        "/policy",
        "/retention",
        "/records/none",
    ] {
        let page = get(gateway.admin, path).await;
        let policy = field(&page, "content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(field(&page, "cache-control"), "no-store", "{path}");
        assert_eq!(field(&page, "x-content-type-options"), "nosniff", "{path}");
        // Nothing is loaded from, or sent to, elsewhere.
        let text = page.text();
        let mut others = ["src", "href", "action"].into_iter();
        assert!(
            !others.any(|name| text.contains(&format!("{name}=\"http"))),
            "{path}"
        );
    }
    // The clients' listener has none of it.
    assert!(
        !get(gateway.address, "/records")
            .await
            .text()
            .contains("<html")
    );
}

#[tokio::test]
async fn a_form_is_of_a_page_of_this_gateway() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let number = number(&get(gateway.admin, "/records").await);
    assert_eq!(order(gateway.address, "order-4711").await.status, 201);
    let find = |number: &str| format!("form={number}&key=order-4711");
    let found = form(&gateway, "/records/find", &[], &find(&number)).await;
    // The key is in no address.
    let to = field(&found, "location");
    assert!(found.status == 303 && to.len() == 64, "{to}");
    // Nor on a page; but where it was looked for, since elsewhere it may be another record's.
    let elsewhere = find(&number) + "&scope=somebody&service=shop";
    let elsewhere = form(&gateway, "/records/find", &[], &elsewhere).await;
    assert_eq!(elsewhere.status, 404);
    let text = elsewhere.text();
    assert!(
        text.contains("the service “shop”") && text.contains("the scope “somebody”"),
        "{text}"
    );
    assert!(!text.contains("4711"), "{text}");
    let again = get(gateway.admin, "/records/find").await;
    assert_eq!(field(&again, "location"), "../records");
    for (fields, body) in [
        (&[][..], find("")),
        (&[], find(&"0".repeat(32))),
        (&[("sec-fetch-site", "cross-site")], find(&number)),
        (&[("sec-fetch-site", "same-site")], find(&number)),
        (&[("origin", "https://evil.example")], find(&number)),
        (&[("origin", "null")], find(&number)),
    ] {
        let refused = form(&gateway, "/records/find", fields, &body).await;
        assert_eq!(refused.status, 403, "{fields:?} {body}");
    }
    let huge = find(&number) + &"x".repeat(3 << 20);
    assert_eq!(
        form(&gateway, "/records/find", &[], &huge).await.status,
        400
    );
}

#[tokio::test]
async fn a_session_is_a_number_in_a_cookie_that_scripts_do_not_read() {
    let upstream = Script::start(PLACED).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let digest = Sha256::digest(TOKEN);
    let digest = hex::encode(digest);
    let text = format!(
        "upstream = \"http://{}\"\n[[tokens]]\nname = \"ops\"\nsha256 = \"{digest}\"\nrole = \"operator\"\n\
         [[tokens]]\nname = \"job\"\nsha256 = \"{}\"\nclaims = [\"*/*\"]\n",
        upstream.address,
        hex::encode(Sha256::digest("a token for claims")),
    );
    std::fs::write(file.path(), text).unwrap();
    let gateway = Gateway::start_with(file.path(), &[]);
    // Whoever is not signed in is sent there, and comes back.
    let away = get(gateway.admin, "/records?state=unknown").await;
    let to = field(&away, "location");
    assert_eq!(
        (away.status.as_u16(), to),
        (303, "./sign-in?to=records%3Fstate%3Dunknown")
    );
    let number = number(&get(gateway.admin, "/sign-in").await);
    let sign_in = |token: &str| format!("form={number}&to=records&token={token}");
    for (token, status) in [("nobody-knows-it", 401), ("a+token+for+claims", 403)] {
        let refused = form(&gateway, "/sign-in", &[], &sign_in(token)).await;
        assert_eq!(refused.status, status);
        assert!(!refused.headers.contains_key("set-cookie"));
        assert!(!refused.text().contains(token));
    }
    // Of strangers little is read: what signs in, and no more than that needs.
    let long = sign_in(TOKEN) + "&more=" + &"x".repeat(5 << 10);
    assert_eq!(form(&gateway, "/sign-in", &[], &long).await.status, 400);
    let unread = format!(
        "POST /records/find HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000000\r\n\r\n",
        gateway.admin
    );
    let mut unread = send_raw(gateway.admin, &unread).await;
    let answer = timeout(PATIENCE, read_head(&mut unread)).await.unwrap();
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 303 "), "{answer}");
    // They are told so, and come back to where they were.
    let to = "/sign-in?to=records%2Ffind&why=unsent";
    assert!(answer.contains(to), "{answer}");
    let page = get(gateway.admin, to).await;
    assert!(page.text().contains("Nothing was done"), "{}", page.text());
    let host = format!("https://{}", gateway.admin);
    for (fields, is_secure) in [(&[][..], false), (&[("origin", host.as_str())], true)] {
        let begun = form(&gateway, "/sign-in", fields, &sign_in(TOKEN)).await;
        assert_eq!(field(&begun, "location"), "./records");
        let cookie = field(&begun, "set-cookie");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN));
        assert_eq!(cookie.contains("; Secure"), is_secure, "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let ask = async |path: &str| {
            let fields = [("cookie", pair)];
            send(request(Method::GET, gateway.admin, path, &fields, ""))
                .await
                .unwrap()
        };
        let page = ask("/records").await;
        assert!(page.status == 200 && page.text().contains("Sign out"));
        // The API does not know sessions: a browser sends them along by itself.
        assert_eq!(ask("/api/v1/records").await.problem(), "unauthorized");
        // The number of a page before the session is not that of its forms.
        let fields = [("cookie", pair)];
        assert_eq!(
            form(&gateway, "/sign-out", &fields, &sign_in(""))
                .await
                .status,
            403
        );
        let (_, rest) = page.text().split_once("name=\"form\" value=\"").unwrap();
        let own = format!("form={}", rest.split('"').next().unwrap());
        assert_eq!(form(&gateway, "/sign-out", &fields, &own).await.status, 303);
        assert_eq!(ask("/records").await.status, 303);
    }
}

/// What narrows a list is shown with it, and holds for each of its states.
#[tokio::test]
async fn a_list_says_what_it_is_narrowed_by() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    let page = get(gateway.admin, "/records?stuck=true&route=orders").await;
    let text = page.text();
    assert!(text.contains("name=\"route\" value=\"orders\""), "{text}");
    assert!(text.contains("?state=unknown&#38;route=orders\""), "{text}");
    assert!(!text.contains("No outcome is unknown"), "{text}");
    let whole = get(gateway.admin, "/records?stuck=true").await;
    assert!(whole.text().contains("No outcome is unknown"));
}

#[tokio::test]
async fn of_a_key_that_was_given_back_nothing_is_replayed() {
    let failed = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
    let upstream = Script::start(Reaction::Send(failed)).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(order(gateway.address, "order-1").await.status, 500);
    let id = &upstream.fields("idempotency-id")[0][0];
    let page = get(gateway.admin, &format!("/records/{id}")).await;
    let text = page.text();
    assert!(
        text.contains("Kept until") && !text.contains("Replayed until"),
        "{text}"
    );
    // It is one of the records, and not any of them.
    assert!(text.contains("aria-current=\"page\">Records</a>"), "{text}");
    assert!(text.contains("<title>released: POST "), "{text}");
}

/// Of what a form was answered with, the browser asks again: it is the record's page.
#[tokio::test]
async fn what_an_action_showed_leads_back_to_its_record() {
    let upstream = Script::start(PLACED).await;
    let gateway = Gateway::start(upstream.address, &[]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    let id = upstream.fields("idempotency-id")[0][0].clone();
    let page = get(gateway.admin, &format!("/records/{id}")).await;
    let (path, number) = (format!("/records/{id}/reveal"), number(&page));
    let reveal = format!("form={number}&fence=1&reason=asked");
    let revealed = form(&gateway, &path, &[], &reveal).await;
    assert!(revealed.text().contains("placed"), "{}", revealed.text());
    let again = get(gateway.admin, &path).await;
    let to = format!("../{id}");
    assert_eq!(
        (again.status.as_u16(), field(&again, "location")),
        (303, &*to)
    );
    assert_eq!(get(gateway.admin, "/records/4711/reveal").await.status, 400);
}

/// From the page for many records; a form is of whoever its page was shown to.
#[tokio::test]
async fn a_scope_is_erased_by_two() {
    let upstream = Script::start(PLACED).await;
    let tokens = [("ada", "admin"), ("ben", "admin"), ("cy", "operator")].map(|(name, role)| {
        let digest = Sha256::digest(format!("token-of-{name}"));
        let digest = hex::encode(digest);
        format!("[[tokens]]\nname = \"{name}\"\nsha256 = \"{digest}\"\nrole = \"{role}\"\n")
    });
    let settings = format!(
        "upstream = \"http://{}\"\nfour-eyes = [\"erase\"]\n",
        upstream.address
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings + &tokens.concat()).unwrap();
    let gateway = Gateway::start_with(file.path(), &[]);
    assert_eq!(order(gateway.address, "order-1").await.status, 201);
    let read = async |name: &str, path: &str| {
        let bearer = format!("Bearer token-of-{name}");
        let fields = [("authorization", &*bearer)];
        send(request(Method::GET, gateway.admin, path, &fields, ""))
            .await
            .unwrap()
    };
    let sent = async |name: &str, action: &str, body: &str| {
        let bearer = format!("Bearer token-of-{name}");
        let path = format!("/retention/{action}");
        form(&gateway, &path, &[("authorization", &bearer)], body).await
    };
    // Every page that they see has a form: to find a record.
    let number_of = async |name: &str| number(&read(name, "/records").await);
    let [ada, ben, cy] = [
        number_of("ada").await,
        number_of("ben").await,
        number_of("cy").await,
    ];
    assert_ne!(ada, ben);
    let erase = |form: &str| format!("form={form}&scope=anonymous&scope=&service=&reason=asked");
    // Another's form, and another's right.
    assert_eq!(sent("ada", "erase", &erase(&ben)).await.status, 403);
    assert_eq!(sent("cy", "erase", &erase(&cy)).await.status, 403);
    let nothing = sent("ada", "reveal", &erase(&ada)).await;
    assert_eq!(nothing.status, 400, "{nothing:?}");
    let proposed = sent("ada", "erase", &erase(&ada)).await;
    let to = field(&proposed, "location").to_owned();
    let entry = to.strip_prefix("../retention?entry=").unwrap();
    // Whoever is given the address of the page proposed nothing.
    let told = format!("/retention?entry={entry}");
    let proposed = format!("Proposed as {entry}");
    assert!(read("ada", &told).await.text().contains(&proposed));
    assert!(!read("ben", &told).await.text().contains(&proposed));
    assert!(order(gateway.address, "order-1").await.is_replay());
    let page = read("ben", "/retention").await;
    let confirms = format!("name=\"proposal\" value=\"{entry}\"");
    assert!(page.text().contains("ada proposed this"), "{}", page.text());
    assert!(page.text().contains(&confirms), "{}", page.text());
    assert!(!read("ada", "/retention").await.text().contains(&confirms));
    let confirm = erase(&ben) + "&proposal=" + entry;
    let done = sent("ben", "erase", &confirm).await;
    let to = field(&done, "location").strip_prefix("..").unwrap();
    let page = read("ben", to).await;
    assert!(page.text().contains("<b>Done.</b>") && page.text().contains(" 1 record."));
    // Nor did others, and the proposal waits no more.
    for (name, path) in [
        ("ada", to),
        ("ada", &*told),
        ("ben", "/retention?entry=1-1"),
    ] {
        let page = read(name, path).await;
        assert!(!page.text().contains("Done."), "{name} {path}");
        assert!(!page.text().contains("Proposed as"), "{name} {path}");
    }
    assert!(!read("ben", "/retention").await.text().contains(&confirms));
    let expired = order(gateway.address, "order-1").await;
    assert_eq!(expired.problem(), "expired");
    let purged = sent("ada", "purge", &format!("form={ada}&reason=room")).await;
    assert!(field(&purged, "location").contains("entry="));
    let log = read("cy", "/audit/export").await;
    assert_eq!(field(&log, "content-type"), "application/jsonl");
    let entries = log.text().lines().map(|line| {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        ["action", "by", "result"].map(|name| entry[name].as_str().unwrap().to_owned())
    });
    let expected = [
        ["purge", "ada", "done"],
        ["erase-scope", "ben", "done"],
        ["erase-scope", "ada", "proposed"],
    ];
    assert!(entries.eq(expected), "{}", log.text());
}
