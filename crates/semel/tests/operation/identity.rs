//! Row 24: calls are one where operation, declared parts and key are the same, and nowhere else.

use std::collections::HashMap;

use proptest::prelude::*;
use semel::operation::{Call, Caller, KeyFrom, Operation, Part};
use semel::{IdentityDigest, KeyRule};

const PARTS: [Part; 4] = [Part::TENANT, Part::ACCOUNT, Part::USER, Part::SESSION];

/// A call as it is told apart by people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    operation: String,
    /// A value for each of `PARTS`, and whether it is declared.
    parts: [(String, bool); 4],
    key: String,
}

impl Asked {
    fn digest(&self) -> IdentityDigest {
        let scope = self.declared().map(|(part, _)| part);
        let key = KeyFrom::Client(KeyRule::GENERAL);
        let operation = Operation::new(&self.operation, scope, key);
        let mut caller = Caller::new();
        for (part, (value, _)) in PARTS.iter().zip(&self.parts) {
            caller = caller.with(*part, value.as_str());
        }
        let call = Call::by(&caller).key(Some(&self.key));
        let asked = operation.asked(&call).unwrap();
        *asked.identity().unwrap().digest()
    }

    fn declared(&self) -> impl Iterator<Item = (Part, &str)> {
        let parts = PARTS.into_iter().zip(&self.parts);
        parts.filter_map(|(part, (value, declared))| declared.then_some((part, value.as_str())))
    }

    /// What makes it one.
    fn name(&self) -> (&str, Vec<(Part, &str)>, &str) {
        (&self.operation, self.declared().collect(), &self.key)
    }
}

/// Short texts of few letters, separators and names of parts among them: they meet often.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab:/|=,\"\\[]{1,3}",
        Just("tenant".to_owned()),
        Just("account".to_owned()),
        Just("window".to_owned()),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let part = || (text(), any::<bool>());
    let parts = [part(), part(), part(), part()];
    (text(), parts, text()).prop_map(|(operation, parts, key)| Asked {
        operation,
        parts,
        key,
    })
}

proptest! {
    #[test]
    fn row_24_identities_are_equal_where_all_parts_are(calls in prop::collection::vec(asked(), 2..16)) {
        let mut seen = HashMap::new();
        for call in &calls {
            let name = call.name();
            let digest = call.digest();
            // One name has one digest, and one digest has one name.
            let named = seen.entry(digest).or_insert_with(|| name.clone());
            prop_assert_eq!(&*named, &name);
        }
        let names: std::collections::HashSet<_> = calls.iter().map(Asked::name).collect();
        prop_assert_eq!(names.len(), seen.len());
    }

    #[test]
    fn parts_that_are_not_declared_do_not_count(one in asked(), other in [text(), text(), text(), text()]) {
        let mut two = one.clone();
        for ((value, declared), other) in two.parts.iter_mut().zip(other) {
            if !*declared {
                *value = other;
            }
        }
        prop_assert_eq!(one.digest(), two.digest());
    }
}
