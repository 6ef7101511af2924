//! The statements in full. Each protocol step is one of them.
//!
//! Plans are kept for long, so no join is left to the planner: `OFFSET 0` makes it look each digest up
//! by the index, whatever it knew of the table's size. `plans.rs` holds every statement to that.
//!
//! A claim that does not write brings the row along, with the server's time; a fenced step, which nearly
//! always writes, says only that it wrote. `common/exchange.rs` says what follows.
//!
//! The time is `statement_timestamp()`: one instant per statement, read when the server got it.
//! `now()` would stand still through a transaction; `clock_timestamp()` has to be caught in a
//! subquery to be one instant, which cost a fifth of a step's processor time. Where a statement
//! waits for a lock its time is that much in the past, which errs to the safe side: no lease lapses
//! early, and a lease granted or renewed never ends before the caller, who counts from the sending,
//! gives it up.

use semel::Progress;
use semel::record::{RELEASED_FOR, RELEASED_WITH_STEPS_FOR};

use super::table::Table;
use super::versioned::sql as versioned;

/// Which statement; an index into [`Sql`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A claim of an identity without a record; else it answers with the record.
    ClaimNew,
    /// The same for several identities.
    ClaimMany,
    Renew,
    Complete,
    /// The same for several records.
    CompleteMany,
    /// The same, which fails where it writes nothing.
    CompleteOrFail,
    KeepStep,
    KeepStepOrFail,
    Abandon,
    MarkUnknown,
    /// Puts a record in the place of the one that was read.
    Replace,
    Get,
    Look,
    Watch,
    ListInFlight,
    ListLapsed,
    ListUnknown,
    ListCompleted,
    ListReleased,
    Purge,
    Clear,
    VersionedRead,
    /// The same, locked until the transaction ends.
    VersionedLock,
    /// Writes whatever is there, or where nothing is.
    VersionedPut,
    /// Writes or deletes what is there.
    VersionedSet,
}

impl Kind {
    pub(super) const ALL: [Self; 25] = [
        Self::ClaimNew,
        Self::ClaimMany,
        Self::Renew,
        Self::Complete,
        Self::CompleteMany,
        Self::CompleteOrFail,
        Self::KeepStep,
        Self::KeepStepOrFail,
        Self::Abandon,
        Self::MarkUnknown,
        Self::Replace,
        Self::Get,
        Self::Look,
        Self::Watch,
        Self::ListInFlight,
        Self::ListLapsed,
        Self::ListUnknown,
        Self::ListCompleted,
        Self::ListReleased,
        Self::Purge,
        Self::Clear,
        Self::VersionedRead,
        Self::VersionedLock,
        Self::VersionedPut,
        Self::VersionedSet,
    ];

    /// Those that are prepared when a connection is made; the others are rare.
    pub(super) const PREPARED: [Self; 15] = [
        Self::ClaimNew,
        Self::ClaimMany,
        Self::Renew,
        Self::Complete,
        Self::CompleteMany,
        Self::KeepStep,
        Self::Abandon,
        Self::MarkUnknown,
        Self::Replace,
        Self::Get,
        Self::Look,
        Self::Watch,
        Self::VersionedRead,
        Self::VersionedPut,
        Self::VersionedSet,
    ];

    /// Those that a transaction of the application's ends with.
    pub(super) const SEALING: [Self; 2] = [Self::CompleteOrFail, Self::KeepStepOrFail];

    /// Whether the step changes nothing: an answer that did not come is then no open question.
    pub(super) const fn reads(self) -> bool {
        matches!(
            self,
            Self::Get
                | Self::Look
                | Self::ListInFlight
                | Self::ListLapsed
                | Self::ListUnknown
                | Self::ListCompleted
                | Self::ListReleased
                | Self::VersionedRead
        )
    }

    /// Whether it is sent by itself. What is replaced, or has a version, may be locked by an application's
    /// transaction for long, and many records are not removed at once: nobody else is to wait for that.
    pub(super) const fn alone(self) -> bool {
        matches!(
            self,
            Self::Replace | Self::VersionedPut | Self::VersionedSet | Self::Purge | Self::Clear
        )
    }

