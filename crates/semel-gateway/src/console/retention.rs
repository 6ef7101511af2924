//! What is done with many records at once, and the audit log as a file.

use std::io;
use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use serde_json::Value;

use super::pages::{Frame, Told, pages};
use super::{Asked, Form, Proposal, Visitor, see};
use crate::access::Role;
use crate::api;
use crate::audit::{self, Number};
use crate::operations::order::Many;
use crate::operations::{MOST, of_store};
use crate::peer::Peer;

#[derive(Template)]
#[template(path = "retention.html")]
struct Page {
    frame: Frame,
    told: Told,
    is_admin: bool,
    /// Whether erasing, and purging, needs two.
    needs_two: [bool; 2],
    proposals: Vec<Proposal>,
    /// What is to be said where there may be more of them.
    unseen: Option<String>,
    /// What was sent last and did not do anything.
    sent: Form,
}

pages!(Page);

impl Page {
    async fn of(visitor: &Visitor) -> Self {
        let operations = &visitor.console.api.operations;
        let (proposals, unseen) = visitor.proposals(|intent| intent.id.is_none()).await;
        Self {
            frame: visitor.frame("Retention"),
            told: Told::of(visitor, None, &proposals).await,
            is_admin: visitor.may(Role::Admin),
            needs_two: ["erase", "purge"].map(|action| operations.needs_two(action)),
            proposals,
            unseen,
            sent: Form::default(),
        }
    }
}

/// The segments of a scope that a proposal is about; none of a purge.
fn scope_of(intent: &audit::Intent) -> Vec<&str> {
    let scope = intent.before.as_ref().map(|before| &before["scope"]);
    let scope = scope.and_then(Value::as_array).into_iter().flatten();
    scope.filter_map(Value::as_str).collect()
}

fn service_of(intent: &audit::Intent) -> &str {
    let service = intent.before.as_ref().map(|before| &before["service"]);
    service.and_then(Value::as_str).unwrap_or_default()
}

pub(super) async fn show(Extension(visitor): Asked) -> Response {
    Page::of(&visitor).await.into_response()
}

/// Erases a scope, or purges.
pub(super) async fn act(
    Extension(visitor): Asked,
    Extension(peer): Extension<Peer>,
    Path(action): Path<String>,
) -> Response {
    let actor = match visitor.acts(Role::Admin, &peer) {
        Ok(actor) => actor,
        Err(problem) => return *problem,
    };
    let api = Arc::clone(&visitor.console.api);
    let form = visitor.asked.clone();
    let order = Many {
        reason: form.get("reason").replace("\r\n", "\n"),
        scope: form
            .all("scope")
            .filter(|of| !of.is_empty())
            .map(str::to_owned)
            .collect(),
        service: form.filled("service"),
        proposal: form.filled("proposal"),
    };
    let done = async move { api.operations.many(&actor, &action, &order, |_| ()).await };
    match api::finished(done).await {
        Ok(done) => see(&format!("../retention?entry={}", done.audit)),
        Err(refused) => {
            let mut page = Page::of(&visitor).await;
            let status = refused.status();
            page.sent = form;
            page.told.refused = Some(refused);
            (status, page).into_response()
        }
    }
}

/// Where a form was sent to there is nothing to look at.
pub(super) async fn back() -> Response {
    see("../retention")
}

/// The audit log as JSON Lines, the newest first.
pub(super) async fn export(Extension(visitor): Asked) -> Response {
    // The first page says whether there is a log to be read.
    let log = visitor.console.api.operations.log();
    let first = match log.page(None, MOST).await.map_err(of_store) {
        Ok(first) => first,
        Err(refused) => return visitor.refused(&refused),
    };
    let console = Arc::clone(&visitor.console);
    let pages = stream::try_unfold(Some(first), move |page| {
        let console = Arc::clone(&console);
        async move {
            let Some(page) = page else {
                return Ok::<_, io::Error>(None);
            };
            let next: Option<Number> = page.next.as_deref().and_then(|next| next.parse().ok());
            let after = match next {
                Some(next) => {
                    let page = console.api.operations.log().page(Some(next), MOST).await;
                    Some(page.map_err(io::Error::other)?)
                }
                None => None,
            };
            Ok(Some((page.lines(), after)))
        }
    });
    let fields = [
        (CONTENT_TYPE, "application/jsonl"),
        (
            CONTENT_DISPOSITION,
            "attachment; filename=\"semel-audit.jsonl\"",
        ),
    ];
    (StatusCode::OK, fields, Body::from_stream(pages)).into_response()
}
