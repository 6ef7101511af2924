//! Rows as entries, and what goes into parameters.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use semel::record::Resolved;
use semel::store::{Entry, Fence, Label, Nonce, Result, Token};
use semel::{
    Fingerprint, IdentityDigest, Note, Outcome, Progress, Record, Scope, State, StateKind,
    StoreError, StoreErrorKind, Timestamp,
};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::step::Step;

/// A statement's parameter. Owned, so that a step can wait for a connection and be sent again.
#[derive(Clone)]
pub(super) enum Param {
    Bytes(Option<Bytes>),
    Int(Option<i64>),
    Bool(bool),
    Text(Option<String>),
    Time(Option<Timestamp>),
    /// One parameter of several steps of a kind, as an array.
    Each(Vec<Arc<Step>>, usize),
}

impl Param {
    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Some(Bytes::copy_from_slice(bytes)))
    }

    pub(super) const fn int(int: i64) -> Self {
        Self::Int(Some(int))
    }

    /// Microseconds; as many as fit.
    pub(super) fn micros(duration: std::time::Duration) -> Self {
        Self::int(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }

    pub(super) const fn time(time: Timestamp) -> Self {
        Self::Time(Some(time))
    }

    /// A fence bit for bit: one that was never given out may have any bits, and equals none.
    pub(super) const fn fence(fence: Fence) -> Self {
        Self::int(fence.0.cast_signed())
    }

    pub(super) fn kind(&self) -> Type {
        match self {
            Self::Bytes(_) => Type::BYTEA,
            Self::Int(_) => Type::INT8,
            Self::Bool(_) => Type::BOOL,
            Self::Text(_) => Type::TEXT,
            Self::Time(_) => Type::TIMESTAMPTZ,
            Self::Each(steps, number) => match steps.first().map(|step| &step.params[*number]) {
                Some(Self::Bytes(_)) => Type::BYTEA_ARRAY,
                Some(Self::Int(_)) => Type::INT8_ARRAY,
                Some(Self::Bool(_)) => Type::BOOL_ARRAY,
                _ => Type::TEXT_ARRAY,
            },
        }
    }
}

/// The driver writes parameters into the application's log, at debug: no outcome, scope or key of anybody's
/// (protocol rule R12).
impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(Some(bytes)) => write!(f, "{} bytes", bytes.len()),
            Self::Bytes(None) | Self::Text(None) => f.write_str("NULL"),
            Self::Int(int) => write!(f, "{int:?}"),
            Self::Bool(bool) => write!(f, "{bool}"),
            Self::Text(Some(text)) => write!(f, "text of {} bytes", text.len()),
            Self::Time(time) => write!(f, "{time:?}"),
            Self::Each(steps, _) => write!(f, "{} values", steps.len()),
        }
    }
}

