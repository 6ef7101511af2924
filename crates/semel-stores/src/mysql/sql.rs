//! The statements, in full. Each request is one packet.
//!
//! They are text, not prepared: several statements in one packet need it, and it goes through
//! proxies that give each transaction another connection. Nothing from outside is put in but
//! numbers and bytes in hexadecimal, so there is nothing to escape.
//!
//! They also run in the application's sessions, where the server's `sql_mode` may be
//! `SIMULTANEOUS_ASSIGNMENT`: no assignment relies on what another one of its statement assigned.

use std::fmt::{self, Write as _};
use std::time::Duration;

use semel::record::{RELEASED_FOR, RELEASED_WITH_STEPS_FOR, State, StateKind, Update};
use semel::store::{ClaimRequest, Fence, Label, ListQuery, Retention, Token};
use semel::{Identity, IdentityDigest, Outcome, Progress, Timestamp};

use crate::common::exchange::Replacement;
use crate::common::scope;

const IN_FLIGHT: u8 = 1;
const UNKNOWN: u8 = 2;
const COMPLETED: u8 = 3;
const RELEASED: u8 = 4;

/// The server's time in microseconds: one instant for all of a statement, in UTC whatever the
/// session's time zone. Taken before the statement waits for a lock. An instant that is too old can
/// only spare a lease or a retention that has just ended: it shortens the lease that is written,
/// and never takes one over early.
pub(super) const NOW: &str =
    "CAST(TIMESTAMPDIFF(MICROSECOND,TIMESTAMP'1970-01-01 00:00:00',UTC_TIMESTAMP(6)) AS UNSIGNED)";

/// "Never", in a time's column.
const NEVER: u64 = u64::MAX;

/// What a [`Record`](semel::record::Record) is read from, but for the outcome.
const RECORD: &str = "state,fence,nonce,fingerprint,attempt,created_at,claimed_at,lease_until,\
    settled_at,expires_at,purge_at,resolved,progress";

/// What a new record is made of.
const NEW: &str = "digest,state,created_at,fence,nonce,fingerprint,attempt,claimed_at,lease_until,\
    expires_at,purge_at,scope,operation,key_hint,note,progress";

/// What makes it an [`Entry`](semel::store::Entry).
const LABEL: &str = "digest,scope,operation,key_hint,note";

/// The state's name.
pub(super) const NAME: &str = "ELT(state,'in-flight','unknown','completed','released')";

pub(super) const fn state(kind: StateKind) -> u8 {
    match kind {
        StateKind::InFlight => IN_FLIGHT,
        StateKind::Unknown => UNKNOWN,
        StateKind::Completed => COMPLETED,
        StateKind::Released => RELEASED,
    }
}

/// Bytes as a literal.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        f.write_str("x'")?;
        let mut text = [0; 256];
        for chunk in self.0.chunks(text.len() / 2) {
            for (pair, byte) in text.chunks_exact_mut(2).zip(chunk) {
                pair[0] = DIGITS[usize::from(byte >> 4)];
                pair[1] = DIGITS[usize::from(byte & 15)];
            }
            let text = &text[..chunk.len() * 2];
            f.write_str(str::from_utf8(text).map_err(|_| fmt::Error)?)?;
        }
        f.write_str("'")
    }
}

/// Digests as a list, by commas.
struct Digests<I>(I);

impl<'a, I: Iterator<Item = &'a IdentityDigest> + Clone> fmt::Display for Digests<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, digest) in self.0.clone().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{}", Hex(digest.as_bytes()))?;
        }
        Ok(())
    }
}

/// `from` and then so much longer, or "never" where that does not fit.
struct Later<'a>(&'a str, Duration);

impl fmt::Display for Later<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(from, by) = self;
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        if by < 1 << 62 {
            // Clocks stand far below 2^62: no overflow.
            write!(f, "{from}+{by}")
        } else {
            let room = NEVER - by;
            write!(f, "IF({from}>{room},{NEVER},{from}+{by})")
        }
    }
}

