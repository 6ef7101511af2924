//! Running a step's script, and what its answer means.

use std::time::Duration;

use redis::Value;
use semel::record::{Change, RELEASED_FOR, RELEASED_WITH_STEPS_FOR, StateKind, Update};
use semel::store::{Entry, Fence, Fenced, Refusal, Resolution, Result, Retention, Token, Verdict};
use semel::{IdentityDigest, Progress, StoreError, StoreErrorKind};

use super::error::Effect;
use super::row::{Fields, nonce_text, token_text};
use super::scripts::{Script, Scripts};
use super::wire::Call;
use super::{Inner, micros};
use crate::common::{Running, undoubted};

/// A fenced step: which script, and its arguments after the digest.
pub(super) struct Step<'a> {
    pub(super) digest: &'a IdentityDigest,
    pub(super) script: &'a Script,
    pub(super) args: &'a [&'a [u8]],
    /// Whether replicas are waited for.
    pub(super) lasting: bool,
}

/// What a script answered.
pub(super) struct Ran {
    pub(super) wrote: bool,
    pub(super) fields: Fields,
    resent: bool,
    /// Why the step is not as durable as it should be.
    shortfall: Option<StoreError>,
}

impl Ran {
    /// A positive answer stands only if enough servers have it.
    pub(super) fn confirm<T>(self, answer: T) -> Result<T> {
        match self.shortfall {
            None => Ok(answer),
            Some(error) => Err(error),
        }
    }
}

impl Inner {
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

    pub(super) fn scripts(&self) -> &Scripts {
        self.link.scripts()
    }

