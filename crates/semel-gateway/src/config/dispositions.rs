//! `[dispositions]`: what the statuses of the upstream's answers mean, as configured.

use std::collections::BTreeMap;

use http::StatusCode;
use semel_tower::Disposition;

/// Statuses and what they mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispositions(BTreeMap<Statuses, Meaning>);

// In the order in which they are set: one status says more than its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Statuses {
    Class(u16),
    One(StatusCode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Keep,
    Release,
    Unknown,
}

impl Dispositions {
    /// Takes a line of the section.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn set(&mut self, statuses: &str, meaning: &str) -> Result<(), String> {
        let meaning = match meaning {
            "keep" => Meaning::Keep,
            "release" => Meaning::Release,
            "unknown" => Meaning::Unknown,
            other => return Err(format!("`{other}` is none of keep, release and unknown")),
        };
        let parsed = Statuses::parse(statuses);
        let statuses = parsed.ok_or_else(|| {
            format!("`{statuses}` is not a status from 200 to 599, nor 2xx to 5xx")
        })?;
        self.0.insert(statuses, meaning);
        Ok(())
    }

    /// What each status means; of two that are one the later counts.
    pub(crate) fn each(&self) -> impl Iterator<Item = (StatusCode, Disposition)> {
        self.0
            .iter()
            .flat_map(|(statuses, meaning)| statuses.all().map(|one| (one, meaning.of(one))))
    }
}

impl Statuses {
    fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            let class: u16 = class.parse().ok()?;
            return (2..=5).contains(&class).then_some(Self::Class(class));
        }
        let status = text
            .parse()
            .ok()
            .filter(|status| (200..600).contains(status))?;
        StatusCode::from_u16(status).ok().map(Self::One)
    }

    fn all(self) -> impl Iterator<Item = StatusCode> {
        let all = match self {
            Self::Class(class) => class * 100..class * 100 + 100,
            Self::One(status) => status.as_u16()..status.as_u16() + 1,
        };
        all.filter_map(|status| StatusCode::from_u16(status).ok())
    }
}

impl Meaning {
    fn of(self, status: StatusCode) -> Disposition {
        let is_success = status.is_success() || status.is_redirection();
        match self {
            Self::Keep if is_success => Disposition::KeepSuccess,
            Self::Keep => Disposition::KeepFailure,
            Self::Release => Disposition::Release,
            Self::Unknown => Disposition::Unknown,
        }
    }
}
