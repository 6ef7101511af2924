//! No field value makes the key's parser panic; what it takes is a key by the rule; what the strict
//! form takes, the lenient form reads alike; and no error repeats what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel::KeyRule;
use semel_tower::header::{Syntax, parse};

fuzz_target!(|data: &[u8]| {
    for rule in [KeyRule::GENERAL, KeyRule::STRICT] {
        let strict = parse([data], Syntax::Strict, &rule);
        let lenient = parse([data], Syntax::Lenient, &rule);
        if let Ok(Some(key)) = &strict {
            assert_eq!(lenient.as_ref().ok(), Some(&Some(key.clone())));
        }
        match &lenient {
            Ok(Some(key)) => assert_eq!(rule.parse(key.as_str()).as_ref(), Ok(key)),
            Ok(None) => panic!("a field is never ignored"),
            // No message has an `@` of its own.
            Err(error) => assert!(!error.to_string().contains('@'), "{error} repeats the key"),
        }
        assert!(parse([data, data], Syntax::Lenient, &rule).is_err());
    }
    assert_eq!(parse([], Syntax::Lenient, &KeyRule::GENERAL), Ok(None));
});
