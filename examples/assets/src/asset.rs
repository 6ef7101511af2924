//! What assets are, and what happens to them. Pure: no database, no broker.

use serde::{Deserialize, Serialize};

/// Something happened to an asset.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Names the event, in every delivery of it.
    pub(crate) id: String,
    pub(crate) asset: String,
    /// The producer counts the events of each asset: 1, 2, 3 …
    pub(crate) number: u64,
    #[serde(flatten)]
    pub(crate) change: Change,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Change {
    Commissioned {
        place: String,
        capacity: u32,
    },
    Loaded {
        amount: u32,
    },
    Unloaded {
        amount: u32,
    },
    Moved {
        to: String,
    },
    Retired,
    /// Nothing: a person takes the place of an event that was set aside, so that the next ones go on.
    Skipped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    #[default]
    Planned,
    Commissioned,
    Retired,
}

/// A truck, a tank, a pallet: it is somewhere, and carries something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Asset {
    pub(crate) state: State,
    pub(crate) place: String,
    pub(crate) capacity: u32,
    pub(crate) load: u32,
}

/// Why an event changes nothing. It happened all the same: the ones after it go on from there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is not in service")]
    NotInService,
    #[error("it was commissioned before")]
    CommissionedBefore,
    #[error("there is room for {0}")]
    TooMuch(u32),
    #[error("there is only {0} on it")]
    TooLittle(u32),
}

impl Asset {
    /// What the asset is after the change.
    pub(crate) fn after(&self, change: &Change) -> Result<Self, Refusal> {
        let mut next = self.clone();
        match change {
            Change::Skipped => {}
            Change::Commissioned { place, capacity } => {
                if self.state != State::Planned {
                    return Err(Refusal::CommissionedBefore);
                }
                next.state = State::Commissioned;
                next.place.clone_from(place);
                next.capacity = *capacity;
            }
            _ if self.state != State::Commissioned => return Err(Refusal::NotInService),
            Change::Loaded { amount } => {
                let room = self.capacity - self.load;
                if *amount > room {
                    return Err(Refusal::TooMuch(room));
                }
                next.load += amount;
            }
            Change::Unloaded { amount } => {
                let left = self.load.checked_sub(*amount);
                next.load = left.ok_or(Refusal::TooLittle(self.load))?;
            }
            Change::Moved { to } => next.place.clone_from(to),
            Change::Retired => next.state = State::Retired,
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_carries_more_than_there_is_room_for_nor_less_than_nothing() {
        let (place, capacity) = ("Oslo".into(), 10);
        let commissioned = Change::Commissioned { place, capacity };
        let loaded = |amount| Change::Loaded { amount };
        let planned = Asset::default();
        assert_eq!(planned.after(&loaded(1)), Err(Refusal::NotInService));
        assert_eq!(planned.after(&Change::Skipped), Ok(planned.clone()));
        let truck = planned.after(&commissioned).unwrap();
        assert_eq!(truck.after(&commissioned), Err(Refusal::CommissionedBefore));
        let truck = truck.after(&loaded(7)).unwrap();
        assert_eq!(truck.after(&loaded(4)), Err(Refusal::TooMuch(3)));
        let unloaded = Change::Unloaded { amount: 8 };
        assert_eq!(truck.after(&unloaded), Err(Refusal::TooLittle(7)));
        let retired = truck.after(&Change::Retired).unwrap();
        assert_eq!((retired.load, retired.state), (7, State::Retired));
        assert_eq!(retired.after(&loaded(1)), Err(Refusal::NotInService));
    }
}
