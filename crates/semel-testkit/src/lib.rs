//! Servers of one's own, and faults on the way to them: for semel's tests, benchmarks and lab.
//!
//! * [`servers::start`] starts a server of a [`Kind`](servers::Kind) on free ports with a data folder of its own, and
//!   stops it when the handle is dropped, or when this process ends however it ends.
//! * [`servers::shared`] gives the URL of a server that all tests of a run use: the one in the
//!   environment (`SEMEL_TEST_POSTGRES` and so on), else one that this process starts.
//! * [`proxy::Proxy`] stands before a server: counts round trips, delays, cuts, swallows answers.
//! * The program `with-servers` starts one of each kind and runs a command with their URLs.

pub mod proxy;
pub mod servers;
