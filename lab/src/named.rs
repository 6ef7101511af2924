//! The names that the command line has for the variants of an enum, for whoever prints one.

use clap::ValueEnum;

/// An enum whose variants the command line knows by name.
pub trait Named: ValueEnum {
    /// The name of this one.
    fn name(&self) -> String {
        let value = self.to_possible_value().expect("no variant is hidden");
        value.get_name().to_owned()
    }

    /// These names, for messages.
    fn names(values: &[Self]) -> String {
        let names: Vec<_> = values.iter().map(Self::name).collect();
        names.join(", ")
    }
}

impl<V: ValueEnum> Named for V {}
