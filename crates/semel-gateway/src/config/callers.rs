//! What is said of callers: how they are verified, and what each of them may use.

use http::header::{AUTHORIZATION, COOKIE};
use semel_tower::ScopeLimits;

use super::read::Reader;
use super::{Route, values};
use crate::principal::{Auth, Jwt, Part};

impl Reader<'_> {
    /// How tokens are verified, if a route wants that.
    pub(super) fn jwt(&mut self, routes: &[Route]) -> Option<Jwt> {
        let jwks = self.read("jwt-jwks", values::jwks);
        let issuers = self.list("jwt-issuer", values::name);
        let audiences = self.list("jwt-audience", values::name);
        let algorithms = self.list("jwt-algorithms", values::algorithm);
        let claims = self.list("jwt-claims", values::name);
        let leeway = self.read("jwt-leeway", values::leeway);
        let refresh = self.read("jwt-refresh", values::refresh);
        let needed = [
            (
                "jwt-jwks",
                "where are the keys of tokens? For instance /etc/semel/jwks.json",
            ),
            (
                "jwt-issuer",
                "whose tokens are accepted? It is their claim iss",
            ),
        ];
        self.verifies(Part::Jwt, routes, &needed).then_some(Jwt {
            jwks: jwks?,
            issuers,
            audiences,
            algorithms,
            claims,
            leeway: leeway?,
            refresh: refresh?,
        })
    }

    /// Whom to ask, if a route wants that.
    pub(super) fn auth(&mut self, routes: &[Route]) -> Option<Auth> {
        let url = self.read("auth-url", values::auth_url);
        let fields = self.list("auth-fields", values::credential);
        let principal_header = self.read("auth-principal-header", values::field);
        let cache = self.read("auth-cache", values::cache);
        let timeout = self.read("auth-timeout", values::positive);
        let needed = [(
            "auth-url",
            "who is asked? For instance http://127.0.0.1:9000/auth",
        )];
        self.verifies(Part::Auth, routes, &needed).then_some(Auth {
            url: url?,
            timeout: timeout?,
            cache: cache?,
            principal_header,
            fields,
        })
    }

    /// Whether a route verifies by this; an error where what it needs is not said, or said for nobody.
    fn verifies(&mut self, part: Part, routes: &[Route], needed: &[(&'static str, &str)]) -> bool {
        let is_used = routes
            .iter()
            .any(|route| route.protect && route.principal.contains(&part));
        for (name, question) in needed {
            match (is_used, self.said.given.contains_key(name)) {
                (true, false) => {
                    self.error(format!("--principal {part} needs --{name}: {question}"));
                }
                (false, true) if self.errors.is_empty() => {
                    self.error(format!("--{name} is used with --principal {part} only"));
                }
                _ => {}
            }
        }
        is_used
    }

    /// What would let nobody in, or anybody.
    pub(super) fn check_callers(&mut self, routes: &[Route], trusts: bool, asks_clients: bool) {
        for route in routes.iter().filter(|route| route.protect) {
            let own = [AUTHORIZATION, COOKIE];
            let is_own = |part: &&http::HeaderName| own.contains(part);
            if route.principal.contains(&Part::Certificate) && !asks_clients {
                self.error(
                    "--principal certificate needs --tls-client-ca: who has signed those of clients?"
                        .to_owned(),
                );
            }
            if !route.trusted_scope {
                continue;
            }
            if route.scope_headers.is_empty() {
                self.error("--trusted-scope needs --scope-header: which fields?".to_owned());
            }
            if !trusts {
                self.error(
                    "--trusted-scope needs --trust-forwarded: whose fields are believed?"
                        .to_owned(),
                );
            }
            if let Some(name) = route.scope_headers.iter().find(is_own) {
                self.error(format!(
                    "--trusted-scope would take `{name}` from clients, which is theirs to send"
                ));
            }
        }
    }

    /// What each scope may use.
    pub(super) fn scope_limits(&mut self) -> ScopeLimits {
        let mut limits = ScopeLimits::new();
        if let Some(rate) = self.read("limits-new-keys", values::rate) {
            limits = limits.with_new_keys(rate);
        }
        if let Some(most) = self.read("limits-running", values::count) {
            limits = limits.with_running(usize::try_from(most).unwrap_or(usize::MAX));
        }
        if let Some(rate) = self.read("limits-kept", values::byte_rate) {
            limits = limits.with_kept(rate);
        }
        limits
    }
}
