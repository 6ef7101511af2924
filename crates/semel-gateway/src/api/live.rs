//! What happens, as it happens: server-sent events (`text/event-stream`).

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::request::Parts;
use semel_tower::ProblemCode;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::sleep;

use super::{Pairs, Shared};
use crate::access::{Gate, Role};
use crate::events::{Heard, Listener, Live, Wanted, names};
use crate::openapi::ListProblems;
use crate::operations::order;
use crate::refused::Refused;

/// After so long a silence it is broken: proxies close connections that are.
const SILENCE: Duration = Duration::from_secs(10);

/// Tells what happens until the client goes away, may no longer listen, or the gateway stops.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    operation_id = "events",
    tag = "records",
    params(
        ("event" = Option<Vec<String>>, Query, description = "Only events of these names"),
        ("id" = Option<String>, Query, description = "Only of this record", pattern = "^[0-9a-fA-F]{64}$"),
    ),
    responses(
        (status = 200, description = "Each `data` is an event", content_type = "text/event-stream", body = Live),
        ListProblems,
    ),
)]
pub(super) async fn events(
    State(api): Shared,
    Pairs(pairs): Pairs,
    request: Request,
) -> Result<Response, Refused> {
    let filter = Filter::of(&pairs)?;
    let busy = |why: &'static str| {
        let refused = Refused::of_layer(ProblemCode::Overloaded, why);
        refused.retry_after(Duration::from_secs(5))
    };
    if *api.stopping.borrow() {
        return Err(busy("The gateway is stopping."));
    }
    let room = Arc::clone(&api.listening).try_acquire_owned();
    let room =
        room.map_err(|_| busy("As many listen as may: read the overview instead, or ask again."))?;
    let listening = Listening {
        listener: api.events.listen(filter.wanted),
        filter,
        changes: api.gate.changes(),
        gate: Arc::clone(&api.gate),
        asked: request.into_parts().0,
        stopping: api.stopping.clone(),
        _room: room,
    };
    let told = stream::unfold(listening, |mut listening| async {
        let event = listening.next().await?;
        Some((Ok::<_, Infallible>(event), listening))
    });
    Ok(Sse::new(told).into_response())
}

/// What is told.
#[derive(Debug, Default)]
struct Filter {
    wanted: Wanted,
    id: Option<String>,
}

impl Filter {
    fn of(pairs: &[(String, String)]) -> Result<Self, Refused> {
        let mut filter = Self::default();
        let mut some = Wanted::NONE;
        for (name, value) in pairs {
            match name.as_str() {
                "event" => {
                    some = some.and(value).ok_or_else(|| {
                        let known = names().collect::<Vec<_>>().join(", ");
                        Refused::invalid(format!("event: there is no `{value}`; there are {known}"))
                    })?;
                    filter.wanted = some;
                }
                "id" => filter.id = Some(order::id(value)?.to_string()),
                _ => {
                    let why = format!("{name}: there is no such filter; there are event and id");
                    return Err(Refused::invalid(why));
                }
            }
        }
        Ok(filter)
    }

    fn lets_through(&self, live: &Live) -> bool {
        self.id.is_none() || self.id == live.id
    }
}

/// A client that listens.
struct Listening {
    listener: Listener,
    filter: Filter,
    changes: watch::Receiver<()>,
    gate: Arc<Gate>,
    /// What it came with.
    asked: Parts,
    stopping: watch::Receiver<bool>,
    _room: OwnedSemaphorePermit,
}

impl Listening {
    async fn next(&mut self) -> Option<Event> {
        // From one event that is let through to the next.
        let mut silence = pin!(sleep(SILENCE));
        loop {
            let heard = tokio::select! {
                biased;
                // Nobody waits for its end.
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
                changed = self.changes.changed() => {
                    changed.ok()?;
                    let caller = self.gate.admit(&self.asked).ok()?;
                    caller.require(Role::ReadOnly).ok()?;
                    continue;
                }
                heard = self.listener.next() => heard?,
                () = &mut silence => return Some(Event::default().comment("")),
            };
            match heard {
                Heard::Event(told) if !self.filter.lets_through(&told.live) => {}
                Heard::Event(told) => return Event::default().json_data(&told.live).ok(),
                Heard::Lost(lost) => {
                    return Some(Event::default().event("lost").data(lost.to_string()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::access::Access;
    use crate::events::Events;

    /// However much happens that was not asked for.
    #[tokio::test(start_paused = true)]
    async fn a_silence_is_broken_while_others_hear_much() {
        let gate = Arc::new(Gate::new(Access::default(), true));
        let (_stop, stopping) = watch::channel(false);
        let events = Arc::new(Events::default());
        let mut listening = Listening {
            listener: events.listen(Wanted::default()),
            filter: Filter {
                id: Some("0".repeat(64)),
                ..Filter::default()
            },
            changes: gate.changes(),
            gate,
            asked: http::Request::new(()).into_parts().0,
            stopping,
            _room: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        };
        tokio::spawn(async move {
            loop {
                sleep(SILENCE / 3).await;
                events.acted("release", None, "done", "692-4");
            }
        });
        let begun = Instant::now();
        assert!(
            timeout(SILENCE * 3, listening.next())
                .await
                .unwrap()
                .is_some()
        );
        assert!(begun.elapsed() <= SILENCE, "{:?}", begun.elapsed());
    }
}
