//! What a claim says of its request, for operators.

use super::bench::request;
use super::expect::{acquired, applied, mismatch};
use super::{Bench, Failure, LONG, cases, ensure, ensure_eq};
use crate::record::StateKind;
use crate::store::{
    ClaimRequest, ListQuery, Nonce, OnLost, Resolution, Retention, Store as _, StoreExt as _,
    Verdict,
};
use crate::{Fingerprint, FinishedStep, IdentityDigest, Note, Outcome};

cases! { "note";
    is_kept_through_completion [R2 R5]
        "a claim's note is kept with the record, as it was given, through its steps, renewals, unknown state and completion";
    is_kept_through_resolution [R2 R7]
        "a resolution leaves the note of the attempt that it is about";
    longest [R2]
        "the longest note is kept whole, whatever characters are in it, and is listed";
    is_the_latest_attempts [R2 R7]
        "the next attempt's note takes its place after a release and by a takeover, also where that has none";
    nothing_else_changes_it [R2 R3]
        "duplicates, mismatches, replays and the claim's own repetition leave the note as it is";
    goes_with_the_record [R6]
        "past retention, purged or not, nothing of the note is left: not for a claim without one either";
}

fn note(text: &str) -> Note {
    Note::new([("method", "POST"), ("order", text)])
}

async fn noted(bench: &Bench, identity: &IdentityDigest) -> Result<Note, Failure> {
    Ok(bench.entry(identity).await?.record.note)
}

async fn is_kept_through_completion(bench: &Bench) -> Result<(), Failure> {
    let identity = bench.identity("a-key-of-some-length")?;
    let (store, digest) = (bench.store(), identity.digest());
    let said = note("4711");
    let claim = request()?.with_note(said.clone());
    let token = acquired(store.claim(&identity, &claim).await?)?.token;
    ensure_eq!(noted(bench, digest).await?, said, "in flight");
    let step = FinishedStep::new("charge", b"ch_1").map_err(|e| Failure::new(e.to_string()))?;
    applied(store.keep_step(digest, &token, &step, 0).await?)?;
    applied(store.renew(digest, &token, LONG * 2).await?)?;
    ensure_eq!(noted(bench, digest).await?, said, "renewed");
    applied(store.mark_unknown(digest, &token).await?)?;
    ensure_eq!(noted(bench, digest).await?, said, "unknown");
    let (outcome, retention) = (Outcome::success(b"done"), Retention::new(LONG));
    let completed = store.complete(digest, &token, &outcome, retention);
    applied(completed.await?)?;
    ensure_eq!(noted(bench, digest).await?, said, "completed");
    Ok(())
}

async fn is_kept_through_resolution(bench: &Bench) -> Result<(), Failure> {
    let happened = Verdict::Happened {
        outcome: Outcome::void(),
        retention: Retention::new(LONG),
    };
    for verdict in [happened, Verdict::DidNotHappen] {
        let identity = bench.identity("a-key-of-some-length")?;
        let (store, digest) = (bench.store(), identity.digest());
        let claim = request()?.with_note(note("4711"));
        let token = acquired(store.claim(&identity, &claim).await?)?.token;
        applied(store.mark_unknown(digest, &token).await?)?;
        let resolution = Resolution {
            verdict,
            by: "operator".into(),
            reason: "asked".into(),
            fence: token.fence,
            nonce: Nonce::random()?,
        };
        applied(store.resolve(digest, &resolution).await?)?;
        ensure_eq!(noted(bench, digest).await?, note("4711"), "resolved");
    }
    Ok(())
}

async fn longest(bench: &Bench) -> Result<(), Failure> {
    let odd = "'\"\\ %_{}$1?\u{1F511}é\u{2028}".repeat(20);
    let plain = "x".repeat(250);
    let names = ["a", "b", "c", "größe", "\\0"];
    let texts = names.map(|name| (name, &*odd)).into_iter();
    let said = Note::new(texts.chain([("rest", &*plain), ("empty", "")]));
    // What does not fit was left out: as long as a note gets.
    ensure!(said.as_text().len() > Note::MAX_BYTES - 256, "{said:?}");
    let identity = bench.identity("a-key-of-some-length")?;
    let claim = request()?.with_note(said.clone());
    acquired(bench.store().claim(&identity, &claim).await?)?;
    ensure_eq!(noted(bench, identity.digest()).await?, said, "note");
    let mut query = ListQuery::new(StateKind::InFlight);
    loop {
        let page = bench.store().list(&query).await?;
        let mut entries = page.entries.iter();
        if let Some(found) = entries.find(|entry| entry.label.digest == *identity.digest()) {
            ensure_eq!(found.record.note, said, "the note as it is listed");
            return Ok(());
        }
        if page.next.is_none() {
            return Err(Failure::new("the record is not listed"));
        }
        query.after = page.next;
    }
}