/// How many fences there are in as many microseconds.
const FENCES: u64 = 1 << LANE_BITS;
pub(super) const LANE_BITS: u32 = 12;

/// A number that the server gives to no other statement until it gave out as many as there are
/// [`FENCES`]. By the clock alone two records could get the same fence.
const LANE: &str = "(UUID_SHORT()&4095)";

/// The first fence of those that belong to this time.
struct FirstFence(&'static str);

impl fmt::Display for FirstFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({time}>>{LANE_BITS}<<{LANE_BITS})", time = self.0)
    }
}

/// The fence of a record that was not there, of this time and a lane. Leaves both where the answer of the
/// statement shows them; the row's time has 51 bits until 2041, and 52 until 2112.
struct NewFence(&'static str);

impl fmt::Display for NewFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, time, last) = (FirstFence(self.0), self.0, FENCES - 1);
        write!(f, "{first}+(LAST_INSERT_ID({time}*{FENCES}+{LANE})&{last})")
    }
}

/// The fence after this one: the next one in the statement's lane, of those that belong to the time of
/// `from` or a later one.
fn next_fence(seen: Fence, from: Fence) -> String {
    let first = from.0 >> LANE_BITS << LANE_BITS;
    let least = first.max(seen.0.min(u64::MAX - FENCES) + 1);
    let (lane, last) = (FENCES - (least & (FENCES - 1)), FENCES - 1);
    format!("{least}+({LANE}+{lane}&{last})")
}

fn null_or(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// Whether no step is finished under the row.
struct Bare;

impl fmt::Display for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LENGTH(progress)<={}", Progress::BARE_BYTES)
    }
}

/// The names of a store's table and what belongs to it.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) records: String,
}

impl Table {
    /// Claims where there is no record, by far the most frequent case. The look takes no lock, and its row
    /// is the answer where there is one: replays and rivals wait for no transaction that holds the row. It
    /// leaves a mark, so that the insert does nothing then. What the insert leaves says that it wrote, and
    /// what: the time, and the lane of the fence.
    pub(super) fn claim(&self, new: &New) -> String {
        let records = &self.records;
        format!(
            "SELECT {NOW},{RECORD},outcome,LAST_INSERT_ID({mark}) FROM `{records}` WHERE digest={digest};\
             INSERT INTO `{records}` ({NEW}) SELECT {digest},{IN_FLIGHT},{NOW},{fence},{nonce},\
             {fingerprint},1,{NOW},{lease},{NEVER},{NEVER},{label},'' FROM DUAL \
             WHERE LAST_INSERT_ID()<>{mark}",
            mark = new.mark,
            digest = Hex(new.digest.as_bytes()),
            fence = NewFence(NOW),
            nonce = new.nonce,
            fingerprint = new.fingerprint,
            lease = Later(NOW, new.lease),
            label = new.label,
        )
    }

    /// The same of several identities: inserts those that have no record, and reads what is there then.
    /// A rival that came in between is waited for, and keeps its record.
    pub(super) fn claims(&self, all: &[&New]) -> String {
        let records = &self.records;
        let mut rows = String::new();
        for new in all {
            let union = if rows.is_empty() { "" } else { " UNION ALL " };
            let (digest, lease) = (Hex(new.digest.as_bytes()), new.lease.as_micros());
            let New {
                nonce,
                fingerprint,
                label,
                ..
            } = new;
            let _ = write!(
                rows,
                "{union}SELECT {digest} AS d,{nonce} AS n,{fingerprint} AS f,{lease} AS l,{label}"
            );
        }
        format!(
            "INSERT INTO `{records}` ({NEW}) SELECT d,{IN_FLIGHT},now,{fence},n,f,1,now,now+l,\
             {NEVER},{NEVER},s,o,h,t,'' FROM (SELECT {NOW} AS now) AS one CROSS JOIN ({rows}) AS asked \
             LEFT JOIN `{records}` AS found FORCE INDEX (PRIMARY) ON found.digest=d \
             WHERE found.digest IS NULL ON DUPLICATE KEY UPDATE digest=d;\
             SELECT {NOW},{RECORD},outcome,digest FROM `{records}` FORCE INDEX (PRIMARY) \
             WHERE digest IN ({digests})",
            fence = NewFence("now"),
            digests = Digests(all.iter().map(|new| &new.digest)),
        )
    }

