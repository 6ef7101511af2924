//! Who may use the operators' listener, and for what: tokens of the configuration file.
//!
//! [`Gate`] finds the [`Caller`] of a request, or refuses it. What the caller may do is asked where it
//! is done: `Caller::require` for a role, `Caller::may_claim` for an operation. Without tokens a
//! listener on a loopback interface is open to everybody on the machine, and any other to nobody.

mod pattern;
pub(crate) mod site;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, HeaderMap};
use http::request::Parts;
use semel::Service;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::refused::{Code, Refused};
pub use pattern::Pattern;

/// The shortest token: shorter ones can be guessed.
const SHORTEST: usize = 16;

/// What an operator may do. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look at records and the audit.
    ReadOnly,
    /// Release, resolve and extend records.
    Operator,
    /// Everything, claims too.
    Admin,
}

impl Role {
    pub(crate) const ALL: [Self; 3] = [Self::ReadOnly, Self::Operator, Self::Admin];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// From 64 hexadecimal digits.
    pub(crate) fn parse(hex: &str) -> Result<Self, String> {
        // Not shown: it may be the token itself.
        let digest = semel::IdentityDigest::from_hex(hex);
        let digest = digest.ok_or("is not the SHA-256 of a token: 64 hexadecimal digits");
        Ok(Self(*digest?.as_bytes()))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(…)")
    }
}

/// Where a token is known from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secret {
    /// Its digest is in the configuration.
    Digest(TokenDigest),
    /// It stands in this file.
    File(String),
}

/// A token, as the configuration says.
#[derive(Debug, Clone)]
pub struct Token {
    /// Where it stands in the file.
    pub at: String,
    /// Who has it.
    pub name: String,
    /// How it is recognised.
    pub secret: Secret,
    /// What it is good for in the operators' interface.
    pub role: Option<Role>,
    /// What may be claimed with it.
    pub claims: Vec<Pattern>,
}

/// Why tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{at}: token-file: cannot read `{path}`: {source}")]
    Read {
        /// The token.
        at: String,
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// What is in a file is no good.
    #[error(
        "{at}: token-file: a token has {SHORTEST} characters at least, and that in `{path}` has {len}"
    )]
    Short {
        /// The token.
        at: String,
        /// The file.
        path: String,
        /// How many it has.
        len: usize,
    },
    /// Two are the same.
    #[error("{at}: is the same token as that of `{other}`")]
    Twice {
        /// The later one.
        at: String,
        /// The name of the earlier one.
        other: String,
    },
}

/// Who is calling.
#[derive(Debug, Clone)]
pub struct Caller {
    name: Arc<str>,
    role: Option<Role>,
    claims: Arc<[Pattern]>,
}

impl Caller {
    /// Everybody on this machine, where nobody else can connect.
    fn local() -> Self {
        Self::new("local", Some(Role::Admin), &[])
    }

    fn new(name: &str, role: Option<Role>, claims: &[Pattern]) -> Self {
        Self {
            name: name.into(),
            role,
            claims: match role {
                Some(Role::Admin) => [Pattern::all()].into(),
                _ => claims.into(),
            },
        }
    }

    /// Its name, for the audit.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its role.
    pub const fn role(&self) -> Option<Role> {
        self.role
    }

    /// Refuses callers who have a lower role.
    pub(crate) fn require(&self, least: Role) -> Result<(), Refused> {
        match self.role >= Some(least) {
            true => Ok(()),
            false => {
                let (name, least) = (&self.name, least.as_str());
                let detail = format!("The token `{name}` does not have the role {least}.");
                Err(Refused::new(Code::Forbidden, detail))
            }
        }
    }

    /// Refuses callers who may not claim this operation of this service.
    pub(crate) fn may_claim(&self, service: &str, operation: &str) -> Result<(), Refused> {
        let mut claims = self.claims.iter();
        match claims.any(|pattern| pattern.takes(service, operation)) {
            true => Ok(()),
            false => Err(self.without_right()),
        }
    }

