//! A protocol step as the requests that it takes of a database, and what follows from the replies.
//!
//! What is frequent takes one request, a write that carries its condition: a claim of an identity
//! without a record, and a change by the attempt that holds the record. Where that wrote nothing the
//! record is read, [`semel::record`] decides, and what it decides is put in the record's place if that
//! is still as it was read; otherwise the step begins again. So a database restates the condition of
//! two writes, and no rule: takeovers, lapses and resolutions are decided here, in every store alike.

use std::time::Duration;

use semel::record::{self, Change, Record, Update};
use semel::store::{Acquired, Claim, ClaimRequest, Fence, Fenced, Refusal, Result, Token};
use semel::{Identity, IdentityDigest, StoreError, StoreErrorKind, Timestamp};
use tokio::time::{Instant, sleep};

use super::doubt::{undoubted, undoubted_claim};
use super::pool::{Pool, Sent, Wire};

/// How often a step is tried where others change its record all the time.
pub(crate) const TRIES: u32 = 20;
/// How many requests that may take: a look, and what follows from it.
pub(crate) const TURNS: u32 = 2 * TRIES;

/// What a database is asked for. Each is one atomic step there.
pub(crate) enum Request<'a> {
    /// Inserts a record in flight where there is none; otherwise reads the one that is there.
    Claim(&'a Identity, &'a ClaimRequest),
    /// Writes if the record has this token and a state that the update is for.
    Update(&'a IdentityDigest, &'a Token, &'a Update),
    Read(&'a IdentityDigest),
    Replace(&'a IdentityDigest, &'a Replacement),
}

/// Puts a record in the place of another, if that is as it was read.
pub(crate) struct Replacement {
    pub(crate) seen: Record,
    /// Where it is [unknown](semel::State::Unknown) it is the same attempt, and keeps its fence; otherwise that
    /// is the database's to give, above that of `seen`. Its note is to be written only where it is in flight:
    /// what is read for a decision has none.
    pub(crate) next: Record,
}

#[expect(
    clippy::large_enum_variant,
    reason = "taken as soon as it is made; a replay is not to allocate for it"
)]
pub(crate) enum Reply {
    /// A claim's insert was made, at this time.
    Inserted(Fence, Timestamp),
    /// The record was written, and has this fence now.
    Wrote(Fence),
    /// What is there, at the database's time.
    Found(Timestamp, Option<Record>),
    /// Nothing was written, and nothing read: somebody came in between, or it has another token.
    Missed,
}

/// What to ask next, until a reply says what to answer.
pub(crate) trait Exchange {
    type Answer;

    fn request(&self) -> Request<'_>;

    fn take(&mut self, reply: Reply) -> Option<Self::Answer>;
}

pub(crate) struct Claiming<'a> {
    identity: &'a Identity,
    asked: &'a ClaimRequest,
    // Boxed, as it is rare: the future of a claim is to stay small.
    decided: Option<Box<(Replacement, Claim)>>,
}

impl<'a> Claiming<'a> {
    pub(crate) const fn new(identity: &'a Identity, asked: &'a ClaimRequest) -> Self {
        Self {
            identity,
            asked,
            decided: None,
        }
    }
}

impl Exchange for Claiming<'_> {
    type Answer = Claim;

    fn request(&self) -> Request<'_> {
        match &self.decided {
            None => Request::Claim(self.identity, self.asked),
            Some(decided) => Request::Replace(self.identity.digest(), &decided.0),
        }
    }

    fn take(&mut self, reply: Reply) -> Option<Claim> {
        let decided = self.decided.take();
        match reply {
            Reply::Inserted(fence, since) => Some(Claim::Acquired(Acquired {
                token: Token {
                    fence,
                    nonce: self.asked.nonce,
                },
                attempt: 1,
                since,
                is_repeated: false,
            })),
            Reply::Wrote(fence) => decided.map(|decided| {
                let (_, mut claim) = *decided;
                if let Claim::Acquired(acquired) = &mut claim {
                    acquired.token.fence = fence;
                }
                claim
            }),
            Reply::Found(now, found) => {
                let decision = record::claim(found.as_ref(), self.asked, now, Fence(0));
                let Some(next) = decision.write else {
                    return Some(decision.claim);
                };
                // Gone already: it is inserted then.
                let decided = |seen| Box::new((Replacement { seen, next }, decision.claim));
                self.decided = found.map(decided);
                None
            }
            Reply::Missed => None,
        }
    }
}

