//! Which claims are about the same thing, and how a record is named.

use super::bench::{request, unique};
use super::expect::{acquired, applied, completed, in_flight};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::store::{Acquired, ClaimRequest, Label, Retention, Store as _, StoreExt as _};
use crate::{Fingerprint, Identity, Key, Outcome, Scope};

cases! { "identity";
    other_scope_operation_or_key_is_another [R1 R3]
        "the same key in another scope, operation or with other separators is another identity";
    odd_keys_are_kept_apart [R1 R12]
        "keys of any text work and do not collide: quotes, braces, globs, paths, 255 bytes, non-ASCII";
    labels_name_a_record [R12]
        "a record is listed with its scope segments, operation and digest, whatever characters they hold";
    whole_key_is_not_kept [R12]
        "a record shows the start of its key, never all of it";
}

fn identity(scope: &[&str], operation: &str, key: &str) -> Result<Identity, Failure> {
    let key = Key::new(key).map_err(|e| Failure::new(e.to_string()))?;
    Ok(Identity::new(Scope::new(scope), operation, key))
}

/// Acquires all, then wants each in flight under its own fence, and completes each on its own.
async fn all_apart(bench: &Bench, identities: &[Identity]) -> Result<(), Failure> {
    let store = bench.store();
    let mut claims: Vec<(ClaimRequest, Acquired)> = Vec::new();
    for (n, identity) in identities.iter().enumerate() {
        let request = ClaimRequest {
            fingerprint: Fingerprint::of(format!("request {n}").as_bytes()),
            ..request()?
        };
        let claim = store.claim(identity, &request).await?;
        claims.push((request, acquired(claim)?));
    }
    for (n, (identity, (asked, claim))) in identities.iter().zip(&claims).enumerate() {
        let rival = ClaimRequest {
            fingerprint: asked.fingerprint,
            ..request()?
        };
        let (fence, _) = in_flight(store.claim(identity, &rival).await?)?;
        ensure_eq!(fence, claim.token.fence, "fence of identity {n}");
        let outcome = Outcome::success(format!("answer {n}").as_bytes());
        let retention = Retention::new(LONG);
        applied(
            store
                .complete(identity.digest(), &claim.token, &outcome, retention)
                .await?,
        )?;
        let (replayed, _) = completed(store.claim(identity, &rival).await?)?;
        ensure_eq!(replayed, outcome, "outcome of identity {n}");
    }
    Ok(())
}

async fn other_scope_operation_or_key_is_another(bench: &Bench) -> Result<(), Failure> {
    let u = &*unique()?;
    all_apart(
        bench,
        &[
            identity(&[u, "a"], "op", "key")?,
            identity(&[u, "b"], "op", "key")?,
            identity(&[u], "op", "key")?,
            identity(&[u, "a", ""], "op", "key")?,
            identity(&[u, "", "a"], "op", "key")?,
            identity(&[u, "a"], "op2", "key")?,
            identity(&[u, "a"], "op", "key2")?,
            identity(&[u, "a"], "op", "Key")?,
            identity(&[u, "a:op"], "", "key")?,
            identity(&[u, "a"], "", "op:key")?,
            identity(&[&format!("{u}:a")], "op", "key")?,
        ],
    )
    .await
}

async fn odd_keys_are_kept_apart(bench: &Bench) -> Result<(), Failure> {
    let longest = "x".repeat(255);
    let nearly = format!("{}y", "x".repeat(254));
    let wide = "ü".repeat(127);
    let scope = [&*unique()?];
    let keys = [
        "'; DROP TABLE records; --",
        "\"",
        "`$(id)`",
        "{tag}",
        "{tag}:1",
        "*",
        "?",
        "[a-z]",
        "%",
        "_",
        "\\",
        "../../etc/passwd",
        "a/b",
        "a.b.>",
        "a b",
        " a b",
        "null",
        "0",
        &longest,
        &nearly,
        &wide,
        "ключ-🔑",
        "é",
        "e\u{301}",
    ];
    let identities: Result<Vec<_>, _> = keys.iter().map(|k| identity(&scope, "op", k)).collect();
    all_apart(bench, &identities?).await
}

async fn labels_name_a_record(bench: &Bench) -> Result<(), Failure> {
    let scopes: [&[&str]; 4] = [
        &["tenant", "account"],
        &["a:b", "", "'quoted'", "{x}", "/", "\\", "\u{1F511}"],
        &["new\nline", "tab\t", "nul\0", "%", "\""],
        &[],
    ];
    for segments in scopes {
        let operation = "POST /orders/{id}:'x' é";
        // The key is what makes it unique here: an empty scope must be possible too.
        let identity = identity(segments, operation, &unique()?)?;
        let claim = acquired(bench.store().claim(&identity, &request()?).await?)?;
        let entry = bench.entry(identity.digest()).await?;
        ensure_eq!(entry.label, Label::from(&identity), "label");
        applied(
            bench
                .store()
                .abandon(identity.digest(), &claim.token)
                .await?,
        )?;
        let entry = bench.other().get(identity.digest()).await?;
        let label = entry.map(|e| e.label);
        ensure_eq!(label, Some(Label::from(&identity)), "label after a release");
    }
    Ok(())
}

async fn whole_key_is_not_kept(bench: &Bench) -> Result<(), Failure> {
    for key in ["k", "ab", "8e03978e-40d5-43dd-bc93-6894a57f9324"] {
        let identity = bench.identity(key)?;
        acquired(bench.store().claim(&identity, &request()?).await?)?;
        let label = bench.entry(identity.digest()).await?.label;
        ensure_eq!(&*label.key_hint, identity.key().hint(), "hint");
        ensure!(label.key_hint.len() < key.len(), "the whole key is kept");
    }
    Ok(())
}
