//! A paper-trading account service whose operations happen once.
//!
//! | room | what is in it |
//! |---|---|
//! | [`domain`] | accounts, positions, quotes: plain SQL and its rules; knows nothing of retries |
//! | [`once`] | which operation is the same as which, and the running of each in one transaction |
//! | [`http`] | the same over HTTP |

pub mod domain;
pub mod http;
pub mod once;