    /// The record.
    pub(super) fn read(&self, digest: &IdentityDigest) -> String {
        let (records, digest) = (&self.records, Hex(digest.as_bytes()));
        format!("SELECT {NOW},{RECORD},outcome FROM `{records}` WHERE digest={digest}")
    }

    /// Puts a record in the place of the one that was read, if that is still as it was: no two forms of a
    /// record have token, state, lease and length of the steps in common. Leaves the fence of an attempt.
    pub(super) fn replace(&self, digest: &IdentityDigest, replacement: &Replacement) -> String {
        let Replacement { seen, next } = replacement;
        let fence = next_fence(seen.token.fence, next.token.fence);
        // What is read for a decision has no note: it comes with another attempt only. So does the answer with
        // the fence; what the application's session has in its place stays otherwise.
        let (fence, note) = match next.state {
            State::InFlight => (
                format!("LAST_INSERT_ID({fence})"),
                format!("note={},", Hex(next.note.as_text().as_bytes())),
            ),
            State::Unknown => ("fence".to_owned(), String::new()),
            State::Completed(_) | State::Released => (fence, String::new()),
        };
        let progress = match next.progress == seen.progress {
            true => String::new(),
            false => format!("progress={},", Hex(next.progress.as_bytes())),
        };
        let outcome = match &next.state {
            State::Completed(outcome) => Hex(outcome.as_bytes()).to_string(),
            State::InFlight | State::Unknown | State::Released => "NULL".to_owned(),
        };
        let resolved = next.resolved.as_ref().map(|resolved| resolved.to_text());
        format!(
            "UPDATE `{records}` SET state={state},fence={fence},nonce={nonce},\
             fingerprint={fingerprint},attempt={attempt},created_at={created},claimed_at={claimed},\
             lease_until={lease},settled_at={settled},expires_at={expires},purge_at={purge},\
             resolved={resolved},{progress}{note}outcome={outcome} \
             WHERE digest={digest} AND {seen_by} AND state={seen_state} AND lease_until={seen_lease} \
             AND LENGTH(progress)={seen_steps}",
            records = self.records,
            state = state(next.state.kind()),
            nonce = Hex(next.token.nonce.as_bytes()),
            fingerprint = Hex(&next.fingerprint.to_bytes()),
            attempt = next.attempt,
            created = next.created_at.as_micros(),
            claimed = next.claimed_at.as_micros(),
            lease = next.lease_until.as_micros(),
            settled = null_or(next.settled_at.map(Timestamp::as_micros)),
            expires = next.expires_at.as_micros(),
            purge = next.purge_at.as_micros(),
            resolved = null_or(resolved.as_ref().map(|text| Hex(text.as_bytes()))),
            digest = Hex(digest.as_bytes()),
            seen_by = holder(&seen.token),
            seen_state = state(seen.state.kind()),
            seen_lease = seen.lease_until.as_micros(),
            seen_steps = seen.progress.as_bytes().len(),
        )
    }

    /// A change where it is sent alone.
    pub(super) fn held(&self, held: &Held) -> String {
        let (set, condition) = (held.set(), &held.condition);
        let (records, digest) = (&self.records, Hex(held.digest.as_bytes()));
        let holder = holder(&held.token);
        format!("UPDATE `{records}` SET {set} WHERE digest={digest} AND {holder} AND {condition}")
    }