    /// Refuses callers who may claim nothing.
    pub(crate) fn may_claim_any(&self) -> Result<(), Refused> {
        match self.claims.is_empty() {
            false => Ok(()),
            true => Err(self.without_right()),
        }
    }

    fn without_right(&self) -> Refused {
        let name = &self.name;
        let detail = format!("The token `{name}` has no right to claim this operation.");
        Refused::new(Code::Forbidden, detail)
    }

    /// Whether there is nothing that it may not claim.
    pub(crate) fn may_claim_all(&self) -> bool {
        self.claims.contains(&Pattern::all())
    }
}

/// Those whom the configuration lets in.
#[derive(Debug, Default)]
pub struct Access(Vec<(TokenDigest, Caller)>);

impl Access {
    /// Reads the files of tokens.
    ///
    /// # Errors
    /// A file that cannot be used, or the same token twice.
    pub fn open(tokens: &[Token]) -> Result<Self, Error> {
        let mut known: Vec<(TokenDigest, Caller)> = Vec::with_capacity(tokens.len());
        for token in tokens {
            let digest = token.digest()?;
            if let Some((_, other)) = known.iter().find(|(known, _)| *known == digest) {
                return Err(Error::Twice {
                    at: token.at.clone(),
                    other: other.name.to_string(),
                });
            }
            let caller = Caller::new(&token.name, token.role, &token.claims);
            known.push((digest, caller));
        }
        Ok(Self(known))
    }

    /// The caller who has this token. All are compared, so that the time says nothing.
    fn with(&self, token: &[u8]) -> Option<&Caller> {
        let asked = TokenDigest::of(token);
        self.0.iter().fold(None, |found, (known, caller)| {
            let is_it = bool::from(known.0.ct_eq(&asked.0));
            found.or(is_it.then_some(caller))
        })
    }

    fn of(&self, digest: TokenDigest) -> Option<&Caller> {
        let mut all = self.0.iter();
        all.find(|(known, _)| *known == digest)
            .map(|(_, caller)| caller)
    }

    fn caller(&self, headers: &HeaderMap, is_local: bool) -> Result<Caller, Refused> {
        let refused = |detail| Refused::new(Code::Unauthorized, detail).challenging();
        if self.0.is_empty() {
            return match is_local {
                true => Ok(Caller::local()),
                false => Err(refused(
                    "No tokens are configured, and `--admin` is not on a loopback address: add \
                     [[tokens]] to the configuration file.",
                )),
            };
        }
        let Some(credentials) = headers.get(AUTHORIZATION) else {
            return Err(refused(
                "Send a token: `Authorization: Bearer TOKEN`, or name and token by HTTP basic \
                 authentication.",
            ));
        };
        let unknown = || refused("This token is not known, or not in this form.");
        let (name, token) = read(credentials.as_bytes()).ok_or_else(unknown)?;
        let caller = self.with(&token).ok_or_else(unknown)?;
        match name {
            Some(name) if name != caller.name.as_bytes() => Err(unknown()),
            _ => Ok(caller.clone()),
        }
    }
}

impl Token {
    fn digest(&self) -> Result<TokenDigest, Error> {
        let path = match &self.secret {
            Secret::Digest(digest) => return Ok(*digest),
            Secret::File(path) => path.clone(),
        };
        let at = self.at.clone();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(Error::Read { at, path, source }),
        };
        match text.trim() {
            short if short.len() < SHORTEST => {
                let len = short.len();
                Err(Error::Short { at, path, len })
            }
            token => Ok(TokenDigest::of(token.as_bytes())),
        }
    }
}

/// The name, where there is one, and the token of an `Authorization` field.
fn read(field: &[u8]) -> Option<(Option<Vec<u8>>, Vec<u8>)> {
    let space = field.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = field.split_at(space);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some((None, rest.to_vec()));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut name = BASE64_STANDARD.decode(rest).ok()?;
    let colon = name.iter().position(|byte| *byte == b':')?;
    let token = name.split_off(colon + 1);
    name.pop();
    Some((Some(name), token))
}

