//! The console: pages for operators' browsers, at `/` of their listener. What they show and do is
//! `operations`, `audit` and what the admin API says; here it becomes HTML.
//!
//! 1. *Pages work without script.* `assets/console.js` adds what follows events, charts, and the viewer's time.
//! 2. *Who calls is asked for each request* (`session`): the configuration may have changed.
//! 3. *Nothing is changed by another site*: a form has a number of its page, and browsers say where it was.
//! 4. *Links are relative*, so that it can stand behind any path of a proxy.
//! 5. *No key and no answer stands in a URL*; pages are not kept by browsers.

mod answer;
mod assets;
mod history;
mod pages;
mod record;
mod retention;
mod session;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue,
    LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, StatusCode};
use semel::{StoreError, Timestamp};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use url::form_urlencoded::{self, Serializer};

use crate::access::{Caller, Gate, Role, site};
use crate::api::{self, Api};
use crate::audit;
use crate::claims::MAX_REQUEST;
use crate::operations::view::{Counts, time};
use crate::operations::{Actor, about_now};
use crate::peer::Peer;
use crate::pool::Pools;
use crate::refused::Refused;
use crate::store::Condition;
pub use history::History;
use pages::{Frame, Problem, SignIn, Trouble};
use session::{NoSession, Sessions};

/// How long a form may take.
const FORM_TIME: Duration = Duration::from_secs(30);
/// The largest form of who is not signed in, in bytes.
const SHORT_FORM: usize = 4 << 10;
/// How long a count of the store's records is shown: others may look at the same time.
const COUNT_FOR: Duration = Duration::from_secs(4);
/// The name of a form's number.
const FORM_NUMBER: &str = "form";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What pages are made of.
pub struct Console {
    api: Arc<Api>,
    gate: Arc<Gate>,
    pools: Arc<Pools>,
    history: Arc<History>,
    sessions: Sessions,
    counted: Mutex<Option<(Instant, Counts)>>,
}

impl Console {
    /// Of what the admin API works on, for those whom the gate lets in.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub fn new(
        api: Arc<Api>,
        gate: Arc<Gate>,
        pools: Arc<Pools>,
        history: Arc<History>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            api,
            gate,
            pools,
            history,
            sessions: Sessions::new()?,
            counted: Mutex::default(),
        })
    }

    async fn counts(&self) -> Counts {
        let mut counted = self.counted.lock().await;
        match &*counted {
            Some((at, counts)) if at.elapsed() < COUNT_FOR => counts.clone(),
            _ => {
                let counts = self.api.operations.counts().await;
                *counted = Some((Instant::now(), counts.clone()));
                counts
            }
        }
    }
}

/// Who asks for a page, and for what.
struct Visitor {
    console: Arc<Console>,
    caller: Option<Caller>,
    session: Option<String>,
    /// Whether there was a session, and its token is not in the configuration any more.
    is_gone: bool,
    /// The name of the cookie that has a session's number.
    cookie: String,
    /// What forms on the page carry.
    form: String,
    /// From the page to the console's root.
    base: String,
    /// What the query says, or the form that was sent.
    asked: Form,
}

type Asked = Extension<Arc<Visitor>>;

/// What somebody proposed and nobody confirmed: the entry, its intent, and whether it is the visitor's.
type Proposal = (audit::Entry, audit::Intent, bool);

impl Visitor {
    fn may(&self, least: Role) -> bool {
        self.caller
            .as_ref()
            .is_some_and(|caller| caller.require(least).is_ok())
    }

    /// Who does something, if they may.
    fn acts(&self, least: Role, peer: &Peer) -> Result<Actor, Box<Response>> {
        let caller = self.caller.as_ref().ok_or(StatusCode::UNAUTHORIZED);
        let caller = caller.map_err(|status| status.into_response())?;
        let title = "You are not allowed to do this";
        match caller.require(least) {
            Ok(()) => Ok(api::actor(caller, peer)),
            Err(refused) => Err(Box::new(self.problem(
                StatusCode::FORBIDDEN,
                title,
                refused.detail(),
            ))),
        }
    }

