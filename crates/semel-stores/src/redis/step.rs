//! Steps: the script that each begins with, and what follows from its answer.

use redis::Value;
use semel::record::{self, Change, RELEASED_FOR, RELEASED_WITH_STEPS_FOR, StateKind, Update};
use semel::store::{Claim, ClaimRequest, Entry, Fence, Fenced, Label, Result, Token};
use semel::{Identity, IdentityDigest, Progress, StoreError, StoreErrorKind, Timestamp};
use tokio::time::Instant;

use super::Inner;
use super::error::Effect;
use super::listen::Listener;
use super::scripts::Script;
use super::value::{self, Answer, Head, corrupt};
use super::wire::Arg::{self, Bytes};
use super::wire::Call;
use crate::common::Running;
use crate::common::doubt::{doubtful, undoubted, undoubted_claim};

/// How often a record is replaced that others change at the same time.
const TRIES: usize = 100;

/// What the trips of one step have in common.
struct Step<'a> {
    digest: &'a IdentityDigest,
    key: String,
    /// Whether replicas and disks are waited for.
    lasting: bool,
    until: Instant,
}

/// What one trip brought.
struct Ran {
    answer: Answer,
    /// Whether it was sent before, and that answer was lost.
    resent: bool,
    /// Why what was written is not as durable as it should be.
    shortfall: Option<StoreError>,
}

impl Ran {
    /// An answer that says that something `stands` holds only if enough servers have it.
    fn confirm<T>(self, stands: bool, answer: T) -> Result<T> {
        match self.shortfall.filter(|_| stands) {
            None => Ok(answer),
            Some(error) => Err(error),
        }
    }
}

/// What a step makes of a record that was read.
struct Decided<T> {
    answer: T,
    /// What to put in the record's place.
    write: Option<Entry>,
    /// Whether the answer is one that must last.
    stands: bool,
    /// Whether a full server is to take it.
    insists: bool,
}

impl Inner {
    pub(super) async fn claim(&self, identity: &Identity, request: &ClaimRequest) -> Result<Claim> {
        let decide = |entry: Option<&Entry>, now| {
            let record = entry.map(|entry| &entry.record);
            // The server's time alone keeps fences growing where a record was removed.
            let decision = record::claim(record, request, now, Fence::default());
            let acquires = matches!(decision.claim, Claim::Acquired(_));
            Decided {
                stands: acquires || matches!(decision.claim, Claim::Completed { .. }),
                insists: !acquires,
                write: decision.write.map(|record| Entry {
                    label: Label::from(identity),
                    record,
                }),
                answer: decision.claim,
            }
        };
        let first = decide(None, Timestamp::default()).write;
        let first = first.map(|entry| value::encode(&entry));
        let Some([start, middle, end]) = first.as_deref().and_then(value::around_times) else {
            return Err(contended());
        };
        let args = [
            Bytes(start),
            Bytes(middle),
            Arg::micros(request.lease),
            Bytes(end),
            Arg::flag(self.wait.is_some()),
        ];
        let step = self.step(identity.digest(), true);
        let ran = self.run(&step, &self.link.scripts().claim, &args).await?;
        if ran.answer.wrote {
            let now = ran.answer.now;
            return ran.confirm(true, decide(None, now).answer);
        }
        let (claim, resent) = self.pursue(&step, ran, true, decide).await?;
        undoubted_claim(claim, resent)
    }

    pub(super) async fn change(&self, digest: &IdentityDigest, change: &Change) -> Result<Fenced> {
        let lasting = match change {
            Change::Held(_, Update::Complete(..) | Update::KeepStep { .. }) => true,
            Change::Held(..) => false,
            Change::Resolve(_) => true,
        };
        let step = self.step(digest, lasting);
        let ran = match change {
            Change::Held(token, update) => self.held(&step, token, update).await?,
            Change::Resolve(_) => self.look(&step, &[]).await?,
        };
        if ran.answer.wrote {
            return ran.confirm(true, Fenced::Applied);
        }
        let decide = |entry: Option<&Entry>, now| {
            let record = entry.map(|entry| &entry.record);
            let (answer, next) = match change.decide(record, now, Fence::default()) {
                Err(refusal) => (refusal.into(), None),
                Ok(next) => (Fenced::Applied, next),
            };
            // Where there is none, all is refused.
            let write = entry.zip(next).map(|(entry, record)| Entry {
                label: entry.label.clone(),
                record,
            });
            Decided {
                stands: answer == Fenced::Applied,
                insists: true,
                write,
                answer,
            }
        };
        let (fenced, resent) = self.pursue(&step, ran, false, decide).await?;
        undoubted(change, fenced, resent)
    }

    /// The record, unless it is past its retention.
    pub(super) async fn get(&self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        let ran = self.look(&self.step(digest, false), &[]).await?;
        let (now, entry) = (ran.answer.now, ran.answer.entry(digest)?);
        Ok(entry.filter(|entry| !entry.record.is_purgeable(now)))
    }

    pub(super) async fn is_running(
        &self,
        digest: &IdentityDigest,
        fence: Fence,
    ) -> Result<Running> {
        let _step = self.gate.enter()?;
        self.subscription.start(|| Listener {
            target: self.link.target().clone(),
            channel: self.channel(),
            waiters: self.waiters.clone(),
        });
        let (about, hears) = (fence.0.to_be_bytes(), self.subscription.is_up());
        let args = [Bytes(&about), Arg::flag(hears)];
        let ran = self.look(&self.step(digest, false), &args).await?;
        let head = ran.answer.head(digest)?;
        let runs = |head: &Head| head.state == StateKind::InFlight && head.fence == fence;
        Ok(match head.filter(runs) {
            None => Running::No,
            Some(head) if head.waited && hears => Running::Yes,
            Some(_) => Running::Unheard,
        })
    }