/// The door of the operators' listener.
#[derive(Debug)]
pub struct Gate {
    access: ArcSwap<Access>,
    is_local: bool,
    changed: watch::Sender<()>,
}

impl Gate {
    /// A door for these. Without any, it is open where only this machine can connect.
    pub fn new(access: Access, is_local: bool) -> Self {
        let access = ArcSwap::from_pointee(access);
        Self {
            access,
            is_local,
            changed: watch::Sender::default(),
        }
    }

    /// Lets in others from now on.
    pub fn set(&self, access: Access) {
        self.access.store(Arc::new(access));
        self.changed.send_replace(());
    }

    /// For those who stay: they ask again after each change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Whether tokens are asked for.
    pub(crate) fn asks(&self) -> bool {
        !self.access.load().0.is_empty()
    }

    /// Who has this token, and by what they are found again ([`Gate::holder`]).
    pub(crate) fn known(&self, token: &[u8]) -> Option<(TokenDigest, Caller)> {
        let access = self.access.load();
        let caller = access.with(token)?.clone();
        Some((TokenDigest::of(token), caller))
    }

    /// Who has a token that was shown before, as the configuration is now.
    pub(crate) fn holder(&self, digest: TokenDigest) -> Option<Caller> {
        self.access.load().of(digest).cloned()
    }

    /// Who sends a request with these fields.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        self.access.load().caller(headers, self.is_local)
    }

    /// Who sends a request, if it may come in.
    pub(crate) fn admit(&self, request: &Parts) -> Result<Caller, Refused> {
        let caller = self.caller(&request.headers)?;
        site::check(request)?;
        Ok(caller)
    }
}