    const fn template(self) -> &'static str {
        match self {
            Self::ClaimNew => CLAIM_NEW,
            Self::ClaimMany => CLAIM_MANY,
            Self::Renew => RENEW,
            Self::Complete | Self::CompleteOrFail => COMPLETE,
            Self::CompleteMany => COMPLETE_MANY,
            Self::KeepStep | Self::KeepStepOrFail => KEEP_STEP,
            Self::Abandon => ABANDON,
            Self::MarkUnknown => MARK_UNKNOWN,
            Self::Replace => REPLACE,
            Self::Get => GET,
            Self::Look => LOOK,
            Self::Watch => WATCH,
            Self::ListInFlight => LIST_IN_FLIGHT,
            Self::ListLapsed => LIST_LAPSED,
            Self::ListUnknown => LIST_UNKNOWN,
            Self::ListCompleted => LIST_COMPLETED,
            Self::ListReleased => LIST_RELEASED,
            Self::Purge => PURGE,
            Self::Clear => CLEAR,
            Self::VersionedRead => versioned::READ,
            Self::VersionedLock => versioned::LOCK,
            Self::VersionedPut => versioned::PUT,
            Self::VersionedSet => versioned::SET,
        }
    }
}

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Sql([String; 25]);

impl Sql {
    pub(super) fn new(table: &Table) -> Self {
        Self(Kind::ALL.map(|kind| {
            let text = fill(kind.template(), table);
            match Kind::SEALING.contains(&kind) {
                true => or_fail(&text),
                false => text,
            }
        }))
    }

    pub(super) fn text(&self, kind: Kind) -> &str {
        &self.0[kind as usize]
    }
}

/// The same fenced step, with a division by zero where it writes nothing. So a transaction whose last
/// statement it is can be sent together with its `COMMIT`, which then rolls it back.
fn or_fail(fenced: &str) -> String {
    format!("WITH done AS ({fenced})\nSELECT 1 / count(*) FROM done")
}

/// The columns that make an entry, in the order in which `row.rs` reads them.
const ENTRY: &str = "r.digest, r.state, r.fingerprint, r.fence, r.nonce, r.attempt, r.created_at, \
     r.claimed_at, r.lease_until, r.settled_at, r.expires_at, r.purge_at, r.scope, r.operation, \
     r.key_hint, r.outcome, r.resolved, r.steps, r.note";

/// The same for who judges a claim by them: without the note, which decides nothing.
const JUDGED: &str = "r.digest, r.state, r.fingerprint, r.fence, r.nonce, r.attempt, r.created_at, \
     r.claimed_at, r.lease_until, r.settled_at, r.expires_at, r.purge_at, r.scope, r.operation, \
     r.key_hint, r.outcome, r.resolved, r.steps, ''::text";

/// Puts names and the repeated expressions into a template.
pub(super) fn fill(template: &str, table: &Table) -> String {
    let replay = after("{now}", "$6");
    let each_replay = after("{now}", "q.replay");
    template
        .replace("{entry}", ENTRY)
        .replace("{judged}", JUDGED)
        .replace("{no_entry}", NO_ENTRY)
        .replace("{lease}", &after("{now}", "$4"))
        .replace("{each_lease}", &after("{now}", "q.lease"))
        .replace(
            "{each_tombstone}",
            &after(&format!("({each_replay})"), "q.tombstone"),
        )
        .replace("{each_replay}", &each_replay)
        .replace("{replay}", &replay)
        .replace("{tombstone}", &after(&format!("({replay})"), "$7"))
        .replace("{fence}", &next_fence(""))
        .replace("{each_fence}", &next_fence("WHERE q.digest IS NOT NULL"))
        .replace("{fences}", &table.fences())
        .replace("{micros}", "(extract(epoch FROM {now}) * 1000000)::bigint")
        .replace(
            "{released_for}",
            &format!(
                "CASE WHEN {{bare}} THEN interval '{} seconds' ELSE interval '{} seconds' END",
                RELEASED_FOR.as_secs(),
                RELEASED_WITH_STEPS_FOR.as_secs()
            ),
        )
        .replace(
            "{bare}",
            &format!("(octet_length(r.steps) <= {})", Progress::BARE_BYTES),
        )
        .replace("{steps_at_most}", &Progress::MAX_STORED.to_string())
        .replace("{now}", "statement_timestamp()")
        .replace("{records}", &table.quoted())
        .replace("{versions}", &table.versions())
        .replace("{versioned}", &table.versioned())
        .replace("{index_purge}", &table.index("purge"))
        .replace("{index_open}", &table.index("open"))
        .replace("{channel}", &table.channel())
}