    /// What was proposed of this, and what is to be said where there may be more.
    async fn proposals(
        &self,
        is_it: impl Fn(&audit::Intent) -> bool,
    ) -> (Vec<Proposal>, Option<String>) {
        let (open, unseen) = seen(self.console.api.operations.proposals(is_it).await);
        let me = self.caller.as_ref().map(Caller::name);
        let open = open.into_iter().filter_map(|entry| {
            let intent = entry.intent.clone()?;
            let is_own = me == Some(&intent.by);
            Some((entry, intent, is_own))
        });
        (open.collect(), unseen)
    }

    /// What is around every page.
    fn frame(&self, title: &str) -> Frame {
        let health = &self.console.api.health;
        let (is_down, why) = match health.condition() {
            Condition::Up => (false, None),
            Condition::Full(why) => (false, Some(why)),
            Condition::Down(why) => (true, Some(why)),
        };
        // To the second: what is read out as an alert stays the same text while the trouble does.
        let since = about_now().before(health.since()).as_micros() / 1_000_000;
        Frame {
            base: self.base.clone(),
            title: title.to_owned(),
            screen: title.to_owned(),
            who: self.caller.as_ref().map(|caller| {
                let role = caller.role().map_or("no role", Role::as_str);
                (caller.name().to_owned(), role)
            }),
            is_signed_in: self.session.is_some(),
            form: self.form.clone(),
            trouble: why.map(|why| Trouble {
                is_down,
                why,
                since: time(Timestamp::from_micros(since * 1_000_000)),
            }),
            assets: &assets::VERSION,
        }
    }

    fn problem(&self, status: StatusCode, title: &str, detail: &str) -> Response {
        let page = Problem {
            frame: self.frame(title),
            detail: detail.to_owned(),
            is_outage: status == StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, page).into_response()
    }

    fn refused(&self, refused: &Refused) -> Response {
        self.problem(refused.status(), refused.title(), refused.detail())
    }

    /// A page, or one that says why there is none.
    fn shown(&self, page: Result<impl IntoResponse, Refused>) -> Response {
        page.map_or_else(|why| self.refused(&why), IntoResponse::into_response)
    }

    /// The page for signing in.
    fn to_sign_in(&self, status: StatusCode, why: Option<&str>) -> Response {
        let page = SignIn {
            frame: self.frame("Sign in"),
            to: self.asked.get("to").to_owned(),
            why: why.map(str::to_owned),
        };
        (status, page).into_response()
    }
}

/// The proposals that were found, and what is to be said where there may be more.
fn seen(found: Result<(Vec<audit::Entry>, bool), Refused>) -> (Vec<audit::Entry>, Option<String>) {
    match found {
        Ok((open, true)) => (open, None),
        Ok((open, false)) => {
            let why = "The audit log has more entries than were looked through for proposals. An older one is \
                       confirmed by its number: semel records … --confirm NUMBER";
            (open, Some(why.to_owned()))
        }
        Err(why) => {
            let why = format!(
                "The audit log cannot be read now, so no proposals are shown: {}",
                why.detail()
            );
            (Vec::new(), Some(why))
        }
    }
}

/// What a query or a form says: pairs of name and value.
#[derive(Clone, Default)]
struct Form(Vec<(String, String)>);

