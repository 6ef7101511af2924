//! Where the command line works: at a gateway's admin API, or on a store. Both answer the same.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::ArgMatches;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::uri::Scheme;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use semel::AnyStore;
use semel::store::Store as _;
use semel_stores::{OpenError, OpenOptions};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use url::form_urlencoded;

use super::line::RETENTION;
use super::{progress, text};
use crate::audit::{self, Log};
use crate::command::with_causes;
use crate::config::values;
use crate::connector::Connector;
use crate::events::Live;
use crate::operations::order::{self, Lookup, Many, OUTCOME_RETENTION, Order};
use crate::operations::view::{Answer, Detail, Done, DoneMany, Overview, Page, StoreCondition};
use crate::operations::{Actor, Filter, Operations, Position, of_store};
use crate::refused::Refused;
use crate::tls::PemFile;
use crate::tls::client::{Speaks, Trust};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Stores that read all their records for a list take their time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
const MOST_BYTES: usize = 256 << 20;
/// A gateway breaks its silence every ten seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// When to listen again.
const AGAIN: Duration = Duration::from_secs(2);
const MOST_OF_A_LINE: usize = 64 << 10;

/// Why a command did not do what it should.
#[derive(Debug)]
pub(in crate::command) enum Failure {
    /// The command line is wrong.
    Misused(String),
    /// Something else.
    Failed(String),
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Failed(refused.to_string())
    }
}

type Result<T> = std::result::Result<T, Failure>;

/// What a listener hears.
#[derive(Debug)]
pub(in crate::command) enum Heard {
    /// It listens.
    Listens,
    /// It does not: why.
    Deaf(String),
    /// This happened.
    Event(Box<Live>),
    /// So many events were lost, at most.
    Lost(u64),
}

/// Where the command line works.
pub(in crate::command) enum Desk {
    /// At a gateway.
    Gateway(Box<Gateway>),
    /// On a store.
    Store(Operations<AnyStore>, Actor),
}

impl Desk {
    pub(super) async fn open(flags: &ArgMatches) -> Result<Self> {
        match text(flags, "store") {
            Some(url) => Self::on(url, flags).await,
            None => Gateway::at(flags).map(|gateway| Self::Gateway(Box::new(gateway))),
        }
    }

    async fn on(url: &str, flags: &ArgMatches) -> Result<Self> {
        let ready = super::at_rest(flags)
            .map_err(Failure::Misused)?
            .read()
            .await;
        let ready = ready.map_err(|error| Failure::Misused(error.to_string()))?;
        let mut options = OpenOptions::default();
        options.existing = true;
        let opened = semel_stores::open(url, &options).await;
        let store = opened.map_err(|error| {
            let why = with_causes(&error);
            match &error {
                // One process has it open.
                OpenError::Store(_) if url.starts_with("file:") => Failure::Failed(format!(
                    "--store: {why}; where a gateway has it open, ask the gateway: --admin"
                )),
                OpenError::Store(_) => Failure::Failed(format!("--store: {why}")),
                _ => Failure::Misused(format!("--store: {why}")),
            }
        })?;
        let user = || {
            ["USER", "LOGNAME"]
                .iter()
                .find_map(|name| std::env::var(name).ok())
        };
        let by = text(flags, "by").map(str::to_owned).or_else(user);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let actor = Actor {
            name: by.unwrap_or_else(|| "unknown".to_owned()),
            from: format!("{} command line", host.trim())
                .trim_start()
                .to_owned(),
        };
        let opened = ready.around(store).await;
        let opened = opened.map_err(|error| Failure::Misused(error.to_string()))?;
        let store = opened.store.clone();
        let kept = super::said(flags, RETENTION, values::positive).map_err(Failure::Misused)?;
        let log = Log::new(store.clone(), kept.unwrap_or(audit::DEFAULT_RETENTION));
        let operations = Operations::new(store, log).with_opened(opened);
        Ok(Self::Store(operations, actor))
    }

