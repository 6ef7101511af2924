//! The service behind the gateways: a process of its own with a ledger that no kill reaches.
//!
//! It refuses a fence lower than the highest that it saw for an id, writes each effect down before it
//! answers, and gives every execution an answer of its own, so that the answer of another is
//! recognised. It also answers a gateway's reconciler.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, LOCATION,
};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::bugs::Bug;
use super::options::Options;
use super::records::{Done, Entry, Identity};
use crate::clock::now;
use crate::history::digest;
use crate::lines::{Lines, read};
use crate::process::{Orders, say};

/// The call's number and whose it is; the fingerprint does not see them.
pub(super) const CALL: &str = "x-call";
pub(super) const WHOSE: &str = "x-whose";
/// Which execution an answer is of.
pub(super) const EXECUTION: &str = "x-execution";
const PART: &str = "x-part";

/// How it behaves; the parent says so, a line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Mood {
    Well,
    /// Answers some requests never.
    Hangs,
    /// Cuts some connections after the effect.
    Cuts,
    /// Fails some requests.
    Fails,
}

/// What it is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(super) options: Options,
    pub(super) address: SocketAddr,
    pub(super) ledger: PathBuf,
}

/// Runs it until the parent is gone.
pub(crate) async fn run(settings: Settings) -> Result<()> {
    let books = Books::open(&settings.ledger)?;
    let listener = TcpListener::bind(settings.address).await?;
    let (moods, mood) = watch::channel(Mood::Well);
    let upstream = Arc::new(Upstream {
        settings,
        books: Mutex::new(books),
        mood,
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(upstream.clone(), stream));
        }
    });
    say(&"ready");
    let mut orders = Orders::new();
    while let Some(mood) = orders.next().await? {
        moods.send_replace(mood);
        say(&"done");
    }
    bail!("the parent is gone")
}

async fn connection(upstream: Arc<Upstream>, stream: TcpStream) {
    let service = service_fn(|request| upstream.clone().answer(request));
    // Gateways close connections as they like.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

struct Upstream {
    settings: Settings,
    books: Mutex<Books>,
    mood: watch::Receiver<Mood>,
}

type Sent = BoxBody<Bytes, Cut>;

/// The connection is cut in place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

impl Upstream {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Sent>, Cut> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
        if head.uri.path() == "/reconcile" {
            return Ok(self.reconcile(&body));
        }
        let Some(mut asked) = Asked::read(&head.headers, &body) else {
            return Ok(plain(StatusCode::BAD_REQUEST, "not from a gateway"));
        };
        let bug = self.settings.options.bug;
        if bug == Some(Bug::OneId) {
            asked.id = format!("{}-{}", asked.identity.service, asked.identity.key);
        }
        if bug == Some(Bug::ConstantFence) {
            asked.fence = 1;
        }
        // What a request meets follows from its number.
        let mut chance = fastrand::Rng::with_seed(asked.call);
        let mut mood = self.mood.clone();
        let found = *mood.borrow();
        if found == Mood::Hangs && chance.u32(..24) == 0 {
            let _ = mood.wait_for(|mood| *mood != Mood::Hangs).await;
            return Err(Cut);
        }
        self.work(&mut chance).await;
        let fails = if found == Mood::Fails { 8 } else { 32 };
        if chance.u32(..fails) == 0 {
            return Ok(self.fail(&asked, found == Mood::Fails, &mut chance));
        }
        let executed = self.books.lock().execute(&asked, None);
        let Some((number, answer)) = executed else {
            return Ok(in_progress());
        };
        if chance.u32(..4) == 0 {
            self.again(bug, &asked);
        }
        self.work(&mut chance).await;
        // After the effect, too.
        if *mood.borrow() == Mood::Hangs && chance.u32(..24) == 0 {
            let _ = mood.wait_for(|mood| *mood != Mood::Hangs).await;
            return Err(Cut);
        }
        let cuts = bug == Some(Bug::CutsAll) || chance.u32(..12) == 0;
        let cut = cuts && [found, *mood.borrow()].contains(&Mood::Cuts);
        // Half of them within the answer.
        match cut && number.is_multiple_of(2) {
            true => Err(Cut),
            false => Ok(in_pieces(number, answer, cut)),
        }
    }

    /// Some requests take longer than a lease.
    async fn work(&self, chance: &mut fastrand::Rng) {
        let long = self.settings.options.run.lease.mul_f64(0.7);
        let time = match chance.u32(..200) {
            0 => long,
            n => Duration::from_micros(u64::from(n) * 100),
        };
        sleep(time).await;
    }

    fn fail(&self, asked: &Asked, spell: bool, chance: &mut fastrand::Rng) -> Response<Sent> {
        let all = [503, 500, 429, 502, 504];
        let status = match self.settings.options.bug {
            // It shows in nothing else.
            Some(Bug::ReleasesTimeout) if spell => 504,
            _ => all[chance.usize(..if spell { all.len() } else { 3 })],
        };
        let mut books = self.books.lock();
        // Who answers 504 gave up waiting for one who may have done it.
        let done = match status {
            504 => books.execute(asked, None).is_some(),
            _ => books.fail(asked, status),
        };
        match done {
            true => plain(StatusCode::from_u16(status).unwrap_or_default(), "failed"),
            false => in_progress(),
        }
    }

    /// The planted bugs that run an operation twice.
    fn again(&self, bug: Option<Bug>, asked: &Asked) {
        let fence = match bug {
            Some(Bug::ForwardsTwice) => asked.fence,
            Some(Bug::RunsAgain) => asked.fence + 1,
            _ => return,
        };
        self.books.lock().execute(asked, Some(fence));
    }

    /// What became of an attempt. Whoever is told "did not happen" can rely on it.
    fn reconcile(&self, question: &[u8]) -> Response<Sent> {
        #[derive(Deserialize)]
        struct Question {
            identity: String,
            fence: u64,
        }
        let Ok(Question { identity, fence }) = serde_json::from_slice(question) else {
            return plain(StatusCode::BAD_REQUEST, "not a question");
        };
        let finding = match self.books.lock().happened(&identity, fence) {
            None => {
                serde_json::json!({"finding": "did-not-happen", "reason": "refused from now on"})
            }
            Some(number) => {
                let answer = answer(number);
                let mut fields: HashMap<&str, Vec<&str>> = HashMap::new();
                for (name, value) in answer.headers() {
                    let value = value.to_str().unwrap_or_default();
                    fields.entry(name.as_str()).or_default().push(value);
                }
                serde_json::json!({
                    "finding": "happened",
                    "status": answer.status().as_u16(),
                    "headers": fields,
                    "body": String::from_utf8_lossy(answer.body()),
                })
            }
        };
        plain(StatusCode::OK, &finding.to_string())
    }
}

