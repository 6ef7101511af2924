//! What keeps records from being read where they lie: the keys of answers, the secrets of identities, and
//! where they come from; and where answers are kept that are large.

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use semel::sealed::{KeyName, Keys, Sealed};
use semel::secrets::Secrets;
use semel::{AnyStore, StoreError};
use semel_stores::objects::{ObjectsUrl, Offloaded, folder_of};
use tokio::time::timeout;

use crate::command::with_causes;
use crate::store::{Opened, REMIND_EVERY};

/// The setting for the keys of answers.
pub(crate) const KEYS: &str = "encryption-keys";
/// The setting for the secrets of identities.
pub(crate) const SECRETS: &str = "identity-keys";
/// The settings for answers that are large.
pub(crate) const LARGE: &str = "large-answers";
pub(crate) const ABOVE: &str = "large-answers-above";
/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where keys and secrets come from.
#[derive(Debug, Clone, Default)]
pub struct AtRest {
    /// The keys of answers; without, they are kept as they are.
    pub keys: Option<Source>,
    /// The secrets of identities and fingerprints.
    pub secrets: Option<Source>,
    /// Where large answers are kept; without, in the store.
    pub large: Option<Large>,
}

/// Where answers are kept that take more bytes than so many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Large {
    /// A folder, or a bucket.
    pub url: ObjectsUrl,
    /// What is not large.
    pub above: usize,
}

/// Where a text comes from that is a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Variable(String),
    /// What a program prints, and its arguments.
    Command(Vec<String>),
}

/// Why keys or secrets cannot be used. Never shows one.
#[derive(Debug, thiserror::Error)]
#[error("--{setting}: {source_of}: {why}")]
pub struct Error {
    setting: &'static str,
    source_of: String,
    why: String,
}

/// Keys and secrets, read.
#[derive(Debug, Clone, Default)]
pub struct Ready {
    /// The keys of answers.
    pub keys: Option<Arc<Keys>>,
    /// The secrets of identities.
    pub secrets: Option<Secrets>,
    large: Option<Large>,
}

impl Large {
    /// Opens and tries it, as the place of this store's large answers.
    async fn open(&self, store: AnyStore) -> Result<Offloaded<AnyStore>, Error> {
        let opened = async {
            let objects = self.url.open().await?;
            let offloaded = Offloaded::new(store, objects, self.above).with_report(report);
            offloaded.check().await?;
            Ok(offloaded)
        };
        let opened: Result<_, StoreError> = opened.await;
        opened.map_err(|why| self.error(with_causes(&why)))
    }

    /// Tries it, and says what was found. Makes no folder.
    pub(crate) async fn look(&self, store: AnyStore) -> Result<String, Error> {
        if self.url.is_missing() {
            let used = folder_of(&store).await;
            return match used.map_err(|why| self.error(with_causes(&why)))? {
                None => Ok(format!(
                    "`{}` is not there yet; `semel serve` makes it",
                    self.url
                )),
                Some(_) => {
                    let why = "it is not there, and this store has large answers in it";
                    Err(self.error(why.to_owned()))
                }
            };
        }
        self.open(store).await?;
        Ok(self.to_string())
    }

    fn error(&self, why: String) -> Error {
        Error {
            setting: LARGE,
            source_of: format!("`{}`", self.url),
            why,
        }
    }
}

/// Says in the log what did not go as it should, now and then.
fn report(error: &StoreError) {
    static TOLD: Mutex<Option<Instant>> = Mutex::new(None);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.is_none_or(|told| told.elapsed() >= REMIND_EVERY) {
        *told = Some(Instant::now());
        tracing::warn!("--{LARGE}: {}", with_causes(error));
    }
}

impl fmt::Display for Large {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above = bytesize::ByteSize::b(self.above as u64);
        write!(
            f,
            "answers above {} are in `{}`",
            above.display().iec(),
            self.url
        )
    }
}

impl AtRest {
    /// Reads them.
    ///
    /// # Errors
    /// What cannot be read, or is not understood.
    pub async fn read(&self) -> Result<Ready, Error> {
        let keys = match &self.keys {
            Some(source) => Some(Arc::new(source.parse_as(KEYS, Keys::parse).await?)),
            None => None,
        };
        let secrets = match &self.secrets {
            Some(source) => Some(source.parse_as(SECRETS, Secrets::parse).await?),
            None => None,
        };
        let large = self.large.clone();
        Ok(Ready {
            keys,
            secrets,
            large,
        })
    }
}

impl Ready {
    /// The store, with all this around it: what is kept elsewhere is sealed, too.
    ///
    /// # Errors
    /// Large answers cannot be kept where they are to be.
    pub async fn around(self, store: AnyStore) -> Result<Opened, Error> {
        let offloaded = match &self.large {
            None => None,
            Some(large) => Some(Arc::new(large.open(store.clone()).await?)),
        };
        let store = offloaded.clone().map_or(store, AnyStore::new);
        let seal = |keys| Sealed::new(store.clone(), keys);
        let sealed = self.keys.map(seal);
        Ok(Opened {
            store: sealed.clone().map_or(store, AnyStore::new),
            sealed,
            offloaded,
            secrets: self.secrets,
        })
    }

