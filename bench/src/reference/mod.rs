//! What semel is compared with, written as well as we can.

pub(crate) mod group;
pub(crate) mod log;
pub(crate) mod map;
