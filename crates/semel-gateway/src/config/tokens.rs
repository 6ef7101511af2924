//! Who may use the operators' listener: `[[tokens]]` of the file.

use super::file::SectionSaid;
use super::read::Reader;
use super::values;
use crate::access::{Pattern, Role, Secret, Token, TokenDigest};

impl Reader<'_> {
    /// The tokens, as far as they are right.
    pub(super) fn tokens(&mut self, said: &[SectionSaid]) -> Vec<Token> {
        let mut tokens = Vec::<Token>::new();
        for SectionSaid { at, said } in said {
            let mut inner = Reader {
                said,
                errors: std::mem::take(&mut self.errors),
            };
            let token = inner.token(at);
            if let Some(token) = &token
                && tokens.iter().any(|other| other.name == token.name)
            {
                inner.error(format!("{at}: there is another one named `{}`", token.name));
            }
            tokens.extend(token);
            self.errors = inner.errors;
        }
        tokens
    }

    fn token(&mut self, at: &str) -> Option<Token> {
        let before = self.errors.len();
        let name = self.read("name", values::token_name);
        let digest = self.read("sha256", TokenDigest::parse).map(Secret::Digest);
        let file = self.read("token-file", |path| Ok(Secret::File(path.to_owned())));
        let role = self.read("role", role);
        let claims = self.list("claims", Pattern::parse);
        if self.errors.len() > before {
            return None;
        }
        let wrong = match (&name, &digest, &file) {
            (None, ..) => "`name` is required: who has this token?",
            (_, None, None) => "`sha256` or `token-file` is required: which token is it?",
            (_, Some(_), Some(_)) => "`sha256` and `token-file`: one of them is enough",
            _ if role.is_none() && claims.is_empty() => {
                "it is good for nothing: give it a `role`, or operations with `claims`"
            }
            _ => {
                return Some(Token {
                    at: at.to_owned(),
                    name: name?,
                    secret: digest.or(file)?,
                    role,
                    claims,
                });
            }
        };
        self.error(format!("{at}: {wrong}"));
        None
    }
}

fn role(value: &str) -> Result<Role, String> {
    let known = Role::ALL.into_iter().find(|role| role.as_str() == value);
    known.ok_or_else(|| format!("`{value}` is not one of read-only, operator and admin"))
}