    /// What it is, for people.
    pub(in crate::command) fn name(&self) -> &str {
        match self {
            Self::Gateway(gateway) => &gateway.base,
            Self::Store(..) => "the store",
        }
    }

    pub(in crate::command) async fn overview(&self) -> Result<Overview> {
        match self {
            Self::Gateway(gateway) => gateway.get("overview").await,
            Self::Store(operations, _) => {
                let probe = operations.store().probe().await;
                probe.map_err(|error| Failure::Failed(with_causes(&error)))?;
                Ok(Overview {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    store: StoreCondition {
                        condition: "up".to_owned(),
                        why: None,
                    },
                    records: operations.counts().await,
                    // They are counted in a gateway.
                    events: BTreeMap::new(),
                })
            }
        }
    }

    /// Hears of these events for ever, as they happen; on a store itself there are none.
    pub(in crate::command) async fn listen(
        &self,
        to: &[&str],
        heard: impl Fn(Heard),
    ) -> Infallible {
        let Self::Gateway(gateway) = self else {
            return std::future::pending().await;
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(to.iter().map(|event| ("event", event)));
        let path = format!("events?{}", query.finish());
        loop {
            let ended = gateway.hear(&path, &heard).await;
            let why = ended.map_or_else(Failure::into_why, |()| "they broke off".to_owned());
            heard(Heard::Deaf(why));
            sleep(AGAIN).await;
        }
    }

    pub(in crate::command) async fn list(
        &self,
        filter: &[(&str, String)],
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page> {
        match self {
            Self::Gateway(gateway) => {
                let mut query = form_urlencoded::Serializer::new(String::new());
                query
                    .extend_pairs(filter)
                    .append_pair("limit", &limit.to_string());
                if let Some(cursor) = cursor {
                    query.append_pair("cursor", cursor);
                }
                gateway.get(&format!("records?{}", query.finish())).await
            }
            Self::Store(operations, _) => {
                let filter = Filter::of(filter.iter().map(|(name, value)| (*name, &**value)));
                let filter =
                    filter.map_err(|why| Failure::Misused(format!("--{}", why.detail())))?;
                let from = cursor.map_or_else(|| Ok(Position::default()), Position::parse)?;
                Ok(operations.list(&filter, &from, limit).await?.into())
            }
        }
    }

    pub(super) async fn show(&self, id: &str) -> Result<Detail> {
        let digest = order::id(id).map_err(|why| Failure::Misused(why.detail().to_owned()))?;
        match self {
            Self::Gateway(gateway) => gateway.get(&format!("records/{digest}")).await,
            Self::Store(operations, _) => Ok(operations.detail(&operations.find(&digest).await?)),
        }
    }

    pub(super) async fn lookup(&self, lookup: &Lookup) -> Result<Detail> {
        match self {
            Self::Gateway(gateway) => gateway.post("records/lookup", lookup).await,
            Self::Store(operations, _) => Ok(operations.detail(&operations.look_up(lookup).await?)),
        }
    }

    pub(super) async fn act(&self, id: &str, action: &str, order: Order) -> Result<Done> {
        match self {
            Self::Gateway(gateway) => {
                gateway
                    .post(&format!("records/{id}/{action}"), &order)
                    .await
            }
            Self::Store(operations, actor) => {
                let id = order::id(id)?;
                let done = operations
                    .act(actor, &id, action, order, OUTCOME_RETENTION)
                    .await;
                Ok(operations.done(done?))
            }
        }
    }

    pub(super) async fn many(&self, action: &str, order: &Many) -> Result<DoneMany> {
        match self {
            Self::Gateway(gateway) => gateway.post(action, order).await,
            Self::Store(operations, actor) => {
                let told = |records| progress(&format!("{action}: {records} records"));
                let done = operations.many(actor, action, order, told).await;
                progress("");
                Ok(done?)
            }
        }
    }

    /// The answer; or the number of the entry that proposes to see it.
    pub(super) async fn reveal(
        &self,
        id: &str,
        order: &Order,
    ) -> Result<std::result::Result<Answer, String>> {
        let answer: Value = match self {
            Self::Gateway(gateway) => gateway.post(&format!("records/{id}/reveal"), order).await?,
            Self::Store(operations, actor) => {
                let revealed = operations.reveal(actor, &order::id(id)?, order).await?;
                return Ok(revealed.map(|(_, answer)| answer));
            }
        };
        if answer["proposed"] == true {
            return Ok(Err(answer["audit"].as_str().unwrap_or_default().to_owned()));
        }
        let answer = serde_json::from_value(answer);
        answer
            .map(Ok)
            .map_err(|error| Failure::Failed(error.to_string()))
    }

    pub(in crate::command) async fn audit(
        &self,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<audit::Page> {
        match self {
            Self::Gateway(gateway) => {
                let cursor = cursor
                    .map(|cursor| format!("&cursor={cursor}"))
                    .unwrap_or_default();
                gateway.get(&format!("audit?limit={limit}{cursor}")).await
            }
            Self::Store(operations, _) => {
                let from = cursor
                    .map(str::parse)
                    .transpose()
                    .map_err(Failure::Failed)?;
                let page = operations.log().page(from, limit).await;
                Ok(page.map_err(of_store)?)
            }
        }
    }

    pub(super) async fn close(&self) -> Result<()> {
        match self {
            Self::Gateway(_) => Ok(()),
            Self::Store(operations, _) => {
                let closed = operations.store().close().await;
                closed.map_err(|error| Failure::Failed(with_causes(&error)))
            }
        }
    }
}

/// A gateway's admin API.
pub(in crate::command) struct Gateway {
    client: Client<Connector, Full<Bytes>>,
    /// Without a slash at its end.
    base: String,
    token: Option<HeaderValue>,
}

impl Gateway {
    fn at(flags: &ArgMatches) -> Result<Self> {
        let from_outside = std::env::var("SEMEL_ADMIN").ok();
        let given = text(flags, "admin").or(from_outside.as_deref());
        let given = given
            .unwrap_or("http://127.0.0.1:8081")
            .trim_end_matches('/');
        // As `semel serve --admin` has it.
        let base = match given.contains("://") {
            true => given.to_owned(),
            false => format!("http://{given}"),
        };
        let wrong = || {
            Failure::Misused(format!(
                "--admin: `{given}` is no address of a gateway; write it like http://127.0.0.1:8081 or \
                 https://semel.internal"
            ))
        };
        let url: Uri = base.parse().map_err(|_| wrong())?;
        let is_https = url.scheme() == Some(&Scheme::HTTPS);
        let host = url
            .host()
            .filter(|_| is_https || url.scheme() == Some(&Scheme::HTTP))
            .ok_or_else(wrong)?;
        let token = token(flags)?;
        let host = host.trim_matches(['[', ']']);
        let is_here = host == "localhost"
            || host
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if token.is_some() && !is_https && !is_here {
            let why = "--admin: a token goes to another machine over https:// only";
            return Err(Failure::Misused(why.to_owned()));
        }
        let ca = text(flags, "ca").map(|path| PemFile::new("--ca", path));
        let trust = Arc::new(Trust::new(ca));
        if is_https {
            trust
                .read()
                .map_err(|error| Failure::Misused(error.to_string()))?;
        }
        let connector = Connector::new(CONNECT_TIMEOUT, trust, Speaks::Http1);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self {
            client,
            base,
            token,
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Failed(error.to_string()))?;
        self.ask(Method::POST, path, body.into()).await
    }

    fn failed(&self, why: impl std::fmt::Display) -> Failure {
        Failure::Failed(format!("{}: {why}", self.base))
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let unsettled = unsettled(&method, path);
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = method;
        let url = format!("{}/api/v1/{path}", self.base).parse();
        *request.uri_mut() = url.map_err(|error: http::uri::InvalidUri| self.failed(error))?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        request
            .headers_mut()
            .extend(self.token.clone().map(|token| (AUTHORIZATION, token)));
        self.client.request(request).await.map_err(|error| {
            let why = with_causes(&error);
            match error.is_connect() {
                true => self.failed(format_args!("no gateway answers there ({why})")),
                false => self.failed(format_args!("it broke off ({why}){unsettled}")),
            }
        })
    }

    /// Hears of what happens until the gateway ends it, or is silent for too long.
    async fn hear(&self, path: &str, heard: impl Fn(Heard)) -> Result<()> {
        let answer = timeout(ANSWER_TIMEOUT, self.send(Method::GET, path, Bytes::new())).await;
        let mut answer = answer.map_err(|_| self.failed("no answer in time"))??;
        let status = answer.status();
        if !status.is_success() {
            let why = timeout(
                ANSWER_TIMEOUT,
                Limited::new(answer, MOST_OF_A_LINE).collect(),
            )
            .await;
            let why = why.ok().and_then(std::result::Result::ok);
            return Err(self.refused(status, &why.unwrap_or_default().to_bytes(), ""));
        }
        heard(Heard::Listens);
        let mut read = Vec::new();
        while let Ok(Some(Ok(frame))) = timeout(SILENCE, answer.frame()).await {
            let Ok(data) = frame.into_data() else {
                continue;
            };
            read.extend_from_slice(&data);
            while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = read.drain(..=end).collect();
                let Some(data) = line.strip_prefix(b"data: ") else {
                    continue;
                };
                // A number says how much was lost.
                let lost = serde_json::from_slice(data).map(Heard::Lost);
                let told = lost.or_else(|_| serde_json::from_slice(data).map(Heard::Event));
                told.into_iter().for_each(&heard);
            }
            if read.len() > MOST_OF_A_LINE {
                return Err(self.failed("a line has no end"));
            }
        }
        Ok(())
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Bytes) -> Result<T> {
        let unsettled = unsettled(&method, path);
        let failed = |why: String| self.failed(why);
        let answer = async {
            let (head, body) = self.send(method, path, body).await?.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await;
            let body =
                body.map_err(|error| failed(format!("its answer broke off: {error}{unsettled}")))?;
            Ok((head.status, body.to_bytes()))
        };
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        let late = |_| Err(failed(format!("no answer in time{unsettled}")));
        let (status, body) = answer.unwrap_or_else(late)?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| failed(format!("its answer is not understood: {error}")));
        }
        Err(self.refused(status, &body, unsettled))
    }

