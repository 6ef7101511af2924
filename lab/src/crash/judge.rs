//! After it all: what there is, beside what callers were told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::Result;
use semel::store::ListQuery;
use semel::{StateKind, Store};
use serde::Serialize;

use super::board::Found;
use super::payments::{Payment, Service};
use super::point::Point;
use super::steps::Line;
use super::transaction::{ACCOUNTS, BALANCE, Effect, Tables};
use crate::base::{self, Base};
use crate::named::Named as _;

/// What is wrong, in numbers, and the first of it in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    pub(super) effects: usize,
    pub(super) double_effects: usize,
    pub(super) lost_effects: usize,
    pub(super) missing_answers: usize,
    pub(super) wrong_answers: usize,
    pub(super) wrong_balances: usize,
    pub(super) left_in_flight: usize,
    #[serde(skip)]
    pub(super) reruns: usize,
    /// Killed attempts that left what cannot be, by where they were killed.
    pub(super) wrong_leftovers: usize,
    /// How many of the attempts killed at a point left the whole transaction; the others left nothing.
    #[serde(rename = "effects_left", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) left: BTreeMap<Point, usize>,
    #[serde(skip)]
    pub(super) details: Vec<String>,
}

const SHOWN: usize = 12;

impl Verdict {
    fn say(&mut self, what: String) {
        if self.details.len() < SHOWN {
            self.details.push(what);
        }
    }

    /// Of the other half of the same run.
    pub(super) fn and(mut self, other: Self) -> Self {
        // The same keys lack their answers in both halves.
        self.missing_answers = self.missing_answers.max(other.missing_answers);
        self.effects += other.effects;
        self.double_effects += other.double_effects;
        self.lost_effects += other.lost_effects;
        self.wrong_answers += other.wrong_answers;
        self.reruns += other.reruns;
        self.details.extend(other.details);
        self
    }

    /// What is wrong at all.
    pub(super) const fn faults(&self) -> [(&'static str, usize); 8] {
        [
            ("double effects", self.double_effects),
            ("lost effects", self.lost_effects),
            ("missing answers", self.missing_answers),
            ("wrong answers", self.wrong_answers),
            ("wrong balances", self.wrong_balances),
            ("records left in flight", self.left_in_flight),
            ("finished steps that were run again", self.reruns),
            (
                "killed attempts that left what cannot be",
                self.wrong_leftovers,
            ),
        ]
    }

    /// Each key has one answer, however often it was asked for.
    fn answers(&mut self, found: &Found) {
        for key in 0..found.keys {
            let Some(answers) = found.answers.get(&key) else {
                self.missing_answers += 1;
                self.say(format!("key {key} was never answered"));
                continue;
            };
            let different: BTreeSet<&String> = answers.iter().collect();
            if different.len() > 1 {
                self.wrong_answers += 1;
                self.say(format!("key {key} has several answers: {different:?}"));
            }
        }
    }

    /// What killed attempts left: all of their transaction or nothing, as the point says.
    fn leftovers(&mut self, found: &Found, there: &HashMap<i64, Vec<String>>) {
        let inside = found.killed.iter().filter(|(point, ..)| point.is_inside());
        for (point, key, fence) in inside {
            let answer = Effect::of(*key).answer(fence.cast_signed());
            let left = there
                .get(key)
                .is_some_and(|effects| effects.contains(&answer));
            *self.left.entry(*point).or_default() += usize::from(left);
            if point.leaves().is_some_and(|wanted| left != wanted) {
                self.wrong_leftovers += 1;
                let what = if left {
                    "left its effects"
                } else {
                    "left nothing"
                };
                self.say(format!("killed at {}, key {key} {what}", point.name()));
            }
        }
    }

    /// `there` is what the effects of each key answer; each is to be there once, and be the one
    /// that was answered.
    fn effects(&mut self, found: &Found, there: &HashMap<i64, Vec<String>>) {
        for (key, effects) in there {
            self.effects += effects.len();
            if effects.len() > 1 {
                self.double_effects += effects.len() - 1;
                self.say(format!("key {key} had several effects: {effects:?}"));
            }
        }
        for (key, answers) in &found.answers {
            let effects = there.get(key).map_or(&[][..], Vec::as_slice);
            if answers.iter().any(|answer| !effects.contains(answer)) {
                self.lost_effects += 1;
                self.say(format!(
                    "key {key} was answered {answers:?}, and its effects are {effects:?}"
                ));
            }
        }
    }
}

/// Judges a run of transactions.
pub(super) async fn transactions<B: Base>(
    store: &B,
    tables: &Tables,
    found: &Found,
) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    verdict.answers(found);
    let sql = format!("SELECT k, amount, fence FROM {}", tables.ledger);
    let mut there: HashMap<i64, Vec<String>> = HashMap::new();
    let mut balances: BTreeMap<i64, i64> = (0..ACCOUNTS).map(|id| (id, BALANCE)).collect();
    for row in base::numbers(store, &sql).await? {
        let effect = Effect {
            amount: row[1],
            ..Effect::of(row[0])
        };
        let effects = there.entry(row[0]).or_default();
        effects.push(effect.answer(row[2]));
        *balances.entry(effect.from).or_default() -= row[1];
        *balances.entry(effect.to).or_default() += row[1];
    }
    verdict.effects(found, &there);
    verdict.leftovers(found, &there);
    let sql = format!("SELECT id, balance FROM {}", tables.accounts);
    for row in base::numbers(store, &sql).await? {
        let wanted = balances.get(&row[0]).copied().unwrap_or_default();
        if row[1] != wanted {
            verdict.wrong_balances += 1;
            verdict.say(format!(
                "account {} has {}, by the ledger {wanted}",
                row[0], row[1]
            ));
        }
    }
    Ok(verdict)
}

