//! What the server's settings promise.

use std::collections::HashMap;

use redis::{Pipeline, Value};
use semel::store::{Durability, Probe, Result};
use semel::{StoreError, StoreErrorKind};

use super::Inner;
use super::wire::Node;

fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message.into())
}

pub(super) fn replica() -> StoreError {
    config("the redis server is a replica: open its master, or by a name that follows it")
}

impl Inner {
    pub(super) async fn probe(&self) -> Result<Probe> {
        let way = self.link.target().way();
        let warning = way.warning("rediss://, or tls=yes for a Cluster");
        let mut warnings: Vec<_> = warning.into_iter().collect();
        // A Cluster is as good as its worst.
        let mut durability = Durability::Replicated;
        for node in self.nodes().await? {
            let mut found = Vec::new();
            durability = durability.min(self.probe_node(&node, &mut found).await?);
            // The same of every node is said once.
            found.retain(|warning| !warnings.contains(warning));
            warnings.append(&mut found);
        }
        Ok(Probe {
            store: if self.link.target().is_cluster() {
                "redis-cluster"
            } else {
                "redis"
            },
            durability,
            warnings,
        })
    }

    async fn probe_node(&self, node: &Node, warnings: &mut Vec<String>) -> Result<Durability> {
        let mut questions = Pipeline::new();
        for section in ["server", "memory", "persistence", "replication", "cluster"] {
            questions.cmd("INFO").arg(section);
        }
        questions.cmd("CONFIG").arg("GET").arg("appendfsync");
        questions.cmd("PUBLISH").arg(self.channel()).arg("");
        let mut answers = self.link.pipeline(&questions, node).await?.into_iter();
        let mut info = HashMap::new();
        for answer in answers.by_ref().take(5) {
            match answer.extract_error() {
                Ok(value) => info.extend(sections(value)),
                Err(error) if error.code() == Some("NOPERM") => {}
                Err(error) => {
                    return Err(super::error::sent(error, super::error::Effect::Read, false));
                }
            }
        }
        let appendfsync = answers.next().and_then(setting);
        let tells = answers.next().is_some_and(|a| a.extract_error().is_ok());
        if !tells {
            warnings.push(
                "this user may not publish on the store's channel: waiters poll, and learn of a \
                 completion up to 5 s late"
                    .into(),
            );
        }
        if info.is_empty() {
            warnings.push(
                "this user may not run INFO: whether the server keeps records, and whether it is a \
                 replica, is not known"
                    .into(),
            );
            return Ok(Durability::Process);
        }
        let get = |name: &str| info.get(name).map(String::as_str);
        self.refusals(&get, warnings)?;
        Ok(self.durability(&get, appendfsync.as_deref(), warnings))
    }

    /// What makes a server unfit.
    fn refusals<'a>(
        &self,
        get: &impl Fn(&str) -> Option<&'a str>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        if get("role") == Some("slave") {
            return Err(replica());
        }
        if get("cluster_enabled") == Some("1") && !self.link.target().is_cluster() {
            return Err(config(
                "the redis server is a node of a Cluster: open it as redis-cluster://",
            ));
        }
        if self.options.wait_disk {
            let version = get("redis_version").unwrap_or("7.2");
            let mut parts = version
                .split('.')
                .map_while(|part| part.parse::<u32>().ok());
            let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
            if version < (7, 2) {
                let (major, minor) = version;
                return Err(config(format!(
                    "the redis server is {major}.{minor}, and knows no WAITAOF: that needs Redis 7.2 \
                     or Valkey; open without `wait_aof`"
                )));
            }
            if get("aof_enabled") == Some("0") {
                return Err(config(
                    "the redis server has no log to wait for: set appendonly yes, or open without \
                     `wait_aof`",
                ));
            }
        }
        let policy = get("maxmemory_policy").unwrap_or("noeviction");
        let bounded = get("maxmemory").is_some_and(|bytes| bytes != "0");
        if policy != "noeviction" {
            let kind = if policy.starts_with("volatile") {
                "recorded outcomes, so that what was done is done again"
            } else {
                "any record, also of what is running"
            };
            if !bounded {
                warnings.push(format!(
                    "maxmemory-policy is {policy}: once maxmemory is set, the server forgets \
                     {kind}; set it to noeviction"
                ));
            } else if self.options.accept_unsafe {
                warnings.push(format!(
                    "maxmemory-policy is {policy}: a full server forgets {kind}"
                ));
            } else {
                return Err(config(format!(
                    "redis forgets {kind}, once it is full: maxmemory-policy is {policy}; set it to \
                     noeviction, or accept that with `unsafe=warn`"
                )));
            }
        }
        Ok(())
    }

    /// What an acknowledged step survives.
    fn durability<'a>(
        &self,
        get: &impl Fn(&str) -> Option<&'a str>,
        appendfsync: Option<&str>,
        warnings: &mut Vec<String>,
    ) -> Durability {
        let logs = get("aof_enabled") == Some("1");
        let on_disk = match (logs, appendfsync) {
            (false, _) => {
                warnings.push(
                    "appendonly is no: a crash of the server forgets what came after its last \
                     snapshot, and what was done is done again; set appendonly yes"
                        .into(),
                );
                Durability::Process
            }
            (true, Some("always")) => Durability::Power,
            (true, Some(often)) => {
                if !self.options.wait_disk {
                    warnings.push(format!(
                        "appendfsync is {often}: a loss of power forgets the last second or more, and \
                         what was done is done again; set appendfsync always, or open with \
                         `wait_aof=yes`"
                    ));
                }
                Durability::Crash
            }
            (true, None) => {
                warnings.push(
                    "this user may not read appendfsync: it is taken to be everysec, which forgets \
                     the last second at a loss of power"
                        .into(),
                );
                Durability::Crash
            }
        };
        let replicas: u32 = get("connected_slaves")
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        let wanted = self.options.wait_replicas;
        if wanted > replicas {
            warnings.push(format!(
                "wait_replicas is {wanted} and the server has {replicas}: claims and completions \
                 are answered as unknown until it has them"
            ));
        }
        if wanted == 0 && replicas > 0 {
            warnings.push(format!(
                "the server has {replicas} replicas, which are not waited for: a failover forgets \
                 the last steps, and what was done is done again; open with `wait_replicas=1`"
            ));
        }
        if wanted > 0 {
            Durability::Replicated
        } else if self.options.wait_disk && logs {
            Durability::Power
        } else {
            on_disk
        }
    }
}

fn sections(info: Value) -> HashMap<String, String> {
    let text: String = redis::from_redis_value(info).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn setting(answer: Value) -> Option<String> {
    let answer = answer.extract_error().ok()?;
    let (_, value): (String, String) = redis::from_redis_value(answer).ok()?;
    Some(value)
}