/// The next number of the sequence that all of a table's fences come from: it grows whatever record
/// it is for, and whether that one is still there.
///
/// The sequence follows the clock, to a second: who finds it further behind moves it there. A standby
/// that takes over, or a backup that is restored, may lack the latest numbers; the clock's have not
/// been given out. Who moves it holds a lock, so that it is moved once; who does not get the lock
/// goes on with a number from behind. While it is moved, nobody can draw the million numbers between.
///
/// Where a statement makes several rows, `each` has to name the row: once for each then, not once for all.
fn next_fence(each: &str) -> String {
    const BEHIND: &str = "< {micros} - 1000000";
    format!(
        "(SELECT CASE WHEN NOT f.next {BEHIND} THEN f.next
      WHEN NOT pg_try_advisory_xact_lock(hashtextextended('semel fences {{records}}', 0)) THEN f.next
      WHEN nextval('{{fences}}') {BEHIND} THEN setval('{{fences}}', {{micros}})
      ELSE nextval('{{fences}}') END
    FROM (SELECT nextval('{{fences}}') AS next {each}) AS f)"
    )
}

/// `from` later by a number of microseconds; beyond what a double says exactly (285 years), never.
fn after(from: &str, micros: &str) -> String {
    format!(
        "CASE WHEN {micros}::bigint < 9007199254740992 \
         THEN {from} + {micros}::bigint * interval '1 microsecond' ELSE 'infinity' END"
    )
}

/// As many columns as an entry has.
const NO_ENTRY: &str = "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
     NULL, NULL, NULL, NULL, NULL, NULL, NULL";

/// The claim of an identity that has no record, by far the most frequent one to write. Of any
/// number of inserts the unique index lets one through and makes the others wait for it.
///
/// The inner look keeps replays and rivals from waiting for anything, and from the log.
///
/// A row for each claim: its digest, and the fence where it was inserted, or else the record as it
/// was. Neither: a rival's insert committed after this statement's snapshot. Ask again.
///
/// A claim that a crash may forget is committed without a wait for the disk: the setting is that of the
/// statement's transaction. Whoever commits durably later, as the transaction with the attempt's
/// effects does, takes it to the disk along, because the server's log has one order.
macro_rules! claim_new {
    ($values:literal, $fence:literal, $digest:literal, $forgettable:literal, $from:literal) => {
        concat!(
            "
WITH put AS (
  INSERT INTO {records} AS r (digest, nonce, fingerprint, lease_until, scope, operation, key_hint,
    note, state, fence, attempt, created_at, claimed_at, expires_at, purge_at)
  SELECT ",
            $values,
            ",
    'in-flight', ",
            $fence,
            ", 1, {now}, {now}, 'infinity', 'infinity'
  ",
            $from,
            " WHERE NOT EXISTS (SELECT FROM {records} AS r WHERE r.digest = ",
            $digest,
            " OFFSET 0)
  ON CONFLICT (digest) DO NOTHING
  RETURNING r.digest, r.fence)
SELECT p.digest, p.fence, {now}, {no_entry}, CASE WHEN ",
            $forgettable,
            " THEN set_config('synchronous_commit', 'off', true) END
FROM put AS p
UNION ALL
SELECT r.digest, NULL, {now}, {judged}, NULL FROM "
        )
    };
}

/// $1 digest, $2 nonce, $3 fingerprint, $4 lease, $5 scope, $6 operation, $7 hint of the key, $8 note,
/// $9 whether a crash may forget it.
const CLAIM_NEW: &str = concat!(
    claim_new!(
        "$1::bytea, $2::bytea, $3::bytea, {lease}, $5::text::text[], $6::text, $7::text,
    $8::text",
        "{fence}",
        "$1",
        "$9::boolean",
        ""
    ),
    "{records} AS r WHERE r.digest = $1"
);

/// The same parameters as arrays, in the order of the digests: so are the rows that are inserted. Either
/// a crash may forget all of them, or none.
const CLAIM_MANY: &str = concat!(
    claim_new!(
        "q.digest, q.nonce, q.fingerprint, {each_lease}, q.scope::text[], q.operation, q.hint,
    q.note",
        "{each_fence}",
        "q.digest",
        "($9::boolean[])[1]",
        "FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[], $5::text[], $6::text[],
    $7::text[], $8::text[]) AS q (digest, nonce, fingerprint, lease, scope, operation, hint, note)"
    ),
    "unnest($1::bytea[]) AS q (digest),
  LATERAL (SELECT * FROM {records} AS r WHERE r.digest = q.digest OFFSET 0) AS r"
);

