//! Where a store is: a URL, and the parameters in it that are ours.

use std::fmt;
#[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use url::Url;

use super::Schema;
use crate::OpenError;

/// A URL of which a store takes the parameters it knows, one by one.
///
/// `Debug` shows the scheme alone: what follows may hold a password.
pub(crate) struct Location {
    scheme: &'static str,
    url: Url,
    parameters: Vec<(String, String)>,
}

#[cfg_attr(
    not(feature = "_server"),
    allow(dead_code, reason = "a bucket has no schema and no times")
)]
impl Location {
    /// Reads `url`, whose scheme is known.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where it is no URL.
    pub(crate) fn parse(scheme: &'static str, url: &str) -> Result<Self, OpenError> {
        let mut url = Url::parse(url).map_err(|error| {
            OpenError::invalid(scheme, format!("is followed by no URL: {error}"))
        })?;
        let parameters = url.query_pairs().into_owned().collect();
        url.set_query(None);
        Ok(Self {
            scheme,
            url,
            parameters,
        })
    }

    /// The value of a parameter, which is taken out of the URL.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where it is there and cannot be read; `wanted` says what would do.
    pub(crate) fn take<T: FromStr>(
        &mut self,
        name: &str,
        wanted: &str,
    ) -> Result<Option<T>, OpenError> {
        let Some(at) = self.parameters.iter().position(|(known, _)| known == name) else {
            return Ok(None);
        };
        let (_, value) = self.parameters.remove(at);
        match value.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.invalid(format!("parameter `{name}` must be {wanted}"))),
        }
    }

    /// A parameter that is one of a few words.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where it is another; the words are named.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, OpenError> {
        let Some(given) = self.take::<String>(name, "text")? else {
            return Ok(None);
        };
        let meant = words.iter().find(|(word, _)| *word == given);
        match meant {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<String> =
                    words.iter().map(|(word, _)| format!("`{word}`")).collect();
                let words = match words.split_last() {
                    Some((last, rest)) if !rest.is_empty() => {
                        format!("{} or {last}", rest.join(", "))
                    }
                    _ => words.concat(),
                };
                Err(self.invalid(format!("parameter `{name}` must be {words}")))
            }
        }
    }

    /// The files of a client's certificate and of its key: both, or neither.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where one is there without the other.
    #[cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
    pub(crate) fn certificate(
        &mut self,
        [certificate, key]: [&str; 2],
    ) -> Result<Option<(PathBuf, PathBuf)>, OpenError> {
        let scheme = self.scheme;
        let alone = |one: &str, other: &str| {
            let reason = format!("parameter `{one}` needs `{other}`: a certificate and its key");
            OpenError::invalid(scheme, reason)
        };
        let wanted = "the path of a PEM file";
        match (self.take(certificate, wanted)?, self.take(key, wanted)?) {
            (None, None) => Ok(None),
            (Some(of), Some(with)) => Ok(Some((of, with))),
            (Some(_), None) => Err(alone(certificate, key)),
            (None, Some(_)) => Err(alone(key, certificate)),
        }
    }

    /// The parameter `schema`.
    ///
    /// # Errors
    /// Those of [`choice`](Self::choice).
    pub(crate) fn schema(&mut self) -> Result<Option<Schema>, OpenError> {
        let words = [
            ("expect", Schema::Expect),
            ("create", Schema::Create),
            ("migrate", Schema::Migrate),
        ];
        self.choice("schema", &words)
    }

    /// A duration above zero and of a day at most, as people write it: `500ms`, `5s`, `2m`.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where it is none.
    pub(crate) fn duration(&mut self, name: &str) -> Result<Option<Duration>, OpenError> {
        let wanted = "a duration such as `500ms` or `5s`: above zero, a day at most";
        let given = self.take::<humantime::Duration>(name, wanted)?;
        let given = given.map(Duration::from);
        let fits = |given: &Duration| !given.is_zero() && *given <= Duration::from_hours(24);
        if given.as_ref().is_none_or(fits) {
            return Ok(given);
        }
        Err(self.invalid(format!("parameter `{name}` must be {wanted}")))
    }

    /// The URL without what was taken: for a driver that knows the other parameters.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "not every driver does")
    )]
    pub(crate) fn rest(self) -> Url {
        let mut url = self.url;
        if !self.parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(self.parameters);
        }
        url
    }

    /// The URL, once every parameter was taken.
    ///
    /// # Errors
    /// [`OpenError::Invalid`] where one is left; `known` lists those that there are.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "not every driver does")
    )]
    pub(crate) fn whole(self, known: &str) -> Result<Url, OpenError> {
        match self.parameters.first() {
            None => Ok(self.url),
            Some((name, _)) => Err(OpenError::invalid(self.scheme, unknown(name, known))),
        }
    }

    /// An error about this URL.
    pub(crate) fn invalid(&self, reason: impl Into<String>) -> OpenError {
        OpenError::invalid(self.scheme, reason)
    }
}

/// Says that there is no such parameter. `known` lists those that there are.
pub(crate) fn unknown(name: &str, known: &str) -> String {
    // A password with a question mark in it looks like a parameter: not to be repeated.
    let plain = name.len() < 30 && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_');
    let which = if plain {
        format!("parameter `{name}`")
    } else {
        "such parameter".to_owned()
    };
    format!("has no {which}; there are {known}")
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Location")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