impl Form {
    fn of(encoded: &[u8]) -> Self {
        Self(form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The pairs.
    fn pairs(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// A field's text; empty where there is none.
    fn get(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let of_it = self.pairs().filter(move |(found, _)| *found == name);
        of_it.map(|(_, value)| value)
    }

    /// A field that was filled in.
    fn filled(&self, name: &str) -> Option<String> {
        Some(self.get(name).trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// Pairs as a query.
fn query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// The pages, and what they load.
pub fn router(console: Console) -> Router {
    let console = Arc::new(console);
    Router::new()
        .route("/", get(pages::overview))
        .route("/records", get(pages::records))
        .route(
            "/records/find",
            get(|| async { see("../records") }).post(pages::find),
        )
        .route("/records/{id}", get(record::show))
        .route(
            "/records/{id}/{action}",
            get(record::back).post(record::act),
        )
        .route("/audit", get(pages::audit))
        .route("/audit/export", get(retention::export))
        .route("/policy", get(pages::policy))
        .route("/retention", get(retention::show))
        .route(
            "/retention/{action}",
            get(retention::back).post(retention::act),
        )
        .route_layer(middleware::from_fn(signed_in))
        .route("/sign-in", get(sign_in).post(begin))
        .route("/sign-out", post(end))
        // Not of other paths: a claim that is sent to a wrong one is no form.
        .route_layer(middleware::from_fn_with_state(console, known))
        .route_layer(middleware::map_response(guarded))
        .route("/assets/{version}/{name}", get(assets::serve))
}

/// What browsers may do with a page.
async fn guarded(mut response: Response) -> Response {
    let fields: [(HeaderName, &str); 4] = [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: browsers would not say either where a form was.
        (REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in fields {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Finds out who asks, reads a form, and refuses one that is not of a page of this gateway.
async fn known(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    let (mut parts, mut body) = request.into_parts();
    let cookie = session::cookie_name(&parts);
    let session = session::number(&parts.headers, &cookie);
    let holder = |token| console.gate.holder(token);
    let here = match &session {
        Some(number) => console.sessions.caller(number, holder),
        None => Err(NoSession::Unknown),
    };
    let is_gone = here.as_ref().is_err_and(|why| *why == NoSession::Ended);
    let session = session.filter(|_| here.is_ok());
    // Without a session, forms are of those who come with the same token.
    let whose = session.as_deref().map(str::as_bytes);
    let token = parts.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let whose = whose.or(token).unwrap_or_default();
    let depth = parts.uri.path().matches('/').count().saturating_sub(1);
    let mut visitor = Visitor {
        caller: here
            .ok()
            .or_else(|| console.gate.caller(&parts.headers).ok()),
        is_gone,
        form: console.sessions.form_number(whose),
        session,
        cookie,
        base: if depth == 0 {
            "./".to_owned()
        } else {
            "../".repeat(depth)
        },
        asked: Form::of(parts.uri.query().unwrap_or_default().as_bytes()),
        console,
    };
    if parts.method == Method::POST {
        if !site::is_own(&parts) {
            let why = "A page of another site sent this form. Nothing was done.";
            return visitor.problem(StatusCode::FORBIDDEN, "Refused", why);
        }
        // Whom nobody knows can only sign in, or out: nothing large is held for them.
        let signs = matches!(parts.uri.path(), "/sign-in" | "/sign-out");
        let most = match (&visitor.caller, signs) {
            (Some(_), _) => MAX_REQUEST,
            (None, true) => SHORT_FORM,
            (None, false) => 0,
        };
        if most > 0 {
            let sent = std::mem::replace(&mut body, Body::empty());
            let Ok(Ok(whole)) = timeout(FORM_TIME, to_bytes(sent, most)).await else {
                let why = format!(
                    "The form is larger than {} KiB, or did not come whole. Nothing was done.",
                    most >> 10
                );
                return visitor.problem(StatusCode::BAD_REQUEST, "The form did not arrive", &why);
            };
            visitor.asked = Form::of(&whole);
            if !session::is_same(&visitor.form, visitor.asked.get(FORM_NUMBER)) {
                let why = "The form was open while your session ended or the gateway was restarted, or it \
                           is not one of this console. Nothing was done. Open the page again, and repeat it.";
                return visitor.problem(StatusCode::FORBIDDEN, "This form is out of date", why);
            }
        }
    }
    parts.extensions.insert(Arc::new(visitor));
    next.run(Request::from_parts(parts, body)).await
}

/// Lets pages be seen by those who may look, and sends others to where they sign in.
async fn signed_in(Extension(visitor): Asked, request: Request, next: Next) -> Response {
    let Some(caller) = &visitor.caller else {
        let gate = &visitor.console.gate;
        if let Err(refused) = gate.caller(request.headers())
            && !gate.asks()
        {
            let title = "Nobody can sign in yet";
            return visitor.problem(StatusCode::UNAUTHORIZED, title, refused.detail());
        }
        // Where a form was sent to there is a page to look at, too.
        let asked = request.uri().path_and_query();
        let asked = asked.map_or("", |asked| asked.as_str().trim_start_matches('/'));
        let unsent = (request.method() == Method::POST).then_some(("why", "unsent"));
        let gone = visitor.is_gone.then_some(("why", "gone"));
        let pairs = [("to", asked)].into_iter().chain(gone).chain(unsent);
        return see(&format!("{}sign-in?{}", visitor.base, query(pairs)));
    };
    match caller.require(Role::ReadOnly) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            let title = "You are not allowed to look";
            visitor.problem(StatusCode::FORBIDDEN, title, refused.detail())
        }
    }
}

/// Has the browser get another page.
fn see(to: &str) -> Response {
    match HeaderValue::try_from(to) {
        Ok(to) => (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// The same, with something in the cookie of the session. Without a path it is that of this page's folder,
/// whatever stands before it at a proxy.
fn see_with(to: &str, visitor: &Visitor, value: &str) -> Response {
    let mut response = see(to);
    let cookie = format!("{}={value}; HttpOnly; SameSite=Strict", visitor.cookie);
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

async fn sign_in(Extension(visitor): Asked) -> Response {
    if visitor.caller.is_some() {
        return see(&format!("./{}", visitor.asked.get("to")));
    }
    let why = visitor.asked.all("why").filter_map(|why| match why {
        "gone" => Some("You were signed out: your token is no longer in the configuration."),
        "unsent" => Some("Nothing was done: nobody was signed in. Sign in, and do it again."),
        _ => None,
    });
    let why: Vec<&str> = why.collect();
    let why = (!why.is_empty()).then(|| why.join(" "));
    visitor.to_sign_in(StatusCode::OK, why.as_deref())
}

async fn begin(Extension(visitor): Asked, headers: HeaderMap) -> Response {
    let (console, form) = (&visitor.console, &visitor.asked);
    let known = console.gate.known(form.get("token").trim().as_bytes());
    let Some((token, caller)) = known else {
        let why = "This token is not known.";
        return visitor.to_sign_in(StatusCode::UNAUTHORIZED, Some(why));
    };
    if caller.role().is_none() {
        let why = "This token has no role: it is for claims, not for operators.";
        return visitor.to_sign_in(StatusCode::FORBIDDEN, Some(why));
    }
    let Ok(number) = console.sessions.begin(token) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
    let is_secure = origin.is_some_and(|origin| origin.starts_with(b"https:"));
    // `./` before it: never another host.
    let to = format!("./{}", form.get("to"));
    see_with(
        &to,
        &visitor,
        &(number + if is_secure { "; Secure" } else { "" }),
    )
}

async fn end(Extension(visitor): Asked) -> Response {
    let session = visitor.session.as_deref();
    visitor.console.sessions.end(session.unwrap_or_default());
    see_with("./sign-in", &visitor, "; Max-Age=0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Code;

    #[test]
    fn a_log_that_cannot_be_read_is_not_said_to_be_long() {
        let say = |found| seen(found).1.unwrap_or_default();
        assert_eq!(say(Ok((Vec::new(), true))), "");
        assert!(say(Ok((Vec::new(), false))).contains("has more entries"));
        let down = say(Err(Refused::new(Code::ActionUnknown, "no route")));
        assert!(
            down.contains("cannot be read now") && down.contains("no route"),
            "{down}"
        );
    }
}