/// A fenced step: one row where it was written, none where not. $1 digest, $2 fence, $3 nonce.
/// Where it `ends` the attempt, who waits is told; else nobody.
macro_rules! fenced {
    (ends, $update:expr) => {
        concat!(
            "
UPDATE {records} AS r SET ",
            $update,
            "
RETURNING CASE WHEN r.waited_for = $2
  THEN pg_notify('{channel}', encode(r.digest, 'hex'))::text END"
        )
    };
    (goes on, $update:expr) => {
        concat!(
            "
UPDATE {records} AS r SET ",
            $update,
            "
RETURNING true"
        )
    };
}

/// $4 lease. Touches no indexed column: a heap-only update where the page has room. Passes over a row
/// that is locked, as [`WATCH`] does: the attempt's own transaction may be waiting for its commit.
const RENEW: &str = fenced!(
    goes on,
    "lease_until = greatest(r.lease_until, {lease})
  WHERE r.digest = $1 AND r.ctid = (SELECT r.ctid FROM {records} AS r
    WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state = 'in-flight'
    FOR NO KEY UPDATE SKIP LOCKED)"
);

/// $4 code, $5 outcome, $6 replay, $7 tombstone.
const COMPLETE: &str = fenced!(
    ends,
    "state = 'completed', settled_at = {now}, expires_at = {replay}, purge_at = {tombstone},
    code = $4::bigint::integer, outcome = $5::bytea, steps = ''
  WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state IN ('in-flight', 'unknown')"
);

/// The same parameters as arrays, in the order of the digests; a row for each that was written. A
/// nested loop, the only join that sessions of ours make, locks the rows in that order. Unnamed
/// statements have no such session; should they lock otherwise, a deadlock's loser is sent again.
///
/// A row is updated where the look-up saw it (`ctid`; the digest, since a table may have partitions).
/// Where it changed since, nothing may be written, and the record says why. The conditions match no
/// index: as bare columns they would let the planner read the index of all open records instead.
const COMPLETE_MANY: &str = "
UPDATE {records} AS r SET state = 'completed', settled_at = {now}, expires_at = {each_replay},
  purge_at = {each_tombstone}, code = q.code::integer, outcome = q.outcome, steps = ''
FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bigint[],
  $7::bigint[]) AS q (digest, fence, nonce, code, outcome, replay, tombstone),
  LATERAL (SELECT seen.ctid FROM {records} AS seen WHERE seen.digest = q.digest OFFSET 0) AS seen
WHERE r.ctid = seen.ctid AND r.digest IS NOT DISTINCT FROM q.digest AND r.fence = q.fence
  AND r.nonce = q.nonce AND r.state || '' IN ('in-flight', 'unknown')
RETURNING r.digest, CASE WHEN r.waited_for = q.fence
  THEN pg_notify('{channel}', encode(r.digest, 'hex'))::text END";

/// $4 the step's bytes, $5 how many are kept before it.
const KEEP_STEP: &str = fenced!(
    goes on,
    "steps = r.steps || $4::bytea
  WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state IN ('in-flight', 'unknown')
    AND octet_length(r.steps) = $5::bigint
    AND octet_length(r.steps) + octet_length($4::bytea) <= {steps_at_most}"
);

const ABANDON: &str = fenced!(
    ends,
    "state = 'released', settled_at = {now}, expires_at = {now} + {released_for},
    purge_at = {now} + {released_for}
  WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state IN ('in-flight', 'unknown')"
);

const MARK_UNKNOWN: &str = fenced!(
    ends,
    "state = 'unknown', settled_at = {now}
  WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state = 'in-flight'"
);

/// $2 fence, $3 nonce, $4 state, $5 lease and $6 length of the steps of the record that was read: no two
/// forms of a record have all of them in common. Then those of the one in its place: $19 only where other
/// steps are finished. An attempt that is found unknown keeps its fence, and all but another attempt their note.
const REPLACE: &str = "
UPDATE {records} AS r SET state = $7::text, nonce = $8::bytea,
  fence = CASE WHEN $7 = 'unknown' THEN r.fence ELSE greatest(r.fence + 1, {fence}) END,
  attempt = $9::bigint, fingerprint = $10, created_at = $11, claimed_at = $12, lease_until = $13,
  settled_at = $14, expires_at = $15, purge_at = $16, code = $17::bigint::integer, outcome = $18,
  steps = coalesce($19, r.steps), resolved = $20, note = CASE WHEN $7 = 'in-flight' THEN $21 ELSE r.note END
WHERE r.digest = $1 AND r.fence = $2 AND r.nonce = $3 AND r.state = $4 AND r.lease_until = $5
  AND octet_length(r.steps) = $6::bigint
RETURNING r.fence, CASE WHEN r.waited_for = $2
  THEN pg_notify('{channel}', encode(r.digest, 'hex'))::text END";