    /// Changes that assign the same, but for outcomes: locks the rows that they are to write and says
    /// which those are, and writes them.
    pub(super) fn changes(&self, all: &[&Held]) -> String {
        let records = &self.records;
        let [first, ..] = all else {
            return String::new();
        };
        let mut set = first.assignments.clone();
        if first.outcome.is_some() {
            set.push_str(",outcome=CASE digest");
            for held in all {
                let outcome = held.outcome.as_ref().map_or(&[][..], |o| o.as_bytes());
                let (digest, outcome) = (Hex(held.digest.as_bytes()), Hex(outcome));
                let _ = write!(set, " WHEN {digest} THEN {outcome}");
            }
            set.push_str(" END");
        }
        let mut holders = String::new();
        for held in all {
            let (Token { fence, nonce }, digest) = (held.token, Hex(held.digest.as_bytes()));
            let comma = if holders.is_empty() { "" } else { "," };
            let _ = write!(
                holders,
                "{comma}({digest},{fence},{nonce})",
                nonce = Hex(nonce.as_bytes())
            );
        }
        let condition = format!(
            "digest IN ({digests}) AND (digest,fence,nonce) IN ({holders}) AND {rest}",
            digests = Digests(all.iter().map(|held| &held.digest)),
            rest = first.condition,
        );
        format!(
            "SELECT digest FROM `{records}` FORCE INDEX (PRIMARY) WHERE {condition} \
             FOR UPDATE NOWAIT;\
             UPDATE `{records}` FORCE INDEX (PRIMARY) SET {set} WHERE {condition}"
        )
    }

    /// The record as it is now, not as it was when the transaction began.
    pub(super) fn current(&self, digest: &IdentityDigest) -> String {
        let (records, digest) = (&self.records, Hex(digest.as_bytes()));
        format!("SELECT {NOW},{RECORD},outcome FROM `{records}` WHERE digest={digest} FOR UPDATE")
    }

    pub(super) fn get(&self, digest: &IdentityDigest) -> String {
        let (records, digest) = (&self.records, Hex(digest.as_bytes()));
        format!(
            "SELECT {NOW},{RECORD},outcome,{LABEL} FROM `{records}` \
             WHERE digest={digest} AND purge_at>{NOW}"
        )
    }

    /// Whether the record is in flight under this fence.
    pub(super) fn look(&self, digest: &IdentityDigest, fence: u64) -> String {
        let (records, digest) = (&self.records, Hex(digest.as_bytes()));
        format!(
            "SELECT 1 FROM `{records}` WHERE digest={digest} AND state={IN_FLIGHT} AND fence={fence}"
        )
    }

    /// A page, one row longer than asked where there is more. By the index that purging goes by, in
    /// which records in flight and unknown lie together: they all have "never" in it.
    pub(super) fn list(
        &self,
        query: &ListQuery,
        after: Option<(Timestamp, IdentityDigest)>,
        rows: usize,
    ) -> String {
        let records = &self.records;
        let held = matches!(query.state, StateKind::InFlight | StateKind::Unknown);
        let mut condition = match held {
            true => format!("purge_at={NEVER}"),
            false => format!("purge_at>{NOW}"),
        };
        if query.only_lapsed() {
            let _ = write!(condition, " AND lease_until<={NOW}");
        }
        if let Some((purge_at, digest)) = after {
            let (purge_at, digest) = (purge_at.as_micros(), Hex(digest.as_bytes()));
            let _ = match held {
                true => write!(condition, " AND digest>{digest}"),
                false => write!(
                    condition,
                    " AND purge_at>={purge_at} AND (purge_at>{purge_at} OR digest>{digest})"
                ),
            };
        }
        format!(
            "SELECT {NOW},{RECORD},outcome,{LABEL} FROM `{records}` FORCE INDEX (by_purge) \
             WHERE state={state} AND {condition} ORDER BY purge_at,state,digest LIMIT {rows}",
            state = state(query.state),
        )
    }

    /// Which records may be purged: takes no lock. Not yet those of whose time fences are still given
    /// out: a claim that finds nothing would not know to go above theirs.
    pub(super) fn purgeable(&self, rows: usize) -> String {
        let records = &self.records;
        format!(
            "SELECT digest FROM `{records}` FORCE INDEX (by_purge) \
             WHERE purge_at<={NOW}-{FENCES} ORDER BY purge_at LIMIT {rows}"
        )
    }