async fn is_the_latest_attempts(bench: &Bench) -> Result<(), Failure> {
    let store = bench.store();
    let next = [note("second"), Note::EMPTY, note("fourth")];
    let identity = bench.identity("a-key-of-some-length")?;
    let digest = identity.digest();
    let claim = request()?.with_note(note("first"));
    let mut token = acquired(store.claim(&identity, &claim).await?)?.token;
    for said in &next {
        applied(store.abandon(digest, &token).await?)?;
        let claim = request()?.with_note(said.clone());
        token = acquired(store.claim(&identity, &claim).await?)?.token;
        ensure_eq!(noted(bench, digest).await?, *said, "after a release");
    }
    for said in &next {
        applied(store.mark_unknown(digest, &token).await?)?;
        let claim = request()?
            .with_on_lost(OnLost::Retry)
            .with_note(said.clone());
        token = acquired(store.claim(&identity, &claim).await?)?.token;
        ensure_eq!(noted(bench, digest).await?, *said, "after a takeover");
    }
    let lapsed = bench.lapsed().await?;
    let claim = request()?
        .with_on_lost(OnLost::Retry)
        .with_note(note("late"));
    acquired(store.claim(&lapsed.identity, &claim).await?)?;
    ensure_eq!(noted(bench, lapsed.digest()).await?, note("late"), "lapsed");
    Ok(())
}

async fn nothing_else_changes_it(bench: &Bench) -> Result<(), Failure> {
    let identity = bench.identity("a-key-of-some-length")?;
    let digest = identity.digest();
    let said = note("first");
    let claim = request()?.with_note(said.clone());
    let token = acquired(bench.store().claim(&identity, &claim).await?)?.token;
    let again = claim.with_note(note("again"));
    let rival = request()?.with_note(note("rival"));
    let other = ClaimRequest {
        fingerprint: Fingerprint::of(b"another request"),
        ..rival.clone()
    };
    for store in [bench.store(), bench.other()] {
        acquired(store.claim(&identity, &again).await?)?;
        store.claim(&identity, &rival).await?;
        mismatch(store.claim(&identity, &other).await?)?;
    }
    ensure_eq!(noted(bench, digest).await?, said, "in flight");
    applied(bench.store().mark_unknown(digest, &token).await?)?;
    bench.store().claim(&identity, &rival).await?;
    mismatch(bench.store().claim(&identity, &other).await?)?;
    ensure_eq!(noted(bench, digest).await?, said, "unknown");
    let (outcome, retention) = (Outcome::void(), Retention::new(LONG));
    let completed = bench.store().complete(digest, &token, &outcome, retention);
    applied(completed.await?)?;
    for store in [bench.store(), bench.other()] {
        store.claim(&identity, &rival).await?;
        mismatch(store.claim(&identity, &other).await?)?;
    }
    ensure_eq!(noted(bench, digest).await?, said, "completed");
    // A lapse that is found is no attempt.
    let lapsed = bench.lapsed().await?;
    bench.store().claim(&lapsed.identity, &rival).await?;
    ensure_eq!(noted(bench, lapsed.digest()).await?, Note::EMPTY, "lapsed");
    Ok(())
}

async fn goes_with_the_record(bench: &Bench) -> Result<(), Failure> {
    for purge in [false, true] {
        let identity = bench.identity("a-key-of-some-length")?;
        let (store, digest) = (bench.store(), identity.digest());
        let claim = request()?.with_note(note("first"));
        let token = acquired(store.claim(&identity, &claim).await?)?.token;
        let (outcome, brief) = (Outcome::void(), Retention::new(bench.short()));
        let completed = store.complete(digest, &token, &outcome, brief);
        applied(completed.await?)?;
        bench.pass(bench.short()).await;
        if purge {
            while store.purge(1_000).await?.more {}
        }
        ensure_eq!(store.get(digest).await?, None, "record");
        acquired(store.claim(&identity, &request()?).await?)?;
        ensure_eq!(noted(bench, digest).await?, Note::EMPTY, "note");
    }
    Ok(())
}
