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
mod session;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, LOCATION, ORIGIN,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, StatusCode};
use semel::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::access::site;
use crate::access::{Caller, Gate, Role};
use crate::api::Api;
use crate::claims::MAX_REQUEST;
use crate::operations::view::Counts;
use crate::pool::Pools;
use crate::refused::Refused;
use crate::store::Condition;
pub use history::History;
use pages::{Frame, Problem, SignIn, Trouble};
use session::Sessions;

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

    /// What is around every page.
    fn frame(&self, visitor: &Visitor, title: &str) -> Frame {
        let health = &self.api.health;
        let since = humantime::format_duration(Duration::from_secs(health.since().as_secs()));
        let trouble = match health.condition() {
            Condition::Up => None,
            Condition::Full(why) => Some((false, why)),
            Condition::Down(why) => Some((true, why)),
        };
        Frame {
            base: visitor.base.clone(),
            title: title.to_owned(),
            who: visitor.caller.as_ref().map(|caller| {
                let role = caller.role().map_or("no role", Role::as_str);
                (caller.name().to_owned(), role)
            }),
            is_signed_in: visitor.session.is_some(),
            form: visitor.form.clone(),
            trouble: trouble.map(|(is_down, why)| Trouble {
                is_down,
                why,
                since: since.to_string(),
            }),
            assets: &assets::VERSION,
        }
    }

    fn problem(
        &self,
        visitor: &Visitor,
        status: StatusCode,
        title: &str,
        detail: &str,
    ) -> Response {
        let is_outage = status == StatusCode::SERVICE_UNAVAILABLE;
        let page = Problem {
            frame: self.frame(visitor, title),
            detail: detail.to_owned(),
            is_outage,
        };
        (status, page).into_response()
    }

    fn refused(&self, visitor: &Visitor, refused: &Refused) -> Response {
        self.problem(visitor, refused.status(), refused.title(), refused.detail())
    }
}

/// Who asks for a page.
#[derive(Clone)]
struct Visitor {
    caller: Option<Caller>,
    session: Option<String>,
    /// Whether there was a session, and its token is not in the configuration any more.
    is_gone: bool,
    /// What forms on the page carry.
    form: String,
    /// From the page to the console's root.
    base: String,
}

impl Visitor {
    fn may(&self, least: Role) -> bool {
        self.caller
            .as_ref()
            .is_some_and(|caller| caller.require(least).is_ok())
    }
}

/// What a form says: pairs of name and value.
#[derive(Clone, Default)]
struct Form(Arc<[(String, String)]>);

impl Form {
    /// A field's text; empty where there is none.
    fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map_or("", |(_, value)| value)
    }

    fn all(&self, name: &'static str) -> impl Iterator<Item = &str> {
        let of_it = self.0.iter().filter(move |(found, _)| found == name);
        of_it.map(|(_, value)| value.as_str())
    }

    /// A field that was filled in.
    fn filled(&self, name: &str) -> Option<String> {
        Some(self.get(name).trim().to_owned()).filter(|text| !text.is_empty())
    }
}

type Shared = State<Arc<Console>>;

/// The pages, and what they load.
pub fn router(console: Console) -> Router {
    let console = Arc::new(console);
    let pages = Router::new()
        .route("/", get(pages::overview))
        .route("/records", get(pages::records))
        .route("/records/find", post(pages::find))
        .route("/records/{id}", get(record::show))
        .route("/records/{id}/{action}", post(record::act))
        .route("/audit", get(pages::audit))
        .route("/policy", get(pages::policy))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&console),
            signed_in,
        ))
        .route("/sign-in", get(sign_in).post(begin))
        .route("/sign-out", post(end))
        // Not of other paths: a claim that is sent to a wrong one is no form.
        .route_layer(middleware::from_fn_with_state(Arc::clone(&console), known))
        .route_layer(middleware::map_response(guarded));
    pages
        .route("/assets/{version}/{name}", get(assets::serve))
        .with_state(console)
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
async fn known(State(console): Shared, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let session = session::number(&parts.headers);
    let token = session
        .as_deref()
        .and_then(|number| console.sessions.token(number));
    let caller = token.and_then(|token| console.gate.holder(token));
    let session = session.filter(|_| caller.is_some());
    let path = parts.uri.path();
    let depth = path.matches('/').count().saturating_sub(1);
    let visitor = Visitor {
        is_gone: token.is_some() && caller.is_none(),
        caller: caller.or_else(|| console.gate.caller(&parts.headers).ok()),
        form: console.sessions.form_number(session.as_deref()),
        session,
        base: if depth == 0 {
            "./".to_owned()
        } else {
            "../".repeat(depth)
        },
    };
    parts.extensions.insert(visitor.clone());
    if parts.method == Method::POST {
        if !site::is_own(&parts) {
            let why = "A page of another site sent this form. Nothing was done.";
            return console.problem(&visitor, StatusCode::FORBIDDEN, "Refused", why);
        }
        // Whom nobody knows can only sign in, or out: nothing large is held for them.
        let signs = matches!(parts.uri.path(), "/sign-in" | "/sign-out");
        let most = match (&visitor.caller, signs) {
            (Some(_), _) => MAX_REQUEST,
            (None, true) => SHORT_FORM,
            (None, false) => return next.run(Request::from_parts(parts, body)).await,
        };
        let Ok(Ok(whole)) = timeout(FORM_TIME, to_bytes(body, most)).await else {
            let why = "The form is larger than 2 MiB, or did not come whole. Nothing was done.";
            return console.problem(
                &visitor,
                StatusCode::BAD_REQUEST,
                "The form did not arrive",
                why,
            );
        };
        let form = Form(url::form_urlencoded::parse(&whole).into_owned().collect());
        if !console
            .sessions
            .is_form_number(visitor.session.as_deref(), form.get(FORM_NUMBER))
        {
            let why = "The form was open while your session ended or the gateway was restarted, or it \
                       is not one of this console. Nothing was done. Open the page again, and repeat it.";
            return console.problem(
                &visitor,
                StatusCode::FORBIDDEN,
                "This form is out of date",
                why,
            );
        }
        parts.extensions.insert(form);
        return next
            .run(Request::from_parts(parts, axum::body::Body::empty()))
            .await;
    }
    next.run(Request::from_parts(parts, body)).await
}

