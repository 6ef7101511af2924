//! Reading: one record, and all of a state.

use std::collections::HashMap;

use super::bench::request;
use super::expect::{acquired, applied, unknown};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::StateKind;
use crate::store::{Entry, ListQuery, OnLost, Retention, Store as _, StoreExt as _};
use crate::{IdentityDigest, Outcome};

cases! { "listing";
    every_standing_record_once [R8]
        "a listing of several pages shows each unchanged record exactly once";
    by_state [R8]
        "a record is listed under its state, and under no other; `lapsed` says nothing of those that are not in flight";
    lapsed_only [R7 R8]
        "among those in flight the lapsed ones can be listed alone";
    as_it_is_read [R12]
        "a listing shows a record as reading it alone does";
    absent_is_none [R1]
        "reading what was never claimed answers none, and makes nothing";
}

/// All pages of a listing, in order.
async fn all(bench: &Bench, mut query: ListQuery) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    loop {
        let page = bench.store().list(&query).await?;
        ensure!(
            page.entries.len() <= query.limit,
            "a page of {} where {} were asked for",
            page.entries.len(),
            query.limit
        );
        entries.extend(page.entries);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(entries),
        }
    }
}

pub(super) async fn digests(
    bench: &Bench,
    state: StateKind,
    lapsed: bool,
) -> Result<Vec<IdentityDigest>, Failure> {
    let query = ListQuery {
        lapsed,
        ..ListQuery::new(state)
    };
    let entries = all(bench, query).await?;
    Ok(entries.into_iter().map(|e| e.label.digest).collect())
}

async fn every_standing_record_once(bench: &Bench) -> Result<(), Failure> {
    let mut standing = HashMap::new();
    for _ in 0..23 {
        standing.insert(*bench.attempt().await?.digest(), 0);
    }
    for limit in [1, 7, 100] {
        let query = ListQuery {
            limit,
            ..ListQuery::new(StateKind::InFlight)
        };
        for entry in all(bench, query).await? {
            if let Some(seen) = standing.get_mut(&entry.label.digest) {
                *seen += 1;
            }
        }
        for (digest, seen) in &mut standing {
            ensure_eq!(*seen, 1, "how often {digest} was seen in pages of {limit}");
            *seen = 0;
        }
    }
    Ok(())
}

async fn by_state(bench: &Bench) -> Result<(), Failure> {
    let released = bench.attempt().await?;
    let abandoned = bench.store().abandon(released.digest(), &released.token);
    applied(abandoned.await?)?;
    let retention = Retention::new(LONG);
    let found = bench.lapsed().await?;
    unknown(bench.rival(&found, OnLost::Hold).await?)?;
    let records = [
        (StateKind::InFlight, bench.attempt().await?),
        (StateKind::InFlight, bench.lapsed().await?),
        (StateKind::Unknown, bench.unknown().await?),
        (StateKind::Unknown, found),
        (
            StateKind::Completed,
            bench.completed(&Outcome::void(), retention).await?,
        ),
        (StateKind::Released, released),
    ];
    let settled = StateKind::ALL
        .into_iter()
        .filter(|state| *state != StateKind::InFlight);
    let listings = StateKind::ALL.into_iter().map(|state| (state, false));
    for (state, lapsed) in listings.chain(settled.map(|state| (state, true))) {
        let listed = digests(bench, state, lapsed).await?;
        for (actual, attempt) in &records {
            ensure_eq!(
                listed.contains(attempt.digest()),
                *actual == state,
                "whether a record that is {} is listed as {}, lapsed: {lapsed}",
                actual.as_str(),
                state.as_str()
            );
        }
    }
    Ok(())
}

async fn lapsed_only(bench: &Bench) -> Result<(), Failure> {
    let lapsed = bench.lapsed().await?;
    let running = bench.attempt().await?;
    let listed = digests(bench, StateKind::InFlight, true).await?;
    ensure!(
        listed.contains(lapsed.digest()),
        "a lapsed record is missing"
    );
    ensure!(
        !listed.contains(running.digest()),
        "a record that holds its lease is listed as lapsed"
    );
    Ok(())
}

async fn as_it_is_read(bench: &Bench) -> Result<(), Failure> {
    let outcome = Outcome::success(b"kept");
    let attempt = bench.completed(&outcome, Retention::new(LONG)).await?;
    let read = bench.entry(attempt.digest()).await?;
    let listed = all(bench, ListQuery::new(StateKind::Completed)).await?;
    let listed = listed
        .into_iter()
        .find(|e| e.label.digest == *attempt.digest());
    ensure_eq!(listed, Some(read.clone()), "entry");
    let other = bench.other().get(attempt.digest()).await?;
    ensure_eq!(other, Some(read), "entry through the other handle");
    Ok(())
}

async fn absent_is_none(bench: &Bench) -> Result<(), Failure> {
    let nobody = bench.identity("never-claimed")?;
    ensure_eq!(bench.store().get(nobody.digest()).await?, None, "record");
    let first = acquired(bench.store().claim(&nobody, &request()?).await?)?;
    ensure_eq!(first.attempt, 1, "attempt");
    Ok(())
}