    /// Purges these, where they still may be. By the primary key and in its order, as claims lock:
    /// a delete along the other index would lock in the opposite order and deadlock with them.
    pub(super) fn purge(&self, digests: &[IdentityDigest]) -> String {
        let (records, digests) = (&self.records, Digests(digests.iter()));
        format!("DELETE FROM `{records}` WHERE digest IN ({digests}) AND purge_at<={NOW}-{FENCES}")
    }

    /// Does nothing, and fails where the session may not do what steps do.
    pub(super) fn rehearse(&self) -> String {
        let records = &self.records;
        let nobody = Hex(&[0; 32]);
        format!(
            "UPDATE `{records}` SET state=state WHERE digest={nobody} AND state=0;\
             DELETE FROM `{records}` WHERE digest={nobody} AND state=0;\
             INSERT INTO `{records}` ({RECORD},outcome,{LABEL}) \
             SELECT {RECORD},outcome,{LABEL} FROM `{records}` WHERE digest={nobody} AND state=0;\
             SELECT {NOW} FROM `{records}` WHERE digest={nobody} FOR UPDATE NOWAIT"
        )
    }

    pub(super) fn clear(&self) -> String {
        format!("DELETE FROM `{}`", self.records)
    }
}

fn holder(token: &Token) -> String {
    let Token { fence, nonce } = token;
    format!("fence={fence} AND nonce={}", Hex(nonce.as_bytes()))
}

/// A claim of an identity without a record, as the statements need it.
pub(super) struct New {
    pub(super) digest: IdentityDigest,
    /// A number that no other claim has, and no other turn of this one.
    mark: u64,
    nonce: String,
    fingerprint: String,
    lease: Duration,
    label: String,
}

impl New {
    pub(super) fn of(identity: &Identity, request: &ClaimRequest, turn: u32) -> Self {
        let label = Label::from(identity);
        let [head @ .., _, _, _, _, _, _, _, _] = *request.nonce.as_bytes();
        Self {
            digest: label.digest,
            mark: (u64::from_be_bytes(head).wrapping_add(u64::from(turn) << 2) >> 1) | 1,
            nonce: Hex(request.nonce.as_bytes()).to_string(),
            fingerprint: Hex(&request.fingerprint.to_bytes()).to_string(),
            lease: request.lease,
            label: format!(
                "{} AS s,{} AS o,{} AS h,{} AS t",
                Hex(scope::to_json(&label.scope).as_bytes()),
                Hex(label.operation.as_bytes()),
                Hex(label.key_hint.as_bytes()),
                Hex(request.note.as_text().as_bytes()),
            ),
        }
    }

    /// Whether the lease is longer than times are: sent alone.
    pub(super) fn is_endless(&self) -> bool {
        self.lease.as_micros() >= 1 << 62
    }

    pub(super) fn size(&self) -> usize {
        self.label.len() + 500
    }
}

/// A change by the attempt that holds the record's token.
pub(super) struct Held {
    pub(super) digest: IdentityDigest,
    token: Token,
    /// All but the outcome.
    assignments: String,
    outcome: Option<Outcome>,
    condition: String,
}