impl ToSql for Param {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Self::Bytes(bytes) => bytes.as_deref().to_sql(ty, out),
            Self::Int(int) => int.to_sql(ty, out),
            Self::Bool(bool) => bool.to_sql(ty, out),
            Self::Text(text) => text.to_sql(ty, out),
            Self::Time(time) => time.map(since_epoch).to_sql(&Type::INT8, out),
            Self::Each(steps, number) => {
                let each: Vec<&Self> = steps.iter().map(|step| &step.params[*number]).collect();
                each.to_sql(ty, out)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Text as PostgreSQL can keep it: it has no NUL. `\` is written `\\`, NUL `\0`.
pub(super) fn escaped(text: &str) -> String {
    if text.contains(['\\', '\0']) {
        text.replace('\\', "\\\\").replace('\0', "\\0")
    } else {
        text.into()
    }
}

/// Texts as an array is written: a statement for several records cannot have arrays in an array.
pub(super) fn array<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut array = String::from("{");
    for text in texts {
        array.push_str(if array.len() == 1 { "\"" } else { ",\"" });
        for c in escaped(text).chars() {
            if matches!(c, '"' | '\\') {
                array.push('\\');
            }
            array.push(c);
        }
        array.push('"');
    }
    array.push('}');
    array
}

fn unescaped(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return Some(text.into());
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next()? {
                '\\' => '\\',
                '0' => '\0',
                _ => return None,
            },
            c => c,
        });
    }
    Some(plain)
}

/// A `timestamptz` to the microsecond; `infinity` is [`Timestamp::MAX`].
struct At(Timestamp);

// From the Unix epoch to 2000-01-01, from which PostgreSQL counts.
const EPOCH: i64 = 946_684_800_000_000;

/// What does not fit is `infinity`, as [`Timestamp::MAX`] is.
fn since_epoch(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).map_or(i64::MAX, |micros| micros - EPOCH)
}

impl<'a> FromSql<'a> for At {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let since = i64::from_be_bytes(raw.try_into()?);
        debug_assert_eq!(*ty, Type::TIMESTAMPTZ);
        if since == i64::MAX {
            return Ok(Self(Timestamp::MAX));
        }
        let micros = since.saturating_add(EPOCH);
        Ok(Self(Timestamp::from_micros(u64::try_from(micros)?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A row of whichever driver, in PostgreSQL's binary form.
pub(crate) trait Columns {
    fn column<'a, T: FromSql<'a>>(
        &'a self,
        column: usize,
    ) -> Result<T, Box<dyn StdError + Sync + Send>>;
}

impl Columns for Row {
    fn column<'a, T: FromSql<'a>>(
        &'a self,
        column: usize,
    ) -> Result<T, Box<dyn StdError + Sync + Send>> {
        Ok(self.try_get(column)?)
    }
}

/// The server's time in a column.
pub(super) fn time(row: &impl Columns, column: usize) -> Result<Timestamp> {
    Ok(get::<At>(row, column)?.0)
}

/// A column, or an error that says that the row cannot be read.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a impl Columns, column: usize) -> Result<T> {
    row.column(column).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Corrupt,
            "a row of the records table cannot be read: its columns are not those that \
             `semel migrate` makes",
        )
        .with_source(error)
    })
}

fn damaged(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a row of the records table holds {what} that cannot be read"),
    )
}

/// The entry in the columns from `first` on; `None` where they are all null.
pub(super) fn entry(row: &impl Columns, first: usize) -> Result<Option<Entry>> {
    let at = |column: usize| first + column;
    let Some(digest) = get::<Option<&[u8]>>(row, at(0))? else {
        return Ok(None);
    };
    let digest = digest.try_into().map_err(|_| damaged("a digest"))?;
    let fingerprint = get::<&[u8]>(row, at(2))?;
    let fingerprint = fingerprint
        .try_into()
        .map_err(|_| damaged("a fingerprint"))?;
    let nonce = get::<&[u8]>(row, at(4))?;
    let nonce = nonce.try_into().map_err(|_| damaged("a nonce"))?;
    let text = |text: &str| unescaped(text).ok_or_else(|| damaged("text"));
    let scope: Result<Vec<String>> = get::<Vec<&str>>(row, at(12))?
        .into_iter()
        .map(text)
        .collect();
    let kind = StateKind::from_name(get(row, at(1))?).ok_or_else(|| damaged("a state"))?;
    let state = match kind {
        StateKind::InFlight => State::InFlight,
        StateKind::Unknown => State::Unknown,
        StateKind::Released => State::Released,
        StateKind::Completed => {
            let outcome = get::<Option<&[u8]>>(row, at(15))?.unwrap_or_default();
            let outcome = Outcome::from_bytes(Bytes::copy_from_slice(outcome));
            State::Completed(outcome.map_err(|error| damaged("an outcome").with_source(error))?)
        }
    };
    let resolved = match get::<Option<&str>>(row, at(16))? {
        None => None,
        Some(resolved) => Some(Box::new(
            Resolved::from_text(&text(resolved)?)
                .map_err(|error| damaged("a resolution").with_source(error))?,
        )),
    };
    Ok(Some(Entry {
        label: Label {
            digest: IdentityDigest::from_bytes(digest),
            scope: Scope::new(scope?),
            operation: text(get(row, at(13))?)?.into(),
            key_hint: text(get(row, at(14))?)?.into(),
        },
        record: Record {
            state,
            expires_at: time(row, at(10))?,
            purge_at: time(row, at(11))?,
            fingerprint: Fingerprint::from_bytes(fingerprint),
            attempt: u32::try_from(get::<i64>(row, at(5))?).unwrap_or(u32::MAX),
            token: Token {
                fence: Fence(get::<i64>(row, at(3))?.cast_unsigned()),
                nonce: Nonce::from_bytes(nonce),
            },
            lease_until: time(row, at(8))?,
            created_at: time(row, at(6))?,
            claimed_at: time(row, at(7))?,
            settled_at: get::<Option<At>>(row, at(9))?.map(|at| at.0),
            resolved,
            progress: Progress::from_bytes(get(row, at(17))?)
                .map_err(|error| damaged("finished steps").with_source(error))?,
            note: Note::from_text(get(row, at(18))?)
                .map_err(|error| damaged("a note").with_source(error))?,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_caller_is_in_debug() {
        let secret = "card 4242";
        let params = [Param::bytes(secret.as_bytes()), Param::text(secret)];
        let said = format!("{params:?}");
        assert_eq!(said, "[9 bytes, text of 9 bytes]");
    }

    #[test]
    fn text_with_nul_and_backslash_comes_back() {
        for text in ["", "plain", "\0", "\\", "\\0", "a\0b\\\\0c\n", "\\\\\0\\"] {
            let kept = escaped(text);
            assert!(!kept.contains('\0'));
            assert_eq!(unescaped(&kept).as_deref(), Some(text));
        }
        assert_eq!(unescaped("\\x"), None);
    }
}