    /// What holds, as sentences.
    pub(crate) fn lines(&self) -> Vec<String> {
        let keys = self.keys.as_ref().map(|keys| {
            let names = listed(keys.names());
            format!("answers are encrypted with the key {names}")
        });
        let secrets = self.secrets.as_ref().map(|secrets| {
            let names = listed(secrets.names());
            format!("identities are under the secret {names}")
        });
        keys.into_iter().chain(secrets).collect()
    }
}

fn listed(names: impl Iterator<Item = KeyName>) -> String {
    let mut names = names.map(|name| format!("`{name}`"));
    let first = names.next().unwrap_or_default();
    let others = names.collect::<Vec<_>>().join(", ");
    match others.is_empty() {
        true => first,
        false => format!("{first}; {others} too are read"),
    }
}

impl Source {
    /// Reads where it is: `env:NAME`, `exec:PROGRAM ARGUMENTS`, or a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let missing = |what: &str| Err(format!("`{text}` does not say {what}"));
        match text.split_once(':') {
            Some(("env", "")) => missing("which variable"),
            Some(("env", name)) => Ok(Self::Variable(name.to_owned())),
            Some(("exec", words)) => {
                let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
                match words.is_empty() {
                    true => missing("which program"),
                    false => Ok(Self::Command(words)),
                }
            }
            Some(("file", "")) => missing("which file"),
            Some(("file", path)) => Ok(Self::File(path.into())),
            _ if text.is_empty() => missing("where the keys are"),
            _ => Ok(Self::File(text.into())),
        }
    }

    async fn parse_as<T, E: fmt::Display>(
        &self,
        setting: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Error> {
        let parsed = match self.text().await {
            Ok(text) => parse(&text).map_err(|why| why.to_string()),
            Err(why) => Err(why),
        };
        parsed.map_err(|why| Error {
            setting,
            source_of: self.to_string(),
            why,
        })
    }

    async fn text(&self) -> Result<String, String> {
        match self {
            Self::File(path) => {
                let read = tokio::fs::read_to_string(path).await;
                read.map_err(|error| format!("cannot be read: {error}"))
            }
            Self::Variable(name) => match std::env::var(name) {
                Ok(text) => Ok(text),
                Err(error) => Err(error.to_string()),
            },
            Self::Command(words) => {
                let (program, arguments) = words.split_first().ok_or("there is no program")?;
                let output = tokio::process::Command::new(program)
                    .args(arguments)
                    .stdin(Stdio::null())
                    .stderr(Stdio::inherit())
                    .kill_on_drop(true)
                    .output();
                let output = timeout(PATIENCE, output).await;
                let output = output.map_err(|_| format!("did not end within {PATIENCE:?}"))?;
                let output = output.map_err(|error| format!("cannot be run: {error}"))?;
                if !output.status.success() {
                    return Err(format!("ended with {}", output.status));
                }
                String::from_utf8(output.stdout).map_err(|_| "printed no UTF-8".to_owned())
            }
        }
    }
}

/// What can be shown of it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "`{}`", path.display()),
            Self::Variable(name) => write!(f, "the variable `{name}`"),
            // Arguments may be secrets.
            Self::Command(words) => {
                let program = words.first().map_or("", String::as_str);
                write!(f, "the command `{program}`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_file_a_variable_or_a_command() {
        let command = Source::Command(vec!["op".into(), "read".into(), "x".into()]);
        for (text, source) in [
            ("/etc/semel/keys", Source::File("/etc/semel/keys".into())),
            ("file:keys", Source::File("keys".into())),
            ("env:KEYS", Source::Variable("KEYS".into())),
            ("exec:op  read x", command),
        ] {
            assert_eq!(Source::parse(text), Ok(source));
        }
        for wrong in ["", "env:", "exec: ", "file:"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn what_a_command_prints_is_read_and_its_failure_told() {
        let echo = Source::parse("exec:echo some text").unwrap();
        assert_eq!(echo.text().await.as_deref(), Ok("some text\n"));
        let refused = |text: &'static str| async move {
            let source = Source::parse(text).unwrap();
            let refused = source.parse_as(KEYS, Keys::parse).await;
            refused.unwrap_err().to_string()
        };
        assert!(
            refused("exec:false secret")
                .await
                .contains("`false`: ended with")
        );
        assert!(refused("exec:/no/such").await.contains("cannot be run"));
        assert!(refused("/no/such").await.contains("cannot be read"));
        assert!(
            refused("env:SEMEL_NO_SUCH")
                .await
                .contains("--encryption-keys: the variable")
        );
        assert!(refused("exec:echo old").await.contains("line 1: expected"));
    }
}