/// Judges a run of steps, those at these places being the service's.
pub(super) fn steps(
    service: &Service,
    log: &[Line],
    found: &Found,
    places: &[u32],
) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    verdict.answers(found);
    let taken = service.taken()?;
    for (payment, numbers) in &taken {
        verdict.effects += numbers.len();
        if numbers.len() > 1 {
            verdict.double_effects += numbers.len() - 1;
            verdict.say(format!("{payment:?} was taken as {numbers:?}"));
        }
    }
    for (key, answers) in &found.answers {
        let paid: Option<Vec<&str>> = places
            .iter()
            .map(|place| Some(taken.get(&Payment::of(*key, *place))?.first()?.as_str()))
            .collect();
        let paid = paid.map(|paid| paid.join(" "));
        let is = |answer: &String| Some(answer) == paid.as_ref();
        if paid.is_none() {
            verdict.lost_effects += 1;
            verdict.say(format!("key {key} was answered, and not all of it paid"));
        } else if !answers.iter().all(is) {
            verdict.wrong_answers += 1;
            verdict.say(format!("key {key} was answered {answers:?}, paid {paid:?}"));
        }
    }
    for (identity, step) in reruns(log) {
        verdict.reruns += 1;
        verdict.say(format!("{step} of {identity} was called after it was kept"));
    }
    Ok(verdict)
}

/// Steps that were called after they had been kept, by an attempt that must know: the one that kept
/// them, or one that claimed later. An older attempt, paused before its call, may come late; the
/// service honours its key.
fn reruns(log: &[Line]) -> Vec<(String, String)> {
    let mut kept: HashMap<(&str, &str), u64> = HashMap::new();
    let mut again = HashSet::new();
    for line in log {
        let step = (line.identity.as_str(), line.step.as_str());
        if line.kept {
            kept.entry(step).or_insert(line.fence);
        } else if kept.get(&step).is_some_and(|fence| line.fence >= *fence) {
            again.insert((line.identity.clone(), line.step.clone()));
        }
    }
    again.into_iter().collect()
}

/// How many of this run's records are neither completed nor given back.
pub(super) async fn in_flight<S: Store>(store: &S, run: &str) -> Result<usize> {
    let mut count = 0;
    for state in [StateKind::InFlight, StateKind::Unknown] {
        let mut query = ListQuery::new(state);
        loop {
            let page = store.list(&query).await?;
            let own =
                |entry: &&semel::store::Entry| entry.label.scope.segments().nth(1) == Some(run);
            count += page.entries.iter().filter(own).count();
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(answers: &[(i64, &str)], keys: i64) -> Found {
        let mut found = Found {
            keys,
            ..Found::default()
        };
        for (key, answer) in answers {
            let all = found.answers.entry(*key).or_default();
            all.push((*answer).into());
        }
        found
    }

    #[test]
    fn each_fault_is_counted_as_what_it_is() {
        let found = found(&[(0, "a"), (0, "b"), (1, "c"), (2, "d")], 4);
        let there = [(0, vec!["a"]), (2, vec!["d", "e"])];
        let there = there.map(|(key, all)| (key, all.into_iter().map(String::from).collect()));
        let mut verdict = Verdict::default();
        verdict.answers(&found);
        verdict.effects(&found, &there.into());
        assert_eq!(verdict.missing_answers, 1, "key 3");
        assert_eq!(verdict.wrong_answers, 1, "key 0");
        assert_eq!(verdict.lost_effects, 2, "b of key 0, c of key 1");
        assert_eq!((verdict.effects, verdict.double_effects), (3, 1), "e");
    }

    #[test]
    fn a_step_is_run_again_only_by_who_must_know_better() {
        let line = |kept, fence| Line {
            kept,
            identity: "i".into(),
            step: "charge".into(),
            fence,
        };
        let called = |fence| line(false, fence);
        let kept = |fence| line(true, fence);
        // Killed between the call and the keeping.
        assert!(reruns(&[called(1), called(2), kept(2)]).is_empty());
        // The first attempt was paused before its call.
        assert!(reruns(&[called(2), kept(2), called(1)]).is_empty());
        assert_eq!(reruns(&[called(1), kept(1), called(2)]).len(), 1);
        assert_eq!(reruns(&[called(1), kept(1), called(1)]).len(), 1);
    }
}
