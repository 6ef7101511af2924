//! What is wrong with how callers are to be verified.

use std::process::Command;

use super::{KeyFile, Signer};

/// What `semel check` says on stderr.
fn said(flags: &[&str], file: &str) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.toml");
    std::fs::write(&path, file).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["check", "--no-open", "--upstream", "http://127.0.0.1:9000"])
        .arg("--config")
        .arg(&path)
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8(checked.stderr).unwrap();
    (checked.status.success(), said)
}

#[test]
fn what_would_let_in_nobody_or_anybody_is_refused_at_the_start() {
    let keys = KeyFile::of(&[&Signer::new("one")]);
    let path = keys.path.to_str().unwrap();
    let jwt = [
        "--principal",
        "jwt",
        "--jwt-jwks",
        path,
        "--jwt-issuer",
        "i",
    ];
    for (flags, expected) in [
        (
            &["--principal", "saml"][..],
            "`saml` is none of jwt, auth and certificate",
        ),
        (&["--principal", "jwt,jwt"], "`jwt` is named twice"),
        (&["--principal", "jwt"], "--principal jwt needs --jwt-jwks"),
        (&jwt[..4], "--principal jwt needs --jwt-issuer"),
        (
            &["--principal", "auth"],
            "--principal auth needs --auth-url",
        ),
        (&["--principal", "certificate"], "needs --tls-client-ca"),
        (
            &["--jwt-issuer", "i"],
            "--jwt-issuer is used with --principal jwt only",
        ),
        (
            &["--auth-url", "http://a/"],
            "--auth-url is used with --principal auth only",
        ),
        (
            &["--jwt-algorithms", "none"],
            "`none` is not accepted; there are RS256",
        ),
        (
            &["--jwt-algorithms", "RS256,HS256"],
            "`HS256` signs with a secret",
        ),
        (
            &["--jwt-claims", "sub,,tenant"],
            "--jwt-claims: a name in it is empty",
        ),
        (&["--jwt-leeway", "6m"], "`6m` is too long: 5m at most"),
        (&["--jwt-refresh", "0s"], "`0s` is too short: 1s at least"),
        (
            &["--jwt-jwks", "ftp://a/"],
            "only http:// and https:// are supported",
        ),
        (
            &["--jwt-jwks", "http://u:secret@a/"],
            "a user name or password in the URL",
        ),
        (&["--auth-url", "127.0.0.1:9000"], "--auth-url: "),
        (&["--auth-cache", "2h"], "`2h` is too long: 1h at most"),
        (&["--auth-timeout", "0s"], "must be longer than nothing"),
        (&["--auth-fields", "Host"], "`host` cannot be a credential"),
        (
            &["--auth-principal-header", "a b"],
            "`a b` cannot be the name",
        ),
        (&["--trusted-scope"], "--trusted-scope needs --scope-header"),
        (
            &["--trusted-scope", "--scope-header", "X-A"],
            "--trusted-scope needs --trust-forwarded",
        ),
        (
            &[
                "--trusted-scope",
                "--scope-header",
                "Cookie",
                "--trust-forwarded",
                "::1",
            ],
            "--trusted-scope would take `cookie` from clients",
        ),
        (
            &["--limits-new-keys", "50"],
            "`50` is not a rate; write it like 50/s",
        ),
        (&["--limits-new-keys", "0/s"], "`0/s` is not a rate"),
        (&["--limits-new-keys", "5/week"], "`5/week` is not a rate"),
        (&["--limits-running", "0"], "`0` is not a number from 1"),
        (
            &["--limits-kept", "much/h"],
            "`much/h` is not a rate; write it like 100MiB/h",
        ),
    ] {
        let (accepted, said) = self::said(flags, "");
        assert!(!accepted, "{flags:?}");
        assert!(said.contains(expected), "{flags:?}: {said}");
        assert!(!said.contains("secret@"), "{said}");
    }
    for (file, expected) in [
        (
            "[jwt]\njwk = \"a\"",
            "there is no setting `jwt.jwk`; did you mean `jwt.jwks`?",
        ),
        ("jwt = \"a\"", "`jwt` must be a section"),
        (
            "[limits]\nnew-key = \"1/s\"",
            "did you mean `limits.new-keys`?",
        ),
        (
            "[[routes]]\nlimits = 7",
            "route 1: `limits` must be a section",
        ),
        (
            "[[routes]]\nlimits = { running = 0 }",
            "route 1: limits.running: `0` is not",
        ),
        (
            "[[routes]]\nprotect = false\nprincipal = \"none\"",
            "principal: has no meaning with `protect = false`",
        ),
    ] {
        let (accepted, said) = self::said(&[], file);
        assert!(!accepted && said.contains(expected), "{file}: {said}");
    }
    let (accepted, said) = self::said(&jwt, "");
    assert!(accepted, "{said}");
}

#[test]
fn keys_that_nobody_could_be_verified_with_are_told_at_the_start() {
    let keys = KeyFile::of(&[]);
    let check = || {
        let path = keys.path.to_str().unwrap();
        let (accepted, said) = said(
            &[
                "--principal",
                "jwt",
                "--jwt-jwks",
                path,
                "--jwt-issuer",
                "i",
            ],
            "",
        );
        assert!(!accepted);
        assert!(said.contains("jwt-jwks: `"), "{said}");
        said
    };
    assert!(check().contains("it holds no public key for signatures"));
    // A secret is none, nor is a key for other things, or of a size that is too small.
    for key in [
        r#"{"kty":"oct","k":"c2VjcmV0","alg":"HS256"}"#,
        r#"{"kty":"RSA","use":"enc","n":"0vx7","e":"AQAB"}"#,
        r#"{"kty":"OKP","crv":"X25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
        r#"{"kty":"RSA","n":"0vx7","e":"AQAB","alg":"RSA-OAEP"}"#,
        "7",
    ] {
        std::fs::write(&keys.path, format!("{{\"keys\":[{key}]}}")).unwrap();
        assert!(check().contains("it holds no public key"), "{key}");
    }
    for (set, expected) in [("", "it is not JSON"), ("[]", "there is no list `keys`")] {
        std::fs::write(&keys.path, set).unwrap();
        assert!(check().contains(expected), "{set}");
    }
    std::fs::remove_file(&keys.path).unwrap();
    assert!(check().contains("No such file"));
}