impl Held {
    pub(super) fn new(digest: &IdentityDigest, token: &Token, update: &Update) -> Self {
        let in_flight = || format!("state={IN_FLIGHT}");
        let unsettled = || format!("state IN ({IN_FLIGHT},{UNKNOWN})");
        let (assignments, condition) = match update {
            Update::Renew(lease) => {
                let lease = Later(NOW, *lease);
                (
                    format!("lease_until=GREATEST(lease_until,{lease})"),
                    in_flight(),
                )
            }
            Update::Complete(_, retention) => (completed(*retention), unsettled()),
            Update::KeepStep { step, kept } => {
                let (step, most) = (step.as_bytes(), Progress::MAX_STORED);
                let all = kept.saturating_add(step.len());
                (
                    format!("progress=CONCAT(progress,{})", Hex(step)),
                    format!(
                        "{} AND LENGTH(progress)={kept} AND {all}<={most}",
                        unsettled()
                    ),
                )
            }
            Update::Abandon => (released(), unsettled()),
            Update::MarkUnknown => (unknown(), in_flight()),
        };
        let outcome = match update {
            Update::Complete(outcome, _) => Some(outcome.clone()),
            _ => None,
        };
        Self {
            digest: *digest,
            token: *token,
            assignments,
            outcome,
            condition,
        }
    }

    fn set(&self) -> String {
        match &self.outcome {
            Some(outcome) => format!("{},{}", self.assignments, Kept(outcome)),
            None => self.assignments.clone(),
        }
    }

    /// What changes have in common that share a statement.
    pub(super) fn kind(&self) -> (&str, &str) {
        (&self.assignments, &self.condition)
    }

    pub(super) fn size(&self) -> usize {
        let outcome = self.outcome.as_ref().map_or(0, |o| o.as_bytes().len());
        2 * (outcome + self.assignments.len() + self.condition.len()) + 600
    }
}

/// All but the outcome.
fn completed(retention: Retention) -> String {
    let Retention { replay, tombstone } = retention;
    format!(
        "state={COMPLETED},settled_at={NOW},expires_at={expires},purge_at={purge},progress=''",
        expires = Later(NOW, replay),
        purge = Later(NOW, replay.saturating_add(tombstone)),
    )
}

struct Kept<'a>(&'a Outcome);

impl fmt::Display for Kept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "outcome={}", Hex(self.0.as_bytes()))
    }
}

fn unknown() -> String {
    format!("state={UNKNOWN},settled_at={NOW},expires_at={NEVER},purge_at={NEVER}")
}

