//! Servers of one's own, and faults on the way to them: for semel's tests, benchmarks and lab.
