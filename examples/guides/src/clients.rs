//! `docs/clients.md`.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// What came back, in whatever HTTP client is used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reply {
    status: u16,
    /// The member `code` of a body of type `application/problem+json`.
    code: Option<&'static str>,
    /// `Retry-After`, in seconds.
    retry_after: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// This is the answer to the operation.
    Answer,
    /// Ask again with the same key.
    Again,
    /// Asking again changes nothing: report it.
    Stop,
}

/// `None`: the connection broke, or nothing came in time.
fn next(reply: Option<&Reply>) -> Next {
    let Some(reply) = reply else {
        return Next::Again;
    };
    match (reply.code, reply.status) {
        (Some("outcome-unknown" | "mismatch" | "expired"), _) => Next::Stop,
        (Some("in-flight" | "incomplete-body"), _) => Next::Again,
        (_, 408 | 425 | 429 | 500..) => Next::Again,
        (Some(_), _) => Next::Stop,
        _ => Next::Answer,
    }
}

async fn send_until_answered(
    key: &str,
    patience: Duration,
    send: impl AsyncFn(&str) -> Option<Reply>,
    jitter: impl Fn() -> f64,
) -> Option<Reply> {
    let end = Instant::now() + patience;
    let mut longest = Duration::from_millis(500);
    loop {
        let reply = send(key).await;
        if next(reply.as_ref()) != Next::Again {
            return reply;
        }
        // Full jitter: anywhere between nothing and the longest pause, which doubles.
        let asked_for = reply
            .as_ref()
            .and_then(|reply| reply.retry_after)
            .unwrap_or(0);
        let pause = Duration::from_secs(asked_for) + longest.mul_f64(jitter());
        if Instant::now() + pause > end {
            return reply;
        }
        sleep(pause).await;
        longest = (longest * 2).min(Duration::from_secs(20));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const fn problem(status: u16, code: &'static str, retry_after: Option<u64>) -> Option<Reply> {
        Some(Reply {
            status,
            code: Some(code),
            retry_after,
        })
    }

    const CREATED: Option<Reply> = Some(Reply {
        status: 201,
        code: None,
        retry_after: None,
    });

    async fn asked(replies: &[Option<Reply>]) -> (Option<Reply>, usize) {
        let sent = RefCell::new(0);
        let send = async |key: &str| {
            assert_eq!(key, "order-4711");
            *sent.borrow_mut() += 1;
            replies[(*sent.borrow() - 1).min(replies.len() - 1)].clone()
        };
        let patience = Duration::from_mins(2);
        let reply = send_until_answered("order-4711", patience, send, || 0.5).await;
        (reply, sent.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_key_until_there_is_an_answer() {
        let in_flight = problem(409, "in-flight", Some(1));
        assert_eq!(asked(&[None, in_flight, CREATED]).await, (CREATED, 3));
        let unknown = problem(409, "outcome-unknown", None);
        assert_eq!(asked(&[None, unknown.clone()]).await, (unknown, 2));
        let mismatch = problem(422, "mismatch", None);
        assert_eq!(asked(std::slice::from_ref(&mismatch)).await, (mismatch, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn it_asks_no_earlier_than_told_and_gives_up() {
        let started = Instant::now();
        let full = problem(503, "capacity", Some(30));
        let (reply, sent) = asked(std::slice::from_ref(&full)).await;
        assert_eq!(reply, full);
        assert!(sent <= 5, "{sent}");
        assert!(started.elapsed() <= Duration::from_mins(2));
    }
}