    /// Why it did not do what it was asked for.
    fn refused(&self, status: StatusCode, body: &[u8], unsettled: &str) -> Failure {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        match (problem["code"].as_str(), problem["detail"].as_str()) {
            (Some("unauthorized"), Some(detail)) => self.failed(format_args!(
                "unauthorized: {detail} (--token-file FILE, or SEMEL_TOKEN)"
            )),
            (Some(code), Some(detail)) => Failure::Failed(format!("{code}: {detail}")),
            // A proxy before it may have waited no longer.
            _ if status.is_server_error() => {
                self.failed(format_args!("it answered {status}{unsettled}"))
            }
            _ => self.failed(format_args!(
                "it answered {status}; is it the --admin address?"
            )),
        }
    }
}

/// What is to be said of an order that was sent and not answered.
fn unsettled(method: &Method, path: &str) -> &'static str {
    match *method == Method::POST && path != "records/lookup" {
        true => "; it may have been done, or be done yet: look at `semel audit`",
        false => "",
    }
}

fn token(flags: &ArgMatches) -> Result<Option<HeaderValue>> {
    let token = match text(flags, "token-file") {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::Misused(format!("--token-file: cannot read `{path}`: {error}"))
        })?),
        None => std::env::var("SEMEL_TOKEN").ok(),
    };
    let Some(token) = token else {
        return Ok(None);
    };
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| Failure::Misused("the token has characters that no token has".to_owned()))?;
    value.set_sensitive(true);
    Ok(Some(value))
}