fn released() -> String {
    let (end, with_steps) = (
        Later(NOW, RELEASED_FOR),
        Later(NOW, RELEASED_WITH_STEPS_FOR),
    );
    let end = format!("IF({Bare},{end},{with_steps})");
    format!("state={RELEASED},settled_at={NOW},expires_at={end},purge_at={end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_nothing_but_digits() {
        let every: Vec<u8> = (0..=255).chain(0..=255).collect();
        let text = Hex(&every).to_string();
        let digits = text.strip_prefix("x'").and_then(|t| t.strip_suffix('\''));
        let digits = digits.unwrap();
        assert_eq!(digits.len(), 1024);
        assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(digits.starts_with("000102030405060708090a0b0c0d0e0f10"));
        assert_eq!(Hex(b"").to_string(), "x''");
    }

    #[test]
    fn a_time_that_does_not_fit_is_never() {
        assert_eq!(Later("n", Duration::from_secs(1)).to_string(), "n+1000000");
        assert_eq!(
            Later("n", Duration::MAX).to_string(),
            format!("IF(n>0,{NEVER},n+{NEVER})")
        );
    }

    async fn table(name: &str) -> (Table, sqlx::MySqlConnection) {
        use semel_testkit::servers::{Kind, shared};
        use sqlx::Connection as _;

        let url = tokio::task::spawn_blocking(|| shared(Kind::MariaDb));
        let url = url.await.unwrap().unwrap();
        let records = format!("{name}_{}", std::process::id());
        let options = crate::MysqlOptions::from_url(&url).unwrap();
        let options = options.table(&records).unwrap();
        options.schema(crate::Schema::Create).open().await.unwrap();
        let link = sqlx::MySqlConnection::connect(&url).await.unwrap();
        (Table { records }, link)
    }

    /// A group finds its records one by one, in a small table too: it reads and locks no others.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_group_scans_the_table() {
        use semel::store::Nonce;
        use semel::{Fingerprint, Key, Scope};
        use sqlx::{AssertSqlSafe, Executor as _, Row as _};

        let (table, mut link) = table("grouped").await;
        let identity = |n: u8| {
            let key = Key::new(&format!("key-{n}")).unwrap();
            Identity::new(Scope::new(["plans"]), "test", key)
        };
        let claim = |n: u8| {
            let nonce = Nonce::from_bytes([n; 16]);
            let request = ClaimRequest::new(nonce, Fingerprint::of(b"x"), Duration::from_secs(60));
            New::of(&identity(n), &request, 0)
        };
        let news: Vec<_> = (0..64).map(claim).collect();
        let news: Vec<_> = news.iter().collect();
        let complete = |n: u8| {
            let nonce = Nonce::from_bytes([n; 16]);
            let fence = semel::store::Fence(1);
            let outcome = Outcome::success(b"x");
            let update = Update::Complete(outcome, Retention::ORDER);
            Held::new(identity(n).digest(), &Token { fence, nonce }, &update)
        };
        let helds: Vec<_> = (0..64).map(complete).collect();
        let helds: Vec<_> = helds.iter().collect();
        let claims = table.claims(&news);
        for filled in [false, true] {
            if filled {
                let sql = claims.clone();
                link.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
                    .await
                    .unwrap();
                let sql = format!("ANALYZE TABLE `{}`", table.records);
                link.fetch_all(AssertSqlSafe(sql)).await.unwrap();
            }
            for packet in [&claims, &table.changes(&helds)] {
                for statement in packet.split(';') {
                    let explain = format!("EXPLAIN {statement}");
                    let mut seen = 0;
                    for row in link.fetch_all(AssertSqlSafe(explain)).await.unwrap() {
                        let on: Option<String> = row.get("table");
                        if on.is_none_or(|on| on != "found" && on != table.records) {
                            continue;
                        }
                        let kind: Option<String> = row.get("type");
                        let key: Option<String> = row.get("key");
                        let kind = kind.unwrap_or_default();
                        let plan = format!("{filled} {kind} {key:?}: {}", &statement[..60]);
                        if statement.starts_with("INSERT") && kind == "ALL" && key.is_none() {
                            // The table that is written to.
                            let rows: Option<u64> = row.get("rows");
                            assert_eq!(rows, None, "{plan}");
                            continue;
                        }
                        assert!(["range", "eq_ref", "const"].contains(&&*kind), "{plan}");
                        assert_eq!(key.as_deref(), Some("PRIMARY"), "{plan}");
                        seen += 1;
                    }
                    assert_eq!(seen, 1, "{}", &statement[..60]);
                }
            }
        }
        let drop = format!("DROP TABLE `{}`", table.records);
        link.execute(AssertSqlSafe(drop)).await.unwrap();
    }

    /// Each page goes by the index, from where it begins, and sorts nothing.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_page_scans_the_table() {
        use sqlx::{AssertSqlSafe, Executor as _, Row as _};

        let (table, mut link) = table("plans").await;
        let after = (
            Timestamp::from_micros(7),
            IdentityDigest::from_bytes([7; 32]),
        );
        for state in StateKind::ALL {
            for (lapsed, after) in [(false, None), (false, Some(after)), (true, None)] {
                let query = ListQuery {
                    lapsed,
                    ..ListQuery::new(state)
                };
                let explain = format!("EXPLAIN {}", table.list(&query, after, 101));
                for row in link.fetch_all(AssertSqlSafe(explain)).await.unwrap() {
                    let kind: Option<String> = row.get("type");
                    let key: Option<String> = row.get("key");
                    let extra: Option<String> = row.get("Extra");
                    assert_eq!(key.as_deref(), Some("by_purge"), "{query:?}: {extra:?}");
                    assert!(["range", "ref"].contains(&&*kind.unwrap()), "{query:?}");
                    assert!(!extra.unwrap().contains("filesort"), "{query:?}");
                }
            }
        }
        let drop = format!("DROP TABLE `{}`", table.records);
        link.execute(AssertSqlSafe(drop)).await.unwrap();
    }
}
