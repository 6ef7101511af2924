//! Who owns a key (rows 16 to 19): credentials that say it, and credentials that do not.

use http::header::AUTHORIZATION;

use semel_tower::Mode;

use crate::support::{App, Call, layer};

fn with(credentials: &str) -> Call {
    Call::order().header("authorization", credentials)
}

/// A retry is signed anew. Taken as a principal, each would be a caller of its own, and run.
#[tokio::test]
async fn row_17_credentials_that_may_differ_in_each_request_are_refused() {
    for scheme in [
        "Digest username=\"a\", nc=00000001, cnonce=\"x\"",
        "AWS4-HMAC-SHA256 Credential=a/20261122/eu/s3/aws4_request, Signature=1f",
        "OAuth oauth_consumer_key=\"a\", oauth_nonce=\"1\"",
        "Hawk id=\"a\", ts=\"1\", nonce=\"n\", mac=\"m\"",
        "Signature keyId=\"a\",signature=\"s\"",
        "Negotiate YII",
        "SharedKey account:mac",
        "DPoP token",
        "Unheard-of secret",
        "bare-secret",
        "BearerToken secret",
        "\u{e9} secret",
    ] {
        let app = App::orders(layer());
        let answer = app.send(with(scheme)).await;
        answer.assert_problem(400, "missing-principal");
        let text = answer.text();
        assert!(text.contains("with_principal_header"), "{text}");
        assert!(text.contains("--scope-header"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(app.execs(), 0);
        // Without a key nobody has to own one.
        let unkeyed = Call::new(http::Method::PUT, "/orders").header("authorization", scheme);
        app.send(unkeyed).await.assert_first(201);
    }
}

#[tokio::test]
async fn row_17_one_line_of_several_is_enough_to_be_refused() {
    let app = App::orders(layer());
    let two = with("Bearer a").header("authorization", "Digest nc=1");
    app.send(two).await.assert_problem(400, "missing-principal");
    assert_eq!(app.execs(), 0);
}

#[tokio::test]
async fn row_16_bearer_and_basic_are_principals() {
    for scheme in [
        "Bearer t",
        "bearer t",
        "BEARER  t",
        "Basic YTpi",
        "basic\tYTpi",
    ] {
        let app = App::orders(layer());
        let first = app.send(with(scheme)).await;
        first.assert_first(201);
        app.send(with(scheme)).await.assert_replay_of(&first);
        app.send(with("Bearer other")).await.assert_first(201);
        assert_eq!(app.execs(), 2, "{scheme}");
    }
}

/// Whoever says which field it is has decided.
#[tokio::test]
async fn row_17_a_principal_of_ones_own_takes_every_scheme() {
    let app = App::orders(layer().with_principal_header("x-user"));
    let signed = |nc: &str| with(&format!("Digest nc={nc}")).header("x-user", "a");
    let first = app.send(signed("1")).await;
    app.send(signed("2")).await.assert_replay_of(&first);

    let by_function = layer().with_principal_by(|_| Some(semel::Scope::new(["a"])));
    let app = App::orders(by_function);
    let first = app.send(with("Digest nc=1")).await;
    app.send(with("Digest nc=2")).await.assert_replay_of(&first);
}

/// Named as the principal's field, `Authorization` counts whatever its scheme, by its digest.
#[tokio::test]
async fn row_16_a_scheme_that_is_known_to_be_stable_can_be_allowed() {
    use crate::support::{Memory, layer_over};
    use semel::store::{ListQuery, Store as _};
    let store = Memory::default();
    let app = App::orders(layer_over(&store).with_principal_header(AUTHORIZATION));
    let first = app.send(with("Token secret")).await;
    first.assert_first(201);
    app.send(with("Token secret"))
        .await
        .assert_replay_of(&first);
    app.send(with("Token other")).await.assert_first(201);
    let query = ListQuery::new(semel::StateKind::Completed);
    let shown = format!("{:?}", store.list(&query).await.unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn row_19_an_empty_principal_is_none() {
    for empty in ["", "  ", "Bearer", "Bearer ", "basic"] {
        let app = App::orders(layer().with_principal_required(true));
        app.send(with(empty))
            .await
            .assert_problem(400, "missing-principal");
        // It shares what callers without a field share.
        let app = App::orders(layer());
        let first = app.send(with(empty)).await;
        app.send(Call::order()).await.assert_replay_of(&first);
    }
    let user = "x-user";
    let named = layer()
        .with_principal_header(user)
        .with_principal_required(true);
    let app = App::orders(named);
    for empty in ["", " ", "\t "] {
        app.send(Call::order().header("x-user", empty))
            .await
            .assert_problem(400, "missing-principal");
    }
    assert_eq!(app.execs(), 0);
}

/// Nothing of a request is looked at: neither its key, nor whose it is.
#[tokio::test]
async fn a_layer_that_does_not_protect_lets_everything_pass() {
    let layer = layer().with_mode(Mode::Off).with_principal_required(true);
    let app = App::orders(layer);
    for call in [Call::order(), Call::order(), with("Digest nc=1")] {
        app.send(call).await.assert_first(201);
    }
    assert_eq!(app.execs(), 3);
}
