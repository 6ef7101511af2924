//! The console without a browser: what its pages are sent with, and whose forms do anything. In a browser:
//! `tests/console/`.

use axum::http::Method;
use sha2::{Digest as _, Sha256};

use crate::operate::PLACED;
use crate::support::{Answer, Gateway, Script, get, request, send};

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
    for path in ["/", "/records", "/audit", "/policy", "/records/none"] {
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
    let find = |number: &str| format!("form={number}&key=a+key+that+nobody+sent");
    let found = form(&gateway, "/records/find", &[], &find(&number)).await;
    // The key is in no address.
    let to = field(&found, "location");
    assert!(found.status == 303 && to.len() == 64, "{to}");
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
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!(
        "upstream = \"http://{}\"\n[[tokens]]\nname = \"ops\"\nsha256 = \"{digest}\"\nrole = \"operator\"\n\
         [[tokens]]\nname = \"job\"\nsha256 = \"{}\"\nclaims = [\"*/*\"]\n",
        upstream.address,
        Sha256::digest("a token for claims")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>(),
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
