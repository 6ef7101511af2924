//! The conformance checklist, row by row: each test names the row that it holds the layer to.

#![expect(
    clippy::unwrap_used,
    reason = "helpers fail like the tests that call them"
)]

mod a_header;
mod adcp;
mod b_scope;
mod c_fingerprint;
mod conventions;
mod d_concurrency;
mod e_replay;
mod f_stored;
mod g_retention;
mod grpc;
mod host;
mod in_flight_elsewhere;
mod inner;
mod limits;
mod observe;
mod presets;
mod principal;
mod published;
#[path = "../../../semel/tests/scripted/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod scripted;
mod seen;
mod slow;
mod socket;
mod support;
mod transacted;