/// Lets pages be seen by those who may look, and sends others to where they sign in.
async fn signed_in(State(console): Shared, request: Request, next: Next) -> Response {
    let Some(visitor) = request.extensions().get::<Visitor>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let Some(caller) = &visitor.caller else {
        if let Err(refused) = console.gate.caller(request.headers())
            && !console.gate.asks()
        {
            let why = refused.detail();
            return console.problem(
                &visitor,
                StatusCode::UNAUTHORIZED,
                "Nobody can sign in yet",
                why,
            );
        }
        let mut to = url::form_urlencoded::Serializer::new(String::new());
        if request.method() == Method::GET {
            let asked = request
                .uri()
                .path_and_query()
                .map_or("", |asked| asked.as_str());
            to.append_pair("to", asked.trim_start_matches('/'));
        }
        if visitor.is_gone {
            to.append_pair("gone", "true");
        }
        return see(&format!("{}sign-in?{}", visitor.base, to.finish()));
    };
    match caller.require(Role::ReadOnly) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            let why = refused.detail();
            console.problem(
                &visitor,
                StatusCode::FORBIDDEN,
                "You are not allowed to look any more",
                why,
            )
        }
    }
}

/// Has the browser get another page.
fn see(to: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    match HeaderValue::try_from(to) {
        Ok(to) => response.headers_mut().insert(LOCATION, to),
        Err(_) => return StatusCode::BAD_REQUEST.into_response(),
    };
    response
}

type Query = axum::extract::Query<Vec<(String, String)>>;

fn form_of(query: Query) -> Form {
    Form(query.0.into())
}

async fn sign_in(
    State(console): Shared,
    axum::Extension(visitor): axum::Extension<Visitor>,
    query: Query,
) -> Response {
    let asked = form_of(query);
    if visitor.caller.is_some() {
        return see(&format!("./{}", asked.get("to")));
    }
    let gone = "You were signed out: your token is no longer in the configuration.";
    let why = (!asked.get("gone").is_empty()).then(|| gone.to_owned());
    let page = SignIn {
        frame: console.frame(&visitor, "Sign in"),
        to: asked.get("to").to_owned(),
        why,
    };
    page.into_response()
}

async fn begin(
    State(console): Shared,
    axum::Extension(visitor): axum::Extension<Visitor>,
    axum::Extension(form): axum::Extension<Form>,
    headers: HeaderMap,
) -> Response {
    let known = console.gate.known(form.get("token").trim().as_bytes());
    let refused = |status, why: &str| {
        let page = SignIn {
            frame: console.frame(&visitor, "Sign in"),
            to: form.get("to").to_owned(),
            why: Some(why.to_owned()),
        };
        (status, page).into_response()
    };
    let Some((token, caller)) = known else {
        return refused(StatusCode::UNAUTHORIZED, "This token is not known.");
    };
    if caller.role().is_none() {
        let why = "This token has no role: it is for claims, not for operators.";
        return refused(StatusCode::FORBIDDEN, why);
    }
    let Ok(number) = console.sessions.begin(token) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    // Without a path it is that of this page's folder, whatever stands before it at a proxy.
    let name = session::cookie_name(&headers);
    let origin = headers
        .get(ORIGIN)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    let secure = if origin.starts_with(b"https:") {
        "; Secure"
    } else {
        ""
    };
    let cookie = format!("{name}={number}; HttpOnly; SameSite=Strict{secure}");
    // `./` before it: never another host.
    let mut response = see(&format!("./{}", form.get("to")));
    if let Ok(cookie) = HeaderValue::try_from(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

async fn end(
    State(console): Shared,
    axum::Extension(visitor): axum::Extension<Visitor>,
    headers: HeaderMap,
) -> Response {
    console
        .sessions
        .end(visitor.session.as_deref().unwrap_or_default());
    let gone = format!(
        "{}=; HttpOnly; SameSite=Strict; Max-Age=0",
        session::cookie_name(&headers)
    );
    let mut response = see("./sign-in");
    if let Ok(gone) = HeaderValue::try_from(gone) {
        response.headers_mut().insert(SET_COOKIE, gone);
    }
    response
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An answer of the API's, or a page that says why there is none.
fn or_problem<T>(
    console: &Console,
    visitor: &Visitor,
    answer: Result<T, Refused>,
) -> Result<T, Box<Response>> {
    answer.map_err(|refused| Box::new(console.refused(visitor, &refused)))
}