    /// Reads the record; its beginning, where there are arguments.
    async fn look(&self, step: &Step<'_>, args: &[Arg<'_>]) -> Result<Ran> {
        self.run(step, &self.link.scripts().look, args).await
    }

    /// What the attempt that holds the token does often takes one trip. What is rare begins with a look.
    async fn held(&self, step: &Step<'_>, token: &Token, update: &Update) -> Result<Ran> {
        let token = value::token(token);
        let mut args = vec![Bytes(&token)];
        args.extend(match update {
            Update::Renew(lease) => vec![Bytes(b"renew"), Arg::micros(*lease)],
            Update::KeepStep { step, kept } => vec![
                Bytes(b"keep"),
                Bytes(step.as_bytes()),
                Arg::count(*kept),
                Arg::count(Progress::MAX_STORED),
            ],
            Update::Complete(outcome, retention) => vec![
                Bytes(b"complete"),
                Arg::micros(retention.replay),
                Arg::micros(retention.tombstone),
                Bytes(outcome.as_bytes()),
            ],
            Update::Abandon => vec![
                Bytes(b"release"),
                Arg::count(Progress::BARE_BYTES),
                Arg::micros(RELEASED_FOR),
                Arg::micros(RELEASED_WITH_STEPS_FOR),
            ],
            Update::MarkUnknown => return self.look(step, &[]).await,
        });
        self.run(step, &self.link.scripts().held, &args).await
    }

    /// Puts in a record's place what is decided about it; again where others come in between. With the answer:
    /// whether an earlier sending may have been applied unheard.
    ///
    /// `written`: what was found and stands was written once more, so that it is waited for.
    async fn pursue<T>(
        &self,
        step: &Step<'_>,
        mut ran: Ran,
        mut written: bool,
        decide: impl Fn(Option<&Entry>, Timestamp) -> Decided<T>,
    ) -> Result<(T, bool)> {
        let waits = self.wait.is_some() && step.lasting;
        let mut resent = false;
        for tried in 0..TRIES {
            resent |= ran.resent;
            let found = ran.answer.value.clone();
            let entry = ran.answer.entry(step.digest)?;
            let Decided {
                answer,
                write,
                stands,
                insists,
            } = decide(entry.as_ref(), ran.answer.now);
            let insists = Arg::flag(insists || write.is_none());
            let next = match (write, &found) {
                (Some(entry), _) => bytes::Bytes::from(value::encode(&entry)),
                (None, Some(found)) if stands && waits && !written => found.clone(),
                (None, _) => return ran.confirm(stands, (answer, resent)),
            };
            // What was found may be large. Its beginning and its length tell it from all others of the key.
            let (seen, length) = match &found {
                Some(found) => (value::compared(found), found.len()),
                None => (&[][..], 0),
            };
            let args = [Bytes(seen), Arg::count(length), Bytes(&next), insists];
            let swapped = self.run(step, &self.link.scripts().swap, &args).await;
            ran = swapped.map_err(|error| match doubtful(error, resent) {
                error if tried > 0 => error.having_met_others(),
                error => error,
            })?;
            if ran.answer.wrote {
                return ran.confirm(stands, (answer, resent));
            }
            written = false;
        }
        Err(doubtful(contended(), resent))
    }

    fn step<'a>(&self, digest: &'a IdentityDigest, lasting: bool) -> Step<'a> {
        Step {
            digest,
            key: self.key(digest),
            lasting,
            until: Instant::now() + self.options.timeout,
        }
    }

    pub(super) fn key(&self, digest: &IdentityDigest) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut key = String::with_capacity(self.options.prefix.len() + 64);
        key.push_str(&self.options.prefix);
        for byte in digest.as_bytes() {
            key.push(DIGITS[usize::from(byte >> 4)].into());
            key.push(DIGITS[usize::from(byte & 15)].into());
        }
        key
    }

    async fn run(&self, step: &Step<'_>, script: &Script, args: &[Arg<'_>]) -> Result<Ran> {
        let writes = script.effect == Effect::Write;
        let call = Call {
            script,
            key: &step.key,
            args,
            wait: self.wait.as_ref().filter(|_| step.lasting && writes),
            until: step.until,
        };
        let sent = self.link.call(&call).await?;
        let (answer, waited) = sent.answer;
        let shortfall = waited.and_then(|waited| self.shortfall(waited));
        let Some(answer) = Answer::read(answer, &step.key) else {
            // Answers that are out of step stay so: what else comes over these connections is not to be
            // trusted either.
            self.link.drop_all();
            return Err(corrupt(
                "an answer is about another record than was asked for",
            ));
        };
        Ok(Ran {
            answer,
            resent: sent.again && writes,
            shortfall,
        })
    }

    fn shortfall(&self, waited: Value) -> Option<StoreError> {
        let wanted = self.options.wait_replicas;
        let counts = if self.options.wait_disk {
            redis::from_redis_value::<(u32, u32)>(waited)
        } else {
            redis::from_redis_value::<u32>(waited).map(|replicas| (1, replicas))
        };
        let message = match counts {
            Ok((1.., replicas)) if replicas >= wanted => return None,
            Ok((0, _)) => "the step was written, but not synced to disk in time".into(),
            Ok((_, replicas)) => {
                format!("the step was written, but {replicas} of {wanted} replicas had it in time")
            }
            Err(_) => {
                "the step was written, but redis did not say how many replicas have it".into()
            }
        };
        Some(StoreError::new(StoreErrorKind::Unknown, message))
    }
}

/// Others came in between each time.
fn contended() -> StoreError {
    StoreError::new(
        StoreErrorKind::Contended,
        format!("others changed the record each of the {TRIES} times that it was to be changed"),
    )
}