/// A request as it arrived.
struct Asked {
    id: String,
    fence: u64,
    identity: Identity,
    call: u64,
    body: u64,
}

impl Asked {
    fn read(headers: &HeaderMap, body: &[u8]) -> Option<Self> {
        let field = |name: &str| headers.get(name)?.to_str().ok();
        Some(Self {
            id: field("idempotency-id")?.into(),
            fence: field("idempotency-fence")?.parse().ok()?,
            identity: Identity::parse(field(WHOSE)?)?,
            call: field(CALL)?.parse().ok()?,
            body: digest(body),
        })
    }
}

/// The ledger, and what follows from it.
struct Books {
    lines: Lines,
    executions: u64,
    // The highest fence of each id, and whether it is closed.
    fences: HashMap<String, (u64, bool)>,
    executed: HashMap<String, u64>,
}

impl Books {
    fn open(path: &Path) -> Result<Self> {
        let mut books = Self {
            lines: Lines::open(path)?,
            executions: 0,
            fences: HashMap::new(),
            executed: HashMap::new(),
        };
        for entry in read::<Entry>(path).context("the ledger")? {
            books.note(&entry);
        }
        Ok(books)
    }

    fn note(&mut self, entry: &Entry) {
        let (highest, closed) = self.fences.entry(entry.id.clone()).or_default();
        if entry.fence > *highest {
            (*highest, *closed) = (entry.fence, false);
        }
        match entry.done {
            Done::Executed { number, .. } => {
                self.executions = self.executions.max(number);
                self.executed.insert(entry.id.clone(), number);
            }
            Done::Closed if entry.fence == *highest => *closed = true,
            _ => {}
        }
    }

    fn write(&mut self, asked: &Asked, fence: u64, done: Done) {
        let entry = Entry {
            at: now(),
            id: asked.id.clone(),
            fence,
            identity: asked.identity,
            call: asked.call,
            body: asked.body,
            done,
        };
        // An effect that is not written down would be missed by the judge.
        self.lines.record(&entry);
        self.note(&entry);
    }

    /// Has the effect, unless the fence is stale.
    fn execute(&mut self, asked: &Asked, fence: Option<u64>) -> Option<(u64, Response<Bytes>)> {
        if !self.admits(asked) {
            return None;
        }
        let number = self.executions + 1;
        let answer = answer(number);
        let (head, body) = (
            head_digest(answer.status(), answer.headers()),
            body_digest(answer.headers(), answer.body()),
        );
        let done = Done::Executed { number, head, body };
        self.write(asked, fence.unwrap_or(asked.fence), done);
        Some((number, answer))
    }

