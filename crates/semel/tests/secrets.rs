//! Records under a secret.

#![allow(clippy::unwrap_used, reason = "a failed test is a panic")]

use semel::guard::{Asked, Done, Guard, RunError};
use semel::memory::MemoryStore;
use semel::secrets::Secrets;
use semel::store::{ListQuery, Store as _};
use semel::{Fingerprint, Identity, Key, KeysError, Scope, StateKind};

const A: &str = "a AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const B: &str = "b //79/Pv6+fj39vX08/Lx8O/u7ezr6uno5+bl5OPi4eA=";

fn identity(key: &str, secrets: Option<&Secrets>) -> Identity {
    let key = Key::new(key).unwrap();
    Identity::keyed(Scope::new(["acme"]), "pay", key, secrets)
}

#[test]
fn names_and_fingerprints_are_others_under_each_secret() {
    let [a, b] = [A, B].map(|line| Secrets::parse(line).unwrap());
    let plain = identity("4111111111111111", None);
    let under_a = identity("4111111111111111", Some(&a));
    let under_b = identity("4111111111111111", Some(&b));
    assert_ne!(under_a.digest(), plain.digest());
    assert_ne!(under_a.digest(), under_b.digest());
    let fingerprint = Fingerprint::of(b"4111111111111111");
    let (of_a, of_b) = (
        under_a.fingerprint(fingerprint),
        under_b.fingerprint(fingerprint),
    );
    assert_eq!(plain.fingerprint(fingerprint), fingerprint);
    assert_ne!(of_a, fingerprint);
    assert_ne!(of_a, of_b);
}

/// What a change would need is not there: two at once are refused.
#[test]
fn there_is_one() {
    let two = Secrets::parse(&format!("{A}\n{B}")).unwrap_err();
    assert_eq!(two, KeysError::TooMany(2, 1));
    assert_eq!(
        two.to_string(),
        "2 keys; of these, only 1 can be used at once"
    );
}

#[tokio::test]
async fn nothing_of_it_is_kept_that_can_be_guessed() {
    let secrets = Secrets::parse(A).unwrap();
    let guard = Guard::from(MemoryStore::default());
    let pay = |_| async { Ok::<_, std::io::Error>("paid".to_owned()) };
    let of = |body: &[u8]| Asked::new(identity("4111", Some(&secrets)), Fingerprint::of(body));
    assert_eq!(
        guard.run(of(b"9 EUR"), pay).await.unwrap(),
        Done::Fresh("paid".to_owned())
    );
    let again = guard.run(of(b"9 EUR"), pay).await.unwrap();
    assert_eq!(again, Done::Replayed("paid".to_owned()));
    let other = guard.run(of(b"8 EUR"), pay).await;
    assert!(matches!(other, Err(RunError::Mismatch)), "{other:?}");
    let completed = ListQuery::new(StateKind::Completed);
    let page = guard.store().list(&completed).await.unwrap();
    let bytes = page.entries[0].to_bytes();
    let plain = identity("4111", None);
    let fingerprint = Fingerprint::of(b"9 EUR").to_bytes();
    for guessed in [&plain.digest().as_bytes()[..], &fingerprint[1..]] {
        assert!(!bytes.windows(32).any(|bytes| bytes == guessed));
    }
}
