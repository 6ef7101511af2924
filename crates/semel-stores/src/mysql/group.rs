//! Steps that share a packet and a commit.
//!
//! Reads go first, outside of the transaction. In it come the claims as one insert, whose rows are
//! read then, and the changes: those that assign the same share a statement. Before it their rows
//! are locked, in a statement that waits for no lock and says which of them it will change. So a
//! group waits only for other inserts of the same identities. An error rolls back all of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use semel::IdentityDigest;

use super::link::Done;
use super::row;
use super::sql::{Held, New, Table};
use super::step::{Answer, Step};

pub(super) struct Group {
    packet: String,
    /// Statements before the one that commits; none commits where all read.
    before_commit: usize,
    parts: Vec<Part>,
    steps: usize,
}

/// What the next statements of a packet are for: the places of steps in the group.
enum Part {
    Read(usize),
    Begin,
    Claims(Vec<(usize, IdentityDigest)>),
    Changes(Vec<(usize, IdentityDigest)>),
}

impl Group {
    pub(super) fn new(steps: &[Arc<Step>], table: &Table) -> Self {
        let (mut packet, mut parts) = (String::new(), Vec::new());
        let (mut claims, mut changes) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (at, step) in steps.iter().enumerate() {
            match &**step {
                Step::Claim(new) => claims.push((at, new)),
                Step::Change(held) => changes.entry(held.kind()).or_default().push((at, held)),
                Step::Packet { sql, .. } => {
                    let _ = write!(packet, "{sql};");
                    parts.push(Part::Read(at));
                }
            }
        }
        if !claims.is_empty() || !changes.is_empty() {
            packet.push_str("START TRANSACTION;");
            parts.push(Part::Begin);
        }
        if !claims.is_empty() {
            let news: Vec<&New> = claims.iter().map(|(_, new)| *new).collect();
            let _ = write!(packet, "{};", table.claims(&news));
            let places = claims.iter().map(|(at, new)| (*at, new.digest));
            parts.push(Part::Claims(places.collect()));
        }
        for same in changes.values() {
            let helds: Vec<&Held> = same.iter().map(|(_, held)| *held).collect();
            let _ = write!(packet, "{};", table.changes(&helds));
            let places = same.iter().map(|(at, held)| (*at, held.digest));
            parts.push(Part::Changes(places.collect()));
        }
        packet.push_str("COMMIT");
        Self {
            packet,
            before_commit: parts.iter().map(Part::statements).sum(),
            parts,
            steps: steps.len(),
        }
    }

    pub(super) fn packet(&self) -> &str {
        &self.packet
    }

    /// Whether it is the commit that comes after so many statements.
    pub(super) fn commits_with(&self, done: usize) -> bool {
        done >= self.before_commit
    }

    /// Each step's answer, in the group's order.
    pub(super) fn answers(self, done: Vec<Done>) -> Vec<Answer> {
        let mut answers: Vec<Answer> = Vec::new();
        answers.resize_with(self.steps, Answer::default);
        let mut done = done.into_iter();
        let mut next = || done.next().unwrap_or_default();
        for part in self.parts {
            match part {
                Part::Begin => drop(next()),
                Part::Read(at) => answers[at].rows = next().rows,
                Part::Claims(places) => {
                    let left = next().left;
                    let mut rows: HashMap<_, _> = next()
                        .rows
                        .into_iter()
                        .map(|row| (row::digest_of_claim(&row), row))
                        .collect();
                    for (at, digest) in places {
                        answers[at].left = left;
                        answers[at].rows = rows.remove(&Some(digest)).into_iter().collect();
                    }
                }
                Part::Changes(places) => {
                    let locked: HashSet<_> = next().rows.iter().map(row::only_digest).collect();
                    let _written = next();
                    for (at, digest) in places {
                        answers[at].wrote = u64::from(locked.contains(&Some(digest)));
                    }
                }
            }
        }
        answers
    }
}

impl Part {
    const fn statements(&self) -> usize {
        match self {
            Self::Read(_) | Self::Begin => 1,
            Self::Claims(_) | Self::Changes(_) => 2,
        }
    }
}