const GET: &str = "
SELECT {now}, {entry} FROM {records} AS r WHERE r.digest = $1";

/// $2 fence. Whether that attempt is in flight; and that nobody is told when it ends.
const LOOK: &str = "
SELECT EXISTS (SELECT FROM {records} AS r
  WHERE r.digest = $1 AND r.fence = $2 AND r.state = 'in-flight'), false";

/// $2 fence. The same, and asks for a push: whoever ends the attempt sees `waited_for` under the
/// row's lock. Whether the mark is there is the second column.
///
/// A row that is locked is passed over: a transaction that completes it may stand open for long, and
/// neither who waits nor who shares the connection is to stand with it.
const WATCH: &str = "
WITH free AS MATERIALIZED (
  SELECT r.ctid FROM {records} AS r
  WHERE r.digest = $1 AND r.fence = $2 AND r.state = 'in-flight'
    AND r.waited_for IS DISTINCT FROM $2
  FOR NO KEY UPDATE SKIP LOCKED),
put AS (
  UPDATE {records} AS r SET waited_for = $2 FROM free
  WHERE r.digest = $1 AND r.ctid = free.ctid
  RETURNING true)
SELECT EXISTS (SELECT FROM {records} AS r
    WHERE r.digest = $1 AND r.fence = $2 AND r.state = 'in-flight'),
  EXISTS (SELECT FROM put) OR EXISTS (SELECT FROM {records} AS r
    WHERE r.digest = $1 AND r.waited_for = $2)";

/// $1 the digest to go on after, $2 how many.
const LIST_IN_FLIGHT: &str = "
SELECT {entry} FROM {records} AS r
WHERE r.state IN ('in-flight', 'unknown') AND r.state = 'in-flight' AND r.digest > $1
ORDER BY r.digest LIMIT $2";

const LIST_LAPSED: &str = "
SELECT {entry} FROM {records} AS r
WHERE r.state IN ('in-flight', 'unknown') AND r.state = 'in-flight' AND r.digest > $1
  AND r.lease_until <= {now}
ORDER BY r.digest LIMIT $2";

const LIST_UNKNOWN: &str = "
SELECT {entry} FROM {records} AS r
WHERE r.state IN ('in-flight', 'unknown') AND r.state = 'unknown' AND r.digest > $1
ORDER BY r.digest LIMIT $2";

/// Settled records have no index by state: a page looks at a bounded stretch of the primary key.
/// At least one row, with the stretch's end, and whether more lies behind it.
macro_rules! list_settled {
    ($state:literal) => {
        concat!(
            "
WITH stretch AS MATERIALIZED (
  SELECT r.digest, r.state, r.purge_at FROM {records} AS r
  WHERE r.digest > $1 ORDER BY r.digest LIMIT 1024),
found AS (
  SELECT s.digest FROM stretch AS s
  WHERE s.state = '",
            $state,
            "' AND s.purge_at > {now} ORDER BY s.digest LIMIT $2)
SELECT (SELECT count(*) FROM stretch), (SELECT s.digest FROM stretch AS s
    ORDER BY s.digest DESC LIMIT 1), {entry}
FROM (SELECT) AS one
LEFT JOIN (found AS f CROSS JOIN LATERAL (SELECT * FROM {records} AS r
  WHERE r.digest = f.digest AND r.state = '",
            $state,
            "' OFFSET 0) AS r) ON true
ORDER BY r.digest"
        )
    };
}

const LIST_COMPLETED: &str = list_settled!("completed");
const LIST_RELEASED: &str = list_settled!("released");

/// $1 how many, $2 from when on. Skips what a claim has locked, and is skipped over by nobody for long:
/// one short statement. Looks at one more than it removes, to know whether there is more, and says how
/// far it came: what it removed stays in the index as long as an older transaction looks back, and the
/// next slice would go over it again.
const PURGE: &str = "
WITH old AS MATERIALIZED (
  SELECT r.digest, r.purge_at FROM {records} AS r
  WHERE r.purge_at < 'infinity' AND r.purge_at <= {now}
    AND r.purge_at >= timestamptz 'epoch' + $2::bigint * interval '1 microsecond'
  ORDER BY r.purge_at LIMIT $1::bigint + 1 FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM {records} AS r
  WHERE r.digest = ANY (ARRAY(SELECT o.digest FROM old AS o LIMIT $1))
  RETURNING true)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM old),
  coalesce((SELECT max(o.purge_at) FROM old AS o), 'epoch')";

const CLEAR: &str = "DELETE FROM {records}";
