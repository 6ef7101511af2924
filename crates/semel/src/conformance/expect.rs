//! Taking answers apart: each function wants one variant and fails with what it found.

use std::time::Duration;

use super::Failure;
use crate::Outcome;
use crate::record::StateKind;
use crate::store::{Acquired, Claim, Fence, Fenced, Refusal};

#[track_caller]
fn wanted<T>(what: &str, found: &dyn std::fmt::Debug) -> Result<T, Failure> {
    Err(Failure::new(format!("wanted {what}, found {found:?}")))
}

#[track_caller]
pub(super) fn acquired(claim: Claim) -> Result<Acquired, Failure> {
    match claim {
        Claim::Acquired(acquired) => Ok(acquired),
        other => wanted("Acquired", &other),
    }
}

#[track_caller]
pub(super) fn in_flight(claim: Claim) -> Result<(Fence, Duration), Failure> {
    match claim {
        Claim::InFlight { fence, remaining } => Ok((fence, remaining)),
        other => wanted("InFlight", &other),
    }
}

#[track_caller]
pub(super) fn completed(claim: Claim) -> Result<(Outcome, Duration), Failure> {
    match claim {
        Claim::Completed { outcome, remaining } => Ok((outcome, remaining)),
        other => wanted("Completed", &other),
    }
}

#[track_caller]
pub(super) fn unknown(claim: Claim) -> Result<Fence, Failure> {
    match claim {
        Claim::Unknown { fence } => Ok(fence),
        other => wanted("Unknown", &other),
    }
}

#[track_caller]
pub(super) fn mismatch(claim: Claim) -> Result<(), Failure> {
    match claim {
        Claim::Mismatch => Ok(()),
        other => wanted("Mismatch", &other),
    }
}

#[track_caller]
pub(super) fn expired(claim: Claim) -> Result<(), Failure> {
    match claim {
        Claim::Expired => Ok(()),
        other => wanted("Expired", &other),
    }
}

#[track_caller]
pub(super) fn applied(fenced: Fenced) -> Result<(), Failure> {
    match fenced {
        Fenced::Applied => Ok(()),
        other => wanted("Applied", &other),
    }
}

#[track_caller]
pub(super) fn refused(fenced: Fenced, why: Refusal) -> Result<(), Failure> {
    match fenced {
        Fenced::Refused(found) if found == why => Ok(()),
        other => wanted(&format!("Refused({why:?})"), &other),
    }
}

#[track_caller]
pub(super) fn superseded(fenced: Fenced) -> Result<(), Failure> {
    refused(fenced, Refusal::Superseded)
}

#[track_caller]
pub(super) fn settled(fenced: Fenced, state: StateKind) -> Result<(), Failure> {
    refused(fenced, Refusal::Settled(state))
}