pub(crate) struct Changing<'a> {
    digest: &'a IdentityDigest,
    change: &'a Change,
    /// Refuses what was done before, too: an application's transaction is not to have its effect twice.
    is_once: bool,
    /// The update has written nothing: the record says why.
    missed: bool,
    decided: Option<Box<Replacement>>,
}

impl<'a> Changing<'a> {
    pub(crate) const fn new(digest: &'a IdentityDigest, change: &'a Change) -> Self {
        Self {
            digest,
            change,
            is_once: false,
            missed: false,
            decided: None,
        }
    }

    /// Is `Applied` only where it writes.
    pub(crate) fn once(digest: &'a IdentityDigest, change: &'a Change) -> Self {
        Self {
            is_once: true,
            ..Self::new(digest, change)
        }
    }
}

impl Exchange for Changing<'_> {
    type Answer = Fenced;

    fn request(&self) -> Request<'_> {
        match (&self.decided, self.change) {
            (Some(replacement), _) => Request::Replace(self.digest, replacement),
            (None, Change::Held(token, update)) if !self.missed => {
                Request::Update(self.digest, token, update)
            }
            (None, _) => Request::Read(self.digest),
        }
    }

    fn take(&mut self, reply: Reply) -> Option<Fenced> {
        let replaced = self.decided.take().is_some();
        let Reply::Found(now, found) = reply else {
            self.missed = !replaced;
            return matches!(reply, Reply::Wrote(_)).then_some(Fenced::Applied);
        };
        // Then it is written after all.
        self.missed = false;
        match (self.change.decide(found.as_ref(), now, Fence(0)), found) {
            (Err(refusal), _) => Some(refusal.into()),
            (Ok(None), _) if self.is_once => Some(self.change.made_before().into()),
            (Ok(None), _) => Some(Fenced::Applied),
            (Ok(Some(_)), None) => Some(Refusal::Missing.into()),
            (Ok(Some(next)), Some(seen)) => {
                if let Change::Resolve(_) = self.change {
                    self.decided = Some(Box::new(Replacement { seen, next }));
                }
                None
            }
        }
    }
}

/// A wire to a database that keeps records.
pub(crate) trait Recorder: Wire {
    /// `turn`: how many requests of this exchange came before.
    fn step(&self, request: &Request<'_>, turn: u32) -> Self::Step;

    fn reply(&self, request: &Request<'_>, answer: &Self::Answer) -> Result<Reply>;
}

impl<W: Recorder> Pool<W> {
    pub(crate) async fn claim(&self, identity: &Identity, asked: &ClaimRequest) -> Result<Claim> {
        let mut sent = Sent::default();
        let claim = self.exchange(Claiming::new(identity, asked), &mut sent);
        undoubted_claim(claim.await?, sent.in_doubt())
    }

    pub(crate) async fn change(&self, digest: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let mut sent = Sent::default();
        let fenced = self.exchange(Changing::new(digest, change), &mut sent);
        undoubted(change, fenced.await?, sent.in_doubt())
    }

    async fn exchange<E: Exchange>(&self, mut exchange: E, sent: &mut Sent) -> Result<E::Answer> {
        let deadline = self.deadline();
        for turn in 0..TURNS {
            // What is sent too late is in doubt.
            if turn > 0 && Instant::now() >= deadline {
                break;
            }
            let request = exchange.request();
            let step = self.wire().step(&request, turn);
            let answer = self.run_by(deadline, step, sent).await?;
            let reply = self.wire().reply(&request, &answer);
            let reply = reply.map_err(|error| sent.error(error))?;
            if let Reply::Missed = reply {
                sent.meet_others();
            }
            if let Some(answer) = follow(&mut exchange, reply, turn).await {
                return Ok(answer);
            }
        }
        Err(sent.error(match sent.has_met_others() {
            true => restless(),
            false => StoreError::new(
                StoreErrorKind::NotApplied,
                "the call's time was over before it was decided",
            ),
        }))
    }
}

/// What the reply answers, or a pause before the next request, where rivals follow one another closely: out of
/// step with them. Not between a look and what follows from it, which would be old by then.
pub(crate) async fn follow<E: Exchange>(
    exchange: &mut E,
    reply: Reply,
    turn: u32,
) -> Option<E::Answer> {
    let missed = matches!(reply, Reply::Missed);
    let answer = exchange.take(reply);
    if answer.is_none() && missed && turn > 2 {
        sleep(Duration::from_millis(1 << turn.min(6))).await;
    }
    answer
}

/// Others came in between each time.
pub(crate) fn restless() -> StoreError {
    StoreError::new(
        StoreErrorKind::Contended,
        "the record was locked, or changed, whenever the step was tried",
    )
}