/// The service of a stored operation and its name within it, as rights name them.
pub(crate) fn named(stored: &str) -> (&str, &str) {
    let (operation, service) = Service::split(stored);
    (service, operation)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const TOKEN: &str = "0123456789abcdef-ops";

    fn token(name: &str, secret: Secret, role: Option<Role>, claims: &[&str]) -> Token {
        Token {
            at: format!("semel.toml:1: token `{name}`"),
            name: name.to_owned(),
            secret,
            role,
            claims: claims.iter().map(|c| Pattern::parse(c).unwrap()).collect(),
        }
    }

    fn digest(token: &str) -> Secret {
        Secret::Digest(TokenDigest::of(token.as_bytes()))
    }

    fn gate(is_local: bool) -> Gate {
        let access = Access::open(&[
            token("ops", digest(TOKEN), Some(Role::Operator), &[]),
            token("job", digest("job-token"), None, &["orders/settle-*"]),
            token("root", digest("root-token"), Some(Role::Admin), &[]),
        ]);
        Gate::new(access.unwrap(), is_local)
    }

    fn asked(gate: &Gate, credentials: Option<&str>) -> Result<Caller, Refused> {
        let request = Request::get("/v1/claims/1");
        let request = match credentials {
            Some(credentials) => request.header(AUTHORIZATION, credentials),
            None => request,
        };
        gate.admit(&request.body(()).unwrap().into_parts().0)
    }

    fn name(gate: &Gate, credentials: &str) -> Result<String, &'static str> {
        match asked(gate, Some(credentials)) {
            Ok(caller) => Ok(caller.name().to_owned()),
            Err(refused) => Err(refused.code()),
        }
    }

    fn basic(pair: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(pair))
    }

    #[test]
    fn a_token_is_known_in_both_schemes_and_in_no_other_form() {
        // With tokens, a loopback address is no way around them.
        for gate in [gate(true), gate(false)] {
            let ops = Ok("ops".to_owned());
            assert_eq!(name(&gate, &format!("Bearer {TOKEN}")), ops);
            assert_eq!(name(&gate, &format!("bearer  {TOKEN} ")), ops);
            assert_eq!(name(&gate, &basic(&format!("ops:{TOKEN}"))), ops);
            for wrong in [
                "",
                "Bearer",
                "Bearer ",
                TOKEN,
                &format!("Digest {TOKEN}"),
                &format!("Bearer {TOKEN}x"),
                &format!("Bearer {}", &TOKEN[1..]),
                &basic(TOKEN),
                &basic(&format!("job:{TOKEN}")),
                &basic(&format!("{TOKEN}:")),
                "Basic %%%",
            ] {
                assert_eq!(name(&gate, wrong), Err("unauthorized"), "{wrong}");
            }
            let refused = asked(&gate, None).unwrap_err();
            assert_eq!(refused.code(), "unauthorized");
            assert!(gate.asks());
        }
    }

    #[test]
    fn without_tokens_only_this_machine_comes_in() {
        let open = |is_local| Gate::new(Access::default(), is_local);
        let local = asked(&open(true), None).unwrap();
        assert_eq!((local.name(), local.role()), ("local", Some(Role::Admin)));
        assert!(local.may_claim_all());
        let refused = asked(&open(false), Some(&format!("Bearer {TOKEN}"))).unwrap_err();
        assert!(refused.to_string().contains("[[tokens]]"), "{refused}");
    }

    #[test]
    fn who_comes_in_changes_at_once() {
        let gate = gate(false);
        gate.set(Access::open(&[token("new", digest("new-token"), None, &["*/*"])]).unwrap());
        assert_eq!(name(&gate, "Bearer new-token"), Ok("new".to_owned()));
        assert_eq!(name(&gate, &format!("Bearer {TOKEN}")), Err("unauthorized"));
    }

    #[test]
    fn roles_and_rights_hold() {
        let gate = gate(false);
        let of = |token: &str| asked(&gate, Some(&format!("Bearer {token}"))).unwrap();
        let (ops, job, root) = (of(TOKEN), of("job-token"), of("root-token"));
        let roles = |caller: &Caller| Role::ALL.map(|role| caller.require(role).is_ok());
        assert_eq!(roles(&ops), [true, true, false]);
        assert_eq!(roles(&job), [false; 3]);
        assert_eq!(roles(&root), [true; 3]);
        for (caller, settle, other) in [
            (&ops, false, false),
            (&job, true, false),
            (&root, true, true),
        ] {
            assert_eq!(caller.may_claim("orders", "settle-1").is_ok(), settle);
            assert_eq!(caller.may_claim("orders", "pay").is_ok(), other);
            assert_eq!(caller.may_claim("default", "settle-1").is_ok(), other);
            assert_eq!(caller.may_claim_all(), other);
            assert_eq!(caller.may_claim_any().is_ok(), settle);
        }
        assert_eq!(named("pay@orders"), ("orders", "pay"));
        assert_eq!(named("pay"), ("default", "pay"));
    }

    #[test]
    fn files_are_read_and_checked() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            Secret::File(path.to_str().unwrap().to_owned())
        };
        let ops = |secret| token("ops", secret, Some(Role::Operator), &[]);
        let good = Access::open(&[ops(file("good", &format!("{TOKEN}\n")))]).unwrap();
        let gate = Gate::new(good, false);
        assert!(asked(&gate, Some(&format!("Bearer {TOKEN}"))).is_ok());
        let said = |tokens: &[Token]| Access::open(tokens).unwrap_err().to_string();
        let short = said(&[ops(file("short", "secret\n"))]);
        assert!(short.contains("16 characters at least"), "{short}");
        assert!(!short.contains("secret"), "{short}");
        let missing = said(&[ops(Secret::File("/nowhere/ops".to_owned()))]);
        assert!(missing.contains("cannot read `/nowhere/ops`"), "{missing}");
        let twice = said(&[
            ops(digest(TOKEN)),
            token("b", digest(TOKEN), None, &["a/b"]),
        ]);
        assert_eq!(
            twice,
            "semel.toml:1: token `b`: is the same token as that of `ops`"
        );
    }
}