    /// Whether a step that was done before is written once more, so that it is waited for.
    pub(super) fn touch(&self) -> &'static [u8] {
        if self.wait.is_some() { b"1" } else { b"0" }
    }

    pub(super) async fn run(&self, step: &Step<'_>, effect: Effect) -> Result<Ran> {
        let digest = step.digest.as_bytes().as_slice();
        let mut args = Vec::with_capacity(step.args.len() + 1);
        args.push(digest);
        args.extend_from_slice(step.args);
        let call = Call {
            script: step.script,
            key: &self.key(step.digest),
            args: &args,
            effect,
            wait: self.wait.as_ref().filter(|_| step.lasting),
        };
        let answer = self.link.call(&call).await?;
        let mut waited = answer.more.into_iter();
        let shortfall = waited.next().and_then(|waited| self.shortfall(waited));
        let mut fields = self.about(answer.value, step.digest)?;
        Ok(Ran {
            wrote: fields.text()? == "1",
            fields,
            resent: answer.resent,
            shortfall,
        })
    }

    fn about(&self, answer: Value, digest: &IdentityDigest) -> Result<Fields> {
        // Answers that are out of step stay so: what else comes over these connections is not
        // to be trusted either.
        Fields::about(answer, digest).inspect_err(|_| self.link.drop_all())
    }

    pub(super) async fn held(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        token: &Token,
        update: &Update,
    ) -> Result<Fenced> {
        let (scripts, channel) = (self.scripts(), self.listener.channel().as_bytes());
        let token = token_text(token);
        let token = token.as_bytes();
        let step = |script, lasting, args| Step {
            digest,
            script,
            args,
            lasting,
        };
        match update {
            Update::Renew(lease) => {
                let lease = micros(*lease);
                let args = [token, lease.as_bytes()];
                self.change(&step(&scripts.renew, false, &args), change)
                    .await
            }
            Update::Complete(outcome, retention) => {
                let replay = micros(retention.replay);
                let tombstone = micros(retention.tombstone);
                let args = [
                    token,
                    outcome.as_bytes(),
                    replay.as_bytes(),
                    tombstone.as_bytes(),
                    channel,
                    self.touch(),
                ];
                self.change(&step(&scripts.complete, true, &args), change)
                    .await
            }
            Update::KeepStep {
                step: finished,
                kept,
            } => {
                let (kept, most) = (kept.to_string(), Progress::MAX_STORED.to_string());
                let args = [
                    token,
                    finished.as_bytes(),
                    kept.as_bytes(),
                    most.as_bytes(),
                    self.touch(),
                ];
                self.change(&step(&scripts.keep_step, true, &args), change)
                    .await
            }
            Update::Abandon => {
                let (bare, with_steps) = (micros(RELEASED_FOR), micros(RELEASED_WITH_STEPS_FOR));
                let most = Progress::BARE_BYTES.to_string();
                let args = [
                    token,
                    bare.as_bytes(),
                    with_steps.as_bytes(),
                    channel,
                    most.as_bytes(),
                ];
                self.change(&step(&scripts.abandon, false, &args), change)
                    .await
            }
            Update::MarkUnknown => {
                self.change(
                    &step(&scripts.mark_unknown, false, &[token, channel]),
                    change,
                )
                .await
            }
        }
    }

    pub(super) async fn resolved(
        &self,
        digest: &IdentityDigest,
        change: &Change,
        resolution: &Resolution,
    ) -> Result<Fenced> {
        let (verdict, outcome, retention): (&[u8], &[u8], _) = match &resolution.verdict {
            Verdict::Happened { outcome, retention } => (b"1", outcome.as_bytes(), *retention),
            Verdict::Amended { outcome, retention } => (b"2", outcome.as_bytes(), *retention),
            Verdict::DidNotHappen => (b"0", b"", Retention::new(Duration::ZERO)),
        };
        let about = resolution.fence.to_string();
        let nonce = nonce_text(&resolution.nonce);
        let (replay, tombstone) = (micros(retention.replay), micros(retention.tombstone));
        let end = resolution.text_end();
        let (bare, with_steps) = (micros(RELEASED_FOR), micros(RELEASED_WITH_STEPS_FOR));
        let most = Progress::BARE_BYTES.to_string();
        let args = [
            about.as_bytes(),
            nonce.as_bytes(),
            verdict,
            outcome,
            replay.as_bytes(),
            tombstone.as_bytes(),
            end.as_bytes(),
            bare.as_bytes(),
            with_steps.as_bytes(),
            self.listener.channel().as_bytes(),
            self.touch(),
            most.as_bytes(),
        ];
        let step = Step {
            digest,
            script: &self.scripts().resolve,
            args: &args,
            lasting: true,
        };
        self.change(&step, change).await
    }

    async fn change(&self, step: &Step<'_>, change: &Change) -> Result<Fenced> {
        let mut ran = self.run(step, Effect::Write).await?;
        if ran.wrote {
            return ran.confirm(Fenced::Applied);
        }
        // What it means that the script wrote nothing.
        let row = ran.fields.row()?;
        let decided = change.decide(row.record.as_ref(), row.now, Fence(0));
        let completes = matches!(change, Change::Held(_, Update::Complete(..)));
        if completes && decided != Err(Refusal::Superseded) {
            // It was decided by comparing outcomes.
            row.whole()?;
        }
        match decided {
            Ok(None) => ran.confirm(Fenced::Applied),
            Err(refusal) => undoubted(change, refusal.into(), ran.resent),
            Ok(Some(_)) => Err(disagree()),
        }
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

    pub(super) async fn get(&self, digest: &IdentityDigest) -> Result<Option<Entry>> {
        let step = Step {
            digest,
            script: &self.scripts().get,
            args: &[],
            lasting: false,
        };
        let mut ran = self.run(&step, Effect::Read).await?;
        ran.fields.entry(digest)
    }

    pub(super) async fn is_running(
        &self,
        digest: &IdentityDigest,
        fence: Fence,
    ) -> Result<Running> {
        let _step = self.gate.enter()?;
        let mark: &[u8] = if self.listener.hears() { b"1" } else { b"0" };
        let asked = fence.0.to_string();
        let step = Step {
            digest,
            script: &self.scripts().watch,
            args: &[asked.as_bytes(), mark],
            lasting: false,
        };
        let mut ran = self.run(&step, Effect::Read).await?;
        let record = ran.fields.row()?.record;
        let running = record.is_some_and(|record| {
            record.token.fence == fence && record.state.kind() == StateKind::InFlight
        });
        Ok(match (running, ran.wrote) {
            (false, _) => Running::No,
            (true, true) => Running::Yes,
            (true, false) => Running::Unheard,
        })
    }
}

/// The script wrote nothing where this program would have. Only another version's script does that.
pub(super) fn disagree() -> StoreError {
    StoreError::new(
        StoreErrorKind::NotApplied,
        "the script in redis did not do what this program expects",
    )
}