    /// Whether the fence is not stale.
    fn admits(&mut self, asked: &Asked) -> bool {
        let seen = self.fences.get(&asked.id);
        let stale = seen.is_some_and(|(highest, closed)| {
            asked.fence < *highest || asked.fence == *highest && *closed
        });
        if stale {
            self.write(asked, asked.fence, Done::Refused);
        }
        !stale
    }

    /// Does nothing, unless the fence is stale.
    fn fail(&mut self, asked: &Asked, status: u16) -> bool {
        let fresh = self.admits(asked);
        if fresh {
            self.write(asked, asked.fence, Done::Failed { status });
        }
        fresh
    }

    fn happened(&mut self, id: &str, fence: u64) -> Option<u64> {
        if let Some(number) = self.executed.get(id) {
            return Some(*number);
        }
        let nobody = Identity {
            service: 0,
            principal: 0,
            key: u32::MAX,
        };
        let asked = Asked {
            id: id.into(),
            fence,
            identity: nobody,
            call: u64::MAX,
            body: 0,
        };
        self.write(&asked, fence, Done::Closed);
        None
    }
}

/// The answer of an execution: no two are alike.
fn answer(number: u64) -> Response<Bytes> {
    let mut chance = fastrand::Rng::with_seed(number);
    let mut body = format!("{{\"receipt\": {number}, \"für\": \"");
    let size = match number % 16 {
        0 => chance.usize(66_000..300_000),
        1 => 0,
        _ => chance.usize(..3_000),
    };
    body.extend((0..size).map(|_| chance.alphanumeric()));
    body.push_str("\"}");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = match number % 20 {
        0 => StatusCode::PAYMENT_REQUIRED,
        n if n % 4 == 0 => StatusCode::OK,
        _ => StatusCode::CREATED,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(EXECUTION, HeaderValue::from(number));
    if number.is_multiple_of(2) {
        let location = HeaderValue::from_str(&format!("/receipts/{number}"));
        headers.insert(LOCATION, location.expect("a path"));
        for part in 0..chance.u64(1..4) {
            headers.append(PART, HeaderValue::from(number + part));
        }
    } else {
        headers.insert(
            ETAG,
            HeaderValue::from_str(&format!("\"{number}\"")).expect("a tag"),
        );
    }
    response
}

/// An answer as it is sent: every third in pieces, of a length that is not told; or cut off before its end.
fn in_pieces(number: u64, answer: Response<Bytes>, cut: bool) -> Response<Sent> {
    let (mut head, mut body) = answer.into_parts();
    let mut size = body.len();
    match number.is_multiple_of(3) {
        true => size = size.min(10_000),
        // One that is cut promises more than comes.
        false => drop(head.headers.insert(CONTENT_LENGTH, body.len().into())),
    }
    if cut {
        body.truncate(body.len() - size / 2);
    }
    let mut pieces = Vec::new();
    while !body.is_empty() {
        let piece = body.split_to(size.min(body.len()));
        pieces.push(Ok(Frame::data(piece)));
    }
    pieces.extend(cut.then_some(Err(Cut)));
    let body = StreamBody::new(stream::iter(pieces));
    Response::from_parts(head, body.boxed())
}

/// The digest of a status and the fields of an answer that do not describe its body.
pub(super) fn head_digest(status: StatusCode, headers: &HeaderMap) -> u64 {
    let mut text = status.as_str().to_owned();
    for name in [EXECUTION, PART, LOCATION.as_str(), ETAG.as_str()] {
        push_fields(&mut text, headers, &HeaderName::from_static(name));
    }
    digest(text.as_bytes())
}

/// The digest of a body and its type.
pub(super) fn body_digest(headers: &HeaderMap, body: &[u8]) -> u64 {
    let mut text = String::new();
    push_fields(&mut text, headers, &CONTENT_TYPE);
    digest(&[text.as_bytes(), body].concat())
}

fn push_fields(text: &mut String, headers: &HeaderMap, name: &HeaderName) {
    for value in headers.get_all(name) {
        text.push('\n');
        text.push_str(name.as_str());
        text.push_str(value.to_str().unwrap_or("?"));
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Sent> {
    let body = Full::from(text.to_owned()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = status;
    response
}

/// To an attempt that comes late: another one is, or was, under way.
fn in_progress() -> Response<Sent> {
    let mut response = plain(StatusCode::CONFLICT, "stale");
    let headers = response.headers_mut();
    headers.insert("retry-after", HeaderValue::from_static("1"));
    response
}
